//! Templates: limits for keys that nobody defines.

use earmark_core::{
    Command, Definition, JournalRecord, Kind, LimitKey, NamespaceId, Outcome, Principal, PutTemplate, QuotaKind,
    Restore, SetQuotas, TEMPLATES_MAX, Template, TemplateOutcome,
};

use crate::support::step::{Step, key};
use crate::support::test_book::{TestBook, rolling};

fn pattern(text: &str) -> LimitKey {
    LimitKey::pattern(text).unwrap()
}

fn template(text: &str, capacity: u64) -> Template {
    Template::new(Definition { key: pattern(text), ..rolling("any", capacity, 60) }).unwrap()
}

fn put_if(test: &mut TestBook, template: Template, expected_revision: Option<u64>) -> TemplateOutcome {
    let step = Step::PutTemplate { namespace: test.namespace, template: Box::new(template), expected_revision };
    match test.apply(&step) {
        Outcome::Template(outcome) => outcome,
        other => panic!("no answer to a put: {other:?}"),
    }
}

fn put(test: &mut TestBook, text: &str, capacity: u64) -> u64 {
    match put_if(test, template(text, capacity), None) {
        TemplateOutcome::Changed { revision } => revision,
        other => panic!("{text}: {other:?}"),
    }
}

fn delete_if(test: &mut TestBook, text: &str, expected_revision: Option<u64>) -> TemplateOutcome {
    let step = Step::DeleteTemplate { namespace: test.namespace, key: pattern(text), expected_revision };
    match test.apply(&step) {
        Outcome::Template(outcome) => outcome,
        other => panic!("no answer to a delete: {other:?}"),
    }
}

fn keys(test: &TestBook) -> Vec<String> {
    test.book.templates(test.namespace).iter().map(|info| info.definition.key.to_string()).collect()
}

fn restored(test: &mut TestBook) -> Vec<u8> {
    let bytes: Vec<u8> = test.book.freeze().encode().flatten().collect();
    let mut restore = Restore::new(9);
    restore.feed(&bytes).unwrap();
    test.book = restore.finish().unwrap();
    bytes
}

#[test]
fn templates_are_listed_by_key_and_survive_a_snapshot() {
    let mut test = TestBook::new();
    for text in ["user:{user}:rpm", "tenant:{tenant}:rpm", "{kind}:{user}:rpm"] {
        put(&mut test, text, 5);
    }
    assert_eq!(delete_if(&mut test, "tenant:{tenant}:rpm", None), TemplateOutcome::Changed { revision: 4 });
    let listed = test.book.templates(test.namespace);
    assert_eq!(keys(&test), ["user:{user}:rpm", "{kind}:{user}:rpm"]);
    assert_eq!(test.book.quotas(test.now(), test.namespace)[2].used, 2);
    let bytes = restored(&mut test);
    assert_eq!(test.book.templates(test.namespace), listed);
    assert_eq!(restored(&mut test), bytes);
    assert_eq!(put(&mut test, "a:{b}", 1), 5, "revisions go on after a restore");
}

#[test]
fn two_templates_that_differ_in_names_of_placeholders_only_are_refused() {
    let mut test = TestBook::new();
    put(&mut test, "user:{user}:rpm", 5);
    let other = TemplateOutcome::DiffersInNamesOnly { key: pattern("user:{user}:rpm") };
    assert_eq!(put_if(&mut test, template("user:{id}:rpm", 6), None), other);
    assert_eq!(delete_if(&mut test, "user:{id}:rpm", None), TemplateOutcome::NotFound);
    assert_eq!(keys(&test), ["user:{user}:rpm"]);
    assert!(matches!(delete_if(&mut test, "user:{user}:rpm", None), TemplateOutcome::Changed { .. }));
    put(&mut test, "user:{id}:rpm", 6);
}

