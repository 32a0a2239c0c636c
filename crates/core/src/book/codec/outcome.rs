//! Outcomes as bytes, to return them from the leader to the node that took the request. An outcome has one encoding
//! only.

mod complete;
mod extend;
mod invalid;
mod key;
mod pause;
mod reserve;
mod write;

use super::result::{changed, put_changed};
use super::{CodecError, limit_id, policy, put_limit_id, put_setting, quota, setting, template, time};
use crate::book::{ConfigureOutcome, LimitOutcome, NamespaceId, NamespaceOutcome, Outcome, REQUIREMENTS_MAX};
use crate::wire::{Bytes, Put};

type Result<T> = std::result::Result<T, CodecError>;

const NAMESPACE: u8 = 1;
const LIMIT: u8 = 2;
const RESERVE: u8 = 3;
const COMPLETE: u8 = 4;
const WRITE: u8 = 5;
const TICKED: u8 = 6;
const KEPT: u8 = 7;
const CONFIGURE: u8 = 8;
const EXTEND: u8 = 9;
const KEY: u8 = 32;
const UNAUTHENTICATED: u8 = 33;
const QUOTAS: u8 = 34;
const TEMPLATE: u8 = 35;
const PAUSE: u8 = 36;
const POLICY: u8 = 37;

const NAMESPACE_OPENED: u8 = 1;
const NAMESPACE_EXISTS: u8 = 2;
const NAMESPACE_TOO_MANY: u8 = 3;

const LIMIT_INVALID: u8 = 1;
const LIMIT_UNKNOWN_NAMESPACE: u8 = 2;
const LIMIT_REVISION_DIFFERS: u8 = 3;
const LIMIT_NOT_FOUND: u8 = 4;
const LIMIT_KIND_DIFFERS: u8 = 5;
const LIMIT_TOO_MANY: u8 = 6;
const LIMIT_CHANGED: u8 = 7;
const LIMIT_VAULT_NOT_FOUND: u8 = 8;
const LIMIT_QUOTA_EXCEEDED: u8 = 9;

impl Outcome {
    /// Appends the outcome to `out`: 14 bytes for an allowed lease.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Outcome::Namespace(outcome) => {
                out.put_u8(NAMESPACE);
                put_namespace(out, *outcome);
            }
            Outcome::Limit(outcome) => {
                out.put_u8(LIMIT);
                put_limit(out, outcome);
            }
            Outcome::Pause(outcome) => {
                out.put_u8(PAUSE);
                pause::put_pause(out, *outcome);
            }
            Outcome::Reserve(outcome) => {
                out.put_u8(RESERVE);
                reserve::put_reserve(out, outcome);
            }
            Outcome::Extend(outcome) => {
                out.put_u8(EXTEND);
                extend::put_extend(out, outcome);
            }
            Outcome::Complete(outcome) => {
                out.put_u8(COMPLETE);
                complete::put_complete(out, outcome);
            }
            Outcome::Write(outcome) => {
                out.put_u8(WRITE);
                write::put_write(out, outcome);
            }
            Outcome::Key(outcome) => {
                out.put_u8(KEY);
                key::put_key(out, *outcome);
            }
            Outcome::Template(outcome) => {
                out.put_u8(TEMPLATE);
                template::put_outcome(out, outcome);
            }
            Outcome::Quotas(outcome) => {
                out.put_u8(QUOTAS);
                quota::put_outcome(out, *outcome);
            }
            Outcome::Policy(outcome) => {
                out.put_u8(POLICY);
                policy::put_outcome(out, *outcome);
            }
            Outcome::Unauthenticated => out.put_u8(UNAUTHENTICATED),
            Outcome::Ticked => out.put_u8(TICKED),
            Outcome::ExternalSet => out.put_u8(KEPT),
            Outcome::Configure(outcome) => {
                out.put_u8(CONFIGURE);
                put_configure(out, *outcome);
            }
        }
    }

    /// Decodes one outcome from the front of `bytes` and returns its length. Encoding it again gives the same bytes.
    ///
    /// # Errors
    /// The bytes do not start with an outcome.
    pub fn decode(bytes: &[u8]) -> Result<(Outcome, usize)> {
        let mut input = Bytes(bytes);
        let outcome = match input.u8()? {
            NAMESPACE => Outcome::Namespace(namespace(&mut input)?),
            LIMIT => Outcome::Limit(limit(&mut input)?),
            PAUSE => Outcome::Pause(pause::pause(&mut input)?),
            RESERVE => Outcome::Reserve(reserve::reserve(&mut input)?),
            EXTEND => Outcome::Extend(extend::extend(&mut input)?),
            COMPLETE => Outcome::Complete(complete::complete(&mut input)?),
            WRITE => Outcome::Write(write::write(&mut input)?),
            KEY => Outcome::Key(key::key(&mut input)?),
            TEMPLATE => Outcome::Template(template::outcome(&mut input)?),
            QUOTAS => Outcome::Quotas(quota::outcome(&mut input)?),
            POLICY => Outcome::Policy(policy::outcome(&mut input)?),
            UNAUTHENTICATED => Outcome::Unauthenticated,
            TICKED => Outcome::Ticked,
            KEPT => Outcome::ExternalSet,
            CONFIGURE => Outcome::Configure(configure(&mut input)?),
            _ => return Err(CodecError::Malformed("its tag is unknown")),
        };
        Ok((outcome, bytes.len().saturating_sub(input.0.len())))
    }
}

