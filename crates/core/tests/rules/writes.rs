//! Transactions: each sequence number once, all operations or none.

use std::sync::Arc;

use earmark_core::{
    ASSETS_MAX, Config, Definition, InvalidOperation, InvalidWrite, Kind, LimitId, LimitStatus, NamespaceId,
    OPERATIONS_MAX, Operation, OperationResult, Overage, RESULTS_MAX, RESULTS_MS, Receipt, ReserveOutcome, TxId,
    VaultId, WriteError, WriteOutcome,
};

use crate::support::bank::{credit, issue, open, open_overdraft};
use crate::support::snapshot::{restore, snapshot};
use crate::support::step::key;
use crate::support::test_book::{TestBook, concurrency, rolling};
use crate::support::writer::{Writer, vault};

fn put(definition: Definition) -> Operation {
    Operation::PutLimit { definition, expected_revision: None }
}

fn put_if(definition: Definition, revision: u64) -> Operation {
    Operation::PutLimit { definition, expected_revision: Some(revision) }
}

fn delete(name: &str) -> Operation {
    Operation::DeleteLimit { key: key(name), expected_revision: None }
}

fn open_vault(name: &str) -> Operation {
    Operation::OpenVault { vault: vault(name) }
}

fn committed(outcome: WriteOutcome) -> Arc<Receipt> {
    match outcome {
        WriteOutcome::Committed(receipt) => receipt,
        other => panic!("not committed: {other:?}"),
    }
}

