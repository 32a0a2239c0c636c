//! The part of a limit that decisions read, in two cache lines.

use super::calendar::Calendar;
use super::definition::{CreditTerms, Kind, OnTimeout, Overage, Period};
use super::lease::PartKind;
use super::templates::TemplateId;
use super::timeline::{Nodes, Sums, Timeline};
use super::{LimitSlot, State};
use crate::book::{LimitStatus, NamespaceId};
use crate::credits::AssetId;
use crate::time::{UnixMs, seconds_to_ms};

/// The life cycle of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// The slot has no limit.
    #[default]
    Free = 0,
    Active = 1,
    /// Waiting until the reserved amount fits the defined capacity.
    Decreasing = 2,
    /// Waiting until nothing is reserved.
    Deleting = 3,
    Deleted = 4,
    /// Deleted, but enforced by another system: waits for `DropLimit`.
    AwaitingDrop = 5,
}

/// The state of one limit, in 104 bytes: there may be ten million. Its texts are kept apart, and so is its debt, which
/// few limits have.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limit {
    pub(crate) held: Held,
    /// The capacity in force.
    pub(crate) capacity: u64,
    /// The revision of its definition. For a derived limit: the last change of the namespace's templates that it has
    /// seen.
    pub(crate) revision: u64,
    /// See [`key_hash`](super::key_hash).
    pub(crate) key_hash: u32,
    /// The text of a defined limit, or the key of a derived one, in [`Texts`](super::keys::Texts).
    pub(crate) text: u32,
    /// How often the slot was freed.
    pub(crate) generation: u32,
    /// Lease records that name this limit. Its slot is not freed before they are gone.
    pub(crate) leases: u32,
    /// The second of its last decision, for the eviction of derived limits.
    pub(crate) decided: u32,
    pub(crate) kind: PackedKind,
    pub(crate) namespace: NamespaceId,
    /// The template that a derived limit follows; see [`Limit::template`].
    pub(crate) template: TemplateId,
    pub(crate) phase: Phase,
    /// The run of denials, for the backoff.
    pub(crate) denials: u8,
    pub(crate) flags: Flags,
}

const _: () = assert!(size_of::<Limit>() == 104);

/// The content of a limit: amounts by expiry, or for a credit limit the cached accounts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Held {
    Amounts(Timeline),
    Payers(Payers),
}

impl Default for Held {
    fn default() -> Held {
        Held::Amounts(Timeline::default())
    }
}

const EMPTY: &Timeline = &Timeline::EMPTY;

/// A kind without its texts: the kind of reservations in three bits, and in 25 bits the window or timeout in seconds, or
/// the period and offset of a calendar limit. [`Reservation`](super::Reservation) has the same layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PackedKind(u32);

const VALUE_BITS: u32 = 25;
const VALUE: u32 = (1 << VALUE_BITS) - 1;
const OFFSET_BITS: u32 = 16;

impl PackedKind {
    pub(crate) fn of(kind: &Kind) -> PackedKind {
        let (code, value) = match kind {
            Kind::Rolling { window_seconds } => (PartKind::Rolling, *window_seconds),
            Kind::Concurrency { timeout_seconds } => (PartKind::Concurrency, *timeout_seconds),
            Kind::Credit(terms) => (PartKind::Credit, terms.timeout_seconds),
            Kind::Calendar { period, utc_offset_minutes } => {
                let offset = u32::from(utc_offset_minutes.cast_unsigned());
                (PartKind::Calendar, u32::from(*period as u8) << OFFSET_BITS | offset)
            }
        };
        PackedKind(u32::from(code as u8) << VALUE_BITS | value & VALUE)
    }

    fn part_kind(self) -> PartKind {
        match self.0 >> VALUE_BITS {
            2 => PartKind::Concurrency,
            3 => PartKind::Credit,
            5 => PartKind::Calendar,
            _ => PartKind::Rolling,
        }
    }

    #[inline]
    fn is(self, kind: PartKind) -> bool {
        self.0 >> VALUE_BITS == kind as u32
    }

