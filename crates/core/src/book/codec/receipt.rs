//! Receipts as bytes, for the journal and for outcomes, and the results of operations, also for snapshots.

use super::CodecError;
use crate::book::{LimitStatus, OPERATIONS_MAX, OperationResult, Receipt};
use crate::wire::{Bytes, Put, Wire, wire_enum, wire_struct};

wire_struct!(Receipt { tx_id, sequence via sequence, log_index, committed_at, actor, results via results });

/// No sequence is 0.
mod sequence {
    use super::{Bytes, CodecError, Put};

    pub(super) fn write(sequence: &Option<u64>, out: &mut Vec<u8>) {
        out.put_u64(sequence.unwrap_or(0));
    }

    pub(super) fn read(input: &mut Bytes<'_>) -> Result<Option<u64>, CodecError> {
        Ok(Some(input.u64()?).filter(|sequence| *sequence != 0))
    }
}

mod results {
    use super::{Bytes, CodecError, OPERATIONS_MAX, OperationResult, Put, Wire};

    pub(super) fn write(results: &[OperationResult], out: &mut Vec<u8>) {
        out.put_len(results.len());
        results.iter().for_each(|result| result.write(out));
    }

    pub(super) fn read(input: &mut Bytes<'_>) -> Result<Vec<OperationResult>, CodecError> {
        let count = input.u32()? as usize;
        if count > OPERATIONS_MAX {
            return Err(CodecError::Malformed("it has too many results"));
        }
        (0..count).map(|_| OperationResult::read(input)).collect()
    }
}

wire_enum!(OperationResult or "the result of an operation is unknown" {
    1 => Limit { revision, status },
    2 => Vault(vault),
    3 => Account(account),
    4 => Entry,
    5 => Client,
});

impl Wire for LimitStatus {
    fn write(&self, out: &mut Vec<u8>) {
        let (status, to) = match *self {
            LimitStatus::Active => (1, 0),
            LimitStatus::Decreasing { to } => (2, to),
            LimitStatus::Deleted => (3, 0),
        };
        out.put_u8(status);
        out.put_u64(to);
    }

    fn read(input: &mut Bytes<'_>) -> Result<LimitStatus, CodecError> {
        match (input.u8()?, input.u64()?) {
            (1, 0) => Ok(LimitStatus::Active),
            (2, to) => Ok(LimitStatus::Decreasing { to }),
            (3, 0) => Ok(LimitStatus::Deleted),
            _ => Err(CodecError::Malformed("the status of a limit is unknown")),
        }
    }
}
