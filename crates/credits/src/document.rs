//! Plans and entries as JSON, as SQL stores keep them.
//!
//! The types of the model are the stored format. A new field needs a default; any other change needs a new version.

use std::fmt::Display;
use std::str::FromStr;

use earmark_core::{
    AccountName, AccountStatus, AssetName, CarryOver, ClientId, CreditShortage, Definition, GrantTerms, LimitKey,
    Moment, Operation, Overdraft, Period, Plan, TxId, UnixMs, VaultName,
};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::id::PostingId;
use crate::model::EntryBody;
use crate::store::StoreError;

/// The version that is written and read.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    version: u32,
    #[serde(flatten)]
    what: T,
}

/// The kind of an entry, for a column.
#[must_use]
pub const fn body_kind(body: &EntryBody) -> &'static str {
    match body {
        EntryBody::Transaction(_) => "transaction",
        EntryBody::Hold { .. } => "hold",
        EntryBody::Settle(_) => "settle",
        EntryBody::Release { .. } => "release",
        EntryBody::Refused { .. } => "refused",
        EntryBody::Expire(_) => "expire",
        EntryBody::Plan(_) => "plan",
        EntryBody::Ended { .. } => "ended",
    }
}

/// The actor of a transaction, for a column. A database cannot take it from the JSON: PostgreSQL fails on a memo with
/// a NUL character.
#[must_use]
pub fn actor(body: &EntryBody) -> Option<&str> {
    match body {
        EntryBody::Transaction(transaction) => Some(transaction.actor.as_str()),
        EntryBody::Hold { .. }
        | EntryBody::Settle(_)
        | EntryBody::Release { .. }
        | EntryBody::Refused { .. }
        | EntryBody::Expire(_)
        | EntryBody::Plan(_)
        | EntryBody::Ended { .. } => None,
    }
}

/// A plan or the body of an entry as JSON. The vault, time and effects of an entry are columns.
#[must_use]
pub fn to_json<T: Serialize>(what: &T) -> String {
    serde_json::to_string(&Versioned { version: VERSION, what }).unwrap_or_default()
}

/// Parses a plan or the body of an entry.
///
/// # Errors
/// When the JSON is neither, or has a later version.
pub fn from_json<T: DeserializeOwned>(json: &str) -> Result<T, StoreError> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let parsed = serde_json::from_str::<Versioned<T>>(json);
    let version = match &parsed {
        Ok(found) => found.version,
        Err(_) => serde_json::from_str::<Version>(json).map_or(VERSION, |found| found.version),
    };
    if version != VERSION {
        return Err(StoreError::Corrupt(format!("found version {version}, this Earmark reads {VERSION}")));
    }
    parsed.map(|found| found.what).map_err(|error| {
        let start: String = json.chars().take(200).collect();
        StoreError::Corrupt(format!("{error}: {start}"))
    })
}

/// The identity of a transaction: `client` and `sequence`, or `idempotency_key`.
pub(crate) mod write_id {
    use earmark_core::{ClientId, IdempotencyKey, WriteId};

    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Document {
        #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_text")]
        client: Option<ClientId>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sequence: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_text")]
        idempotency_key: Option<IdempotencyKey>,
    }

    pub(crate) fn serialize<S: Serializer>(id: &WriteId, serializer: S) -> Result<S::Ok, S::Error> {
        let (client, sequence, key) = (id.client(), id.sequence(), id.key());
        Document { client: client.cloned(), sequence, idempotency_key: key.cloned() }.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<WriteId, D::Error> {
        let Document { client, sequence, idempotency_key } = Document::deserialize(deserializer)?;
        match (client, sequence, idempotency_key) {
            (Some(client), Some(sequence), None) => Ok(WriteId::Sequence { client, sequence }),
            (None, None, Some(key)) => Ok(WriteId::Key(key)),
            _ => Err(D::Error::custom("expected client and sequence, or idempotency_key")),
        }
    }
}

/// Names, ids and amounts as text, in their only form.
pub(crate) mod text {
    use super::*;

    pub(crate) fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(crate) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: FromStr + Display,
        D: Deserializer<'de>,
    {
        parse(&String::deserialize(deserializer)?)
    }

    pub(super) fn parse<T: FromStr + Display, E: Error>(text: &str) -> Result<T, E> {
        let value = text.parse().ok().filter(|value: &T| value.to_string() == text);
        value.ok_or_else(|| E::custom(format_args!("invalid value {text:?}")))
    }
}

/// An optional name.
pub(crate) mod optional_text {
    use super::*;

    pub(crate) fn serialize<T: Display, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        value.as_ref().map(ToString::to_string).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr + Display,
        D: Deserializer<'de>,
    {
        Option::<String>::deserialize(deserializer)?.map(|text| text::parse(&text)).transpose()
    }
}

/// The labels of a settlement: texts by name.
pub(crate) mod settle_labels {
    use std::collections::BTreeMap;

    use earmark_core::SettleLabels;

    use super::*;

