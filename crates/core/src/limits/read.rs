//! Reads. They answer as of `now` and change nothing.

use std::ops::Bound;
use std::sync::atomic::Ordering;

use super::lease::{Life, PartKind, is_forgotten};
use super::{
    CreditTerms, Definition, Ending, ExtendedPart, Found, KindTag, LimitSlot, LimitView, Limits, Listed, Pause, Phase,
    State, TIME_MAX,
};
use crate::book::{CallMark, LimitId, LimitStatus, NamespaceId};
use crate::id::{JobId, LeaseId, LimitKey};
use crate::time::UnixMs;

/// The usage of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The capacity in force.
    pub capacity: u64,
    /// The reserved amount.
    pub reserved: u64,
    /// The amount that can be reserved; 0 while the limit is decreasing.
    pub available: u64,
    /// Usage that was never reserved.
    pub debt: u128,
    /// The status of the limit.
    pub status: LimitStatus,
    /// When its pause ends, while it is paused.
    pub paused_until: Option<UnixMs>,
}

/// A limit with its usage, as a list of limits shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitUsage {
    /// The key.
    pub key: LimitKey,
    /// The kind.
    pub kind: KindTag,
    /// The usage.
    pub usage: Usage,
}

/// The order of a list of limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UsageSort {
    /// By key. Lists of this order have pages.
    #[default]
    Key,
    /// The largest share of its capacity reserved first.
    Fullness,
    /// The largest debt first.
    Debt,
}

impl UsageSort {
    /// The names of the orders, in the API and on the command line.
    pub const NAMES: [&'static str; 3] = ["key", "fullness", "debt"];

    /// The order with a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<UsageSort> {
        match name {
            "key" => Some(UsageSort::Key),
            "fullness" => Some(UsageSort::Fullness),
            "debt" => Some(UsageSort::Debt),
            _ => None,
        }
    }

    /// The name of the order.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            UsageSort::Key => "key",
            UsageSort::Fullness => "fullness",
            UsageSort::Debt => "debt",
        }
    }
}

/// Totals over all limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Limits that are active or decreasing.
    pub limits: usize,
    /// Limits that are decreasing.
    pub decreasing: usize,
    /// Limits that are paused.
    pub paused: usize,
    /// The sum of their debts.
    pub debt: u128,
}

/// A limit's definition, status and revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitInfo {
    /// The last definition. While the limit is decreasing, its capacity is the target.
    pub definition: Definition,
    /// The capacity in force.
    pub capacity: u64,
    /// The status of the limit.
    pub status: LimitStatus,
    /// The number of its last put or delete, counted over all limits of the Book.
    pub revision: u64,
    /// The key of the template that it is derived from; `None` if it was put.
    pub template: Option<LimitKey>,
    /// Its pause, while it is paused.
    pub pause: Option<Pause>,
}

/// The record of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseInfo {
    /// When it was allowed; `None` if it was not.
    pub reserved_at: Option<UnixMs>,
    /// The reservations with those of its extensions, ordered by slot. Empty once the lease is denied or completed.
    pub requirements: Vec<(LimitId, u64)>,
    /// The state of the lease.
    pub state: LeaseState,
    /// The job of its first reserve.
    pub job: Option<JobId>,
    /// The number of its last extension; 0 before the first, and once it is completed.
    pub extensions: u32,
    /// The usage that extensions reported, ordered by slot; only amounts above 0.
    pub used: Vec<(LimitId, u64)>,
    /// When the first of its concurrency and credit reservations ends, if it has any.
    pub ends_at: Option<UnixMs>,
    /// The call of its first reserve.
    pub call: Option<CallMark>,
    /// Whether a gateway made it.
    pub by_gateway: bool,
    /// Whether a reservation of it is of credit. Unknown, so false, once it is denied or completed.
    pub has_credit: bool,
}

/// The state of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// All reservations are held. An extended lease is live as long as it can be extended.
    Live,
    /// At least one reservation expired before the lease completed.
    Expired,
    /// Completed.
    Completed,
    /// Denied.
    Denied,
}

impl State {
    pub(crate) fn definition(&self, slot: LimitSlot) -> Option<Definition> {
        let limit = self.limits.get(slot)?;
        let text = self.text(slot)?;
        Some(Definition {
            key: text.key.clone(),
            kind: limit.kind(text.credit.as_ref()),
            capacity: text.capacity,
            unit: text.unit.clone(),
            description: text.description.clone(),
            overage: limit.overage(),
            shared: limit.is_shared(),
            enforce: !limit.is_shadow(),
        })
    }

