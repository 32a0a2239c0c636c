//! The records of limits, leases and tombstones. Their layouts belong to the snapshot format alone.

use std::sync::Arc;

use crate::book::{ExternalSetup, NamespaceId};
use crate::credits::ExpiryClock;
use crate::id::{JobId, LeaseId};
use crate::limits::{
    Config, CreditTerms, DENIALS_MAX, Definition, Ending, HOLD_SECONDS_MAX, Hints, LeaseMark, Limit, LimitSlot, Limits,
    PAUSE_MS_MAX, PAUSE_REASON_BYTES_MAX, PAUSES_MAX, PartKind, Pause, Phase, Reservation, TemplateId, Tombstone,
    key_hash,
};
use crate::time::UnixMs;
use crate::wire::{Bytes, Malformed, Put, Wire};

/// The settings, the time and the age limit of leases.
pub(super) struct BookRecord {
    pub(super) config: Config,
    pub(super) time: Option<UnixMs>,
    pub(super) forgotten_before: UnixMs,
    pub(super) external: ExternalSetup,
    /// The last revision given.
    pub(super) revision: u64,
    /// The slot at which the next sweep of limits begins.
    pub(super) sweep: LimitSlot,
    pub(super) expiry: ExpiryClock,
}

impl BookRecord {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.put_u8(self.time.is_some().into());
        out.put_u64(self.time.unwrap_or_default().get());
        out.put_u64(self.forgotten_before.get());
        out.put_u64(self.config.retention_ms);
        out.put_u64(self.config.lease_ahead_ms);
        out.put_u32(self.config.leases_max);
        out.put_u32(self.config.clients_max);
        let hints = &self.config.hints;
        for value in [
            hints.concurrency_base_ms,
            hints.concurrency_max_ms,
            hints.rolling_base_ms,
            hints.rolling_window_part,
            hints.rolling_max_ms,
            hints.jitter_percent,
            hints.decreasing_ms,
        ] {
            out.put_u64(value);
        }
        self.external.write(out);
        out.put_u32(self.config.limits_max);
        out.put_u64(self.revision);
        out.put_u32(self.sweep.0);
        // While the clocks agree, credit expires by the time of the last command.
        out.put_u8(self.expiry.is_waiting.into());
        if self.expiry.is_waiting {
            out.put_u64(self.expiry.time.get());
        }
    }

    pub(super) fn read(input: &mut Bytes<'_>) -> Result<BookRecord, Malformed> {
        let has_time = input.bool()?;
        let time = time(input)?;
        let forgotten_before = self::time(input)?;
        let mut config = Config {
            retention_ms: input.u64()?,
            lease_ahead_ms: input.u64()?,
            leases_max: input.u32()?,
            clients_max: input.u32()?,
            limits_max: 0,
            hints: Hints {
                concurrency_base_ms: input.u64()?,
                concurrency_max_ms: input.u64()?,
                rolling_base_ms: input.u64()?,
                rolling_window_part: input.u64()?,
                rolling_max_ms: input.u64()?,
                jitter_percent: input.u64()?,
                decreasing_ms: input.u64()?,
            },
        };
        if !has_time && time != UnixMs::default() {
            return Err(Malformed("it has a time before its first command"));
        }
        let external = ExternalSetup::read(input)?;
        config.limits_max = input.u32()?;
        if config != config.bounded() {
            return Err(Malformed("its settings are out of bounds"));
        }
        let (revision, sweep) = (input.u64()?, LimitSlot(input.u32()?));
        let is_waiting = input.bool()?;
        let expiry = ExpiryClock { time: if is_waiting { self::time(input)? } else { time }, is_waiting };
        if expiry.time > time {
            return Err(Malformed("credit expires by a time that has not come"));
        }
        Ok(BookRecord { config, time: has_time.then_some(time), forgotten_before, external, revision, sweep, expiry })
    }
}

pub(super) fn time(input: &mut Bytes<'_>) -> Result<UnixMs, Malformed> {
    let ms = input.u64()?;
    let time = UnixMs::new(ms);
    if time.get() == ms { Ok(time) } else { Err(Malformed("a time is out of bounds")) }
}

pub(super) fn i128(input: &mut Bytes<'_>) -> Result<i128, Malformed> {
    input.u128().map(|bits| bits as i128)
}

const FREE: u8 = 0;
const DEFINED: u8 = 1;
const DERIVED: u8 = 2;

