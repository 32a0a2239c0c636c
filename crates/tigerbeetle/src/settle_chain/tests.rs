use super::*;
use crate::schema::{Anchor, Decision, PartVersion, SECOND_NS, has};

const T: u64 = 1_700_000_000 * SECOND_NS;
const DAY_NS: u64 = 86_400 * SECOND_NS;

fn key(name: &str) -> LimitKey {
    name.parse().unwrap()
}

fn name() -> LeaseName {
    LeaseName::new("default".parse().unwrap(), "01J00000000000000000000000".parse().unwrap())
}

fn held(limit: &str, holding: Holding, amount: u64) -> Held {
    Held {
        account: LimitAccounts::of(&LimitName::in_default(limit)).limit,
        name: Some(LimitName::in_default(limit)),
        transfer: name().reserve_id(Some(&LimitName::in_default(limit)), 0, PartVersion::default()),
        amount,
        earlier: 0,
        used: 0,
        holding,
        ends_at_ns: T + 60 * SECOND_NS,
        made_at_ns: T,
        would_deny: false,
        version: PartVersion::default(),
    }
}

/// Days of UTC.
fn period_end(_: &LimitName, at_ns: u64) -> Option<u64> {
    Some((at_ns / DAY_NS + 1) * DAY_NS)
}

fn record() -> LeaseRecord {
    let held = vec![held("slots", Holding::Concurrency, 1), held("tpm", Holding::Rolling, 100)];
    let first = Anchor { made_at_ns: T, ..Anchor::made(0, 7, Decision::Reserved, false) };
    LeaseRecord { first, newest: first, held, ending: None, is_extended: false }
}

fn completing(actuals: &[(&str, u64)]) -> Settling {
    let actuals: Vec<_> = actuals.iter().map(|(name, amount)| Amount { key: key(name), amount: *amount }).collect();
    Settling::complete(name(), &record(), &actuals)
}

/// Role, amount and timeout of each transfer.
fn words(settling: &Settling, now_ns: u64) -> Vec<(Role, u128, u32)> {
    let chain = settling.chain(&CommonAccounts::new(), now_ns, period_end);
    chain.roles.iter().zip(&chain.transfers).map(|(role, t)| (*role, t.amount, t.timeout)).collect()
}

fn told(settling: &mut Settling, statuses: &[Status]) -> SettleResult {
    let chain = settling.chain(&CommonAccounts::new(), T, period_end);
    let results: Vec<_> = statuses
        .iter()
        .map(|status| CreateTransferResult { timestamp: T + 9, status: *status, reserved: Default::default() })
        .collect();
    settling.read(&chain, &results, |limit| match limit.key.as_str() {
        "strict" => Some(Overage::Deny),
        "gone" => None,
        _ => Some(Overage::Debt),
    })
}

const AGAIN: SettleResult = SettleResult::Again { now_ns: T + 9 };

#[test]
fn concurrency_is_voided_and_rolling_shrinks_in_one_chain_under_the_end() {
    let settling = completing(&[("tpm", 30)]);
    let expected = [(Role::End, 0, 0), (Role::Void(0), 0, 0), (Role::Void(1), 0, 0), (Role::Rereserve(1), 30, 60)];
    assert_eq!(words(&settling, T), expected);
    let chain = settling.chain(&CommonAccounts::new(), T, period_end);
    let linked: Vec<bool> = chain.transfers.iter().map(|t| has(t.flags, TransferFlags::Linked)).collect();
    assert_eq!(linked, [true, true, true, false]);
    assert!(chain.transfers.iter().all(|t| t.user_data_128 == name().id));
}

#[test]
fn each_actual_has_its_chain() {
    let (end, void) = ((Role::End, 0, 0), (Role::Void(0), 0, 0));
    for (actuals, expected) in [
        (&[][..], vec![end, void]),
        (&[("tpm", 100)], vec![end, void]),
        (&[("tpm", 0)], vec![end, void, (Role::Void(1), 0, 0)]),
        (&[("tpm", 130)], vec![end, void, (Role::Rereserve(1), 30, 60)]),
        (&[("slots", 9), ("other", 9)], vec![end, void]),
    ] {
        assert_eq!(words(&completing(actuals), T), expected, "{actuals:?}");
    }
    assert_eq!(completing(&[("slots", 9), ("other", 9)]).ignored, [key("other")]);
}

