//! Journal records as bytes. A record has one encoding only, so that the journal is identical on every replica.

use std::sync::Arc;

use super::{
    Change, ExpireEntry, HoldEntry, JournalRecord, KeyChange, KeyEntry, LimitEdit, LimitEntry, PauseEntry, PlanEntry,
    PolicyEntry, QuotaChange, QuotaEntry, Replaced, SettleEntry, SettleReason, Transaction,
};
use crate::book::codec::{CodecError, operations, template};
use crate::book::{OPERATIONS_MAX, Operation, Receipt, WriteId};
use crate::credits::SettleLabels;
use crate::id::ClientId;
use crate::limits::{Definition, Template};
use crate::wire::{Bytes, Put, Wire, wire_codes, wire_enum, wire_struct};

type Result<T> = std::result::Result<T, CodecError>;
type ReadDefinition = fn(&mut Bytes<'_>) -> Result<Definition>;

const VERSION: u8 = 1;

/// The tag of a settlement with labels, which follow it.
const SETTLE_LABELLED: u8 = 14;

const LIMIT_CREATED: u8 = 1;
const LIMIT_REDEFINED: u8 = 2;
const LIMIT_DELETED: u8 = 3;

impl JournalRecord {
    /// Appends the record to `out`: 55 bytes for a hold, plus its key and actor.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(VERSION);
        match self {
            JournalRecord::Settle(settle) if !settle.labels.is_empty() => {
                out.put_u8(SETTLE_LABELLED);
                settle.write(out);
                settle.labels.put(out);
            }
            record => record.write(out),
        }
    }

    /// Decodes a record that takes up all of `bytes`. Encoding it again gives the same bytes.
    ///
    /// # Errors
    /// The bytes are not a record.
    pub fn decode(bytes: &[u8]) -> Result<JournalRecord> {
        let mut input = Bytes(bytes);
        if input.u8()? != VERSION {
            return Err(CodecError::Malformed("its version is unknown"));
        }
        let record = if let Some((&SETTLE_LABELLED, rest)) = input.0.split_first() {
            input.0 = rest;
            let entry = SettleEntry::read(&mut input)?;
            JournalRecord::Settle(SettleEntry { labels: SettleLabels::read(&mut input)?, ..entry })
        } else {
            JournalRecord::read(&mut input)?
        };
        if !input.is_empty() {
            return Err(CodecError::Malformed("something follows its end"));
        }
        Ok(record)
    }
}

wire_enum!(JournalRecord or "its tag is unknown" {
    1 => Transaction(transaction),
    2 => Hold(hold),
    3 => Settle(settle),
    4 => Release(hold),
    5 => Key(key),
    6 => Limit(limit),
    7 => Quotas(quotas),
    8 => Template(template via template_entry),
    9 => Pause(pause),
    10 => Policy(policy),
    11 => Expire(expire),
    12 => Plan(plan),
});

wire_struct!(ExpireEntry { at, namespace, account, asset, amount, terms }
    if |entry| entry.amount > 0 && entry.terms.expires_at().is_some(),
    else "its expired credit is nothing, or never expires");

wire_struct!(PlanEntry { at, namespace, account, asset, amount, carried, terms }
    if |entry| entry.amount > 0 && entry.carried >= 0 && entry.terms.expires_at().is_some(),
    else "its plan issued nothing, or never expires");

wire_struct!(PauseEntry { at, namespace, key, until, reason, actor });

wire_struct!(HoldEntry { at, namespace, lease, limit, account, asset, amount, extension, actor });

wire_struct!(SettleEntry { hold, held, revenue, paid, debt, uncollected, reason, labels via no_labels });

wire_codes!(SettleReason or "the reason of its settlement is unknown";);

/// The labels of a settlement under its plain tag: none.
mod no_labels {
    use super::{Bytes, Result, SettleLabels};

    pub(super) fn write(_: &SettleLabels, _: &mut Vec<u8>) {}

    pub(super) fn read(_: &mut Bytes<'_>) -> Result<SettleLabels> {
        Ok(SettleLabels::NONE)
    }
}

wire_struct!(QuotaEntry { at, namespace, changes via changes, actor }
    if |entry| entry.changes.is_sorted_by(|one, next| one.kind < next.kind),
    else "its quotas are out of order");

wire_struct!(QuotaChange { kind, old, new });

wire_struct!(PolicyEntry { at, namespace, old, revision, bytes, digest, actor });

wire_struct!(KeyEntry { at, change, number, id, name, role, namespace, labels, may_set, actor });

wire_enum!(KeyChange or "what became of its key is unknown" {
    1 => Created,
    2 => Revoked,
});

wire_struct!(Change { account, asset, amount });

mod changes {
    use super::{Bytes, Put, Result, Wire};

    pub(super) fn write<T: Wire>(changes: &[T], out: &mut Vec<u8>) {
        out.put_len(changes.len());
        changes.iter().for_each(|change| change.write(out));
    }

