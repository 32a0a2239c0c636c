//! Journal records as bytes. A record has one encoding only, so that the journal is identical on every replica.

use std::sync::Arc;

use super::{
    Change, ExpireEntry, HoldEntry, JournalRecord, KeyChange, KeyEntry, LimitEdit, LimitEntry, PauseEntry, PlanEntry,
    PolicyEntry, QuotaChange, QuotaEntry, Replaced, SettleEntry, SettleReason, Transaction,
};
use crate::book::codec::{
    CodecError, definition, grant_terms, moment, operations, put_definition, put_grant_terms, put_moment,
    put_operations, put_receipt, receipt, role, template, time,
};
use crate::book::{NamespaceId, OPERATIONS_MAX, Operation, VaultId, WriteId};
use crate::credits::{AccountId, AssetId, SettleLabels};
use crate::id::{Actor, ClientId, IdempotencyKey, KeyId, KeyName, LeaseId, LimitKey, NamespaceName};
use crate::keys::{KeyNumber, Labels, MaySet};
use crate::limits::{Definition, Template};
use crate::quota::QuotaKind;
use crate::wire::{Bytes, Put};

type Result<T> = std::result::Result<T, CodecError>;
type ReadDefinition = fn(&mut Bytes<'_>) -> Result<Definition>;

const VERSION: u8 = 1;

const TRANSACTION: u8 = 1;
const HOLD: u8 = 2;
const SETTLE: u8 = 3;
const RELEASE: u8 = 4;
const KEY: u8 = 5;
const LIMIT: u8 = 6;
const QUOTAS: u8 = 7;
const TEMPLATE: u8 = 8;
const PAUSE: u8 = 9;
const POLICY: u8 = 10;
const EXPIRE: u8 = 11;
const PLAN: u8 = 12;
/// A settlement with labels, which follow it.
const SETTLE_LABELLED: u8 = 14;

const LIMIT_CREATED: u8 = 1;
const LIMIT_REDEFINED: u8 = 2;
const LIMIT_DELETED: u8 = 3;

impl JournalRecord {
    /// Appends the record to `out`: 55 bytes for a hold, plus its key and actor.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(VERSION);
        match self {
            JournalRecord::Transaction(transaction) => {
                out.put_u8(TRANSACTION);
                put_transaction(out, transaction);
            }
            JournalRecord::Hold(hold) => {
                out.put_u8(HOLD);
                put_hold(out, hold);
            }
            JournalRecord::Settle(settle) => {
                out.put_u8(if settle.labels.is_empty() { SETTLE } else { SETTLE_LABELLED });
                put_settle(out, settle);
            }
            JournalRecord::Release(hold) => {
                out.put_u8(RELEASE);
                put_hold(out, hold);
            }
            JournalRecord::Expire(expire) => {
                out.put_u8(EXPIRE);
                put_expire(out, expire);
            }
            JournalRecord::Plan(plan) => {
                out.put_u8(PLAN);
                put_plan(out, plan);
            }
            JournalRecord::Key(key) => {
                out.put_u8(KEY);
                put_key(out, key);
            }
            JournalRecord::Limit(limit) => {
                out.put_u8(LIMIT);
                put_limit(out, limit);
            }
            JournalRecord::Template(template) => {
                out.put_u8(TEMPLATE);
                put_limit(out, template);
            }
            JournalRecord::Pause(pause) => {
                out.put_u8(PAUSE);
                put_pause(out, pause);
            }
            JournalRecord::Quotas(quotas) => {
                out.put_u8(QUOTAS);
                put_quotas(out, quotas);
            }
            JournalRecord::Policy(policy) => {
                out.put_u8(POLICY);
                put_policy(out, policy);
            }
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
        let record = match input.u8()? {
            TRANSACTION => JournalRecord::Transaction(transaction(&mut input)?),
            HOLD => JournalRecord::Hold(hold(&mut input)?),
            SETTLE => JournalRecord::Settle(settle(&mut input)?),
            SETTLE_LABELLED => {
                let entry = settle(&mut input)?;
                JournalRecord::Settle(SettleEntry { labels: SettleLabels::read(&mut input)?, ..entry })
            }
            RELEASE => JournalRecord::Release(hold(&mut input)?),
            EXPIRE => JournalRecord::Expire(expire(&mut input)?),
            PLAN => JournalRecord::Plan(plan(&mut input)?),
            KEY => JournalRecord::Key(key(&mut input)?),
            LIMIT => JournalRecord::Limit(Box::new(limit(&mut input, definition)?)),
            TEMPLATE => JournalRecord::Template(Box::new(limit(&mut input, template_definition)?)),
            PAUSE => JournalRecord::Pause(pause(&mut input)?),
            QUOTAS => JournalRecord::Quotas(quotas(&mut input)?),
            POLICY => JournalRecord::Policy(policy(&mut input)?),
            _ => return Err(CodecError::Malformed("its tag is unknown")),
        };
        if !input.is_empty() {
            return Err(CodecError::Malformed("something follows its end"));
        }
        Ok(record)
    }
}

fn put_expire(out: &mut Vec<u8>, expire: &ExpireEntry) {
    put_moment(out, expire.at);
    out.put_u16(expire.namespace.0);
    out.put_u32(expire.account.0);
    out.put_u16(expire.asset.0);
    out.put(&expire.amount.to_le_bytes());
    put_grant_terms(out, expire.terms);
}

fn expire(input: &mut Bytes<'_>) -> Result<ExpireEntry> {
    let entry = ExpireEntry {
        at: moment(input)?,
        namespace: NamespaceId(input.u16()?),
        account: AccountId(input.u32()?),
        asset: AssetId(input.u16()?),
        amount: i128::from_le_bytes(input.u128()?.to_le_bytes()),
        terms: grant_terms(input)?,
    };
    let is_sound = entry.amount > 0 && entry.terms.expires_at().is_some();
    if is_sound { Ok(entry) } else { Err(CodecError::Malformed("its expired credit is nothing, or never expires")) }
}

fn put_plan(out: &mut Vec<u8>, plan: &PlanEntry) {
    put_moment(out, plan.at);
    out.put_u16(plan.namespace.0);
    out.put_u32(plan.account.0);
    out.put_u16(plan.asset.0);
    out.put(&plan.amount.to_le_bytes());
    out.put(&plan.carried.to_le_bytes());
    put_grant_terms(out, plan.terms);
}

fn plan(input: &mut Bytes<'_>) -> Result<PlanEntry> {
    let entry = PlanEntry {
        at: moment(input)?,
        namespace: NamespaceId(input.u16()?),
        account: AccountId(input.u32()?),
        asset: AssetId(input.u16()?),
        amount: i128::from_le_bytes(input.u128()?.to_le_bytes()),
        carried: i128::from_le_bytes(input.u128()?.to_le_bytes()),
        terms: grant_terms(input)?,
    };
    let is_sound = entry.amount > 0 && entry.carried >= 0 && entry.terms.expires_at().is_some();
    if is_sound { Ok(entry) } else { Err(CodecError::Malformed("its plan issued nothing, or never expires")) }
}

fn put_pause(out: &mut Vec<u8>, pause: &PauseEntry) {
    put_moment(out, pause.at);
    out.put_u16(pause.namespace.0);
    out.put_text(pause.key.as_str());
    out.put_u8(pause.until.is_some().into());
    if let Some(until) = pause.until {
        out.put_u64(until.get());
    }
    out.put_text(&pause.reason);
    out.put_text(pause.actor.as_str());
}

fn pause(input: &mut Bytes<'_>) -> Result<PauseEntry> {
    Ok(PauseEntry {
        at: moment(input)?,
        namespace: NamespaceId(input.u16()?),
        key: LimitKey::new(input.text()?)?,
        until: if input.bool()? { Some(time(input)?) } else { None },
        reason: input.text()?.to_owned(),
        actor: Actor::new(input.text()?)?,
    })
}

fn put_transaction(out: &mut Vec<u8>, transaction: &Transaction) {
    out.put_u16(transaction.namespace.0);
    out.put_u8(transaction.vault.is_some().into());
    if let Some(vault) = transaction.vault {
        out.put_u32(vault.0);
    }
    // The receipt has the sequence of the client.
    out.put_text(transaction.id.client().map_or("", ClientId::as_str));
    if let Some(key) = transaction.id.key() {
        out.put_text(key.as_str());
    }
    put_receipt(out, &transaction.receipt);
    put_operations(out, &transaction.operations);
    out.put_len(transaction.replaced.len());
    for replaced in &transaction.replaced {
        out.put_len(replaced.operation);
        put_definition(out, &replaced.definition);
    }
    out.put_len(transaction.changes.len());
    for change in &transaction.changes {
        out.put_u32(change.account.0);
        out.put_u16(change.asset.0);
        out.put(&change.amount.to_le_bytes());
    }
}

fn transaction(input: &mut Bytes<'_>) -> Result<Transaction> {
    let namespace = NamespaceId(input.u16()?);
    let vault = if input.bool()? { Some(VaultId(input.u32()?)) } else { None };
    let client = input.text()?;
    let key = if client.is_empty() { Some(IdempotencyKey::new(input.text()?)?) } else { None };
    let receipt = Arc::new(receipt(input)?);
    let id = match (key, receipt.sequence) {
        (Some(key), None) => WriteId::Key(key),
        (None, Some(sequence)) => WriteId::Sequence { client: ClientId::new(client)?, sequence },
        (Some(_), Some(_)) | (None, None) => return Err(CodecError::Malformed("its identity is not one of two")),
    };
    let operations = operations(input)?;
    if operations.len() > OPERATIONS_MAX {
        return Err(CodecError::Malformed("it has too many operations"));
    }
    let replaced = replaced(input, &operations)?;
    Ok(Transaction { namespace, vault, id, receipt, operations, replaced, changes: changes(input)? })
}

fn replaced(input: &mut Bytes<'_>, operations: &[Operation]) -> Result<Vec<Replaced>> {
    let mut found: Vec<Replaced> = Vec::new();
    for _ in 0..input.u32()? {
        let (operation, definition) = (input.u32()? as usize, definition(input)?);
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

fn changes(input: &mut Bytes<'_>) -> Result<Vec<Change>> {
    let mut changes: Vec<Change> = Vec::new();
    for _ in 0..input.u32()? {
        let (account, asset) = (AccountId(input.u32()?), AssetId(input.u16()?));
        let amount = i128::from_le_bytes(input.u128()?.to_le_bytes());
        if changes.last().is_some_and(|last| (last.account, last.asset) >= (account, asset)) {
            return Err(CodecError::Malformed("its changes are out of order"));
        }
        changes.push(Change { account, asset, amount });
    }
    Ok(changes)
}

fn reason(input: &mut Bytes<'_>) -> Result<SettleReason> {
    let code = input.u8()?;
    let found = SettleReason::ALL.into_iter().find(|reason| *reason as u8 == code);
    found.ok_or(CodecError::Malformed("the reason of its settlement is unknown"))
}

fn put_hold(out: &mut Vec<u8>, hold: &HoldEntry) {
    put_moment(out, hold.at);
    out.put_u16(hold.namespace.0);
    out.put_u128(hold.lease.to_u128());
    out.put_text(hold.limit.as_str());
    out.put_u32(hold.account.0);
    out.put_u16(hold.asset.0);
    out.put_u64(hold.amount);
    out.put_u32(hold.extension);
    out.put_u8(hold.actor.is_some().into());
    if let Some(actor) = &hold.actor {
        out.put_text(actor.as_str());
    }
}

fn hold(input: &mut Bytes<'_>) -> Result<HoldEntry> {
    Ok(HoldEntry {
        at: moment(input)?,
        namespace: NamespaceId(input.u16()?),
        lease: LeaseId::from_u128(input.u128()?),
        limit: LimitKey::new(input.text()?)?,
        account: AccountId(input.u32()?),
        asset: AssetId(input.u16()?),
        amount: input.u64()?,
        extension: input.u32()?,
        actor: if input.bool()? { Some(Actor::new(input.text()?)?) } else { None },
    })
}

fn put_settle(out: &mut Vec<u8>, settle: &SettleEntry) {
    put_hold(out, &settle.hold);
    out.put_u64(settle.held);
    out.put_u32(settle.revenue.0);
    out.put_u64(settle.paid);
    out.put_u64(settle.debt);
    out.put_u64(settle.uncollected);
    out.put_u8(settle.reason as u8);
    if !settle.labels.is_empty() {
        settle.labels.put(out);
    }
}

/// A settlement up to its labels.
fn settle(input: &mut Bytes<'_>) -> Result<SettleEntry> {
    Ok(SettleEntry {
        hold: hold(input)?,
        held: input.u64()?,
        revenue: AccountId(input.u32()?),
        paid: input.u64()?,
        debt: input.u64()?,
        uncollected: input.u64()?,
        reason: reason(input)?,
        labels: SettleLabels::NONE,
    })
}

fn put_limit(out: &mut Vec<u8>, limit: &LimitEntry) {
    put_moment(out, limit.at);
    out.put_u16(limit.namespace.0);
    match &limit.edit {
        LimitEdit::Put { old: None, new } => {
            out.put_u8(LIMIT_CREATED);
            put_definition(out, new);
        }
        LimitEdit::Put { old: Some(old), new } => {
            out.put_u8(LIMIT_REDEFINED);
            put_definition(out, old);
            put_definition(out, new);
        }
        LimitEdit::Deleted { old } => {
            out.put_u8(LIMIT_DELETED);
            put_definition(out, old);
        }
    }
    out.put_u64(limit.revision);
    out.put_text(limit.actor.as_str());
}

fn template_definition(input: &mut Bytes<'_>) -> Result<Definition> {
    template(input).map(Template::into_definition)
}

/// The change of a limit or template, whose definitions `definition` reads.
fn limit(input: &mut Bytes<'_>, definition: ReadDefinition) -> Result<LimitEntry> {
    Ok(LimitEntry {
        at: moment(input)?,
        namespace: NamespaceId(input.u16()?),
        edit: limit_edit(input, definition)?,
        revision: input.u64()?,
        actor: Actor::new(input.text()?)?,
    })
}

fn put_quotas(out: &mut Vec<u8>, entry: &QuotaEntry) {
    put_moment(out, entry.at);
    out.put_u16(entry.namespace.0);
    out.put_len(entry.changes.len());
    for change in &entry.changes {
        out.put_u8(change.kind as u8);
        out.put_u64(change.old);
        out.put_u64(change.new);
    }
    out.put_text(entry.actor.as_str());
}

fn quotas(input: &mut Bytes<'_>) -> Result<QuotaEntry> {
    let (at, namespace) = (moment(input)?, NamespaceId(input.u16()?));
    let mut changes: Vec<QuotaChange> = Vec::new();
    for _ in 0..input.u32()? {
        let kind = QuotaKind::of(input.u8()?).ok_or(CodecError::Malformed("its quota is unknown"))?;
        if changes.last().is_some_and(|last| last.kind >= kind) {
            return Err(CodecError::Malformed("its quotas are out of order"));
        }
        changes.push(QuotaChange { kind, old: input.u64()?, new: input.u64()? });
    }
    Ok(QuotaEntry { at, namespace, changes, actor: Actor::new(input.text()?)? })
}

fn put_policy(out: &mut Vec<u8>, entry: &PolicyEntry) {
    put_moment(out, entry.at);
    out.put_u16(entry.namespace.0);
    out.put_u64(entry.old);
    out.put_u64(entry.revision);
    out.put_u64(entry.bytes);
    out.put_u128(entry.digest);
    out.put_text(entry.actor.as_str());
}

fn policy(input: &mut Bytes<'_>) -> Result<PolicyEntry> {
    Ok(PolicyEntry {
        at: moment(input)?,
        namespace: NamespaceId(input.u16()?),
        old: input.u64()?,
        revision: input.u64()?,
        bytes: input.u64()?,
        digest: input.u128()?,
        actor: Actor::new(input.text()?)?,
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

fn put_key(out: &mut Vec<u8>, key: &KeyEntry) {
    put_moment(out, key.at);
    out.put_u8(key.change as u8);
    out.put_u32(key.number.0);
    out.put_text(key.id.as_str());
    out.put_text(key.name.as_str());
    out.put_u8(key.role as u8);
    out.put_text(key.namespace.as_str());
    key.labels.put(out);
    key.may_set.put(out);
    out.put_text(key.actor.as_str());
}

fn key(input: &mut Bytes<'_>) -> Result<KeyEntry> {
    Ok(KeyEntry {
        at: moment(input)?,
        change: match input.u8()? {
            1 => KeyChange::Created,
            2 => KeyChange::Revoked,
            _ => return Err(CodecError::Malformed("what became of its key is unknown")),
        },
        number: KeyNumber(input.u32()?),
        id: KeyId::new(input.text()?)?,
        name: KeyName::new(input.text()?)?,
        role: role(input)?,
        namespace: NamespaceName::new(input.text()?)?,
        labels: Labels::read(input)?,
        may_set: MaySet::read(input)?,
        actor: Actor::new(input.text()?)?,
    })
}