    pub(crate) fn serialize<S: Serializer>(labels: &SettleLabels, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(labels.iter())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SettleLabels, D::Error> {
        SettleLabels::new(BTreeMap::<String, String>::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// A time in milliseconds.
pub(crate) mod unix_ms {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(time: &UnixMs, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(time.get())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<UnixMs, D::Error> {
        u64::deserialize(deserializer).map(UnixMs::new)
    }
}

/// An optional time in milliseconds.
pub(crate) mod optional_ms {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(time: &Option<UnixMs>, serializer: S) -> Result<S::Ok, S::Error> {
        time.map(UnixMs::get).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<UnixMs>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(UnixMs::new))
    }
}

/// A moment as two times in milliseconds.
pub(crate) mod moment {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Times {
        #[serde(with = "unix_ms")]
        log_time_unix_ms: UnixMs,
        #[serde(with = "unix_ms")]
        wall_time_unix_ms: UnixMs,
    }

    pub(crate) fn serialize<S: Serializer>(at: &Moment, serializer: S) -> Result<S::Ok, S::Error> {
        Times { log_time_unix_ms: at.log, wall_time_unix_ms: at.wall }.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Moment, D::Error> {
        let times = Times::deserialize(deserializer)?;
        Ok(Moment { log: times.log_time_unix_ms, wall: times.wall_time_unix_ms })
    }
}

/// The priority and the expiry of credit. Plain credit has neither field.
pub(crate) mod grant_terms {
    use earmark_core::PRIORITY_DEFAULT;

    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Document {
        #[serde(default = "priority_default", skip_serializing_if = "is_default_priority")]
        priority: u8,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expires_at_unix_ms: Option<u64>,
    }

    const fn priority_default() -> u8 {
        PRIORITY_DEFAULT
    }

    const fn is_default_priority(priority: &u8) -> bool {
        *priority == PRIORITY_DEFAULT
    }

    pub(crate) fn serialize<S: Serializer>(terms: &GrantTerms, serializer: S) -> Result<S::Ok, S::Error> {
        let expires_at_unix_ms = terms.expires_at().map(UnixMs::get);
        Document { priority: terms.priority(), expires_at_unix_ms }.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<GrantTerms, D::Error> {
        let Document { priority, expires_at_unix_ms } = Document::deserialize(deserializer)?;
        Ok(GrantTerms::new(priority, expires_at_unix_ms.map(UnixMs::new)))
    }
}

/// The id of a transaction, a ULID.
pub(crate) mod tx_id {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(id: &TxId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(id)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TxId, D::Error> {
        text::deserialize::<PostingId, D>(deserializer).map(|id| TxId(id.0))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "AccountStatus", rename_all = "snake_case")]
pub(crate) enum StatusDocument {
    Open,
    Frozen,
    Closed,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Overdraft", rename_all = "snake_case")]
pub(crate) enum OverdraftDocument {
    Deny,
    Allow,
    Limit(u64),
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "CreditShortage", rename_all = "snake_case")]
pub(crate) enum ShortageDocument {
    UnknownAccount,
    Frozen,
    Closed,
    NotEnough,
}

/// An operation. Those of namespaces are in no vault, and so in no entry.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Operation", rename_all = "snake_case")]
enum OperationDocument {
    #[serde(skip)]
    PutLimit { definition: Definition, expected_revision: Option<u64> },
    #[serde(skip)]
    DeleteLimit { key: LimitKey, expected_revision: Option<u64> },
    #[serde(skip)]
    OpenVault { vault: VaultName },
    #[serde(skip)]
    DeleteVault { vault: VaultName },
    #[serde(skip)]
    RetireClient { client: ClientId },
    OpenAccount {
        #[serde(with = "text")]
        account: AccountName,
        #[serde(with = "OverdraftDocument")]
        overdraft: Overdraft,
        #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_plan")]
        plan: Option<Plan>,
    },
    SetPlan {
        #[serde(with = "text")]
        account: AccountName,
        #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_plan")]
        plan: Option<Plan>,
    },
    FreezeAccount {
        #[serde(with = "text")]
        account: AccountName,
    },
    UnfreezeAccount {
        #[serde(with = "text")]
        account: AccountName,
    },
    CloseAccount {
        #[serde(with = "text")]
        account: AccountName,
    },
    Issue {
        #[serde(with = "text")]
        account: AccountName,
        #[serde(with = "text")]
        asset: AssetName,
        #[serde(with = "text")]
        amount: u128,
        memo: String,
        #[serde(flatten, with = "grant_terms")]
        terms: GrantTerms,
    },
    Transfer {
        #[serde(with = "text")]
        from: AccountName,
        #[serde(with = "text")]
        to: AccountName,
        #[serde(with = "text")]
        asset: AssetName,
        #[serde(with = "text")]
        amount: u128,
        memo: String,
    },
    Retire {
        #[serde(with = "text")]
        account: AccountName,
        #[serde(with = "text")]
        asset: AssetName,
        #[serde(with = "text")]
        amount: u128,
        memo: String,
    },
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(remote = "Period", rename_all = "snake_case")]
enum PeriodDocument {
    Hour,
    Day,
    Week,
    Month,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(remote = "Plan")]
struct PlanDocument {
    #[serde(with = "text")]
    asset: AssetName,
    amount: u64,
    #[serde(with = "PeriodDocument")]
    period: Period,
    utc_offset_minutes: i16,
    #[serde(with = "CarryOverDocument")]
    carry_over: CarryOver,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(remote = "CarryOver", rename_all = "snake_case")]
enum CarryOverDocument {
    None,
    Max(u64),
}

/// An optional plan of an account.
pub(crate) mod optional_plan {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Item(#[serde(with = "PlanDocument")] Plan);

    pub(crate) fn serialize<S: Serializer>(plan: &Option<Plan>, serializer: S) -> Result<S::Ok, S::Error> {
        plan.clone().map(Item).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Plan>, D::Error> {
        Ok(Option::<Item>::deserialize(deserializer)?.map(|Item(plan)| plan))
    }
}

/// The operations of a transaction.
pub(crate) mod operations {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Item(#[serde(with = "OperationDocument")] Operation);

    pub(crate) fn serialize<S: Serializer>(operations: &[Operation], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(operations.iter().cloned().map(Item))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Operation>, D::Error> {
        let items = Vec::<Item>::deserialize(deserializer)?;
        Ok(items.into_iter().map(|Item(operation)| operation).collect())
    }
}

#[cfg(test)]
mod tests;
