//! The bodies of sequenced writes.

use earmark_admission::{LimitDocument, WriteRequest};
use earmark_core::{
    AccountName, AssetName, CarryOver, ClientId, GrantTerms, IdempotencyKey, LOOKS_LIKE_API_KEY, LimitKey,
    MEMO_BYTES_MAX, NamespaceName, OPERATIONS_MAX, Operation, Overdraft, PRIORITY_DEFAULT, Period, Plan,
    UTC_OFFSET_MINUTES, UnixMs, VaultName, contains_api_key,
};
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use serde_json::value::RawValue;

use super::parse::{Count, Object, Text};
use super::serve::Call;
use super::shape::{ANY_NUMBER, Described, Field, Shape, body, credit};
use super::write_id::IdFields;

body! {
    pub(super) struct WriteBody {
        /// The namespace. Its first limit, vault or key opens it.
        namespace: Text<NamespaceName>,
        /// The vault; without it, the write is about the namespace.
        vault: Option<Text<VaultName>>,
        /// The client that counts the sequence. It has one stream in every scope. Required without a key.
        client_id: Option<Text<ClientId>>,
        /// The last committed sequence plus 1; the same again to retry. Required without a key.
        sequence: Option<Sequence>,
        /// Identity in place of client_id and sequence; also as header Idempotency-Key. The same again to retry.
        idempotency_key: Option<Text<IdempotencyKey>>,
        /// Operations: all, or none. Without any, the write only uses up its sequence or key.
        operations: Vec<OperationBody>,
    }
}

body! {
    pub(super) struct WriteBatchBody {
        /// The namespace. Its first limit, vault or key opens it.
        namespace: Text<NamespaceName>,
        /// The vault; without it, the write is about the namespace.
        vault: Option<Text<VaultName>>,
        /// The client that counts the sequence. It has one stream in every scope. Required without a key.
        client_id: Option<Text<ClientId>>,
        /// The last committed sequence plus 1; the same again to retry. Required without a key.
        sequence: Option<Sequence>,
        /// Identity in place of client_id and sequence; also as header Idempotency-Key. The same again to retry.
        idempotency_key: Option<Text<IdempotencyKey>>,
        /// Applied in this order as one transaction, all or none. At most 256 operations in all.
        writes: Vec<Object<PartBody>>,
    }
}

body! {
    pub(super) struct PartBody {
        /// Operations.
        operations: Vec<OperationBody>,
    }
}

impl Described for Vec<OperationBody> {
    const SHAPE: Shape = Shape::List { item: &OperationBody::SHAPE, min: 0, max: OPERATIONS_MAX };
}

impl Described for Vec<Object<PartBody>> {
    const SHAPE: Shape = Shape::List { item: &PartBody::SHAPE, min: 0, max: ANY_NUMBER };
}

/// A sequence. The backend refuses the last `u64`, because none could follow it.
#[derive(Deserialize)]
#[serde(transparent)]
pub(super) struct Sequence(Count<1>);

impl Sequence {
    pub(super) const fn get(&self) -> u64 {
        self.0.0
    }
}

impl Described for Sequence {
    const SHAPE: Shape = Shape::Integer { min: 1, max: u64::MAX - 1 };
}

impl WriteBody {
    /// The request. The error names the field that does not fit the identity of the write.
    pub(super) fn into_request(self, call: &Call) -> Result<WriteRequest, String> {
        let WriteBody { namespace, vault, client_id, sequence, idempotency_key, operations } = self;
        Ok(WriteRequest {
            namespace: namespace.0,
            vault: vault.map(|vault| vault.0),
            id: IdFields { client_id, sequence, idempotency_key }.identify(call.idempotency_key.clone())?,
            operations: operations.into_iter().map(Operation::from).collect(),
            actor: call.context.caller.actor.clone(),
        })
    }
}

impl WriteBatchBody {
    /// The number of operations in each write.
    pub(super) fn parts(&self) -> Vec<usize> {
        self.writes.iter().map(|part| part.0.operations.len()).collect()
    }

    /// The request. The error names the field that does not fit the identity of the write.
    pub(super) fn into_request(self, call: &Call) -> Result<WriteRequest, String> {
        let WriteBatchBody { namespace, vault, client_id, sequence, idempotency_key, writes } = self;
        let operations = writes.into_iter().flat_map(|part| part.0.operations);
        Ok(WriteRequest {
            namespace: namespace.0,
            vault: vault.map(|vault| vault.0),
            id: IdFields { client_id, sequence, idempotency_key }.identify(call.idempotency_key.clone())?,
            operations: operations.map(Operation::from).collect(),
            actor: call.context.caller.actor.clone(),
        })
    }
}