#[test]
fn the_rest_of_a_window_is_rounded_up_to_seconds() {
    for (passed_ns, timeout) in [(1, 60), (SECOND_NS, 59), (59 * SECOND_NS, 1), (60 * SECOND_NS - 1, 1)] {
        let chain = words(&completing(&[("tpm", 130)]), T + passed_ns);
        assert_eq!(chain[2], (Role::Rereserve(1), 30, timeout), "{passed_ns}");
    }
}

#[test]
fn what_has_ended_is_left_alone_and_overage_is_held_for_a_second() {
    let late = T + 60 * SECOND_NS;
    assert_eq!(words(&completing(&[("tpm", 30)]), late), [(Role::End, 0, 0)]);
    assert_eq!(words(&completing(&[("tpm", 130)]), late), [(Role::End, 0, 0), (Role::Rereserve(1), 30, 1)]);
}

#[test]
fn a_chain_that_was_created_is_done_and_one_that_exists_was_before() {
    use Status::*;
    assert_eq!(told(&mut completing(&[]), &[Created, Created]), SettleResult::Done);
    for status in [Exists, ExistsWithDifferentUserData32, ExistsWithDifferentFlags] {
        assert_eq!(told(&mut completing(&[]), &[status, LinkedEventFailed]), SettleResult::Before);
    }
    // An extension came first and voided the anchor.
    let changed = told(&mut completing(&[]), &[PendingTransferAlreadyVoided, LinkedEventFailed]);
    assert_eq!(changed, SettleResult::Changed);
}

#[test]
fn a_reservation_that_ended_meanwhile_is_left_out() {
    use Status::*;
    for status in [PendingTransferExpired, PendingTransferAlreadyVoided, Exists] {
        let mut settling = completing(&[("tpm", 30)]);
        let failed = [LinkedEventFailed, LinkedEventFailed, status, LinkedEventFailed];
        assert_eq!(told(&mut settling, &failed), AGAIN);
        assert_eq!(words(&settling, T), [(Role::End, 0, 0), (Role::Void(0), 0, 0)]);
    }
}

#[test]
fn overage_that_exceeds_is_debt_now_and_when_it_is_tried_again() {
    use Status::*;
    for status in [ExceedsCredits, IdAlreadyFailed] {
        let mut settling = completing(&[("tpm", 130)]);
        assert_eq!(settling.overages(), Overages { reserved: 30, ..Overages::default() });
        assert_eq!(told(&mut settling, &[LinkedEventFailed, LinkedEventFailed, status]), AGAIN);
        assert_eq!(words(&settling, T)[2], (Role::Debt(1), 30, 0));
        assert_eq!(told(&mut settling, &[Created, Created, Created]), SettleResult::Done);
        assert_eq!(settling.overages(), Overages { debt: 30, ..Overages::default() });
    }
}

#[test]
fn overage_of_a_limit_that_keeps_no_debt_or_is_gone_is_dropped() {
    for limit in ["strict", "gone"] {
        let record = LeaseRecord { held: vec![held(limit, Holding::Rolling, 1)], ..record() };
        let mut settling = Settling::complete(name(), &record, &[Amount { key: key(limit), amount: 4 }]);
        assert_eq!(told(&mut settling, &[Status::LinkedEventFailed, Status::ExceedsCredits]), AGAIN);
        assert_eq!(words(&settling, T), [(Role::End, 0, 0)]);
        assert_eq!(settling.overages(), Overages { dropped: 3, ..Overages::default() });
    }
}

/// A complete reported 130, which exceeded the limit. Its answer was lost; the retry reports 30. The rereserve id is
/// spent.
#[test]
fn what_cannot_shrink_any_more_stays_as_it_is() {
    use Status::*;
    let mut settling = completing(&[("tpm", 30)]);
    let failed = [LinkedEventFailed, LinkedEventFailed, LinkedEventFailed, IdAlreadyFailed];
    assert_eq!(told(&mut settling, &failed), AGAIN);
    assert_eq!(words(&settling, T), [(Role::End, 0, 0), (Role::Void(0), 0, 0)]);
}

