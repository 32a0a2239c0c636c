//! Grants: the order of spending, expiry, and the entries of both.

use earmark_core::{
    CreditShortage, GRANTS_MAX, GrantTerms, InvalidOperation, InvalidWrite, LeaseId, Operation, Overdraft, UnixMs,
    VaultName, WriteError,
};

use super::Harness;
use super::credit_driver::{MAIN, account, credit, issue, open, path, retire, transfer, usd, vault};
use super::driver::{Driver, MINUTE, namespace};
use super::extend::{RENEW, add, used};
use crate::backend::{Refusal, ReserveAnswer};
use crate::credit_lists::EntryQuery;
use crate::extend::ExtendAnswer;
use crate::statement::{StatementQuery, statement};
use crate::writes::EntryKind;

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;

/// A grant as a case reads it: priority, milliseconds from a time to its expiry, remaining and held amount.
type Seen = (u8, Option<u64>, i128, i128);

pub(super) fn grant(name: &str, amount: u128, terms: GrantTerms) -> Operation {
    Operation::Issue { account: account(name), asset: usd(), amount, memo: "granted".into(), terms }
}

pub(super) fn invalid(operation: usize, why: InvalidOperation) -> WriteError {
    WriteError::Invalid(InvalidWrite::Operation { operation, why })
}

fn close(name: &str) -> Operation {
    Operation::CloseAccount { account: account(name) }
}

impl<H: Harness> Driver<'_, H> {
    pub(super) fn now(&self) -> UnixMs {
        UnixMs::new(self.0.now_ms())
    }

    /// Refuses the next write of the vault `main`.
    pub(super) async fn is_refused(&self, operations: Vec<Operation>) -> WriteError {
        let last = self.last(MAIN).await;
        self.refuse(MAIN, last + 1, operations).await
    }

    /// Opens `acme` and `other`, with a credit limit `usd` on `acme` whose holds last a minute.
    async fn opens(&self, operations: Vec<Operation>) {
        self.does(MAIN, [vec![open("acme"), open("other")], operations].concat()).await;
        self.try_put(credit("usd", VaultName::MAIN, "acme", 60), None).await.expect("a limit that can be put");
    }

    /// The grants of an account, with their expiry relative to `start`.
    async fn grants_since(&self, start: UnixMs, name: &str) -> Vec<Seen> {
        let grants = self.0.backend().grants(path(VaultName::MAIN, name)).await.expect("an account that exists");
        let seen = grants.iter().map(|info| {
            assert_eq!(info.asset, usd());
            let expiry = info.terms.expires_at().map(|at| at.ms_since(start));
            (info.terms.priority(), expiry, info.remaining, info.held)
        });
        seen.collect()
    }

    /// The issued, spent and expired amounts of an account by its statement, which add up to its balance.
    pub(super) async fn sums_of(&self, name: &str) -> (i128, i128, i128) {
        let statement = statement(self.0.backend(), path(VaultName::MAIN, name), StatementQuery::default()).await;
        let found = statement.expect("a statement").assets.into_iter().next().expect("an asset with entries");
        let (available, held) = self.purse(VaultName::MAIN, name).await;
        assert_eq!(found.closing, available + held);
        (found.moved.issued, found.moved.spent, found.moved.expired)
    }

    /// The audit agrees: issued less retired and expired is the sum of all balances.
    pub(super) async fn is_balanced(&self) {
        let audit = self.0.backend().audit(namespace(), vault(VaultName::MAIN)).await.expect("a vault that exists");
        assert!(audit.balanced, "{audit:?}");
    }
}

