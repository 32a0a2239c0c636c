//! Decodes a snapshot into a Book.

use super::block::{BLOCK_BYTES, FRAME_BYTES, Frame, HEADER_BYTES, Kind, SIGNATURE};
use super::clients::{read_recent, read_retired, read_stream};
use super::credit::{GrantRecord, HoldsRead, check_vaults, read_account, read_grant, read_vault};
use super::extended::read_extended;
use super::idempotency::{read_key_answer, read_used_key};
use super::keys::read_key;
use super::plans::read_plan;
use super::policies::read_policy;
use super::quotas::{QuotaRecord, read_quota};
use super::records::{
    BookRecord, CellRecord, LeaseRecord, SlotRecord, read_job, read_mark, read_pause, read_slot, read_tombstone,
    tombstone_leases,
};
use super::templates::{TemplatePlace, read_template};
use super::{SNAPSHOT_VERSION, SnapshotError};
use crate::book::{Book, NamespaceId, REQUIREMENTS_MAX};
use crate::id::NamespaceName;
use crate::limits::index::REFERENCES_MAX;
use crate::limits::{
    Ending, ExtendedPart, LIMITS_MAX, Life, Limit, LimitSlot, Limits, PartKind, Phase, Reservation, State, Sums, Text,
    Tombstone, decided_at, end_second,
};
use crate::time::UnixMs;
use crate::wire::{Bytes, Malformed};

/// Restores a Book from a snapshot, piece by piece. An accepted snapshot encodes to the same bytes again.
pub struct Restore {
    table_seed: u64,
    failure: Option<SnapshotError>,
    buffer: Vec<u8>,
    has_header: bool,
    kind: Kind,
    blocks: u64,
    before: u32,
    /// The last block was closed because it was full, so more of its kind may follow.
    was_full: bool,
    book: Option<Book>,
    last_cell: Option<(LimitSlot, UnixMs)>,
    last_second: u64,
    credit_parts: u64,
    last_grant: Option<GrantRecord>,
    last_plan: Option<u32>,
    holds: HoldsRead,
    last_quota: Option<QuotaRecord>,
    last_template: Option<TemplatePlace>,
    last_policy: Option<NamespaceId>,
    parts: Vec<Reservation>,
    more: Vec<ExtendedPart>,
}

impl Restore {
    /// `table_seed` seeds the hash tables; see [`Book::new`].
    #[must_use]
    pub fn new(table_seed: u64) -> Restore {
        Restore {
            table_seed,
            failure: None,
            buffer: Vec::new(),
            has_header: false,
            kind: Kind::Book,
            blocks: 0,
            before: 0,
            was_full: true,
            book: None,
            last_cell: None,
            last_second: 0,
            credit_parts: 0,
            last_grant: None,
            last_plan: None,
            holds: HoldsRead::default(),
            last_quota: None,
            last_template: None,
            last_policy: None,
            parts: Vec::new(),
            more: Vec::new(),
        }
    }

