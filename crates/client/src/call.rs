//! Calls: one use of a model, described by attributes and bounds. The policy of the server says which limits it needs.
//!
//! The retry rules are those of leases. [`Client::call`](crate::Client::call) sends the same lease until it has an
//! answer; after a denial the next attempt needs a new one.

use std::collections::BTreeMap;
use std::sync::Arc;

use earmark_core::{JobId, LeaseId, LimitKey, NamespaceName, SettleLabels};
use serde::{Deserialize, Serialize};

use crate::answer::ReserveAnswer;

/// A call before it is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The lease of this attempt.
    pub lease: LeaseId,
    /// The job that it belongs to.
    pub job: Option<JobId>,
    /// The attributes that the request adds to those of the key.
    pub attributes: Arc<BTreeMap<String, String>>,
    /// The most input tokens that the call may use.
    pub input_tokens_max: u64,
    /// The most output tokens that the call may use.
    pub output_tokens_max: u64,
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallAnswer {
    /// The decision.
    pub decision: CallDecision,
    /// The limits that the policy names, and the amounts.
    pub requirements: Vec<(LimitKey, u64)>,
    /// The revision of the policy that decided. [`CallExtension`] and [`CallOutcome`] repeat it.
    pub policy_revision: Option<u64>,
}

/// The decision about a call: that of its limits, or a refusal by the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallDecision {
    /// The answer of the limits.
    Limits(ReserveAnswer),
    /// The policy refuses the call.
    Refused(PolicyRefusal),
}

/// A refusal by the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRefusal {
    /// `missing_attribute:<name>`, `no_price:<model>`, `no_rule` or `denied_by_rule:<name>`.
    pub error: String,
    /// The reason in words.
    pub message: String,
}

/// The tokens that a call used. Cached and written tokens are part of the input, reasoning tokens part of the output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallUsage {
    /// All input tokens.
    pub input_tokens: u64,
    /// All output tokens.
    pub output_tokens: u64,
    /// Input tokens that were read from a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input_tokens: Option<u64>,
    /// Input tokens that were written to a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_tokens: Option<u64>,
    /// Input tokens that were written to a cache for an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_1h_tokens: Option<u64>,
    /// Output tokens of the reasoning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
    /// The tier that served the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_tier: Option<String>,
}

/// An extension of a live call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallExtension {
    /// The number: 1, 2, 3 ... An extension without an answer is repeated with the same number and the same content.
    pub number: u32,
    /// The attributes of the call.
    pub attributes: Arc<BTreeMap<String, String>>,
    /// The namespace of the call, for a gateway that acts for others. The attributes are then complete, labels included.
    pub namespace: Option<NamespaceName>,
    /// The revision of the policy that admitted the call.
    pub policy_revision: Option<u64>,
    /// More output tokens that the call may use.
    pub add_output_tokens: u64,
    /// The usage so far, which the call pays even if it never completes.
    pub used: Option<CallUsage>,
}

/// The end of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallOutcome {
    /// The attributes of the call.
    pub attributes: Arc<BTreeMap<String, String>>,
    /// The namespace of the call, for a gateway that acts for others. The attributes are then complete, labels included.
    pub namespace: Option<NamespaceName>,
    /// The revision of the policy that admitted the call.
    pub policy_revision: Option<u64>,
    /// The result.
    pub result: CallResult,
    /// The labels of its settlements, which statements group by.
    pub labels: SettleLabels,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallResult {
    /// It used these tokens.
    Used(CallUsage),
    /// It was answered, and nobody knows its usage: the bound is settled.
    Done,
    /// It was not executed: everything is released, except what an extension reported as used.
    Refused,
    /// Nobody knows whether it was executed: the bound is settled.
    Unknown,
}

/// The settlement of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallCompleted {
    /// Whether the server knew the lease and settled it, now or earlier.
    pub reconciled: bool,
    /// A note for people.
    pub message: Option<String>,
    /// The amounts that were settled.
    pub actuals: Vec<(LimitKey, u64)>,
    /// The cost in minor units, if the policy has a price.
    pub cost: Option<u128>,
}

/// The identity of a key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Identity {
    /// The caller, as it appears in the history.
    pub actor: String,
    /// The namespace of its limits and leases.
    pub namespace: String,
    /// The role.
    pub role: String,
    /// The attributes that each of its calls has.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The attributes that its calls may add.
    #[serde(default)]
    pub may_set: Vec<String>,
    /// The id of the key. A session token has none.
    #[serde(default)]
    pub key_id: Option<String>,
}

/// The answer that a call would get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallExplanation {
    /// Whether it would be allowed now.
    pub allowed: bool,
    /// The error that the answer would have, such as `denied_by_rule:<name>`; empty for a plain denial.
    pub error: String,
    /// The rules of the policy, and whether each matches.
    pub rules: Vec<(String, bool)>,
    /// The limits that it needs.
    pub limits: Vec<ExplainedLimit>,
    /// The cost of the bound in minor units, if the policy has a price.
    pub cost: Option<u128>,
}

/// A limit that a call needs, and how full it is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ExplainedLimit {
    /// The key.
    pub key: String,
    /// The amount that the call needs.
    pub amount: u64,
    /// The capacity. Absent for limits of other namespaces and for credit.
    #[serde(default)]
    pub capacity: Option<u64>,
    /// The free amount. Absent for limits of other namespaces.
    #[serde(default)]
    pub available: Option<u64>,
    /// Whether the amount fits now.
    #[serde(default)]
    pub fits: Option<bool>,
}
