//! Limits and leases.
//!
//! The rules are those of pending transfers with timeouts in linked chains. A hash table finds a lease, and every
//! limit keeps sums of what it holds, ordered by expiry.

pub(crate) mod buckets;
mod by_lease;
pub(crate) mod calendar;
mod capacity;
mod cleanup;
mod complete;
mod config;
mod credit;
mod definition;
mod derive;
mod extend;
mod extended;
mod fingerprint;
mod free_slots;
mod growth;
mod hint;
pub(crate) mod index;
mod keys;
mod lease;
mod limit;
mod live_count;
mod mark;
mod pause;
mod read;
mod reserve;
mod side_table;
pub(crate) mod slab;
pub(crate) mod table;
mod template;
mod templates;
mod timed_out;
pub(crate) mod timeline;
mod tombstone;
mod undo;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

pub use config::{Config, Hints, Setting, SettingChange};
pub use definition::{
    CreditTerms, DESCRIPTION_BYTES_MAX, Definition, DefinitionError, HOLD_SECONDS_MAX, HoldField, Kind, KindTag,
    NameField, OnTimeout, Overage, Period, UNIT_BYTES_MAX, UTC_OFFSET_MINUTES,
};
pub(crate) use pause::Pauses;
pub use pause::{PAUSE_MS_MAX, PAUSE_REASON_BYTES_MAX, PAUSES_MAX, PAUSES_NAMESPACE_MAX, Pause};
pub use read::{LeaseInfo, LeaseState, LimitInfo, LimitUsage, Totals, Usage, UsageSort};
pub use template::{Template, TemplateError};
pub use templates::{TEMPLATES_MAX, TemplateInfo};
pub use timed_out::{TimedOut, TimeoutScan};

pub(crate) use by_lease::ByLease;
pub(crate) use derive::decided_at;
pub(crate) use extended::{Extended, ExtendedPart, ExtensionAnswer};
pub(crate) use fingerprint::{FINGERPRINT_OF_NONE, fingerprint, fingerprint_of_part, key_hash};
pub(crate) use hint::DENIALS_MAX;
pub use hint::NEVER_RETRY_MS;
use hint::Obstacle;
pub(crate) use lease::{Lease, LeaseFlags, Leases, Life, PartKind, Reservation, end_second};
pub(crate) use limit::{Flags, Limit, LimitView, PackedKind, Payers, Phase};
pub(crate) use mark::LeaseMark;
pub(crate) use table::LimitSlot;
pub(crate) use templates::{Branch, Revised, TemplateId, Templates};
pub(crate) use timeline::{Nodes, Sums};
pub(crate) use tombstone::{Ending, Tombstone, Tombstones};
pub(crate) use undo::UndoLimit;

use crate::book::{Command, ConfigureOutcome, ExternalSetup, LimitRef, NamespaceId};
use crate::id::{JobId, LeaseId, LimitKey, NamespaceName};
use crate::quota::{QuotaKind, Quotas};
use crate::time::UnixMs;
use credit::Planned;
use index::{CellPosition, Found, Hash, Index, Reference};
pub(crate) use keys::Listed;
use keys::{KeyIndex, Texts};
use reserve::ResolvedPart;
use side_table::SideTable;
use slab::NONE;
use table::Table;

/// The highest bound of limits that can be configured. That many take about 20 GiB.
pub const LIMITS_MAX: u32 = 1 << 27;
/// The latest accepted time. Later times count as this one, so that an expiry computed from it does not overflow.
pub const TIME_MAX: UnixMs = UnixMs::MAX.minus_ms(3 * 366 * 24 * 60 * 60 * 1_000);
/// The maximum number of namespaces, bounded by the 16 bits of [`NamespaceId`].
pub const NAMESPACES_MAX: usize = 1 << 16;

/// Below this number the limits fit into the processor's cache.
const LIMITS_COLD: u32 = 4_096;
/// The maximum number of limits prefetched together.
const LIMITS_SIDE_BY_SIDE: usize = 64;