    /// Takes the next bytes, any number.
    ///
    /// # Errors
    /// The bytes are not part of a valid snapshot. Every later call fails too.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        if self.failure.is_none() {
            self.failure = self.take(bytes).err();
        }
        self.failure.clone().map_or(Ok(()), Err)
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.extend_from_slice(bytes);
        let mut rest = buffer.as_slice();
        if !self.has_header {
            let Some((header, blocks)) = rest.split_first_chunk::<HEADER_BYTES>() else {
                self.buffer = buffer;
                return Ok(());
            };
            check_header(header)?;
            self.has_header = true;
            rest = blocks;
        }
        while let Some(frame) = Frame::read(rest, self.blocks)? {
            let end = FRAME_BYTES.saturating_add(frame.len);
            if rest.len() < end {
                break;
            }
            self.block(&frame, rest)?;
            rest = &rest[end..];
        }
        let taken = buffer.len().saturating_sub(rest.len());
        buffer.drain(..taken);
        self.buffer = buffer;
        Ok(())
    }

    /// Returns the Book.
    ///
    /// # Errors
    /// The snapshot was cut off, or its parts contradict each other.
    pub fn finish(self) -> Result<Book, SnapshotError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let damaged = |what| SnapshotError::Damaged { block: self.blocks, what };
        if !self.has_header && !SIGNATURE.starts_with(&self.buffer[..self.buffer.len().min(SIGNATURE.len())]) {
            return Err(SnapshotError::NotASnapshot);
        }
        if self.kind != Kind::End {
            return Err(SnapshotError::Truncated { blocks: self.blocks });
        }
        if !self.buffer.is_empty() {
            return Err(damaged("something follows its end"));
        }
        let mut book = self.book.ok_or(damaged("it has no beginning"))?;
        // Higher than the version of any earlier Book, whose time was earlier.
        book.limits.version = book.time().get() << 16;
        Ok(book)
    }

    fn block(&mut self, frame: &Frame, bytes: &[u8]) -> Result<(), SnapshotError> {
        let block = self.blocks;
        let damaged = |what| SnapshotError::Damaged { block, what };
        if !frame.is_intact(self.before, bytes) {
            return Err(damaged("its checksum does not match"));
        }
        let is_first = self.book.is_none();
        let goes_on = frame.kind > self.kind || frame.kind == self.kind && self.was_full;
        if self.kind == Kind::End || !goes_on || (frame.kind == Kind::Book) != is_first {
            return Err(damaged("it is out of order"));
        }
        self.kind = frame.kind;
        self.was_full = FRAME_BYTES.saturating_add(frame.len) >= BLOCK_BYTES;
        let mut records = Bytes(&bytes[FRAME_BYTES..FRAME_BYTES.saturating_add(frame.len)]);
        self.records(frame.kind, &mut records).map_err(|Malformed(what)| damaged(what))?;
        self.before = frame.checksum;
        self.blocks = self.blocks.saturating_add(1);
        Ok(())
    }

    fn records(&mut self, kind: Kind, input: &mut Bytes<'_>) -> Result<(), Malformed> {
        if kind == Kind::Book {
            self.book(input)?;
        } else {
            let Some(mut book) = self.book.take() else { return Err(Malformed("it has no beginning")) };
            let result = match kind {
                Kind::End if self.holds.count != self.credit_parts => Err(Malformed("holds of credit are missing")),
                Kind::End => end(&mut book, input),
                _ => self.records_of(kind, &mut book, input),
            };
            self.book = Some(book);
            result?;
        }
        if input.is_empty() { Ok(()) } else { Err(Malformed("it is longer than its records")) }
    }

    fn records_of(&mut self, kind: Kind, book: &mut Book, input: &mut Bytes<'_>) -> Result<(), Malformed> {
        let len = input.0.len();
        if len == 0 {
            return Err(Malformed("it is empty"));
        }
        // Leases of a block are scattered over the index: look them up together, so that the cache misses overlap.
        match kind {
            Kind::Leases => book.limits.prefetch_leases(LeaseRecord::leases(input.0)),
            Kind::Tombstones => book.limits.prefetch_leases(tombstone_leases(input.0)),
            _ => {}
        }
        while !input.is_empty() {
            if FRAME_BYTES.saturating_add(len).saturating_sub(input.0.len()) >= BLOCK_BYTES {
                return Err(Malformed("it goes on although it is full"));
            }
            match kind {
                Kind::Namespaces => namespace(&mut book.limits, input)?,
                Kind::Vaults => read_vault(book, input)?,
                Kind::Accounts => read_account(book, input)?,
                Kind::Grants => read_grant(book, &mut self.last_grant, input)?,
                Kind::Limits => limit(&mut book.limits, input)?,
                Kind::Holds => self.holds.read(book, input)?,
                Kind::Cells => self.cell(&mut book.limits, input)?,
                Kind::Leases => self.lease(&mut book.limits, input)?,
                Kind::Tombstones => self.tombstone(&mut book.limits, input)?,
                Kind::Jobs => job(&mut book.limits, input)?,
                Kind::Clients => read_stream(book, input)?,
                Kind::Results => read_recent(book, input)?,
                Kind::Keys => read_key(book, input)?,
                Kind::Retired => read_retired(book, input)?,
                Kind::Templates => read_template(book, &mut self.last_template, input)?,
                Kind::Pauses => read_pause(&mut book.limits, input)?,
                Kind::Policies => read_policy(book, &mut self.last_policy, input)?,
                Kind::Marks => mark(&mut book.limits, input)?,
                Kind::UsedKeys => read_used_key(book, input)?,
                Kind::KeyAnswers => read_key_answer(book, input)?,
                Kind::Plans => read_plan(book, &mut self.last_plan, input)?,
                Kind::Quotas => read_quota(book, &mut self.last_quota, input)?,
                Kind::Book | Kind::End => return Err(Malformed("it is out of order")),
            }
        }
        Ok(())
    }

    fn book(&mut self, input: &mut Bytes<'_>) -> Result<(), Malformed> {
        let record = BookRecord::read(input)?;
        let mut state = State::new(record.config);
        state.external = record.external;
        state.time = record.time;
        state.forgotten_before = record.forgotten_before;
        state.revision = record.revision;
        state.sweep = record.sweep;
        let mut limits = Limits::empty(state, self.table_seed);
        limits.begin_restore();
        let mut book = Book::of(limits, self.table_seed);
        book.credits.state.expiry = record.expiry;
        self.book = Some(book);
        Ok(())
    }

    fn cell(&mut self, limits: &mut Limits, input: &mut Bytes<'_>) -> Result<(), Malformed> {
        let cell = CellRecord::read(input)?;
        let position = Some((cell.limit, cell.at));
        if position <= self.last_cell || cell.settled == 0 || cell.at <= limits.state.now() {
            return Err(Malformed("settled amounts are empty, over or out of order"));
        }
        self.last_cell = position;
        hold(&mut limits.state, cell.limit, cell.at, Sums::settled(cell.settled))
    }

    fn lease(&mut self, limits: &mut Limits, input: &mut Bytes<'_>) -> Result<(), Malformed> {
        let (record, is_extended) = LeaseRecord::read(input, &mut self.parts)?;
        let LeaseRecord { namespace, lease, reserved_at } = record;
        self.more.clear();
        let extended =
            if is_extended { Some(read_extended(input, reserved_at, &self.parts, &mut self.more)?) } else { None };
        let now = limits.state.now();
        if self.parts.is_empty() || self.parts.len() > REQUIREMENTS_MAX || reserved_at > now {
            return Err(Malformed("a lease holds nothing, too much, or comes from the future"));
        }
        let life = Life::of(reserved_at, &self.parts, &self.more);
        let second = end_second(lease, life.last);
        if second < self.last_second || limits.is_remembered(namespace, lease) {
            return Err(Malformed("leases are doubled or out of order"));
        }
        self.last_second = second;
        for (place, part) in self.parts.iter().enumerate() {
            let ends_at = self.more.get(place).map_or_else(|| part.ends_at(reserved_at), |more| more.ends_at);
            let limit = limits.state.limits.get(part.limit);
            let limit = limit.ok_or(Malformed("a lease holds a limit that is not there"))?;
            // A limit may have been shared when the lease took it. Credit never is.
            if limit.namespace != namespace && (part.is_credit() || limit.is_credit()) {
                return Err(Malformed("a lease holds credit of another namespace"));
            }
            if part.is_credit() {
                let is_held_here = u64::from(part.kind() == PartKind::Credit);
                self.credit_parts = self.credit_parts.saturating_add(is_held_here);
            } else if ends_at > now {
                // A limit with reservations keeps its kind, since it cannot be deleted before they end.
                if limit.part_kind() != part.kind() {
                    return Err(Malformed("a lease holds a limit of another kind"));
                }
                hold(&mut limits.state, part.limit, ends_at, Sums::unsettled(part.amount))?;
            }
        }
        room(limits)?;
        limits.link_parts(&self.parts);
        let hash = limits.hash(namespace, lease);
        limits.restore_lease((namespace, lease), hash, reserved_at, (&self.parts, extended, &self.more));
        Ok(())
    }

    fn tombstone(&mut self, limits: &mut Limits, input: &mut Bytes<'_>) -> Result<(), Malformed> {
        let tombstone = read_tombstone(input)?;
        if tombstone.resolved_at > limits.state.now() {
            return Err(Malformed("a lease was resolved in the future"));
        }
        check_tombstone(&tombstone)?;
        if !limits.has_namespace(tombstone.namespace) || limits.is_remembered(tombstone.namespace, tombstone.id) {
            return Err(Malformed("a resolved lease is doubled or in no namespace"));
        }
        room(limits)?;
        limits.add_tombstone(tombstone);
        Ok(())
    }
}

