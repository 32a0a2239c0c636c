//! Shared limits: reserved from other namespaces, read and changed in their own only.

use earmark_core::{
    CompleteOutcome, CreditTerms, Definition, DefinitionError, InvalidParts, Kind, LeaseState, LimitId, LimitKey,
    LimitOutcome, NamespaceId, OverageHow, QuotaKind, ReserveOutcome, Template,
};

use crate::support::snapshot::{restore, snapshot};
use crate::support::step::{by_id, by_key, key};
use crate::support::test_book::{TestBook, concurrency, rolling};
use crate::templates::{delete_if, pattern, put, put_if};

fn shared(definition: Definition) -> Definition {
    Definition { shared: true, ..definition }
}

/// A shared limit `rpm` of `default`, and an own limit `own` of the namespace `team`, which is the current one.
fn two_namespaces() -> (TestBook, LimitId) {
    let mut test = TestBook::new();
    let rpm = test.put_active(shared(rolling("rpm", 10, 60)));
    test.namespace = test.open("team");
    test.put_active(rolling("own", 10, 60));
    (test, rpm)
}

fn reserved(test: &TestBook, limit: LimitId) -> u64 {
    test.book.usage(test.now(), limit).unwrap().reserved
}

#[test]
fn a_shared_limit_is_reserved_and_settled_from_another_namespace() {
    let (mut test, rpm) = two_namespaces();
    let lease = test.take(&[("own", 2), ("!default:rpm", 3)]);
    assert_eq!(reserved(&test, rpm), 3);
    let own = test.namespace;
    let names: Vec<String> = (test.info(lease).unwrap().requirements.iter())
        .map(|(limit, amount)| format!("{}={amount}", test.book.key_seen_from(own, *limit).unwrap()))
        .collect();
    assert_eq!(names, ["!default:rpm=3", "own=2"]);
    let settlement = test.settle(lease, &[("!default:rpm", 5), ("own", 1)]);
    assert_eq!((settlement.overages.len(), settlement.overages[0].how), (1, OverageHow::Reserved));
    assert_eq!((reserved(&test, rpm), test.reserved("own")), (5, 1));
}

#[test]
fn all_namespaces_draw_on_one_capacity() {
    let (mut test, rpm) = two_namespaces();
    test.take(&[("!default:rpm", 6)]);
    let (_, denial) = test.denied(&[("own", 1), ("!default:rpm", 5)]);
    assert_eq!((denial.limited_by, denial.never), (vec![1], false));
    test.namespace = NamespaceId::DEFAULT;
    test.take(&[("rpm", 4)]);
    test.denied(&[("rpm", 1)]);
    assert_eq!(reserved(&test, rpm), 10);
}

#[test]
fn a_limit_that_is_not_shared_is_unknown_elsewhere_by_name_and_by_id() {
    let mut test = TestBook::new();
    let rpm = test.put_active(rolling("rpm", 10, 60));
    test.namespace = test.open("team");
    test.put_active(rolling("own", 10, 60));
    for part in [by_key("!default:rpm", 1), by_id(rpm, 1), by_key("!nobody:rpm", 1), by_key("!default:none", 1)] {
        let lease = test.lease();
        let outcome = test.reserve_parts(lease, vec![by_key("own", 1), part]);
        assert_eq!(outcome, ReserveOutcome::UnknownLimit { requirement: 1 });
        assert_eq!(test.info(lease), None);
    }
    assert_eq!((reserved(&test, rpm), test.reserved("own")), (0, 0));
}

