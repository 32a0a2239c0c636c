//! Pauses: a paused limit refuses every new reserve for a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::reserve::{ResolvedPart, UNKNOWN};
use super::{LimitSlot, Limits, State};
use crate::book::{LimitRef, NamespaceId, Part, PauseLimit, PauseOutcome, Reserve};
use crate::id::LeaseId;
use crate::quota::QuotaKind;
use crate::time::UnixMs;

/// The longest pause: 1 hour. A gateway that dies must not stop traffic for longer.
pub const PAUSE_MS_MAX: u64 = 60 * 60 * 1_000;
/// The longest reason of a pause, in bytes.
pub const PAUSE_REASON_BYTES_MAX: usize = 256;
/// The maximum number of limits that are paused at once. A snapshot copies all pauses.
pub const PAUSES_MAX: usize = 1 << 16;
/// The maximum number of paused limits of one namespace, so that none can use up the pauses of all.
pub const PAUSES_NAMESPACE_MAX: usize = 1 << 12;
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
    all: BTreeMap<LimitSlot, (NamespaceId, Pause)>,
    ends: BTreeSet<(UnixMs, LimitSlot)>,
    /// The number of pauses by namespace; 0 is not kept.
    counts: BTreeMap<NamespaceId, usize>,
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
        self.all.get(&slot).map(|(_, pause)| pause).filter(|pause| pause.until > now)
    }

    /// The number of pauses that have not ended.
    pub(crate) fn count_at(&self, now: UnixMs) -> usize {
        self.all.values().filter(|(_, pause)| pause.until > now).count()
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (LimitSlot, &Pause)> {
        self.all.iter().map(|(slot, (_, pause))| (*slot, pause))
    }

    /// The number of pauses of a namespace.
    pub(crate) fn len_of(&self, namespace: NamespaceId) -> usize {
        self.counts.get(&namespace).copied().unwrap_or(0)
    }

    /// Adds the pause of a limit of a namespace.
    pub(crate) fn insert(&mut self, namespace: NamespaceId, slot: LimitSlot, pause: Pause) {
        self.remove(slot);
        self.ends.insert((pause.until, slot));
        self.all.insert(slot, (namespace, pause));
        let count = self.counts.entry(namespace).or_default();
        *count = count.saturating_add(1);
    }

    fn remove(&mut self, slot: LimitSlot) {
        let Some((namespace, pause)) = self.all.remove(&slot) else { return };
        self.ends.remove(&(pause.until, slot));
        let left = self.len_of(namespace).saturating_sub(1);
        if left == 0 {
            self.counts.remove(&namespace);
        } else {
            self.counts.insert(namespace, left);
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
        let as_reserve = Reserve {
            namespace,
            lease: LeaseId::default(),
            job: None,
            call: None,
            by_gateway: false,
            requirements: std::slice::from_ref(&part),
        };
        let limit = self.lookup(now, namespace, command.key).unwrap_or(UNKNOWN);
        let mut resolved = [ResolvedPart { limit, amount: 1, position: 0, is_blocked: false, plain: 0, room: 0 }];
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
        let pauses = &self.state.pauses;
        if before.is_none() && pauses.len_of(namespace) >= PAUSES_NAMESPACE_MAX {
            return PauseOutcome::TooManyInNamespace;
        }
        if before.is_none() && pauses.len() >= PAUSES_MAX {
            return PauseOutcome::TooMany;
        }
        let pause = Pause { until, reason: command.reason.into() };
        Arc::make_mut(&mut self.state.pauses).insert(namespace, slot, pause);
        PauseOutcome::Paused { until }
    }
}
