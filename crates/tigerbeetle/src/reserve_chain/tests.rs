use super::*;
use crate::schema::{LimitAccounts, has};

fn plan(keys: &[&str]) -> ReservePlan {
    let name = LeaseName::new("default".parse().unwrap(), "01J00000000000000000000000".parse().unwrap());
    let taken = |key: &&str| {
        let limit = LimitName::in_default(key);
        let account = LimitAccounts::of(&limit).limit;
        Taken {
            limit: Some(limit),
            account,
            amount: 5,
            holding: Holding::Rolling,
            hold_seconds: 60,
            ends_at_ns: None,
            would_deny: false,
            version: PartVersion::default(),
        }
    };
    ReservePlan {
        taken: keys.iter().map(taken).collect(),
        body: ReserveBody { fingerprint: 7, ..ReserveBody::default() },
        has_credit: false,
        name,
    }
}

fn read(plan: &ReservePlan, statuses: &[Status]) -> ReserveResult {
    let results: Vec<_> = (100..)
        .zip(statuses)
        .map(|(timestamp, status)| CreateTransferResult { timestamp, status: *status, reserved: Default::default() })
        .collect();
    plan.read(&plan.chain(&CommonAccounts::new()), &results)
}

#[test]
fn a_chain_begins_with_the_anchor_and_is_linked_to_its_end() {
    let plan = plan(&["rpm", "tpm"]);
    let chain = plan.chain(&CommonAccounts::new());
    let [anchor, rpm, tpm] = &chain[..] else { panic!("{chain:?}") };
    assert_eq!((anchor.amount, anchor.user_data_64, anchor.user_data_128), (0, 7, plan.name.id));
    assert!(has(anchor.flags, TransferFlags::Pending));
    assert_eq!(anchor.timeout, 0);
    for part in [rpm, tpm] {
        assert_eq!((part.amount, part.timeout, part.user_data_64), (5, 60, 7));
        assert_eq!((part.credit_account_id, part.user_data_128), (CommonAccounts::new().operator, plan.name.id));
        assert!(has(part.flags, TransferFlags::Pending));
    }
    let linked: Vec<bool> = chain.iter().map(|part| has(part.flags, TransferFlags::Linked)).collect();
    assert_eq!(linked, [true, true, false]);
}

/// Statuses observed on a server of version 0.17.9, with the anchor before each chain.
#[test]
fn every_row_of_the_table_is_read_as_it_is_meant() {
    use Status::*;
    let two = plan(&["rpm", "tpm"]);
    let three = plan(&["a", "b", "c"]);
    for (plan, statuses, expected) in [
        (&two, &[Exists, LinkedEventFailed, LinkedEventFailed][..], ReserveResult::Known { now_ns: Some(101) }),
        (
            &two,
            &[ExistsWithDifferentUserData64, LinkedEventFailed, LinkedEventFailed],
            ReserveResult::Known { now_ns: Some(100) },
        ),
        (
            &three,
            &[LinkedEventFailed, LinkedEventFailed, ExceedsCredits, LinkedEventFailed],
            ReserveResult::Denied { index: 1 },
        ),
        (
            &three,
            &[LinkedEventFailed, LinkedEventFailed, IdAlreadyFailed, LinkedEventFailed],
            ReserveResult::Denied { index: 1 },
        ),
        (&two, &[LinkedEventFailed, ExceedsCredits, LinkedEventFailed], ReserveResult::Denied { index: 0 }),
        (&two, &[LinkedEventFailed, Exists, LinkedEventFailed], ReserveResult::Known { now_ns: Some(100) }),
    ] {
        assert_eq!(read(plan, statuses), expected, "{statuses:?}");
    }
    let ReserveResult::Created(record) = read(&two, &[Created, Created, Created]) else { panic!("not created") };
    assert_eq!((record.first.made_at_ns, record.held.len()), (100, 2));
    assert_eq!(record.held[1].ends_at_ns, 102 + 60_000_000_000);
}

#[test]
fn a_lease_of_nothing_but_credit_is_its_anchor() {
    let plan = plan(&[]);
    assert_eq!(plan.chain(&CommonAccounts::new()).len(), 1);
    assert!(matches!(read(&plan, &[Status::Created]), ReserveResult::Created(record) if record.held.is_empty()));
    assert_eq!(read(&plan, &[Status::Exists]), ReserveResult::Known { now_ns: None });
}

#[test]
fn anything_else_is_a_failure_with_words() {
    let two = plan(&["rpm", "tpm"]);
    for statuses in [
        &[Status::LinkedEventFailed, Status::DebitAccountNotFound, Status::LinkedEventFailed][..],
        &[Status::LinkedEventFailed; 3],
        &[Status::Created, Status::Created],
        &[Status::IdAlreadyFailed, Status::LinkedEventFailed, Status::LinkedEventFailed],
        &[Status::Created, Status::LinkedEventFailed, Status::LinkedEventFailed],
    ] {
        let ReserveResult::Failed(message) = read(&two, statuses) else { panic!("{statuses:?}") };
        assert!(!message.is_empty());
    }
}