/// The parts of a definition that decisions do not read.
#[derive(Clone, Debug)]
pub(crate) struct Text {
    pub(crate) key: LimitKey,
    /// The capacity of the last definition.
    pub(crate) capacity: u64,
    pub(crate) unit: String,
    pub(crate) credit: Option<CreditTerms>,
    pub(crate) description: String,
}

/// The replicated state, in tables that a snapshot can share.
pub(crate) struct State {
    pub(crate) config: Config,
    /// The time of the last command; `None` before the first.
    pub(crate) time: Option<UnixMs>,
    /// Records of leases older than this may have been deleted.
    pub(crate) forgotten_before: UnixMs,
    /// Which parts of the state other systems keep.
    pub(crate) external: ExternalSetup,
    pub(crate) namespaces: Vec<NamespaceName>,
    pub(crate) quotas: Quotas,
    /// The last revision given to a limit or template. One counter for all, so that an old revision never matches a key
    /// that was deleted and put again.
    pub(crate) revision: u64,
    /// By namespace.
    pub(crate) templates: Vec<Arc<Templates>>,
    pub(crate) texts: Texts,
    pub(crate) limits: Table,
    /// Usage that was never reserved.
    pub(crate) debts: SideTable<u128>,
    /// The sum of `debts`. Not part of a snapshot, as it follows from them.
    pub(crate) debt_sum: u128,
    /// Limits that are not active, so that totals read no others. Not part of a snapshot.
    pub(crate) inactive: BTreeSet<LimitSlot>,
    /// Defined credit limits. Not part of a snapshot.
    pub(crate) credit_limits: BTreeSet<LimitSlot>,
    /// The capacities that derived limits decrease to.
    pub(crate) targets: SideTable<u64>,
    /// The slot at which the next sweep begins. Part of the snapshot, because the sweep frees limits.
    pub(crate) sweep: LimitSlot,
    /// Limits that the sweep may free at some time. Without any it stands still.
    pub(crate) reclaimable: u32,
    pub(crate) nodes: Nodes,
    pub(crate) leases: Leases,
    pub(crate) tombstones: Tombstones,
    pub(crate) jobs: ByLease<JobId>,
    pub(crate) marks: ByLease<LeaseMark>,
    pub(crate) pauses: Arc<Pauses>,
}

/// The state and the lookup tables derived from it.
pub(crate) struct Limits {
    pub(crate) state: State,
    index: Index,
    names: BTreeMap<NamespaceName, NamespaceId>,
    keys: KeyIndex,
    /// The number of derived limits, by namespace.
    derived: Vec<u64>,
    /// By namespace.
    patterns: Vec<Branch>,
    /// Derived limits by namespace and template.
    live: Vec<Vec<u32>>,
    /// Whether any namespace ever had a template. Without one a reserve does not look for them.
    has_templates: bool,
    /// How to take back the limits that the reserve being applied derived.
    undo_derived: Vec<UndoLimit>,
    /// How to take back the revisions that it gave to live limits, by the index of the requirement.
    undo_revised: Vec<(usize, UndoLimit)>,
    /// Limits that the command being applied derived, or [`DERIVED_REFUSED`](derive::DERIVED_REFUSED).
    derived_now: u32,
    /// Limits that the command being applied may have left deleted and without leases.
    pub(crate) freeable: Vec<LimitSlot>,
    /// The limit whose expired amounts the next command frees.
    idle: LimitSlot,
    /// When the sweep last reached the end of the table; `None` after a change that may leave limits to free. It only
    /// tells whether ticks are worth sending.
    swept_at: Option<UnixMs>,
    /// A slot that probably holds something; see [`Limits::holds_nothing`]. It affects no outcome.
    holding: AtomicU32,
    /// See [`Book::limits_version`](crate::Book::limits_version).
    pub(crate) version: u64,
    resolved: Vec<ResolvedPart>,
    resolved_used: Vec<ResolvedPart>,
    planned: Vec<Planned>,
    parts: Vec<Reservation>,
    extended_parts: Vec<ExtendedPart>,
    obstacles: Vec<Obstacle>,
}

