//! Pauses: a paused limit refuses every new reserve for a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::reserve::{ResolvedPart, UNKNOWN};
use super::{LimitSlot, Limits, State};
use crate::book::{LimitRef, Part, PauseLimit, PauseOutcome, Reserve};
use crate::id::LeaseId;
use crate::quota::QuotaKind;
use crate::time::UnixMs;

/// The longest pause: 1 hour. A gateway that dies must not stop traffic for longer.
pub const PAUSE_MS_MAX: u64 = 60 * 60 * 1_000;
/// The longest reason of a pause, in bytes.
pub const PAUSE_REASON_BYTES_MAX: usize = 256;
/// The maximum number of limits that are paused at once. A snapshot copies all pauses.
pub const PAUSES_MAX: usize = 1 << 16;
/// Pauses that have ended and are removed per command. A command adds one, so the backlog shrinks.
const CLEAN_PAUSES: usize = 4;

/// The pause of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// When it ends.
    pub until: UnixMs,
    /// The reason, for people; may be empty.
    pub reason: Arc<str>,
}

/// All pauses, those included that have ended and were not removed yet.
#[derive(Clone, Default)]
pub(crate) struct Pauses {
    all: BTreeMap<LimitSlot, Pause>,
    ends: BTreeSet<(UnixMs, LimitSlot)>,
}

impl Pauses {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The pause of a limit at `now`.
    pub(crate) fn get(&self, slot: LimitSlot, now: UnixMs) -> Option<&Pause> {
        self.all.get(&slot).filter(|pause| pause.until > now)
    }

    /// The number of pauses that have not ended.
    pub(crate) fn count_at(&self, now: UnixMs) -> usize {
        self.all.values().filter(|pause| pause.until > now).count()
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (LimitSlot, &Pause)> {
        self.all.iter().map(|(slot, pause)| (*slot, pause))
    }

    pub(crate) fn insert(&mut self, slot: LimitSlot, pause: Pause) {
        self.remove(slot);
        self.ends.insert((pause.until, slot));
        self.all.insert(slot, pause);
    }

    fn remove(&mut self, slot: LimitSlot) {
        if let Some(pause) = self.all.remove(&slot) {
            self.ends.remove(&(pause.until, slot));
        }
    }

    /// The limit whose pause ends first.
    fn first(&self) -> Option<(UnixMs, LimitSlot)> {
        self.ends.first().copied()
    }
}

impl State {
    /// Whether the limit is paused at `now`. Cheap while nothing is paused.
    pub(crate) fn is_paused(&self, slot: LimitSlot, now: UnixMs) -> bool {
        !self.pauses.is_empty() && self.pauses.get(slot, now).is_some()
    }

    /// Ends the pause of a limit, or forgets an ended one when its slot is freed. A pause survives a delete and a put of
    /// its limit, because the slot of a paused limit is not freed.
    pub(crate) fn end_pause(&mut self, slot: LimitSlot) {
        if !self.pauses.is_empty() {
            Arc::make_mut(&mut self.pauses).remove(slot);
        }
    }

    /// Removes a few pauses that have ended.
    pub(super) fn forget_pauses(&mut self, now: UnixMs) {
        for _ in 0..CLEAN_PAUSES {
            let Some((until, slot)) = self.pauses.first() else { return };
            if until > now {
                return;
            }
            Arc::make_mut(&mut self.pauses).remove(slot);
        }
    }
}

impl Limits {
    pub(crate) fn pause_limit(&mut self, now: UnixMs, command: &PauseLimit<'_>) -> PauseOutcome {
        if command.for_ms > PAUSE_MS_MAX {
            return PauseOutcome::TooLong { found: command.for_ms };
        }
        if command.reason.len() > PAUSE_REASON_BYTES_MAX {
            return PauseOutcome::ReasonTooLong { found: command.reason.len() };
        }
        let outcome = self.pause_followed(now, command);
        let is_paused = matches!(outcome, PauseOutcome::Paused { .. });
        self.end_derivation(is_paused, |_| is_paused);
        outcome
    }

    /// Pauses a limit. A key that follows a template and has no limit yet gets one, as if by a reserve.
    fn pause_followed(&mut self, now: UnixMs, command: &PauseLimit<'_>) -> PauseOutcome {
        let namespace = command.namespace;
        let part = Part { limit: LimitRef::Key(command.key.clone()), amount: 1 };
        let as_reserve =
            Reserve { namespace, lease: LeaseId::default(), job: None, requirements: std::slice::from_ref(&part) };
        let limit = self.lookup(now, namespace, command.key).unwrap_or(UNKNOWN);
        let mut resolved = [ResolvedPart { limit, amount: 1, position: 0, is_blocked: false }];
        self.follow_templates(now, &as_reserve, &mut resolved);
        let [ResolvedPart { limit: slot, .. }] = resolved;
        if self.advanced(namespace, slot, now).is_none() {
            return PauseOutcome::NotFound;
        }
        let before = self.state.pauses.get(slot, now).map(|pause| pause.until);
        let until = now.plus_ms(command.for_ms);
        if command.only_lengthen
            && let Some(longer) = before.filter(|before| *before >= until)
        {
            return PauseOutcome::Paused { until: longer };
        }
        self.version = self.version.wrapping_add(1);
        if command.for_ms == 0 {
            self.state.end_pause(slot);
            return PauseOutcome::Resumed;
        }
        if !self.has_room_for_derived() {
            return PauseOutcome::QuotaExceeded(QuotaKind::DerivedLimits);
        }
        if before.is_none() && self.state.pauses.len() >= PAUSES_MAX {
            return PauseOutcome::TooMany;
        }
        let pause = Pause { until, reason: command.reason.into() };
        Arc::make_mut(&mut self.state.pauses).insert(slot, pause);
        PauseOutcome::Paused { until }
    }
}
