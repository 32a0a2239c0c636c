//! The outcome of a key command.

use super::Result;
use crate::book::KeyOutcome;
use crate::book::codec::{CodecError, quota};
use crate::keys::KeyNumber;
use crate::wire::{Bytes, Put};

const EXISTS: u8 = 1;
const ID_TAKEN: u8 = 2;
const NOT_THE_FIRST: u8 = 3;
const INVALID_EXPIRY: u8 = 4;
const TOO_MANY: u8 = 5;
const TOO_MANY_NAMESPACES: u8 = 6;
const CREATED: u8 = 7;
const NOT_FOUND: u8 = 8;
const LAST_ADMIN: u8 = 9;
const REVOKED: u8 = 10;
const NOT_AN_ADMIN: u8 = 11;
const CLIENT_IS_KEY: u8 = 12;
const QUOTA_EXCEEDED: u8 = 13;

pub(super) fn put_key(out: &mut Vec<u8>, outcome: KeyOutcome) {
    let mut numbered = |tag, number: KeyNumber| {
        out.put_u8(tag);
        out.put_u32(number.0);
    };
    match outcome {
        KeyOutcome::Exists(number) => numbered(EXISTS, number),
        KeyOutcome::Created(number) => numbered(CREATED, number),
        KeyOutcome::Revoked(number) => numbered(REVOKED, number),
        KeyOutcome::IdTaken => out.put_u8(ID_TAKEN),
        KeyOutcome::NotTheFirst => out.put_u8(NOT_THE_FIRST),
        KeyOutcome::NotAnAdmin => out.put_u8(NOT_AN_ADMIN),
        KeyOutcome::ClientIsKey => out.put_u8(CLIENT_IS_KEY),
        KeyOutcome::InvalidExpiry => out.put_u8(INVALID_EXPIRY),
        KeyOutcome::QuotaExceeded(kind) => {
            out.put_u8(QUOTA_EXCEEDED);
            out.put_u8(kind as u8);
        }
        KeyOutcome::TooMany => out.put_u8(TOO_MANY),
        KeyOutcome::TooManyNamespaces => out.put_u8(TOO_MANY_NAMESPACES),
        KeyOutcome::NotFound => out.put_u8(NOT_FOUND),
        KeyOutcome::LastAdmin => out.put_u8(LAST_ADMIN),
    }
}

pub(super) fn key(input: &mut Bytes<'_>) -> Result<KeyOutcome> {
    Ok(match input.u8()? {
        EXISTS => KeyOutcome::Exists(KeyNumber(input.u32()?)),
        ID_TAKEN => KeyOutcome::IdTaken,
        NOT_THE_FIRST => KeyOutcome::NotTheFirst,
        NOT_AN_ADMIN => KeyOutcome::NotAnAdmin,
        CLIENT_IS_KEY => KeyOutcome::ClientIsKey,
        INVALID_EXPIRY => KeyOutcome::InvalidExpiry,
        QUOTA_EXCEEDED => KeyOutcome::QuotaExceeded(quota::kind(input)?),
        TOO_MANY => KeyOutcome::TooMany,
        TOO_MANY_NAMESPACES => KeyOutcome::TooManyNamespaces,
        CREATED => KeyOutcome::Created(KeyNumber(input.u32()?)),
        NOT_FOUND => KeyOutcome::NotFound,
        LAST_ADMIN => KeyOutcome::LastAdmin,
        REVOKED => KeyOutcome::Revoked(KeyNumber(input.u32()?)),
        _ => return Err(CodecError::Malformed("what became of its key is unknown")),
    })
}
