//! Plans: grants that come once per period.

use earmark_core::{
    CarryOver, EXPIRY_SKEW_MS_MAX, GRANTS_MAX, GrantTerms, InvalidOperation, InvalidWrite, JournalRecord, Operation,
    Overage, Overdraft, Period, Plan, PlanInfo, VaultId, WriteError,
};

use crate::support::bank::{
    Bank, account, asset, close, credit, freeze, grant, issue, open, retire, transfer, unfreeze,
};
use crate::support::snapshot::{restore, snapshot};
use crate::support::test_book::START;

const HOUR_MS: u64 = 3_600_000;
/// From the start, 15:06:40 UTC, to the end of its hour.
const FIRST_END_MS: u64 = 3_200_000;

fn hourly(amount: u64, carry_over: CarryOver) -> Plan {
    Plan { asset: asset("usd"), amount, period: Period::Hour, utc_offset_minutes: 0, carry_over }
}

fn open_with(plan: Plan) -> Operation {
    Operation::OpenAccount { account: account("acme"), overdraft: Overdraft::Deny, plan: Some(plan) }
}

fn set(plan: Option<Plan>) -> Operation {
    Operation::SetPlan { account: account("acme"), plan }
}

/// An account `acme` with a plan, and a credit limit `usd` whose holds last 60 seconds.
fn bank(plan: Plan) -> Bank {
    let mut bank = Bank::new();
    bank.commit(vec![open_with(plan), open("other")]);
    bank.test.put_active(credit("usd", "acme", 60, Overage::Debt));
    bank
}

/// The issued and carried amounts of plans, and the expired amounts as negative ones, since the last call.
fn moved(bank: &mut Bank) -> Vec<(i128, i128)> {
    bank.assert_balanced();
    let records = bank.test.book.drain_journal();
    let amounts = |record: &JournalRecord| match record {
        JournalRecord::Plan(plan) => Some((plan.amount, plan.carried)),
        JournalRecord::Expire(expire) => Some((-expire.amount, 0)),
        _ => None,
    };
    records.iter().filter_map(amounts).collect()
}

fn info(bank: &Bank) -> Option<PlanInfo> {
    bank.test.book.account(VaultId::MAIN, &account("acme")).unwrap().plan
}

fn restart(bank: &mut Bank) {
    let bytes = snapshot(&mut bank.test.book);
    bank.test.book = restore(&bytes, bytes.len(), 7).unwrap();
    assert_eq!(snapshot(&mut bank.test.book), bytes);
}

fn wait(bank: &mut Bank, ms: u64) {
    bank.test.advance(ms);
    bank.test.tick();
}

#[test]
fn a_plan_issues_its_first_period_at_once_and_every_period_once_through_restarts() {
    let plan = hourly(100, CarryOver::None);
    let mut bank = Bank::new();
    bank.commit(vec![open_with(plan.clone())]);
    assert_eq!(moved(&mut bank), [(100, 0)]);
    assert_eq!(bank.available("acme", "usd"), 100, "the whole amount, whatever is left of the period");
    assert_eq!(info(&bank), Some(PlanInfo { plan, next_at: Some(START.plus_ms(FIRST_END_MS)) }));
    bank.test.advance(FIRST_END_MS - 1);
    bank.test.tick();
    assert!(!bank.test.book.is_due(bank.test.now()));
    assert_eq!(moved(&mut bank), []);
    restart(&mut bank);
    bank.test.advance(1);
    assert!(bank.test.book.is_due(bank.test.now()));
    bank.test.tick();
    assert_eq!(moved(&mut bank), [(100, 0), (-100, 0)]);
    restart(&mut bank);
    bank.test.tick();
    assert!(!bank.test.book.is_due(bank.test.now()));
    wait(&mut bank, HOUR_MS - 1);
    assert_eq!((moved(&mut bank), bank.available("acme", "usd")), (vec![], 100));
    wait(&mut bank, 1);
    assert_eq!(moved(&mut bank), [(100, 0), (-100, 0)]);
}

#[test]
fn a_decision_first_issues_the_period_that_is_due() {
    let mut bank = bank(hourly(100, CarryOver::None));
    bank.commit(vec![retire("acme", "usd", 100)]);
    _ = moved(&mut bank);
    bank.test.advance(FIRST_END_MS);
    bank.test.take(&[("usd", 100)]);
    assert_eq!(moved(&mut bank), [(100, 0)]);
    bank.test.advance(HOUR_MS);
    bank.commit(vec![transfer("acme", "other", "usd", 60)]);
    assert_eq!(bank.available("other", "usd"), 60);
}

#[test]
fn without_carry_over_missed_periods_are_not_issued() {
    let mut bank = bank(hourly(100, CarryOver::None));
    _ = moved(&mut bank);
    wait(&mut bank, 10 * HOUR_MS);
    assert_eq!((moved(&mut bank), bank.available("acme", "usd")), (vec![(100, 0), (-100, 0)], 100));
}

