//! A paused limit refuses new reserves for a time, without trace.

use earmark_core::{
    Book, Command, Definition, JournalRecord, LimitKey, LimitOutcome, LimitStatus, NamespaceId, PAUSE_MS_MAX,
    PAUSE_REASON_BYTES_MAX, PauseLimit, PauseOutcome, Principal, PutTemplate, ReserveOutcome, Template,
};

use crate::support::snapshot::restored;
use crate::support::step::key;
use crate::support::test_book::{START, TestBook, calendar, concurrency, created, exists, rolling};

fn paused(requirement: usize, retry_after_ms: u64) -> ReserveOutcome {
    ReserveOutcome::LimitPaused { requirement, retry_after_ms }
}

#[test]
fn a_paused_limit_refuses_new_leases_with_the_rest_of_the_pause_and_leaves_no_trace() {
    let mut test = TestBook::new();
    test.put_active(rolling("rpm", 10, 60));
    test.put_active(rolling("tpm", 10, 60));
    let before = test.take(&[("rpm", 1)]);
    assert_eq!(test.pause("rpm", 5_000), PauseOutcome::Paused { until: START.plus_ms(5_000) });
    test.advance(1_200);
    let lease = test.lease();
    assert_eq!(test.reserve(lease, &[("tpm", 1), ("rpm", 1)]), paused(1, 3_800));
    assert_eq!((test.reserved("rpm"), test.reserved("tpm"), test.state(lease)), (1, 0, None));
    // A lease from before the pause is repeated and settles as usual.
    assert_eq!(test.reserve(before, &[("rpm", 1)]), exists(START));
    test.settle(before, &[("rpm", 2)]);
    test.take(&[("tpm", 1)]);
    test.advance(3_799);
    assert_eq!(test.reserve(lease, &[("tpm", 1), ("rpm", 1)]), paused(1, 1));
    test.advance(1);
    assert_eq!(test.reserve(lease, &[("tpm", 1), ("rpm", 1)]), created(test.now()));
}

#[test]
fn a_second_pause_replaces_the_first_and_zero_resumes() {
    let mut test = TestBook::new();
    test.put_active(concurrency("slots", 1, 60));
    test.pause("slots", 60_000);
    assert_eq!(test.pause("slots", 1_000), PauseOutcome::Paused { until: START.plus_ms(1_000) });
    let id = test.id("slots");
    let pause = test.book.limit(test.now(), id).unwrap().pause.unwrap();
    assert_eq!((pause.until, &*pause.reason), (START.plus_ms(1_000), "429"));
    assert_eq!(test.usage("slots").paused_until, Some(START.plus_ms(1_000)));
    assert_eq!(test.book.totals(test.now()).paused, 1);
    assert_eq!(test.pause("slots", 0), PauseOutcome::Resumed);
    assert_eq!(test.pause("slots", 0), PauseOutcome::Resumed);
    assert_eq!((test.usage("slots").paused_until, test.book.totals(test.now()).paused), (None, 0));
    test.take(&[("slots", 1)]);
}

#[test]
fn a_gateway_can_only_lengthen_a_pause() {
    let mut test = TestBook::new();
    test.put_active(rolling("rpm", 1, 60));
    let until = START.plus_ms(30_000);
    assert_eq!(test.pause_if("rpm", 30_000, true), PauseOutcome::Paused { until });
    assert_eq!(test.pause_if("rpm", 1_000, true), PauseOutcome::Paused { until });
    assert_eq!(test.pause_if("rpm", 0, true), PauseOutcome::Paused { until });
    assert_eq!(test.usage("rpm").paused_until, Some(until));
    let longer = START.plus_ms(40_000);
    assert_eq!(test.pause_if("rpm", 40_000, true), PauseOutcome::Paused { until: longer });
    test.advance(40_000);
    assert_eq!(test.pause_if("rpm", 0, true), PauseOutcome::Resumed);
}

#[test]
fn a_pause_is_bounded_and_needs_a_limit() {
    let mut test = TestBook::new();
    test.put_active(rolling("rpm", 1, 60));
    assert_eq!(test.pause("rpm", PAUSE_MS_MAX + 1), PauseOutcome::TooLong { found: PAUSE_MS_MAX + 1 });
    assert_eq!(test.pause("nothing", 1), PauseOutcome::NotFound);
    let reason = "r".repeat(PAUSE_REASON_BYTES_MAX + 1);
    let (namespace, rpm) = (NamespaceId::DEFAULT, key("rpm"));
    let command = PauseLimit { namespace, key: &rpm, for_ms: 1, reason: &reason, only_lengthen: false };
    let outcome = test.book.apply(START, Command::PauseLimit(command));
    assert_eq!(outcome, earmark_core::Outcome::Pause(PauseOutcome::ReasonTooLong { found: reason.len() }));
    assert!(matches!(test.pause("rpm", PAUSE_MS_MAX), PauseOutcome::Paused { .. }));
    assert_eq!(test.usage("rpm").status, LimitStatus::Active);
}

