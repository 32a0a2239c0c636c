//! The bodies of sequenced writes, and what they are made of.

use earmark_admission::{LimitDocument, WriteRequest};
use earmark_core::{
    AccountName, Actor, AssetName, ClientId, LimitKey, NamespaceName, Operation, Overdraft, VaultName,
};
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use serde_json::value::RawValue;

use super::parse::{Count, Object, Text};
use super::shape::credit;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteBody {
    namespace: Text<NamespaceName>,
    #[serde(default)]
    vault: Option<Text<VaultName>>,
    client_id: Text<ClientId>,
    sequence: Count<1>,
    operations: Vec<OperationBody>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteBatchBody {
    namespace: Text<NamespaceName>,
    #[serde(default)]
    vault: Option<Text<VaultName>>,
    client_id: Text<ClientId>,
    sequence: Count<1>,
    writes: Vec<Object<PartBody>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PartBody {
    operations: Vec<OperationBody>,
}

impl WriteBody {
    pub(super) fn into_request(self, actor: &Actor) -> WriteRequest {
        WriteRequest {
            namespace: self.namespace.0,
            vault: self.vault.map(|vault| vault.0),
            client: self.client_id.0,
            sequence: self.sequence.0,
            operations: self.operations.into_iter().map(Operation::from).collect(),
            actor: actor.clone(),
        }
    }
}

impl WriteBatchBody {
    pub(super) fn into_request(self, actor: &Actor) -> WriteRequest {
        let operations = self.writes.into_iter().flat_map(|part| part.0.operations);
        WriteRequest {
            namespace: self.namespace.0,
            vault: self.vault.map(|vault| vault.0),
            client: self.client_id.0,
            sequence: self.sequence.0,
            operations: operations.map(Operation::from).collect(),
            actor: actor.clone(),
        }
    }
}

/// One operation: an object with one field, its kind.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum OperationBody {
    PutLimit(Object<PutLimit>),
    DeleteLimit(Object<DeleteLimit>),
    OpenVault(Object<OpenVault>),
    OpenAccount(Object<OpenAccount>),
    FreezeAccount(Object<OnlyAccount>),
    UnfreezeAccount(Object<OnlyAccount>),
    CloseAccount(Object<OnlyAccount>),
    Issue(Object<OneSided>),
    Transfer(Object<TwoSided>),
    Retire(Object<OneSided>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PutLimit {
    definition: Object<LimitDocument>,
    #[serde(default)]
    expected_revision: Option<Count<0>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeleteLimit {
    key: Text<LimitKey>,
    #[serde(default)]
    expected_revision: Option<Count<0>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OpenVault {
    vault: Text<VaultName>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OpenAccount {
    account: Text<AccountName>,
    overdraft: OverdraftBody,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OverdraftBody {
    Deny,
    Allow,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OnlyAccount {
    account: Text<AccountName>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OneSided {
    account: Text<AccountName>,
    asset: Text<AssetName>,
    amount: Credit,
    #[serde(default)]
    memo: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TwoSided {
    from: Text<AccountName>,
    to: Text<AccountName>,
    asset: Text<AssetName>,
    amount: Credit,
    #[serde(default)]
    memo: Option<String>,
}

/// An amount of credit, read as it was written: no float comes between.
struct Credit(u128);

impl<'de> Deserialize<'de> for Credit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Credit, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        credit(raw.get()).map(Credit).ok_or_else(|| D::Error::custom("no amount of credit"))
    }
}

impl From<OperationBody> for Operation {
    fn from(body: OperationBody) -> Operation {
        match body {
            OperationBody::PutLimit(Object(PutLimit { definition, expected_revision })) => {
                Operation::PutLimit {
                    definition: definition.0.into_definition(),
                    expected_revision: expected_revision.map(|revision| revision.0),
                }
            }
            OperationBody::DeleteLimit(Object(DeleteLimit { key, expected_revision })) => {
                let expected_revision = expected_revision.map(|revision| revision.0);
                Operation::DeleteLimit { key: key.0, expected_revision }
            }
            OperationBody::OpenVault(Object(OpenVault { vault })) => Operation::OpenVault { vault: vault.0 },
            OperationBody::OpenAccount(Object(OpenAccount { account, overdraft })) => {
                let overdraft = match overdraft {
                    OverdraftBody::Deny => Overdraft::Deny,
                    OverdraftBody::Allow => Overdraft::Allow,
                };
                Operation::OpenAccount { account: account.0, overdraft }
            }
            OperationBody::FreezeAccount(Object(body)) => {
                Operation::FreezeAccount { account: body.account.0 }
            }
            OperationBody::UnfreezeAccount(Object(body)) => {
                Operation::UnfreezeAccount { account: body.account.0 }
            }
            OperationBody::CloseAccount(Object(body)) => Operation::CloseAccount { account: body.account.0 },
            OperationBody::Issue(Object(OneSided { account, asset, amount, memo })) => {
                let memo = memo.unwrap_or_default();
                Operation::Issue { account: account.0, asset: asset.0, amount: amount.0, memo }
            }
            OperationBody::Transfer(Object(TwoSided { from, to, asset, amount, memo })) => {
                let (from, to, memo) = (from.0, to.0, memo.unwrap_or_default());
                Operation::Transfer { from, to, asset: asset.0, amount: amount.0, memo }
            }
            OperationBody::Retire(Object(OneSided { account, asset, amount, memo })) => {
                let memo = memo.unwrap_or_default();
                Operation::Retire { account: account.0, asset: asset.0, amount: amount.0, memo }
            }
        }
    }
}
