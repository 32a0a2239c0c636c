//! Requests for credit, as a server makes them.

#![allow(dead_code, reason = "the bench uses a part")]

use std::sync::Arc;

use earmark_admission::{Amount, Credits, HoldPart, HoldRequest, SettleRequest, WriteAnswer, WriteRequest, Writer};
use earmark_core::{
    AccountName, Actor, AssetName, ClientId, CreditTerms, Definition, GrantTerms, Kind, LeaseId, LimitKey,
    NamespaceName, Operation, Overdraft, VaultName,
};
use earmark_credits::SagaCredits;

/// Initial credit of each account.
pub(crate) const DEPOSIT: u128 = 1_000_000;

pub(crate) fn namespace() -> NamespaceName {
    NamespaceName::new("default").expect("a valid name")
}

pub(crate) fn vault() -> VaultName {
    VaultName::new("main").expect("a valid vault")
}

pub(crate) fn account(number: usize) -> AccountName {
    AccountName::new(&format!("tenant-{number}")).expect("a valid account")
}

pub(crate) fn usd() -> AssetName {
    AssetName::new("usd").expect("a valid asset")
}

pub(crate) fn write(client: &str, sequence: u64, operations: Vec<Operation>) -> WriteRequest {
    WriteRequest {
        namespace: namespace(),
        vault: Some(vault()),
        id: earmark_core::WriteId::Sequence { client: ClientId::new(client).expect("a valid client"), sequence },
        operations,
        actor: Actor::new("system:test").expect("a valid actor"),
    }
}

/// A credit limit on the usd of an account.
pub(crate) fn credit_limit(key: &str, account: AccountName) -> Arc<Definition> {
    let terms = CreditTerms {
        timeout_seconds: 3_600,
        vault: vault(),
        account,
        asset: usd(),
        revenue: AccountName::new(AccountName::REVENUE).expect("a valid account"),
        on_timeout: Default::default(),
    };
    Arc::new(Definition::new(LimitKey::new(key).expect("a valid key"), Kind::Credit(terms), 0))
}

pub(crate) fn hold(lease: LeaseId, payer: usize) -> HoldRequest {
    let holds = vec![HoldPart { limit: credit_limit("usd", account(payer)), amount: 10 }];
    HoldRequest { namespace: namespace(), lease, holds }
}

pub(crate) fn settle(lease: LeaseId) -> SettleRequest {
    let actuals = vec![Amount { key: LimitKey::new("usd").expect("a valid key"), amount: 7 }];
    SettleRequest {
        namespace: namespace(),
        lease,
        actuals,
        is_release: false,
        labels: earmark_core::SettleLabels::NONE,
    }
}

/// Opens accounts with a deposit each.
pub(crate) async fn fill(credits: &SagaCredits, accounts: usize) {
    let open = |number| Operation::OpenAccount { account: account(number), overdraft: Overdraft::Deny, plan: None };
    let issue = |number| {
        let (account, asset, memo) = (account(number), usd(), String::new());
        Operation::Issue { account, asset, amount: DEPOSIT, memo, terms: GrantTerms::PLAIN }
    };
    let operations = (0..accounts).map(open).chain((0..accounts).map(issue)).collect();
    let answer = credits.write(Writer::system(), write("operator", 1, operations)).await;
    assert!(matches!(answer, Ok(WriteAnswer::Committed(_))), "{answer:?}");
}