#[test]
fn unused_credit_carries_over_up_to_the_cap_and_missed_periods_count() {
    let mut bank = bank(hourly(100, CarryOver::Max(250)));
    bank.commit(vec![retire("acme", "usd", 70)]);
    _ = moved(&mut bank);
    wait(&mut bank, FIRST_END_MS);
    assert_eq!((moved(&mut bank), bank.available("acme", "usd")), (vec![(100, 30)], 130));
    wait(&mut bank, HOUR_MS);
    assert_eq!((moved(&mut bank), bank.available("acme", "usd")), (vec![(100, 130)], 230));
    wait(&mut bank, HOUR_MS);
    wait(&mut bank, HOUR_MS);
    assert_eq!((moved(&mut bank), bank.available("acme", "usd")), (vec![(100, 230), (100, 250), (-80, 0)], 350));
    bank.commit(vec![retire("acme", "usd", 340)]);
    // Two missed periods: 10 + 100 + 100, then the new one.
    wait(&mut bank, 3 * HOUR_MS);
    assert_eq!((moved(&mut bank), bank.available("acme", "usd")), (vec![(300, 10)], 310));
    // A thousand missed periods fill the cap.
    wait(&mut bank, 1_000 * HOUR_MS);
    assert_eq!((moved(&mut bank), bank.available("acme", "usd")), (vec![(100, 250), (-60, 0)], 350));
}

#[test]
fn what_is_held_at_the_end_of_a_period_survives_and_expires_when_it_returns() {
    let mut bank = bank(hourly(100, CarryOver::Max(1_000)));
    bank.test.advance(FIRST_END_MS - 1_000);
    let lease = bank.test.take(&[("usd", 60)]);
    _ = moved(&mut bank);
    wait(&mut bank, 1_000);
    assert_eq!((moved(&mut bank), bank.available("acme", "usd")), (vec![(100, 40)], 140));
    restart(&mut bank);
    bank.test.settle(lease, &[("usd", 50)]);
    assert_eq!((moved(&mut bank), bank.available("acme", "usd")), (vec![(-10, 0)], 140));
    assert_eq!(bank.available("revenue", "usd"), 50);
}

#[test]
fn plan_credit_covers_debt_first_and_is_spent_before_plain_credit() {
    let mut bank = bank(hourly(100, CarryOver::None));
    let lease = bank.test.take(&[("usd", 100)]);
    bank.test.settle(lease, &[("usd", 130)]);
    assert_eq!(bank.available("acme", "usd"), -30);
    wait(&mut bank, FIRST_END_MS);
    assert_eq!(bank.available("acme", "usd"), 70);
    bank.commit(vec![issue("acme", "usd", 5), retire("acme", "usd", 20)]);
    _ = moved(&mut bank);
    wait(&mut bank, HOUR_MS);
    assert_eq!((moved(&mut bank), bank.available("acme", "usd")), (vec![(100, 0), (-50, 0)], 105));
}

#[test]
fn new_terms_hold_from_the_next_period_also_after_a_removal() {
    let mut bank = bank(hourly(100, CarryOver::None));
    bank.commit(vec![set(Some(hourly(7, CarryOver::None)))]);
    bank.commit(vec![set(None)]);
    assert_eq!(info(&bank), None);
    assert_eq!(moved(&mut bank), [(100, 0)]);
    restart(&mut bank);
    bank.commit(vec![set(Some(hourly(9, CarryOver::None)))]);
    assert_eq!(moved(&mut bank), [], "one issue in one period");
    wait(&mut bank, FIRST_END_MS);
    assert_eq!((moved(&mut bank), bank.available("acme", "usd")), (vec![(9, 0), (-100, 0)], 9));
    bank.commit(vec![set(None)]);
    assert_eq!(bank.available("acme", "usd"), 9, "the credit stays until its end");
    wait(&mut bank, HOUR_MS);
    assert_eq!((moved(&mut bank), bank.available("acme", "usd")), (vec![(-9, 0)], 0));
    bank.commit(vec![set(Some(hourly(4, CarryOver::None)))]);
    assert_eq!(moved(&mut bank), [(4, 0)], "a new plan issues at once");
}

#[test]
fn a_frozen_account_gets_its_credit_and_a_closed_one_has_no_plan() {
    let mut bank = bank(hourly(100, CarryOver::None));
    bank.commit(vec![freeze("acme")]);
    wait(&mut bank, FIRST_END_MS);
    bank.commit(vec![unfreeze("acme")]);
    assert_eq!(bank.available("acme", "usd"), 100);
    assert_eq!(bank.refuse(vec![close("acme")]), WriteError::Conflict { operation: 0 });
    bank.commit(vec![retire("acme", "usd", 100), close("acme")]);
    restart(&mut bank);
    assert_eq!(info(&bank), None);
    _ = moved(&mut bank);
    wait(&mut bank, HOUR_MS);
    assert_eq!(moved(&mut bank), []);
    assert_eq!(bank.refuse(vec![set(None)]), WriteError::AccountClosed { operation: 0 });
}