/// Defines the operations: an object with one field, whose name is the kind.
macro_rules! operations {
    ($($(#[doc = $about:literal])+ $variant:ident($type:ty) = $name:literal,)*) => {
        #[derive(Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub(super) enum OperationBody { $($variant(Object<$type>),)* }

        impl OperationBody {
            const FIELDS: &'static [Field] = &[$(Field {
                name: $name,
                shape: <$type as Described>::SHAPE,
                is_required: true,
                about: concat!($($about),+),
            }),*];
        }

        impl Described for OperationBody {
            const SHAPE: Shape = Shape::OneOf(OperationBody::FIELDS);
        }
    };
}

operations! {
    /// Namespace: creates a limit or changes its definition.
    PutLimit(PutLimit) = "put_limit",
    /// Namespace: deletes a limit once nothing is held.
    DeleteLimit(DeleteLimit) = "delete_limit",
    /// Namespace: opens a vault.
    OpenVault(OnlyVault) = "open_vault",
    /// Namespace: deletes a vault that was never used: no account but `revenue`, no asset and no client id.
    DeleteVault(OnlyVault) = "delete_vault",
    /// Namespace or vault: retires a client id of this scope for ever and frees its memory. Needs role admin.
    RetireClient(RetireClient) = "retire_client",
    /// Vault: opens an account.
    OpenAccount(OpenAccount) = "open_account",
    /// Vault: freezes an account, so that only the cost of leases leaves it.
    FreezeAccount(OnlyAccount) = "freeze_account",
    /// Vault: lets an account spend again.
    UnfreezeAccount(OnlyAccount) = "unfreeze_account",
    /// Vault: closes an empty account for ever.
    CloseAccount(OnlyAccount) = "close_account",
    /// Vault: sets or removes the plan of an account. A first plan issues at once; new terms hold from the next period.
    SetPlan(SetPlan) = "set_plan",
    /// Vault: creates credit.
    Issue(Issue) = "issue",
    /// Vault: moves credit.
    Transfer(TwoSided) = "transfer",
    /// Vault: destroys credit.
    Retire(OneSided) = "retire",
}

body! {
    pub(super) struct PutLimit {
        /// The definition.
        definition: Object<LimitDocument>,
        /// The revision it must have now; 0: it must not exist.
        expected_revision: Option<Count<0>>,
    }
}

body! {
    pub(super) struct DeleteLimit {
        /// The limit.
        key: Text<LimitKey>,
        /// The revision it must have now.
        expected_revision: Option<Count<0>>,
    }
}

body! {
    pub(super) struct OnlyVault {
        /// The vault.
        vault: Text<VaultName>,
    }
}

body! {
    pub(super) struct RetireClient {
        /// The client id.
        client_id: Text<ClientId>,
    }
}

body! {
    pub(super) struct OpenAccount {
        /// The account.
        account: Text<AccountName>,
        /// Whether it may go below zero.
        overdraft: OverdraftBody,
        /// The recurring grant; by default none.
        plan: Option<Object<PlanBody>>,
    }
}

body! {
    pub(super) struct SetPlan {
        /// The account.
        account: Text<AccountName>,
        /// The plan; null or absent to remove it. Its credit stays until the end of the period.
        plan: Option<Object<PlanBody>>,
    }
}

body! {
    pub(super) struct PlanBody {
        /// The asset.
        asset: Text<AssetName>,
        /// The amount per period, in minor units. It expires at the end of the period.
        amount: CreditU64,
        /// The calendar period.
        period: PeriodBody,
        /// Local time of the periods, in minutes ahead of UTC; by default 0.
        utc_offset_minutes: Option<OffsetBody>,
        /// Unused credit that the next period keeps; by default none.
        carry_over: Option<CarryOverBody>,
    }
}

#[derive(Deserialize)]
#[serde(try_from = "String")]
pub(super) struct PeriodBody(Period);

impl TryFrom<String> for PeriodBody {
    type Error = &'static str;

    fn try_from(name: String) -> Result<PeriodBody, &'static str> {
        Period::from_name(&name).map(PeriodBody).ok_or("not a period")
    }
}

impl Described for PeriodBody {
    const SHAPE: Shape = Shape::Choice(&["hour", "day", "week", "month"]);
}

#[derive(Deserialize)]
#[serde(try_from = "i64")]
pub(super) struct OffsetBody(i16);

