//! Deleted vaults: what a vault that nobody used gives back.

use earmark_core::{
    AccountId, ExternalParts, InvalidOperation, InvalidWrite, Kind, Operation, OperationResult, Overage, QuotaKind,
    ReserveOutcome, SetQuotas, VaultId, WriteError, WriteOutcome,
};

use crate::support::bank::{account, credit, issue, open, retire};
use crate::support::snapshot::{restore, snapshot};
use crate::support::step::Step;
use crate::support::test_book::TestBook;
use crate::support::writer::{Writer, vault};

fn open_vault(name: &str) -> Operation {
    Operation::OpenVault { vault: vault(name) }
}

fn delete_vault(name: &str) -> Operation {
    Operation::DeleteVault { vault: vault(name) }
}

/// The vault of the only result of a committed write.
fn number(outcome: WriteOutcome) -> VaultId {
    match outcome {
        WriteOutcome::Committed(receipt) => match receipt.results[..] {
            [OperationResult::Vault(vault)] => vault,
            ref other => panic!("no vault: {other:?}"),
        },
        other => panic!("not committed: {other:?}"),
    }
}

fn used(test: &TestBook, kind: QuotaKind) -> u64 {
    let quotas = test.book.quotas(test.now(), test.namespace);
    quotas.iter().find(|usage| usage.kind == kind).unwrap().used
}

fn conflict(operation: usize) -> WriteOutcome {
    WriteOutcome::Refused(WriteError::Conflict { operation })
}

/// Regression: a vault kept its place for ever, so one writer used up the table of all tenants for good.
#[test]
fn a_deleted_vault_gives_its_quota_and_its_account_back_and_its_number_is_not_used_again() {
    let mut test = TestBook::new();
    let mut ops = Writer::new("ops");
    let quotas = [(QuotaKind::Vaults, 3), (QuotaKind::Accounts, 3)].into_iter().collect();
    test.apply(&Step::SetQuotas(SetQuotas { namespace: "default".parse().unwrap(), quotas }));
    assert_eq!(number(ops.write(&mut test, vec![open_vault("eu")])), VaultId(1));
    assert_eq!(number(ops.write(&mut test, vec![open_vault("us")])), VaultId(2));
    let full = WriteError::QuotaExceeded { operation: Some(0), kind: QuotaKind::Vaults };
    assert_eq!(ops.write(&mut test, vec![open_vault("asia")]), WriteOutcome::Refused(full));

    assert_eq!(number(ops.write(&mut test, vec![delete_vault("eu")])), VaultId(1));
    assert_eq!((used(&test, QuotaKind::Vaults), used(&test, QuotaKind::Accounts)), (2, 2));
    assert_eq!(test.book.vault_name(VaultId(1)), None);
    assert_eq!(test.book.vault(test.namespace, &vault("eu")), None);
    let bytes = snapshot(&mut test.book);
    let mut again = restore(&bytes, 1 << 20, 7).unwrap();
    assert_eq!(snapshot(&mut again), bytes);
    test.book = again;
    // Its name may be used again, its number may not. The next account takes the record of its account.
    assert_eq!(number(ops.write(&mut test, vec![open_vault("eu")])), VaultId(3));
    assert_eq!(test.book.account(VaultId(3), &account("revenue")).unwrap().id, AccountId(1));
    assert_eq!(test.book.accounts(AccountId(0)).count(), 3);
}

#[test]
fn the_highest_number_stays_used_after_a_snapshot_without_its_vault() {
    let mut test = TestBook::new();
    let mut ops = Writer::new("ops");
    ops.write(&mut test, vec![open_vault("eu")]);
    ops.write(&mut test, vec![delete_vault("eu")]);
    test.book = restore(&snapshot(&mut test.book), 1 << 20, 7).unwrap();
    assert_eq!(number(ops.write(&mut test, vec![open_vault("eu")])), VaultId(2));
}

#[test]
fn opening_and_deleting_vaults_again_and_again_takes_no_memory() {
    let mut test = TestBook::new();
    let mut ops = Writer::new("ops");
    let mut sizes = Vec::new();
    for round in 0..600 {
        let name = format!("v{}", round % 7);
        ops.write(&mut test, vec![open_vault(&name)]);
        ops.write(&mut test, vec![delete_vault(&name)]);
        _ = test.book.drain_journal();
        test.advance(1_000);
        sizes.push(snapshot(&mut test.book).len());
    }
    assert_eq!(sizes[400], sizes[599], "results are kept for five minutes, nothing else grows");
    assert_eq!(test.book.accounts(AccountId(0)).count(), 1);
}

#[test]
fn a_vault_that_was_used_is_not_deleted() {
    let mut test = TestBook::new();
    let mut ops = Writer::new("ops");
    for (name, operations) in [
        ("account", vec![open("acme")]),
        ("asset", vec![issue("revenue", "usd", 1), retire("revenue", "usd", 1)]),
        ("client", Vec::new()),
    ] {
        ops.write(&mut test, vec![open_vault(name)]);
        let written = Writer::of_vault("bank", name).write(&mut test, operations);
        assert!(matches!(written, WriteOutcome::Committed(_)), "{name}: {written:?}");
        assert_eq!(ops.write(&mut test, vec![delete_vault(name)]), conflict(0), "{name}");
    }
    assert_eq!(ops.write(&mut test, vec![delete_vault("main")]), conflict(0));
    let missing = WriteOutcome::Refused(WriteError::VaultNotFound { operation: Some(0) });
    assert_eq!(ops.write(&mut test, vec![delete_vault("nowhere")]), missing);
}

