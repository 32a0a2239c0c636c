//! The records of used idempotency keys and the kept answers.

use std::sync::Arc;

use super::clients::{put_receipt, read_receipt};
use super::records::time;
use crate::book::{Book, NamespaceId};
use crate::idempotency::{KeptAnswer, KeyHash, UsedKey};
use crate::sequence::{ContentHash, Kept};
use crate::wire::{Bytes, Malformed, Put};

pub(super) fn put_used_key(out: &mut Vec<u8>, key: &UsedKey) {
    out.put_u16(key.namespace.0);
    out.put(&key.hash.0);
}

pub(super) fn read_used_key(book: &mut Book, input: &mut Bytes<'_>) -> Result<(), Malformed> {
    let key = UsedKey { namespace: NamespaceId(input.u16()?), hash: KeyHash(input.u128()?.to_le_bytes()) };
    if !book.limits.has_namespace(key.namespace) || !book.idempotency.restore(key) {
        return Err(Malformed("idempotency keys are doubled, too many or in no namespace"));
    }
    Ok(())
}

pub(super) fn put_key_answer(out: &mut Vec<u8>, number: u32, answer: &KeptAnswer) {
    out.put_u32(number);
    out.put(&answer.content.0);
    out.put_u64(answer.at.get());
    put_receipt(out, &answer.result);
}

pub(super) fn read_key_answer(book: &mut Book, input: &mut Bytes<'_>) -> Result<(), Malformed> {
    let number = input.u32()?;
    let (content, at) = (ContentHash(input.u128()?.to_le_bytes()), time(input)?);
    let answer = Kept { content, at, result: Arc::new(read_receipt(None, at, input)?) };
    let now = book.limits.state.now();
    let is_right = at <= now && !answer.is_expired_answer(now) && book.idempotency.restore_answer(number, answer);
    if is_right { Ok(()) } else { Err(Malformed("answers to keys are over, too many or out of order")) }
}
