//! Log time on one node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use earmark_admission::{LogTime, TimeSource};
use earmark_core::{Moment, UnixMs};
use tokio::time::Instant;

/// Log time. A follower learns it from the leader; a leader counts it by its own steady clock. It follows the wall
/// clock slowly, so setting a wall clock never makes it jump.
///
/// A leader that has just started asks its followers. It uses its own wall clock only if a majority does not know log
/// time either.
pub(crate) struct NodeClock {
    source: Arc<dyn TimeSource>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// `None` until log time is learned or taken from the wall clock.
    log: Option<LogTime>,
    poll: TimePoll,
}

/// Replies to a leader's question for log time.
#[derive(Default)]
struct TimePoll {
    term: u64,
    since: Option<Instant>,
    /// Voters without log time, and when they were asked last.
    without_time: BTreeMap<u64, Instant>,
}

/// Term, voters and lease of a leader.
pub(crate) struct Lead {
    pub(crate) term: u64,
    pub(crate) id: u64,
    /// Voter sets of a possibly joint membership. A majority of each decides.
    pub(crate) voters: Vec<BTreeSet<u64>>,
    /// How long after a quorum reply no other node can lead.
    pub(crate) lease: Duration,
}

impl NodeClock {
    pub(crate) fn new(source: Arc<dyn TimeSource>) -> NodeClock {
        NodeClock { source, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn starting_at(&self, log_us: u64) -> LogTime {
        LogTime::starting_at(log_us, self.source.steady_us())
    }

    /// Current log time, if known. Never before the last time in the log.
    pub(crate) fn now(&self, last: UnixMs) -> Option<Moment> {
        let mut state = self.lock();
        let time = state.log.as_mut()?;
        let moment = time.now(&*self.source);
        if moment.log >= last {
            return Some(moment);
        }
        // The previous leader was further ahead than this node could know.
        *time = self.starting_at(last.get().saturating_mul(1_000));
        Some(Moment { log: last, ..moment })
    }

    /// Whether this node has had log time since it started.
    pub(crate) fn is_known(&self) -> bool {
        self.lock().log.is_some()
    }

    pub(crate) fn wall(&self) -> UnixMs {
        UnixMs::new(self.source.wall_us() / 1_000)
    }

    /// Takes log time from the leader.
    pub(crate) fn learn(&self, now: UnixMs) {
        let time = self.starting_at(now.get().saturating_mul(1_000));
        self.lock().log = Some(time);
    }

    /// Handles a follower's reply to the leader of a term: its log time, or `None` if it has none.
    pub(crate) fn record_reply(&self, term: u64, by: u64, asked: Instant, now: Option<UnixMs>) {
        let mut state = self.lock();
        match now {
            _ if state.log.is_some() => {}
            Some(now) => state.log = Some(self.starting_at(now.get().saturating_mul(1_000))),
            None => {
                if state.poll.term != term {
                    state.poll = TimePoll { term, ..TimePoll::default() };
                }
                state.poll.since.get_or_insert_with(Instant::now);
                state.poll.without_time.insert(by, asked);
            }
        }
    }

    /// Starts log time at the later of the last log entry and the wall clock. Requires that every voter lacks log
    /// time, or that a majority does and the others stayed silent for half a lease.
    pub(crate) fn begin(&self, last: UnixMs, lead: &Lead) -> Option<Moment> {
        let mut state = self.lock();
        if state.log.is_none() && state.poll.nobody_knows(lead) {
            let wall_us = self.source.wall_us();
            state.log = Some(self.starting_at(wall_us.max(last.get().saturating_mul(1_000))));
        }
        drop(state);
        self.now(last)
    }
}

impl TimePoll {
    /// Whether no voter knows log time. Replies older than a lease do not count, because the voter may have learned
    /// it since.
    fn nobody_knows(&self, lead: &Lead) -> bool {
        let is_without_time = |voter: &&u64| {
            let said = || self.without_time.get(*voter).is_some_and(|asked| asked.elapsed() < lead.lease);
            **voter == lead.id || self.term == lead.term && said()
        };
        let has_waited = self.since.is_some_and(|since| since.elapsed() >= lead.lease / 2);
        lead.voters.iter().all(|voters| {
            let without_time = voters.iter().filter(is_without_time).count();
            without_time == voters.len() || has_waited && without_time > voters.len() / 2
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use earmark_admission::ManualClock;

    const HOUR_MS: u64 = 3_600_000;

    const LEASE: Duration = Duration::from_millis(600);

    fn now(clock: &NodeClock, last: u64) -> Option<u64> {
        clock.now(UnixMs::new(last)).map(|moment| moment.log.get())
    }

    /// Node 1 of three leads in a term.
    fn begin(clock: &NodeClock, term: u64, last: u64) -> Option<u64> {
        let voters = vec![BTreeSet::from([1, 2, 3])];
        let lead = Lead { term, id: 1, voters, lease: LEASE };
        clock.begin(UnixMs::new(last), &lead).map(|moment| moment.log.get())
    }

    #[test]
    fn a_node_that_learned_the_time_does_not_leap_to_its_wall_clock_when_it_is_elected() {
        let source = ManualClock::at(10 * HOUR_MS);
        let clock = NodeClock::new(source.clone());
        clock.learn(UnixMs::new(7 * HOUR_MS));
        source.advance_ms(1_000);
        // The last millisecond is the slow correction towards the wall clock.
        assert_eq!(now(&clock, 6 * HOUR_MS), Some(7 * HOUR_MS + 1_001));
    }

    #[test]
    fn a_node_alone_that_learned_nothing_takes_the_later_of_its_log_and_its_wall_clock() {
        for (wall, last) in [(5, 6), (5, 1)] {
            let clock = NodeClock::new(ManualClock::at(wall * HOUR_MS));
            assert_eq!(now(&clock, last * HOUR_MS), None);
            let lead = Lead { term: 1, id: 1, voters: vec![BTreeSet::from([1])], lease: LEASE };
            let begun = clock.begin(UnixMs::new(last * HOUR_MS), &lead).map(|moment| moment.log.get());
            assert_eq!(begun, Some(wall.max(last) * HOUR_MS));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_takes_its_wall_clock_only_if_no_voter_knows_better() {
        let clock = NodeClock::new(ManualClock::at(5 * HOUR_MS));
        assert_eq!(begin(&clock, 1, 0), None);
        clock.record_reply(1, 2, Instant::now(), None);
        assert_eq!(begin(&clock, 1, 0), None, "node 3 may know");
        clock.record_reply(1, 3, Instant::now(), Some(UnixMs::new(HOUR_MS)));
        assert_eq!(begin(&clock, 1, 0), Some(HOUR_MS));
        let clock = NodeClock::new(ManualClock::at(5 * HOUR_MS));
        clock.record_reply(1, 2, Instant::now(), None);
        clock.record_reply(1, 3, Instant::now(), None);
        assert_eq!(begin(&clock, 1, 0), Some(5 * HOUR_MS));
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_does_not_wait_for_ever_for_a_voter_that_is_gone() {
        let clock = NodeClock::new(ManualClock::at(5 * HOUR_MS));
        clock.record_reply(1, 2, Instant::now(), None);
        tokio::time::sleep(LEASE / 2).await;
        assert_eq!(begin(&clock, 1, 0), Some(5 * HOUR_MS));
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_voter_did_not_know_long_ago_or_in_another_term_says_nothing() {
        let clock = NodeClock::new(ManualClock::at(5 * HOUR_MS));
        clock.record_reply(1, 2, Instant::now(), None);
        clock.record_reply(1, 3, Instant::now(), None);
        assert_eq!(begin(&clock, 2, 0), None);
        tokio::time::sleep(LEASE).await;
        assert_eq!(begin(&clock, 1, 0), None);
    }

    #[test]
    fn time_never_runs_behind_the_log() {
        let source = ManualClock::at(5 * HOUR_MS);
        let clock = NodeClock::new(source.clone());
        clock.learn(UnixMs::new(HOUR_MS));
        assert_eq!(now(&clock, 2 * HOUR_MS), Some(2 * HOUR_MS));
        source.advance_ms(10);
        assert!(now(&clock, 2 * HOUR_MS) >= Some(2 * HOUR_MS + 9));
    }
}