    #[inline]
    fn calendar(self) -> Option<Calendar> {
        if self.is(PartKind::Calendar) { self.unpack_calendar() } else { None }
    }

    #[inline(never)]
    fn unpack_calendar(self) -> Option<Calendar> {
        let code = (self.0 & VALUE) >> OFFSET_BITS;
        let period = Period::ALL.into_iter().find(|period| u32::from(*period as u8) == code)?;
        Some(Calendar { period, utc_offset_minutes: (self.0 as u16).cast_signed() })
    }
}

/// Yes or no questions about a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(u8);

impl Flags {
    /// Overage that does not fit becomes debt.
    pub(crate) const KEEPS_DEBT: Flags = Flags(1);
    /// Other namespaces may reserve it.
    pub(crate) const SHARED: Flags = Flags(1 << 1);
    /// It counts and never denies.
    pub(crate) const SHADOW: Flags = Flags(1 << 2);
    /// It has an entry in the table of debts.
    pub(crate) const IN_DEBT: Flags = Flags(1 << 3);
    /// A hold that times out is charged in full.
    pub(crate) const CHARGES_TIMEOUT: Flags = Flags(1 << 4);

    pub(crate) fn has(self, flag: Flags) -> bool {
        self.0 & flag.0 != 0
    }

    pub(crate) fn set(&mut self, flag: Flags, is_set: bool) {
        self.0 = if is_set { self.0 | flag.0 } else { self.0 & !flag.0 };
    }
}

/// The accounts of a credit limit. The slots of accounts never change in a vault that has an asset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Payers {
    pub(crate) account: u32,
    pub(crate) revenue: u32,
    pub(crate) asset: AssetId,
}

impl Payers {
    /// Whether both take the same asset from the same account.
    pub(crate) fn is_same_payer(&self, other: &Payers) -> bool {
        self.account == other.account && self.asset == other.asset
    }
}

impl Limit {
    /// The template that it follows; `None` for a defined limit.
    pub(crate) fn template(&self) -> Option<TemplateId> {
        (self.template != TemplateId::NONE).then_some(self.template)
    }

    /// The amounts that it holds. A credit limit holds none here.
    #[inline]
    pub(crate) fn timeline(&self) -> &Timeline {
        match &self.held {
            Held::Amounts(timeline) => timeline,
            Held::Payers(_) => EMPTY,
        }
    }

    /// Adds an amount that expires at `at`; see [`Timeline::add`].
    #[inline]
    pub(crate) fn add(&mut self, nodes: &mut Nodes, at: UnixMs, more: Sums) {
        if let Held::Amounts(timeline) = &mut self.held {
            timeline.add(nodes, at, more);
        }
    }

    /// Changes an amount that expires at `at` by a difference; see [`Timeline::change`].
    #[inline]
    pub(crate) fn change(&mut self, nodes: &mut Nodes, at: UnixMs, by: Sums) {
        if let Held::Amounts(timeline) = &mut self.held {
            timeline.change(nodes, at, by);
        }
    }

    /// Settles the amount of the newest part of a reservation, and adds the next part; see [`Timeline::settle_and_add`].
    #[inline]
    pub(crate) fn settle_and_add(&mut self, nodes: &mut Nodes, from: (UnixMs, u64), to: (UnixMs, u64)) {
        if let Held::Amounts(timeline) = &mut self.held {
            timeline.settle_and_add(nodes, from, to);
        }
    }

    /// Moves an amount that grows; see [`Timeline::move_to`].
    #[inline]
    pub(crate) fn move_to(&mut self, nodes: &mut Nodes, from: (UnixMs, u64), to: (UnixMs, u64)) {
        if let Held::Amounts(timeline) = &mut self.held {
            timeline.move_to(nodes, from, to);
        }
    }

    /// Replaces an amount by another one, which may expire at another time.
    pub(crate) fn replace(&mut self, nodes: &mut Nodes, (from, less): (UnixMs, Sums), (to, more): (UnixMs, Sums)) {
        if from == to {
            self.change(nodes, from, more.minus(less));
        } else {
            self.change(nodes, from, less.negated());
            self.add(nodes, to, more);
        }
    }

