use super::*;
use crate::schema::{Anchor, Decision, Holding, LimitAccounts, PartVersion, has};
use tigerbeetle::TransferFlags;

const T: u64 = 1_700_000_000 * SECOND_NS;
const DAY_NS: u64 = 86_400 * SECOND_NS;

fn name() -> LeaseName {
    LeaseName::new("default".parse().unwrap(), "01J00000000000000000000000".parse().unwrap())
}

fn taken(key: &str, period_end_ns: Option<u64>) -> Taken {
    let limit = LimitName::in_default(key);
    Taken {
        account: LimitAccounts::of(&limit).limit,
        limit: Some(limit),
        amount: 5,
        holding: if period_end_ns.is_some() { Holding::Calendar } else { Holding::Rolling },
        hold_seconds: 1,
        ends_at_ns: period_end_ns,
        would_deny: false,
        version: PartVersion::default(),
    }
}

/// A lease that was sent before `T`, the end of a period, and was made a millisecond after it.
fn late() -> LeaseRecord {
    let taken = [taken("rpm", None), taken("tpd", Some(T)), taken("tpm", Some(T + DAY_NS))];
    let made_at_ns = T + 1_000_000;
    let held = taken.iter().map(|taken| taken.held(&name(), made_at_ns)).collect();
    let first = Anchor { made_at_ns, ..Anchor::made(0, 7, Decision::Reserved, false) };
    LeaseRecord { first, newest: first, held, ending: None, is_extended: false }
}

fn retaking(record: &LeaseRecord, now_ns: u64) -> Retaking {
    Retaking::new(&name(), record, now_ns, |_, at_ns| Some(at_ns - at_ns % DAY_NS + DAY_NS))
}

fn told(retaking: &mut Retaking, statuses: &[Status]) -> RetakeResult {
    let result = |status: &Status| CreateTransferResult {
        timestamp: T + 2_000_000,
        status: *status,
        reserved: Default::default(),
    };
    retaking.read(&statuses.iter().map(result).collect::<Vec<_>>())
}

#[test]
fn what_was_made_after_its_period_is_voided_and_taken_to_the_end_of_the_current_one() {
    let record = late();
    assert!(record.is_late());
    let mut retaking = retaking(&record, T);
    let chain = retaking.chain(&CommonAccounts::new(), 7);
    let [void, again] = chain[..] else { panic!("{chain:?}") };
    assert!(has(void.flags, TransferFlags::VoidPendingTransfer) && has(void.flags, TransferFlags::Linked));
    let id = |version| name().reserve_id(Some(&LimitName::in_default("tpd")), 0, version);
    assert_eq!(void.pending_id, id(PartVersion::default()));
    assert_eq!(again.id, id(PartVersion::default().next_round()));
    let end_ns = T - T % DAY_NS + DAY_NS;
    assert_eq!((again.amount, again.user_data_64), (5, end_ns));
    assert_eq!(u64::from(again.timeout), (end_ns - T - 1_000_000).div_ceil(SECOND_NS));
    let RetakeResult::Done(held) = told(&mut retaking, &[Status::Created, Status::Created]) else { panic!() };
    assert_eq!((held.len(), held[0].ends_at_ns, held[0].version.round), (1, end_ns, 1));
    assert!(!held[0].is_late());
}

#[test]
fn an_expired_reservation_is_taken_without_a_void_and_may_be_denied() {
    let mut retaking = retaking(&late(), T);
    let expired = [Status::PendingTransferExpired, Status::LinkedEventFailed];
    assert_eq!(told(&mut retaking, &expired), RetakeResult::Again);
    assert_eq!(retaking.chain(&CommonAccounts::new(), 7).len(), 1);
    let denied = RetakeResult::Denied(Some(LimitName::in_default("tpd")));
    assert_eq!(told(&mut retaking, &[Status::ExceedsCredits]), denied);
    assert_eq!(told(&mut retaking, &[Status::IdAlreadyFailed]), denied);
    assert_eq!(told(&mut retaking, &[Status::Exists]), RetakeResult::Changed);
}

#[test]
fn of_two_processes_that_take_it_again_one_reads_what_the_other_did() {
    let voided = [Status::PendingTransferAlreadyVoided, Status::LinkedEventFailed];
    assert_eq!(told(&mut retaking(&late(), T), &voided), RetakeResult::Changed);
    let exists = [Status::Exists, Status::LinkedEventFailed];
    assert_eq!(told(&mut retaking(&late(), T), &exists), RetakeResult::Changed);
    assert!(matches!(told(&mut retaking(&late(), T), &[]), RetakeResult::Failed(_)));
}

/// A limit that was deleted has no period, so its reservation stays as it is.
#[test]
fn a_limit_without_a_calendar_is_left_alone() {
    let retaking = Retaking::new(&name(), &late(), T, |_, _| None);
    assert!(retaking.chain(&CommonAccounts::new(), 7).is_empty());
}

#[test]
fn seconds_round_up_and_are_at_least_one() {
    assert_eq!(seconds_until(T, T), 1);
    assert_eq!(seconds_until(T, T + 5), 1);
    assert_eq!(seconds_until(T + SECOND_NS, T), 1);
    assert_eq!(seconds_until(T + SECOND_NS + 1, T), 2);
}