#[test]
fn a_limit_that_is_no_longer_shared_settles_what_was_taken_and_takes_nothing_new() {
    let (mut test, rpm) = two_namespaces();
    let (lease, other) = (test.take(&[("!default:rpm", 3)]), test.take(&[("!default:rpm", 2)]));
    let team = std::mem::take(&mut test.namespace);
    test.put_active(rolling("rpm", 10, 60));
    test.namespace = team;
    let late = test.lease();
    assert_eq!(test.reserve(late, &[("!default:rpm", 1)]), ReserveOutcome::UnknownLimit { requirement: 0 });
    // A retry gets its first answer.
    assert!(matches!(test.reserve(lease, &[("!default:rpm", 3)]), ReserveOutcome::Exists { .. }));
    let bytes = snapshot(&mut test.book);
    test.book = restore(&bytes, 1_000, 7).unwrap();
    assert_eq!(snapshot(&mut test.book), bytes);
    let settlement = test.settle(lease, &[("!default:rpm", 1)]);
    assert!(settlement.ignored.is_empty());
    test.release(other);
    assert_eq!(reserved(&test, rpm), 1);
    // The tombstone has the requirements of the lease.
    assert_eq!(test.reserve(lease, &[("!default:rpm", 3)]), ReserveOutcome::LeaseExpired);
    assert_eq!(test.reserve(lease, &[("!default:rpm", 4)]), ReserveOutcome::ExistsWithOtherRequirements);
}

#[test]
fn the_own_namespace_named_is_the_same_as_no_namespace() {
    let (mut test, _) = two_namespaces();
    let lease = test.take(&[("own", 2)]);
    assert!(matches!(test.reserve(lease, &[("!team:own", 2)]), ReserveOutcome::Exists { .. }));
    for (first, second) in [("own", "!team:own"), ("!team:own", "own"), ("none", "!team:none"), ("!team:x", "!team:x")]
    {
        let lease = test.lease();
        let twice = ReserveOutcome::Invalid(InvalidParts::Duplicate { part: 1 });
        assert_eq!(test.reserve(lease, &[(first, 1), (second, 1)]), twice, "{first} {second}");
        let twice = CompleteOutcome::Invalid(InvalidParts::Duplicate { part: 1 });
        assert_eq!(test.complete(lease, &[(first, 1), (second, 1)]), twice, "{first} {second}");
    }
    let unknown = ReserveOutcome::UnknownLimit { requirement: 1 };
    let lease = test.lease();
    assert_eq!(test.reserve(lease, &[("!y:none", 1), ("!x:none", 1)]), unknown);
}

#[test]
fn one_key_of_two_namespaces_is_two_requirements_and_two_leases() {
    let (mut test, rpm) = two_namespaces();
    let own = test.put_active(rolling("rpm", 10, 60));
    let lease = test.take(&[("rpm", 1), ("!default:rpm", 2)]);
    assert_eq!((reserved(&test, own), reserved(&test, rpm)), (1, 2));
    let settlement = test.settle(lease, &[("!default:rpm", 0), ("rpm", 1)]);
    assert!(settlement.ignored.is_empty());
    assert_eq!((reserved(&test, own), reserved(&test, rpm)), (1, 0));
    // The fingerprint of an ended lease tells the namespaces apart.
    let other = test.reserve(lease, &[("rpm", 2), ("!default:rpm", 1)]);
    assert_eq!(other, ReserveOutcome::ExistsWithOtherRequirements);
    test.namespace = NamespaceId::DEFAULT;
    assert_eq!(test.info(lease), None);
}

#[test]
fn a_denial_repeats_the_foreign_limit_whatever_the_order() {
    let (mut test, _) = two_namespaces();
    test.take(&[("!default:rpm", 10)]);
    let (lease, denial) = test.denied(&[("own", 1), ("!default:rpm", 1)]);
    assert_eq!(denial.limited_by, [1]);
    let again = test.reserve(lease, &[("!default:rpm", 1), ("own", 1)]);
    assert!(matches!(again, ReserveOutcome::ExistsDenied(denial) if denial.limited_by == [0]));
}

