//! The outcome of a transaction.

use std::sync::Arc;

use super::invalid::{invalid_write, put_invalid_write};
use super::{Result, put_size, size};
use crate::book::codec::{CodecError, put_receipt, quota, receipt};
use crate::book::{WriteError, WriteOutcome};
use crate::wire::{Bytes, Put};

const REFUSED: u8 = 1;
const EXISTS: u8 = 2;
const COMMITTED: u8 = 3;

const INVALID: u8 = 1;
const VAULT_NOT_FOUND: u8 = 2;
const SEQUENCE_GAP: u8 = 3;
const ALREADY_COMMITTED: u8 = 4;
const SEQUENCE_REUSED: u8 = 5;
const TOO_MANY_CLIENTS: u8 = 6;
const WRONG_SCOPE: u8 = 7;
const CONDITION_FAILED: u8 = 8;
const ACCOUNT_NOT_FOUND: u8 = 9;
const ACCOUNT_CLOSED: u8 = 10;
const ACCOUNT_FROZEN: u8 = 11;
const CONFLICT: u8 = 12;
const INSUFFICIENT_CREDIT: u8 = 13;
const QUOTA_EXCEEDED: u8 = 14;
const KEY_COMMITTED: u8 = 15;
const KEY_REUSED: u8 = 16;
const TOO_MANY_KEYS: u8 = 17;

pub(super) fn put_write(out: &mut Vec<u8>, outcome: &WriteOutcome) {
    match outcome {
        WriteOutcome::Refused(error) => {
            out.put_u8(REFUSED);
            put_error(out, error);
        }
        WriteOutcome::Exists(receipt) => {
            out.put_u8(EXISTS);
            put_receipt(out, receipt);
        }
        WriteOutcome::Committed(receipt) => {
            out.put_u8(COMMITTED);
            put_receipt(out, receipt);
        }
    }
}

pub(super) fn write(input: &mut Bytes<'_>) -> Result<WriteOutcome> {
    Ok(match input.u8()? {
        REFUSED => WriteOutcome::Refused(error(input)?),
        EXISTS => WriteOutcome::Exists(Arc::new(receipt(input)?)),
        COMMITTED => WriteOutcome::Committed(Arc::new(receipt(input)?)),
        _ => return Err(CodecError::Malformed("what became of its transaction is unknown")),
    })
}

fn put_error(out: &mut Vec<u8>, error: &WriteError) {
    match error {
        WriteError::Invalid(why) => {
            out.put_u8(INVALID);
            put_invalid_write(out, why);
        }
        WriteError::VaultNotFound { operation } => {
            out.put_u8(VAULT_NOT_FOUND);
            out.put_u8(operation.is_some().into());
            operation.iter().for_each(|operation| put_size(out, *operation));
        }
        WriteError::SequenceGap { last_committed_sequence } => {
            put_number(out, SEQUENCE_GAP, *last_committed_sequence);
        }
        WriteError::AlreadyCommitted { last_committed_sequence } => {
            put_number(out, ALREADY_COMMITTED, *last_committed_sequence);
        }
        WriteError::SequenceReused { last_committed_sequence } => {
            put_number(out, SEQUENCE_REUSED, *last_committed_sequence);
        }
        WriteError::TooManyClients => out.put_u8(TOO_MANY_CLIENTS),
        WriteError::KeyCommitted => out.put_u8(KEY_COMMITTED),
        WriteError::KeyReused => out.put_u8(KEY_REUSED),
        WriteError::TooManyKeys => out.put_u8(TOO_MANY_KEYS),
        WriteError::QuotaExceeded { operation, kind } => {
            out.put_u8(QUOTA_EXCEEDED);
            out.put_u8(operation.is_some().into());
            operation.iter().for_each(|operation| put_size(out, *operation));
            out.put_u8(*kind as u8);
        }
        WriteError::WrongScope { operation } => put_place(out, WRONG_SCOPE, *operation),
        WriteError::ConditionFailed { operation, revision } => {
            put_place(out, CONDITION_FAILED, *operation);
            out.put_u64(*revision);
        }
        WriteError::AccountNotFound { operation } => put_place(out, ACCOUNT_NOT_FOUND, *operation),
        WriteError::AccountClosed { operation } => put_place(out, ACCOUNT_CLOSED, *operation),
        WriteError::AccountFrozen { operation } => put_place(out, ACCOUNT_FROZEN, *operation),
        WriteError::Conflict { operation } => put_place(out, CONFLICT, *operation),
        WriteError::InsufficientCredit { operation } => put_place(out, INSUFFICIENT_CREDIT, *operation),
    }
}

fn put_number(out: &mut Vec<u8>, tag: u8, number: u64) {
    out.put_u8(tag);
    out.put_u64(number);
}

fn put_place(out: &mut Vec<u8>, tag: u8, operation: usize) {
    out.put_u8(tag);
    put_size(out, operation);
}

fn error(input: &mut Bytes<'_>) -> Result<WriteError> {
    Ok(match input.u8()? {
        INVALID => WriteError::Invalid(invalid_write(input)?),
        VAULT_NOT_FOUND => {
            WriteError::VaultNotFound { operation: if input.bool()? { Some(size(input)?) } else { None } }
        }
        SEQUENCE_GAP => WriteError::SequenceGap { last_committed_sequence: input.u64()? },
        ALREADY_COMMITTED => WriteError::AlreadyCommitted { last_committed_sequence: input.u64()? },
        SEQUENCE_REUSED => WriteError::SequenceReused { last_committed_sequence: input.u64()? },
        TOO_MANY_CLIENTS => WriteError::TooManyClients,
        KEY_COMMITTED => WriteError::KeyCommitted,
        KEY_REUSED => WriteError::KeyReused,
        TOO_MANY_KEYS => WriteError::TooManyKeys,
        QUOTA_EXCEEDED => {
            let operation = if input.bool()? { Some(size(input)?) } else { None };
            WriteError::QuotaExceeded { operation, kind: quota::kind(input)? }
        }
        WRONG_SCOPE => WriteError::WrongScope { operation: size(input)? },
        CONDITION_FAILED => WriteError::ConditionFailed { operation: size(input)?, revision: input.u64()? },
        ACCOUNT_NOT_FOUND => WriteError::AccountNotFound { operation: size(input)? },
        ACCOUNT_CLOSED => WriteError::AccountClosed { operation: size(input)? },
        ACCOUNT_FROZEN => WriteError::AccountFrozen { operation: size(input)? },
        CONFLICT => WriteError::Conflict { operation: size(input)? },
        INSUFFICIENT_CREDIT => WriteError::InsufficientCredit { operation: size(input)? },
        _ => return Err(CodecError::Malformed("why its transaction was refused is unknown")),
    })
}
