//! The outcome of a pause.

use super::{Result, put_size, size, time};
use crate::book::PauseOutcome;
use crate::book::codec::{CodecError, quota};
use crate::wire::{Bytes, Put};

const TOO_LONG: u8 = 1;
const REASON_TOO_LONG: u8 = 2;
const NOT_FOUND: u8 = 3;
const TOO_MANY: u8 = 4;
const QUOTA_EXCEEDED: u8 = 5;
const PAUSED: u8 = 6;
const RESUMED: u8 = 7;
const TOO_MANY_IN_NAMESPACE: u8 = 8;

pub(super) fn put_pause(out: &mut Vec<u8>, outcome: PauseOutcome) {
    match outcome {
        PauseOutcome::TooLong { found } => {
            out.put_u8(TOO_LONG);
            out.put_u64(found);
        }
        PauseOutcome::ReasonTooLong { found } => {
            out.put_u8(REASON_TOO_LONG);
            put_size(out, found);
        }
        PauseOutcome::NotFound => out.put_u8(NOT_FOUND),
        PauseOutcome::TooManyInNamespace => out.put_u8(TOO_MANY_IN_NAMESPACE),
        PauseOutcome::TooMany => out.put_u8(TOO_MANY),
        PauseOutcome::QuotaExceeded(kind) => {
            out.put_u8(QUOTA_EXCEEDED);
            out.put_u8(kind as u8);
        }
        PauseOutcome::Paused { until } => {
            out.put_u8(PAUSED);
            out.put_u64(until.get());
        }
        PauseOutcome::Resumed => out.put_u8(RESUMED),
    }
}

pub(super) fn pause(input: &mut Bytes<'_>) -> Result<PauseOutcome> {
    Ok(match input.u8()? {
        TOO_LONG => PauseOutcome::TooLong { found: input.u64()? },
        REASON_TOO_LONG => PauseOutcome::ReasonTooLong { found: size(input)? },
        NOT_FOUND => PauseOutcome::NotFound,
        TOO_MANY_IN_NAMESPACE => PauseOutcome::TooManyInNamespace,
        TOO_MANY => PauseOutcome::TooMany,
        QUOTA_EXCEEDED => PauseOutcome::QuotaExceeded(quota::kind(input)?),
        PAUSED => PauseOutcome::Paused { until: time(input)? },
        RESUMED => PauseOutcome::Resumed,
        _ => return Err(CodecError::Malformed("what became of its pause is unknown")),
    })
}
