//! The records of API keys.

use crate::book::{Book, CodecError};
use crate::id::ClientId;
use crate::keys::{KEYS_MAX, Key, KeyInfo, KeyNumber};
use crate::wire::{Bytes, Malformed, Put, Wire};

pub(super) fn put_key(out: &mut Vec<u8>, key: &Key) {
    let info = &key.info;
    info.number.write(out);
    info.id.write(out);
    key.secret.write(out);
    info.name.write(out);
    info.role.write(out);
    info.namespace.write(out);
    out.put_text(info.client.as_ref().map_or("", ClientId::as_str));
    info.labels.write(out);
    info.may_set.write(out);
    info.created_at.write(out);
    info.created_by.write(out);
    info.expires_at.write(out);
    info.revoked_at.write(out);
}

pub(super) fn read_key(book: &mut Book, input: &mut Bytes<'_>) -> Result<(), Malformed> {
    let number = KeyNumber(input.u32()?);
    let is_in_order = book.keys.all.keys().next_back().is_none_or(|last| *last < number);
    let key = read(number, input)?;
    let now = book.limits.state.now();
    let info = &key.info;
    let is_of_the_past = info.created_at <= now && info.revoked_at.is_none_or(|at| at <= now);
    let ends_late = info.expires_at.is_none_or(|end| end > info.created_at)
        && info.revoked_at.is_none_or(|at| at >= info.created_at);
    if !is_of_the_past || !ends_late || book.limits.namespace(&info.namespace).is_none() {
        return Err(Malformed("a key contradicts itself"));
    }
    if !is_in_order || book.keys.all.len() >= KEYS_MAX || !book.keys.insert(key) {
        return Err(Malformed("keys are doubled, too many or out of order"));
    }
    Ok(())
}

fn read(number: KeyNumber, input: &mut Bytes<'_>) -> Result<Key, CodecError> {
    let id = Wire::read(input)?;
    let secret = Wire::read(input)?;
    let info = KeyInfo {
        number,
        id,
        name: Wire::read(input)?,
        role: Wire::read(input)?,
        namespace: Wire::read(input)?,
        client: match input.text()? {
            "" => None,
            client => Some(ClientId::new(client)?),
        },
        labels: Wire::read(input)?,
        may_set: Wire::read(input)?,
        created_at: Wire::read(input)?,
        created_by: Wire::read(input)?,
        expires_at: Wire::read(input)?,
        revoked_at: Wire::read(input)?,
    };
    Ok(Key::new(info, secret))
}
