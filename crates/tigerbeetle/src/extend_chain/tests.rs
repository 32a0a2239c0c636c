use tigerbeetle::TransferFlags;

use super::*;
use crate::schema::{Decision, Ending, Holding, LimitAccounts, has};

const T: u64 = 1_700_000_000 * SECOND_NS;

fn name() -> LeaseName {
    LeaseName::new("default".parse().unwrap(), "01J00000000000000000000000".parse().unwrap())
}

fn taken(key: &str, holding: Holding, amount: u64, extension: u32) -> Taken {
    let limit = LimitName::in_default(key);
    Taken {
        account: LimitAccounts::of(&limit).limit,
        limit: Some(limit),
        amount,
        holding,
        hold_seconds: 60,
        ends_at_ns: None,
        would_deny: false,
        version: PartVersion { extension, round: 0 },
    }
}

/// A lease with a slot and 100 tokens.
fn lease() -> LeaseRecord {
    let first = Anchor { made_at_ns: T, ..Anchor::made(0, 7, Decision::Reserved, false) };
    let taken = [taken("slots", Holding::Concurrency, 1, 0), taken("tpm", Holding::Rolling, 100, 0)];
    let held = taken.iter().map(|taken| taken.held(&name(), T)).collect();
    LeaseRecord { first, newest: first, held, ending: None, is_extended: false }
}

fn anchor(number: u32) -> Anchor {
    Anchor::made(number, 9, Decision::Extended, false)
}

/// Takes 50 tokens more, renews the slot and reports 70 tokens.
fn extending(number: u32, record: &LeaseRecord, now_ns: u64) -> Extending {
    let add = ExtendPart { taken: taken("tpm", Holding::Rolling, 50, number), replaces: None };
    let renewed = replacement(&record.held[0], (0, number), Some(60), (T, now_ns)).unwrap();
    let used = vec![(LimitName::in_default("tpm"), 70)];
    Extending { name: name(), anchor: anchor(number), parts: vec![add, renewed], used }
}

fn told(extending: &Extending, statuses: &[Status], now_ns: u64) -> ExtendResult {
    let results: Vec<_> = (now_ns..)
        .zip(statuses)
        .map(|(timestamp, status)| CreateTransferResult { timestamp, status: *status, reserved: Default::default() })
        .collect();
    extending.read(&CommonAccounts::new(), &results, &lease())
}

#[test]
fn a_chain_voids_the_anchor_before_it_and_replaces_slots() {
    let chain = extending(1, &lease(), T + 30 * SECOND_NS).chain(&CommonAccounts::new());
    let [end, free, next, add, slot, used] = &chain[..] else { panic!("{chain:?}") };
    assert_eq!((end.pending_id, next.id), (name().anchor_id(0), name().anchor_id(1)));
    assert_eq!(free.pending_id, lease().held[0].transfer);
    assert_eq!((add.amount, slot.amount, slot.timeout, used.amount), (50, 1, 60, 70));
    assert!(has(next.flags, TransferFlags::Pending));
    assert_eq!(next.timeout, 0);
    let linked: Vec<bool> = chain.iter().map(|part| has(part.flags, TransferFlags::Linked)).collect();
    assert_eq!(linked, [true, true, true, true, true, false]);
    assert!(chain.iter().all(|part| part.user_data_128 == name().id));
}

