//! Credit holds: held together with the limits, settled at cost, released in time.

use earmark_core::{
    AccountName, CreditShortage, Definition, LeaseId, LimitStatus, Operation, Overage, Overdraft,
};

use super::Harness;
use super::desk::{Desk, MINUTE, SLOTS, key, namespace};
use super::teller::{MAIN, account, credit, issue, open, open_vault, retire, transfer};
use crate::backend::{CompleteAnswer, Refusal, ReserveAnswer};

/// Opens account `acme` with `amount` usd and a credit limit `usd` on it.
async fn fill<H: Harness>(desk: &Desk<'_, H>, amount: u128, overage: Overage, timeout_seconds: u32) {
    desk.does(MAIN, vec![open("acme"), issue("acme", amount)]).await;
    desk.has(Definition { overage, ..credit("usd", "main", "acme", timeout_seconds) }).await;
}

impl<H: Harness> Desk<'_, H> {
    async fn has(&self, definition: Definition) {
        self.try_put(definition, None).await.expect("a limit that can be put");
    }

    /// Available and held credit of `acme`, and the balance of `revenue`.
    async fn sums(&self) -> (i128, i128, i128) {
        let (available, held) = self.purse("main", "acme").await;
        (available, held, self.usd_of("main", AccountName::REVENUE).await)
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
    let desk = Desk(harness);
    fill(&desk, 100, Overage::Debt, 60).await;
    desk.put("rpm", MINUTE, 10).await;
    desk.put("slots", SLOTS, 1).await;
    desk.admit(&[("rpm", 1), ("usd", 30), ("slots", 1)]).await;
    assert_eq!((desk.reserved("rpm").await, desk.reserved("slots").await), (1, 1));
    assert_eq!(desk.sums().await, (70, 30, 0));
    desk.deny(&[("rpm", 1), ("usd", 30), ("slots", 1)]).await;
    desk.short(&[("rpm", 1), ("usd", 71)]).await;
    assert_eq!((desk.reserved("rpm").await, desk.sums().await), (1, (70, 30, 0)));
    let usage = desk.usage("usd").await;
    assert_eq!((usage.capacity, usage.reserved, usage.available, usage.debt), (100, 30, 70, 0));
}

/// If a limit has no room either, the denial names the limit, because more credit would not help.
pub async fn too_little_credit_is_named_unless_a_limit_is_in_the_way_too(harness: &impl Harness) {
    let desk = Desk(harness);
    fill(&desk, 100, Overage::Debt, 60).await;
    desk.has(credit("more", "main", "acme", 60)).await;
    desk.put("rpm", MINUTE, 1).await;
    assert_eq!(desk.short(&[("usd", 101), ("rpm", 1)]).await, ("usd".into(), CreditShortage::NotEnough));
    let both = desk.short(&[("usd", 101), ("rpm", 1), ("more", 101)]).await;
    assert_eq!(both, ("more".into(), CreditShortage::NotEnough));
    match desk.reserve(desk.lease(), &[("usd", 101), ("rpm", 2)]).await {
        ReserveAnswer::Denied { limited_by, never, .. } => {
            assert_eq!((limited_by, never), (vec![key("rpm")], true));
        }
        other => panic!("{other:?}"),
    }
    let unknown = desk.reserve(desk.lease(), &[("usd", 101), ("nothing", 1)]).await;
    assert_eq!(unknown, ReserveAnswer::Refused(Refusal::UnknownLimitKey(key("nothing"))));
    assert_eq!((desk.reserved("rpm").await, desk.sums().await), (0, (100, 0, 0)));
}

/// A denial for want of credit is final for its lease.
pub async fn a_lease_denied_for_want_of_credit_stays_denied(harness: &impl Harness) {
    let desk = Desk(harness);
    fill(&desk, 10, Overage::Debt, 60).await;
    let lease = desk.lease();
    let first = desk.reserve(lease, &[("usd", 20)]).await;
    assert!(matches!(first, ReserveAnswer::Refused(Refusal::InsufficientCredit { .. })), "{first:?}");
    desk.does(MAIN, vec![issue("acme", 100)]).await;
    match desk.reserve(lease, &[("usd", 20)]).await {
        ReserveAnswer::Refused(Refusal::InsufficientCredit { key: limit, retry_after_ms, why }) => {
            assert_eq!((limit, why), (key("usd"), CreditShortage::NotEnough));
            assert!(retry_after_ms <= 10_000, "{retry_after_ms}");
        }
        other => panic!("{other:?}"),
    }
    let other = desk.reserve(lease, &[("usd", 21)]).await;
    assert!(matches!(other, ReserveAnswer::Refused(Refusal::InvalidRequest { .. })), "{other:?}");
    assert!(!desk.complete(lease, &[("usd", 5)]).await.reconciled);
    assert_eq!(desk.sums().await, (110, 0, 0));
    desk.admit(&[("usd", 20)]).await;
}

