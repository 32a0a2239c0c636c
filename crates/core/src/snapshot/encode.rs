//! Encodes a frozen state.

use std::sync::Arc;

use super::block::{self, BLOCK_BYTES, FRAME_BYTES, Kind};
use super::clients::{put_recent, put_retired, put_stream};
use super::credit::{GrantRecord, put_account, put_hold, put_vault};
use super::extended::put_extended;
use super::idempotency::{put_key_answer, put_used_key};
use super::keys::put_key;
use super::plans::{all_plans, put_plan};
use super::policies::put_policy;
use super::quotas::QuotaRecord;
use super::records::{
    BookRecord, CellRecord, LeaseRecord, put_free, put_job, put_limit, put_mark, put_pause, put_tombstone,
};
use super::templates::{TemplateRecord, all_templates};
use crate::book::{NamespaceId, Receipt, VaultId};
use crate::credits::{self, Hold, PlanState};
use crate::id::{JobId, LeaseId};
use crate::idempotency::UsedKeys;
use crate::keys::{Key, Keys};
use crate::limits::slab::{Record, Slab};
use crate::limits::{ExtendedPart, Lease, LeaseMark, LimitSlot, Pause, Reservation, State, Tombstone};
use crate::policies::{Policies, PolicyRevision};
use crate::sequence::Streams;
use crate::time::UnixMs;
use crate::wire::Put;

/// A Book at one moment. It shares tables with its Book and can be encoded on another thread meanwhile.
pub struct Frozen {
    pub(super) state: State,
    pub(super) credits: credits::State,
    streams: Streams<Option<Arc<Receipt>>>,
    used_keys: UsedKeys,
    keys: Keys,
    policies: Policies,
}

impl Frozen {
    pub(crate) fn new(
        state: State,
        credits: credits::State,
        (streams, used_keys): (Streams<Option<Arc<Receipt>>>, UsedKeys),
        keys: Keys,
        policies: Policies,
    ) -> Frozen {
        Frozen { state, credits, streams, used_keys, keys, policies }
    }

    /// The time of the last command in it.
    #[must_use]
    pub fn time(&self) -> UnixMs {
        self.state.now()
    }

    /// The released holds whose leases are still recorded, in the order of the leases.
    fn released(&self) -> impl Iterator<Item = &Hold> + Send {
        let leases = (self.credits.released > 0).then(|| self.state.leases.iter());
        let holds = leases.into_iter().flatten().flat_map(|lease| self.credits.hold_slots(lease.holds));
        holds.map(|slot| self.credits.holds.get(slot)).filter(|hold| hold.is_released)
    }

    /// The snapshot in pieces, to be concatenated in order.
    #[must_use]
    pub fn encode(&self) -> Encoded<'_> {
        Encoded {
            state: &self.state,
            frozen: self,
            kind: None,
            is_done: false,
            before: 0,
            position: 0,
            cells: Vec::new(),
            next_cell: 0,
            grants: Box::new(GrantRecord::all(&self.credits)),
            plans: Box::new(all_plans(&self.credits)),
            holds: Box::new(self.credits.queue().chain(self.released())),
            leases: Box::new(self.state.leases.iter()),
            tombstones: Box::new(self.state.tombstones.iter()),
            jobs: Box::new(self.state.jobs.iter()),
            marks: Box::new(self.state.marks.iter()),
            keys: Box::new(self.keys.all.values()),
            quotas: Box::new(QuotaRecord::all(&self.state)),
            templates: Box::new(all_templates(&self.state)),
            pauses: Box::new(self.state.pauses.iter()),
            policies: Box::new(self.policies.iter()),
            parts: Vec::new(),
            more: Vec::new(),
        }
    }
}

