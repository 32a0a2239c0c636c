//! Templates: limits for keys that nobody defines.

use earmark_core::{
    AccountName, Command, Config, CreditTerms, Definition, JournalRecord, Kind, LimitInfo, LimitKey, LimitOutcome,
    LimitRef, LimitStatus, NamespaceId, Operation, Outcome, Part, Principal, PutTemplate, QuotaKind, ReserveOutcome,
    Restore, SetQuotas, TEMPLATES_MAX, Template, TemplateOutcome, TxId, VaultName, Write, WriteError, WriteId,
    WriteOutcome,
};

use crate::support::bank::{Bank, asset, issue, open};
use crate::support::forge::replace;
use crate::support::step::{Step, key};
use crate::support::test_book::{TestBook, concurrency, rolling};

pub(super) fn pattern(text: &str) -> LimitKey {
    LimitKey::pattern(text).unwrap()
}

fn template(text: &str, capacity: u64) -> Template {
    Template::new(Definition { key: pattern(text), ..rolling("any", capacity, 60) }).unwrap()
}

/// Pays `{tenant}:usd` from the account of the tenant.
fn credit_template() -> Template {
    let terms = CreditTerms {
        timeout_seconds: 60,
        vault: VaultName::new("main").unwrap(),
        account: AccountName::pattern("{tenant}").unwrap(),
        asset: asset("usd"),
        revenue: AccountName::new("revenue").unwrap(),
        on_timeout: Default::default(),
    };
    Template::new(Definition::new(pattern("{tenant}:usd"), Kind::Credit(terms), 0)).unwrap()
}

pub(super) fn put_if(test: &mut TestBook, template: Template, expected_revision: Option<u64>) -> TemplateOutcome {
    let step = Step::PutTemplate { namespace: test.namespace, template: Box::new(template), expected_revision };
    match test.apply(&step) {
        Outcome::Template(outcome) => outcome,
        other => panic!("no answer to a put: {other:?}"),
    }
}

pub(super) fn put(test: &mut TestBook, text: &str, capacity: u64) -> u64 {
    match put_if(test, template(text, capacity), None) {
        TemplateOutcome::Changed { revision } => revision,
        other => panic!("{text}: {other:?}"),
    }
}