impl State {
    pub(crate) fn new(config: Config) -> State {
        State {
            config: config.bounded(),
            time: None,
            forgotten_before: UnixMs::default(),
            external: ExternalSetup::default(),
            namespaces: Vec::new(),
            quotas: Quotas::default(),
            revision: 0,
            templates: Vec::new(),
            texts: Texts::default(),
            limits: Table::default(),
            debts: SideTable::default(),
            debt_sum: 0,
            inactive: BTreeSet::new(),
            credit_limits: BTreeSet::new(),
            targets: SideTable::default(),
            sweep: LimitSlot::default(),
            reclaimable: 0,
            nodes: Nodes::default(),
            leases: Leases::default(),
            tombstones: Tombstones::default(),
            jobs: ByLease::default(),
            marks: ByLease::default(),
            pauses: Arc::default(),
        }
    }

    /// A copy for a snapshot.
    pub(crate) fn share(&mut self) -> State {
        State {
            namespaces: self.namespaces.clone(),
            quotas: self.quotas.clone(),
            templates: self.templates.clone(),
            texts: self.texts.share(),
            limits: self.limits.share(),
            debts: self.debts.clone(),
            inactive: BTreeSet::new(),
            credit_limits: BTreeSet::new(),
            targets: self.targets.clone(),
            nodes: self.nodes.share(),
            leases: self.leases.share(),
            tombstones: self.tombstones.share(),
            jobs: self.jobs.clone(),
            marks: self.marks.clone(),
            pauses: Arc::clone(&self.pauses),
            ..*self
        }
    }

    /// The revision of the next change. Revisions are never given twice.
    pub(crate) fn next_revision(&mut self) -> u64 {
        self.revision = self.revision.saturating_add(1);
        self.revision
    }

    pub(crate) fn now(&self) -> UnixMs {
        self.time.unwrap_or_default()
    }

    /// The limit in this slot, live or deleted, if leases of the namespace may reserve it.
    pub(crate) fn limit(&self, namespace: NamespaceId, slot: LimitSlot) -> Option<&Limit> {
        self.limits.get(slot).filter(|limit| limit.is_open_to(namespace))
    }

    /// Adds a lease that was just allowed or restored from a snapshot; see [`Leases::insert`]. The index needs it too.
    #[inline]
    pub(crate) fn add_lease(
        &mut self,
        (namespace, lease): (NamespaceId, LeaseId),
        times: (UnixMs, UnixMs, UnixMs),
        parts: &[Reservation],
    ) -> u32 {
        self.quotas.add_lease(namespace);
        self.leases.insert(namespace, lease, times, parts)
    }

    pub(crate) fn remembered(&self) -> usize {
        self.tombstones.len().saturating_add(self.leases.len() as usize)
    }
}

impl Limits {
    pub(crate) fn new(config: Config, table_seed: u64) -> Limits {
        let mut limits = Limits::empty(State::new(config), table_seed);
        if let Ok(name) = NamespaceName::new(NamespaceName::DEFAULT) {
            limits.add_namespace(&name);
        }
        limits
    }

    pub(crate) fn empty(state: State, table_seed: u64) -> Limits {
        Limits {
            state,
            index: Index::new(table_seed),
            names: BTreeMap::new(),
            keys: KeyIndex::new(table_seed),
            derived: Vec::new(),
            patterns: Vec::new(),
            live: Vec::new(),
            has_templates: false,
            undo_derived: Vec::new(),
            undo_revised: Vec::new(),
            derived_now: 0,
            freeable: Vec::new(),
            idle: LimitSlot::default(),
            swept_at: None,
            holding: AtomicU32::new(0),
            version: 0,
            resolved: Vec::new(),
            resolved_used: Vec::new(),
            planned: Vec::new(),
            parts: Vec::new(),
            extended_parts: Vec::new(),
            obstacles: Vec::new(),
        }
    }