    pub(super) fn read<T: Wire>(input: &mut Bytes<'_>) -> Result<Vec<T>> {
        let count = input.u32()?;
        (0..count).map(|_| T::read(input)).collect()
    }
}

impl Wire for Transaction {
    fn write(&self, out: &mut Vec<u8>) {
        self.namespace.write(out);
        self.vault.write(out);
        // The receipt has the sequence of the client.
        out.put_text(self.id.client().map_or("", ClientId::as_str));
        if let Some(key) = self.id.key() {
            key.write(out);
        }
        self.receipt.write(out);
        operations::write(&self.operations, out);
        out.put_len(self.replaced.len());
        for replaced in &self.replaced {
            out.put_len(replaced.operation);
            replaced.definition.write(out);
        }
        changes::write(&self.changes, out);
    }

    fn read(input: &mut Bytes<'_>) -> Result<Transaction> {
        let (namespace, vault) = (Wire::read(input)?, Wire::read(input)?);
        let client = input.text()?;
        let key = if client.is_empty() { Some(Wire::read(input)?) } else { None };
        let receipt: Arc<Receipt> = Wire::read(input)?;
        let id = match (key, receipt.sequence) {
            (Some(key), None) => WriteId::Key(key),
            (None, Some(sequence)) => WriteId::Sequence { client: ClientId::new(client)?, sequence },
            (Some(_), Some(_)) | (None, None) => return Err(CodecError::Malformed("its identity is not one of two")),
        };
        let operations = operations::read(input)?;
        if operations.len() > OPERATIONS_MAX {
            return Err(CodecError::Malformed("it has too many operations"));
        }
        let replaced = replaced(input, &operations)?;
        let changes: Vec<Change> = changes::read(input)?;
        if !changes.is_sorted_by(|one, next| (one.account, one.asset) < (next.account, next.asset)) {
            return Err(CodecError::Malformed("its changes are out of order"));
        }
        Ok(Transaction { namespace, vault, id, receipt, operations, replaced, changes })
    }
}

fn replaced(input: &mut Bytes<'_>, operations: &[Operation]) -> Result<Vec<Replaced>> {
    let mut found: Vec<Replaced> = Vec::new();
    for _ in 0..input.u32()? {
        let (operation, definition) = (input.u32()? as usize, Definition::read(input)?);
        if found.last().is_some_and(|last| last.operation >= operation) {
            return Err(CodecError::Malformed("its replaced definitions are out of order"));
        }
        if operations.get(operation).and_then(Operation::limit) != Some(&definition.key) {
            return Err(CodecError::Malformed("a replaced definition is not of its operation's limit"));
        }
        found.push(Replaced { operation, definition });
    }
    Ok(found)
}

impl Wire for LimitEntry {
    fn write(&self, out: &mut Vec<u8>) {
        self.at.write(out);
        self.namespace.write(out);
        match &self.edit {
            LimitEdit::Put { old: None, new } => {
                out.put_u8(LIMIT_CREATED);
                new.write(out);
            }
            LimitEdit::Put { old: Some(old), new } => {
                out.put_u8(LIMIT_REDEFINED);
                old.write(out);
                new.write(out);
            }
            LimitEdit::Deleted { old } => {
                out.put_u8(LIMIT_DELETED);
                old.write(out);
            }
        }
        self.revision.write(out);
        self.actor.write(out);
    }

    fn read(input: &mut Bytes<'_>) -> Result<LimitEntry> {
        limit(input, Definition::read)
    }
}

/// The change of a template.
mod template_entry {
    use super::{Bytes, LimitEntry, Result, Template, Wire, limit, template};

    pub(super) fn write(entry: &LimitEntry, out: &mut Vec<u8>) {
        entry.write(out);
    }

    pub(super) fn read(input: &mut Bytes<'_>) -> Result<Box<LimitEntry>> {
        limit(input, |input| template(input).map(Template::into_definition)).map(Box::new)
    }
}

/// The change of a limit or template, whose definitions `definition` reads.
fn limit(input: &mut Bytes<'_>, definition: ReadDefinition) -> Result<LimitEntry> {
    Ok(LimitEntry {
        at: Wire::read(input)?,
        namespace: Wire::read(input)?,
        edit: limit_edit(input, definition)?,
        revision: input.u64()?,
        actor: Wire::read(input)?,
    })
}

fn limit_edit(input: &mut Bytes<'_>, definition: ReadDefinition) -> Result<LimitEdit> {
    match input.u8()? {
        LIMIT_CREATED => Ok(LimitEdit::Put { old: None, new: definition(input)? }),
        LIMIT_REDEFINED => {
            let (old, new) = (definition(input)?, definition(input)?);
            if old.key != new.key {
                return Err(CodecError::Malformed("its definitions are of different limits"));
            }
            Ok(LimitEdit::Put { old: Some(old), new })
        }
        LIMIT_DELETED => Ok(LimitEdit::Deleted { old: definition(input)? }),
        _ => Err(CodecError::Malformed("what became of its limit is unknown")),
    }
}
