//! The records of API keys.

use super::records::time;
use crate::book::Book;
use crate::id::{Actor, ClientId, KeyId, KeyName, NamespaceName};
use crate::keys::{KEYS_MAX, Key, KeyInfo, KeyNumber, Labels, MaySet, Role, SecretHash};
use crate::time::UnixMs;
use crate::wire::{Bytes, Malformed, Put};

type Result<T> = std::result::Result<T, Malformed>;

pub(super) fn put_key(out: &mut Vec<u8>, key: &Key) {
    let info = &key.info;
    out.put_u32(info.number.0);
    out.put_text(info.id.as_str());
    out.put(key.secret.as_bytes());
    out.put_text(info.name.as_str());
    out.put_u8(info.role as u8);
    out.put_text(info.namespace.as_str());
    out.put_text(info.client.as_ref().map_or("", ClientId::as_str));
    info.labels.put(out);
    info.may_set.put(out);
    out.put_u64(info.created_at.get());
    out.put_text(info.created_by.as_str());
    put_time(out, info.expires_at);
    put_time(out, info.revoked_at);
}

fn put_time(out: &mut Vec<u8>, time: Option<UnixMs>) {
    out.put_u8(time.is_some().into());
    if let Some(time) = time {
        out.put_u64(time.get());
    }
}

pub(super) fn read_key(book: &mut Book, input: &mut Bytes<'_>) -> Result<()> {
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

fn read(number: KeyNumber, input: &mut Bytes<'_>) -> Result<Key> {
    let unnamed = |_| Malformed("a key has a name that is none");
    let id = KeyId::new(input.text()?).map_err(unnamed)?;
    let secret = SecretHash::from_bytes(input.hash()?);
    let name = KeyName::new(input.text()?).map_err(unnamed)?;
    let role = Role::of(input.u8()?).ok_or(Malformed("a key has no role"))?;
    let namespace = NamespaceName::new(input.text()?).map_err(unnamed)?;
    let client = match input.text()? {
        "" => None,
        client => Some(ClientId::new(client).map_err(unnamed)?),
    };
    let (labels, may_set) = (Labels::read(input)?, MaySet::read(input)?);
    let created_at = time(input)?;
    let created_by = Actor::new(input.text()?).map_err(unnamed)?;
    let (expires_at, revoked_at) = (maybe_time(input)?, maybe_time(input)?);
    let info = KeyInfo {
        number,
        id,
        name,
        role,
        namespace,
        client,
        labels,
        may_set,
        created_at,
        created_by,
        expires_at,
        revoked_at,
    };
    Ok(Key::new(info, secret))
}

fn maybe_time(input: &mut Bytes<'_>) -> Result<Option<UnixMs>> {
    if input.bool()? { time(input).map(Some) } else { Ok(None) }
}