/// The lowest priority number is spent first, then what expires first. Credit with equal terms is one grant.
pub async fn grants_are_spent_by_priority_then_by_expiry(harness: &impl Harness) {
    let driver = Driver(harness);
    let start = driver.now();
    let terms = |priority, after_ms| GrantTerms::new(priority, Some(start.plus_ms(after_ms)));
    let operations = vec![
        issue("acme", 10),
        grant("acme", 20, terms(200, HOUR_MS)),
        grant("acme", 30, terms(128, 2 * HOUR_MS)),
        issue("acme", 1),
        grant("acme", 40, GrantTerms::new(0, None)),
        grant("acme", 5, terms(128, 2 * HOUR_MS)),
    ];
    driver.opens(operations).await;
    let all = [(0, None, 40, 0), (128, Some(2 * HOUR_MS), 35, 0), (128, None, 11, 0), (200, Some(HOUR_MS), 20, 0)];
    assert_eq!(driver.grants_since(start, "acme").await, all);
    driver.does(MAIN, vec![retire("acme", 76)]).await;
    assert_eq!(driver.grants_since(start, "acme").await, [(128, None, 10, 0), (200, Some(HOUR_MS), 20, 0)]);
    let lease = driver.admit(&[("usd", 25)]).await;
    assert_eq!(driver.grants_since(start, "acme").await, [(128, None, 0, 10), (200, Some(HOUR_MS), 5, 15)]);
    driver.complete(lease, &[("usd", 25)]).await;
    driver.does(MAIN, vec![retire("acme", 5)]).await;
    assert_eq!(driver.grants_since(start, "acme").await, []);
    assert_eq!(driver.sums_of("acme").await, (106, 25, 0));
}

/// Expired credit is not spendable from that millisecond on, and has one entry.
pub async fn an_expired_grant_is_not_spendable_and_has_an_entry(harness: &impl Harness) {
    let driver = Driver(harness);
    let terms = GrantTerms::new(1, Some(driver.now().plus_ms(HOUR_MS)));
    driver.opens(vec![issue("acme", 10), grant("acme", 90, terms)]).await;
    harness.advance_ms(HOUR_MS - 1).await;
    assert_eq!(driver.usd_of(VaultName::MAIN, "acme").await, 100);
    harness.advance_ms(1).await;
    assert_eq!(driver.usd_of(VaultName::MAIN, "acme").await, 10);
    assert_eq!(driver.is_refused(vec![retire("acme", 11)]).await.code(), "INSUFFICIENT_CREDIT");
    match driver.reserve(driver.lease(), &[("usd", 11)]).await {
        ReserveAnswer::Refused(Refusal::InsufficientCredit { why, .. }) => {
            assert_eq!(why, CreditShortage::NotEnough);
        }
        other => panic!("{other:?}"),
    }
    driver.does(MAIN, vec![transfer("acme", "other", 10)]).await;
    assert_eq!(driver.sums_of("acme").await, (100, 0, 90));
    let page = harness.backend().entries(path(VaultName::MAIN, "acme"), EntryQuery::oldest_first(0, 10)).await;
    let page = page.expect("an account that exists");
    let of_expiry = |entry: &&crate::writes::EntryView| matches!(entry.what, EntryKind::Expire(of) if of == terms);
    let changes: Vec<i128> = page.entries.iter().filter(of_expiry).map(|entry| entry.changes[0].amount).collect();
    assert_eq!(changes, [-90]);
    driver.is_balanced().await;
    driver.does(MAIN, vec![close("acme")]).await;
}