fn put_namespace(out: &mut Vec<u8>, outcome: NamespaceOutcome) {
    match outcome {
        NamespaceOutcome::Opened(namespace) => {
            out.put_u8(NAMESPACE_OPENED);
            out.put_u16(namespace.0);
        }
        NamespaceOutcome::Exists(namespace) => {
            out.put_u8(NAMESPACE_EXISTS);
            out.put_u16(namespace.0);
        }
        NamespaceOutcome::TooMany => out.put_u8(NAMESPACE_TOO_MANY),
    }
}

fn namespace(input: &mut Bytes<'_>) -> Result<NamespaceOutcome> {
    Ok(match input.u8()? {
        NAMESPACE_OPENED => NamespaceOutcome::Opened(NamespaceId(input.u16()?)),
        NAMESPACE_EXISTS => NamespaceOutcome::Exists(NamespaceId(input.u16()?)),
        NAMESPACE_TOO_MANY => NamespaceOutcome::TooMany,
        _ => return Err(CodecError::Malformed("what became of its namespace is unknown")),
    })
}

fn put_configure(out: &mut Vec<u8>, outcome: ConfigureOutcome) {
    match outcome {
        ConfigureOutcome::Invalid(change) => {
            out.put_u8(0);
            put_setting(out, change);
        }
        ConfigureOutcome::Configured => out.put_u8(1),
    }
}

fn configure(input: &mut Bytes<'_>) -> Result<ConfigureOutcome> {
    Ok(if input.bool()? { ConfigureOutcome::Configured } else { ConfigureOutcome::Invalid(setting(input)?) })
}

fn put_limit(out: &mut Vec<u8>, outcome: &LimitOutcome) {
    match outcome {
        LimitOutcome::Invalid(error) => {
            out.put_u8(LIMIT_INVALID);
            invalid::put_definition_error(out, error);
        }
        LimitOutcome::UnknownNamespace => out.put_u8(LIMIT_UNKNOWN_NAMESPACE),
        LimitOutcome::RevisionDiffers { revision } => {
            out.put_u8(LIMIT_REVISION_DIFFERS);
            out.put_u64(*revision);
        }
        LimitOutcome::NotFound => out.put_u8(LIMIT_NOT_FOUND),
        LimitOutcome::KindDiffers => out.put_u8(LIMIT_KIND_DIFFERS),
        LimitOutcome::VaultNotFound => out.put_u8(LIMIT_VAULT_NOT_FOUND),
        LimitOutcome::TooMany => out.put_u8(LIMIT_TOO_MANY),
        LimitOutcome::QuotaExceeded(kind) => {
            out.put_u8(LIMIT_QUOTA_EXCEEDED);
            out.put_u8(*kind as u8);
        }
        LimitOutcome::Changed { limit, revision, status } => {
            out.put_u8(LIMIT_CHANGED);
            put_limit_id(out, *limit);
            put_changed(out, *revision, *status);
        }
    }
}

fn limit(input: &mut Bytes<'_>) -> Result<LimitOutcome> {
    Ok(match input.u8()? {
        LIMIT_INVALID => LimitOutcome::Invalid(invalid::definition_error(input)?),
        LIMIT_UNKNOWN_NAMESPACE => LimitOutcome::UnknownNamespace,
        LIMIT_REVISION_DIFFERS => LimitOutcome::RevisionDiffers { revision: input.u64()? },
        LIMIT_NOT_FOUND => LimitOutcome::NotFound,
        LIMIT_KIND_DIFFERS => LimitOutcome::KindDiffers,
        LIMIT_VAULT_NOT_FOUND => LimitOutcome::VaultNotFound,
        LIMIT_TOO_MANY => LimitOutcome::TooMany,
        LIMIT_QUOTA_EXCEEDED => LimitOutcome::QuotaExceeded(quota::kind(input)?),
        LIMIT_CHANGED => {
            let limit = limit_id(input)?;
            let (revision, status) = changed(input)?;
            LimitOutcome::Changed { limit, revision, status }
        }
        _ => return Err(CodecError::Malformed("what became of its limit is unknown")),
    })
}

/// An index or length.
fn put_size(out: &mut Vec<u8>, size: usize) {
    out.put_u64(size as u64);
}

fn size(input: &mut Bytes<'_>) -> Result<usize> {
    usize::try_from(input.u64()?).map_err(|_| CodecError::Malformed("a number is too large for this machine"))
}

fn put_list<T>(out: &mut Vec<u8>, items: &[T], mut put: impl FnMut(&mut Vec<u8>, &T)) {
    out.put_len(items.len());
    for item in items {
        put(out, item);
    }
}

/// A list with at most [`REQUIREMENTS_MAX`] items.
fn list<T>(input: &mut Bytes<'_>, mut item: impl FnMut(&mut Bytes<'_>) -> Result<T>) -> Result<Vec<T>> {
    let count = input.u32()? as usize;
    if count > REQUIREMENTS_MAX {
        return Err(CodecError::Malformed("it lists more than a lease can have"));
    }
    (0..count).map(|_| item(input)).collect()
}

#[cfg(test)]
mod tests;