#[test]
fn an_account_that_is_opened_and_closed_in_one_transaction_gets_nothing() {
    let mut bank = Bank::new();
    bank.commit(vec![open_with(hourly(100, CarryOver::None)), close("acme")]);
    assert_eq!((moved(&mut bank), info(&bank)), (vec![], None));
}

#[test]
fn plans_wait_while_log_time_and_wall_time_differ_by_more_than_five_minutes() {
    const YEARS_MS: u64 = 10 * 366 * 24 * HOUR_MS;
    let mut bank = bank(hourly(100, CarryOver::Max(1_000)));
    _ = moved(&mut bank);
    bank.test.wall_ahead_ms = YEARS_MS;
    wait(&mut bank, FIRST_END_MS);
    let late = Operation::OpenAccount {
        account: account("late"),
        overdraft: Overdraft::Deny,
        plan: Some(hourly(5, CarryOver::None)),
    };
    bank.commit(vec![late]);
    restart(&mut bank);
    bank.test.tick();
    assert!(bank.test.book.is_expiry_waiting());
    assert!(!bank.test.book.is_due(bank.test.now()), "no tick can help");
    assert_eq!((moved(&mut bank), bank.available("acme", "usd"), bank.available("late", "usd")), (vec![], 100, 0));
    bank.test.wall_ahead_ms = EXPIRY_SKEW_MS_MAX;
    bank.test.tick();
    assert_eq!(moved(&mut bank), [(5, 0), (100, 100)]);
}

#[test]
fn a_refused_transaction_sets_no_plan_and_bad_plans_are_named() {
    let mut bank = bank(hourly(100, CarryOver::None));
    let before = info(&bank);
    let euro = Plan { asset: asset("eur"), ..hourly(3, CarryOver::None) };
    let short = WriteError::InsufficientCredit { operation: 1 };
    assert_eq!(bank.refuse(vec![set(Some(euro)), retire("acme", "usd", 101)]), short);
    assert_eq!(info(&bank), before);
    let plan = hourly(1, CarryOver::None);
    let cases = [
        (Plan { amount: 0, ..plan.clone() }, InvalidOperation::AmountZero),
        (Plan { carry_over: CarryOver::Max(0), ..plan.clone() }, InvalidOperation::CarryOverZero),
        (Plan { utc_offset_minutes: 841, ..plan.clone() }, InvalidOperation::PlanUtcOffset { found: 841 }),
    ];
    for (wrong, why) in cases {
        let refused = WriteError::Invalid(InvalidWrite::Operation { operation: 0, why });
        assert_eq!(bank.refuse(vec![set(Some(wrong))]), refused);
    }
    let unknown = Operation::SetPlan { account: account("nobody"), plan: Some(plan) };
    assert_eq!(bank.refuse(vec![unknown]), WriteError::AccountNotFound { operation: 0 });
}

#[test]
fn a_plan_without_room_for_a_grant_waits_and_is_tried_again() {
    let mut bank = bank(hourly(100, CarryOver::None));
    bank.commit(vec![retire("acme", "usd", 100)]);
    let full: Vec<Operation> = (0..GRANTS_MAX)
        .map(|at| grant("acme", "usd", 1, GrantTerms::new(1, Some(START.plus_ms(10 * HOUR_MS + at as u64)))))
        .collect();
    bank.commit(full);
    _ = moved(&mut bank);
    wait(&mut bank, FIRST_END_MS);
    assert_eq!((moved(&mut bank), bank.available("acme", "usd")), (vec![], 64));
    assert!(!bank.test.book.is_due(bank.test.now()), "not before a minute has passed");
    restart(&mut bank);
    bank.commit(vec![retire("acme", "usd", 1)]);
    wait(&mut bank, 60_000);
    assert_eq!((moved(&mut bank), bank.available("acme", "usd")), (vec![(100, 0)], 163));
}

