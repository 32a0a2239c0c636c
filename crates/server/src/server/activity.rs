//! The phase of a connection, and whether it makes progress.
//!
//! A timer for every request would be set and cancelled millions of times for each time it fires. Here every step only
//! stores a stamp, and a periodic check compares stamps.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    /// No request.
    Idle = 0,
    /// A request head has begun to arrive.
    Head = 1,
    /// A request is handled, or its body read, which has a timeout of its own.
    Handling = 2,
    /// The client does not read the response.
    Writing = 3,
}

const PHASE_BITS: u32 = 2;

/// A phase and a count of phase changes: equal stamps mean no progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ActivityStamp(u64);

impl ActivityStamp {
    pub(super) fn phase(self) -> Phase {
        match self.0 & ((1 << PHASE_BITS) - 1) {
            0 => Phase::Idle,
            1 => Phase::Head,
            2 => Phase::Handling,
            _ => Phase::Writing,
        }
    }
}

/// The current activity stamp of a connection.
#[derive(Debug, Default)]
pub(super) struct Activity {
    stamp: AtomicU64,
    is_ambiguous: AtomicBool,
    is_streaming: AtomicBool,
}

impl Activity {
    /// Records that a request states the length of its body twice. The connection serves no further request.
    pub(super) fn set_ambiguous(&self) {
        self.is_ambiguous.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_ambiguous(&self) -> bool {
        self.is_ambiguous.load(Ordering::Relaxed)
    }

    /// Records whether a response is being streamed. The connection is busy meanwhile, however long nothing is sent.
    pub(super) fn set_streaming(&self, is_streaming: bool) {
        self.is_streaming.store(is_streaming, Ordering::Relaxed);
        if self.stamp().phase() != Phase::Writing {
            self.enter(self.between_writes());
        }
    }

    /// The phase of a connection whose response is not blocked.
    pub(super) fn between_writes(&self) -> Phase {
        if self.is_streaming.load(Ordering::Relaxed) { Phase::Handling } else { Phase::Idle }
    }

    pub(super) fn enter(&self, phase: Phase) {
        // The steps of a connection are sequential, so no update is lost between load and store.
        let entered = (self.stamp.load(Ordering::Relaxed) >> PHASE_BITS).wrapping_add(1);
        self.stamp.store((entered << PHASE_BITS) | phase as u64, Ordering::Relaxed);
    }

    pub(super) fn stamp(&self) -> ActivityStamp {
        ActivityStamp(self.stamp.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_busy_while_it_streams_also_after_a_blocked_write() {
        let activity = Activity::default();
        activity.set_streaming(true);
        assert_eq!(activity.stamp().phase(), Phase::Handling);
        activity.enter(Phase::Writing);
        assert_eq!(activity.between_writes(), Phase::Handling);
        activity.set_streaming(false);
        assert_eq!((activity.stamp().phase(), activity.between_writes()), (Phase::Writing, Phase::Idle));
        activity.enter(activity.between_writes());
        activity.set_streaming(true);
        activity.set_streaming(false);
        assert_eq!(activity.stamp().phase(), Phase::Idle);
    }

    #[test]
    fn entering_a_phase_again_changes_the_stamp() {
        let activity = Activity::default();
        assert_eq!(activity.stamp().phase(), Phase::Idle);
        for phase in [Phase::Head, Phase::Handling, Phase::Writing, Phase::Idle, Phase::Idle] {
            let before = activity.stamp();
            activity.enter(phase);
            assert_eq!(activity.stamp().phase(), phase);
            assert_ne!(activity.stamp(), before);
        }
    }
}