    pub(crate) fn add_namespace(&mut self, name: &NamespaceName) -> Option<NamespaceId> {
        let id = NamespaceId(u16::try_from(self.state.namespaces.len()).ok()?);
        self.state.namespaces.push(name.clone());
        self.state.templates.push(Arc::default());
        self.patterns.push(Branch::default());
        self.live.push(Vec::new());
        self.state.quotas.add_namespace(&self.state.config);
        self.names.insert(name.clone(), id);
        self.keys.add_namespace();
        self.derived.push(0);
        Some(id)
    }

    pub(crate) fn namespace(&self, name: &NamespaceName) -> Option<NamespaceId> {
        self.names.get(name).copied()
    }

    pub(crate) fn set_external(&mut self, setup: ExternalSetup) {
        let ExternalSetup { parts, ledger } = setup;
        let ledger = self.state.external.ledger.or(ledger).filter(|_| parts.limits);
        self.state.external = ExternalSetup { parts, ledger };
        self.version = self.version.wrapping_add(1);
    }

    /// Changes settings: all of them, or none if a value is not allowed. Records that are due by the new retention are
    /// deleted a few per command, as always.
    pub(crate) fn configure(&mut self, changes: &[SettingChange]) -> ConfigureOutcome {
        if let Some(change) = changes.iter().find(|change| !change.is_allowed()) {
            return ConfigureOutcome::Invalid(*change);
        }
        self.state.config = self.state.config.with(changes);
        self.state.quotas.refresh_all(&self.state.config);
        self.version = self.version.wrapping_add(1);
        ConfigureOutcome::Configured
    }

    pub(crate) fn has_namespace(&self, id: NamespaceId) -> bool {
        usize::from(id.0) < self.state.namespaces.len()
    }

    /// The slot of a key whose limit is live, or deleted and not freed yet.
    pub(crate) fn resolve(&self, namespace: NamespaceId, key: &LimitKey) -> Option<LimitSlot> {
        self.keys.find(&self.state, namespace, key.as_str())
    }

    pub(crate) fn quota(&self, namespace: NamespaceId, kind: QuotaKind) -> u64 {
        self.state.quotas.get(namespace, kind, &self.state.config)
    }

    /// The number of defined limits of a namespace, deleted ones included until they are freed.
    pub(crate) fn limits_of(&self, namespace: NamespaceId) -> u64 {
        self.keys.len(namespace).saturating_sub(self.derived_of(namespace))
    }

    /// The number of derived limits of a namespace.
    pub(crate) fn derived_of(&self, namespace: NamespaceId) -> u64 {
        self.derived.get(usize::from(namespace.0)).copied().unwrap_or(0)
    }

    /// Adds a defined limit.
    pub(crate) fn add_limit(&mut self, limit: Limit, text: Text) -> LimitSlot {
        let slot = self.state.limits.insert(limit);
        self.name_limit(slot, text);
        slot
    }

    /// Adds a limit that follows a template, which it names.
    pub(crate) fn add_derived(&mut self, limit: Limit, key: &LimitKey) -> LimitSlot {
        let slot = self.state.limits.insert(limit);
        self.name_derived(slot, key);
        slot
    }

    /// Makes a defined limit known by its key.
    pub(crate) fn name_limit(&mut self, slot: LimitSlot, text: Text) {
        let key = text.key.clone();
        let text = self.state.texts.add_defined(Arc::new(text));
        self.index_limit(slot, text, &key);
    }

    /// Makes a derived limit known by its key.
    pub(crate) fn name_derived(&mut self, slot: LimitSlot, key: &LimitKey) {
        let text = self.state.texts.add_derived(key);
        self.index_limit(slot, text, key);
        self.count_derived(slot, true);
    }

    fn index_limit(&mut self, slot: LimitSlot, text: u32, key: &LimitKey) {
        let limit = &mut self.state.limits[slot];
        limit.text = text;
        limit.key_hash = key_hash(limit.namespace, key);
        self.keys.insert(&self.state, slot, key.as_str());
    }

