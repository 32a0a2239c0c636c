//! Writes with idempotency keys.

use std::sync::Arc;

use earmark_core::{
    Actor, IdempotencyKey, KEY_RESULTS_MS, NamespaceId, NamespaceName, Operation, Outcome, QuotaKind, Receipt,
    SetQuotas, TxId, Write, WriteError, WriteId, WriteOutcome,
};

use crate::support::bank::{issue, open};
use crate::support::step::Step;
use crate::support::test_book::TestBook;
use crate::support::writer::vault;

/// Sends a write with a key as `client:<who>`.
fn send(
    test: &mut TestBook,
    (key, who): (&str, &str),
    scope: Option<&str>,
    operations: Vec<Operation>,
) -> WriteOutcome {
    let write = Write {
        namespace: NamespaceId::DEFAULT,
        vault: scope.map(vault),
        id: WriteId::Key(IdempotencyKey::new(key).unwrap()),
        operations,
        tx_id: TxId(test.now().get().into()),
        log_index: 1,
        actor: Actor::new(&format!("client:{who}")).unwrap(),
    };
    match test.apply(&Step::Write(Box::new(write))) {
        Outcome::Write(outcome) => outcome,
        other => panic!("no answer to a write: {other:?}"),
    }
}

fn committed(outcome: WriteOutcome) -> Arc<Receipt> {
    match outcome {
        WriteOutcome::Committed(receipt) => receipt,
        other => panic!("not committed: {other:?}"),
    }
}

const HOOK: (&str, &str) = ("evt_1", "hook");

#[test]
fn a_repeat_gets_the_first_answer_for_a_day_and_never_has_a_second_effect() {
    let mut test = TestBook::new();
    let paid = || vec![open("acme"), issue("acme", "usd", 5)];
    let receipt = committed(send(&mut test, HOOK, Some("main"), paid()));
    assert_eq!(receipt.sequence, None);
    test.advance(KEY_RESULTS_MS - 1);
    assert_eq!(send(&mut test, HOOK, Some("main"), paid()), WriteOutcome::Exists(Arc::clone(&receipt)));
    test.advance(1);
    for _ in 0..3 {
        assert_eq!(send(&mut test, HOOK, Some("main"), paid()), WriteOutcome::Refused(WriteError::KeyCommitted));
        test.advance(25 * 60 * 60 * 1_000);
    }
    assert_eq!(WriteError::KeyCommitted.code(), "ALREADY_COMMITTED");
    let found = test.book.vault(NamespaceId::DEFAULT, &vault("main")).unwrap();
    let acme = test.book.account(found, &"acme".parse().unwrap()).unwrap().id;
    assert_eq!(test.book.balances(test.now(), acme)[0].available, 5);
}

#[test]
fn another_content_or_another_actor_is_refused_while_the_answer_is_kept() {
    let mut test = TestBook::new();
    committed(send(&mut test, HOOK, Some("main"), vec![open("acme")]));
    let reused = WriteOutcome::Refused(WriteError::KeyReused);
    assert_eq!(send(&mut test, HOOK, Some("main"), vec![open("other")]), reused);
    assert_eq!(send(&mut test, ("evt_1", "thief"), Some("main"), vec![open("acme")]), reused);
    test.advance(KEY_RESULTS_MS);
    let over = WriteOutcome::Refused(WriteError::KeyCommitted);
    assert_eq!(send(&mut test, ("evt_1", "thief"), Some("main"), vec![open("acme")]), over);
}

#[test]
fn a_refused_write_leaves_its_key_free_and_other_scopes_have_keys_of_their_own() {
    let mut test = TestBook::new();
    let early = send(&mut test, HOOK, Some("main"), vec![issue("acme", "usd", 5)]);
    assert_eq!(early, WriteOutcome::Refused(WriteError::AccountNotFound { operation: 0 }));
    committed(send(&mut test, HOOK, Some("main"), vec![open("acme")]));
    committed(send(&mut test, HOOK, None, vec![Operation::OpenVault { vault: vault("eu") }]));
    committed(send(&mut test, HOOK, Some("eu"), vec![open("acme")]));
}

#[test]
fn at_the_quota_new_keys_are_refused_and_used_ones_keep_their_answers() {
    let mut test = TestBook::new();
    let quotas = [(QuotaKind::IdempotencyKeys, 2)].into_iter().collect();
    test.apply(&Step::SetQuotas(SetQuotas { namespace: NamespaceName::new("default").unwrap(), quotas }));
    let first = committed(send(&mut test, ("a", "hook"), None, Vec::new()));
    committed(send(&mut test, ("b", "hook"), None, Vec::new()));
    let full = WriteOutcome::Refused(WriteError::TooManyKeys);
    assert_eq!(send(&mut test, ("c", "hook"), None, Vec::new()), full);
    assert_eq!(send(&mut test, ("a", "hook"), None, Vec::new()), WriteOutcome::Exists(first));
    let used = test.book.quotas(test.now(), NamespaceId::DEFAULT);
    let used = used.iter().find(|usage| usage.kind == QuotaKind::IdempotencyKeys).unwrap();
    assert_eq!((used.quota, used.used), (2, 2));
}