    /// The definition as a snapshot stores it. That of a derived limit lacks what only its template has.
    pub(crate) fn stored_definition(&self, slot: LimitSlot, view: &LimitView) -> Option<Definition> {
        let capacity = match view.status {
            LimitStatus::Decreasing { to } => to,
            LimitStatus::Active | LimitStatus::Deleted => view.limit.capacity,
        };
        let limit = self.limits.get(slot)?;
        if limit.template().is_none() {
            return self.definition(slot);
        }
        let terms = || CreditTerms::of_template(limit.hold_seconds(), limit.on_timeout());
        let terms = if limit.is_credit() { Some(terms()?) } else { None };
        let definition = Definition::new(self.key(slot)?, limit.kind(terms.as_ref()), capacity);
        let (shared, enforce) = (limit.is_shared(), !limit.is_shadow());
        Some(Definition { overage: limit.overage(), shared, enforce, ..definition })
    }

    fn view(&self, now: UnixMs, slot: LimitSlot) -> Option<LimitView> {
        let view = self.view_at(slot, now)?;
        (view.limit.phase != Phase::Deleted).then_some(view)
    }
}

impl Limits {
    pub(crate) fn at(&self, now: UnixMs) -> UnixMs {
        now.min(TIME_MAX).max(self.state.now())
    }

    pub(crate) fn limit_info(&self, now: UnixMs, slot: LimitSlot) -> Option<LimitInfo> {
        let LimitView { limit, status, .. } = self.state.view(self.at(now), slot)?;
        let (definition, template, revision) = match limit.template() {
            Some(_) => {
                let followed = self.followed_by(slot)?;
                let super::Revised { template, revision } = &*followed.template;
                (followed.definition, Some(template.key().clone()), *revision)
            }
            None => (self.state.definition(slot)?, None, limit.revision),
        };
        let pause = self.state.pauses.get(slot, self.at(now)).cloned();
        Some(LimitInfo { definition, capacity: limit.capacity, status, revision, template, pause })
    }

    /// Slots of the limits of a namespace after a key, ordered by key. Looks at no more than `most` keys, and returns the
    /// last of them if there are more.
    pub(crate) fn slot_page(
        &self,
        namespace: NamespaceId,
        listed: Listed,
        (prefix, after): (Option<&LimitKey>, Option<&LimitKey>),
        most: usize,
    ) -> (Vec<LimitSlot>, Option<LimitKey>) {
        let start = match (prefix, after) {
            (Some(prefix), Some(after)) if after < prefix => Bound::Included(prefix.as_str()),
            (_, Some(after)) => Bound::Excluded(after.as_str()),
            (Some(prefix), None) => Bound::Included(prefix.as_str()),
            (None, None) => Bound::Unbounded,
        };
        let is_in = |key: &LimitKey| prefix.is_none_or(|prefix| key.as_str().starts_with(prefix.as_str()));
        let slots = self.keys.range(&self.state, namespace, listed, start);
        let mut rest = slots.map_while(|slot| Some((slot, self.state.key(slot).filter(is_in)?)));
        let (mut slots, mut last) = (Vec::new(), None);
        for (slot, key) in rest.by_ref().take(most) {
            slots.push(slot);
            last = Some(key);
        }
        let next = rest.next().and(last);
        (slots, next)
    }

    /// The key and the kind of a limit.
    pub(crate) fn key_and_kind(&self, slot: LimitSlot) -> Option<(LimitKey, KindTag)> {
        let kind = match self.state.limits.get(slot)?.part_kind() {
            PartKind::Rolling => KindTag::Rolling,
            PartKind::Concurrency => KindTag::Concurrency,
            PartKind::Calendar => KindTag::Calendar,
            PartKind::Credit | PartKind::CreditExternal => KindTag::Credit,
        };
        Some((self.state.key(slot)?, kind))
    }

    pub(crate) fn limit_infos(&self, now: UnixMs, namespace: NamespaceId, listed: Listed) -> Vec<LimitInfo> {
        let slots = self.keys.range(&self.state, namespace, listed, Bound::Unbounded);
        slots.filter_map(|slot| self.limit_info(now, slot)).collect()
    }

    pub(crate) fn usage(&self, now: UnixMs, slot: LimitSlot) -> Option<Usage> {
        if self.is_orphan(slot) {
            return None;
        }
        let LimitView { limit, reserved, debt, status } = self.state.view(self.at(now), slot)?;
        let capacity = limit.capacity;
        let is_active = limit.phase == Phase::Active;
        let available = if is_active { capacity.saturating_sub(reserved) } else { 0 };
        let paused_until = self.state.pauses.get(slot, self.at(now)).map(|pause| pause.until);
        Some(Usage { capacity, reserved, available, debt, status, paused_until })
    }

    /// Whether no limit holds anything. Begins with the limit that held something at the last call, so that a Book in
    /// use reads one limit, and not all of them.
    pub(crate) fn holds_nothing(&self, now: UnixMs) -> bool {
        let (now, used) = (self.at(now), self.state.limits.used());
        let first = self.holding.load(Ordering::Relaxed).min(used);
        let is_holding = |slot: &u32| self.state.view_at(LimitSlot(*slot), now).is_some_and(|view| view.reserved > 0);
        let found = (first..used).chain(0..first).find(is_holding);
        self.holding.store(found.unwrap_or(0), Ordering::Relaxed);
        found.is_none()
    }

