//! What a connection is at, and whether it is still moving.
//!
//! A timer for every request would be set and taken back millions of times for each time it fires. Here
//! every step only leaves a mark, and whoever looks now and then sees how long ago the last one was left.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a connection is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    /// Nothing is asked.
    Idle = 0,
    /// Some of the head of a request has come.
    Head = 1,
    /// A request is being handled, or its body read, which has a timeout of its own.
    Handling = 2,
    /// The client does not take what is sent to it.
    Writing = 3,
}

const PHASE_BITS: u32 = 2;

/// A phase, and how often it was entered: two looks that see the same saw the very same phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark(u64);

impl Mark {
    pub(super) fn phase(self) -> Phase {
        match self.0 & ((1 << PHASE_BITS) - 1) {
            0 => Phase::Idle,
            1 => Phase::Head,
            2 => Phase::Handling,
            _ => Phase::Writing,
        }
    }
}

/// Where the marks are left.
#[derive(Debug, Default)]
pub(super) struct Pulse(AtomicU64);

impl Pulse {
    pub(super) fn enter(&self, phase: Phase) {
        // A connection's steps follow each other, so nothing is lost between the load and the store.
        let entered = (self.0.load(Ordering::Relaxed) >> PHASE_BITS).wrapping_add(1);
        self.0.store((entered << PHASE_BITS) | phase as u64, Ordering::Relaxed);
    }

    pub(super) fn look(&self) -> Mark {
        Mark(self.0.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entering_a_phase_again_leaves_another_mark() {
        let pulse = Pulse::default();
        assert_eq!(pulse.look().phase(), Phase::Idle);
        for phase in [Phase::Head, Phase::Handling, Phase::Writing, Phase::Idle, Phase::Idle] {
            let before = pulse.look();
            pulse.enter(phase);
            assert_eq!(pulse.look().phase(), phase);
            assert_ne!(pulse.look(), before);
        }
    }
}