/// Two credit limits on one account cannot both count on the same credit.
pub async fn credit_keys_of_one_account_are_planned_together(harness: &impl Harness) {
    let desk = Desk(harness);
    fill(&desk, 100, Overage::Debt, 60).await;
    desk.has(credit("fees", "main", "acme", 60)).await;
    assert_eq!(desk.short(&[("usd", 60), ("fees", 41)]).await.0, "fees");
    let lease = desk.admit(&[("usd", 60), ("fees", 40)]).await;
    assert_eq!(desk.sums().await, (0, 100, 0));
    let answer = desk.complete(lease, &[("usd", 10), ("fees", 70)]).await;
    assert_eq!(charges(&answer), (80, 0, 0));
    assert_eq!(desk.sums().await, (20, 0, 80));
}

/// The refusal says what is wrong with the account.
pub async fn an_account_that_cannot_pay_is_told_apart(harness: &impl Harness) {
    let desk = Desk(harness);
    desk.does(MAIN, vec![open("poor"), open("cold"), issue("cold", 9), freeze("cold"), open("gone")]).await;
    desk.does(MAIN, vec![close("gone")]).await;
    for (name, scope, payer, why) in [
        ("vault", "nowhere", "poor", CreditShortage::UnknownAccount),
        ("account", "main", "nobody", CreditShortage::UnknownAccount),
        ("poor", "main", "poor", CreditShortage::NotEnough),
        ("cold", "main", "cold", CreditShortage::Frozen),
        ("gone", "main", "gone", CreditShortage::Closed),
    ] {
        desk.has(credit(name, scope, payer, 60)).await;
        assert_eq!(desk.short(&[(name, 1)]).await, (name.into(), why));
        assert_eq!(desk.usage(name).await.available, 0);
    }
    // The vault and the account can still be opened later.
    desk.does(None, vec![open_vault("nowhere")]).await;
    desk.does(Some("nowhere"), vec![open("poor"), issue("poor", 1)]).await;
    desk.admit(&[("vault", 1)]).await;
}

/// An overdraft allows holds beyond the balance.
pub async fn an_account_with_an_overdraft_holds_what_it_has_not(harness: &impl Harness) {
    let desk = Desk(harness);
    let open = Operation::OpenAccount { account: account("acme"), overdraft: Overdraft::Allow };
    desk.does(MAIN, vec![open, issue("acme", 10)]).await;
    desk.has(credit("usd", "main", "acme", 60)).await;
    let lease = desk.admit(&[("usd", 30)]).await;
    assert_eq!(desk.sums().await, (-20, 30, 0));
    desk.settle(lease, Some(25)).await;
    assert_eq!(desk.sums().await, (-15, 0, 25));
}

/// Concurrent copies of a reserve hold once.
pub async fn copies_of_a_reserve_at_once_hold_once(harness: &impl Harness) {
    let desk = Desk(harness);
    fill(&desk, 100, Overage::Debt, 60).await;
    let lease = desk.lease();
    let reserve = || desk.reserve(lease, &[("usd", 60)]);
    let (a, b, c) = tokio::join!(reserve(), reserve(), reserve());
    assert!(matches!(a, ReserveAnswer::Allowed { .. }), "{a:?}");
    assert_eq!((&a, &b), (&b, &c));
    assert_eq!(desk.sums().await, (40, 60, 0));
    let complete = || desk.settle(lease, Some(50));
    let (a, b) = tokio::join!(complete(), complete());
    assert!(a.reconciled && b.reconciled);
    assert_eq!(a.credit_paid + b.credit_paid, 50);
    assert_eq!(desk.sums().await, (50, 0, 50));
}

/// A settlement charges less, the same, more, nothing or an unstated amount, and only once.
pub async fn settling_pays_what_it_cost_and_returns_the_rest(harness: &impl Harness) {
    let desk = Desk(harness);
    fill(&desk, 1_000, Overage::Debt, 60).await;
    let mut left = 1_000;
    for (cost, paid) in [(Some(10), 10), (Some(40), 40), (Some(70), 70), (Some(0), 0), (None, 40)] {
        let lease = desk.admit(&[("usd", 40)]).await;
        assert_eq!(desk.sums().await, (left - 40, 40, 1_000 - left));
        let answer = desk.settle(lease, cost).await;
        assert!(answer.reconciled);
        assert_eq!(charges(&answer), (paid, 0, 0), "{cost:?}");
        left -= i128::from(paid);
        assert_eq!(desk.sums().await, (left, 0, 1_000 - left), "{cost:?}");
        let again = desk.settle(lease, Some(500)).await;
        assert!(again.reconciled);
        assert_eq!((charges(&again), desk.sums().await), ((0, 0, 0), (left, 0, 1_000 - left)));
        let spent = desk.reserve(lease, &[("usd", 40)]).await;
        assert_eq!(spent, ReserveAnswer::Refused(Refusal::LeaseExpired));
    }
}