fn check_header(header: &[u8; HEADER_BYTES]) -> Result<(), SnapshotError> {
    let mut input = Bytes(header.strip_prefix(SIGNATURE).ok_or(SnapshotError::NotASnapshot)?);
    match input.u32() {
        Ok(SNAPSHOT_VERSION) => Ok(()),
        Ok(found) => Err(SnapshotError::OtherVersion { found }),
        Err(_) => Err(SnapshotError::NotASnapshot),
    }
}

fn namespace(limits: &mut Limits, input: &mut Bytes<'_>) -> Result<(), Malformed> {
    let name = NamespaceName::new(input.text()?).map_err(|_| Malformed("a namespace has no valid name"))?;
    if limits.namespace(&name).is_some() || limits.state.namespaces.is_empty() != name.is_default() {
        return Err(Malformed("namespaces are doubled or do not start with the default one"));
    }
    limits.add_namespace(&name).map(drop).ok_or(Malformed("there are too many namespaces"))
}

fn limit(limits: &mut Limits, input: &mut Bytes<'_>) -> Result<(), Malformed> {
    if limits.state.limits.used() >= LIMITS_MAX {
        return Err(Malformed("there are too many limits"));
    }
    let (limit, definition, debt) = match read_slot(input)? {
        SlotRecord::Free { generation } => {
            limits.state.limits.restore_free(generation);
            return Ok(());
        }
        SlotRecord::Limit(limit, definition, debt) => (limit, definition, debt),
    };
    let is_known = limits.resolve(limit.namespace, &definition.key).is_some();
    let is_ahead = limit.revision > limits.state.revision || limit.decided > decided_at(limits.state.now());
    if is_known || !limits.has_namespace(limit.namespace) || is_ahead {
        return Err(Malformed("limits are doubled, in no namespace, or changed in the future"));
    }
    let slot = limits.state.limits.restore(*limit);
    if limit.template().is_some() {
        limits.name_derived(slot, &definition.key);
        let target = (limit.phase == Phase::Decreasing).then_some(definition.capacity);
        limits.state.set_target(slot, target);
    } else {
        limits.state.reclaimable = limits.state.reclaimable.saturating_add(limit.is_reclaimable().into());
        limits.name_limit(slot, Text::of(&definition));
    }
    limits.state.set_debt(slot, debt);
    limits.state.note_limit(slot);
    Ok(())
}

