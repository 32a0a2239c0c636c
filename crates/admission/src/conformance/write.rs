//! Writes: each number of each client once, all operations or none.

use std::sync::Arc;

use earmark_core::{
    AccountName, Actor, AssetName, ClientId, Kind, NamespaceName, Operation, Overdraft, RESULTS_MAX, Receipt,
    VaultName, WriteError,
};

use super::Harness;
use super::desk::{Desk, definition, key, namespace};
use crate::backend::AccountPath;
use crate::ledger::{EntryKind, LedgerError, WriteAnswer, WriteRequest};

fn account(name: &str) -> AccountName {
    AccountName::new(name).expect("a case uses valid accounts")
}

fn vault(name: &str) -> VaultName {
    VaultName::new(name).expect("a case uses valid vaults")
}

fn usd() -> AssetName {
    AssetName::new("usd").expect("a valid asset")
}

fn client(name: &str) -> ClientId {
    ClientId::new(name).expect("a case uses valid clients")
}

fn open(name: &str) -> Operation {
    Operation::OpenAccount { account: account(name), overdraft: Overdraft::Deny }
}

fn open_vault(name: &str) -> Operation {
    Operation::OpenVault { vault: vault(name) }
}

fn issue(name: &str, amount: u128) -> Operation {
    Operation::Issue { account: account(name), asset: usd(), amount, memo: "bought".into() }
}

fn transfer(from: &str, to: &str, amount: u128) -> Operation {
    let (from, to) = (account(from), account(to));
    Operation::Transfer { from, to, asset: usd(), amount, memo: String::new() }
}

fn put(name: &str, expected_revision: Option<u64>) -> Operation {
    let definition = definition(name, Kind::Rolling { window_seconds: 60 }, 1);
    Operation::PutLimit { definition, expected_revision }
}

impl<H: Harness> Desk<'_, H> {
    async fn write(&self, scope: Option<&str>, sequence: u64, operations: Vec<Operation>) -> WriteAnswer {
        let request = WriteRequest {
            namespace: namespace(),
            vault: scope.map(vault),
            client: client("billing"),
            sequence,
            operations,
            actor: Actor::new("system:test").expect("a valid actor"),
        };
        self.0.backend().write(request).await.expect("a backend that answers")
    }

    async fn commit(&self, scope: Option<&str>, sequence: u64, operations: Vec<Operation>) -> Arc<Receipt> {
        match self.write(scope, sequence, operations).await {
            WriteAnswer::Committed(receipt) => receipt,
            WriteAnswer::Refused(error) => panic!("{error:?}"),
        }
    }

    async fn refuse(&self, scope: Option<&str>, sequence: u64, operations: Vec<Operation>) -> WriteError {
        match self.write(scope, sequence, operations).await {
            WriteAnswer::Committed(receipt) => panic!("{receipt:?}"),
            WriteAnswer::Refused(error) => error,
        }
    }

    async fn last(&self, scope: Option<&str>) -> u64 {
        let last = self.0.backend().client_state(namespace(), scope.map(vault), client("billing")).await;
        last.expect("a scope that exists")
    }

    async fn usd_of(&self, scope: &str, name: &str) -> i128 {
        let path = AccountPath { namespace: namespace(), vault: vault(scope), account: account(name) };
        let balances = self.0.backend().balances(path).await.expect("an account that exists");
        balances.iter().find(|balance| balance.asset == usd()).map_or(0, |balance| balance.available)
    }
}

const MAIN: Option<&str> = Some(VaultName::MAIN);

/// Whoever writes twice has written once, and hears the same.
pub async fn a_write_is_applied_once_and_its_retry_gets_the_same_answer(harness: &impl Harness) {
    let desk = Desk(harness);
    let operations = vec![open("acme"), issue("acme", 100)];
    let first = desk.commit(MAIN, 1, operations.clone()).await;
    assert_eq!((first.sequence, first.results.len(), first.actor.as_str()), (1, 2, "system:test"));
    harness.advance_ms(1_000).await;
    assert_eq!(desk.commit(MAIN, 1, operations.clone()).await, first);
    let second = desk.commit(MAIN, 2, vec![issue("acme", 1)]).await;
    assert!(second.log_index > first.log_index);
    assert_ne!(second.tx_id, first.tx_id);
    assert_eq!(desk.commit(MAIN, 1, operations).await, first);
    assert_eq!((desk.usd_of("main", "acme").await, desk.last(MAIN).await), (101, 2));
}

