//! The end of derived limits: deletes, idle sweeps, pauses of deleted overrides, and the totals.

use earmark_core::{
    Command, Config, DeleteLimit, LimitOutcome, LimitStatus, NamespaceId, Operation, Outcome, PAUSES_NAMESPACE_MAX,
    PauseLimit, PauseOutcome, TxId, Write, WriteError, WriteId, WriteOutcome,
};

use super::templates::put;
use crate::support::step::key;
use crate::support::test_book::{TestBook, rolling};

fn delete(test: &mut TestBook, text: &str) -> LimitOutcome {
    let command = DeleteLimit { namespace: test.namespace, key: &key(text), expected_revision: None };
    match test.book.apply(test.now(), Command::DeleteLimit(command)) {
        Outcome::Limit(outcome) => outcome,
        other => panic!("no answer to a delete: {other:?}"),
    }
}

/// A derived limit that owes 90 and holds nothing.
fn indebted() -> TestBook {
    let mut test = TestBook::new();
    put(&mut test, "user:{user}:tpm", 10);
    let lease = test.take(&[("user:1:tpm", 10)]);
    test.complete(lease, &[("user:1:tpm", 100)]);
    test
}

/// The debt of a derived limit pinned it for ever: nothing pays it, and a limit with debt is not evicted.
#[test]
fn a_delete_clears_the_debt_of_a_derived_limit_that_holds_nothing() {
    let mut test = indebted();
    assert_eq!((test.usage("user:1:tpm").debt, test.book.totals(test.now()).debt), (90, 90));
    assert_eq!(delete(&mut test, "user:1:tpm"), LimitOutcome::NotFound, "its window is not over");
    test.advance(60_000);
    let deleted = delete(&mut test, "user:1:tpm");
    assert!(matches!(deleted, LimitOutcome::Changed { status: LimitStatus::Deleted, .. }), "{deleted:?}");
    assert_eq!(test.book.resolve(test.namespace, &key("user:1:tpm")), None, "it is freed at once");
    let totals = test.book.totals(test.now());
    assert_eq!((totals.limits, totals.debt), (0, 0));
    let usage = test.book.find_usage(test.now(), test.namespace, &key("user:1:tpm")).unwrap();
    assert_eq!((usage.debt, usage.available), (0, 10));
    assert_eq!(delete(&mut test, "user:1:tpm"), LimitOutcome::NotFound);
}

#[test]
fn a_refused_transaction_keeps_the_debt_and_shows_no_revision_twice() {
    let mut test = indebted();
    test.advance(60_000);
    test.put_active(rolling("rpm", 5, 60));
    let write = |sequence, operations| Write {
        namespace: NamespaceId::DEFAULT,
        vault: None,
        id: WriteId::Sequence { client: "billing".parse().unwrap(), sequence },
        operations,
        actor: "user:7".parse().unwrap(),
        tx_id: TxId(7),
        log_index: 1,
    };
    let refused = write(
        1,
        vec![
            Operation::DeleteLimit { key: key("user:1:tpm"), expected_revision: None },
            Operation::PutLimit { definition: rolling("rpm", 6, 60), expected_revision: None },
            Operation::PutLimit { definition: rolling("rpm", 7, 60), expected_revision: Some(1) },
        ],
    );
    let Outcome::Write(WriteOutcome::Refused(WriteError::ConditionFailed { operation: 2, revision: shown })) =
        test.book.apply(test.now(), Command::Write(&refused))
    else {
        panic!("the third operation expects another revision");
    };
    assert_eq!(test.usage("user:1:tpm").debt, 90);
    let LimitOutcome::Changed { revision, .. } = test.put(rolling("rpm", 8, 60)) else { panic!("a put is allowed") };
    assert!(revision > shown, "{revision} was shown already: {shown}");
}

/// An idle node sent no ticks, so limits that may be evicted stayed until the next command.
#[test]
fn limits_that_may_be_evicted_are_due() {
    let mut test = indebted();
    test.advance(60_000);
    while test.book.is_due(test.now()) {
        test.tick();
    }
    assert!(test.book.resolve(test.namespace, &key("user:1:tpm")).is_some(), "its debt keeps it");
    let lease = test.take(&[("user:2:tpm", 1)]);
    test.complete(lease, &[]);
    let retention_ms = Config::default().retention_ms;
    test.advance(2 * retention_ms + 60_000);
    assert!(test.book.is_due(test.now()));
    let mut ticks = 0;
    while test.book.is_due(test.now()) {
        test.tick();
        ticks += 1;
        assert!(ticks < 100, "an idle Book is due for ever");
    }
    assert_eq!(test.book.resolve(test.namespace, &key("user:2:tpm")), None);
}

#[test]
fn a_paused_override_that_is_deleted_shows_its_pause() {
    let mut test = TestBook::new();
    put(&mut test, "user:{user}:rpm", 10);
    test.put_active(rolling("user:1:rpm", 99, 60));
    let PauseOutcome::Paused { until } = test.pause("user:1:rpm", 30_000) else { panic!("it is paused") };
    test.delete("user:1:rpm");
    let info = test.book.find_limit(test.now(), test.namespace, &key("user:1:rpm")).unwrap();
    assert_eq!(info.template.map(|key| key.to_string()).as_deref(), Some("user:{user}:rpm"));
    assert_eq!(info.pause.map(|pause| pause.until), Some(until));
    let usage = test.book.find_usage(test.now(), test.namespace, &key("user:1:rpm")).unwrap();
    assert_eq!((usage.paused_until, usage.capacity), (Some(until), 10));
}

#[test]
fn one_namespace_cannot_use_up_the_pauses_of_all() {
    let mut test = TestBook::new();
    put(&mut test, "user:{user}:rpm", 10);
    let pause = |test: &mut TestBook, text: &str, for_ms| {
        let (namespace, key) = (test.namespace, key(text));
        let command = PauseLimit { namespace, key: &key, for_ms, reason: "", only_lengthen: false };
        match test.book.apply(test.now(), Command::PauseLimit(command)) {
            Outcome::Pause(outcome) => outcome,
            other => panic!("no answer to a pause: {other:?}"),
        }
    };
    for user in 0..PAUSES_NAMESPACE_MAX {
        let outcome = pause(&mut test, &format!("user:{user}:rpm"), 60_000);
        assert!(matches!(outcome, PauseOutcome::Paused { .. }), "{user}: {outcome:?}");
    }
    assert_eq!(pause(&mut test, "user:one-more:rpm", 60_000), PauseOutcome::TooManyInNamespace);
    assert_eq!(test.book.resolve(test.namespace, &key("user:one-more:rpm")), None, "nothing is derived for it");
    assert!(matches!(pause(&mut test, "user:7:rpm", 90_000), PauseOutcome::Paused { .. }), "it is paused already");
    assert_eq!(pause(&mut test, "user:7:rpm", 0), PauseOutcome::Resumed);
    assert!(matches!(pause(&mut test, "user:one-more:rpm", 60_000), PauseOutcome::Paused { .. }));
}