impl TryFrom<i64> for OffsetBody {
    type Error = &'static str;

    fn try_from(minutes: i64) -> Result<OffsetBody, &'static str> {
        let minutes = i16::try_from(minutes).ok().filter(|minutes| UTC_OFFSET_MINUTES.contains(minutes));
        minutes.map(OffsetBody).ok_or("not an offset from UTC")
    }
}

impl Described for OffsetBody {
    const SHAPE: Shape =
        Shape::Signed { min: *UTC_OFFSET_MINUTES.start() as i64, max: *UTC_OFFSET_MINUTES.end() as i64 };
}

/// `"none"` or a cap.
pub(super) struct CarryOverBody(CarryOver);

impl<'de> Deserialize<'de> for CarryOverBody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CarryOverBody, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        let cap = || serde_json::from_str::<Object<CarryOverCap>>(raw.get()).map_err(D::Error::custom);
        Ok(CarryOverBody(match raw.get() {
            "\"none\"" => CarryOver::None,
            _ => CarryOver::Max(cap()?.0.max.0),
        }))
    }
}

body! {
    pub(super) struct CarryOverCap {
        /// The most that the next period keeps.
        max: CreditU64,
    }
}

impl Described for CarryOverBody {
    const SHAPE: Shape = Shape::ChoiceOr(&["none"], CarryOverCap::FIELDS);
}

impl PlanBody {
    fn into_plan(self) -> Plan {
        Plan {
            asset: self.asset.0,
            amount: self.amount.0,
            period: self.period.0,
            utc_offset_minutes: self.utc_offset_minutes.map_or(0, |minutes| minutes.0),
            carry_over: self.carry_over.map_or(CarryOver::None, |carry_over| carry_over.0),
        }
    }
}

/// `"deny"`, `"allow"` or a cap.
pub(super) struct OverdraftBody(Overdraft);

impl<'de> Deserialize<'de> for OverdraftBody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OverdraftBody, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        let cap = || serde_json::from_str::<Object<OverdraftCap>>(raw.get()).map_err(D::Error::custom);
        Ok(OverdraftBody(match raw.get() {
            "\"deny\"" => Overdraft::Deny,
            "\"allow\"" => Overdraft::Allow,
            _ => Overdraft::Limit(cap()?.0.limit.0),
        }))
    }
}

body! {
    pub(super) struct OverdraftCap {
        /// The most that reserves, transfers and retirements may leave owed. Settlements may go further.
        limit: CreditU64,
    }
}

impl Described for OverdraftBody {
    const SHAPE: Shape = Shape::ChoiceOr(&["deny", "allow"], OverdraftCap::FIELDS);
}

body! {
    pub(super) struct OnlyAccount {
        /// The account.
        account: Text<AccountName>,
    }
}

body! {
    pub(super) struct Issue {
        /// The account.
        account: Text<AccountName>,
        /// The asset.
        asset: Text<AssetName>,
        /// The amount, in minor units.
        amount: Credit,
        /// The reason, for people. At most 256 bytes.
        memo: Option<Memo>,
        /// When the credit expires; by default never.
        expires_at_unix_ms: Option<ExpiryBody>,
        /// The lowest number is spent first, then what expires first; by default 128.
        priority: Option<PriorityBody>,
    }
}

/// A time before the latest one.
#[derive(Deserialize)]
#[serde(try_from = "Count<0>")]
pub(super) struct ExpiryBody(UnixMs);

impl ExpiryBody {
    const MAX: u64 = UnixMs::MAX.get() - 1;
}

impl TryFrom<Count<0>> for ExpiryBody {
    type Error = String;

    fn try_from(ms: Count<0>) -> Result<ExpiryBody, String> {
        if ms.0 > ExpiryBody::MAX {
            return Err(format!("found {}, allowed are integers from 0 to {}", ms.0, ExpiryBody::MAX));
        }
        Ok(ExpiryBody(UnixMs::new(ms.0)))
    }
}

impl Described for ExpiryBody {
    const SHAPE: Shape = Shape::Integer { min: 0, max: ExpiryBody::MAX };
}

#[derive(Deserialize)]
#[serde(transparent)]
pub(super) struct PriorityBody(u8);

impl Described for PriorityBody {
    const SHAPE: Shape = Shape::Integer { min: 0, max: u8::MAX as u64 };
}

body! {
    pub(super) struct OneSided {
        /// The account.
        account: Text<AccountName>,
        /// The asset.
        asset: Text<AssetName>,
        /// The amount, in minor units.
        amount: Credit,
        /// The reason, for people. At most 256 bytes.
        memo: Option<Memo>,
    }
}

