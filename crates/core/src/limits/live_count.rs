//! The number of live leases at any time, without a look at each.

use std::collections::BTreeMap;

use crate::time::UnixMs;

/// Seconds that the ring covers: 68 minutes. Most timeouts are shorter.
const NEAR: usize = 4_096;
/// Seconds of long leases that have passed and are forgotten per lease added.
const CLEAN: usize = 2;

/// Counts leases by the second in which they run out. Not part of a snapshot: the leases restore it.
#[derive(Default)]
pub(crate) struct LiveCount {
    /// By second modulo its length: the second, and how many leases run out in it. For leases that run out within its
    /// length after they were reserved.
    near: Box<[(u64, u32)]>,
    /// Leases that run out later.
    far: BTreeMap<u64, u32>,
}

fn second(until: UnixMs) -> u64 {
    until.get().div_ceil(1_000)
}

fn is_near(reserved_at: UnixMs, second: u64) -> bool {
    second.saturating_sub(reserved_at.get() / 1_000) < NEAR as u64
}

impl LiveCount {
    /// Counts a lease that runs out at `until`.
    #[inline]
    pub(crate) fn add(&mut self, reserved_at: UnixMs, until: UnixMs) {
        let second = second(until);
        if is_near(reserved_at, second) {
            if self.near.is_empty() {
                self.near = vec![(0, 0); NEAR].into();
            }
            let cell = &mut self.near[second as usize % NEAR];
            if cell.0 < second {
                *cell = (second, 0);
            }
            // A later second means that this one has passed.
            if cell.0 == second {
                cell.1 = cell.1.saturating_add(1);
            }
        } else {
            self.add_far(reserved_at, second);
        }
    }

    #[cold]
    fn add_far(&mut self, reserved_at: UnixMs, second: u64) {
        for _ in 0..CLEAN {
            if let Some(first) = self.far.first_entry().filter(|first| *first.key() < reserved_at.get() / 1_000) {
                first.remove();
            }
        }
        let count = self.far.entry(second).or_default();
        *count = count.saturating_add(1);
    }

    /// Takes off a lease that was added with these times.
    #[inline]
    pub(crate) fn remove(&mut self, reserved_at: UnixMs, until: UnixMs) {
        let second = second(until);
        if !is_near(reserved_at, second) {
            if let Some(count) = self.far.get_mut(&second) {
                *count = count.saturating_sub(1);
            }
        } else if let Some(cell) = self.near.get_mut(second as usize % NEAR).filter(|cell| cell.0 == second) {
            cell.1 = cell.1.saturating_sub(1);
        }
    }

    /// Counts a lease that was added with the time `until` where it runs out now.
    #[inline]
    pub(crate) fn change(&mut self, reserved_at: UnixMs, until: UnixMs, new_until: UnixMs) {
        if second(until) != second(new_until) {
            self.remove(reserved_at, until);
            self.add(reserved_at, new_until);
        }
    }

    /// The number of leases that have not run out at `now`, to the second.
    pub(crate) fn at(&self, now: UnixMs) -> usize {
        let now = now.get() / 1_000;
        let near = self.near.iter().filter(|(second, _)| *second > now).map(|(_, count)| *count as usize);
        let far = self.far.range(now.saturating_add(1)..).map(|(_, count)| *count as usize);
        near.chain(far).fold(0, usize::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_counted_until_they_run_out_or_are_removed() {
        let mut live = LiveCount::default();
        let at = |seconds: u64| UnixMs::new(1_000_000_000 + seconds * 1_000);
        let ends = [1, 60, 60, 4_000, 5_000, 100_000];
        for end in ends {
            live.add(at(0), at(end));
        }
        let counts = [0, 1, 59, 60, 4_999, 99_999, 100_000].map(|now| live.at(at(now)));
        assert_eq!(counts, [6, 5, 5, 3, 2, 1, 0]);
        live.remove(at(0), at(60));
        live.remove(at(0), at(100_000));
        assert_eq!([0, 60].map(|now| live.at(at(now))), [4, 2]);
        // The ring is used again.
        live.add(at(NEAR as u64), at(NEAR as u64 + 60));
        assert_eq!(live.at(at(NEAR as u64)), 2);
        live.remove(at(0), at(60));
        assert_eq!(live.at(at(NEAR as u64)), 2);
    }

    #[test]
    fn a_lease_is_live_until_the_millisecond_rounded_up_to_its_second() {
        let mut live = LiveCount::default();
        live.add(UnixMs::new(0), UnixMs::new(1_500));
        assert_eq!([0, 1_499, 1_999, 2_000].map(|now| live.at(UnixMs::new(now))), [1, 1, 1, 0]);
    }
}