#[test]
fn a_put_and_a_delete_hold_only_for_the_expected_revision() {
    let mut test = TestBook::new();
    let of = |capacity| template("user:{user}", capacity);
    let differs = |revision| TemplateOutcome::RevisionDiffers { revision };
    assert_eq!(put_if(&mut test, of(5), Some(1)), differs(0));
    assert_eq!(put_if(&mut test, of(5), Some(0)), TemplateOutcome::Changed { revision: 1 });
    assert_eq!(put_if(&mut test, of(5), Some(1)), TemplateOutcome::Changed { revision: 1 }, "nothing changed");
    assert_eq!(put_if(&mut test, of(6), Some(0)), differs(1));
    assert_eq!(put_if(&mut test, of(6), Some(1)), TemplateOutcome::Changed { revision: 2 });
    assert_eq!(delete_if(&mut test, "user:{user}", Some(1)), differs(2));
    assert_eq!(delete_if(&mut test, "user:{user}", Some(2)), TemplateOutcome::Changed { revision: 3 });
    assert_eq!(delete_if(&mut test, "user:{user}", None), TemplateOutcome::NotFound);
    assert_eq!(put_if(&mut test, of(6), Some(2)), differs(0), "a revision never comes back");
    assert_eq!(put_if(&mut test, of(6), Some(0)), TemplateOutcome::Changed { revision: 4 });
}

#[test]
fn a_template_keeps_its_kind() {
    let mut test = TestBook::new();
    put(&mut test, "user:{user}", 5);
    let slots = Kind::Concurrency { timeout_seconds: 60 };
    let other = Template::new(Definition::new(pattern("user:{user}"), slots, 5)).unwrap();
    assert_eq!(put_if(&mut test, other.clone(), None), TemplateOutcome::KindDiffers);
    delete_if(&mut test, "user:{user}", None);
    assert!(matches!(put_if(&mut test, other, None), TemplateOutcome::Changed { .. }));
}

#[test]
fn a_namespace_has_as_many_templates_as_its_quota_and_never_more_than_1024() {
    let mut test = TestBook::new();
    let full = TemplateOutcome::QuotaExceeded(QuotaKind::Templates);
    let set = |quota| SetQuotas {
        namespace: "default".parse().unwrap(),
        quotas: [(QuotaKind::Templates, quota)].into_iter().collect(),
    };
    test.apply(&Step::SetQuotas(set(1)));
    put(&mut test, "t0:{user}", 5);
    assert_eq!(put_if(&mut test, template("t1:{user}", 5), None), full);
    put(&mut test, "t0:{user}", 6);
    test.apply(&Step::SetQuotas(set(1_000_000)));
    for number in 1..TEMPLATES_MAX {
        put(&mut test, &format!("t{number}:{{user}}"), 5);
    }
    assert_eq!(put_if(&mut test, template("more:{user}", 5), None), full);
    delete_if(&mut test, "t7:{user}", None);
    put(&mut test, "more:{user}", 5);
    restored(&mut test);
}

#[test]
fn a_change_of_a_template_is_recorded_with_its_actor_and_definitions() {
    let mut test = TestBook::new();
    let user = Principal::Actor("user:ann".parse().unwrap());
    let (namespace, first, second) = (NamespaceId::DEFAULT, template("user:{user}", 5), template("user:{user}", 6));
    for template in [&first, &first, &second] {
        let put = PutTemplate { namespace, template, expected_revision: None };
        test.book.apply_as(test.now(), &user, Command::PutTemplate(put));
    }
    test.namespace = NamespaceId(7);
    assert_eq!(put_if(&mut test, first.clone(), None), TemplateOutcome::UnknownNamespace);
    let records = test.book.drain_journal();
    let changes: Vec<_> = records
        .iter()
        .map(|record| {
            let JournalRecord::Template(entry) = record else { panic!("{record:?}") };
            let change = entry.edit.change();
            (change.old.map(|old| old.capacity), change.new.map(|new| new.capacity), entry.revision)
        })
        .collect();
    assert_eq!(changes, [(None, Some(5), 1), (Some(5), Some(6), 2)]);
    for record in records {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        assert_eq!(JournalRecord::decode(&bytes).unwrap(), record);
    }
}

#[test]
fn a_key_gets_its_definition_from_the_template_that_matches_best() {
    let mut test = TestBook::new();
    put(&mut test, "{kind}:{user}:rpm", 5);
    let revision = put(&mut test, "user:{user}:rpm", 6);
    let derived = test.book.derive(test.namespace, &key("user:u1:rpm")).unwrap();
    assert_eq!(derived, (rolling("user:u1:rpm", 6, 60), revision));
    assert_eq!(test.book.derive(test.namespace, &key("user:u1")), None);
}
