//! Namespaces keep limits and leases apart.

use earmark_core::{
    CompleteOutcome, InvalidParts, LimitOutcome, LimitStatus, NamespaceId, NamespaceName, NamespaceOutcome,
    Outcome, ReserveOutcome,
};

use crate::support::desk::{Desk, changed, rolling};
use crate::support::step::{Step, by_id, key};

fn name(text: &str) -> NamespaceName {
    NamespaceName::new(text).unwrap()
}

#[test]
fn namespaces_are_numbered_in_the_order_in_which_they_are_opened() {
    let mut desk = Desk::new();
    assert_eq!(desk.book.namespace(&name("default")), Some(NamespaceId::DEFAULT));
    assert_eq!(desk.book.namespace(&name("a")), None);
    for (text, outcome) in [
        ("default", NamespaceOutcome::Exists(NamespaceId(0))),
        ("b", NamespaceOutcome::Opened(NamespaceId(1))),
        ("a", NamespaceOutcome::Opened(NamespaceId(2))),
        ("b", NamespaceOutcome::Exists(NamespaceId(1))),
    ] {
        assert_eq!(desk.apply(&Step::OpenNamespace(name(text))), Outcome::Namespace(outcome), "{text}");
    }
    assert_eq!(desk.book.namespace(&name("a")), Some(NamespaceId(2)));
}

#[test]
fn one_key_in_two_namespaces_is_two_limits() {
    let mut desk = Desk::new();
    let first = desk.has(rolling("rpm", 1, 60));
    desk.take(&[("rpm", 1)]);
    desk.namespace = desk.open("team");
    let second = desk.has(rolling("rpm", 1, 60));
    assert_ne!(first, second);
    desk.take(&[("rpm", 1)]);
    assert_eq!(desk.book.limits(desk.now(), desk.namespace).len(), 1);
    desk.delete("rpm");
    assert_eq!(desk.book.usage(desk.now(), first).unwrap().status, LimitStatus::Active);
}

#[test]
fn one_lease_id_in_two_namespaces_is_two_leases() {
    let mut desk = Desk::new();
    desk.has(rolling("rpm", 5, 60));
    let lease = desk.take(&[("rpm", 1)]);
    desk.namespace = desk.open("team");
    desk.has(rolling("rpm", 5, 60));
    assert_eq!(desk.info(lease), None);
    let reserved_at = desk.now();
    assert_eq!(desk.reserve(lease, &[("rpm", 5)]), ReserveOutcome::Created { reserved_at });
    assert_eq!(desk.reserved("rpm"), 5);
    desk.settle(lease, &[("rpm", 0)]);
    desk.namespace = NamespaceId::DEFAULT;
    assert_eq!(desk.reserved("rpm"), 1);
    assert_eq!(desk.reserve(lease, &[("rpm", 1)]), ReserveOutcome::Exists { reserved_at });
}

#[test]
fn a_number_from_another_namespace_names_nothing() {
    let mut desk = Desk::new();
    let foreign = desk.has(rolling("rpm", 5, 60));
    desk.namespace = desk.open("team");
    desk.has(rolling("own", 5, 60));
    let lease = desk.lease();
    let outcome = desk.reserve_parts(lease, vec![by_id(foreign.0, 1)]);
    assert_eq!(outcome, ReserveOutcome::UnknownLimit { requirement: 0 });
    let lease = desk.take(&[("own", 1)]);
    let CompleteOutcome::Completed(settlement) = desk.complete_parts(lease, vec![by_id(foreign.0, 9)]) else {
        panic!("the lease was not completed");
    };
    assert_eq!(settlement.ignored, [0]);
    assert_eq!(desk.book.usage(desk.now(), foreign).unwrap().reserved, 0);
}

#[test]
fn a_namespace_that_was_never_opened_is_refused_everywhere() {
    let mut desk = Desk::new();
    desk.namespace = NamespaceId(1);
    let lease = desk.lease();
    assert_eq!(desk.put(rolling("rpm", 1, 1)), LimitOutcome::UnknownNamespace);
    assert_eq!(desk.delete("rpm"), LimitOutcome::UnknownNamespace);
    let unknown = InvalidParts::UnknownNamespace;
    assert_eq!(desk.reserve(lease, &[]), ReserveOutcome::Invalid(unknown));
    assert_eq!(desk.complete(lease, &[]), CompleteOutcome::Invalid(unknown));
    assert_eq!(desk.book.limits(desk.now(), desk.namespace), []);
    assert_eq!(desk.book.resolve(desk.namespace, &key("rpm")), None);
    assert_eq!(desk.info(lease), None);
}

#[test]
fn namespaces_come_to_an_end_without_harm() {
    let mut desk = Desk::new();
    let mut opened = 1_u32;
    let refused = loop {
        let full = name(&format!("n{opened}"));
        match desk.apply(&Step::OpenNamespace(full.clone())) {
            Outcome::Namespace(NamespaceOutcome::Opened(id)) => assert_eq!(u32::from(id.0), opened),
            Outcome::Namespace(NamespaceOutcome::TooMany) => break full,
            other => panic!("{other:?}"),
        }
        opened += 1;
    };
    assert_eq!(desk.book.namespace(&refused), None);
    let last = name(&format!("n{}", opened - 1));
    desk.namespace = desk.book.namespace(&last).unwrap();
    let id = desk.has(rolling("rpm", 1, 60));
    assert_eq!(desk.put(rolling("rpm", 1, 60)), changed(id, 1, LimitStatus::Active));
    desk.take(&[("rpm", 1)]);
}

#[test]
fn limits_are_listed_by_key_and_without_those_that_are_gone() {
    let mut desk = Desk::new();
    for name in ["m", "z:1", "a", "m:2"] {
        desk.has(rolling(name, 5, 60));
    }
    desk.delete("m:2");
    let keys: Vec<String> = desk
        .book
        .limits(desk.now(), desk.namespace)
        .iter()
        .map(|info| info.definition.key.to_string())
        .collect();
    assert_eq!(keys, ["a", "m", "z:1"]);
}
