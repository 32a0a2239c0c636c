//! Sequenced writes: each sequence number once, all operations or none.

use earmark_core::{InvalidWrite, NamespaceName, Operation, Principal, RESULTS_MS, WriteError};

use super::Harness;
use super::credit_driver::{
    MAIN, account, client, issue, open, open_vault, path, put, retire, transfer, vault, write_request,
};
use super::driver::{Driver, key, namespace};
use crate::credit_lists::EntryQuery;
use crate::writes::{CreditReadError, EntryKind, WriteAnswer, WriteRequest};

/// A retry of a write has no effect and gets the first answer.
pub async fn a_write_is_applied_once_and_its_retry_gets_the_same_answer(harness: &impl Harness) {
    let driver = Driver(harness);
    let operations = vec![open("acme"), issue("acme", 100)];
    let first = driver.commit(MAIN, 1, operations.clone()).await;
    assert_eq!((first.sequence, first.results.len(), first.actor.as_str()), (Some(1), 2, "system:test"));
    harness.advance_ms(1_000).await;
    assert_eq!(driver.commit(MAIN, 1, operations.clone()).await, first);
    let second = driver.commit(MAIN, 2, vec![issue("acme", 1)]).await;
    assert!(second.log_index > first.log_index);
    assert_ne!(second.tx_id, first.tx_id);
    assert_eq!(driver.commit(MAIN, 1, operations).await, first);
    assert_eq!((driver.usd_of("main", "acme").await, driver.last(MAIN).await), (101, 2));
}

/// Concurrent cache of a write are applied once.
pub async fn copies_of_a_write_at_once_are_one_write(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.commit(MAIN, 1, vec![open("acme")]).await;
    let write = || driver.commit(MAIN, 2, vec![issue("acme", 7)]);
    let (a, b, c) = tokio::join!(write(), write(), write());
    assert_eq!((&a, &b), (&b, &c));
    assert_eq!(driver.usd_of("main", "acme").await, 7);
}

/// A gap in the sequence is refused with the last committed number.
pub async fn a_gap_in_the_numbers_is_refused(harness: &impl Harness) {
    let driver = Driver(harness);
    let gap = |last_committed_sequence| WriteError::SequenceGap { last_committed_sequence };
    assert_eq!(driver.refuse(MAIN, 2, vec![]).await, gap(0));
    driver.commit(MAIN, 1, vec![]).await;
    assert_eq!(driver.refuse(MAIN, 3, vec![]).await, gap(1));
    assert_eq!(driver.last(MAIN).await, 1);
    for sequence in [0, u64::MAX] {
        assert_eq!(driver.refuse(MAIN, sequence, vec![]).await.code(), "INVALID");
    }
}

/// A sequence number cannot be used for other operations.
pub async fn a_number_with_other_content_is_refused(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.commit(MAIN, 1, vec![open("acme")]).await;
    let reused = WriteError::SequenceReused { last_committed_sequence: 1 };
    assert_eq!(driver.refuse(MAIN, 1, vec![open("bob")]).await, reused);
    assert_eq!(driver.refuse(MAIN, 1, vec![]).await, reused);
}

/// Results may be forgotten; committed sequence numbers never.
pub async fn an_old_write_is_never_applied_again(harness: &impl Harness) {
    let driver = Driver(harness);
    let old = || vec![open("acme"), issue("acme", 5)];
    let first = driver.commit(MAIN, 1, old()).await;
    for sequence in 2..=21 {
        driver.commit(MAIN, sequence, vec![]).await;
    }
    harness.advance_ms(RESULTS_MS).await;
    driver.commit(MAIN, 22, vec![]).await;
    if harness.keeps_results() {
        assert_eq!(driver.commit(MAIN, 1, old()).await, first);
    } else {
        let error = driver.refuse(MAIN, 1, old()).await;
        assert_eq!(error, WriteError::AlreadyCommitted { last_committed_sequence: 22 });
    }
    assert_eq!(driver.usd_of("main", "acme").await, 5);
}

/// An empty write consumes a number, so that a late copy of a failed write is refused.
pub async fn a_fence_keeps_a_late_copy_out(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.commit(MAIN, 1, vec![open("acme"), open("bob")]).await;
    let late = || vec![transfer("acme", "bob", 5)];
    assert_eq!(driver.refuse(MAIN, 2, late()).await, WriteError::InsufficientCredit { operation: 0 });
    assert!(driver.commit(MAIN, 2, vec![]).await.results.is_empty());
    driver.commit(MAIN, 3, vec![issue("acme", 10)]).await;
    assert_eq!(driver.refuse(MAIN, 2, late()).await, WriteError::SequenceReused { last_committed_sequence: 3 });
    assert_eq!((driver.usd_of("main", "acme").await, driver.usd_of("main", "bob").await), (10, 0));
}

