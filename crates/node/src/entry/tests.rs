use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use openraft::{CommittedLeaderId, EntryPayload, Membership};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

fn membership() -> Membership<u64, Member> {
    let member = |n: u64| Member { address: format!("10.0.0.{n}:7900"), incarnation: u128::from(n) << 100 | 7 };
    let members = (1..=4).map(|n| (n, member(n))).collect::<BTreeMap<_, _>>();
    Membership::new(vec![BTreeSet::from([1, 2, 3]), BTreeSet::from([1, 2])], members)
}

fn payloads() -> Vec<EntryPayload<Types>> {
    vec![
        EntryPayload::Blank,
        EntryPayload::Normal(Bytes::new().into()),
        EntryPayload::Normal(Bytes::from_static(b"a few commands").into()),
        EntryPayload::Membership(Membership::default()),
        EntryPayload::Membership(membership()),
    ]
}

fn bytes_of(payload: &EntryPayload<Types>) -> Vec<u8> {
    let mut out = Vec::new();
    put_payload(payload, &mut out);
    out
}

#[test]
fn every_payload_comes_back_as_it_was() {
    for payload in payloads() {
        let bytes = bytes_of(&payload);
        assert!(payload_bytes(&payload) >= bytes.len(), "{payload:?} takes {} bytes", bytes.len());
        assert_eq!(take_payload(bytes.into()), Ok(payload));
    }
}

#[test]
fn the_bytes_of_a_payload_never_change() {
    assert_eq!(bytes_of(&EntryPayload::Blank), [1]);
    assert_eq!(bytes_of(&EntryPayload::Normal(Bytes::from_static(&[9, 8]).into())), [2, 9, 8]);
    let member = Member { address: "a:1".to_owned(), incarnation: 5 };
    let one = Membership::new(vec![BTreeSet::from([3])], BTreeMap::from([(3, member)]));
    let mut expected = vec![3, 1, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0];
    expected.extend([5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0]);
    expected.extend(b"a:1");
    assert_eq!(bytes_of(&EntryPayload::Membership(one)), expected);
}

#[test]
fn log_ids_and_votes_come_back_one_after_the_other() {
    let mut out = Vec::new();
    let id = LogId::new(CommittedLeaderId::new(u64::MAX, 3), u64::MAX);
    let vote = Vote { leader_id: LeaderId::new(9, u64::MAX), committed: true };
    put_vote(vote, &mut out);
    put_log_id(id, &mut out);
    let mut input = Input::new(out.into());
    assert_eq!(take_vote(&mut input), Ok(vote));
    assert_eq!(take_log_id(&mut input), Ok(id));
    assert_eq!(input.end(), Ok(()));
}

#[test]
fn what_the_encoder_would_not_write_is_refused() {
    let refused = |bytes: Vec<u8>| take_payload(bytes.into()).err();
    assert_eq!(refused(vec![]), Some(CodecError::Short { wanted: 1, left: 0 }));
    assert_eq!(refused(vec![0]), Some(CodecError::Tag { found: 0 }));
    assert_eq!(refused(vec![4]), Some(CodecError::Tag { found: 4 }));
    assert_eq!(refused(vec![1, 0]), Some(CodecError::Long { left: 1 }));
    // A count of four billion configurations allocates nothing.
    assert_eq!(refused(vec![3, 255, 255, 255, 255]), Some(CodecError::Short { wanted: 17_179_869_180, left: 0 }));
    let voter = [&[3, 1, 0, 0, 0, 1, 0, 0, 0][..], &7_u64.to_le_bytes(), &[0; 4]].concat();
    assert_eq!(refused(voter), Some(CodecError::Voter { id: 7 }));
    let twice = [&[3, 1, 0, 0, 0, 2, 0, 0, 0][..], &[7; 16], &[0; 4]].concat();
    assert_eq!(refused(twice), Some(CodecError::Order));
    let mut input = Input::new(Bytes::from_static(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]));
    assert_eq!(take_vote(&mut input), Err(CodecError::Flag { found: 2 }));
}

#[test]
fn no_bytes_make_the_decoder_panic_and_what_it_takes_is_what_it_would_write() {
    let mut random = StdRng::seed_from_u64(4);
    let seeds = payloads().iter().map(bytes_of).collect::<Vec<_>>();
    let mut taken = 0;
    for round in 0..50_000 {
        let mut bytes = seeds[round % seeds.len()].clone();
        for _ in 0..random.gen_range(0..3) {
            let at = random.gen_range(0..bytes.len());
            bytes[at] = random.r#gen();
        }
        bytes.truncate(random.gen_range(0..=bytes.len() * 4).min(bytes.len()));
        if let Ok(payload) = take_payload(bytes.clone().into()) {
            assert_eq!(bytes_of(&payload), bytes);
            taken += 1;
        }
    }
    assert!(taken > 2_500, "only {taken} of the mutated payloads were taken at all");
}
