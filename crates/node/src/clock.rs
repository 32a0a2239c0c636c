//! Log time, as a node tells it.

use std::sync::{Arc, Mutex, PoisonError};

use earmark_admission::{LogTime, Moment, TimeSource};
use earmark_core::UnixMs;

/// Log time: learned from the leader while there is another one, and from then on counted here. It is drawn towards
/// the wall clock so slowly that it never leaps when somebody sets that.
pub(crate) struct NodeClock {
    source: Arc<dyn TimeSource>,
    /// None until a leader told the time, or this node became one.
    log: Mutex<Option<LogTime>>,
}

impl NodeClock {
    pub(crate) fn new(source: Arc<dyn TimeSource>) -> NodeClock {
        NodeClock { source, log: Mutex::new(None) }
    }

    /// The time at which a leader decides. A node that has not learned it since its start takes the later of the last
    /// time in its log and its wall clock.
    pub(crate) fn now(&self, last: UnixMs) -> Moment {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let last_us = last.get().saturating_mul(1_000);
        let time = log.get_or_insert_with(|| {
            LogTime::starting_at(self.source.wall_us().max(last_us), self.source.steady_us())
        });
        let moment = time.now(&*self.source);
        if moment.log >= last {
            return moment;
        }
        // The leader before had come further than this node could know.
        *time = LogTime::starting_at(last_us, self.source.steady_us());
        Moment { log: last, ..moment }
    }

    /// The leader says what time it is.
    pub(crate) fn learn(&self, now: UnixMs) {
        let time = LogTime::starting_at(now.get().saturating_mul(1_000), self.source.steady_us());
        *self.log.lock().unwrap_or_else(PoisonError::into_inner) = Some(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use earmark_admission::ManualClock;

    const HOUR_MS: u64 = 3_600_000;

    #[test]
    fn a_node_that_learned_the_time_does_not_leap_to_its_wall_clock_when_it_is_elected() {
        let source = ManualClock::at(10 * HOUR_MS);
        let clock = NodeClock::new(source.clone());
        clock.learn(UnixMs::new(7 * HOUR_MS));
        source.advance_ms(1_000);
        let now = clock.now(UnixMs::new(6 * HOUR_MS)).log;
        assert_eq!(now, UnixMs::new(7 * HOUR_MS + 1_001), "a thousandth is for following the wall");
    }

    #[test]
    fn a_node_that_learned_nothing_takes_the_later_of_its_log_and_its_wall_clock() {
        let log_ahead = NodeClock::new(ManualClock::at(5 * HOUR_MS));
        assert_eq!(log_ahead.now(UnixMs::new(6 * HOUR_MS)).log, UnixMs::new(6 * HOUR_MS));
        let wall_ahead = NodeClock::new(ManualClock::at(5 * HOUR_MS));
        assert_eq!(wall_ahead.now(UnixMs::new(HOUR_MS)).log, UnixMs::new(5 * HOUR_MS));
    }

    #[test]
    fn time_never_runs_behind_the_log() {
        let source = ManualClock::at(5 * HOUR_MS);
        let clock = NodeClock::new(source.clone());
        clock.learn(UnixMs::new(HOUR_MS));
        assert_eq!(clock.now(UnixMs::new(2 * HOUR_MS)).log, UnixMs::new(2 * HOUR_MS));
        source.advance_ms(10);
        assert!(clock.now(UnixMs::new(2 * HOUR_MS)).log >= UnixMs::new(2 * HOUR_MS + 9));
    }
}
