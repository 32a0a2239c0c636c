//! Helpers for cases about credit.

use std::sync::Arc;

use earmark_core::{
    AccountName, Actor, AssetName, ClientId, CreditTerms, Definition, GrantTerms, Kind, Operation, Overdraft,
    Principal, Receipt, VaultName, WriteError,
};

use super::Harness;
use super::driver::{Driver, definition, namespace};
use crate::backend::AccountPath;
use crate::writes::{WriteAnswer, WriteRequest};

pub(super) const MAIN: Option<&str> = Some(VaultName::MAIN);

pub(super) fn account(name: &str) -> AccountName {
    AccountName::new(name).expect("a case uses valid accounts")
}

pub(super) fn vault(name: &str) -> VaultName {
    VaultName::new(name).expect("a case uses valid vaults")
}

pub(super) fn usd() -> AssetName {
    AssetName::new("usd").expect("a valid asset")
}

pub(super) fn client(name: &str) -> ClientId {
    ClientId::new(name).expect("a case uses valid clients")
}

pub(super) fn open(name: &str) -> Operation {
    Operation::OpenAccount { account: account(name), overdraft: Overdraft::Deny, plan: None }
}

pub(super) fn open_vault(name: &str) -> Operation {
    Operation::OpenVault { vault: vault(name) }
}

pub(super) fn issue(name: &str, amount: u128) -> Operation {
    Operation::Issue { account: account(name), asset: usd(), amount, memo: "bought".into(), terms: GrantTerms::PLAIN }
}

pub(super) fn transfer(from: &str, to: &str, amount: u128) -> Operation {
    let (from, to) = (account(from), account(to));
    Operation::Transfer { from, to, asset: usd(), amount, memo: String::new() }
}

pub(super) fn retire(name: &str, amount: u128) -> Operation {
    Operation::Retire { account: account(name), asset: usd(), amount, memo: String::new() }
}

pub(super) fn path(scope: &str, name: &str) -> AccountPath {
    AccountPath { namespace: namespace(), vault: vault(scope), account: account(name) }
}

/// A credit limit on the usd of an account, with revenue account `revenue`.
pub(super) fn credit(name: &str, scope: &str, payer: &str, timeout_seconds: u32) -> Definition {
    let terms = CreditTerms {
        timeout_seconds,
        vault: vault(scope),
        account: account(payer),
        asset: usd(),
        revenue: account(AccountName::REVENUE),
        on_timeout: Default::default(),
    };
    definition(name, Kind::Credit(terms), 0)
}

pub(super) fn put(name: &str, expected_revision: Option<u64>) -> Operation {
    let definition = definition(name, Kind::Rolling { window_seconds: 60 }, 1);
    Operation::PutLimit { definition, expected_revision }
}

pub(super) fn write_request(
    scope: Option<&str>,
    name: &str,
    sequence: u64,
    operations: Vec<Operation>,
) -> WriteRequest {
    WriteRequest {
        namespace: namespace(),
        vault: scope.map(vault),
        id: earmark_core::WriteId::Sequence { client: client(name), sequence },
        operations,
        actor: Actor::new("system:test").expect("a valid actor"),
    }
}

impl<H: Harness> Driver<'_, H> {
    pub(super) async fn write(&self, scope: Option<&str>, sequence: u64, operations: Vec<Operation>) -> WriteAnswer {
        self.0
            .backend()
            .write(Principal::System, write_request(scope, "billing", sequence, operations))
            .await
            .expect("a backend that answers")
    }

    pub(super) async fn commit(&self, scope: Option<&str>, sequence: u64, operations: Vec<Operation>) -> Arc<Receipt> {
        match self.write(scope, sequence, operations).await {
            WriteAnswer::Committed(receipt) => receipt,
            WriteAnswer::Refused(error) => panic!("{error:?}"),
        }
    }

    pub(super) async fn refuse(&self, scope: Option<&str>, sequence: u64, operations: Vec<Operation>) -> WriteError {
        match self.write(scope, sequence, operations).await {
            WriteAnswer::Committed(receipt) => panic!("{receipt:?}"),
            WriteAnswer::Refused(error) => error,
        }
    }

    pub(super) async fn last(&self, scope: Option<&str>) -> u64 {
        let last = self.0.backend().client_state(namespace(), scope.map(vault), client("billing")).await;
        last.expect("a scope that exists")
    }

    /// Commits a write with the next sequence number of its scope.
    pub(super) async fn does(&self, scope: Option<&str>, operations: Vec<Operation>) -> Arc<Receipt> {
        let last = self.last(scope).await;
        self.commit(scope, last + 1, operations).await
    }

    /// The available usd of an account.
    pub(super) async fn usd_of(&self, scope: &str, name: &str) -> i128 {
        self.purse(scope, name).await.0
    }

    /// The available and the held usd of an account.
    pub(super) async fn purse(&self, scope: &str, name: &str) -> (i128, i128) {
        let balances = self.0.backend().balances(path(scope, name)).await.expect("an account that exists");
        let found = balances.iter().find(|balance| balance.asset == usd());
        found.map_or((0, 0), |balance| (balance.available, balance.held))
    }
}