#[test]
fn a_release_voids_everything() {
    let settling = Settling::release(name(), &record());
    assert_eq!(words(&settling, T), [(Role::End, 0, 0), (Role::Void(0), 0, 0), (Role::Void(1), 0, 0)]);
}

#[test]
fn an_actual_brings_back_the_key_that_the_registry_has_lost() {
    let lost = Held { name: None, ..held("tpm", Holding::Rolling, 100) };
    let record = LeaseRecord { held: vec![lost], ..record() };
    let settling = Settling::complete(name(), &record, &[Amount { key: key("tpm"), amount: 30 }]);
    let chain = settling.chain(&CommonAccounts::new(), T, period_end);
    assert_eq!(chain.transfers[2].id, name().rereserve_id(&LimitName::in_default("tpm")));
}

#[test]
fn anything_else_is_a_failure_with_words() {
    use Status::*;
    for statuses in [
        &[LinkedEventFailed, LinkedEventFailed][..],
        &[Created],
        &[IdAlreadyFailed, LinkedEventFailed],
        &[LinkedEventFailed, PendingTransferNotFound],
    ] {
        let read = told(&mut completing(&[]), statuses);
        assert!(matches!(read, SettleResult::Failed(_)), "{statuses:?}: {read:?}");
    }
}

/// A lease that settles after the end of its period adds only its overage to the current one.
#[test]
fn calendar_overage_of_an_earlier_period_counts_in_the_current_one() {
    let ends_at_ns = (T / DAY_NS + 1) * DAY_NS;
    let held = Held { ends_at_ns, ..held("tpd", Holding::Calendar, 100) };
    let record = LeaseRecord { held: vec![held], ..record() };
    let settling = |amount| Settling::complete(name(), &record, &[Amount { key: key("tpd"), amount }]);
    let left = u32::try_from((ends_at_ns - T).div_ceil(SECOND_NS)).unwrap();
    let before = [(Role::End, 0, 0), (Role::Void(0), 0, 0), (Role::Rereserve(0), 30, left)];
    assert_eq!(words(&settling(30), T), before);
    assert_eq!(words(&settling(130), T), [(Role::End, 0, 0), (Role::Rereserve(0), 30, left)]);
    assert_eq!(words(&settling(30), ends_at_ns), [(Role::End, 0, 0)]);
    assert_eq!(words(&settling(130), ends_at_ns), [(Role::End, 0, 0), (Role::Rereserve(0), 30, 86_400)]);
}

/// Earlier reservations are settled, so only the newest one shrinks; `used` is a floor.
#[test]
fn the_newest_part_of_an_extended_limit_settles_the_total() {
    let void = (Role::Void(0), 0, 0);
    for (used, actual, expected) in [
        (0, None, vec![]),
        (0, Some(150), vec![]),
        (0, Some(180), vec![(Role::Rereserve(0), 30, 60)]),
        (0, Some(130), vec![void, (Role::Rereserve(0), 30, 60)]),
        (0, Some(100), vec![void]),
        (0, Some(20), vec![void]),
        (120, Some(20), vec![void, (Role::Rereserve(0), 20, 60)]),
        (150, Some(20), vec![]),
        (170, None, vec![(Role::Rereserve(0), 20, 60)]),
        (170, Some(20), vec![(Role::Rereserve(0), 20, 60)]),
    ] {
        let held = Held { earlier: 100, used, ..held("tpm", Holding::Rolling, 50) };
        let newest = Anchor { number: 3, ..record().first };
        let record = LeaseRecord { held: vec![held], newest, ..record() };
        let actuals: Vec<_> = actual.map(|amount| Amount { key: key("tpm"), amount }).into_iter().collect();
        let settling = Settling::complete(name(), &record, &actuals);
        assert_eq!(words(&settling, T)[1..], expected, "{used} {actual:?}");
        assert_eq!(settling.below_used.len(), usize::from(actual.is_some_and(|actual| actual < used)));
        let end = settling.chain(&CommonAccounts::new(), T, period_end).transfers[0];
        assert_eq!((end.id, end.pending_id), (name().end_id(), name().anchor_id(3)));
    }
}