/// A slot of the table of limits.
pub(super) enum SlotRecord {
    /// No limit. The next one gets this generation.
    Free { generation: u32 },
    /// With its debt.
    Limit(Box<Limit>, Box<Definition>, u128),
}

pub(super) fn put_free(out: &mut Vec<u8>, generation: u32) {
    out.put_u8(FREE);
    out.put_u32(generation);
}

pub(super) fn read_slot(input: &mut Bytes<'_>) -> Result<SlotRecord, Malformed> {
    match input.u8()? {
        FREE => match input.u32()? {
            0 => Err(Malformed("a slot of limits is free and was never used")),
            generation => Ok(SlotRecord::Free { generation }),
        },
        tag @ (DEFINED | DERIVED) => read_limit(input, tag == DERIVED),
        _ => Err(Malformed("the kind of a slot is unknown")),
    }
}

pub(super) fn put_limit(out: &mut Vec<u8>, limit: &Limit, definition: &Definition, debt: u128) {
    let template = limit.template();
    out.put_u8(if template.is_some() { DERIVED } else { DEFINED });
    out.put_u32(limit.generation);
    out.put_u16(limit.namespace.0);
    if let Some(template) = template {
        out.put_u16(template.0);
        out.put_u32(limit.decided);
    }
    definition.write(out);
    out.put_u8(limit.phase as u8);
    out.put_u64(limit.capacity);
    out.put_u64(limit.revision);
    out.put_u128(debt);
    out.put_u8(limit.denials);
}

fn read_limit(input: &mut Bytes<'_>, is_derived: bool) -> Result<SlotRecord, Malformed> {
    let generation = input.u32()?;
    let namespace = NamespaceId(input.u16()?);
    let (mut template, mut decided) = (TemplateId::NONE, 0);
    if is_derived {
        (template, decided) = (TemplateId(input.u16()?), input.u32()?);
    }
    if is_derived != (template != TemplateId::NONE) {
        return Err(Malformed("a derived limit has no template"));
    }
    let definition = Definition::read(input).map_err(|_| Malformed("a definition is malformed"))?;
    definition.validate().map_err(|_| Malformed("a definition is out of bounds"))?;
    let is_bare = definition.unit.is_empty() && definition.description.is_empty();
    let terms = definition.kind.terms();
    let stored = terms.and_then(|terms| CreditTerms::of_template(terms.timeout_seconds, terms.on_timeout));
    if is_derived && !(is_bare && terms == stored.as_ref()) {
        return Err(Malformed("a derived limit has what only its template has"));
    }
    let phase = match input.u8()? {
        1 => Phase::Active,
        2 => Phase::Decreasing,
        3 => Phase::Deleting,
        4 => Phase::Deleted,
        5 => Phase::AwaitingDrop,
        _ => return Err(Malformed("the phase of a limit is unknown")),
    };
    let limit = Limit {
        namespace,
        generation,
        template,
        decided,
        key_hash: key_hash(namespace, &definition.key),
        phase,
        capacity: input.u64()?,
        revision: input.u64()?,
        ..Limit::of(&definition)
    };
    let debt = input.u128()?;
    let limit = Limit { denials: input.u8()?, ..limit };
    let defined = definition.capacity;
    let is_consistent = match phase {
        Phase::Active => limit.capacity == defined,
        Phase::Decreasing => limit.capacity > defined && !limit.is_shadow(),
        // A credit limit is deleted at once.
        Phase::Deleting | Phase::AwaitingDrop => !is_derived && limit.capacity > 0 && !limit.is_credit(),
        Phase::Deleted | Phase::Free => !is_derived && limit.capacity == 0 && debt == 0 && limit.denials == 0,
    };
    if !is_consistent || limit.revision == 0 || limit.denials > DENIALS_MAX {
        return Err(Malformed("a limit contradicts itself"));
    }
    Ok(SlotRecord::Limit(Box::new(limit), Box::new(definition), debt))
}

/// The settled amount of a limit that expires in one millisecond.
pub(super) struct CellRecord {
    pub(super) limit: LimitSlot,
    pub(super) at: UnixMs,
    pub(super) settled: u64,
}

impl CellRecord {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.put_u32(self.limit.0);
        out.put_u64(self.at.get());
        out.put_u64(self.settled);
    }

    pub(super) fn read(input: &mut Bytes<'_>) -> Result<CellRecord, Malformed> {
        Ok(CellRecord { limit: LimitSlot(input.u32()?), at: time(input)?, settled: input.u64()? })
    }
}

