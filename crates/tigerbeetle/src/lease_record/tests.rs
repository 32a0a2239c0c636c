use super::*;
use crate::reserve_chain::{ReservePlan, Taken};
use crate::schema::{CommonAccounts, LeaseName, LimitAccounts};

const T: u64 = 1_700_000_000 * SECOND_NS;

fn name() -> LeaseName {
    LeaseName::new("default".parse().unwrap(), "01J00000000000000000000000".parse().unwrap())
}

fn taken(key: &str, holding: Holding, amount: u64, hold_seconds: u32) -> Taken {
    let limit = LimitName::in_default(key);
    let account = LimitAccounts::of(&limit).limit;
    Taken {
        limit: Some(limit),
        account,
        amount,
        holding,
        hold_seconds,
        ends_at_ns: None,
        would_deny: false,
        version: PartVersion::default(),
    }
}

fn body(fingerprint: u64) -> ReserveBody {
    ReserveBody { fingerprint, ..ReserveBody::default() }
}

/// The transfers of a reserve, as the ledger returns them.
fn reserved() -> Vec<Transfer> {
    let taken = vec![taken("slots", Holding::Concurrency, 1, 10), taken("tpm", Holding::Rolling, 60, 60)];
    let plan = ReservePlan { name: name(), body: body(7), has_credit: false, taken };
    let mut chain = plan.chain(&CommonAccounts::new());
    for (index, transfer) in (0..).zip(&mut chain) {
        transfer.timestamp = T + index;
    }
    chain
}

fn read(transfers: &[Transfer]) -> Option<LeaseRecord> {
    let names = ["slots", "tpm"].map(|key| {
        let name = LimitName::in_default(key);
        (LimitAccounts::of(&name).limit, name)
    });
    LeaseRecord::read(&name(), transfers, |account| {
        names.iter().find(|(known, _)| *known == account).map(|(_, name)| name.clone())
    })
}

#[test]
fn what_was_written_is_read_in_order_of_key() {
    let mut transfers = reserved();
    transfers.reverse();
    let record = read(&transfers).unwrap();
    assert_eq!((record.first.fingerprint, record.reserved_at()), (7, to_ms(T)));
    let held: Vec<_> = record.held.iter().map(|held| (held.name.as_ref().unwrap().key.as_str(), held.amount)).collect();
    assert_eq!(held, [("slots", 1), ("tpm", 60)]);
    assert_eq!(record.held[0].ends_at_ns, T + 1 + 10 * SECOND_NS);
}

#[test]
fn nothing_is_known_of_a_lease_without_an_anchor() {
    assert_eq!(read(&[]), None);
    assert_eq!(read(&reserved()[1..]), None);
}

#[test]
fn a_limit_that_is_gone_leaves_its_account() {
    let record = LeaseRecord::read(&name(), &reserved(), |_| None).unwrap();
    assert!(record.held.iter().all(|held| held.name.is_none() && held.account != 0));
}

#[test]
fn a_retry_is_judged_by_its_body_first_and_then_by_what_became_of_it() {
    let live = read(&reserved()).unwrap();
    let ended = |ending| LeaseRecord { ending: Some(ending), ..live.clone() };
    let first = Anchor { decision: Decision::Marked, fingerprint: 0, ..live.first };
    let marked = LeaseRecord { first, ..live.clone() };
    let holds = Retry::Holds { reserved_at: to_ms(T) };
    for (record, fingerprint, now, expected) in [
        (&live, 7, T + 5, holds),
        (&live, 8, T + 5, Retry::OtherRequirements),
        (&live, 7, T + 10 * SECOND_NS, holds),
        (&live, 7, T + 1 + 10 * SECOND_NS, Retry::Ended),
        (&live, 8, T + 90 * SECOND_NS, Retry::OtherRequirements),
        (&ended(Ending::Completed), 7, T + 5, Retry::Ended),
        (&ended(Ending::Completed), 8, T + 5, Retry::OtherRequirements),
        (&ended(Ending::Released), 7, T + 5, Retry::Ended),
        (&marked, 7, T + 5, Retry::Ended),
    ] {
        assert_eq!(record.retry(&body(fingerprint), now), expected);
    }
}

#[test]
fn a_lease_is_live_expired_completed_or_denied() {
    let live = read(&reserved()).unwrap();
    assert_eq!(live.state(T + 5), LeaseState::Live);
    assert_eq!(live.state(T + 11 * SECOND_NS), LeaseState::Expired);
    let mut transfers = reserved();
    transfers.push(name().end(0, Ending::Completed));
    assert_eq!(read(&transfers).unwrap().state(T + 5), LeaseState::Completed);
    transfers[3] = name().end(0, Ending::Released);
    assert_eq!(read(&transfers).unwrap().state(T + 5), LeaseState::Denied);
    let marked = [name().anchor(&CommonAccounts::new(), &Anchor::marked())];
    assert_eq!(read(&marked).unwrap().state(T + 5), LeaseState::Completed);
}

/// Any extension counted, so a denied one kept a reserve repeatable after its window had ended.
#[test]
fn a_denied_extension_changes_neither_a_repeated_reserve_nor_the_state() {
    let rolling_ends_first = |decision: Decision| {
        let taken = vec![taken("slots", Holding::Concurrency, 1, 90), taken("tpm", Holding::Rolling, 60, 60)];
        let plan = ReservePlan { name: name(), body: body(7), has_credit: false, taken };
        let mut chain = plan.chain(&CommonAccounts::new());
        chain.push(name().anchor(&CommonAccounts::new(), &Anchor::made(1, 5, decision, false)));
        chain.iter_mut().for_each(|transfer| transfer.timestamp = T);
        read(&chain).unwrap()
    };
    let after_window = T + 60 * SECOND_NS;
    let holds = Retry::Holds { reserved_at: to_ms(T) };
    for (decision, state, retry) in [
        (Decision::Extended, LeaseState::Live, holds),
        (Decision::Denied { rank: 0, never: false }, LeaseState::Expired, Retry::Ended),
    ] {
        let record = rolling_ends_first(decision);
        assert!(record.is_alive(after_window));
        assert_eq!((record.state(after_window), record.retry(&body(7), after_window)), (state, retry));
    }
}