fn mark(limits: &mut Limits, input: &mut Bytes<'_>) -> Result<(), Malformed> {
    let (namespace, lease, mark) = read_mark(input)?;
    let is_in_order = limits.state.marks.last().is_none_or(|(before, last)| (last, before) < (lease, namespace));
    if !is_in_order || !limits.restore_mark(namespace, lease, mark) {
        return Err(Malformed("marks are doubled, out of order, or of no lease"));
    }
    Ok(())
}

fn job(limits: &mut Limits, input: &mut Bytes<'_>) -> Result<(), Malformed> {
    let (namespace, lease, job) = read_job(input)?;
    let is_in_order = limits.state.jobs.last().is_none_or(|(before, last)| (last, before) < (lease, namespace));
    if !is_in_order || !limits.restore_job(namespace, lease, job) {
        return Err(Malformed("jobs are doubled, out of order, or of no lease"));
    }
    Ok(())
}

/// Adds `sums` to a limit, if it exists and has room.
fn hold(state: &mut State, slot: LimitSlot, at: UnixMs, sums: Sums) -> Result<(), Malformed> {
    let limit = state.limits.get(slot).ok_or(Malformed("something is held of a limit that is not there"))?;
    if sums.total() > limit.room() {
        return Err(Malformed("a limit holds more than it has"));
    }
    let State { limits, nodes, .. } = state;
    limits[slot].add(nodes, at, sums);
    Ok(())
}

