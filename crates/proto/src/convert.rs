//! Messages into values of the core, and back.
//!
//! A message is checked in full before anything is made of it. What is wrong is said in the words of the HTTP API:
//! which field, what was found, what is allowed. Protobuf leaves no trace of a field that it does not know, so
//! unlike there, such a field cannot be refused.

mod invalid;
mod lease;
mod limit;
mod operation;
mod receipt;
mod reply;

pub use invalid::{Invalid, each};
pub use lease::{Parts, complete_parts, lease_id, reserve_parts, state};
pub use limit::{definition, definition_of, info, status, usage};
pub use operation::{WriteParts, batch_parts, write_parts};
pub use receipt::{balance, success, totals, write_error};
pub use reply::{balance_in, info_in, operation_of, state_in, status_in, usage_in};

use earmark_core::{NameError, NamespaceName};

/// A name that must be given.
///
/// # Errors
/// When it is none.
pub fn name<T: std::str::FromStr<Err = NameError>>(field: &str, text: &str) -> Result<T, Invalid> {
    text.parse().map_err(|error| Invalid::name(field, &error))
}

/// A name that may be left out.
///
/// # Errors
/// When it is there and is none.
pub fn optional_name<T: std::str::FromStr<Err = NameError>>(
    field: &str,
    text: Option<&str>,
) -> Result<Option<T>, Invalid> {
    text.map(|text| name(field, text)).transpose()
}

/// The namespace that a request means: the one it names, else `default`.
///
/// # Errors
/// When it is there and is none.
pub fn namespace(text: Option<&str>) -> Result<NamespaceName, Invalid> {
    name("namespace", text.unwrap_or(NamespaceName::DEFAULT))
}

#[cfg(test)]
mod tests;