    /// Counts a derived limit for its namespace and template, or takes it off.
    fn count_derived(&mut self, slot: LimitSlot, is_added: bool) {
        let namespace = self.state.limits[slot].namespace;
        self.count_live(slot, is_added);
        if let Some(count) = self.derived.get_mut(usize::from(namespace.0)) {
            *count = if is_added { count.saturating_add(1) } else { count.saturating_sub(1) };
        }
        let reclaimable = self.state.reclaimable;
        self.state.reclaimable = if is_added { reclaimable.saturating_add(1) } else { reclaimable.saturating_sub(1) };
    }

    /// Forgets the key of a limit.
    pub(crate) fn unname_limit(&mut self, slot: LimitSlot) {
        if let Some(key) = self.state.key(slot) {
            self.keys.remove(&self.state, slot, key.as_str());
        }
        if self.state.limits[slot].template().is_some() {
            self.count_derived(slot, false);
        }
        self.state.remove_text(slot);
    }

    /// Frees a limit if it is deleted and no lease record names it, or derived and no longer used. Its slot, quota and
    /// key are free then.
    pub(crate) fn free_if_gone(&mut self, now: UnixMs, slot: LimitSlot) {
        let is_gone = |limit: &Limit| limit.phase == Phase::Deleted && limit.leases == 0;
        if self.state.is_paused(slot, now) {
            return;
        }
        if self.state.limits.get(slot).is_some_and(is_gone) || self.is_evictable(slot, now) {
            let is_defined = self.state.limits[slot].template().is_none();
            self.state.set_debt(slot, 0);
            self.state.set_target(slot, None);
            self.state.reclaimable = self.state.reclaimable.saturating_sub(is_defined.into());
            self.unname_limit(slot);
            self.state.end_pause(slot);
            self.state.limits.remove(slot);
            self.state.note_limit(slot);
        }
    }

    /// Counts a restored lease record for its limits.
    pub(crate) fn link_parts(&mut self, parts: &[Reservation]) {
        for part in parts {
            if let Some(limit) = self.state.limits.get_mut(part.limit) {
                limit.leases = limit.leases.saturating_add(1);
            }
        }
    }

    /// Takes the lease record of `parts` off its limits, and returns its fingerprint.
    pub(crate) fn unlink_parts(&mut self, now: UnixMs, parts: &[Reservation]) -> u64 {
        fingerprint(parts.iter().map(|part| {
            let limit = &mut self.state.limits[part.limit];
            let key_hash = limit.key_hash;
            limit.leases = limit.leases.saturating_sub(1);
            if limit.leases == 0 && matches!(limit.phase, Phase::Deleting | Phase::Deleted) {
                self.state.advance_limit(part.limit, now);
                self.freeable.push(part.limit);
            }
            (key_hash, part.amount)
        }))
    }

    /// Advances a limit to `now` and returns it, unless it is unknown, deleted or of another namespace.
    fn advanced(&mut self, namespace: NamespaceId, slot: LimitSlot, now: UnixMs) -> Option<&Limit> {
        let limit = self.state.limits.get(slot).filter(|limit| limit.is_open_to(namespace))?;
        if limit.is_due(now) {
            self.state.advance_limit(slot, now);
        }
        let limit = &self.state.limits[slot];
        (limit.phase != Phase::Deleted).then_some(limit)
    }

    pub(crate) fn hash(&self, namespace: NamespaceId, lease: LeaseId) -> Hash {
        self.index.hash(namespace, lease)
    }

    pub(crate) fn find(&self, hash: Hash, namespace: NamespaceId, lease: LeaseId) -> Option<(CellPosition, Found)> {
        let is_meant = |reference: Reference| match reference.found() {
            Found::Record(slot) => {
                let record = self.state.leases.get(slot);
                record.id == lease && record.namespace == namespace
            }
            Found::Tombstone(number) => {
                let tombstone = self.state.tombstones.get(number);
                tombstone.id == lease && tombstone.namespace == namespace
            }
        };
        self.index.find(hash, is_meant).map(|(position, reference)| (position, reference.found()))
    }