/// The pieces of a snapshot; see [`Frozen::encode`].
pub struct Encoded<'a> {
    frozen: &'a Frozen,
    state: &'a State,
    /// The kind of the next block; `None` before the header.
    kind: Option<Kind>,
    is_done: bool,
    before: u32,
    /// The index of the next namespace, vault, limit or client.
    position: u32,
    cells: Vec<CellRecord>,
    next_cell: usize,
    grants: Box<dyn Iterator<Item = GrantRecord> + Send + 'a>,
    plans: Box<dyn Iterator<Item = &'a PlanState> + Send + 'a>,
    holds: Box<dyn Iterator<Item = &'a Hold> + Send + 'a>,
    leases: Box<dyn Iterator<Item = &'a Lease> + Send + 'a>,
    tombstones: Box<dyn Iterator<Item = &'a Tombstone> + Send + 'a>,
    jobs: Box<dyn Iterator<Item = (NamespaceId, LeaseId, &'a JobId)> + Send + 'a>,
    marks: Box<dyn Iterator<Item = (NamespaceId, LeaseId, &'a LeaseMark)> + Send + 'a>,
    keys: Box<dyn Iterator<Item = &'a Key> + Send + 'a>,
    quotas: Box<dyn Iterator<Item = QuotaRecord> + Send + 'a>,
    templates: Box<dyn Iterator<Item = TemplateRecord<'a>> + Send + 'a>,
    pauses: Box<dyn Iterator<Item = (LimitSlot, &'a Pause)> + Send + 'a>,
    policies: Box<dyn Iterator<Item = (NamespaceId, &'a PolicyRevision)> + Send + 'a>,
    parts: Vec<Reservation>,
    more: Vec<ExtendedPart>,
}

impl Iterator for Encoded<'_> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        if self.is_done {
            return None;
        }
        let Some(mut kind) = self.kind else {
            self.kind = Some(Kind::Book);
            return Some(block::header());
        };
        loop {
            let mut block = block::open();
            self.fill(kind, &mut block);
            if block.len() > FRAME_BYTES {
                self.before = block::close(&mut block, kind, self.before);
                self.is_done = kind == Kind::End;
                // A snapshot has one Book block, and any number of the others.
                self.kind = if kind == Kind::Book { kind.next() } else { Some(kind) };
                return Some(block);
            }
            kind = kind.next()?;
            self.position = 0;
        }
    }
}

