//! Credit holds: held together with the limits, settled at cost, released in time.

use earmark_core::{
    AccountName, CreditShortage, Definition, LeaseId, LimitStatus, Operation, Overage, Overdraft, UsageSort, WriteError,
};

use super::Harness;
use super::credit_driver::{MAIN, account, credit, issue, open, open_vault, retire, transfer};
use super::driver::{Driver, MINUTE, SLOTS, key, namespace};
use crate::backend::{CompleteAnswer, Refusal, ReserveAnswer};
use crate::usage::UsageQuery;
use crate::writes::CreditRoom;

/// Opens account `acme` with `amount` usd and a credit limit `usd` on it.
async fn fill<H: Harness>(driver: &Driver<'_, H>, amount: u128, overage: Overage, timeout_seconds: u32) {
    driver.does(MAIN, vec![open("acme"), issue("acme", amount)]).await;
    driver.has(Definition { overage, ..credit("usd", "main", "acme", timeout_seconds) }).await;
}

impl<H: Harness> Driver<'_, H> {
    async fn has(&self, definition: Definition) {
        self.try_put(definition, None).await.expect("a limit that can be put");
    }

    /// Available and held credit of `acme`, and the balance of `revenue`.
    async fn sums(&self) -> (i128, i128, i128) {
        let (available, held) = self.purse("main", "acme").await;
        (available, held, self.usd_of("main", AccountName::REVENUE).await)
    }

    /// The largest amount of a credit limit that a reserve would get.
    async fn room(&self, name: &str) -> CreditRoom {
        let limit = self.0.backend().limit(namespace(), key(name)).await.expect("a backend that answers");
        let terms = limit.and_then(|limit| limit.definition.kind.terms().cloned()).expect("a credit limit");
        self.0.backend().credit_room(namespace(), terms).await.expect("a backend that answers")
    }

    /// Reserves with a new lease and returns why credit was refused.
    async fn short(&self, parts: &[(&str, u64)]) -> (String, CreditShortage) {
        match self.reserve(self.lease(), parts).await {
            ReserveAnswer::Refused(Refusal::InsufficientCredit { key, retry_after_ms, why }) => {
                assert_eq!(retry_after_ms, 10_000);
                (key.to_string(), why)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Completes a lease, with the cost of `usd` if given.
    async fn settle(&self, lease: LeaseId, cost: Option<u64>) -> CompleteAnswer {
        let actuals: Vec<(&str, u64)> = cost.map(|cost| ("usd", cost)).into_iter().collect();
        self.complete(lease, &actuals).await
    }
}

fn freeze(name: &str) -> Operation {
    Operation::FreezeAccount { account: account(name) }
}

fn close(name: &str) -> Operation {
    Operation::CloseAccount { account: account(name) }
}

fn charges(answer: &CompleteAnswer) -> (u64, u64, u64) {
    (answer.credit_paid, answer.credit_debt, answer.credit_uncollected)
}

/// A reserve holds limits and credit together or not at all.
pub async fn credit_is_held_with_the_limits_or_not_at_all(harness: &impl Harness) {
    let driver = Driver(harness);
    fill(&driver, 100, Overage::Debt, 60).await;
    driver.put("rpm", MINUTE, 10).await;
    driver.put("slots", SLOTS, 1).await;
    driver.admit(&[("rpm", 1), ("usd", 30), ("slots", 1)]).await;
    assert_eq!((driver.reserved("rpm").await, driver.reserved("slots").await), (1, 1));
    assert_eq!(driver.sums().await, (70, 30, 0));
    driver.deny(&[("rpm", 1), ("usd", 30), ("slots", 1)]).await;
    driver.short(&[("rpm", 1), ("usd", 71)]).await;
    assert_eq!(driver.room("usd").await, Ok(70));
    assert_eq!((driver.reserved("rpm").await, driver.sums().await), (1, (70, 30, 0)));
    let usage = driver.usage("usd").await;
    assert_eq!((usage.capacity, usage.reserved, usage.available, usage.debt), (100, 30, 70, 0));
}

/// If a limit has no room either, the denial names the limit, because more credit would not help.
pub async fn too_little_credit_is_named_unless_a_limit_is_in_the_way_too(harness: &impl Harness) {
    let driver = Driver(harness);
    fill(&driver, 100, Overage::Debt, 60).await;
    driver.has(credit("more", "main", "acme", 60)).await;
    driver.put("rpm", MINUTE, 1).await;
    assert_eq!(driver.short(&[("usd", 101), ("rpm", 1)]).await, ("usd".into(), CreditShortage::NotEnough));
    let both = driver.short(&[("usd", 101), ("rpm", 1), ("more", 101)]).await;
    assert_eq!(both, ("more".into(), CreditShortage::NotEnough));
    match driver.reserve(driver.lease(), &[("usd", 101), ("rpm", 2)]).await {
        ReserveAnswer::Denied { limited_by, never, .. } => {
            assert_eq!((limited_by, never), (vec![key("rpm")], true));
        }
        other => panic!("{other:?}"),
    }
    let unknown = driver.reserve(driver.lease(), &[("usd", 101), ("nothing", 1)]).await;
    assert_eq!(unknown, ReserveAnswer::Refused(Refusal::UnknownLimitKey(key("nothing"))));
    assert_eq!((driver.reserved("rpm").await, driver.sums().await), (0, (100, 0, 0)));
}

/// A denial for want of credit is final for its lease.
pub async fn a_lease_denied_for_want_of_credit_stays_denied(harness: &impl Harness) {
    let driver = Driver(harness);
    fill(&driver, 10, Overage::Debt, 60).await;
    let lease = driver.lease();
    let first = driver.reserve(lease, &[("usd", 20)]).await;
    assert!(matches!(first, ReserveAnswer::Refused(Refusal::InsufficientCredit { .. })), "{first:?}");
    driver.does(MAIN, vec![issue("acme", 100)]).await;
    match driver.reserve(lease, &[("usd", 20)]).await {
        ReserveAnswer::Refused(Refusal::InsufficientCredit { key: limit, retry_after_ms, why }) => {
            assert_eq!((limit, why), (key("usd"), CreditShortage::NotEnough));
            assert!(retry_after_ms <= 10_000, "{retry_after_ms}");
        }
        other => panic!("{other:?}"),
    }
    let other = driver.reserve(lease, &[("usd", 21)]).await;
    assert!(matches!(other, ReserveAnswer::Refused(Refusal::InvalidRequest { .. })), "{other:?}");
    assert!(!driver.complete(lease, &[("usd", 5)]).await.reconciled);
    assert_eq!(driver.sums().await, (110, 0, 0));
    driver.admit(&[("usd", 20)]).await;
}

/// Two credit limits on one account cannot both count on the same credit.
pub async fn credit_keys_of_one_account_are_planned_together(harness: &impl Harness) {
    let driver = Driver(harness);
    fill(&driver, 100, Overage::Debt, 60).await;
    driver.has(credit("fees", "main", "acme", 60)).await;
    assert_eq!(driver.short(&[("usd", 60), ("fees", 41)]).await.0, "fees");
    let lease = driver.admit(&[("usd", 60), ("fees", 40)]).await;
    assert_eq!(driver.sums().await, (0, 100, 0));
    let answer = driver.complete(lease, &[("usd", 10), ("fees", 70)]).await;
    assert_eq!(charges(&answer), (80, 0, 0));
    assert_eq!(driver.sums().await, (20, 0, 80));
}

/// The refusal says what is wrong with the account.
pub async fn an_account_that_cannot_pay_is_told_apart(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.does(MAIN, vec![open("poor"), open("cold"), issue("cold", 9), freeze("cold"), open("gone")]).await;
    driver.does(MAIN, vec![close("gone")]).await;
    for (name, scope, payer, why) in [
        ("poor", "main", "poor", CreditShortage::NotEnough),
        ("cold", "main", "cold", CreditShortage::Frozen),
        ("gone", "main", "gone", CreditShortage::Closed),
    ] {
        driver.has(credit(name, scope, payer, 60)).await;
        assert_eq!(driver.short(&[(name, 1)]).await, (name.into(), why));
        assert_eq!(driver.usage(name).await.available, 0);
        assert_eq!(driver.room(name).await, if name == "poor" { Ok(0) } else { Err(why) });
    }
    // A missing vault or account leaves no trace of the lease, and can still be opened.
    driver.has(credit("vault", "nowhere", "poor", 60)).await;
    driver.has(credit("account", "main", "nobody", 60)).await;
    let lease = driver.lease();
    for name in ["account", "vault", "vault"] {
        let answer = driver.reserve(lease, &[(name, 1)]).await;
        let missing = Refusal::AccountNotFound { key: key(name), retry_after_ms: 10_000 };
        assert_eq!(answer, ReserveAnswer::Refused(missing));
        assert_eq!(driver.room(name).await, Err(CreditShortage::UnknownAccount));
    }
    driver.does(None, vec![open_vault("nowhere")]).await;
    driver.does(Some("nowhere"), vec![open("poor"), issue("poor", 1)]).await;
    let answer = driver.reserve(lease, &[("vault", 1)]).await;
    assert!(matches!(answer, ReserveAnswer::Allowed { .. }), "{answer:?}");
}

/// A missing account is named before a limit that is full, and leaves no trace; a known lease, an unknown limit and a
/// decreasing one come before it.
pub async fn a_missing_account_is_named_before_a_full_limit(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("rpm", MINUTE, 2).await;
    driver.put("slots", SLOTS, 2).await;
    driver.has(credit("nobody", "main", "ghost", 60)).await;
    let known = driver.admit(&[("rpm", 2), ("slots", 2)]).await;
    let lease = driver.lease();
    let missing = ReserveAnswer::Refused(Refusal::AccountNotFound { key: key("nobody"), retry_after_ms: 10_000 });
    for amount in [1, 1, 9] {
        assert_eq!(driver.reserve(lease, &[("rpm", amount), ("nobody", 1)]).await, missing, "{amount}");
    }
    let answer = driver.reserve(known, &[("rpm", 2), ("nobody", 1)]).await;
    assert!(matches!(answer, ReserveAnswer::Refused(Refusal::InvalidRequest { .. })), "a known lease: {answer:?}");
    let answer = driver.reserve(lease, &[("never", 1), ("nobody", 1)]).await;
    assert_eq!(answer, ReserveAnswer::Refused(Refusal::UnknownLimitKey(key("never"))));
    driver.put("slots", SLOTS, 1).await;
    let answer = driver.reserve(lease, &[("slots", 1), ("nobody", 1)]).await;
    assert!(matches!(answer, ReserveAnswer::Refused(Refusal::LimitDecreasing { .. })), "{answer:?}");
    driver.does(MAIN, vec![open("ghost"), issue("ghost", 5)]).await;
    let answer = driver.reserve(lease, &[("rpm", 1), ("nobody", 1)]).await;
    assert!(matches!(answer, ReserveAnswer::Denied { .. }), "now the limit is in the way: {answer:?}");
}

/// An overdraft allows holds beyond the balance.
pub async fn an_account_with_an_overdraft_holds_what_it_has_not(harness: &impl Harness) {
    let driver = Driver(harness);
    let open = Operation::OpenAccount { account: account("acme"), overdraft: Overdraft::Allow, plan: None };
    driver.does(MAIN, vec![open, issue("acme", 10)]).await;
    driver.has(credit("usd", "main", "acme", 60)).await;
    assert_eq!(driver.room("usd").await, Ok(u64::MAX));
    let lease = driver.admit(&[("usd", 30)]).await;
    assert_eq!(driver.sums().await, (-20, 30, 0));
    assert_eq!(driver.room("usd").await, Ok(u64::MAX - 30), "what is held has 64 bits");
    driver.settle(lease, Some(25)).await;
    assert_eq!(driver.sums().await, (-15, 0, 25));
}

/// A cap bounds reserves, transfers and retirements, also together, and not settlements.
pub async fn a_cap_bounds_reserves_and_transfers_and_not_settlements(harness: &impl Harness) {
    let driver = Driver(harness);
    let capped = Operation::OpenAccount { account: account("acme"), overdraft: Overdraft::Limit(100), plan: None };
    driver.does(MAIN, vec![capped, open("other"), issue("acme", 20)]).await;
    driver.has(Definition { overage: Overage::Deny, ..credit("usd", "main", "acme", 60) }).await;
    driver.short(&[("usd", 121)]).await;
    let too_much = [transfer("acme", "other", 121), retire("acme", 121)];
    for operation in too_much {
        let sequence = driver.last(MAIN).await + 1;
        let refused = driver.refuse(MAIN, sequence, vec![operation]).await;
        assert_eq!(refused, WriteError::InsufficientCredit { operation: 0 });
    }
    assert_eq!(driver.sums().await, (20, 0, 0), "a refusal changes nothing");
    assert_eq!(driver.room("usd").await, Ok(120));
    let lease = driver.admit(&[("usd", 90)]).await;
    driver.short(&[("usd", 31)]).await;
    assert_eq!(driver.room("usd").await, Ok(30));
    driver.does(MAIN, vec![transfer("acme", "other", 20), retire("acme", 10)]).await;
    assert_eq!(driver.sums().await, (-100, 90, 0));
    driver.short(&[("usd", 1)]).await;
    driver.settle(lease, Some(500)).await;
    assert_eq!((driver.sums().await, driver.room("usd").await), ((-510, 0, 500), Ok(0)));
    driver.does(MAIN, vec![issue("acme", 410)]).await;
    driver.short(&[("usd", 1)]).await;
    driver.does(MAIN, vec![issue("acme", 1)]).await;
    driver.admit(&[("usd", 1)]).await;
    assert_eq!(driver.sums().await, (-100, 1, 500));
}

/// Concurrent cache of a reserve hold once.
pub async fn copies_of_a_reserve_at_once_hold_once(harness: &impl Harness) {
    let driver = Driver(harness);
    fill(&driver, 100, Overage::Debt, 60).await;
    let lease = driver.lease();
    let reserve = || driver.reserve(lease, &[("usd", 60)]);
    let (a, b, c) = tokio::join!(reserve(), reserve(), reserve());
    assert!(matches!(a, ReserveAnswer::Allowed { .. }), "{a:?}");
    assert_eq!((&a, &b), (&b, &c));
    assert_eq!(driver.sums().await, (40, 60, 0));
    let complete = || driver.settle(lease, Some(50));
    let (a, b) = tokio::join!(complete(), complete());
    assert!(a.reconciled && b.reconciled);
    assert_eq!(a.credit_paid + b.credit_paid, 50);
    assert_eq!(driver.sums().await, (50, 0, 50));
}

/// A settlement charges less, the same, more, nothing or an unstated amount, and only once.
pub async fn settling_pays_what_it_cost_and_returns_the_rest(harness: &impl Harness) {
    let driver = Driver(harness);
    fill(&driver, 1_000, Overage::Debt, 60).await;
    let mut left = 1_000;
    for (cost, paid) in [(Some(10), 10), (Some(40), 40), (Some(70), 70), (Some(0), 0), (None, 40)] {
        let lease = driver.admit(&[("usd", 40)]).await;
        assert_eq!(driver.sums().await, (left - 40, 40, 1_000 - left));
        let answer = driver.settle(lease, cost).await;
        assert!(answer.reconciled);
        assert_eq!(charges(&answer), (paid, 0, 0), "{cost:?}");
        left -= i128::from(paid);
        assert_eq!(driver.sums().await, (left, 0, 1_000 - left), "{cost:?}");
        let again = driver.settle(lease, Some(500)).await;
        assert!(again.reconciled);
        assert_eq!((charges(&again), driver.sums().await), ((0, 0, 0), (left, 0, 1_000 - left)));
        let spent = driver.reserve(lease, &[("usd", 40)]).await;
        assert_eq!(spent, ReserveAnswer::Refused(Refusal::LeaseExpired));
    }
}

/// A `deny` account can owe only the cost beyond its hold.
pub async fn what_the_owner_has_not_is_debt_or_paid_by_nobody(harness: &impl Harness) {
    let driver = Driver(harness);
    fill(&driver, 50, Overage::Deny, 60).await;
    let lease = driver.admit(&[("usd", 40)]).await;
    assert_eq!(charges(&driver.settle(lease, Some(70)).await), (50, 0, 20));
    assert_eq!(driver.sums().await, (0, 0, 50));
    driver.does(MAIN, vec![issue("acme", 50)]).await;
    driver.has(credit("usd", "main", "acme", 60)).await;
    let lease = driver.admit(&[("usd", 40)]).await;
    assert_eq!(charges(&driver.settle(lease, Some(70)).await), (50, 20, 0));
    assert_eq!(driver.sums().await, (-20, 0, 120));
    assert_eq!((driver.usage("usd").await.available, driver.usage("usd").await.debt), (0, 20));
}

/// A deposit covers the debt first.
pub async fn the_next_deposit_covers_a_debt_first(harness: &impl Harness) {
    let driver = Driver(harness);
    fill(&driver, 50, Overage::Debt, 60).await;
    let lease = driver.admit(&[("usd", 50)]).await;
    driver.settle(lease, Some(80)).await;
    assert_eq!(driver.sums().await, (-30, 0, 80));
    driver.does(MAIN, vec![issue("acme", 100)]).await;
    assert_eq!(driver.sums().await, (70, 0, 80));
    assert_eq!(driver.short(&[("usd", 71)]).await.1, CreditShortage::NotEnough);
    let last = driver.last(MAIN).await;
    let error = driver.refuse(MAIN, last + 1, vec![retire("acme", 71)]).await;
    assert_eq!(error.code(), "INSUFFICIENT_CREDIT");
    driver.admit(&[("usd", 70)]).await;
}

/// The hold of a crashed caller is released, and a late complete still charges.
pub async fn a_hold_that_ran_out_is_back_and_settling_it_still_charges(harness: &impl Harness) {
    let driver = Driver(harness);
    fill(&driver, 100, Overage::Debt, 2).await;
    let slow = driver.admit(&[("usd", 60)]).await;
    let silent = driver.admit(&[("usd", 30)]).await;
    assert_eq!(driver.sums().await, (10, 90, 0));
    harness.advance_ms(3_000).await;
    assert_eq!(driver.sums().await, (100, 0, 0));
    let late = driver.reserve(slow, &[("usd", 60)]).await;
    assert_eq!(late, ReserveAnswer::Refused(Refusal::LeaseExpired));
    let answer = driver.settle(slow, Some(45)).await;
    assert_eq!((answer.reconciled, charges(&answer)), (true, (45, 0, 0)));
    assert_eq!(driver.sums().await, (55, 0, 45));
    let answer = driver.settle(silent, None).await;
    assert_eq!(charges(&answer), (30, 0, 0));
    assert_eq!(driver.sums().await, (25, 0, 75));
}

/// Changes by an operator do not affect the cost of a running call.
pub async fn a_settlement_needs_neither_its_limit_nor_an_open_account(harness: &impl Harness) {
    let driver = Driver(harness);
    fill(&driver, 100, Overage::Debt, 60).await;
    let lease = driver.admit(&[("usd", 40)]).await;
    let change = driver.delete("usd").await.expect("a limit that can be deleted");
    assert_eq!(change.status, LimitStatus::Deleted);
    assert_eq!(driver.sums().await, (60, 40, 0));
    assert_eq!(charges(&driver.settle(lease, Some(55)).await), (55, 0, 0));
    assert_eq!(driver.sums().await, (45, 0, 55));
    driver.has(credit("usd", "main", "acme", 60)).await;
    let lease = driver.admit(&[("usd", 40)]).await;
    driver.does(MAIN, vec![freeze("acme"), issue("acme", 1)]).await;
    assert_eq!(driver.short(&[("usd", 1)]).await.1, CreditShortage::Frozen);
    assert_eq!(charges(&driver.settle(lease, Some(50)).await), (46, 4, 0));
    assert_eq!(driver.sums().await, (-4, 0, 105));
}

/// A closed account is never charged; the usage is only counted.
pub async fn from_a_closed_account_nothing_is_charged(harness: &impl Harness) {
    let driver = Driver(harness);
    fill(&driver, 100, Overage::Debt, 2).await;
    let lease = driver.admit(&[("usd", 40)]).await;
    let last = driver.last(MAIN).await;
    let held = driver.refuse(MAIN, last + 1, vec![retire("acme", 60), close("acme")]).await;
    assert_eq!((held.code(), held.operation()), ("CONFLICT", Some(1)));
    harness.advance_ms(3_000).await;
    driver.does(MAIN, vec![retire("acme", 100), close("acme")]).await;
    let answer = driver.settle(lease, Some(40)).await;
    assert_eq!((answer.reconciled, charges(&answer)), (true, (0, 0, 40)));
    assert_eq!(driver.sums().await, (0, 0, 0));
}

/// Accounts with the same name in two vaults are different accounts.
pub async fn a_hold_is_of_the_vault_that_its_limit_names(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.does(None, vec![open_vault("eu")]).await;
    fill(&driver, 100, Overage::Debt, 60).await;
    driver.does(Some("eu"), vec![open("acme"), issue("acme", 7)]).await;
    driver.has(credit("eu", "eu", "acme", 60)).await;
    assert_eq!(driver.short(&[("eu", 8)]).await.0, "eu");
    let lease = driver.admit(&[("eu", 7), ("usd", 1)]).await;
    assert_eq!((driver.purse("eu", "acme").await, driver.purse("main", "acme").await), ((0, 7), (99, 1)));
    driver.complete(lease, &[]).await;
    assert_eq!((driver.usd_of("eu", "revenue").await, driver.sums().await), (7, (99, 0, 1)));
    for scope in ["main", "eu"] {
        let audit = harness.backend().audit(namespace(), super::credit_driver::vault(scope)).await;
        assert!(audit.expect("a vault that exists").balanced);
    }
}

/// An operator can read a credit limit and move it to another account.
pub async fn credit_limits_can_be_read_changed_and_deleted(harness: &impl Harness) {
    let driver = Driver(harness);
    fill(&driver, 100, Overage::Debt, 60).await;
    driver.does(MAIN, vec![open("bob"), issue("bob", 5)]).await;
    let read = async || {
        let limit = harness.backend().limit(namespace(), key("usd")).await.expect("a backend that answers");
        limit.expect("a limit that exists")
    };
    assert_eq!(read().await.definition, credit("usd", "main", "acme", 60));
    let lease = driver.admit(&[("usd", 10)]).await;
    driver.has(credit("usd", "main", "bob", 60)).await;
    assert_eq!((read().await.definition, read().await.revision), (credit("usd", "main", "bob", 60), 2));
    driver.short(&[("usd", 6)]).await;
    driver.admit(&[("usd", 5)]).await;
    let listed = driver.listed(UsageQuery { sort: UsageSort::Fullness, ..UsageQuery::default() }).await;
    assert!(listed.usage.iter().any(|limit| limit.key == key("usd")), "{listed:?}");
    driver.settle(lease, None).await;
    assert_eq!((driver.sums().await, driver.purse("main", "bob").await), ((90, 0, 10), (0, 5)));
    // It is deleted at once, whatever it holds.
    driver.delete("usd").await.expect("a limit that can be deleted");
    assert_eq!(driver.status("usd").await, None);
    let gone = driver.reserve(driver.lease(), &[("usd", 1)]).await;
    assert_eq!(gone, ReserveAnswer::Refused(Refusal::UnknownLimitKey(key("usd"))));
}

/// No amount overflows.
pub async fn amounts_reach_the_bounds_of_128_bits(harness: &impl Harness) {
    let driver = Driver(harness);
    fill(&driver, i128::MAX as u128, Overage::Debt, 60).await;
    driver.does(MAIN, vec![open("bob")]).await;
    let last = driver.last(MAIN).await;
    let error = driver.refuse(MAIN, last + 1, vec![issue("bob", 1)]).await;
    assert_eq!((error.code(), error.operation()), ("INVALID", Some(0)));
    let lease = driver.admit(&[("usd", u64::MAX)]).await;
    // The held amount of one balance has 64 bits.
    assert_eq!(driver.short(&[("usd", 1)]).await.1, CreditShortage::NotEnough);
    let most = i128::from(u64::MAX);
    assert_eq!(driver.sums().await, (i128::MAX - most, most, 0));
    assert_eq!(driver.settle(lease, None).await.credit_paid, u64::MAX);
    assert_eq!(driver.sums().await, (i128::MAX - most, 0, most));
    driver.does(MAIN, vec![transfer("acme", "bob", (i128::MAX - most) as u128)]).await;
    assert_eq!((driver.usd_of("main", "bob").await, driver.usd_of("main", "acme").await), (i128::MAX - most, 0));
    let lease = driver.lease();
    let never = driver.reserve(lease, &[("usd", 1)]).await;
    assert!(matches!(never, ReserveAnswer::Refused(Refusal::InsufficientCredit { .. })), "{never:?}");
}