/// A hold returns to the grants it took from, also when it runs out. The grants that are spent first pay.
pub async fn a_hold_returns_to_the_grants_it_took_from(harness: &impl Harness) {
    let driver = Driver(harness);
    let start = driver.now();
    let terms = |priority| GrantTerms::new(priority, Some(start.plus_ms(HOUR_MS)));
    driver.opens(vec![issue("acme", 10), grant("acme", 20, terms(1)), grant("acme", 30, terms(200))]).await;
    let before = driver.grants_since(start, "acme").await;
    let lease = driver.admit(&[("usd", 45)]).await;
    let held = [(1, Some(HOUR_MS), 0, 20), (128, None, 0, 10), (200, Some(HOUR_MS), 15, 15)];
    assert_eq!(driver.grants_since(start, "acme").await, held);
    driver.complete(lease, &[("usd", 0)]).await;
    assert_eq!(driver.grants_since(start, "acme").await, before);
    let lease = driver.admit(&[("usd", 45)]).await;
    driver.complete(lease, &[("usd", 25)]).await;
    let rest = [(128, None, 5, 0), (200, Some(HOUR_MS), 30, 0)];
    assert_eq!(driver.grants_since(start, "acme").await, rest, "the first spent pays");
    driver.admit(&[("usd", 35)]).await;
    harness.advance_ms(MINUTE_MS + 1_000).await;
    assert_eq!(driver.grants_since(start, "acme").await, rest, "a hold that ran out");
    driver.does(MAIN, vec![retire("acme", 35)]).await;
    driver.is_balanced().await;
}

/// Held credit survives expiry, and expires when it returns.
pub async fn held_credit_survives_expiry_and_expires_when_it_returns(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.opens(vec![]).await;
    let mut spent = 0;
    for (round, cost, paid) in [(1, Some(60), 60), (2, Some(25), 25), (3, Some(0), 0), (4, None, 0)] {
        let start = driver.now();
        let terms = GrantTerms::new(1, Some(start.plus_ms(30_000)));
        driver.does(MAIN, vec![grant("acme", 90, terms)]).await;
        let lease = driver.admit(&[("usd", 60)]).await;
        harness.advance_ms(30_000).await;
        assert_eq!(driver.grants_since(start, "acme").await, [(1, Some(30_000), 0, 60)], "{round}");
        match cost {
            Some(cost) => drop(driver.complete(lease, &[("usd", cost)]).await),
            None => harness.advance_ms(31_000).await,
        }
        // A decision about the account records what is due on it.
        driver.does(MAIN, vec![issue("acme", 1)]).await;
        driver.does(MAIN, vec![retire("acme", 1)]).await;
        spent += paid;
        assert_eq!(driver.grants_since(start, "acme").await, [], "{round}");
        assert_eq!(driver.sums_of("acme").await, (round * 91, spent, round * 90 - spent), "{round}");
    }
    driver.is_balanced().await;
}

/// A transfer carries expiry and priority. A write may spend the grant of its own later operation.
pub async fn a_transfer_carries_expiry_and_priority(harness: &impl Harness) {
    let driver = Driver(harness);
    let start = driver.now();
    let terms = |priority| GrantTerms::new(priority, Some(start.plus_ms(HOUR_MS)));
    driver.opens(vec![issue("acme", 10), grant("acme", 20, terms(1)), grant("other", 5, terms(1))]).await;
    driver.does(MAIN, vec![transfer("acme", "other", 25)]).await;
    assert_eq!(driver.grants_since(start, "acme").await, [(128, None, 5, 0)]);
    assert_eq!(driver.grants_since(start, "other").await, [(1, Some(HOUR_MS), 25, 0), (128, None, 5, 0)]);
    driver.does(MAIN, vec![transfer("acme", "other", 12), grant("acme", 9, terms(3))]).await;
    assert_eq!(driver.grants_since(start, "acme").await, [(128, None, 2, 0)]);
    let received = [(1, Some(HOUR_MS), 25, 0), (3, Some(HOUR_MS), 9, 0), (128, None, 8, 0)];
    assert_eq!(driver.grants_since(start, "other").await, received);
    harness.advance_ms(HOUR_MS).await;
    assert_eq!(driver.usd_of(VaultName::MAIN, "other").await, 8);
    driver.does(MAIN, vec![transfer("other", "acme", 8), close("other")]).await;
    driver.is_balanced().await;
}