/// A `deny` account can owe only the cost beyond its hold.
pub async fn what_the_owner_has_not_is_debt_or_paid_by_nobody(harness: &impl Harness) {
    let desk = Desk(harness);
    fill(&desk, 50, Overage::Deny, 60).await;
    let lease = desk.admit(&[("usd", 40)]).await;
    assert_eq!(charges(&desk.settle(lease, Some(70)).await), (50, 0, 20));
    assert_eq!(desk.sums().await, (0, 0, 50));
    desk.does(MAIN, vec![issue("acme", 50)]).await;
    desk.has(credit("usd", "main", "acme", 60)).await;
    let lease = desk.admit(&[("usd", 40)]).await;
    assert_eq!(charges(&desk.settle(lease, Some(70)).await), (50, 20, 0));
    assert_eq!(desk.sums().await, (-20, 0, 120));
    assert_eq!((desk.usage("usd").await.available, desk.usage("usd").await.debt), (0, 20));
}

/// A deposit covers the debt first.
pub async fn the_next_deposit_covers_a_debt_first(harness: &impl Harness) {
    let desk = Desk(harness);
    fill(&desk, 50, Overage::Debt, 60).await;
    let lease = desk.admit(&[("usd", 50)]).await;
    desk.settle(lease, Some(80)).await;
    assert_eq!(desk.sums().await, (-30, 0, 80));
    desk.does(MAIN, vec![issue("acme", 100)]).await;
    assert_eq!(desk.sums().await, (70, 0, 80));
    assert_eq!(desk.short(&[("usd", 71)]).await.1, CreditShortage::NotEnough);
    let last = desk.last(MAIN).await;
    let error = desk.refuse(MAIN, last + 1, vec![retire("acme", 71)]).await;
    assert_eq!(error.code(), "INSUFFICIENT_CREDIT");
    desk.admit(&[("usd", 70)]).await;
}

/// The hold of a crashed caller is released, and a late complete still charges.
pub async fn a_hold_that_ran_out_is_back_and_settling_it_still_charges(harness: &impl Harness) {
    let desk = Desk(harness);
    fill(&desk, 100, Overage::Debt, 2).await;
    let slow = desk.admit(&[("usd", 60)]).await;
    let silent = desk.admit(&[("usd", 30)]).await;
    assert_eq!(desk.sums().await, (10, 90, 0));
    harness.advance_ms(3_000).await;
    assert_eq!(desk.sums().await, (100, 0, 0));
    let late = desk.reserve(slow, &[("usd", 60)]).await;
    assert_eq!(late, ReserveAnswer::Refused(Refusal::LeaseExpired));
    let answer = desk.settle(slow, Some(45)).await;
    assert_eq!((answer.reconciled, charges(&answer)), (true, (45, 0, 0)));
    assert_eq!(desk.sums().await, (55, 0, 45));
    let answer = desk.settle(silent, None).await;
    assert_eq!(charges(&answer), (30, 0, 0));
    assert_eq!(desk.sums().await, (25, 0, 75));
}

/// Changes by an operator do not affect the cost of a running call.
pub async fn a_settlement_needs_neither_its_limit_nor_an_open_account(harness: &impl Harness) {
    let desk = Desk(harness);
    fill(&desk, 100, Overage::Debt, 60).await;
    let lease = desk.admit(&[("usd", 40)]).await;
    let change = desk.delete("usd").await.expect("a limit that can be deleted");
    assert_eq!(change.status, LimitStatus::Deleted);
    assert_eq!(desk.sums().await, (60, 40, 0));
    assert_eq!(charges(&desk.settle(lease, Some(55)).await), (55, 0, 0));
    assert_eq!(desk.sums().await, (45, 0, 55));
    desk.has(credit("usd", "main", "acme", 60)).await;
    let lease = desk.admit(&[("usd", 40)]).await;
    desk.does(MAIN, vec![freeze("acme"), issue("acme", 1)]).await;
    assert_eq!(desk.short(&[("usd", 1)]).await.1, CreditShortage::Frozen);
    assert_eq!(charges(&desk.settle(lease, Some(50)).await), (46, 4, 0));
    assert_eq!(desk.sums().await, (-4, 0, 105));
}