#[test]
fn a_shared_limit_decreases_for_everyone_and_goes_when_its_foreign_leases_end() {
    let mut test = TestBook::new();
    let slots = test.put_active(shared(concurrency("slots", 5, 600)));
    test.namespace = test.open("team");
    let lease = test.take(&[("!default:slots", 4)]);
    let team = std::mem::take(&mut test.namespace);
    test.delete("slots");
    test.namespace = team;
    let late = test.lease();
    assert!(matches!(test.reserve(late, &[("!default:slots", 1)]), ReserveOutcome::LimitDecreasing { .. }));
    test.settle(lease, &[("!default:slots", 4)]);
    assert_eq!(test.book.usage(test.now(), slots), None);
    assert_eq!(test.reserve(late, &[("!default:slots", 1)]), ReserveOutcome::UnknownLimit { requirement: 0 });
    assert_eq!(test.state(lease), Some(LeaseState::Completed));
}

#[test]
fn own_keys_are_named_first_and_then_namespaces_in_order() {
    let (mut test, _) = two_namespaces();
    for (named, requirement) in [
        ([("!a:k", 1), ("z", 1), ("!b:a", 1)], 1),
        ([("!b:a", 1), ("!a:k", 1), ("!a:z", 1)], 1),
        ([("!team:zz", 1), ("!a:k", 1), ("!b:a", 1)], 0),
    ] {
        let lease = test.lease();
        assert_eq!(test.reserve(lease, &named), ReserveOutcome::UnknownLimit { requirement }, "{named:?}");
    }
}

#[test]
fn credit_cannot_be_shared() {
    let mut test = TestBook::new();
    let terms = CreditTerms {
        timeout_seconds: 60,
        vault: "main".parse().unwrap(),
        account: "acme".parse().unwrap(),
        asset: "usd".parse().unwrap(),
        revenue: "revenue".parse().unwrap(),
        on_timeout: Default::default(),
    };
    let definition = Definition::new(key("usd"), Kind::Credit(terms), 0);
    let LimitOutcome::Invalid(error) = test.put(shared(definition)) else { panic!("credit was shared") };
    assert_eq!(error.to_string(), "shared: found true, allowed is false for a limit of kind credit");
    assert_eq!(error, DefinitionError::SharedCredit);
}

#[test]
fn a_shared_template_derives_for_other_namespaces_at_its_owners_expense() {
    let mut test = TestBook::new();
    let limit = |capacity, shared| {
        let definition = Definition { key: pattern("user:{user}"), shared, ..rolling("any", capacity, 60) };
        Template::new(definition).unwrap()
    };
    put_if(&mut test, limit(10, true), None);
    test.namespace = test.open("team");
    put(&mut test, "{any}:{other}", 100);
    test.take(&[("!default:user:ann", 6)]);
    test.denied(&[("!default:user:ann", 5)]);
    let quotas = |test: &TestBook, namespace| {
        let used = test.book.quotas(test.now(), namespace);
        used.iter().find(|usage| usage.kind == QuotaKind::DerivedLimits).unwrap().used
    };
    assert_eq!((quotas(&test, NamespaceId::DEFAULT), quotas(&test, test.namespace)), (1, 0));
    // A changed capacity holds for every namespace with the next decision, and a template that is no longer shared, or
    // is gone, is unknown elsewhere at once, also for limits that are live.
    let team = test.namespace;
    for (template, expected) in [(Some(limit(12, true)), true), (Some(limit(12, false)), false), (None, false)] {
        test.namespace = NamespaceId::DEFAULT;
        match template {
            Some(template) => _ = put_if(&mut test, template, None),
            None => _ = delete_if(&mut test, "user:{user}", None),
        }
        test.namespace = team;
        let lease = test.lease();
        let outcome = test.reserve(lease, &[("!default:user:ann", 5)]);
        match expected {
            true => assert!(matches!(outcome, ReserveOutcome::Created { .. }), "{outcome:?}"),
            false => assert_eq!(outcome, ReserveOutcome::UnknownLimit { requirement: 0 }),
        }
    }
    // The name of a limit of another namespace is no key of a template of one's own.
    assert_eq!(test.book.template_of(team, &LimitKey::parse_qualified("!default:user").unwrap()), None);
}