/// A deposit with terms covers debt first; a late complete is charged to what has not expired.
pub async fn a_grant_covers_debt_first(harness: &impl Harness) {
    let driver = Driver(harness);
    let start = driver.now();
    let terms = GrantTerms::new(1, Some(start.plus_ms(HOUR_MS)));
    driver.opens(vec![issue("acme", 10)]).await;
    let lease = driver.admit(&[("usd", 10)]).await;
    driver.does(MAIN, vec![grant("acme", 50, terms)]).await;
    driver.complete(lease, &[("usd", 30)]).await;
    assert_eq!(driver.grants_since(start, "acme").await, [(1, Some(HOUR_MS), 30, 0)]);
    let lease = driver.admit(&[("usd", 30)]).await;
    driver.complete(lease, &[("usd", 70)]).await;
    assert_eq!(driver.grants_since(start, "acme").await, [(128, None, -40, 0)]);
    driver.does(MAIN, vec![grant("acme", 55, terms)]).await;
    assert_eq!(driver.grants_since(start, "acme").await, [(1, Some(HOUR_MS), 15, 0)]);
    driver.is_balanced().await;
}

/// In a database, grants that returned from a hold stayed beside the debt of their account, and expired there. And a
/// deposit, or a grant that was transferred, covered a hold as if it were debt, so that the grants became plain credit.
pub async fn returning_grants_cover_debt_but_only_real_debt(harness: &impl Harness) {
    let driver = Driver(harness);
    let start = driver.now();
    let terms = GrantTerms::new(1, Some(start.plus_ms(HOUR_MS)));
    let owing = Operation::OpenAccount { account: account("owing"), overdraft: Overdraft::Allow, plan: None };
    driver.opens(vec![owing]).await;
    driver.try_put(credit("owing", VaultName::MAIN, "owing", 60), None).await.expect("a limit that can be put");
    for is_completed in [true, false] {
        driver.does(MAIN, vec![grant("owing", 10, terms)]).await;
        let lease = driver.admit(&[("owing", 10)]).await;
        driver.does(MAIN, vec![retire("owing", 50)]).await;
        let held = [(1, Some(HOUR_MS), 0, 10), (128, None, -50, 0)];
        assert_eq!(driver.grants_since(start, "owing").await, held);
        if is_completed {
            driver.complete(lease, &[("owing", 3)]).await;
            assert_eq!(driver.grants_since(start, "owing").await, [(128, None, -43, 0)]);
            driver.does(MAIN, vec![issue("owing", 43)]).await;
            continue;
        }
        harness.advance_ms(MINUTE_MS + 1_000).await;
        assert_eq!(driver.usd_of(VaultName::MAIN, "owing").await, -40);
        driver.does(MAIN, vec![issue("owing", 1)]).await;
        assert_eq!(driver.grants_since(start, "owing").await, [(128, None, -39, 0)]);
        driver.does(MAIN, vec![issue("owing", 39)]).await;
    }
    let lease = driver.admit(&[("owing", 5)]).await;
    driver.does(MAIN, vec![grant("acme", 10, terms), transfer("acme", "owing", 10)]).await;
    let moved = [(1, Some(HOUR_MS), 10, 0), (128, None, -5, 5)];
    assert_eq!(driver.grants_since(start, "owing").await, moved, "a hold is no debt for a transfer either");
    driver.complete(lease, &[("owing", 0)]).await;
    driver.does(MAIN, vec![retire("owing", 10)]).await;
    driver.does(MAIN, vec![grant("owing", 14, terms)]).await;
    let large = driver.admit(&[("owing", 100)]).await;
    let small = driver.admit(&[("owing", 10)]).await;
    driver.complete(large, &[("owing", 0)]).await;
    driver.does(MAIN, vec![issue("owing", 1)]).await;
    let rest = [(1, Some(HOUR_MS), 14, 0), (128, None, -9, 10)];
    assert_eq!(driver.grants_since(start, "owing").await, rest, "a hold is no debt");
    driver.complete(small, &[("owing", 0)]).await;
    assert_eq!(driver.grants_since(start, "owing").await, [(1, Some(HOUR_MS), 14, 0), (128, None, 1, 0)]);
    driver.is_balanced().await;
}