/// The grant of the last period expired while the plan waited, and its unused credit was lost.
#[test]
fn unused_credit_waits_with_its_plan_for_room() {
    let mut bank = bank(hourly(100, CarryOver::Max(1_000)));
    let far = |at: usize| GrantTerms::new(1, Some(START.plus_ms(10 * HOUR_MS + at as u64)));
    bank.test.advance(FIRST_END_MS - 10_000);
    let lease = bank.test.take(&[("usd", 40)]);
    bank.commit((1..GRANTS_MAX).map(|at| grant("acme", "usd", 1, far(at))).collect());
    _ = moved(&mut bank);
    wait(&mut bank, 10_000);
    assert_eq!((moved(&mut bank), bank.available("acme", "usd")), (vec![], 63), "it is not spendable");
    let more = grant("acme", "usd", 1, far(GRANTS_MAX));
    let why = InvalidOperation::TooManyGrants;
    assert_eq!(bank.refuse(vec![more]), WriteError::Invalid(InvalidWrite::Operation { operation: 0, why }));
    restart(&mut bank);
    bank.test.settle(lease, &[("usd", 15)]);
    assert_eq!(moved(&mut bank), [(100, 85)], "the settlement makes room");
    assert_eq!(bank.available("acme", "usd"), 63 + 185);
    // Without its plan it expires. The hold takes the 63 first, for their priority, and 37 of the 185.
    bank.test.advance(HOUR_MS - 10_000);
    bank.test.take(&[("usd", 100)]);
    wait(&mut bank, 10_000);
    assert_eq!(moved(&mut bank), []);
    bank.commit(vec![set(None)]);
    assert_eq!(moved(&mut bank), [(-148, 0)]);
}

/// A plan whose offset moved once issued a whole amount for the rest of the period in which it moved.
#[test]
fn moving_the_offset_of_a_plan_issues_no_extra_period() {
    let at = |minutes| Plan { utc_offset_minutes: minutes, ..hourly(100, CarryOver::None) };
    let mut bank = bank(at(0));
    bank.commit(vec![set(Some(at(45)))]);
    _ = moved(&mut bank);
    let minutes = |count: u64| count * 60_000;
    // At 16:00 the local hour has 15 minutes left.
    wait(&mut bank, FIRST_END_MS);
    assert_eq!(moved(&mut bank), [(100, 0), (-100, 0)]);
    assert_eq!(info(&bank).unwrap().next_at, Some(START.plus_ms(FIRST_END_MS + minutes(75))));
    bank.commit(vec![set(Some(at(0)))]);
    wait(&mut bank, minutes(74));
    assert_eq!(moved(&mut bank), []);
    // At 17:15 the hour has 45 minutes left.
    wait(&mut bank, minutes(1));
    assert_eq!(moved(&mut bank), [(100, 0), (-100, 0)]);
    assert_eq!(info(&bank).unwrap().next_at, Some(START.plus_ms(FIRST_END_MS + minutes(120))));
    // Also after many missed periods.
    bank.commit(vec![set(Some(Plan { carry_over: CarryOver::Max(1_000), ..at(45) }))]);
    wait(&mut bank, minutes(45 + 5 * 60 + 20));
    assert_eq!(moved(&mut bank), [(600, 100)], "18:00 to 19:15, then 19:15, 20:15, 21:15, 22:15 and 23:15");
}

#[test]
fn a_tick_issues_a_bounded_number_of_plans() {
    let mut bank = Bank::new();
    for number in 0..300 {
        let account = account(&format!("a{number}"));
        let plan = Some(hourly(1, CarryOver::None));
        bank.commit(vec![Operation::OpenAccount { account, overdraft: Overdraft::Deny, plan }]);
    }
    _ = moved(&mut bank);
    wait(&mut bank, FIRST_END_MS);
    let first = moved(&mut bank).iter().filter(|(amount, _)| *amount > 0).count();
    assert!((1..300).contains(&first), "{first}");
    for _ in 0..4 {
        bank.test.tick();
    }
    assert_eq!(first + moved(&mut bank).iter().filter(|(amount, _)| *amount > 0).count(), 300);
}

#[test]
fn a_month_begins_at_the_local_midnight_of_its_first_day() {
    let plan = Plan { period: Period::Month, utc_offset_minutes: 120, ..hourly(1, CarryOver::None) };
    let bank = bank(plan);
    // 2025-07-01 00:00 two hours ahead of UTC.
    assert_eq!(info(&bank).unwrap().next_at.map(|at| at.get()), Some(1_751_320_800_000));
}

/// A snapshot once dropped the time of the next attempt before the first issue. A restored replica then tried earlier
/// than the others.
#[test]
fn a_plan_that_waits_for_room_tries_again_at_the_same_time_after_a_restart() {
    let mut bank = Bank::new();
    bank.commit(vec![open("acme")]);
    let far = |at: usize| GrantTerms::new(1, Some(START.plus_ms(10 * HOUR_MS + at as u64)));
    bank.commit((0..GRANTS_MAX).map(|at| grant("acme", "usd", 1, far(at))).collect());
    bank.commit(vec![set(Some(hourly(100, CarryOver::None)))]);
    bank.test.tick();
    assert!(!bank.test.book.is_due(bank.test.now()));
    restart(&mut bank);
    assert!(!bank.test.book.is_due(bank.test.now()));
    bank.test.advance(60_000);
    assert!(bank.test.book.is_due(bank.test.now()));
}