fn refused(outcome: WriteOutcome) -> WriteError {
    match outcome {
        WriteOutcome::Refused(error) => error,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_transaction_puts_and_deletes_limits_and_opens_vaults_and_a_retry_is_told_the_same() {
    let mut test = TestBook::new();
    let mut writer = Writer::new("billing");
    let operations =
        vec![put_if(rolling("rpm", 5, 60), 0), put(concurrency("slots", 2, 60)), delete("slots"), open_vault("eu")];
    let receipt = committed(writer.write(&mut test, operations.clone()));
    assert_eq!((receipt.sequence, receipt.tx_id, receipt.committed_at), (Some(1), TxId(1), test.now().into()));
    assert_eq!(receipt.actor.as_str(), "client:billing");
    let status = LimitStatus::Active;
    assert_eq!(
        receipt.results,
        [
            OperationResult::Limit { revision: 1, status },
            OperationResult::Limit { revision: 2, status },
            OperationResult::Limit { revision: 3, status: LimitStatus::Deleted },
            OperationResult::Vault(VaultId(1)),
        ]
    );
    test.advance(1_000);
    let again = writer.write_as(&mut test, 1, operations.clone());
    assert_eq!(again, WriteOutcome::Exists(Arc::clone(&receipt)));
    let bytes = snapshot(&mut test.book);
    test.book = restore(&bytes, 100, 5).unwrap();
    assert_eq!(writer.write_as(&mut test, 1, operations), WriteOutcome::Exists(receipt));
    assert_eq!(test.usage("rpm").capacity, 5);
}

#[test]
fn one_bad_operation_takes_all_others_back() {
    let mut test = TestBook::new();
    let mut writer = Writer::new("ops");
    test.put_active(rolling("rpm", 5, 60));
    test.put_active(rolling("gone", 5, 60));
    test.delete("gone");
    let lease = test.take(&[("rpm", 4)]);
    let before = snapshot(&mut test.book);
    let error = refused(writer.write(
        &mut test,
        vec![
            put(rolling("rpm", 1, 10)),
            put(rolling("new", 9, 60)),
            put(rolling("gone", 7, 60)),
            put(rolling("gone", 8, 60)),
            delete("new"),
            open_vault("eu"),
            open_vault("us"),
            put_if(rolling("other", 9, 60), 3),
        ],
    ));
    assert_eq!(error, WriteError::ConditionFailed { operation: 7, revision: 0 });
    assert_eq!((error.code(), error.operation()), ("CONDITION_FAILED", Some(7)));
    assert_eq!(snapshot(&mut test.book), before);
    assert_eq!(test.book.vault(NamespaceId::DEFAULT, &vault("eu")), None);
    assert_eq!(test.reserved("rpm"), 4);
    test.settle(lease, &[("rpm", 2)]);
    assert_eq!(test.reserved("rpm"), 2);
    // The sequence number is free again, and so are the ids that were allocated.
    let receipt = committed(writer.write_as(&mut test, 1, vec![open_vault("us"), put(rolling("b", 1, 1))]));
    assert_eq!(receipt.results[0], OperationResult::Vault(VaultId(1)));
    assert_eq!(test.id("b"), LimitId { slot: 1, generation: 1 });
}

#[test]
fn a_late_copy_of_a_failed_write_meets_the_fence() {
    let mut test = TestBook::new();
    let mut writer = Writer::new("ops");
    let late = vec![put_if(rolling("rpm", 5, 60), 1)];
    assert_eq!(refused(writer.write(&mut test, late.clone())).code(), "CONDITION_FAILED");
    committed(writer.write_as(&mut test, 1, Vec::new()));
    test.put_active(rolling("rpm", 9, 60));
    let error = refused(writer.write_as(&mut test, 1, late));
    assert_eq!(error, WriteError::SequenceReused { last_committed_sequence: 1 });
    assert_eq!(test.usage("rpm").capacity, 9);
}

#[test]
fn every_refusal_by_number_has_its_code() {
    let mut test = TestBook::new();
    let writer = Writer::new("ops");
    for sequence in [0, u64::MAX] {
        let error = refused(writer.write_as(&mut test, sequence, Vec::new()));
        assert_eq!(error, WriteError::Invalid(InvalidWrite::Sequence { found: sequence }));
        assert_eq!(error.code(), "INVALID");
    }
    committed(writer.write_as(&mut test, 1, vec![open_vault("a")]));
    committed(writer.write_as(&mut test, 2, vec![open_vault("b")]));
    for (sequence, vault, code) in [(4, "b", "SEQUENCE_GAP"), (1, "b", "SEQUENCE_REUSED"), (2, "a", "SEQUENCE_REUSED")]
    {
        let error = refused(writer.write_as(&mut test, sequence, vec![open_vault(vault)]));
        assert_eq!((error.code(), error.last_committed_sequence()), (code, Some(2)));
    }
    test.advance(RESULTS_MS);
    let error = refused(writer.write_as(&mut test, 1, vec![open_vault("a")]));
    assert_eq!((error.code(), error.last_committed_sequence()), ("ALREADY_COMMITTED", Some(2)));
    assert!(matches!(writer.write_as(&mut test, 2, vec![open_vault("b")]), WriteOutcome::Exists(_)));
    assert_eq!(writer.last(&test), 2);
}

#[test]
fn what_does_not_belong_or_is_malformed_is_refused_by_place() {
    let mut test = TestBook::new();
    let mut writer = Writer::new("ops");
    let invalid = |operation, why| WriteError::Invalid(InvalidWrite::Operation { operation, why });
    let many = vec![open_vault("a"); OPERATIONS_MAX + 1];
    let found = OPERATIONS_MAX + 1;
    assert_eq!(refused(writer.write(&mut test, many)), WriteError::Invalid(InvalidWrite::TooManyOperations { found }));
    test.put_active(rolling("rpm", 5, 60));
    let kind = put(concurrency("rpm", 5, 60));
    let error = refused(writer.write(&mut test, vec![open_vault("a"), kind]));
    assert_eq!(error, invalid(1, InvalidOperation::LimitKindDiffers));
    let bad = Definition { kind: Kind::Rolling { window_seconds: 0 }, ..rolling("x", 1, 1) };
    assert!(matches!(
        refused(writer.write(&mut test, vec![put(bad)])),
        WriteError::Invalid(InvalidWrite::Operation { operation: 0, why: InvalidOperation::Definition(_) })
    ));
    assert_eq!(
        refused(writer.write(&mut test, vec![delete("never")])),
        WriteError::ConditionFailed { operation: 0, revision: 0 }
    );
    let mut in_vault = Writer::of_vault("ops", "main");
    let error = refused(in_vault.write(&mut test, vec![open_vault("a")]));
    assert_eq!((&error, error.code()), (&WriteError::WrongScope { operation: 0 }, "WRONG_SCOPE"));
    let mut nowhere = Writer::of_vault("ops", "nowhere");
    assert_eq!(refused(nowhere.write(&mut test, Vec::new())), WriteError::VaultNotFound { operation: None });
    writer.namespace = NamespaceId(9);
    let error = refused(writer.write(&mut test, Vec::new()));
    assert_eq!(error, WriteError::Invalid(InvalidWrite::UnknownNamespace));
}

#[test]
fn one_client_has_a_stream_in_every_scope() {
    let mut test = TestBook::new();
    let mut in_namespace = Writer::new("billing");
    committed(in_namespace.write(&mut test, vec![open_vault("eu")]));
    committed(in_namespace.write(&mut test, Vec::new()));
    let (mut main, mut eu) = (Writer::of_vault("billing", "main"), Writer::of_vault("billing", "eu"));
    committed(main.write(&mut test, Vec::new()));
    assert_eq!((in_namespace.last(&test), main.last(&test), eu.last(&test)), (2, 1, 0));
    committed(eu.write(&mut test, Vec::new()));
    assert_eq!(eu.last(&test), 1);
}

#[test]
fn committed_transactions_are_in_the_journal_once_and_refused_ones_are_not() {
    let mut test = TestBook::new();
    let mut writer = Writer::new("billing");
    let receipt = committed(writer.write(&mut test, vec![open_vault("eu")]));
    writer.write_as(&mut test, 1, vec![open_vault("eu")]);
    writer.write_as(&mut test, 7, Vec::new());
    let journal = test.book.drain_journal();
    assert_eq!(journal.len(), 1);
    assert!(matches!(&journal[0], earmark_core::JournalRecord::Transaction(written) if written.receipt == receipt));
    assert_eq!(test.book.drain_journal(), []);
}

#[test]
fn at_the_cap_new_clients_are_refused_and_known_ones_go_on_through_a_snapshot_too() {
    let mut test = TestBook::with(Config { clients_max: 2, ..Config::default() });
    let (mut ops, mut billing) = (Writer::new("ops"), Writer::of_vault("ops", "main"));
    committed(ops.write(&mut test, Vec::new()));
    // A refused transaction does not create a client.
    assert_eq!(refused(Writer::new("other").write(&mut test, vec![delete("never")])).code(), "CONDITION_FAILED");
    committed(billing.write(&mut test, Vec::new()));
    for _ in 0..2 {
        let error = refused(Writer::new("other").write(&mut test, Vec::new()));
        assert_eq!((&error, error.code()), (&WriteError::TooManyClients, "TOO_MANY_CLIENTS"));
        committed(ops.write(&mut test, Vec::new()));
        committed(billing.write(&mut test, Vec::new()));
        let bytes = snapshot(&mut test.book);
        test.book = restore(&bytes, bytes.len(), 2).unwrap();
    }
    assert_eq!((ops.last(&test), billing.last(&test)), (3, 3));
}

#[test]
fn the_last_ten_thousand_results_are_kept_and_the_last_of_every_client_for_ever() {
    let mut test = TestBook::new();
    let (mut quiet, mut busy) = (Writer::of_vault("quiet", "main"), Writer::of_vault("busy", "main"));
    let first = committed(quiet.write(&mut test, Vec::new()));
    let last = committed(quiet.write(&mut test, Vec::new()));
    for _ in 2..RESULTS_MAX {
        committed(busy.write(&mut test, Vec::new()));
    }
    assert_eq!(quiet.write_as(&mut test, 1, Vec::new()), WriteOutcome::Exists(first));
    committed(busy.write(&mut test, Vec::new()));
    for ms in [0, RESULTS_MS, 10 * RESULTS_MS] {
        test.advance(ms);
        let error = refused(quiet.write_as(&mut test, 1, Vec::new()));
        assert_eq!(error, WriteError::AlreadyCommitted { last_committed_sequence: 2 });
        assert_eq!(quiet.write_as(&mut test, 2, Vec::new()), WriteOutcome::Exists(Arc::clone(&last)));
        let bytes = snapshot(&mut test.book);
        test.book = restore(&bytes, bytes.len(), 2).unwrap();
    }
}

#[test]
fn a_result_is_kept_for_five_minutes_and_not_a_millisecond_longer() {
    let mut test = TestBook::new();
    let mut writer = Writer::of_vault("billing", "main");
    let first = committed(writer.write(&mut test, Vec::new()));
    test.advance(1_000);
    committed(writer.write(&mut test, Vec::new()));
    test.advance(5 * 60 * 1_000 - 1_001);
    assert_eq!(writer.write_as(&mut test, 1, Vec::new()), WriteOutcome::Exists(first));
    test.advance(1);
    let error = refused(writer.write_as(&mut test, 1, Vec::new()));
    assert_eq!(error, WriteError::AlreadyCommitted { last_committed_sequence: 2 });
    // Also for other content, since the original content is no longer known.
    let error = refused(writer.write_as(&mut test, 1, vec![open("acme")]));
    assert_eq!(error, WriteError::AlreadyCommitted { last_committed_sequence: 2 });
}

#[test]
fn a_transaction_takes_as_many_operations_as_it_may_and_every_code_of_scope_has_its_place() {
    let mut test = TestBook::new();
    let mut writer = Writer::new("ops");
    let receipt = committed(writer.write(&mut test, vec![open_vault("eu"); OPERATIONS_MAX]));
    // Opening a known vault changes nothing.
    assert_eq!(receipt.results, [OperationResult::Vault(VaultId(1)); OPERATIONS_MAX]);
    assert_eq!(
        committed(writer.write(&mut test, vec![open_vault("main")])).results,
        [OperationResult::Vault(VaultId::MAIN)]
    );
    let error = refused(writer.write(&mut test, vec![open_vault("us"), open("acme")]));
    assert_eq!(error, WriteError::WrongScope { operation: 1 });
    assert_eq!(test.book.vault(NamespaceId::DEFAULT, &vault("us")), None);
    // Every vault has its own revenue account.
    let mut in_eu = Writer::of_vault("ops", "eu");
    committed(in_eu.write(&mut test, vec![issue("revenue", "usd", 1)]));
    let gap = refused(in_eu.write_as(&mut test, u64::MAX - 1, Vec::new()));
    assert_eq!(gap, WriteError::SequenceGap { last_committed_sequence: 1 });
}

#[test]
fn a_delete_and_a_put_hold_to_the_revision_they_expect() {
    let mut test = TestBook::new();
    let mut writer = Writer::new("ops");
    committed(writer.write(&mut test, vec![put(rolling("rpm", 5, 60)), put(rolling("rpm", 6, 60))]));
    let delete_if = |revision| Operation::DeleteLimit { key: key("rpm"), expected_revision: Some(revision) };
    for operation in [delete_if(1), delete_if(0), put_if(rolling("rpm", 7, 60), 1)] {
        let error = refused(writer.write(&mut test, vec![Operation::OpenVault { vault: vault("v") }, operation]));
        assert_eq!(error, WriteError::ConditionFailed { operation: 1, revision: 2 });
    }
    committed(writer.write(&mut test, vec![put_if(rolling("rpm", 7, 60), 2), delete_if(3)]));
    let error = refused(writer.write(&mut test, vec![put_if(rolling("rpm", 1, 60), 4)]));
    assert_eq!(error, WriteError::ConditionFailed { operation: 0, revision: 0 });
    let receipt = committed(writer.write(&mut test, vec![put_if(rolling("rpm", 1, 60), 0)]));
    let status = LimitStatus::Active;
    assert_eq!(receipt.results, [OperationResult::Limit { revision: 5, status }]);
}

#[test]
fn a_vault_takes_so_many_assets_and_no_more() {
    let mut test = TestBook::new();
    let mut writer = Writer::of_vault("mint", "main");
    let asset = |number: usize| issue("revenue", &format!("asset_{number}"), 1);
    committed(writer.write(&mut test, (0..ASSETS_MAX - 1).map(asset).collect()));
    let error = refused(writer.write(&mut test, vec![asset(ASSETS_MAX), asset(ASSETS_MAX + 1)]));
    let why = InvalidOperation::TooManyAssets;
    assert_eq!(error, WriteError::Invalid(InvalidWrite::Operation { operation: 1, why }));
    // An asset of a refused transaction takes no slot.
    committed(writer.write(&mut test, vec![asset(ASSETS_MAX + 2)]));
    assert_eq!(refused(writer.write(&mut test, vec![asset(ASSETS_MAX)])).code(), "INVALID");
    assert_eq!(test.book.audit(VaultId::MAIN).len(), ASSETS_MAX);
    // A lease on an account with overdraft does not create an asset either.
    committed(writer.write(&mut test, vec![open_overdraft("acme")]));
    test.put_active(credit("usd", "acme", 60, Overage::Debt));
    let lease = test.lease();
    assert!(matches!(test.reserve(lease, &[("usd", 1)]), ReserveOutcome::InsufficientCredit(_)));
    assert_eq!(test.book.audit(VaultId::MAIN).len(), ASSETS_MAX);
}