#[test]
fn a_vault_whose_clients_are_retired_is_deleted_and_no_late_copy_of_their_writes_applies() {
    let mut test = TestBook::new();
    let mut ops = Writer::new("ops");
    ops.write(&mut test, vec![open_vault("eu")]);
    let mut bank = Writer::of_vault("bank", "eu");
    bank.write(&mut test, Vec::new());
    let client = "bank".parse().unwrap();
    let retire = vec![Operation::RetireClient { client }];
    assert!(matches!(Writer::of_vault("admin", "eu").write(&mut test, retire), WriteOutcome::Committed(_)));
    // The client that retired the other has written in the vault itself.
    assert_eq!(ops.write(&mut test, vec![delete_vault("eu")]), conflict(0));
    let admin = vec![Operation::RetireClient { client: "admin".parse().unwrap() }];
    assert!(matches!(keyed(&mut test, "bye", admin), WriteOutcome::Committed(_)));
    assert_eq!(number(ops.write(&mut test, vec![delete_vault("eu")])), VaultId(1));
    assert_eq!(number(ops.write(&mut test, vec![open_vault("eu")])), VaultId(2));
    let late = bank.write_as(&mut test, 1, Vec::new());
    let client = "bank".parse().unwrap();
    assert_eq!(late, WriteOutcome::Refused(WriteError::Invalid(InvalidWrite::ClientRetired { client })));
}

/// A write in the vault `eu` under an idempotency key.
fn keyed(test: &mut TestBook, key: &str, operations: Vec<Operation>) -> WriteOutcome {
    let write = earmark_core::Write {
        namespace: test.namespace,
        vault: Some(vault("eu")),
        id: earmark_core::WriteId::Key(key.parse().unwrap()),
        operations,
        tx_id: earmark_core::TxId(1),
        log_index: 1,
        actor: "user:7".parse().unwrap(),
    };
    match test.apply(&Step::Write(Box::new(write))) {
        earmark_core::Outcome::Write(outcome) => outcome,
        other => panic!("no answer to a write: {other:?}"),
    }
}

#[test]
fn a_refused_write_deletes_nothing_and_a_vault_is_deleted_at_the_end_of_its_write() {
    let mut test = TestBook::new();
    let mut ops = Writer::new("ops");
    ops.write(&mut test, vec![open_vault("eu"), open_vault("us")]);
    let before = snapshot(&mut test.book);
    let twice = WriteOutcome::Refused(WriteError::VaultNotFound { operation: Some(1) });
    assert_eq!(ops.write(&mut test, vec![delete_vault("eu"), delete_vault("eu")]), twice);
    assert_eq!(ops.write(&mut test, vec![delete_vault("eu"), open_vault("eu")]), conflict(1));
    assert_eq!(ops.write(&mut test, vec![open_vault("asia"), delete_vault("eu"), delete_vault("main")]), conflict(2));
    assert_eq!(snapshot(&mut test.book), before);
    let outcome = ops.write(&mut test, vec![open_vault("asia"), delete_vault("asia"), delete_vault("us")]);
    assert!(matches!(outcome, WriteOutcome::Committed(_)), "{outcome:?}");
    let names: Vec<&str> = test.book.vault_names(test.namespace, None).map(|name| name.as_str()).collect();
    assert_eq!(names, ["eu", "main"]);
}

#[test]
fn a_limit_of_a_deleted_vault_reserves_nothing_until_the_vault_is_opened_again() {
    let mut test = TestBook::new();
    let mut ops = Writer::new("ops");
    ops.write(&mut test, vec![open_vault("eu")]);
    let mut limit = credit("usd", "revenue", 60, Overage::Debt);
    if let Kind::Credit(terms) = &mut limit.kind {
        terms.vault = vault("eu");
    }
    test.put_active(limit);
    let lease = test.lease();
    assert!(matches!(test.reserve(lease, &[("usd", 1)]), ReserveOutcome::InsufficientCredit(_)));
    assert_eq!(number(ops.write(&mut test, vec![delete_vault("eu")])), VaultId(1));
    // Another account takes the record of its revenue account. The limit must not pay from it.
    ops.write(&mut test, vec![open_vault("us")]);
    let mut bank = Writer::of_vault("bank", "us");
    assert!(matches!(bank.write(&mut test, vec![issue("revenue", "usd", 9)]), WriteOutcome::Committed(_)));
    let lease = test.lease();
    assert!(matches!(test.reserve(lease, &[("usd", 1)]), ReserveOutcome::AccountNotFound { .. }));
    ops.write(&mut test, vec![open_vault("eu")]);
    let lease = test.lease();
    assert!(matches!(test.reserve(lease, &[("usd", 1)]), ReserveOutcome::InsufficientCredit(_)));
}

/// A vault that is empty in the Book may have credit in a database.
#[test]
fn no_vault_is_deleted_while_a_database_keeps_the_credit() {
    let mut test = TestBook::new();
    let mut ops = Writer::new("ops");
    ops.write(&mut test, vec![open_vault("eu")]);
    test.set_external(ExternalParts { limits: false, credit: true });
    let why = InvalidOperation::CreditExternal;
    let refused = WriteOutcome::Refused(WriteError::Invalid(InvalidWrite::Operation { operation: 0, why }));
    assert_eq!(ops.write(&mut test, vec![delete_vault("eu")]), refused);
}
