//! Messages as the JSON bodies of the HTTP API: enums are texts in lower case, a debt is a number, and the result of an
//! operation on a limit is flat.

use serde::{Deserialize, Serialize};

use crate::v1;

/// Whether a sequence is absent.
pub(crate) fn is_zero(sequence: &u64) -> bool {
    *sequence == 0
}

/// A module for `serde(with)` that writes an enum as the end of its protobuf name. An unknown text becomes
/// `UNSPECIFIED`, which [`crate::convert`] refuses.
macro_rules! enums {
    ($($name:ident, $prefix:literal;)*) => {$(
        #[allow(non_snake_case, reason = "the build script names it after the enum")]
        pub(crate) mod $name {
            use serde::{Deserialize, Deserializer, Serializer};

            use crate::v1::$name;

            pub(crate) fn serialize<S: Serializer>(value: &i32, serializer: S) -> Result<S::Ok, S::Error> {
                let name = $name::try_from(*value).unwrap_or_default().as_str_name();
                serializer.serialize_str(&name.trim_start_matches($prefix).to_ascii_lowercase())
            }

            pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
                let text = String::deserialize(deserializer)?.to_ascii_uppercase();
                Ok($name::from_str_name(&format!("{}{text}", $prefix)).unwrap_or_default().into())
            }
        }
    )*};
}

enums! {
    CallOutcome, "CALL_OUTCOME_";
    AccountStatus, "ACCOUNT_STATUS_";
    EntryOrder, "ENTRY_ORDER_";
    LimitKind, "LIMIT_KIND_";
    LimitStatus, "LIMIT_STATUS_";
    LeaseState, "LEASE_STATE_";
    OnTimeout, "ON_TIMEOUT_";
    Overage, "OVERAGE_";
    Period, "PERIOD_";
    Overdraft, "OVERDRAFT_";
    UsageSort, "USAGE_SORT_";
    WriteErrorCode, "";
}

/// The same for enums that may be absent.
pub(crate) mod optional {
    macro_rules! enums {
        ($($name:ident)*) => {$(
            #[allow(non_snake_case, reason = "the build script names it after the enum")]
            pub(crate) mod $name {
                use serde::{Deserializer, Serializer};

                #[allow(clippy::ref_option, reason = "serde passes a reference to the field")]
                pub(crate) fn serialize<S: Serializer>(value: &Option<i32>, serializer: S) -> Result<S::Ok, S::Error> {
                    match value {
                        Some(value) => crate::json::$name::serialize(value, serializer),
                        None => serializer.serialize_none(),
                    }
                }

                pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
                    deserializer: D,
                ) -> Result<Option<i32>, D::Error> {
                    crate::json::$name::deserialize(deserializer).map(Some)
                }
            }
        )*};
    }

    enums! { OnTimeout Period }
}

/// A text of the message that is a number in JSON.
pub(crate) mod number {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u128(text.parse().map_err(serde::ser::Error::custom)?)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
        u128::deserialize(deserializer).map(|number| number.to_string())
    }
}

/// An account to open in JSON: a cap is an object in place of the text.
#[derive(Serialize)]
pub(crate) struct OpenAccount {
    account: String,
    overdraft: OverdraftJson,
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<v1::Plan>,
}

/// A plan in JSON: carry-over is a word, or an object with the cap.
#[derive(Serialize)]
pub(crate) struct PlanJson {
    asset: String,
    amount: String,
    #[serde(with = "Period")]
    period: i32,
    utc_offset_minutes: i32,
    carry_over: CarryOverJson,
}

#[derive(Serialize)]
#[serde(untagged)]
enum CarryOverJson {
    Word(&'static str),
    Cap { max: String },
}

impl From<v1::Plan> for PlanJson {
    fn from(plan: v1::Plan) -> PlanJson {
        let v1::Plan { asset, amount, period, utc_offset_minutes, carry_over_max } = plan;
        let carry_over = carry_over_max.map_or(CarryOverJson::Word("none"), |max| CarryOverJson::Cap { max });
        PlanJson { asset, amount, period, utc_offset_minutes, carry_over }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum OverdraftJson {
    Word(#[serde(with = "Overdraft")] i32),
    Cap { limit: String },
}

impl From<v1::OpenAccountOperation> for OpenAccount {
    fn from(open: v1::OpenAccountOperation) -> OpenAccount {
        let overdraft = match open.overdraft_limit {
            Some(limit) => OverdraftJson::Cap { limit },
            None => OverdraftJson::Word(open.overdraft),
        };
        OpenAccount { account: open.account, overdraft, plan: open.plan }
    }
}

/// The result of one operation in JSON.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum OperationResult {
    Limit(v1::LimitResult),
    Vault { vault: String },
    Account { account: String },
    Entry { entry: String },
    Client { client_id: String },
    Unknown {},
}

impl From<OperationResult> for v1::OperationResult {
    fn from(result: OperationResult) -> v1::OperationResult {
        use v1::operation_result::Result as Kind;
        let result = match result {
            OperationResult::Limit(limit) => Some(Kind::Limit(limit)),
            OperationResult::Vault { vault } => Some(Kind::Vault(vault)),
            OperationResult::Account { account } => Some(Kind::Account(account)),
            OperationResult::Entry { entry } => Some(Kind::Entry(entry)),
            OperationResult::Client { client_id } => Some(Kind::ClientId(client_id)),
            OperationResult::Unknown {} => None,
        };
        v1::OperationResult { result }
    }
}