    /// Totals by counters. Reads the limits that are not active, and no others.
    pub(crate) fn totals(&self, now: UnixMs) -> Totals {
        let now = self.at(now);
        let paused = self.state.pauses.count_at(now);
        let mut totals =
            Totals { limits: self.state.limits.len() as usize, decreasing: 0, paused, debt: self.state.debt_sum };
        for slot in &self.state.inactive {
            let Some(view) = self.state.view_at(*slot, now) else { continue };
            match view.limit.phase {
                Phase::Active | Phase::Free => {}
                Phase::Decreasing | Phase::Deleting | Phase::AwaitingDrop => {
                    totals.decreasing = totals.decreasing.saturating_add(1);
                }
                Phase::Deleted => {
                    totals.limits = totals.limits.saturating_sub(1);
                    totals.debt = totals.debt.wrapping_sub(self.state.debt(*slot));
                }
            }
        }
        debug_assert_eq!(totals, self.totals_by_reading(now, paused));
        totals
    }

    /// Totals by reading every limit, to check the counters in tests.
    fn totals_by_reading(&self, now: UnixMs, paused: usize) -> Totals {
        let live = self.views(now).filter(|view| view.limit.phase != Phase::Deleted);
        live.fold(Totals { paused, ..Totals::default() }, |totals, view| Totals {
            limits: totals.limits.saturating_add(1),
            decreasing: totals.decreasing.saturating_add((view.limit.phase != Phase::Active).into()),
            debt: totals.debt.wrapping_add(view.debt),
            ..totals
        })
    }

    fn views(&self, now: UnixMs) -> impl Iterator<Item = LimitView> {
        (0..self.state.limits.used()).filter_map(move |slot| self.state.view_at(LimitSlot(slot), now))
    }

    pub(crate) fn lease(&self, now: UnixMs, namespace: NamespaceId, lease: LeaseId) -> Option<LeaseInfo> {
        let now = self.at(now);
        let retention_ms = self.state.config.retention_ms;
        let job = self.state.jobs.get(namespace, lease).cloned();
        let (_, found) = self.find(self.index.hash(namespace, lease), namespace, lease)?;
        let mark = self.mark_of_found(namespace, lease, &found);
        match found {
            Found::Record(slot) => {
                let record = self.state.leases.get(slot);
                let (mut parts, mut more) = (Vec::new(), Vec::new());
                self.state.leases.parts(record, &mut parts);
                self.state.leases.extended_parts(record, &mut more);
                let life = Life::of(record.reserved_at, &parts, &more);
                if is_forgotten(lease, life.last, retention_ms, now) {
                    return None;
                }
                let extended = self.state.leases.extended(record);
                let until =
                    if extended.is_some_and(|extended| extended.is_made) { life.runs_out() } else { life.first };
                let id_of = |slot| self.state.limits.id(slot);
                let total = |place: usize, amount: u64| {
                    amount.saturating_add(more.get(place).map_or(0, |more: &ExtendedPart| more.earlier))
                };
                let requirements = parts.iter().enumerate();
                let used = parts.iter().zip(&more).filter(|(_, more)| more.used > 0);
                Some(LeaseInfo {
                    reserved_at: Some(record.reserved_at),
                    requirements: requirements.map(|(at, part)| (id_of(part.limit), total(at, part.amount))).collect(),
                    state: if until <= now { LeaseState::Expired } else { LeaseState::Live },
                    job,
                    extensions: extended.map_or(0, |extended| extended.number),
                    used: used.map(|(part, more)| (id_of(part.limit), more.used)).collect(),
                    ends_at: (life.bound != UnixMs::MAX).then_some(life.bound),
                    call: mark.call,
                    by_gateway: mark.by_gateway,
                    has_credit: parts.iter().any(super::Reservation::is_credit),
                })
            }
            Found::Tombstone(number) => {
                let tombstone = self.state.tombstones.get(number);
                if tombstone.is_forgotten(retention_ms, now) {
                    return None;
                }
                let (reserved_at, state) = match tombstone.ending {
                    Ending::Completed => (Some(tombstone.at), LeaseState::Completed),
                    Ending::Marked => (None, LeaseState::Completed),
                    Ending::Denied
                    | Ending::DeniedNever
                    | Ending::NoCredit
                    | Ending::AccountFrozen
                    | Ending::AccountClosed
                    | Ending::Released => (None, LeaseState::Denied),
                };
                Some(LeaseInfo {
                    reserved_at,
                    requirements: Vec::new(),
                    state,
                    job,
                    extensions: 0,
                    used: Vec::new(),
                    ends_at: None,
                    call: mark.call,
                    by_gateway: mark.by_gateway,
                    has_credit: false,
                })
            }
        }
    }
}