/// The flag in the kind of a reservation above the capacity of a shadow limit.
const WOULD_DENY: u8 = 1 << 7;

/// The size of one reservation in a lease record.
const PART_BYTES: usize = 17;

/// The flag in the number of reservations of an extended lease.
const EXTENDED: u8 = 1 << 7;

/// The size of the last extension in a lease record.
const EXTENDED_BYTES: usize = 38;

/// The size of an extended part in a lease record.
const EXTENDED_PART_BYTES: usize = 40;

/// A lease without its reservations.
#[derive(Clone, Copy)]
pub(super) struct LeaseRecord {
    pub(super) namespace: NamespaceId,
    pub(super) lease: LeaseId,
    pub(super) reserved_at: UnixMs,
}

impl LeaseRecord {
    pub(super) fn put(&self, out: &mut Vec<u8>, parts: &[Reservation], is_extended: bool) {
        out.put_u16(self.namespace.0);
        out.put_u128(self.lease.to_u128());
        out.put_u64(self.reserved_at.get());
        out.put_u8(parts.len() as u8 | if is_extended { EXTENDED } else { 0 });
        for part in parts {
            out.put_u32(part.limit.0);
            let would_deny = if part.would_deny() { WOULD_DENY } else { 0 };
            out.put_u8(part.kind() as u8 | would_deny);
            out.put_u32(part.hold_seconds());
            out.put_u64(part.amount);
        }
    }

    /// The leases of a block, up to the first that cannot be read.
    pub(super) fn leases(records: &[u8]) -> impl Iterator<Item = (NamespaceId, LeaseId)> + use<'_> {
        let mut rest = records;
        std::iter::from_fn(move || {
            let mut input = Bytes(rest);
            let lease = (NamespaceId(input.u16().ok()?), LeaseId::from_u128(input.u128().ok()?));
            let _reserved_at = input.u64().ok()?;
            let count = input.u8().ok()?;
            let parts = usize::from(count & !EXTENDED);
            let mut len = parts.saturating_mul(PART_BYTES);
            if count & EXTENDED != 0 {
                let more = parts.saturating_mul(EXTENDED_PART_BYTES).saturating_add(EXTENDED_BYTES);
                len = len.saturating_add(more);
            }
            rest = input.0.get(len..)?;
            Some(lease)
        })
    }

    /// Reads a lease with its reservations, and whether an extension follows.
    pub(super) fn read(input: &mut Bytes<'_>, parts: &mut Vec<Reservation>) -> Result<(LeaseRecord, bool), Malformed> {
        let namespace = NamespaceId(input.u16()?);
        let lease = LeaseId::from_u128(input.u128()?);
        let record = LeaseRecord { namespace, lease, reserved_at: time(input)? };
        parts.clear();
        let count = input.u8()?;
        let is_extended = count & EXTENDED != 0;
        for _ in 0..count & !EXTENDED {
            let limit = LimitSlot(input.u32()?);
            let code = input.u8()?;
            let would_deny = code & WOULD_DENY != 0;
            let kind = PartKind::from_code(code & !WOULD_DENY);
            let kind = kind.ok_or(Malformed("the kind of a reservation is unknown"))?;
            let hold_seconds = input.u32()?;
            if hold_seconds == 0 || hold_seconds > HOLD_SECONDS_MAX {
                return Err(Malformed("a reservation is held for too short or too long"));
            }
            let amount = input.u64()?;
            if amount == 0 || parts.last().is_some_and(|last| last.limit >= limit) {
                return Err(Malformed("the reservations of a lease are empty or out of order"));
            }
            let part = Reservation::new(limit, kind, hold_seconds, amount).with_would_deny(would_deny);
            if would_deny && part.is_credit() {
                return Err(Malformed("a reservation of credit has the flag of a shadow limit"));
            }
            parts.push(part);
        }
        Ok((record, is_extended))
    }
}

pub(super) fn put_job(out: &mut Vec<u8>, namespace: NamespaceId, lease: LeaseId, job: &JobId) {
    out.put_u128(lease.to_u128());
    out.put_u16(namespace.0);
    out.put_text(job.as_str());
}

pub(super) fn read_job(input: &mut Bytes<'_>) -> Result<(NamespaceId, LeaseId, JobId), Malformed> {
    let (lease, namespace) = (LeaseId::from_u128(input.u128()?), NamespaceId(input.u16()?));
    let job = JobId::new(input.text()?).map_err(|_| Malformed("a job has no valid id"))?;
    Ok((namespace, lease, job))
}