    fn expire(&mut self, nodes: &mut Nodes, now: UnixMs) {
        if let Held::Amounts(timeline) = &mut self.held {
            timeline.expire(nodes, now);
        }
    }

    /// The cached accounts of a credit limit.
    pub(crate) fn payers(&self) -> Option<Payers> {
        match self.held {
            Held::Payers(payers) => Some(payers),
            Held::Amounts(_) => None,
        }
    }

    /// Caches the accounts of a credit limit.
    pub(crate) fn set_payers(&mut self, payers: Option<Payers>) {
        if self.is_credit() {
            self.held = payers.map_or_else(Held::default, Held::Payers);
        }
    }

    /// The limit before a change of its definition. It keeps what it holds now: definitions do not change that, and old
    /// nodes may have been freed.
    pub(crate) fn before_change(&self, before: &Limit) -> Limit {
        Limit { held: if before.is_credit() { before.held } else { Held::Amounts(*self.timeline()) }, ..*before }
    }

    #[inline]
    pub(crate) fn reserved(&self) -> u64 {
        match &self.held {
            Held::Amounts(timeline) => timeline.sums().total(),
            Held::Payers(_) => 0,
        }
    }

    pub(crate) fn available(&self) -> u64 {
        self.capacity.saturating_sub(self.reserved())
    }

    /// The amount that a decision may add. A shadow limit decides as if its capacity were the largest amount.
    pub(crate) fn room(&self) -> u64 {
        let capacity = if self.is_shadow() { u64::MAX } else { self.capacity };
        capacity.saturating_sub(self.reserved())
    }

    /// The room of a plain limit, if it is an active one of this namespace that has nothing to free; else 0.
    #[inline]
    pub(crate) fn plain_room(&self, now: UnixMs, namespace: NamespaceId) -> u64 {
        let Held::Amounts(timeline) = &self.held else { return 0 };
        let is_ready = self.phase == Phase::Active && self.namespace == namespace && !timeline.is_due(now);
        if is_ready { self.capacity.saturating_sub(timeline.sums().total()) } else { 0 }
    }

    /// [`Limit::hold`] of a limit that is not a calendar limit.
    #[inline]
    pub(crate) fn plain_hold(&self, now: UnixMs) -> (u32, UnixMs) {
        (self.kind.0, now.plus_ms(seconds_to_ms(self.kind.0 & VALUE)))
    }

