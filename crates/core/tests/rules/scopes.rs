//! Namespaces separate limits and leases.

use earmark_core::{
    CompleteOutcome, InvalidParts, LimitOutcome, LimitStatus, NamespaceId, NamespaceName, NamespaceOutcome, Outcome,
    ReserveOutcome,
};

use crate::support::step::{Step, by_id, key};
use crate::support::test_book::{TestBook, changed, created, exists, rolling};

fn name(text: &str) -> NamespaceName {
    NamespaceName::new(text).unwrap()
}

#[test]
fn namespaces_are_numbered_in_the_order_in_which_they_are_opened() {
    let mut test = TestBook::new();
    assert_eq!(test.book.namespace(&name("default")), Some(NamespaceId::DEFAULT));
    assert_eq!(test.book.namespace(&name("a")), None);
    for (text, outcome) in [
        ("default", NamespaceOutcome::Exists(NamespaceId(0))),
        ("b", NamespaceOutcome::Opened(NamespaceId(1))),
        ("a", NamespaceOutcome::Opened(NamespaceId(2))),
        ("b", NamespaceOutcome::Exists(NamespaceId(1))),
    ] {
        assert_eq!(test.apply(&Step::OpenNamespace(name(text))), Outcome::Namespace(outcome), "{text}");
    }
    assert_eq!(test.book.namespace(&name("a")), Some(NamespaceId(2)));
}

#[test]
fn one_key_in_two_namespaces_is_two_limits() {
    let mut test = TestBook::new();
    let first = test.put_active(rolling("rpm", 1, 60));
    test.take(&[("rpm", 1)]);
    test.namespace = test.open("team");
    let second = test.put_active(rolling("rpm", 1, 60));
    assert_ne!(first, second);
    test.take(&[("rpm", 1)]);
    assert_eq!(test.book.limits(test.now(), test.namespace).len(), 1);
    test.delete("rpm");
    assert_eq!(test.book.usage(test.now(), first).unwrap().status, LimitStatus::Active);
}

#[test]
fn one_lease_id_in_two_namespaces_is_two_leases() {
    let mut test = TestBook::new();
    test.put_active(rolling("rpm", 5, 60));
    let lease = test.take(&[("rpm", 1)]);
    test.namespace = test.open("team");
    test.put_active(rolling("rpm", 5, 60));
    assert_eq!(test.info(lease), None);
    let reserved_at = test.now();
    assert_eq!(test.reserve(lease, &[("rpm", 5)]), created(reserved_at));
    assert_eq!(test.reserved("rpm"), 5);
    test.settle(lease, &[("rpm", 0)]);
    test.namespace = NamespaceId::DEFAULT;
    assert_eq!(test.reserved("rpm"), 1);
    assert_eq!(test.reserve(lease, &[("rpm", 1)]), exists(reserved_at));
}

#[test]
fn a_number_from_another_namespace_names_nothing() {
    let mut test = TestBook::new();
    let foreign = test.put_active(rolling("rpm", 5, 60));
    test.namespace = test.open("team");
    test.put_active(rolling("own", 5, 60));
    let lease = test.lease();
    let outcome = test.reserve_parts(lease, vec![by_id(foreign, 1)]);
    assert_eq!(outcome, ReserveOutcome::UnknownLimit { requirement: 0 });
    let lease = test.take(&[("own", 1)]);
    let CompleteOutcome::Completed(settlement) = test.complete_parts(lease, vec![by_id(foreign, 9)]) else {
        panic!("the lease was not completed");
    };
    assert_eq!(settlement.ignored, [0]);
    assert_eq!(test.book.usage(test.now(), foreign).unwrap().reserved, 0);
}

#[test]
fn a_namespace_that_was_never_opened_is_refused_everywhere() {
    let mut test = TestBook::new();
    test.namespace = NamespaceId(1);
    let lease = test.lease();
    assert_eq!(test.put(rolling("rpm", 1, 1)), LimitOutcome::UnknownNamespace);
    assert_eq!(test.delete("rpm"), LimitOutcome::UnknownNamespace);
    let unknown = InvalidParts::UnknownNamespace;
    assert_eq!(test.reserve(lease, &[]), ReserveOutcome::Invalid(unknown));
    assert_eq!(test.complete(lease, &[]), CompleteOutcome::Invalid(unknown));
    assert_eq!(test.book.limits(test.now(), test.namespace), []);
    assert_eq!(test.book.resolve(test.namespace, &key("rpm")), None);
    assert_eq!(test.info(lease), None);
}

#[test]
fn namespaces_come_to_an_end_without_harm() {
    let mut test = TestBook::new();
    let mut opened = 1_u32;
    let refused = loop {
        let full = name(&format!("n{opened}"));
        match test.apply(&Step::OpenNamespace(full.clone())) {
            Outcome::Namespace(NamespaceOutcome::Opened(id)) => assert_eq!(u32::from(id.0), opened),
            Outcome::Namespace(NamespaceOutcome::TooMany) => break full,
            other => panic!("{other:?}"),
        }
        opened += 1;
    };
    assert_eq!(test.book.namespace(&refused), None);
    let last = name(&format!("n{}", opened - 1));
    test.namespace = test.book.namespace(&last).unwrap();
    let id = test.put_active(rolling("rpm", 1, 60));
    assert_eq!(test.put(rolling("rpm", 1, 60)), changed(id, 1, LimitStatus::Active));
    test.take(&[("rpm", 1)]);
}

#[test]
fn limits_are_listed_by_key_and_without_those_that_are_gone() {
    let mut test = TestBook::new();
    for name in ["m", "z:1", "a", "m:2"] {
        test.put_active(rolling(name, 5, 60));
    }
    test.delete("m:2");
    let keys: Vec<String> =
        test.book.limits(test.now(), test.namespace).iter().map(|info| info.definition.key.to_string()).collect();
    assert_eq!(keys, ["a", "m", "z:1"]);
}
