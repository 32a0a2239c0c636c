//! Converts messages to core values and back.
//!
//! A message is validated in full first. Errors use the wording of the HTTP API: the field, what was found, what is
//! allowed. Protobuf drops unknown fields silently, so they cannot be refused here.

mod invalid;
mod lease;
mod limit;
mod operation;
mod receipt;
mod reply;

pub use invalid::{Invalid, each};
pub use lease::{ExtendParts, Parts, complete_parts, extend_parts, lease_id, reserve_parts, settle_labels, state};
pub use limit::{definition, definition_of, info, limit_usage, sort, sort_of, status, template, usage};
pub use operation::{NOT_WITH_KEY, WriteParts, batch_parts, write_parts};
pub use receipt::{balance, grant, plan_of, success, totals, write_error};
pub use reply::{balance_in, grant_in, info_in, job_in, limit_usage_in, operation_of, state_in, status_in, usage_in};

use earmark_core::{NameError, NamespaceName, UnixMs};

/// A required name.
///
/// # Errors
/// When it is invalid.
pub fn name<T: std::str::FromStr<Err = NameError>>(field: &str, text: &str) -> Result<T, Invalid> {
    text.parse().map_err(|error| Invalid::name(field, &error))
}

/// An optional name.
///
/// # Errors
/// When it is present and invalid.
pub fn optional_name<T: std::str::FromStr<Err = NameError>>(
    field: &str,
    text: Option<&str>,
) -> Result<Option<T>, Invalid> {
    text.map(|text| name(field, text)).transpose()
}

/// A time in milliseconds of Unix time.
///
/// # Errors
/// The time is after the latest one.
pub fn time(field: &str, ms: Option<u64>) -> Result<Option<UnixMs>, Invalid> {
    let Some(ms) = ms else { return Ok(None) };
    Invalid::unless_within(field, ms, &(0..=UnixMs::MAX.get())).map(|ms| Some(UnixMs::new(ms)))
}

/// The namespace of a request, `default` if absent.
///
/// # Errors
/// When it is present and invalid.
pub fn namespace(text: Option<&str>) -> Result<NamespaceName, Invalid> {
    name("namespace", text.unwrap_or(NamespaceName::DEFAULT))
}

#[cfg(test)]
mod tests;