/// In a database, plain credit that a hold paid still outweighed the debt of its account. So grants that returned from
/// the same hold stayed beside that debt.
pub async fn grants_cover_the_debt_that_a_hold_leaves(harness: &impl Harness) {
    let driver = Driver(harness);
    let start = driver.now();
    let terms = |priority| GrantTerms::new(priority, Some(start.plus_ms(HOUR_MS)));
    let owing = Operation::OpenAccount { account: account("owing"), overdraft: Overdraft::Allow, plan: None };
    driver.opens(vec![owing]).await;
    driver.try_put(credit("owing", VaultName::MAIN, "owing", 60), None).await.expect("a limit that can be put");
    for (priority, cost, left) in [
        (200, 20, vec![(128, None, -5, 0)]),
        (200, 12, vec![(200, Some(HOUR_MS), 3, 0)]),
        (200, 3, vec![(128, None, 2, 0), (200, Some(HOUR_MS), 10, 0)]),
        (1, 0, vec![(1, Some(HOUR_MS), 10, 0), (128, None, 5, 0)]),
        (1, 13, vec![(128, None, 2, 0)]),
        (1, 40, vec![(128, None, -25, 0)]),
    ] {
        driver.does(MAIN, vec![issue("owing", 20), grant("owing", 10, terms(priority))]).await;
        let lease = driver.admit(&[("owing", 30)]).await;
        driver.does(MAIN, vec![retire("owing", 15)]).await;
        driver.complete(lease, &[("owing", cost)]).await;
        assert_eq!(driver.grants_since(start, "owing").await, left, "{priority} {cost}");
        let balance = driver.usd_of(VaultName::MAIN, "owing").await;
        let reset =
            if balance < 0 { issue("owing", balance.unsigned_abs()) } else { retire("owing", balance.unsigned_abs()) };
        driver.does(MAIN, vec![reset]).await;
        assert_eq!(driver.grants_since(start, "owing").await, []);
    }
    driver.put("tpm", MINUTE, 10).await;
    driver.does(MAIN, vec![grant("owing", 10, terms(1))]).await;
    let lease = driver.admit(&[("owing", 5)]).await;
    let is_denied = async |number| {
        let before = driver.grants_since(start, "owing").await;
        let answer = driver.extend(lease, number, add(&[("owing", 30), ("tpm", 11)])).await;
        assert!(matches!(answer, ExtendAnswer::Denied { .. }), "{answer:?}");
        assert_eq!(driver.grants_since(start, "owing").await, before, "growth that returns covers no debt");
    };
    is_denied(1).await;
    driver.does(MAIN, vec![retire("owing", 20)]).await;
    is_denied(2).await;
    driver.complete(lease, &[("owing", 0)]).await;
    assert_eq!(driver.grants_since(start, "owing").await, [(128, None, -10, 0)]);
    driver.is_balanced().await;
}

/// An extension takes in spending order, and what it does not use returns in reverse.
pub async fn an_extension_takes_from_grants_in_spending_order(harness: &impl Harness) {
    let driver = Driver(harness);
    let start = driver.now();
    let terms = GrantTerms::new(1, Some(start.plus_ms(HOUR_MS)));
    driver.opens(vec![issue("acme", 10), grant("acme", 20, terms)]).await;
    let lease: LeaseId = driver.admit(&[("usd", 15)]).await;
    driver.extends(lease, 1, add(&[("usd", 10)])).await;
    let grown = [(1, Some(HOUR_MS), 0, 20), (128, None, 5, 5)];
    assert_eq!(driver.grants_since(start, "acme").await, grown);
    driver.extends(lease, 2, RENEW).await;
    driver.extends(lease, 3, used(&[("usd", 22)])).await;
    assert_eq!(driver.grants_since(start, "acme").await, grown);
    driver.complete(lease, &[("usd", 23)]).await;
    assert_eq!(driver.grants_since(start, "acme").await, [(128, None, 7, 0)]);
    driver.is_balanced().await;
}

