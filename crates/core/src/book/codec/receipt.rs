//! Receipts as bytes, for the journal and for outcomes.

use super::{CodecError, moment, put_moment, put_result, read_result};
use crate::book::{OPERATIONS_MAX, Receipt, TxId};
use crate::id::Actor;
use crate::wire::{Bytes, Put};

pub(crate) fn put_receipt(out: &mut Vec<u8>, receipt: &Receipt) {
    out.put_u128(receipt.tx_id.0);
    // No sequence is 0.
    out.put_u64(receipt.sequence.unwrap_or(0));
    out.put_u64(receipt.log_index);
    put_moment(out, receipt.committed_at);
    out.put_text(receipt.actor.as_str());
    out.put_len(receipt.results.len());
    for result in &receipt.results {
        put_result(out, result);
    }
}

pub(crate) fn receipt(input: &mut Bytes<'_>) -> Result<Receipt, CodecError> {
    let (tx_id, sequence, log_index) = (TxId(input.u128()?), input.u64()?, input.u64()?);
    let sequence = Some(sequence).filter(|sequence| *sequence != 0);
    let committed_at = moment(input)?;
    let actor = Actor::new(input.text()?)?;
    let count = input.u32()? as usize;
    if count > OPERATIONS_MAX {
        return Err(CodecError::Malformed("it has too many results"));
    }
    let results = (0..count).map(|_| Ok(read_result(input)?)).collect::<Result<_, CodecError>>()?;
    Ok(Receipt { tx_id, sequence, log_index, committed_at, actor, results })
}
