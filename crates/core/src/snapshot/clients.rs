//! The records of clients and their results.

use std::sync::Arc;

use super::records::time;
use crate::book::{Book, NamespaceId, OPERATIONS_MAX, Receipt, TxId, VaultId};
use crate::id::{Actor, ClientId};
use crate::keys::ClientOwner;
use crate::limits::slab::NONE;
use crate::sequence::{ClientHash, ContentHash, Kept, Recent, RetiredClient, Scope, Stream};
use crate::time::{Moment, UnixMs};
use crate::wire::{Bytes, Malformed, Put, Wire};

type Result<T> = std::result::Result<T, Malformed>;
type KeptReceipt = Kept<Option<Arc<Receipt>>>;

const NO_VAULT: u32 = u32::MAX;

pub(super) fn put_stream(out: &mut Vec<u8>, stream: &Stream<Option<Arc<Receipt>>>) {
    out.put_u16(stream.scope.namespace.0);
    out.put_u32(stream.scope.vault.map_or(NO_VAULT, |vault| vault.0));
    out.put_text(stream.client.as_ref().map_or("", ClientId::as_str));
    if stream.client.is_none() {
        return;
    }
    out.put_u64(stream.last);
    out.put_u8(stream.owner.is_some().into());
    if let Some(owner) = &stream.owner {
        out.put_text(&owner.to_string());
    }
    put_kept(out, &stream.kept);
}

pub(super) fn put_retired(out: &mut Vec<u8>, retired: &RetiredClient) {
    out.put_u16(retired.namespace.0);
    out.put(&retired.hash.0);
}

pub(super) fn read_retired(book: &mut Book, input: &mut Bytes<'_>) -> Result<()> {
    let (namespace, hash) = (NamespaceId(input.u16()?), ClientHash(input.u128()?.to_le_bytes()));
    if !book.limits.has_namespace(namespace) || !book.sequences.restore_retired(namespace, hash) {
        return Err(Malformed("retired clients are doubled or in no namespace"));
    }
    Ok(())
}

pub(super) fn read_stream(book: &mut Book, input: &mut Bytes<'_>) -> Result<()> {
    let namespace = NamespaceId(input.u16()?);
    let vault = Some(input.u32()?).filter(|vault| *vault != NO_VAULT).map(VaultId);
    let name = input.text()?;
    if name.is_empty() {
        let is_empty = namespace == NamespaceId::default() && vault.is_none();
        return is_empty.then(|| book.sequences.restore_empty()).ok_or(Malformed("an empty client has a scope"));
    }
    let client = ClientId::new(name).map_err(|_| Malformed("a client has no valid name"))?;
    let vaults = &book.credits.state.vaults;
    let is_there = vault.is_none_or(|vault| vaults.get(&vault).is_some_and(|vault| vault.namespace == namespace));
    if !book.limits.has_namespace(namespace) || !is_there {
        return Err(Malformed("a client is in no scope"));
    }
    let last = input.u64()?;
    let owner = if input.bool()? {
        let owner: ClientOwner = input.text()?.parse().map_err(|_| Malformed("a client has no valid owner"))?;
        Some(owner)
    } else {
        None
    };
    let kept = read_kept(book, last, input)?;
    let scope = Scope { namespace, vault };
    let stream = Stream { scope, client: Some(client), last, owner, kept, ..Stream::default() };
    if book.sequences.restore(stream) { Ok(()) } else { Err(Malformed("clients are doubled or too many")) }
}

/// The last result of a client is stored with the client; here it is only a reference.
pub(super) fn put_recent(out: &mut Vec<u8>, recent: &Recent<Option<Arc<Receipt>>>, is_last: bool) {
    out.put_u32(recent.stream);
    if recent.is_of_retired() {
        return out.put_u64(recent.kept.at.get());
    }
    out.put_u8(is_last.into());
    if !is_last {
        out.put_u64(recent.sequence);
        put_kept(out, &recent.kept);
    }
}

pub(super) fn read_recent(book: &mut Book, input: &mut Bytes<'_>) -> Result<()> {
    let stream = input.u32()?;
    if stream == NONE {
        let recent = Recent::of_retired(time(input)?);
        let is_right = !recent.is_over(book.limits.state.now()) && book.sequences.restore_recent(recent);
        return if is_right { Ok(()) } else { Err(Malformed("results are over, too many or out of order")) };
    }
    let is_last = input.bool()?;
    let client = book.sequences.state.get(stream).ok_or(Malformed("a result is of no client"))?;
    let last = client.last;
    let (sequence, kept) = if is_last {
        (last, client.kept.clone())
    } else {
        let sequence = input.u64()?;
        (sequence, read_kept(book, sequence, input)?)
    };
    let recent = Recent { stream, sequence, kept };
    let is_right = (recent.sequence == last) == is_last && !recent.is_over(book.limits.state.now());
    if is_right && book.sequences.restore_recent(recent) {
        return Ok(());
    }
    Err(Malformed("results are doubled, over, too many or out of order"))
}

fn put_kept(out: &mut Vec<u8>, kept: &KeptReceipt) {
    out.put(&kept.content.0);
    out.put_u64(kept.at.get());
    if let Some(receipt) = &kept.result {
        put_receipt(out, receipt);
    }
}

fn read_kept(book: &Book, sequence: u64, input: &mut Bytes<'_>) -> Result<KeptReceipt> {
    let content = ContentHash(input.u128()?.to_le_bytes());
    let at = time(input)?;
    if sequence == 0 || sequence == u64::MAX || at > book.limits.state.now() {
        return Err(Malformed("a result has a number or a time that cannot be"));
    }
    let receipt = read_receipt(Some(sequence), at, input)?;
    Ok(Kept { content, at, result: Some(Arc::new(receipt)) })
}

pub(super) fn put_receipt(out: &mut Vec<u8>, receipt: &Receipt) {
    out.put_u128(receipt.tx_id.0);
    out.put_u64(receipt.log_index);
    out.put_u64(receipt.committed_at.wall.get());
    out.put_text(receipt.actor.as_str());
    out.put_u16(receipt.results.len() as u16);
    for result in &receipt.results {
        result.write(out);
    }
}

pub(super) fn read_receipt(sequence: Option<u64>, log: UnixMs, input: &mut Bytes<'_>) -> Result<Receipt> {
    let tx_id = TxId(input.u128()?);
    let log_index = input.u64()?;
    let committed_at = Moment { log, wall: time(input)? };
    let actor = Actor::new(input.text()?).map_err(|_| Malformed("a result has no valid actor"))?;
    let count = usize::from(input.u16()?);
    if count > OPERATIONS_MAX {
        return Err(Malformed("a transaction has too many results"));
    }
    let results = (0..count).map(|_| Ok(Wire::read(input)?)).collect::<Result<_>>()?;
    Ok(Receipt { tx_id, sequence, log_index, committed_at, actor, results })
}
