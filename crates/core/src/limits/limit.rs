//! The part of a limit that decisions read, in two cache lines.

use super::calendar::Calendar;
use super::definition::{CreditTerms, Kind, Overage};
use super::lease::PartKind;
use super::templates::TemplateId;
use super::timeline::{Nodes, Timeline};
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

/// The state of one limit. Its texts are kept apart, because every reserve reads this.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limit {
    pub(crate) timeline: Timeline,
    /// The capacity in force.
    pub(crate) capacity: u64,
    /// The capacity of the last definition.
    pub(crate) defined: u64,
    pub(crate) revision: u64,
    pub(crate) debt: u128,
    /// See [`key_hash`](super::key_hash).
    pub(crate) key_hash: u64,
    /// The text of a defined limit, or the key of a derived one, in [`Texts`](super::keys::Texts).
    pub(crate) text: u32,
    /// The template that a derived limit follows; see [`Limit::template`].
    pub(crate) template: TemplateId,
    /// The second of its last decision, for the eviction of derived limits.
    #[allow(dead_code, reason = "derivation uses it")]
    pub(crate) decided: u32,
    /// How often the slot was freed.
    pub(crate) generation: u32,
    /// Lease records that name this limit. Its slot is not freed before they are gone.
    pub(crate) leases: u32,
    pub(crate) hold_seconds: u32,
    /// The run of denials, for the backoff.
    pub(crate) denials: u32,
    pub(crate) namespace: NamespaceId,
    pub(crate) phase: Phase,
    pub(crate) is_rolling: bool,
    pub(crate) is_credit: bool,
    /// The period and offset of a calendar limit.
    pub(crate) calendar: Option<Calendar>,
    pub(crate) is_shared: bool,
    /// It counts and never denies.
    pub(crate) is_shadow: bool,
    /// Cached accounts of a credit limit.
    pub(crate) payers: Option<Payers>,
    pub(crate) keeps_debt: bool,
}

/// The accounts of a credit limit. Account slots never change.
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

    pub(crate) fn reserved(&self) -> u64 {
        self.timeline.sums().total()
    }

    pub(crate) fn available(&self) -> u64 {
        self.capacity.saturating_sub(self.reserved())
    }

    /// The amount that a decision may add. A shadow limit decides as if its capacity were the largest amount.
    pub(crate) fn room(&self) -> u64 {
        let capacity = if self.is_shadow { u64::MAX } else { self.capacity };
        capacity.saturating_sub(self.reserved())
    }

    pub(crate) fn hold_ms(&self) -> u64 {
        seconds_to_ms(self.hold_seconds)
    }

    /// The kind of its reservations, except credit that an external store holds.
    pub(crate) fn part_kind(&self) -> PartKind {
        match (self.is_credit, self.is_rolling, self.calendar) {
            (true, ..) => PartKind::Credit,
            (false, true, _) => PartKind::Rolling,
            (false, false, Some(_)) => PartKind::Calendar,
            (false, false, None) => PartKind::Concurrency,
        }
    }

    /// The seconds that a reservation at `now` is held, and its end.
    pub(crate) fn hold(&self, now: UnixMs) -> (u32, UnixMs) {
        match self.calendar {
            Some(calendar) => (calendar.seconds_left(now), calendar.end(now)),
            None => (self.hold_seconds, now.plus_ms(self.hold_ms())),
        }
    }

    /// The kind; `terms` are those of a credit limit.
    pub(crate) fn kind(&self, terms: Option<&CreditTerms>) -> Kind {
        if let Some(Calendar { period, utc_offset_minutes }) = self.calendar {
            return Kind::Calendar { period, utc_offset_minutes };
        }
        match terms {
            Some(terms) => Kind::Credit(terms.clone()),
            None if self.is_rolling => Kind::Rolling { window_seconds: self.hold_seconds },
            None => Kind::Concurrency { timeout_seconds: self.hold_seconds },
        }
    }

    pub(crate) fn is_of_kind(&self, kind: &Kind) -> bool {
        self.is_rolling == kind.is_rolling()
            && self.is_credit == kind.is_credit()
            && self.calendar.is_some() == matches!(kind, Kind::Calendar { .. })
    }

    pub(crate) fn overage(&self) -> Overage {
        if self.keeps_debt { Overage::Debt } else { Overage::Deny }
    }

    /// Whether the sweep frees it at some time.
    pub(crate) fn is_reclaimable(&self) -> bool {
        matches!(self.phase, Phase::Deleting | Phase::Deleted) || self.template().is_some()
    }

    /// Whether [`Limit::advance`] has work to do.
    pub(crate) fn is_due(&self, now: UnixMs) -> bool {
        self.timeline.is_due(now) || matches!(self.phase, Phase::Decreasing | Phase::Deleting)
    }

    /// Advances the limit to `now`: frees expired amounts and applies a decrease that has become possible.
    ///
    /// Between two commands time only frees capacity. A decrease that became possible meanwhile is still possible, so
    /// applying it late has the same result.
    pub(crate) fn advance(&mut self, nodes: &mut Nodes, now: UnixMs) {
        self.timeline.expire(nodes, now);
        self.settle_phase();
    }

    /// The limit as [`Limit::advance`] would leave it at `now`, without changing it.
    pub(crate) fn view_at(&self, nodes: &Nodes, now: UnixMs) -> LimitView {
        let due = self.timeline.due(nodes, now);
        let reserved = self.timeline.sums().minus(due).total();
        let mut limit = *self;
        limit.settle_phase_with(reserved);
        LimitView { limit, reserved }
    }

    fn settle_phase(&mut self) {
        self.settle_phase_with(self.reserved());
    }

    fn settle_phase_with(&mut self, reserved: u64) {
        match self.phase {
            Phase::Decreasing if reserved <= self.defined => {
                self.capacity = self.defined;
                self.phase = Phase::Active;
            }
            Phase::Deleting if reserved == 0 => {
                self.capacity = 0;
                self.debt = 0;
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

    pub(crate) fn status(&self) -> LimitStatus {
        match self.phase {
            Phase::Active => LimitStatus::Active,
            Phase::Decreasing => LimitStatus::Decreasing { to: self.defined },
            Phase::Deleting | Phase::AwaitingDrop => LimitStatus::Decreasing { to: 0 },
            Phase::Deleted | Phase::Free => LimitStatus::Deleted,
        }
    }
}

/// A limit as of some time.
pub(crate) struct LimitView {
    pub(crate) limit: Limit,
    pub(crate) reserved: u64,
}