/// Copies of one write at once are one write.
pub async fn copies_of_a_write_at_once_are_one_write(harness: &impl Harness) {
    let desk = Desk(harness);
    desk.commit(MAIN, 1, vec![open("acme")]).await;
    let write = || desk.commit(MAIN, 2, vec![issue("acme", 7)]);
    let (a, b, c) = tokio::join!(write(), write(), write());
    assert_eq!((&a, &b), (&b, &c));
    assert_eq!(desk.usd_of("main", "acme").await, 7);
}

/// A number that is missing is asked for.
pub async fn a_gap_in_the_numbers_is_refused(harness: &impl Harness) {
    let desk = Desk(harness);
    let gap = |last_committed_sequence| WriteError::SequenceGap { last_committed_sequence };
    assert_eq!(desk.refuse(MAIN, 2, vec![]).await, gap(0));
    desk.commit(MAIN, 1, vec![]).await;
    assert_eq!(desk.refuse(MAIN, 3, vec![]).await, gap(1));
    assert_eq!(desk.last(MAIN).await, 1);
    for sequence in [0, u64::MAX] {
        assert_eq!(desk.refuse(MAIN, sequence, vec![]).await.code(), "INVALID");
    }
}

/// One number is for one content.
pub async fn a_number_with_other_content_is_refused(harness: &impl Harness) {
    let desk = Desk(harness);
    desk.commit(MAIN, 1, vec![open("acme")]).await;
    let reused = WriteError::SequenceReused { last_committed_sequence: 1 };
    assert_eq!(desk.refuse(MAIN, 1, vec![open("bob")]).await, reused);
    assert_eq!(desk.refuse(MAIN, 1, vec![]).await, reused);
}

/// Results are kept for a while; the numbers for ever.
pub async fn an_old_write_is_never_applied_again(harness: &impl Harness) {
    let desk = Desk(harness);
    desk.commit(MAIN, 1, vec![open("acme"), issue("acme", 5)]).await;
    for sequence in 2..=RESULTS_MAX as u64 + 2 {
        desk.commit(MAIN, sequence, vec![]).await;
    }
    let last_committed_sequence = RESULTS_MAX as u64 + 2;
    let error = desk.refuse(MAIN, 1, vec![open("acme"), issue("acme", 5)]).await;
    assert_eq!(error, WriteError::AlreadyCommitted { last_committed_sequence });
    assert_eq!(desk.usd_of("main", "acme").await, 5);
}

/// A write without operations takes its number from a late copy of one that failed.
pub async fn a_fence_keeps_a_late_copy_out(harness: &impl Harness) {
    let desk = Desk(harness);
    desk.commit(MAIN, 1, vec![open("acme"), open("bob")]).await;
    let late = || vec![transfer("acme", "bob", 5)];
    assert_eq!(desk.refuse(MAIN, 2, late()).await, WriteError::InsufficientCredit { operation: 0 });
    assert!(desk.commit(MAIN, 2, vec![]).await.results.is_empty());
    desk.commit(MAIN, 3, vec![issue("acme", 10)]).await;
    assert_eq!(desk.refuse(MAIN, 2, late()).await, WriteError::SequenceReused { last_committed_sequence: 3 });
    assert_eq!((desk.usd_of("main", "acme").await, desk.usd_of("main", "bob").await), (10, 0));
}

/// What failed has no number.
pub async fn a_failed_write_leaves_its_number_free(harness: &impl Harness) {
    let desk = Desk(harness);
    let error = desk.refuse(MAIN, 1, vec![issue("acme", 1)]).await;
    assert_eq!(error, WriteError::AccountNotFound { operation: 0 });
    assert_eq!(desk.last(MAIN).await, 0);
    desk.commit(MAIN, 1, vec![open("acme"), issue("acme", 1)]).await;
    assert_eq!(desk.last(MAIN).await, 1);
}

