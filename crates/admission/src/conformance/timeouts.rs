//! Credit of leases that run out.

use earmark_core::{
    AccountName, CreditShortage, Definition, Kind, LeaseId, OnTimeout, Operation, Overage, SettleReason, VaultName,
    WriteError,
};

use super::Harness;
use super::credit_driver::{MAIN, account, credit, issue, open, path, transfer};
use super::driver::{Driver, MINUTE, key};
use super::extend::{Asked, RENEW, add, used};
use crate::backend::Refusal;
use crate::credit_lists::EntryQuery;
use crate::extend::ExtendAnswer;
use crate::writes::{EntryKind, WriteAnswer};

/// The timeout of the credit limits.
const TIMEOUT_SECONDS: u32 = 4;
const AFTER_MS: u64 = 5_200;
/// Steps of the clock until the settlement of a timeout must be written.
const STEPS_MAX: u32 = 100;

/// A settlement in the history of an account: the lease, what it paid, and why.
type Settled = (LeaseId, u64, SettleReason);

impl<H: Harness> Driver<'_, H> {
    /// Opens account `acme` with 100 usd and a credit limit `usd` on it, and a rolling limit `rpm`.
    async fn open_acme(&self, on_timeout: OnTimeout, overage: Overage) {
        self.does(MAIN, vec![open("acme"), open("other"), issue("acme", 100)]).await;
        self.put("rpm", MINUTE, 1_000).await;
        self.put_usd("usd", on_timeout, overage).await;
    }

    async fn put_usd(&self, name: &str, on_timeout: OnTimeout, overage: Overage) {
        let mut limit = Definition { overage, ..credit(name, VaultName::MAIN, "acme", TIMEOUT_SECONDS) };
        if let Kind::Credit(terms) = &mut limit.kind {
            terms.on_timeout = on_timeout;
        }
        self.try_put(limit, None).await.expect("a limit that can be put");
    }

    /// Available and held credit of `acme`, and the balance of `revenue`.
    async fn books(&self) -> (i128, i128, i128) {
        let (available, held) = self.purse(VaultName::MAIN, "acme").await;
        (available, held, self.usd_of(VaultName::MAIN, AccountName::REVENUE).await)
    }

    /// Lets all leases run out, and waits until their settlements are written.
    async fn run_out(&self) -> (i128, i128, i128) {
        self.0.advance_ms(AFTER_MS).await;
        for _ in 0..STEPS_MAX {
            let books = self.books().await;
            if books.1 == 0 {
                return books;
            }
            // Log time settles with the next command, even with a refused one.
            _ = self.write(MAIN, u64::from(u32::MAX), Vec::new()).await;
            self.0.advance_ms(50).await;
        }
        self.books().await
    }

    async fn settlements(&self) -> Vec<Settled> {
        let page = self.0.backend().entries(path(VaultName::MAIN, "acme"), EntryQuery::oldest_first(0, 100)).await;
        let entries = page.expect("an account that exists").entries.into_iter();
        let settled = entries.filter_map(|entry| match entry.what {
            EntryKind::Settle { hold, paid, reason, .. } => Some((hold.lease, paid, reason)),
            _ => None,
        });
        settled.collect()
    }
}

/// A lease that runs out pays the usage that it reported and returns the rest. A later complete charges what exceeds
/// that, and refunds nothing.
pub async fn a_lease_that_runs_out_pays_what_it_reported(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.open_acme(OnTimeout::Release, Overage::Debt).await;
    let (more, less) = (driver.admit(&[("rpm", 1), ("usd", 30)]).await, driver.admit(&[("usd", 30)]).await);
    let silent = driver.admit(&[("usd", 20)]).await;
    driver.extends(more, 1, Asked { used: &[("usd", 12)], ..RENEW }).await;
    driver.extends(less, 1, used(&[("usd", 9)])).await;
    driver.extends(less, 2, Asked { add: &[("usd", 5)], used: &[("usd", 4)], renew: false }).await;
    assert_eq!(driver.books().await, (15, 85, 0));
    assert_eq!(driver.run_out().await, (79, 0, 21));
    let mut settled = driver.settlements().await;
    settled.sort_unstable_by_key(|(lease, ..)| *lease != more);
    assert_eq!(settled, [(more, 12, SettleReason::Timeout), (less, 9, SettleReason::Timeout)]);
    for _ in 0..2 {
        assert!(driver.complete(more, &[("usd", 20)]).await.reconciled);
        assert!(driver.complete(less, &[("usd", 3)]).await.reconciled);
        assert!(driver.complete(silent, &[("usd", 0)]).await.reconciled);
        assert_eq!(driver.books().await, (71, 0, 29));
    }
    assert_eq!(driver.settlements().await[2..], [(more, 8, SettleReason::Late)]);
    assert_eq!(driver.extend(less, 3, RENEW).await, ExtendAnswer::expired());
}