/// A closed account is never charged; the usage is only counted.
pub async fn from_a_closed_account_nothing_is_charged(harness: &impl Harness) {
    let desk = Desk(harness);
    fill(&desk, 100, Overage::Debt, 2).await;
    let lease = desk.admit(&[("usd", 40)]).await;
    let last = desk.last(MAIN).await;
    let held = desk.refuse(MAIN, last + 1, vec![retire("acme", 60), close("acme")]).await;
    assert_eq!((held.code(), held.operation()), ("CONFLICT", Some(1)));
    harness.advance_ms(3_000).await;
    desk.does(MAIN, vec![retire("acme", 100), close("acme")]).await;
    let answer = desk.settle(lease, Some(40)).await;
    assert_eq!((answer.reconciled, charges(&answer)), (true, (0, 0, 40)));
    assert_eq!(desk.sums().await, (0, 0, 0));
}

/// Accounts with the same name in two vaults are different accounts.
pub async fn a_hold_is_of_the_vault_that_its_limit_names(harness: &impl Harness) {
    let desk = Desk(harness);
    desk.does(None, vec![open_vault("eu")]).await;
    fill(&desk, 100, Overage::Debt, 60).await;
    desk.does(Some("eu"), vec![open("acme"), issue("acme", 7)]).await;
    desk.has(credit("eu", "eu", "acme", 60)).await;
    assert_eq!(desk.short(&[("eu", 8)]).await.0, "eu");
    let lease = desk.admit(&[("eu", 7), ("usd", 1)]).await;
    assert_eq!((desk.purse("eu", "acme").await, desk.purse("main", "acme").await), ((0, 7), (99, 1)));
    desk.complete(lease, &[]).await;
    assert_eq!((desk.usd_of("eu", "revenue").await, desk.sums().await), (7, (99, 0, 1)));
    for scope in ["main", "eu"] {
        let audit = harness.backend().audit(namespace(), super::teller::vault(scope)).await;
        assert!(audit.expect("a vault that exists").balanced);
    }
}

/// An operator can read a credit limit and move it to another account.
pub async fn credit_limits_can_be_read_changed_and_deleted(harness: &impl Harness) {
    let desk = Desk(harness);
    fill(&desk, 100, Overage::Debt, 60).await;
    desk.does(MAIN, vec![open("bob"), issue("bob", 5)]).await;
    let read = async || {
        let limit = harness.backend().limit(namespace(), key("usd")).await.expect("a backend that answers");
        limit.expect("a limit that exists")
    };
    assert_eq!(read().await.definition, credit("usd", "main", "acme", 60));
    let lease = desk.admit(&[("usd", 10)]).await;
    desk.has(credit("usd", "main", "bob", 60)).await;
    assert_eq!((read().await.definition, read().await.revision), (credit("usd", "main", "bob", 60), 2));
    desk.short(&[("usd", 6)]).await;
    desk.admit(&[("usd", 5)]).await;
    desk.settle(lease, None).await;
    assert_eq!((desk.sums().await, desk.purse("main", "bob").await), ((90, 0, 10), (0, 5)));
    // It is deleted at once, whatever it holds.
    desk.delete("usd").await.expect("a limit that can be deleted");
    assert_eq!(desk.status("usd").await, None);
    let gone = desk.reserve(desk.lease(), &[("usd", 1)]).await;
    assert_eq!(gone, ReserveAnswer::Refused(Refusal::UnknownLimitKey(key("usd"))));
}

/// No amount overflows.
pub async fn amounts_reach_the_bounds_of_128_bits(harness: &impl Harness) {
    let desk = Desk(harness);
    fill(&desk, i128::MAX as u128, Overage::Debt, 60).await;
    desk.does(MAIN, vec![open("bob")]).await;
    let last = desk.last(MAIN).await;
    let error = desk.refuse(MAIN, last + 1, vec![issue("bob", 1)]).await;
    assert_eq!((error.code(), error.operation()), ("INVALID", Some(0)));
    let lease = desk.admit(&[("usd", u64::MAX)]).await;
    // The held amount of one balance has 64 bits.
    assert_eq!(desk.short(&[("usd", 1)]).await.1, CreditShortage::NotEnough);
    let most = i128::from(u64::MAX);
    assert_eq!(desk.sums().await, (i128::MAX - most, most, 0));
    assert_eq!(desk.settle(lease, None).await.credit_paid, u64::MAX);
    assert_eq!(desk.sums().await, (i128::MAX - most, 0, most));
    desk.does(MAIN, vec![transfer("acme", "bob", (i128::MAX - most) as u128)]).await;
    assert_eq!((desk.usd_of("main", "bob").await, desk.usd_of("main", "acme").await), (i128::MAX - most, 0));
    let lease = desk.lease();
    let never = desk.reserve(lease, &[("usd", 1)]).await;
    assert!(matches!(never, ReserveAnswer::Refused(Refusal::InsufficientCredit { .. })), "{never:?}");
}
