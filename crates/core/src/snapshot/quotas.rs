//! The records of quotas: those that were set, the journal bytes of the last day of each namespace, and the number of
//! its deleted vaults.

use crate::book::{Book, NamespaceId};
use crate::limits::State;
use crate::quota::{QUOTA_MAX, QuotaKind, day};
use crate::wire::{Bytes, Malformed, Put, Wire};

const SET: u8 = 1;
const JOURNAL: u8 = 2;
const DELETED: u8 = 3;

/// A record about quotas.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum QuotaRecord {
    Set(NamespaceId, QuotaKind, u64),
    Journal(NamespaceId, u64, u64),
    Deleted(NamespaceId, u64),
}

impl QuotaRecord {
    /// All records, in order.
    pub(super) fn all(state: &State) -> impl Iterator<Item = QuotaRecord> + Send + '_ {
        let set = state.quotas.all_set().map(|(namespace, kind, quota)| QuotaRecord::Set(namespace, kind, quota));
        let days = state.quotas.journal_days();
        let days = days.map(|(namespace, day, bytes)| QuotaRecord::Journal(namespace, day, bytes));
        let deleted = state.quotas.all_deleted_vaults();
        set.chain(days).chain(deleted.map(|(namespace, count)| QuotaRecord::Deleted(namespace, count)))
    }

    pub(super) fn put(self, out: &mut Vec<u8>) {
        match self {
            QuotaRecord::Set(namespace, kind, quota) => {
                out.put_u8(SET);
                out.put_u16(namespace.0);
                out.put_u8(kind as u8);
                out.put_u64(quota);
            }
            QuotaRecord::Journal(namespace, day, bytes) => {
                out.put_u8(JOURNAL);
                out.put_u16(namespace.0);
                out.put_u64(day);
                out.put_u64(bytes);
            }
            QuotaRecord::Deleted(namespace, count) => {
                out.put_u8(DELETED);
                out.put_u16(namespace.0);
                out.put_u64(count);
            }
        }
    }

    fn read(input: &mut Bytes<'_>) -> Result<QuotaRecord, Malformed> {
        let (tag, namespace) = (input.u8()?, NamespaceId(input.u16()?));
        match tag {
            SET => Ok(QuotaRecord::Set(namespace, Wire::read(input)?, input.u64()?)),
            JOURNAL => Ok(QuotaRecord::Journal(namespace, input.u64()?, input.u64()?)),
            DELETED => Ok(QuotaRecord::Deleted(namespace, input.u64()?)),
            _ => Err(Malformed("a record of quotas is unknown")),
        }
    }
}

/// Restores a record, which must follow `last`.
pub(super) fn read_quota(
    book: &mut Book,
    last: &mut Option<QuotaRecord>,
    input: &mut Bytes<'_>,
) -> Result<(), Malformed> {
    let record = QuotaRecord::read(input)?;
    if last.replace(record).is_some_and(|last| last.position() >= record.position()) {
        return Err(Malformed("quotas are doubled or out of order"));
    }
    let state = &mut book.limits.state;
    let is_right = match record {
        QuotaRecord::Set(namespace, kind, quota) => {
            state.quotas.set(namespace, kind, quota, &state.config);
            quota <= QUOTA_MAX && usize::from(namespace.0) < state.namespaces.len()
        }
        QuotaRecord::Journal(namespace, written, bytes) => {
            bytes > 0 && written <= day(state.now()) && state.quotas.restore_journal(namespace, written, bytes)
        }
        QuotaRecord::Deleted(namespace, count) => {
            let is_known = usize::from(namespace.0) < state.namespaces.len();
            is_known && count > 0 && state.quotas.restore_deleted_vaults(namespace, count)
        }
    };
    if is_right { Ok(()) } else { Err(Malformed("a quota is out of bounds or of no namespace")) }
}

impl QuotaRecord {
    /// The place of the record in the order.
    fn position(self) -> (u8, NamespaceId, Option<QuotaKind>) {
        match self {
            QuotaRecord::Set(namespace, kind, _) => (SET, namespace, Some(kind)),
            QuotaRecord::Journal(namespace, _, _) => (JOURNAL, namespace, None),
            QuotaRecord::Deleted(namespace, _) => (DELETED, namespace, None),
        }
    }
}