/// The same client counts by itself in a namespace and in each of its vaults.
pub async fn a_client_has_a_stream_in_every_scope(harness: &impl Harness) {
    let desk = Desk(harness);
    let eu = Some("eu");
    desk.commit(None, 1, vec![open_vault("eu"), open_vault("main")]).await;
    desk.commit(None, 2, vec![put("rpm", Some(0))]).await;
    desk.commit(None, 3, vec![]).await;
    desk.commit(MAIN, 1, vec![open("acme"), issue("acme", 1)]).await;
    desk.commit(eu, 1, vec![open("acme"), issue("acme", 2)]).await;
    desk.commit(eu, 2, vec![]).await;
    assert_eq!((desk.last(None).await, desk.last(MAIN).await, desk.last(eu).await), (3, 1, 2));
    assert_eq!((desk.usd_of("main", "acme").await, desk.usd_of("eu", "acme").await), (1, 2));
    assert_eq!(desk.usage("rpm").await.capacity, 1);
    let nowhere = harness.backend().client_state(namespace(), Some(vault("us")), client("billing")).await;
    assert_eq!(nowhere, Err(LedgerError::VaultNotFound));
    let elsewhere = NamespaceName::new("nowhere").expect("a valid name");
    let state = harness.backend().client_state(elsewhere, None, client("billing")).await;
    assert_eq!(state, Err(LedgerError::NamespaceNotFound));
}

/// One bad operation spoils all of its write and nothing else.
pub async fn a_write_with_one_bad_operation_changes_nothing(harness: &impl Harness) {
    let desk = Desk(harness);
    desk.commit(MAIN, 1, vec![open("acme"), issue("acme", 10)]).await;
    let operations = vec![open("bob"), transfer("acme", "bob", 4), transfer("bob", "nobody", 1)];
    assert_eq!(desk.refuse(MAIN, 2, operations).await, WriteError::AccountNotFound { operation: 2 });
    assert_eq!(desk.usd_of("main", "acme").await, 10);
    let path = AccountPath { namespace: namespace(), vault: vault("main"), account: account("bob") };
    assert_eq!(harness.backend().balances(path).await, Err(LedgerError::AccountNotFound));
    let limits = vec![put("rpm", None), open_vault("eu"), put("tpm", Some(5))];
    let error = desk.refuse(None, 1, limits).await;
    assert_eq!(error, WriteError::ConditionFailed { operation: 2, revision: 0 });
    let limit = harness.backend().limit(namespace(), key("rpm")).await.expect("a backend that answers");
    assert_eq!(limit, None);
    let audit = harness.backend().audit(namespace(), vault("eu")).await;
    assert_eq!(audit, Err(LedgerError::VaultNotFound));
}

/// Every refusal says what it is, and which operation is to blame.
pub async fn a_refused_write_has_its_code_and_its_operation(harness: &impl Harness) {
    let desk = Desk(harness);
    let of = |name: &str| account(name);
    desk.commit(
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
        let error = desk.refuse(scope, sequence, vec![fill, operation.clone()]).await;
        assert_eq!((error.code(), error.operation()), (code, Some(1)), "{operation:?}");
    }
    assert_eq!(desk.refuse(Some("us"), 1, vec![]).await, WriteError::VaultNotFound);
}

/// What was written can be read back entry by entry, and adds up.
pub async fn the_history_of_an_account_adds_up(harness: &impl Harness) {
    let desk = Desk(harness);
    desk.commit(MAIN, 1, vec![open("acme"), open("bob"), issue("acme", 10)]).await;
    desk.commit(MAIN, 2, vec![transfer("acme", "bob", 4)]).await;
    let retire = Operation::Retire { account: account("acme"), asset: usd(), amount: 1, memo: String::new() };
    let third = desk.commit(MAIN, 3, vec![retire]).await;
    let path = || AccountPath { namespace: namespace(), vault: vault("main"), account: account("acme") };
    let first = harness.backend().entries(path(), 0, 2).await.expect("an account that exists");
    let amounts = |page: &[crate::ledger::EntryView]| -> Vec<i128> {
        page.iter().flat_map(|entry| entry.changes.iter().map(|change| change.amount)).collect()
    };
    assert_eq!(amounts(&first.entries), [10, -4]);
    assert!(matches!(&first.entries[0].what, EntryKind::Transaction { memos, .. } if *memos == ["bought"]));
    let after = first.next.expect("a second page");
    let second = harness.backend().entries(path(), after, 2).await.expect("an account that exists");
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