/// A refused write does not consume its number.
pub async fn a_failed_write_leaves_its_number_free(harness: &impl Harness) {
    let driver = Driver(harness);
    let error = driver.refuse(MAIN, 1, vec![issue("acme", 1)]).await;
    assert_eq!(error, WriteError::AccountNotFound { operation: 0 });
    assert_eq!(driver.last(MAIN).await, 0);
    driver.commit(MAIN, 1, vec![open("acme"), issue("acme", 1)]).await;
    assert_eq!(driver.last(MAIN).await, 1);
}

/// A client has its own sequence in a namespace and in each of its vaults.
pub async fn a_client_has_a_stream_in_every_scope(harness: &impl Harness) {
    let driver = Driver(harness);
    let eu = Some("eu");
    driver.commit(None, 1, vec![open_vault("eu"), open_vault("main")]).await;
    driver.commit(None, 2, vec![put("rpm", Some(0))]).await;
    driver.commit(None, 3, vec![]).await;
    driver.commit(MAIN, 1, vec![open("acme"), issue("acme", 1)]).await;
    driver.commit(eu, 1, vec![open("acme"), issue("acme", 2)]).await;
    driver.commit(eu, 2, vec![]).await;
    assert_eq!((driver.last(None).await, driver.last(MAIN).await, driver.last(eu).await), (3, 1, 2));
    assert_eq!((driver.usd_of("main", "acme").await, driver.usd_of("eu", "acme").await), (1, 2));
    assert_eq!(driver.usage("rpm").await.capacity, 1);
    let nowhere = harness.backend().client_state(namespace(), Some(vault("us")), client("billing")).await;
    assert_eq!(nowhere, Err(CreditReadError::VaultNotFound));
    let elsewhere = NamespaceName::new("nowhere").expect("a valid name");
    let state = harness.backend().client_state(elsewhere, None, client("billing")).await;
    assert_eq!(state, Err(CreditReadError::NamespaceNotFound));
}

/// The first limit or vault creates its namespace, also in a write. No other operation does.
///
/// A put of a limit used to create the namespace, but the same operation in a write did not: a writer with a session
/// could not start a namespace at all.
pub async fn the_first_limit_or_vault_of_a_write_opens_its_namespace(harness: &impl Harness) {
    let of = |name: &str| NamespaceName::new(name).expect("a valid name");
    let in_namespace = async |name: &str, scope: Option<&str>, sequence, operations| {
        let request = write_request(scope, "billing", sequence, operations);
        let request = WriteRequest { namespace: of(name), ..request };
        harness.backend().write(Principal::System, request).await.expect("a backend that answers")
    };
    let unknown = WriteAnswer::Refused(WriteError::Invalid(InvalidWrite::UnknownNamespace));
    for (scope, sequence, operations) in
        [(None, 1, vec![]), (None, 2, vec![put("rpm", None)]), (MAIN, 1, vec![]), (MAIN, 1, vec![open_vault("main")])]
    {
        assert_eq!(in_namespace("new", scope, sequence, operations).await, unknown);
    }
    let state = async |name: &str, scope: Option<&str>| {
        harness.backend().client_state(of(name), scope.map(vault), client("billing")).await
    };
    assert_eq!(state("new", None).await, Err(CreditReadError::NamespaceNotFound));
    for (name, first) in [("new", open_vault("main")), ("newer", put("rpm", Some(0)))] {
        let committed = in_namespace(name, None, 1, vec![first.clone()]).await;
        assert!(matches!(committed, WriteAnswer::Committed(_)), "{committed:?}");
        assert_eq!(in_namespace(name, None, 1, vec![first]).await, committed);
        assert_eq!(state(name, None).await, Ok(1));
    }
    let issued = in_namespace("new", MAIN, 1, vec![issue("revenue", 7)]).await;
    assert!(matches!(issued, WriteAnswer::Committed(_)), "{issued:?}");
    assert_eq!((state("new", MAIN).await, state("newer", MAIN).await), (Ok(1), Err(CreditReadError::VaultNotFound)));
    let default = harness.backend().limit(namespace(), key("rpm")).await.expect("a backend that answers");
    assert_eq!(default, None);
}