body! {
    pub(super) struct TwoSided {
        /// The account that pays.
        from: Text<AccountName>,
        /// The account that is paid.
        to: Text<AccountName>,
        /// The asset.
        asset: Text<AssetName>,
        /// The amount, in minor units.
        amount: Credit,
        /// The reason, for people. At most 256 bytes.
        memo: Option<Memo>,
    }
}

/// A memo. The backend checks its length.
#[derive(Default, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Memo(String);

impl TryFrom<String> for Memo {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Memo, &'static str> {
        if contains_api_key(&text) { Err(LOOKS_LIKE_API_KEY) } else { Ok(Memo(text)) }
    }
}

impl Described for Memo {
    const SHAPE: Shape = Shape::Text { bytes_max: MEMO_BYTES_MAX };
}

/// An amount of credit, parsed from the raw JSON, so that no float rounds it.
pub(super) struct Credit(u128);

impl Described for Credit {
    const SHAPE: Shape = Shape::Credit { max: i128::MAX.unsigned_abs() };
}

impl<'de> Deserialize<'de> for Credit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Credit, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        credit(raw.get()).map(Credit).ok_or_else(|| D::Error::custom("not an amount of credit"))
    }
}

/// An amount of credit of at most 64 bits.
pub(super) struct CreditU64(u64);

impl Described for CreditU64 {
    const SHAPE: Shape = Shape::Credit { max: u64::MAX as u128 };
}

impl<'de> Deserialize<'de> for CreditU64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CreditU64, D::Error> {
        let Credit(amount) = Credit::deserialize(deserializer)?;
        u64::try_from(amount).map(CreditU64).map_err(|_| D::Error::custom("not an amount of credit of 64 bits"))
    }
}

impl From<OperationBody> for Operation {
    fn from(body: OperationBody) -> Operation {
        match body {
            OperationBody::PutLimit(Object(PutLimit { definition, expected_revision })) => Operation::PutLimit {
                definition: definition.0.into_definition(),
                expected_revision: expected_revision.map(|revision| revision.0),
            },
            OperationBody::DeleteLimit(Object(DeleteLimit { key, expected_revision })) => {
                let expected_revision = expected_revision.map(|revision| revision.0);
                Operation::DeleteLimit { key: key.0, expected_revision }
            }
            OperationBody::OpenVault(Object(OnlyVault { vault })) => Operation::OpenVault { vault: vault.0 },
            OperationBody::DeleteVault(Object(OnlyVault { vault })) => Operation::DeleteVault { vault: vault.0 },
            OperationBody::RetireClient(Object(body)) => Operation::RetireClient { client: body.client_id.0 },
            OperationBody::OpenAccount(Object(OpenAccount { account, overdraft, plan })) => {
                let plan = plan.map(|plan| plan.0.into_plan());
                Operation::OpenAccount { account: account.0, overdraft: overdraft.0, plan }
            }
            OperationBody::SetPlan(Object(SetPlan { account, plan })) => {
                Operation::SetPlan { account: account.0, plan: plan.map(|plan| plan.0.into_plan()) }
            }
            OperationBody::FreezeAccount(Object(body)) => Operation::FreezeAccount { account: body.account.0 },
            OperationBody::UnfreezeAccount(Object(body)) => Operation::UnfreezeAccount { account: body.account.0 },
            OperationBody::CloseAccount(Object(body)) => Operation::CloseAccount { account: body.account.0 },
            OperationBody::Issue(Object(body)) => {
                let Issue { account, asset, amount, memo, expires_at_unix_ms, priority } = body;
                let memo = memo.unwrap_or_default().0;
                let priority = priority.map_or(PRIORITY_DEFAULT, |priority| priority.0);
                let terms = GrantTerms::new(priority, expires_at_unix_ms.map(|at| at.0));
                Operation::Issue { account: account.0, asset: asset.0, amount: amount.0, memo, terms }
            }
            OperationBody::Transfer(Object(TwoSided { from, to, asset, amount, memo })) => {
                let (from, to, memo) = (from.0, to.0, memo.unwrap_or_default().0);
                Operation::Transfer { from, to, asset: asset.0, amount: amount.0, memo }
            }
            OperationBody::Retire(Object(OneSided { account, asset, amount, memo })) => {
                let memo = memo.unwrap_or_default().0;
                Operation::Retire { account: account.0, asset: asset.0, amount: amount.0, memo }
            }
        }
    }
}
