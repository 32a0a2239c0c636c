//! Policies: one document per namespace, with revisions.

use earmark_core::{
    Actor, Command, Config, JournalRecord, NamespaceId, Outcome, POLICY_BYTES_MAX, PolicyOutcome, Principal, PutPolicy,
    QuotaKind, SetQuotas,
};

use crate::support::snapshot::{restore, snapshot};
use crate::support::step::Step;
use crate::support::test_book::TestBook;

/// A Book with the namespace `team`, which the returned TestBook uses.
fn team() -> TestBook {
    let mut test = TestBook::with(Config::default());
    test.namespace = test.open("team");
    test
}

fn put(test: &mut TestBook, text: &str, expected_revision: Option<u64>) -> PolicyOutcome {
    let put = PutPolicy { namespace: "team".parse().unwrap(), text: text.into(), expected_revision };
    match test.apply(&Step::PutPolicy(put)) {
        Outcome::Policy(outcome) => outcome,
        other => panic!("no answer to a policy: {other:?}"),
    }
}

fn revision(outcome: PolicyOutcome) -> u64 {
    match outcome {
        PolicyOutcome::Changed { revision } => revision,
        other => panic!("refused: {other:?}"),
    }
}

fn text(test: &TestBook, revision: Option<u64>) -> Option<String> {
    test.book.policy(test.namespace, revision).map(|policy| policy.text.to_string())
}

#[test]
fn a_policy_is_replaced_only_at_the_expected_revision() {
    let mut test = team();
    assert_eq!(text(&test, None), None);
    assert_eq!(put(&mut test, "a", Some(7)), PolicyOutcome::RevisionDiffers { revision: 0 });
    let first = revision(put(&mut test, "a", Some(0)));
    assert_eq!(put(&mut test, "b", Some(0)), PolicyOutcome::RevisionDiffers { revision: first });
    let second = revision(put(&mut test, "b", Some(first)));
    assert!(second > first);
    assert_eq!(put(&mut test, "b", None), PolicyOutcome::Changed { revision: second }, "the same text is no revision");
    assert_eq!((text(&test, None), text(&test, Some(first))), (Some("b".into()), Some("a".into())));
    assert_eq!(text(&test, Some(second + 1)), None);
    assert_eq!(test.book.policy(NamespaceId::DEFAULT, None), None, "another namespace has its own");
}

#[test]
fn the_last_32_revisions_are_kept_as_far_as_the_quota_allows() {
    let mut test = team();
    let revisions: Vec<u64> = (0..40).map(|n| revision(put(&mut test, &format!("{n:010}"), None))).collect();
    let kept = |test: &TestBook| revisions.iter().filter(|revision| text(test, Some(**revision)).is_some()).count();
    assert_eq!(kept(&test), 32);
    assert_eq!(text(&test, Some(revisions[8])), Some("0000000008".into()));
    assert_eq!(text(&test, Some(revisions[7])), None);

    let quotas = SetQuotas { namespace: "team".parse().unwrap(), quotas: [(QuotaKind::PolicyBytes, 50)].into() };
    test.apply(&Step::SetQuotas(quotas));
    assert_eq!(kept(&test), 32, "a lower quota removes nothing");
    let newest = revision(put(&mut test, "0123456789", None));
    assert_eq!((kept(&test), text(&test, Some(newest))), (4, Some("0123456789".into())));
    assert_eq!(put(&mut test, &"x".repeat(51), None), PolicyOutcome::QuotaExceeded(QuotaKind::PolicyBytes));
    assert_eq!(text(&test, None), Some("0123456789".into()));
}

#[test]
fn the_largest_policies_survive_a_snapshot_and_larger_ones_are_refused() {
    let mut test = team();
    let large = |letter: &str| letter.repeat(POLICY_BYTES_MAX);
    assert_eq!(put(&mut test, &(large("a") + "a"), None), PolicyOutcome::TooLarge);
    for letter in ["a", "b", "c", "", "d"] {
        revision(put(&mut test, &large(letter), None));
    }
    let bytes = snapshot(&mut test.book);
    let mut again = restore(&bytes, 1 << 20, 7).unwrap();
    assert_eq!(again.policy(test.namespace, None), test.book.policy(test.namespace, None));
    assert_eq!(again.quotas(test.now(), test.namespace), test.book.quotas(test.now(), test.namespace));
    assert_eq!(snapshot(&mut again), bytes);
}

#[test]
fn a_policy_opens_its_namespace_and_is_in_the_journal_with_its_actor() {
    let mut test = team();
    let put = PutPolicy { namespace: "new".parse().unwrap(), text: "x".into(), expected_revision: None };
    let user = Principal::Actor(Actor::new("user:ann").unwrap());
    let _before = test.book.drain_journal();
    test.book.apply_as(test.now(), &user, Command::PutPolicy(&put));
    let namespace = test.book.namespace(&put.namespace).unwrap();
    let records = test.book.drain_journal();
    let [JournalRecord::Policy(entry)] = records.as_slice() else { panic!("not recorded: {records:?}") };
    assert_eq!((entry.namespace, entry.old, entry.bytes, entry.actor.as_str()), (namespace, 0, 1, "user:ann"));
    assert_eq!(Some(entry.revision), test.book.policy(namespace, None).map(|policy| policy.revision));
    let mut bytes = Vec::new();
    records[0].encode(&mut bytes);
    assert_eq!(JournalRecord::decode(&bytes).as_ref(), Ok(&records[0]));
}