/// With `on_timeout: charge` a lease that runs out pays its whole hold, growth included.
pub async fn a_lease_that_runs_out_may_pay_all_of_its_hold(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.open_acme(OnTimeout::Charge, Overage::Debt).await;
    let (lease, done) = (driver.admit(&[("usd", 30)]).await, driver.admit(&[("usd", 10)]).await);
    driver.extends(lease, 1, Asked { used: &[("usd", 3)], ..add(&[("usd", 10)]) }).await;
    assert!(driver.complete(done, &[("usd", 1)]).await.reconciled);
    assert_eq!(driver.books().await, (59, 40, 1));
    assert_eq!(driver.run_out().await, (59, 0, 41));
    assert_eq!(driver.settlements().await[1..], [(lease, 40, SettleReason::Timeout)]);
    assert!(driver.complete(lease, &[("usd", 25)]).await.reconciled);
    assert_eq!(driver.books().await, (59, 0, 41));
}

/// Credit that a timeout will charge is never spendable, however many leases run out at once.
pub async fn what_a_timeout_charges_is_never_spendable(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.open_acme(OnTimeout::Release, Overage::Deny).await;
    for _ in 0..10 {
        let lease = driver.admit(&[("usd", 10)]).await;
        driver.extends(lease, 1, used(&[("usd", 7)])).await;
    }
    harness.advance_ms(AFTER_MS).await;
    let last = driver.last(MAIN).await;
    match driver.write(MAIN, last + 1, vec![transfer("acme", "other", 31)]).await {
        WriteAnswer::Refused(WriteError::InsufficientCredit { .. }) => {}
        other => panic!("{other:?}"),
    }
    driver.commit(MAIN, last + 1, vec![transfer("acme", "other", 30)]).await;
    assert_eq!(driver.run_out().await, (0, 0, 70));
}

/// Usage above the hold is named at once. At the end of the lease it is taken as debt or dropped, by the rule of the
/// limit.
pub async fn usage_above_a_hold_follows_the_rule_of_its_limit(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.open_acme(OnTimeout::Release, Overage::Debt).await;
    driver.put_usd("strict", OnTimeout::Release, Overage::Deny).await;
    let lease = driver.admit(&[("rpm", 1), ("strict", 30), ("usd", 60)]).await;
    let (_, message) = driver.extends(lease, 1, used(&[("rpm", 4), ("strict", 80), ("usd", 61)])).await;
    for name in ["rpm", "strict", "usd"] {
        assert!(message.contains(name), "{message}");
    }
    let answer = driver.complete(lease, &[("strict", 80), ("usd", 75)]).await;
    // 30 of `strict` are held; 10 more are there. The rest of it is not collected. `usd` owes what is missing.
    assert_eq!(answer.credit_paid + answer.credit_debt + answer.credit_uncollected, 155, "{answer:?}");
    assert!(answer.credit_debt > 0 && answer.credit_uncollected > 0, "{answer:?}");
    assert_eq!(answer.credit_paid, 100, "{answer:?}");
    let (available, held, revenue) = driver.books().await;
    assert_eq!((held, revenue), (0, i128::from(answer.credit_paid + answer.credit_debt)));
    assert_eq!(available, -i128::from(answer.credit_debt));
}

/// A frozen account refuses growth, and the number stays denied. A missing account leaves it free.
pub async fn growth_from_an_account_that_cannot_pay_is_refused(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.open_acme(OnTimeout::Release, Overage::Debt).await;
    let absent = credit("absent", VaultName::MAIN, "nobody", TIMEOUT_SECONDS);
    driver.try_put(absent, None).await.expect("a limit that can be put");
    let lease = driver.admit(&[("rpm", 1), ("usd", 30)]).await;
    for _ in 0..2 {
        let missing = driver.extend(lease, 1, add(&[("absent", 1), ("usd", 1)])).await;
        let ExtendAnswer::Refused(Refusal::AccountNotFound { key: limit, .. }) = missing else { panic!("{missing:?}") };
        assert_eq!((limit, driver.books().await), (key("absent"), (70, 30, 0)));
    }
    driver.does(MAIN, vec![Operation::FreezeAccount { account: account("acme") }]).await;
    let is_frozen = async |number| {
        let answer = driver.extend(lease, number, add(&[("usd", 5)])).await;
        matches!(answer, ExtendAnswer::Refused(Refusal::InsufficientCredit { why: CreditShortage::Frozen, .. }))
    };
    assert!(is_frozen(1).await);
    driver.does(MAIN, vec![Operation::UnfreezeAccount { account: account("acme") }]).await;
    assert!(is_frozen(1).await, "the number stays denied");
    driver.extends(lease, 2, add(&[("usd", 5)])).await;
    assert_eq!(driver.books().await, (65, 35, 0));
}