const MARK_CALL: u8 = 1;
const MARK_GATEWAY: u8 = 2;

pub(super) fn put_mark(out: &mut Vec<u8>, namespace: NamespaceId, lease: LeaseId, mark: &LeaseMark) {
    out.put_u128(lease.to_u128());
    out.put_u16(namespace.0);
    let call = if mark.call.is_some() { MARK_CALL } else { 0 };
    out.put_u8(call | if mark.by_gateway { MARK_GATEWAY } else { 0 });
    if let Some(call) = mark.call {
        call.write(out);
    }
}

pub(super) fn read_mark(input: &mut Bytes<'_>) -> Result<(NamespaceId, LeaseId, LeaseMark), Malformed> {
    let (lease, namespace) = (LeaseId::from_u128(input.u128()?), NamespaceId(input.u16()?));
    let flags = input.u8()?;
    if flags == 0 || flags > (MARK_CALL | MARK_GATEWAY) {
        return Err(Malformed("the flags of a mark are unknown"));
    }
    let call = if flags & MARK_CALL == 0 { None } else { Some(Wire::read(input)?) };
    Ok((namespace, lease, LeaseMark { call, by_gateway: flags & MARK_GATEWAY != 0 }))
}

/// The size of a tombstone record.
const TOMBSTONE_BYTES: usize = 44;

pub(super) fn put_tombstone(out: &mut Vec<u8>, tombstone: &Tombstone) {
    out.put_u16(tombstone.namespace.0);
    out.put_u128(tombstone.id.to_u128());
    out.put_u8(tombstone.ending as u8);
    out.put_u64(tombstone.resolved_at.get());
    out.put_u64(tombstone.at.get());
    out.put_u64(tombstone.fingerprint);
    out.put_u8(tombstone.limited_by);
}

/// The leases of a block of tombstones.
pub(super) fn tombstone_leases(records: &[u8]) -> impl Iterator<Item = (NamespaceId, LeaseId)> {
    records.chunks_exact(TOMBSTONE_BYTES).filter_map(|record| {
        let mut input = Bytes(record);
        Some((NamespaceId(input.u16().ok()?), LeaseId::from_u128(input.u128().ok()?)))
    })
}

pub(super) fn read_tombstone(input: &mut Bytes<'_>) -> Result<Tombstone, Malformed> {
    let namespace = NamespaceId(input.u16()?);
    let lease = LeaseId::from_u128(input.u128()?);
    let ending = match input.u8()? {
        1 => Ending::Denied,
        2 => Ending::DeniedNever,
        3 => Ending::Completed,
        4 => Ending::Marked,
        5 => Ending::NoCredit,
        6 => Ending::AccountFrozen,
        7 => Ending::AccountClosed,
        8 => Ending::Released,
        _ => return Err(Malformed("the ending of a lease is unknown")),
    };
    let resolved_at = time(input)?;
    Ok(Tombstone {
        at: time(input)?,
        fingerprint: input.u64()?,
        limited_by: input.u8()?,
        ..Tombstone::new(namespace, lease, ending, resolved_at)
    })
}

pub(super) fn put_pause(out: &mut Vec<u8>, slot: LimitSlot, pause: &Pause) {
    out.put_u32(slot.0);
    out.put_u64(pause.until.get());
    out.put_text(&pause.reason);
}

/// Restores a pause. They are ordered by slot.
pub(super) fn read_pause(limits: &mut Limits, input: &mut Bytes<'_>) -> Result<(), Malformed> {
    let (slot, until, reason) = (LimitSlot(input.u32()?), time(input)?, input.text()?);
    let state = &mut limits.state;
    let is_bounded = until <= state.now().plus_ms(PAUSE_MS_MAX) && reason.len() <= PAUSE_REASON_BYTES_MAX;
    if !is_bounded || state.pauses.len() >= PAUSES_MAX || state.limits.get(slot).is_none() {
        return Err(Malformed("a pause is too long, one too many, or of no limit"));
    }
    if state.pauses.iter().next_back().is_some_and(|(last, _)| last >= slot) {
        return Err(Malformed("pauses are doubled or out of order"));
    }
    let namespace = state.limits[slot].namespace;
    Arc::make_mut(&mut state.pauses).insert(namespace, slot, Pause { until, reason: reason.into() });
    Ok(())
}
