use super::*;
use crate::book::{OperationResult, TxId};
use crate::time::Moment;

const START: UnixMs = UnixMs::new(1_750_000_000_000);

fn key(namespace: u16, number: u32) -> UsedKey {
    let mut hash = [0; 16];
    hash[..4].copy_from_slice(&number.to_le_bytes());
    UsedKey { namespace: NamespaceId(namespace), hash: KeyHash(hash) }
}

fn actor() -> Actor {
    Actor::new("client:billing").unwrap()
}

fn answer(at: UnixMs, operations: usize) -> KeptAnswer {
    let receipt = Receipt {
        tx_id: TxId(1),
        sequence: None,
        log_index: 1,
        committed_at: Moment { log: at, wall: at },
        actor: actor(),
        results: vec![OperationResult::Entry; operations],
    };
    Kept { content: ContentHash::default(), at, result: Arc::new(receipt) }
}

fn verdict(keys: &IdempotencyKeys, now: UnixMs, key: UsedKey) -> &'static str {
    match keys.judge(now, key, (ContentHash::default(), &actor()), u64::MAX) {
        KeyVerdict::Committed(_) => "committed",
        KeyVerdict::Reused => "reused",
        KeyVerdict::Forgotten => "forgotten",
        KeyVerdict::TooMany => "too many",
        KeyVerdict::New => "new",
    }
}

#[test]
fn beyond_the_bound_the_oldest_answers_are_dropped_and_their_keys_stay_used() {
    let mut keys = IdempotencyKeys::new(1);
    let fitting = (KEY_RESULTS_MAX / 256) as u32;
    for number in 0..fitting {
        keys.commit(key(0, number), answer(START, 255));
    }
    assert_eq!((keys.weight, verdict(&keys, START, key(0, 0))), (KEY_RESULTS_MAX, "committed"));
    keys.commit(key(0, fitting), answer(START, 0));
    assert_eq!(verdict(&keys, START, key(0, 0)), "forgotten");
    assert_eq!(verdict(&keys, START, key(0, 1)), "committed");
    assert_eq!(verdict(&keys, START, key(0, fitting)), "committed");
    assert_eq!(verdict(&keys, START, key(1, 0)), "new", "another namespace");
    assert!(keys.weight <= KEY_RESULTS_MAX);
}

#[test]
fn a_busy_namespace_pushes_out_its_own_answers_only() {
    let mut keys = IdempotencyKeys::new(1);
    let fitting = (KEY_RESULTS_MAX / 256) as u32;
    for number in 0..fitting / 4 {
        keys.commit(key(1, number), answer(START, 255));
    }
    for number in 0..2 * fitting {
        keys.commit(key(0, number), answer(START, 255));
    }
    assert!((0..fitting / 4).all(|number| verdict(&keys, START, key(1, number)) == "committed"));
    let kept = (0..2 * fitting).filter(|number| verdict(&keys, START, key(0, *number)) == "committed").count();
    assert_eq!((kept, keys.weight), ((fitting - fitting / 4) as usize, KEY_RESULTS_MAX));
    // A third one gets its share from the one that has the most.
    for number in 0..fitting / 2 {
        keys.commit(key(2, number), answer(START, 255));
    }
    assert!((0..fitting / 4).all(|number| verdict(&keys, START, key(1, number)) == "committed"));
    let later = START.plus_ms(KEY_RESULTS_MS);
    while keys.is_due(later) {
        keys.forget(later);
    }
    assert!(keys.state.answers.is_empty());
    assert!(keys.by_weight.is_empty());
    assert_eq!(keys.weight, 0);
}

#[test]
fn an_answer_is_forgotten_after_a_day_whether_or_not_it_was_deleted() {
    let mut keys = IdempotencyKeys::new(1);
    for number in 0..10 {
        keys.commit(key(0, number), answer(START.plus_ms(number.into()), 1));
    }
    let later = START.plus_ms(KEY_RESULTS_MS);
    for now in [later.minus_ms(1), later] {
        let kept = if now < later { "committed" } else { "forgotten" };
        assert_eq!((verdict(&keys, now, key(0, 0)), verdict(&keys, now, key(0, 1))), (kept, "committed"));
    }
    assert!(keys.is_due(later));
    keys.forget(later.plus_ms(20));
    assert_eq!(keys.state.answers.len(), 10 - FORGET_STEPS);
    assert_eq!(verdict(&keys, later, key(0, 9)), "committed", "the others keep their answers");
    while keys.is_due(later.plus_ms(20)) {
        keys.forget(later.plus_ms(20));
    }
    assert_eq!((keys.weight, keys.state.answers.len(), keys.count_of(NamespaceId(0))), (0, 0, 10));
}
