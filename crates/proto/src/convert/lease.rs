//! Requests of reserve, extend and complete.

use std::collections::HashMap;

use earmark_core::{
    EXTENSIONS_MAX, JobId, LeaseId, LeaseState, LimitKey, NamespaceName, REQUIREMENTS_MAX, SettleLabels,
};

use super::invalid::{Invalid, each};
use super::{name, namespace, optional_name};
use crate::v1;

/// A validated reserve or complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Namespace of the lease and its limits.
    pub namespace: NamespaceName,
    /// Lease id.
    pub lease: LeaseId,
    /// Job id, for logs.
    pub job: Option<JobId>,
    /// Amount per limit; each key once.
    pub amounts: Vec<(LimitKey, u64)>,
}

/// Validates a reserve.
///
/// # Errors
/// When a field is invalid.
pub fn reserve_parts(request: v1::ReserveRequest) -> Result<Parts, Invalid> {
    let own = namespace(request.namespace.as_deref())?;
    Ok(Parts {
        lease: lease_id(&request.lease_id)?,
        job: optional_name("job_id", request.job_id.as_deref())?,
        amounts: requirements(&own, "requirements", request.requirements, 1)?,
        namespace: own,
    })
}

/// Validates a complete.
///
/// # Errors
/// When a field is invalid.
pub fn complete_parts(request: v1::CompleteRequest) -> Result<(Parts, SettleLabels), Invalid> {
    let own = namespace(request.namespace.as_deref())?;
    let parts = Parts {
        lease: lease_id(&request.lease_id)?,
        job: optional_name("job_id", request.job_id.as_deref())?,
        amounts: actuals(&own, "actuals", request.actuals)?,
        namespace: own,
    };
    Ok((parts, settle_labels(request.labels)?))
}

/// Validates the labels of a complete.
///
/// # Errors
/// When there are too many, or one is not allowed.
pub fn settle_labels(labels: HashMap<String, String>) -> Result<SettleLabels, Invalid> {
    SettleLabels::new(labels).map_err(|error| Invalid::new("labels", error))
}

/// A validated extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtendParts {
    /// Namespace of the lease and its limits.
    pub namespace: NamespaceName,
    /// Lease id.
    pub lease: LeaseId,
    /// Number of the extension.
    pub number: u32,
    /// Amount to take per limit; each key once.
    pub add: Vec<(LimitKey, u64)>,
    /// Usage per limit; each key once.
    pub used: Vec<(LimitKey, u64)>,
    /// Whether to move the end of the lease.
    pub renew: bool,
}

/// Validates an extension.
///
/// # Errors
/// When a field is invalid.
pub fn extend_parts(request: v1::ExtendRequest) -> Result<ExtendParts, Invalid> {
    let own = namespace(request.namespace.as_deref())?;
    Ok(ExtendParts {
        lease: lease_id(&request.lease_id)?,
        number: Invalid::unless_within("extension", request.extension, &(1..=EXTENSIONS_MAX))?,
        add: requirements(&own, "add", request.add, 0)?,
        used: actuals(&own, "used", request.used)?,
        renew: request.renew.unwrap_or(true),
        namespace: own,
    })
}

fn requirements(
    own: &NamespaceName,
    field: &str,
    requirements: Vec<v1::Requirement>,
    min: usize,
) -> Result<Vec<(LimitKey, u64)>, Invalid> {
    let requirement = |part: v1::Requirement| {
        let key = limit_key(own, &part.key, part.namespace.as_deref())?;
        Ok((key, Invalid::unless_within("amount", part.amount, &(1..=u64::MAX))?))
    };
    each(field, requirements, &(min..=REQUIREMENTS_MAX), requirement).and_then(|amounts| no_key_twice(field, amounts))
}

fn actuals(own: &NamespaceName, field: &str, actuals: Vec<v1::Actual>) -> Result<Vec<(LimitKey, u64)>, Invalid> {
    let actual = |part: v1::Actual| Ok((limit_key(own, &part.key, part.namespace.as_deref())?, part.actual_amount));
    each(field, actuals, &(0..=REQUIREMENTS_MAX), actual).and_then(|amounts| no_key_twice(field, amounts))
}

/// The limit that a requirement or actual of a lease in the namespace `own` names.
fn limit_key(own: &NamespaceName, key: &str, namespace: Option<&str>) -> Result<LimitKey, Invalid> {
    let key: LimitKey = name("key", key)?;
    let namespace: Option<NamespaceName> = optional_name("namespace", namespace)?;
    Ok(match namespace {
        Some(namespace) => LimitKey::in_namespace(&namespace, &key).seen_from(own),
        None => key,
    })
}

/// Parses a lease id.
///
/// # Errors
/// When it is not a ULID.
pub fn lease_id(text: &str) -> Result<LeaseId, Invalid> {
    Ok(text.parse::<LeaseId>()?)
}

fn no_key_twice(field: &str, amounts: Vec<(LimitKey, u64)>) -> Result<Vec<(LimitKey, u64)>, Invalid> {
    for (index, (key, _)) in amounts.iter().enumerate() {
        if let Some(first) = amounts[..index].iter().position(|(earlier, _)| earlier == key) {
            let what = format!("found {:?} as in item {first}, allowed is each key once", key.as_str());
            return Err(Invalid::new("key", what).inside(&format!("{field}[{index}]")));
        }
    }
    Ok(amounts)
}

/// State of a lease.
#[must_use]
pub const fn state(state: LeaseState) -> v1::LeaseState {
    match state {
        LeaseState::Live => v1::LeaseState::Live,
        LeaseState::Expired => v1::LeaseState::Expired,
        LeaseState::Completed => v1::LeaseState::Completed,
        LeaseState::Denied => v1::LeaseState::Denied,
    }
}
