//! Terms of credit as bytes.

use super::{CodecError, time};
use crate::credits::{GrantTerms, Overdraft};
use crate::time::UnixMs;
use crate::wire::{Bytes, Malformed, Put};

const DENY: u8 = 1;
const ALLOW: u8 = 2;
const LIMIT: u8 = 3;

pub(crate) fn put_grant_terms(out: &mut Vec<u8>, terms: GrantTerms) {
    out.put_u8(terms.priority());
    out.put_u64(terms.expires_at().unwrap_or(UnixMs::MAX).get());
}

pub(crate) fn grant_terms(input: &mut Bytes<'_>) -> Result<GrantTerms, CodecError> {
    let priority = input.u8()?;
    Ok(GrantTerms::new(priority, Some(time(input)?)))
}

pub(crate) fn put_overdraft(out: &mut Vec<u8>, overdraft: Overdraft) {
    match overdraft {
        Overdraft::Deny => out.put_u8(DENY),
        Overdraft::Allow => out.put_u8(ALLOW),
        Overdraft::Limit(limit) => {
            out.put_u8(LIMIT);
            out.put_u64(limit);
        }
    }
}

pub(crate) fn overdraft(input: &mut Bytes<'_>) -> Result<Overdraft, Malformed> {
    match input.u8()? {
        DENY => Ok(Overdraft::Deny),
        ALLOW => Ok(Overdraft::Allow),
        LIMIT => Ok(Overdraft::Limit(input.u64()?)),
        _ => Err(Malformed("its overdraft is unknown")),
    }
}