    /// Whether it is enforced and of the kinds rolling or concurrency, whose reservations last for fixed times.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        (self.is_rolling() || self.is_concurrency()) && !self.is_shadow()
    }

    /// The window or timeout; for a calendar limit the longest period.
    pub(crate) fn hold_seconds(&self) -> u32 {
        self.calendar().map_or(self.kind.0 & VALUE, |calendar| calendar.period.seconds_max())
    }

    /// Whether leases of this namespace may reserve it.
    pub(crate) fn is_open_to(&self, namespace: NamespaceId) -> bool {
        self.namespace == namespace || self.is_shared()
    }

    pub(crate) fn hold_ms(&self) -> u64 {
        seconds_to_ms(self.hold_seconds())
    }

    /// The kind of its reservations, except credit that an external store holds.
    pub(crate) fn part_kind(&self) -> PartKind {
        self.kind.part_kind()
    }

    /// The code of [`Limit::part_kind`]; see [`Reservation::code`](super::Reservation::code).
    #[inline]
    pub(crate) fn kind_code(&self) -> u8 {
        (self.kind.0 >> VALUE_BITS) as u8
    }

    pub(crate) fn is_rolling(&self) -> bool {
        self.kind.is(PartKind::Rolling)
    }

    pub(crate) fn is_credit(&self) -> bool {
        self.kind.is(PartKind::Credit)
    }

    pub(crate) fn is_concurrency(&self) -> bool {
        self.kind.is(PartKind::Concurrency)
    }

    /// Whether other namespaces may reserve it.
    pub(crate) fn is_shared(&self) -> bool {
        self.flags.has(Flags::SHARED)
    }

    /// Whether it counts and never denies.
    pub(crate) fn is_shadow(&self) -> bool {
        self.flags.has(Flags::SHADOW)
    }

    /// The period and offset of a calendar limit.
    pub(crate) fn calendar(&self) -> Option<Calendar> {
        self.kind.calendar()
    }

    /// The kind and seconds of a reservation at `now`, packed as in [`Reservation`](super::Reservation), and its end.
    #[inline(always)]
    pub(crate) fn hold(&self, now: UnixMs) -> (u32, UnixMs) {
        match self.calendar() {
            Some(calendar) => (self.kind.0 & !VALUE | calendar.seconds_left(now) & VALUE, calendar.end(now)),
            None => self.plain_hold(now),
        }
    }

    /// The kind; `terms` are those of a credit limit.
    pub(crate) fn kind(&self, terms: Option<&CreditTerms>) -> Kind {
        if let Some(Calendar { period, utc_offset_minutes }) = self.calendar() {
            return Kind::Calendar { period, utc_offset_minutes };
        }
        match terms {
            Some(terms) => Kind::Credit(terms.clone()),
            None if self.is_rolling() => Kind::Rolling { window_seconds: self.hold_seconds() },
            None => Kind::Concurrency { timeout_seconds: self.hold_seconds() },
        }
    }

    pub(crate) fn is_of_kind(&self, kind: &Kind) -> bool {
        self.part_kind() == PackedKind::of(kind).part_kind()
    }

    pub(crate) fn overage(&self) -> Overage {
        if self.flags.has(Flags::KEEPS_DEBT) { Overage::Debt } else { Overage::Deny }
    }

    pub(crate) fn on_timeout(&self) -> OnTimeout {
        if self.flags.has(Flags::CHARGES_TIMEOUT) { OnTimeout::Charge } else { OnTimeout::Release }
    }

    /// Whether the sweep frees it at some time.
    pub(crate) fn is_reclaimable(&self) -> bool {
        matches!(self.phase, Phase::Deleting | Phase::Deleted) || self.template().is_some()
    }

    /// Whether [`State::advance_limit`] has work to do.
    #[inline]
    pub(crate) fn is_due(&self, now: UnixMs) -> bool {
        let is_due = match &self.held {
            Held::Amounts(timeline) => timeline.is_due(now),
            Held::Payers(_) => false,
        };
        is_due || matches!(self.phase, Phase::Decreasing | Phase::Deleting)
    }

    /// Applies a decrease or deletion that is possible with this amount reserved. `defined` is the capacity of the last
    /// definition.
    fn settle_phase(&mut self, reserved: u64, defined: u64) {
        match self.phase {
            Phase::Decreasing if reserved <= defined => {
                self.capacity = defined;
                self.phase = Phase::Active;
            }
            Phase::Deleting if reserved == 0 => {
                self.capacity = 0;
                self.flags.set(Flags::IN_DEBT, false);
                self.denials = 0;
                self.phase = Phase::Deleted;
            }
            Phase::Active
            | Phase::Decreasing
            | Phase::Deleting
            | Phase::AwaitingDrop
            | Phase::Deleted
            | Phase::Free => {}
        }
    }
}

impl State {
    /// The capacity of the last definition of a limit, or of the revision of its template that it has.
    pub(crate) fn defined(&self, slot: LimitSlot) -> u64 {
        let limit = &self.limits[slot];
        match self.text(slot) {
            Some(text) => text.capacity,
            // Not the template's, which may have changed since the last decision.
            None => self.targets.get(slot).copied().unwrap_or(limit.capacity),
        }
    }

