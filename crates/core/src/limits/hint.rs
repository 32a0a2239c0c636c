//! Retry hints: when a denied caller should try again.

use super::reserve::ResolvedPart;
use super::{Hints, Limit, Nodes, PartKind, State};
use crate::book::{Denial, Reserve};
use crate::id::LeaseId;
use crate::time::UnixMs;

/// Retry hint when the amount exceeds the capacity: 1 minute, so that a client that does not know `never` does not spin.
pub const NEVER_RETRY_MS: u64 = 60_000;
/// The maximum counted run of denials. Every backoff reaches its maximum well before.
pub(crate) const DENIALS_MAX: u8 = 64;

/// A limit in the way, and the wait until it has room.
#[derive(Debug)]
pub(super) struct Obstacle {
    requirement: usize,
    wait_ms: u64,
    never: bool,
}

impl State {
    /// Builds the denial of `resolved` and counts it for every limit in the way. `obstacles` is overwritten.
    pub(super) fn denial(
        &mut self,
        now: UnixMs,
        command: &Reserve<'_>,
        resolved: &[ResolvedPart],
        obstacles: &mut Vec<Obstacle>,
    ) -> Denial {
        let hints = self.config.hints;
        obstacles.clear();
        for part in resolved {
            if self.limits[part.limit].is_credit() || part.amount <= self.limits[part.limit].room() {
                continue;
            }
            let limit = &mut self.limits[part.limit];
            // The largest amount is never too large for a shadow limit.
            let never = part.amount > limit.capacity && !limit.is_shadow();
            let mut wait_ms = 0;
            if !never {
                wait_ms = limit.wait_ms(&mut self.nodes, &hints, now, command.lease, part.amount);
                limit.denials = limit.denials.saturating_add(1).min(DENIALS_MAX);
            }
            obstacles.push(Obstacle { requirement: part.position, wait_ms, never });
        }
        let name_of = |o: &Obstacle| self.part_name(command.namespace, &command.requirements[o.requirement]);
        obstacles.sort_unstable_by_key(|o| (!o.never, std::cmp::Reverse(o.wait_ms), name_of(o)));
        let never = obstacles.first().is_some_and(|first| first.never);
        let retry_after_ms = if never { NEVER_RETRY_MS } else { obstacles.first().map_or(0, |first| first.wait_ms) };
        Denial { retry_after_ms, limited_by: obstacles.iter().map(|o| o.requirement).collect(), never }
    }
}

impl Limit {
    fn wait_ms(&self, nodes: &mut Nodes, hints: &Hints, now: UnixMs, lease: LeaseId, amount: u64) -> u64 {
        let counts_usage = matches!(self.part_kind(), PartKind::Rolling | PartKind::Calendar);
        let backoff_ms = hints.backoff_ms(counts_usage, self.hold_ms(), self.denials.into(), lease);
        if !counts_usage {
            return backoff_ms.min(self.timeline().next_at().ms_since(now));
        }
        let missing = amount.saturating_sub(self.room());
        let exact_ms = self.timeline().freed_at(nodes, missing).ms_since(now);
        // An unsettled lease may free capacity earlier, when it completes.
        if self.timeline().sums().unsettled == 0 { exact_ms } else { exact_ms.min(backoff_ms) }
    }
}

impl Hints {
    /// The backoff after `denials` denials in a row, for a limit whose window or timeout is `hold_ms`.
    #[must_use]
    pub fn backoff_ms(&self, is_rolling: bool, hold_ms: u64, denials: u32, lease: LeaseId) -> u64 {
        let ms = if is_rolling {
            let first = hold_ms.checked_div(self.rolling_window_part).unwrap_or(0).max(self.rolling_base_ms);
            grow(first, denials, self.rolling_max_ms, |ms| ms.saturating_add(ms / 2))
        } else {
            grow(self.concurrency_base_ms, denials, self.concurrency_max_ms, |ms| ms.saturating_mul(2))
        };
        self.jittered(ms, lease)
    }

    /// Subtracts a share given by the lease's random bits, so that callers denied together do not return together.
    fn jittered(&self, ms: u64, lease: LeaseId) -> u64 {
        const WHOLE: u64 = 100 * 65_536;
        const WHOLE_WIDE: u128 = WHOLE as u128;
        let random = lease.random_bits() & 0xffff;
        let cut = match self.jitter_percent.checked_mul(random).and_then(|share| ms.checked_mul(share)) {
            Some(part) => part / WHOLE,
            None => {
                let share = u128::from(self.jitter_percent).saturating_mul(u128::from(random));
                u64::try_from(u128::from(ms).saturating_mul(share) / WHOLE_WIDE).unwrap_or(ms)
            }
        };
        ms.saturating_sub(cut).max(1)
    }
}

fn grow(first_ms: u64, times: u32, max_ms: u64, step: impl Fn(u64) -> u64) -> u64 {
    let mut ms = first_ms.min(max_ms);
    for _ in 0..times {
        if ms == max_ms {
            break;
        }
        ms = step(ms).min(max_ms);
    }
    ms
}