/// One bad operation refuses its whole write and nothing else.
pub async fn a_write_with_one_bad_operation_changes_nothing(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.commit(MAIN, 1, vec![open("acme"), issue("acme", 10)]).await;
    let operations = vec![open("bob"), transfer("acme", "bob", 4), transfer("bob", "nobody", 1)];
    assert_eq!(driver.refuse(MAIN, 2, operations).await, WriteError::AccountNotFound { operation: 2 });
    assert_eq!(driver.usd_of("main", "acme").await, 10);
    let bob = harness.backend().balances(path("main", "bob")).await;
    assert_eq!(bob, Err(CreditReadError::AccountNotFound));
    let limits = vec![put("rpm", None), open_vault("eu"), put("tpm", Some(5))];
    let error = driver.refuse(None, 1, limits).await;
    assert_eq!(error, WriteError::ConditionFailed { operation: 2, revision: 0 });
    let limit = harness.backend().limit(namespace(), key("rpm")).await.expect("a backend that answers");
    assert_eq!(limit, None);
    let audit = harness.backend().audit(namespace(), vault("eu")).await;
    assert_eq!(audit, Err(CreditReadError::VaultNotFound));
}

/// Every refusal has its code and names its operation.
pub async fn a_refused_write_has_its_code_and_its_operation(harness: &impl Harness) {
    let driver = Driver(harness);
    let of = |name: &str| account(name);
    driver
        .commit(
            MAIN,
            1,
            vec![
                open("acme"),
                open("cold"),
                issue("acme", 10),
                issue("cold", 10),
                Operation::FreezeAccount { account: of("cold") },
                open("gone"),
                Operation::CloseAccount { account: of("gone") },
            ],
        )
        .await;
    for (scope, operation, code) in [
        (MAIN, transfer("acme", "cold", 11), "INSUFFICIENT_CREDIT"),
        (MAIN, transfer("acme", "nobody", 1), "ACCOUNT_NOT_FOUND"),
        (MAIN, issue("gone", 1), "ACCOUNT_CLOSED"),
        (MAIN, transfer("cold", "acme", 1), "ACCOUNT_FROZEN"),
        (MAIN, open("acme"), "CONFLICT"),
        (MAIN, transfer("acme", "acme", 1), "INVALID"),
        (MAIN, put("rpm", None), "WRONG_SCOPE"),
        (None, issue("acme", 1), "WRONG_SCOPE"),
        (None, put("rpm", Some(1)), "CONDITION_FAILED"),
    ] {
        let fill = if scope.is_some() { open("new") } else { open_vault("new") };
        let sequence = if scope.is_some() { 2 } else { 1 };
        let error = driver.refuse(scope, sequence, vec![fill, operation.clone()]).await;
        assert_eq!((error.code(), error.operation()), (code, Some(1)), "{operation:?}");
    }
    assert_eq!(driver.refuse(Some("us"), 1, vec![]).await, WriteError::VaultNotFound { operation: None });
}

/// The entries of an account add up to its balance.
pub async fn the_history_of_an_account_adds_up(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.commit(MAIN, 1, vec![open("acme"), open("bob"), issue("acme", 10)]).await;
    driver.commit(MAIN, 2, vec![transfer("acme", "bob", 4)]).await;
    let third = driver.commit(MAIN, 3, vec![retire("acme", 1)]).await;
    let acme = || path("main", "acme");
    let first =
        harness.backend().entries(acme(), EntryQuery::oldest_first(0, 2)).await.expect("an account that exists");
    let amounts = |page: &[crate::writes::EntryView]| -> Vec<i128> {
        page.iter().flat_map(|entry| entry.changes.iter().map(|change| change.amount)).collect()
    };
    assert_eq!(amounts(&first.entries), [10, -4]);
    assert!(matches!(&first.entries[0].what, EntryKind::Transaction { memos, .. } if *memos == ["bought"]));
    let after = first.next.expect("a second page");
    let second =
        harness.backend().entries(acme(), EntryQuery::oldest_first(after, 2)).await.expect("an account that exists");
    assert_eq!((amounts(&second.entries), second.next), (vec![-1], None));
    assert!(
        matches!(&second.entries[0].what, EntryKind::Transaction { receipt, .. } if *receipt == third),
        "{second:?}"
    );
    let audit = harness.backend().audit(namespace(), vault("main")).await.expect("a vault that exists");
    let totals = audit.assets.first().expect("an asset");
    assert!(audit.balanced, "{audit:?}");
    assert_eq!((totals.issued, totals.retired, totals.live), (10, 1, 9));
}