/// Bad terms and too many grants are refused by name, and change nothing.
pub async fn bad_grants_are_refused_by_name(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.opens(vec![]).await;
    harness.advance_ms(1_000).await;
    let start = driver.now();
    let past = GrantTerms::new(1, Some(start));
    let refused = driver.is_refused(vec![issue("acme", 1), grant("acme", 1, past)]).await;
    assert_eq!(refused, invalid(1, InvalidOperation::ExpiryPast));
    let terms = |number: u64| GrantTerms::new(1, Some(start.plus_ms(HOUR_MS + number)));
    driver.does(MAIN, (0..GRANTS_MAX as u64).map(|number| grant("acme", 1, terms(number))).collect()).await;
    let too_many = || invalid(0, InvalidOperation::TooManyGrants);
    assert_eq!(driver.is_refused(vec![grant("acme", 1, GrantTerms::new(2, None))]).await, too_many());
    driver.does(MAIN, vec![grant("acme", 1, terms(0)), issue("acme", 1)]).await;
    driver.does(MAIN, vec![grant("other", 1, GrantTerms::new(7, None))]).await;
    assert_eq!(driver.is_refused(vec![transfer("other", "acme", 1)]).await, too_many());
    assert_eq!(driver.usd_of(VaultName::MAIN, "other").await, 1);
    let most = driver.admit(&[("usd", GRANTS_MAX as u64 + 2)]).await;
    driver.complete(most, &[]).await;
    driver.is_balanced().await;
}

/// After random writes, holds, settlements and waits: issued is available, held, spent, expired and retired.
pub async fn the_sums_of_grants_add_up(harness: &impl Harness) {
    const STEPS: u64 = 60;
    let driver = Driver(harness);
    let owing = Operation::OpenAccount { account: account("third"), overdraft: Overdraft::Allow, plan: None };
    driver.opens(vec![owing, issue("acme", 50)]).await;
    let mut random = harness.now_ms() | 1;
    let mut below = |end: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % end
    };
    let mut leases = Vec::new();
    for _ in 0..STEPS {
        let amount = below(9) + 1;
        let names = ["acme", "other", "third"];
        let (from, to) = (names[below(3) as usize], names[below(3) as usize]);
        let expiry = driver.now().plus_ms((below(5) + 1) * 10_000);
        let terms = GrantTerms::new([1, 128, 200][below(3) as usize], (below(4) > 0).then_some(expiry));
        match below(6) {
            0 | 1 => drop(driver.does(MAIN, vec![grant(from, (amount * 3).into(), terms)]).await),
            2 if from != to => {
                let last = driver.last(MAIN).await;
                _ = driver.write(MAIN, last + 1, vec![transfer(from, to, amount.into())]).await;
            }
            3 => {
                let lease = driver.lease();
                if let ReserveAnswer::Allowed { .. } = driver.reserve(lease, &[("usd", amount)]).await {
                    leases.push(lease);
                }
            }
            4 if !leases.is_empty() => {
                let lease = leases.swap_remove(below(leases.len() as u64) as usize);
                driver.complete(lease, &[("usd", below(12))]).await;
            }
            _ => harness.advance_ms(below(20_000)).await,
        }
        driver.is_balanced().await;
        for name in names {
            let (available, held) = driver.purse(VaultName::MAIN, name).await;
            let grants = driver.grants_since(driver.now(), name).await;
            let sums = grants.iter().fold((0, 0), |(free, held), grant| (free + grant.2, held + grant.3));
            assert_eq!(sums, (available, held), "{name}");
        }
    }
}