    /// Reads the lease records that `commands` will read, so that the cache misses overlap.
    pub(crate) fn prefetch(&self, commands: &[Command<'_>]) {
        self.prefetch_leases(commands.iter().filter_map(|command| match command {
            Command::Reserve(reserve) => Some((reserve.namespace, reserve.lease)),
            Command::Extend(extend) => Some((extend.namespace, extend.lease)),
            Command::Complete(complete) => Some((complete.namespace, complete.lease)),
            Command::Release(release) => Some((release.namespace, release.lease)),
            _ => None,
        }));
        if self.state.limits.used() >= LIMITS_COLD {
            self.prefetch_limits(commands);
        }
    }

    /// Reads the limits that `commands` name by key.
    fn prefetch_limits(&self, commands: &[Command<'_>]) {
        let mut slots = [LimitSlot(NONE); LIMITS_SIDE_BY_SIDE];
        let keys = commands.iter().flat_map(|command| {
            let (namespace, parts) = match command {
                Command::Reserve(reserve) => (reserve.namespace, reserve.requirements),
                Command::Extend(extend) => (extend.namespace, extend.add),
                Command::Complete(complete) => (complete.namespace, complete.actuals),
                _ => (NamespaceId::DEFAULT, &[][..]),
            };
            parts.iter().filter_map(move |part| match &part.limit {
                LimitRef::Key(key) => Some((namespace, key)),
                LimitRef::Id(_) | LimitRef::Foreign(_) => None,
            })
        });
        for (slot, (namespace, key)) in slots.iter_mut().zip(keys) {
            *slot = self.keys.peek(namespace, key.as_str()).unwrap_or(LimitSlot(NONE));
        }
        // One kind of record at a time, so that the misses do not wait for each other.
        let mut touched = 0;
        let found = || slots.iter().filter_map(|slot| self.state.limits.get(*slot).map(|limit| (*slot, limit)));
        found().for_each(|(_, limit)| touched ^= limit.capacity ^ u64::from(limit.decided));
        found().for_each(|(slot, _)| touched ^= self.state.peek_key(slot));
        std::hint::black_box(touched);
    }

    /// Reads the index cell of a lease ahead, so that its cache miss overlaps with the work before the lookup.
    #[inline]
    pub(crate) fn prefetch_lease(&self, hash: Hash) {
        std::hint::black_box(self.index.peek(hash));
    }

    pub(crate) fn prefetch_leases(&self, leases: impl Iterator<Item = (NamespaceId, LeaseId)>) {
        let mut touched = 0;
        for (namespace, lease) in leases {
            if let Some(reference) = self.index.peek(self.index.hash(namespace, lease))
                && let Found::Record(slot) = reference.found()
            {
                touched ^= self.state.leases.get(slot).reserved_at.get();
            }
        }
        std::hint::black_box(touched);
    }

    /// Restores a lease of a snapshot. An extended one has parts parallel to its reservations.
    pub(crate) fn restore_lease(
        &mut self,
        (namespace, lease): (NamespaceId, LeaseId),
        hash: Hash,
        reserved_at: UnixMs,
        (parts, extended, more): (&[Reservation], Option<Extended>, &[ExtendedPart]),
    ) {
        let life = Life::of(reserved_at, parts, &[]);
        let slot = self.state.add_lease((namespace, lease), (reserved_at, life.last, life.runs_out()), parts);
        self.index.insert(hash, Reference::record(slot));
        if let Some(extended) = extended {
            let after = Life::of(reserved_at, parts, more);
            self.state.leases.extend(slot, (life, after), extended, (parts, more));
        }
    }

    pub(crate) fn add_tombstone(&mut self, tombstone: Tombstone) {
        let hash = self.index.hash(tombstone.namespace, tombstone.id);
        let number = self.state.tombstones.push(tombstone);
        self.state.quotas.add_lease(tombstone.namespace);
        self.index.insert(hash, Reference::tombstone(number));
    }

    pub(crate) fn is_remembered(&self, namespace: NamespaceId, lease: LeaseId) -> bool {
        self.find(self.index.hash(namespace, lease), namespace, lease).is_some()
    }
}