impl Encoded<'_> {
    fn fill(&mut self, kind: Kind, block: &mut Vec<u8>) {
        match kind {
            Kind::Book => self.book().put(block),
            Kind::Namespaces => self.fill_namespaces(block),
            Kind::Limits => self.fill_limits(block),
            Kind::Cells => self.fill_cells(block),
            Kind::Leases => self.fill_leases(block),
            Kind::Tombstones | Kind::Jobs | Kind::Marks => {
                while block.len() < BLOCK_BYTES && self.put_extra(kind, block) {}
            }
            Kind::Vaults => self.fill_vaults(block),
            Kind::Accounts => self.fill_accounts(block),
            Kind::Grants => put_all(block, &mut self.grants, |block, grant| grant.put(block)),
            Kind::Holds => put_all(block, &mut self.holds, |block, hold| put_hold(block, &self.frozen.credits, hold)),
            Kind::Clients => self.fill_clients(block),
            Kind::Results => self.fill_results(block),
            Kind::Keys => put_all(block, &mut self.keys, put_key),
            Kind::Quotas => put_all(block, &mut self.quotas, |block, quota| quota.put(block)),
            Kind::Templates => put_all(block, &mut self.templates, |block, record| record.put(block)),
            Kind::Pauses => put_all(block, &mut self.pauses, |block, (slot, pause)| put_pause(block, slot, pause)),
            Kind::Policies => {
                put_all(block, &mut self.policies, |block, (namespace, policy)| put_policy(block, namespace, policy));
            }
            Kind::Plans => put_all(block, &mut self.plans, put_plan),
            Kind::Retired => put_slab(block, &self.frozen.streams.retired, &mut self.position, put_retired),
            Kind::UsedKeys => put_slab(block, &self.frozen.used_keys.used, &mut self.position, put_used_key),
            Kind::KeyAnswers => self.fill_key_answers(block),
            Kind::End => {
                block.put_u64(u64::from(self.state.leases.len()));
                block.put_u64(self.state.tombstones.len() as u64);
                block.put_u64(u64::from(self.frozen.streams.len()));
                block.put_u64(self.frozen.credits.vaults.len() as u64);
                block.put_u32(self.frozen.credits.vaults_created);
                block.put_u64(u64::from(self.frozen.credits.accounts.used()));
                block.put_u64(self.frozen.keys.all.len() as u64);
                block.put_u32(self.frozen.keys.created);
            }
        }
    }

    fn book(&self) -> BookRecord {
        let State { config, time, forgotten_before, external, revision, sweep, .. } = *self.state;
        let expiry = self.frozen.credits.expiry;
        BookRecord { config, time, forgotten_before, external, revision, sweep, expiry }
    }

    fn fill_namespaces(&mut self, block: &mut Vec<u8>) {
        while block.len() < BLOCK_BYTES {
            let Some(name) = self.state.namespaces.get(self.position as usize) else { return };
            block.put_text(name.as_str());
            self.position = self.position.saturating_add(1);
        }
    }

    fn fill_vaults(&mut self, block: &mut Vec<u8>) {
        while block.len() < BLOCK_BYTES {
            let next = self.frozen.credits.vaults.range(VaultId(self.position)..).next();
            let Some((&id, vault)) = next else { return };
            put_vault(block, id, vault);
            self.position = id.0.saturating_add(1);
        }
    }

    fn fill_accounts(&mut self, block: &mut Vec<u8>) {
        while block.len() < BLOCK_BYTES && self.position < self.frozen.credits.accounts.used() {
            put_account(block, &self.frozen.credits, self.position);
            self.position = self.position.saturating_add(1);
        }
    }

    fn fill_clients(&mut self, block: &mut Vec<u8>) {
        while block.len() < BLOCK_BYTES {
            let Some(stream) = self.frozen.streams.get(self.position) else { return };
            put_stream(block, stream);
            self.position = self.position.saturating_add(1);
        }
    }

    /// Skips expired results. The last result of a client is stored with the client.
    fn fill_results(&mut self, block: &mut Vec<u8>) {
        let now = self.state.now();
        while block.len() < BLOCK_BYTES {
            let Some(recent) = self.frozen.streams.recent.get(self.position as usize) else { return };
            self.position = self.position.saturating_add(1);
            if !recent.is_over(now) {
                let last = self.frozen.streams.get(recent.stream).map_or(0, |stream| stream.last);
                put_recent(block, recent, recent.sequence == last);
            }
        }
    }

    /// Skips expired answers, which are the oldest.
    fn fill_key_answers(&mut self, block: &mut Vec<u8>) {
        let now = self.state.now();
        while block.len() < BLOCK_BYTES {
            let Some((&number, answer)) = self.frozen.used_keys.answers.range(self.position..).next() else { return };
            self.position = number.saturating_add(1);
            if !answer.is_expired_answer(now) {
                put_key_answer(block, number, answer);
            }
        }
    }

    fn fill_limits(&mut self, block: &mut Vec<u8>) {
        while block.len() < BLOCK_BYTES {
            let slot = LimitSlot(self.position);
            if let Some(generation) = self.state.limits.free_generation(slot) {
                put_free(block, generation);
            } else {
                let Some(view) = self.state.view_at(slot, self.state.now()) else { return };
                let Some(definition) = self.state.stored_definition(slot, &view) else { return };
                put_limit(block, &view.limit, &definition, view.debt);
            }
            self.position = self.position.saturating_add(1);
        }
    }

    /// Only settled amounts. Unsettled ones are restored from the leases.
    fn fill_cells(&mut self, block: &mut Vec<u8>) {
        while block.len() < BLOCK_BYTES {
            if let Some(cell) = self.cells.get(self.next_cell) {
                cell.put(block);
                self.next_cell = self.next_cell.saturating_add(1);
                continue;
            }
            let limit = LimitSlot(self.position);
            if self.position >= self.state.limits.used() {
                return;
            }
            self.cells.clear();
            self.next_cell = 0;
            self.position = self.position.saturating_add(1);
            let Some(found) = self.state.limits.get(limit) else { continue };
            let now = self.state.now();
            found.timeline().visit(&self.state.nodes, &mut |at, sums| {
                if at > now && sums.settled > 0 {
                    self.cells.push(CellRecord { limit, at, settled: sums.settled });
                }
            });
        }
    }

    /// Writes the next tombstone, job or mark. Returns false after the last.
    fn put_extra(&mut self, kind: Kind, block: &mut Vec<u8>) -> bool {
        match kind {
            Kind::Jobs => self.jobs.next().map(|(namespace, lease, job)| put_job(block, namespace, lease, job)),
            Kind::Marks => self.marks.next().map(|(namespace, lease, mark)| put_mark(block, namespace, lease, mark)),
            _ => self.tombstones.next().map(|tombstone| put_tombstone(block, tombstone)),
        }
        .is_some()
    }

    fn fill_leases(&mut self, block: &mut Vec<u8>) {
        while block.len() < BLOCK_BYTES {
            let Some(lease) = self.leases.next() else { return };
            self.state.leases.parts(lease, &mut self.parts);
            let record = LeaseRecord { namespace: lease.namespace, lease: lease.id, reserved_at: lease.reserved_at };
            let extended = self.state.leases.extended(lease);
            record.put(block, &self.parts, extended.is_some());
            if let Some(extended) = extended {
                self.state.leases.extended_parts(lease, &mut self.more);
                put_extended(block, extended, &self.more);
            }
        }
    }
}

/// Adds records to a block until it is full.
fn put_all<T>(block: &mut Vec<u8>, records: &mut dyn Iterator<Item = T>, mut put: impl FnMut(&mut Vec<u8>, T)) {
    while block.len() < BLOCK_BYTES {
        let Some(record) = records.next() else { return };
        put(block, record);
    }
}

/// Adds the records of a slab to a block until it is full, from a position on.
fn put_slab<R: Record>(block: &mut Vec<u8>, slab: &Slab<R>, position: &mut u32, put: fn(&mut Vec<u8>, &R)) {
    while block.len() < BLOCK_BYTES && *position < slab.used() {
        put(block, slab.get(*position));
        *position = position.saturating_add(1);
    }
}