pub(super) fn delete_if(test: &mut TestBook, text: &str, expected_revision: Option<u64>) -> TemplateOutcome {
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

fn infos(test: &TestBook) -> Vec<(String, u64, Option<String>)> {
    let infos = test.book.limits(test.now(), test.namespace).into_iter();
    let shown = |info: LimitInfo| {
        (info.definition.key.to_string(), info.capacity, info.template.map(|template| template.to_string()))
    };
    infos.map(shown).collect()
}

fn usage(test: &TestBook, name: &str) -> Option<(u64, u64)> {
    let usage = test.book.find_usage(test.now(), test.namespace, &key(name))?;
    Some((usage.reserved, usage.capacity))
}

fn live(test: &TestBook) -> Vec<u64> {
    test.book.templates(test.namespace).iter().map(|info| info.live).collect()
}

fn derived(test: &TestBook) -> u64 {
    test.book.quotas(test.now(), test.namespace)[1].used
}

#[test]
fn an_allowed_reserve_derives_a_limit_of_its_own_for_each_key() {
    let mut test = TestBook::new();
    put(&mut test, "user:{user}:rpm", 2);
    test.take(&[("user:u1:rpm", 2)]);
    test.take(&[("user:u2:rpm", 1)]);
    let lease = test.lease();
    assert!(matches!(test.reserve(lease, &[("user:u1:rpm", 1)]), ReserveOutcome::Denied(_)));
    test.take(&[("user:u2:rpm", 1)]);
    let template = Some("user:{user}:rpm".to_owned());
    let expected = [("user:u1:rpm".to_owned(), 2, template.clone()), ("user:u2:rpm".to_owned(), 2, template)];
    assert_eq!(infos(&test), expected);
    assert_eq!((live(&test), derived(&test)), (vec![2], 2));
    assert_eq!(test.book.quotas(test.now(), test.namespace)[0].used, 0, "none is defined");
    let bytes = restored(&mut test);
    assert_eq!(infos(&test), expected);
    assert_eq!((live(&test), derived(&test)), (vec![2], 2));
    assert_eq!(restored(&mut test), bytes);
}

/// A caller that names random keys must not fill the table: only an allowed reserve may add to it.
#[test]
fn a_denied_or_refused_reserve_leaves_no_trace_of_its_keys() {
    let mut test = TestBook::new();
    put(&mut test, "user:{user}:rpm", 5);
    test.put_active(rolling("full", 1, 60));
    test.take(&[("full", 1)]);
    let before: Vec<u8> = test.book.freeze().encode().flatten().collect();
    for number in 0..1_000 {
        let name = format!("user:u{number}:rpm");
        let lease = test.lease();
        let unknown = test.reserve(lease, &[(&name, 1), ("unknown", 1)]);
        assert_eq!(unknown, ReserveOutcome::UnknownLimit { requirement: 1 });
    }
    assert_eq!(test.book.freeze().encode().flatten().collect::<Vec<u8>>(), before, "nothing is left");
    for number in 0..1_000 {
        let name = format!("user:u{number}:rpm");
        let lease = test.lease();
        assert!(matches!(test.reserve(lease, &[(&name, 1), ("full", 1)]), ReserveOutcome::Denied(_)));
        let lease = test.lease();
        let ReserveOutcome::Denied(denial) = test.reserve(lease, &[(&name, 6)]) else { panic!("allowed") };
        assert!(denial.never);
    }
    assert_eq!((derived(&test), live(&test), test.book.limit_count()), (0, vec![0], 1));
    test.take(&[("user:u1:rpm", 5)]);
    assert_eq!(test.book.limit_count(), 2);
}

#[test]
fn a_full_quota_or_table_refuses_new_keys_without_trace_and_known_keys_go_on() {
    let mut test = TestBook::with(Config { limits_max: 3, ..Config::default() });
    put(&mut test, "user:{user}", 5);
    let quota = SetQuotas {
        namespace: "default".parse().unwrap(),
        quotas: [(QuotaKind::DerivedLimits, 2)].into_iter().collect(),
    };
    test.apply(&Step::SetQuotas(quota.clone()));
    test.take(&[("user:u1", 1), ("user:u2", 1)]);
    let refused = ReserveOutcome::QuotaExceeded { kind: QuotaKind::DerivedLimits, retry_after_ms: 10_000 };
    let lease = test.lease();
    assert_eq!(test.reserve(lease, &[("user:u3", 1)]), refused);
    test.take(&[("user:u1", 1), ("user:u2", 1)]);
    test.apply(&Step::SetQuotas(SetQuotas { quotas: [(QuotaKind::DerivedLimits, 9)].into_iter().collect(), ..quota }));
    assert!(matches!(test.reserve(lease, &[("user:u3", 1)]), ReserveOutcome::Created { .. }), "it left no trace");
    let lease = test.lease();
    assert_eq!(test.reserve(lease, &[("user:u4", 1)]), refused, "the table is full");
    assert_eq!(derived(&test), 3);
}

#[test]
fn a_live_limit_takes_a_changed_template_with_its_next_decision() {
    let mut test = TestBook::new();
    put(&mut test, "user:{user}", 5);
    test.take(&[("user:u1", 4)]);
    test.take(&[("user:u2", 1)]);
    let second = put(&mut test, "user:{user}", 3);
    let revisions = |test: &TestBook| -> Vec<u64> {
        test.book.limits(test.now(), test.namespace).iter().map(|info| info.revision).collect()
    };
    assert_eq!(revisions(&test), [second, second], "they are shown with the definition of the template");
    let lease = test.lease();
    let decreasing = test.reserve(lease, &[("user:u1", 1)]);
    assert!(matches!(decreasing, ReserveOutcome::LimitDecreasing { requirement: 0, .. }), "{decreasing:?}");
    test.take(&[("user:u2", 2)]);
    let other = test.lease();
    assert!(matches!(test.reserve(other, &[("user:u2", 1)]), ReserveOutcome::Denied(_)));
    test.take(&[("user:u3", 3)]);
    assert_eq!(revisions(&test), [second, second, second]);
    restored(&mut test);
    test.advance(60_000);
    assert!(matches!(test.reserve(lease, &[("user:u1", 3)]), ReserveOutcome::Created { .. }), "it left no trace");
    assert_eq!(usage(&test, "user:u1"), Some((3, 3)));
}

#[test]
fn a_better_template_takes_over_the_keys_of_another() {
    let mut test = TestBook::new();
    put(&mut test, "{kind}:{user}", 5);
    test.take(&[("user:u1", 1), ("team:t1", 1)]);
    put(&mut test, "user:{user}", 2);
    test.take(&[("user:u1", 1)]);
    let lease = test.lease();
    assert!(matches!(test.reserve(lease, &[("user:u1", 1)]), ReserveOutcome::Denied(_)));
    test.take(&[("team:t1", 4)]);
    assert_eq!(live(&test), [1, 1]);
    delete_if(&mut test, "user:{user}", None);
    test.take(&[("user:u1", 3)]);
    assert_eq!(live(&test), [2]);
}

#[test]
fn an_override_keeps_what_is_reserved_and_survives_the_template() {
    let mut test = TestBook::new();
    put(&mut test, "user:{user}", 5);
    let lease = test.take(&[("user:u1", 4)]);
    test.put_active(rolling("user:u1", 10, 60));
    assert_eq!((usage(&test, "user:u1"), derived(&test), live(&test)), (Some((4, 10)), 0, vec![0]));
    put(&mut test, "user:{user}", 1);
    test.take(&[("user:u1", 6)]);
    restored(&mut test);
    delete_if(&mut test, "user:{user}", None);
    test.settle(lease, &[("user:u1", 1)]);
    assert_eq!(usage(&test, "user:u1"), Some((7, 10)));
    test.take(&[("user:u1", 3)]);
}

#[test]
fn an_override_of_another_kind_waits_until_nothing_is_reserved() {
    let mut test = TestBook::new();
    put(&mut test, "user:{user}", 5);
    let lease = test.take(&[("user:u1", 4)]);
    let slots = concurrency("user:u1", 2, 60);
    assert_eq!(test.put(slots.clone()), LimitOutcome::KindDiffers);
    test.settle(lease, &[("user:u1", 0)]);
    test.put_active(slots);
    assert_eq!((usage(&test, "user:u1"), derived(&test)), (Some((0, 2)), 0));
    let lease = test.take(&[("user:u1", 2)]);
    // Of another kind than the template: it runs empty first.
    assert!(matches!(test.delete("user:u1"), LimitOutcome::Changed { status: LimitStatus::Decreasing { to: 0 }, .. }));
    let other = test.lease();
    assert!(matches!(test.reserve(other, &[("user:u1", 1)]), ReserveOutcome::LimitDecreasing { .. }));
    test.settle(lease, &[]);
    assert!(matches!(test.reserve(other, &[("user:u1", 5)]), ReserveOutcome::Created { .. }));
    assert_eq!((usage(&test, "user:u1"), derived(&test)), (Some((5, 5)), 1));
}

#[test]
fn a_deleted_override_follows_its_template_at_once_and_keeps_what_is_reserved() {
    let mut test = TestBook::new();
    put(&mut test, "user:{user}", 5);
    test.put_active(rolling("user:u1", 10, 60));
    test.take(&[("user:u1", 4)]);
    let deleted = test.delete("user:u1");
    assert!(matches!(deleted, LimitOutcome::Changed { status: LimitStatus::Deleted, .. }), "{deleted:?}");
    assert_eq!((usage(&test, "user:u1"), derived(&test)), (Some((4, 5)), 1));
    assert_eq!(test.delete("user:u1"), LimitOutcome::NotFound, "it is not defined any more");
    test.take(&[("user:u1", 1)]);
    let lease = test.lease();
    assert!(matches!(test.reserve(lease, &[("user:u1", 1)]), ReserveOutcome::Denied(_)));
    restored(&mut test);
    // Without anything reserved, nothing is derived.
    test.put_active(rolling("user:u2", 10, 60));
    assert!(matches!(test.delete("user:u2"), LimitOutcome::Changed { status: LimitStatus::Deleted, .. }));
    assert_eq!(derived(&test), 1);
    test.take(&[("user:u2", 5)]);
}

#[test]
fn the_keys_of_a_deleted_template_are_unknown_at_once_and_their_leases_settle() {
    let mut test = TestBook::new();
    put(&mut test, "user:{user}", 5);
    let lease = test.take(&[("user:u1", 4)]);
    delete_if(&mut test, "user:{user}", None);
    let other = test.lease();
    assert_eq!(test.reserve(other, &[("user:u1", 1)]), ReserveOutcome::UnknownLimit { requirement: 0 });
    assert_eq!((usage(&test, "user:u1"), infos(&test)), (None, vec![]));
    restored(&mut test);
    assert_eq!(derived(&test), 1, "its lease still names it");
    test.settle(lease, &[("user:u1", 1)]);
    test.advance(60_000);
    test.tick();
    assert_eq!((derived(&test), test.book.limit_count()), (0, 0));
    put(&mut test, "user:{user}", 5);
    test.take(&[("user:u1", 5)]);
}

#[test]
fn a_template_of_another_kind_waits_until_the_old_reservations_are_gone() {
    let mut test = TestBook::new();
    put(&mut test, "user:{user}", 5);
    let lease = test.take(&[("user:u1", 4)]);
    delete_if(&mut test, "user:{user}", None);
    let slots = Kind::Concurrency { timeout_seconds: 60 };
    let slots = Template::new(Definition::new(pattern("user:{user}"), slots, 2)).unwrap();
    assert!(matches!(put_if(&mut test, slots, None), TemplateOutcome::Changed { .. }));
    let other = test.lease();
    assert!(matches!(test.reserve(other, &[("user:u1", 1)]), ReserveOutcome::LimitDecreasing { .. }));
    restored(&mut test);
    test.settle(lease, &[("user:u1", 0)]);
    assert!(matches!(test.reserve(other, &[("user:u1", 2)]), ReserveOutcome::Created { .. }));
    let denied = test.lease();
    assert!(matches!(test.reserve(denied, &[("user:u1", 1)]), ReserveOutcome::Denied(_)));
}

#[test]
fn an_idle_derived_limit_is_forgotten_after_the_retention_and_a_used_one_stays() {
    let config = Config { retention_ms: 120_000, ..Config::default() };
    let mut test = TestBook::with(config);
    put(&mut test, "user:{user}", 5);
    test.put_active(rolling("defined", 5, 60));
    let lease = test.take(&[("user:u1", 1), ("defined", 1)]);
    test.settle(lease, &[("user:u1", 0)]);
    let owing = test.take(&[("user:owing", 1)]);
    test.settle(owing, &[("user:owing", 100)]);
    test.advance(119_000);
    test.take(&[("user:busy", 1)]);
    test.tick();
    assert_eq!(derived(&test), 3);
    test.advance(3_000);
    test.tick();
    let keys: Vec<String> = infos(&test).into_iter().map(|(key, ..)| key).collect();
    assert_eq!(keys, ["defined", "user:busy", "user:owing"], "nothing is lost with the one that went");
    assert_eq!(usage(&test, "user:u1"), Some((0, 5)), "a key that is not live is shown unused");
    let shown = test.book.find_limit(test.now(), test.namespace, &key("user:u1")).unwrap();
    assert_eq!(shown.template.unwrap().as_str(), "user:{user}");
    assert_eq!(test.book.find_limit(test.now(), test.namespace, &key("else:u1")), None);
}

/// Ten times as many keys as may be live pass through, and the table stays small without a tick.
#[test]
fn the_table_does_not_grow_with_the_number_of_keys_that_ever_were() {
    let mut test = TestBook::with(Config { retention_ms: 10_000, ..Config::default() });
    let template = Template::new(Definition { key: pattern("user:{user}"), ..rolling("any", 5, 1) }).unwrap();
    assert!(matches!(put_if(&mut test, template, None), TemplateOutcome::Changed { .. }));
    let mut most = 0;
    for number in 0..5_000 {
        let lease = test.take(&[(&format!("user:u{number}"), 1)]);
        test.settle(lease, &[]);
        test.advance(100);
        most = most.max(test.book.limit_count());
    }
    assert!(most < 300, "{most} limits at once; 120 were used within the retention");
    restored(&mut test);
}

#[test]
fn a_credit_template_pays_from_the_account_of_its_key() {
    let mut bank = Bank::new();
    bank.commit(vec![open("acme"), issue("acme", "usd", 100)]);
    let test = &mut bank.test;
    assert!(matches!(put_if(test, credit_template(), None), TemplateOutcome::Changed { .. }));
    assert_eq!(test.book.find_usage(test.now(), test.namespace, &key("acme:usd")).unwrap().available, 100);
    let lease = test.lease();
    let missing = test.reserve(lease, &[("nobody:usd", 1)]);
    assert!(matches!(missing, ReserveOutcome::AccountNotFound { requirement: 0, .. }), "{missing:?}");
    let lease = test.take(&[("acme:usd", 60)]);
    let other = test.lease();
    assert!(matches!(test.reserve(other, &[("acme:usd", 60)]), ReserveOutcome::InsufficientCredit(_)));
    assert_eq!((derived(test), live(test)), (1, vec![1]));
    restored(test);
    test.settle(lease, &[("acme:usd", 10)]);
    assert_eq!(test.book.find_usage(test.now(), test.namespace, &key("acme:usd")).unwrap().available, 90);
}

#[test]
fn a_refused_transaction_leaves_overrides_and_derived_limits_as_they_were() {
    let mut test = TestBook::new();
    put(&mut test, "user:{user}", 5);
    test.put_active(rolling("user:u2", 9, 60));
    test.take(&[("user:u1", 2), ("user:u2", 2)]);
    let before = (infos(&test), derived(&test), live(&test));
    let bytes: Vec<u8> = test.book.freeze().encode().flatten().collect();
    let operations = vec![
        Operation::PutLimit { definition: rolling("user:u1", 7, 60), expected_revision: None },
        Operation::DeleteLimit { key: key("user:u2"), expected_revision: None },
        Operation::PutLimit { definition: rolling("user:u3", 7, 60), expected_revision: None },
        Operation::DeleteLimit { key: key("absent"), expected_revision: None },
    ];
    let write = Write {
        namespace: test.namespace,
        vault: None,
        id: WriteId::Sequence { client: "c".parse().unwrap(), sequence: 1 },
        operations,
        tx_id: TxId(1),
        log_index: 1,
        actor: "user:ann".parse().unwrap(),
    };
    let outcome = test.apply(&Step::Write(Box::new(write)));
    assert!(matches!(outcome, Outcome::Write(WriteOutcome::Refused(WriteError::ConditionFailed { operation: 3, .. }))));
    assert_eq!((infos(&test), derived(&test), live(&test)), before);
    assert_eq!(test.book.freeze().encode().flatten().collect::<Vec<u8>>(), bytes);
}

/// A reserve that was refused for another reason left the limits that it named `decreasing`, although nothing was
/// decided about them.
#[test]
fn a_refused_reserve_leaves_live_limits_with_the_revision_that_they_had() {
    let mut test = TestBook::new();
    put(&mut test, "user:{user}", 5);
    test.take(&[("user:u1", 4), ("user:u2", 4)]);
    put(&mut test, "user:{user}", 3);
    let bytes = |test: &mut TestBook| -> Vec<u8> { test.book.freeze().encode().flatten().collect() };
    let before = bytes(&mut test);
    for _ in 0..2 {
        let lease = test.lease();
        let refused = test.reserve(lease, &[("user:u1", 1), ("unknown", 1)]);
        assert_eq!(refused, ReserveOutcome::UnknownLimit { requirement: 1 });
    }
    assert_eq!(bytes(&mut test), before, "nothing is left");
    assert_eq!((usage(&test, "user:u1"), usage(&test, "user:u2")), (Some((4, 5)), Some((4, 5))));
    let status =
        |test: &TestBook, name: &str| test.book.find_usage(test.now(), test.namespace, &key(name)).unwrap().status;
    let lease = test.lease();
    let refused = test.reserve(lease, &[("user:u2", 1), ("user:u1", 1)]);
    assert!(matches!(refused, ReserveOutcome::LimitDecreasing { requirement: 1, .. }), "{refused:?}");
    assert_eq!(status(&test, "user:u1"), LimitStatus::Decreasing { to: 3 });
    assert_eq!(status(&test, "user:u2"), LimitStatus::Active, "another key was in the way");
    restored(&mut test);
}

/// A caller without credit that keeps asking had its limit evicted, as if nobody used it.
#[test]
fn a_credit_denial_is_a_decision_about_its_limits() {
    let mut bank = Bank::with(Config { retention_ms: 120_000, ..Config::default() });
    bank.commit(vec![open("acme"), issue("acme", "usd", 100)]);
    let test = &mut bank.test;
    assert!(matches!(put_if(test, credit_template(), None), TemplateOutcome::Changed { .. }));
    let lease = test.take(&[("acme:usd", 60)]);
    test.settle(lease, &[("acme:usd", 60)]);
    for _ in 0..4 {
        test.advance(60_000);
        let lease = test.lease();
        assert!(matches!(test.reserve(lease, &[("acme:usd", 60)]), ReserveOutcome::InsufficientCredit(_)));
        test.tick();
        assert_eq!(derived(test), 1);
    }
    test.advance(122_000);
    test.tick();
    assert_eq!(derived(test), 0);
}

/// A full table refused new keys until the sweep of two slots per command came by, although all its limits were idle.
#[test]
fn a_key_that_finds_no_room_evicts_idle_limits_for_the_next() {
    let mut test = TestBook::with(Config { retention_ms: 10_000, limits_max: 200, ..Config::default() });
    put(&mut test, "user:{user}", 5);
    for number in 0..200 {
        let lease = test.take(&[(&format!("user:u{number}"), 1)]);
        test.settle(lease, &[]);
    }
    test.advance(80_000);
    let refused = ReserveOutcome::QuotaExceeded { kind: QuotaKind::DerivedLimits, retry_after_ms: 10_000 };
    let lease = test.lease();
    assert_eq!(test.reserve(lease, &[("user:new", 1)]), refused);
    assert_eq!(derived(&test), 136, "one command frees no more than 64");
    assert!(matches!(test.reserve(lease, &[("user:new", 1)]), ReserveOutcome::Created { .. }));
}

/// The denial named another requirement: a key that is not live had no kind.
#[test]
fn a_credit_denial_of_a_key_that_is_not_live_names_its_requirement() {
    let mut bank = Bank::new();
    bank.commit(vec![open("zed")]);
    let test = &mut bank.test;
    assert!(matches!(put_if(test, credit_template(), None), TemplateOutcome::Changed { .. }));
    put(test, "user:{user}:rpm", 5);
    let lease = test.lease();
    assert!(matches!(test.reserve(lease, &[("zed:usd", 1)]), ReserveOutcome::InsufficientCredit(_)));
    // Other limits are kept elsewhere: the caller names all, and the lease had those of credit.
    let part = |name: &str| Part { limit: LimitRef::Key(key(name)), amount: 1 };
    let requirements = [part("user:u1:rpm"), part("zed:usd")];
    let denial = test.book.credit_denial(test.now(), (test.namespace, lease), &requirements).unwrap();
    assert_eq!(denial.requirement, 1);
}

/// Such a limit was restored, and followed a template that says nothing about its key.
#[test]
fn a_snapshot_with_a_derived_limit_of_another_template_or_of_the_future_is_refused() {
    let mut test = TestBook::new();
    put(&mut test, "user:{user}:rpm", 5);
    put(&mut test, "team:{team}:rpm", 5);
    test.take(&[("user:u1:rpm", 1)]);
    let bytes = restored(&mut test);
    let is_refused = |bytes: Vec<u8>| {
        let mut restore = Restore::new(9);
        restore.feed(&bytes).is_err() || restore.finish().is_err()
    };
    assert!(!is_refused(bytes.clone()));
    assert!(is_refused(replace(&bytes, b"user:u1:rpm", b"team:u1:rpm")), "of another template");
    assert!(is_refused(replace(&bytes, b"user:u1:rpm", b"else:u1:rpm")), "of no template");
    let second = u32::try_from(test.now().get() / 1_000).unwrap();
    assert!(is_refused(replace(&bytes, &second.to_le_bytes(), &(second + 1).to_le_bytes())), "decided in the future");
}