    /// Advances a limit to `now`: frees expired amounts and applies a decrease that has become possible.
    ///
    /// Between two commands time only frees capacity. A decrease that became possible meanwhile is still possible, so
    /// applying it late has the same result.
    pub(crate) fn advance_limit(&mut self, slot: LimitSlot, now: UnixMs) -> &Limit {
        let limit = &mut self.limits[slot];
        limit.expire(&mut self.nodes, now);
        if matches!(limit.phase, Phase::Decreasing | Phase::Deleting) {
            let defined = self.defined(slot);
            let limit = &mut self.limits[slot];
            let was_in_debt = limit.flags.has(Flags::IN_DEBT);
            limit.settle_phase(limit.reserved(), defined);
            if was_in_debt && !limit.flags.has(Flags::IN_DEBT) {
                self.store_debt(slot, 0);
            }
            if self.limits[slot].phase == Phase::Active {
                self.targets.remove(slot);
            }
            self.note_limit(slot);
        }
        &self.limits[slot]
    }

    /// The limit as [`State::advance_limit`] would leave it at `now`, without changing it.
    pub(crate) fn view_at(&self, slot: LimitSlot, now: UnixMs) -> Option<LimitView> {
        let mut limit = *self.limits.get(slot)?;
        let due = limit.timeline().due(&self.nodes, now);
        let reserved = limit.timeline().sums().minus(due).total();
        let defined = if limit.phase == Phase::Decreasing { self.defined(slot) } else { limit.capacity };
        limit.settle_phase(reserved, defined);
        let debt = if limit.flags.has(Flags::IN_DEBT) { self.debt(slot) } else { 0 };
        Some(LimitView { limit, reserved, debt, status: limit.status(defined) })
    }

    /// The status of a limit that was advanced.
    pub(crate) fn status(&self, slot: LimitSlot) -> LimitStatus {
        let limit = &self.limits[slot];
        limit.status(if limit.phase == Phase::Decreasing { self.defined(slot) } else { limit.capacity })
    }

    /// The debt of a limit.
    pub(crate) fn debt(&self, slot: LimitSlot) -> u128 {
        self.debts.get(slot).copied().unwrap_or(0)
    }

    /// Sets the capacity that a derived limit decreases to.
    pub(crate) fn set_target(&mut self, slot: LimitSlot, target: Option<u64>) {
        match target {
            Some(target) => self.targets.insert(slot, target),
            None => self.targets.remove(slot),
        }
    }

    pub(crate) fn set_debt(&mut self, slot: LimitSlot, debt: u128) {
        self.limits[slot].flags.set(Flags::IN_DEBT, debt > 0);
        self.store_debt(slot, debt);
    }

    /// Changes the table of debts and their sum. The sum wraps, so that it is right again when debts are paid.
    fn store_debt(&mut self, slot: LimitSlot, debt: u128) {
        self.debt_sum = self.debt_sum.wrapping_sub(self.debt(slot)).wrapping_add(debt);
        if debt > 0 {
            self.debts.insert(slot, debt);
        } else {
            self.debts.remove(slot);
        }
    }

    /// Notes whether a limit is active, and whether it is a defined credit limit, after a change of its definition or
    /// phase.
    pub(crate) fn note_limit(&mut self, slot: LimitSlot) {
        let limit = self.limits.get(slot);
        let is_inactive = limit.is_some_and(|limit| limit.phase != Phase::Active);
        let is_credit = limit.is_some_and(|limit| limit.is_credit() && limit.template().is_none());
        for (set, is_in) in [(&mut self.inactive, is_inactive), (&mut self.credit_limits, is_credit)] {
            if is_in {
                set.insert(slot);
            } else {
                set.remove(&slot);
            }
        }
    }
}

impl Limit {
    fn status(&self, defined: u64) -> LimitStatus {
        match self.phase {
            Phase::Active => LimitStatus::Active,
            Phase::Decreasing => LimitStatus::Decreasing { to: defined },
            Phase::Deleting | Phase::AwaitingDrop => LimitStatus::Decreasing { to: 0 },
            Phase::Deleted | Phase::Free => LimitStatus::Deleted,
        }
    }
}

/// A limit as of some time.
pub(crate) struct LimitView {
    pub(crate) limit: Limit,
    pub(crate) reserved: u64,
    pub(crate) debt: u128,
    pub(crate) status: LimitStatus,
}