#[test]
fn the_first_key_in_the_way_is_named_whether_paused_decreasing_or_unknown() {
    let mut test = TestBook::new();
    test.put_active(rolling("b", 10, 60));
    test.put_active(rolling("c", 10, 60));
    test.take(&[("b", 10)]);
    test.put(rolling("b", 5, 60));
    test.pause("c", 1_000);
    let lease = test.lease();
    assert!(matches!(
        test.reserve(lease, &[("c", 1), ("b", 1)]),
        ReserveOutcome::LimitDecreasing { requirement: 1, .. }
    ));
    assert_eq!(test.reserve(lease, &[("x", 1), ("c", 1)]), paused(1, 1_000));
    // The pause of a decreasing limit ends at a known time.
    test.pause("b", 9_000);
    assert_eq!(test.reserve(lease, &[("c", 1), ("b", 1)]), paused(1, 9_000));
}

#[test]
fn a_pause_belongs_to_the_key_and_survives_a_delete_and_a_put() {
    let mut test = TestBook::new();
    test.put_active(rolling("rpm", 10, 60));
    test.pause("rpm", 90_000);
    test.delete("rpm");
    assert_eq!(test.pause("rpm", 0), PauseOutcome::NotFound);
    assert!(matches!(test.put(rolling("rpm", 10, 60)), LimitOutcome::Changed { .. }));
    let lease = test.lease();
    assert_eq!(test.reserve(lease, &[("rpm", 1)]), paused(0, 90_000));
    assert_eq!(test.pause("rpm", 0), PauseOutcome::Resumed);
    test.take(&[("rpm", 1)]);
    // Once the pause has ended, the slot of a deleted limit is free again.
    test.pause("rpm", 1_000);
    test.delete("rpm");
    test.advance(3_600_000);
    for _ in 0..4 {
        test.tick();
    }
    assert_eq!(test.book.resolve(test.namespace, &key("rpm")), None);
}

#[test]
fn a_pause_of_a_key_that_only_matches_a_template_derives_it_and_keeps_it() {
    let mut test = TestBook::new();
    let template = Definition { key: LimitKey::pattern("user:{user}:rpm").unwrap(), ..rolling("x", 10, 60) };
    let template = Template::new(template).unwrap();
    let namespace = test.namespace;
    let put = PutTemplate { namespace, template: &template, expected_revision: None };
    test.book.apply(START, Command::PutTemplate(put));
    assert_eq!(test.pause("user:1:rpm", 0), PauseOutcome::Resumed);
    assert_eq!(test.book.resolve(namespace, &key("user:1:rpm")), None, "a resume derives nothing");
    assert!(matches!(test.pause("user:1:rpm", PAUSE_MS_MAX), PauseOutcome::Paused { .. }));
    let lease = test.lease();
    assert_eq!(test.reserve(lease, &[("user:1:rpm", 1)]), paused(0, PAUSE_MS_MAX));
    // Idle for longer than the retention, and still paused.
    test.advance(PAUSE_MS_MAX - 1);
    test.tick();
    let lease = test.lease();
    assert_eq!(test.reserve(lease, &[("user:1:rpm", 1)]), paused(0, 1));
    test.advance(3_600_000);
    for _ in 0..4 {
        test.tick();
    }
    assert_eq!(test.book.resolve(namespace, &key("user:1:rpm")), None, "it is evicted after its pause");
    assert_eq!(test.pause("other:1:rpm", 1), PauseOutcome::NotFound);
}

#[test]
fn a_snapshot_keeps_pauses_and_ended_ones_are_forgotten() {
    let mut test = TestBook::new();
    for number in 0..20 {
        test.put_active(calendar(&format!("k{number}"), 1, earmark_core::Period::Day, 0));
        test.pause(&format!("k{number}"), 1_000 + number);
    }
    let mut book: Book = restored(&mut test.book);
    for number in [0, 7, 19] {
        let id = test.id(&format!("k{number}"));
        assert_eq!(book.limit(test.now(), id), test.book.limit(test.now(), id));
        assert!(book.limit(test.now(), id).unwrap().pause.is_some());
    }
    assert_eq!(book.totals(START.plus_ms(1_010)).paused, 9);
    for _ in 0..10 {
        book.apply(START.plus_ms(2_000), Command::Tick);
    }
    assert_eq!(book.totals(START).paused, 0, "ended pauses are removed a few per command");
}

#[test]
fn pauses_are_recorded_with_actor_and_reason() {
    let mut test = TestBook::new();
    test.put_active(rolling("rpm", 1, 60));
    let (namespace, rpm) = (NamespaceId::DEFAULT, key("rpm"));
    let by = Principal::Actor("user:7".parse().unwrap());
    for for_ms in [1_000, 0] {
        let command = PauseLimit { namespace, key: &rpm, for_ms, reason: "provider said 429", only_lengthen: false };
        test.book.apply_as(START, &by, Command::PauseLimit(command));
    }
    let records = test.book.drain_journal();
    let entries: Vec<_> = records
        .iter()
        .map(|record| match record {
            JournalRecord::Pause(pause) => pause,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(entries.iter().map(|entry| entry.until).collect::<Vec<_>>(), [Some(START.plus_ms(1_000)), None]);
    for (record, entry) in records.iter().zip(&entries) {
        assert_eq!((entry.key.as_str(), entry.reason.as_str()), ("rpm", "provider said 429"));
        assert_eq!(entry.actor.as_str(), "user:7");
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        assert_eq!(JournalRecord::decode(&bytes).as_ref(), Ok(record));
    }
}