/// The record in memory and the record from the ledger are the same, extension after extension.
#[test]
fn a_lease_is_rebuilt_from_its_transfers() {
    let common = CommonAccounts::new();
    let first = [taken("slots", Holding::Concurrency, 1, 0), taken("tpm", Holding::Rolling, 100, 0)];
    let mut ledger =
        vec![Transfer { timestamp: T, ..name().anchor(&common, &Anchor::made(0, 7, Decision::Reserved, false)) }];
    ledger.extend(first.iter().map(|taken| Transfer { timestamp: T, ..taken.transfer(&name(), &common, 7) }));
    let mut record = lease();
    for number in 1..=5 {
        let now_ns = T + u64::from(number) * 20 * SECOND_NS;
        let extending = extending(number, &record, now_ns);
        let chain = extending.chain(&common);
        let results: Vec<_> = (now_ns..)
            .zip(&chain)
            .map(|(timestamp, _)| CreateTransferResult {
                timestamp,
                status: Status::Created,
                reserved: Default::default(),
            })
            .collect();
        let done = extending.read(&common, &results, &record);
        ledger.extend(chain.iter().zip(&results).map(|(t, result)| Transfer { timestamp: result.timestamp, ..*t }));
        let ExtendResult::Done(extended) = done else { panic!("{done:?}") };
        record = extended;
        let names = |account: u128| {
            let keys = ["slots", "tpm"].map(LimitName::in_default);
            keys.into_iter().find(|limit| LimitAccounts::of(limit).limit == account)
        };
        let mut backwards = ledger.clone();
        backwards.reverse();
        assert_eq!(LeaseRecord::read(&name(), &backwards, names).as_ref(), Some(&record));
    }
    let [slots, tpm] = &record.held[..] else { panic!("{record:?}") };
    assert_eq!((slots.total(), tpm.amount, tpm.earlier, tpm.used), (1, 50, 300, 70));
    assert_eq!(record.newest.number, 5);
    assert!(record.is_alive(T + 159 * SECOND_NS));
    assert!(!record.is_alive(T + 161 * SECOND_NS));
    ledger.push(name().end(5, Ending::Completed));
    let ended = LeaseRecord::read(&name(), &ledger, |_| None).unwrap();
    assert_eq!((ended.ending, ended.is_alive(T)), (Some(Ending::Completed), false));
}

#[test]
fn every_failure_of_a_chain_is_read_as_it_is_meant() {
    use Status::*;
    let now_ns = T + SECOND_NS;
    let extending = extending(1, &lease(), now_ns);
    let failed_at = |place: usize, status: Status| {
        let mut statuses = [LinkedEventFailed; 6];
        statuses[place] = status;
        told(&extending, &statuses, now_ns)
    };
    for status in [PendingTransferAlreadyVoided, Exists, ExistsWithDifferentPendingId] {
        assert_eq!(failed_at(0, status), ExtendResult::Changed);
        assert_eq!(failed_at(1, status), ExtendResult::Changed);
    }
    assert_eq!(failed_at(1, PendingTransferExpired), ExtendResult::Expired);
    assert_eq!(failed_at(2, ExistsWithDifferentUserData64), ExtendResult::Changed);
    for status in [ExceedsCredits, IdAlreadyFailed] {
        assert_eq!(failed_at(3, status), ExtendResult::Denied { index: 0 });
        assert_eq!(failed_at(4, status), ExtendResult::Denied { index: 1 });
    }
    assert!(matches!(failed_at(0, PendingTransferNotFound), ExtendResult::Failed(_)));
    assert!(matches!(failed_at(3, DebitAccountNotFound), ExtendResult::Failed(_)));
    assert!(matches!(told(&extending, &[Created; 5], now_ns), ExtendResult::Failed(_)));
    assert!(matches!(told(&extending, &[LinkedEventFailed; 6], now_ns), ExtendResult::Failed(_)));
    assert!(matches!(told(&extending, &[Created; 6], now_ns), ExtendResult::Done(_)));
}

/// An end moves to the timeout from now, at most to a day after the reserve, and never back.
#[test]
fn a_renewed_slot_ends_with_its_timeout_or_with_its_day() {
    let day_ns = 86_400 * SECOND_NS;
    let slot = |ends_at_ns| Held { ends_at_ns, ..lease().held[0].clone() };
    let ends = |held: &Held, add, timeout: Option<u32>, now_ns| {
        let part = replacement(held, (add, 1), timeout, (T, now_ns))?;
        Some((part.taken.amount, part.taken.hold_seconds, part.taken.ends_at_ns))
    };
    let soon = slot(T + 60 * SECOND_NS);
    assert_eq!(ends(&soon, 0, Some(60), T + SECOND_NS), Some((1, 60, None)));
    assert_eq!(ends(&soon, 0, Some(5), T + SECOND_NS), None);
    assert_eq!(ends(&soon, 0, None, T + SECOND_NS), None);
    assert_eq!(ends(&soon, 2, None, T + SECOND_NS + 1), Some((3, 59, Some(T + 60 * SECOND_NS))));
    assert_eq!(ends(&soon, u64::MAX, Some(60), T + 1).map(|(amount, ..)| amount), Some(u64::MAX));
    let near_end = T + day_ns - 10 * SECOND_NS;
    assert_eq!(ends(&slot(near_end), 0, Some(60), near_end - 1), Some((1, 11, Some(T + day_ns))));
    assert_eq!(ends(&slot(T + day_ns), 0, Some(60), T + day_ns - 1), None);
}