fn check_tombstone(tombstone: &Tombstone) -> Result<(), Malformed> {
    let is_consistent = match tombstone.ending {
        Ending::Denied | Ending::DeniedNever | Ending::NoCredit | Ending::AccountFrozen | Ending::AccountClosed => {
            usize::from(tombstone.limited_by) < REQUIREMENTS_MAX
        }
        Ending::Completed | Ending::Released => tombstone.limited_by == 0,
        Ending::Marked => tombstone.limited_by == 0 && tombstone.fingerprint == 0 && tombstone.at == UnixMs::default(),
    };
    if is_consistent { Ok(()) } else { Err(Malformed("a resolved lease contradicts itself")) }
}

fn room(limits: &Limits) -> Result<(), Malformed> {
    // Not the maximum of its settings, which may have been lowered below the leases that it had.
    if limits.state.remembered() < REFERENCES_MAX as usize {
        return Ok(());
    }
    Err(Malformed("there are more leases than a Book can have"))
}

/// Checks the counts, and that no limit waits for something that has happened.
fn end(book: &mut Book, input: &mut Bytes<'_>) -> Result<(), Malformed> {
    let state = &book.limits.state;
    if input.u64()? != u64::from(state.leases.len()) || input.u64()? != state.tombstones.len() as u64 {
        return Err(Malformed("leases are missing"));
    }
    let (clients, vaults) = (u64::from(book.sequences.state.len()), book.credits.state.vaults.len() as u64);
    let accounts = u64::from(book.credits.state.accounts.used());
    if input.u64()? != clients || input.u64()? != vaults {
        return Err(Malformed("clients or vaults are missing"));
    }
    let vaults_created = input.u32()?;
    if vaults_created < book.credits.state.vaults_created || input.u64()? != accounts {
        return Err(Malformed("vaults or accounts are missing"));
    }
    book.credits.state.vaults_created = vaults_created;
    check_vaults(book)?;
    if state.namespaces.is_empty() || vaults == 0 {
        return Err(Malformed("it has no namespaces or no vaults"));
    }
    let waits_in_vain = |slot: LimitSlot, limit: &Limit| match limit.phase {
        Phase::Decreasing => limit.reserved() <= state.defined(slot),
        Phase::Deleting => limit.reserved() == 0,
        Phase::Active | Phase::AwaitingDrop | Phase::Deleted | Phase::Free => false,
    };
    let mut slots = (0..state.limits.used()).map(LimitSlot);
    if slots.any(|slot| state.limits.get(slot).is_some_and(|limit| waits_in_vain(slot, limit))) {
        return Err(Malformed("a limit waits for what has happened"));
    }
    let is_ahead = |slot: LimitSlot, limit: &Limit| {
        let changed = book.limits.templates_revision(limit.namespace);
        let is_wrong = || limit.revision == changed && !book.limits.is_of_its_template(slot);
        limit.template().is_some() && (limit.revision > changed || is_wrong())
    };
    let mut slots = (0..state.limits.used()).map(LimitSlot);
    if slots.any(|slot| state.limits.get(slot).is_some_and(|limit| is_ahead(slot, limit))) {
        return Err(Malformed("a derived limit has seen a template that is not there"));
    }
    if state.sweep.0 > state.limits.used() {
        return Err(Malformed("the sweep of limits is beyond the last one"));
    }
    let (keys, created) = (input.u64()?, input.u32()?);
    let last = book.keys.all.keys().next_back();
    if keys != book.keys.all.len() as u64 || last.map_or(created != 0, |last| created <= last.0) {
        return Err(Malformed("keys are missing"));
    }
    book.keys.created = created;
    book.limits.end_restore();
    Ok(())
}
