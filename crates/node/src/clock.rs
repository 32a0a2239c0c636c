//! Log time on one node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use earmark_admission::{LogTime, TimeSource};
use earmark_core::{Moment, UnixMs};
use tokio::time::Instant;

/// Maximum difference between wall clocks that agree.
const WALLS_AGREE: Duration = Duration::from_secs(2);
/// Age after which a peer's wall clock is unknown. Several heartbeats long.
const WALL_MAX_AGE: Duration = Duration::from_secs(10);
/// Lag of log time behind the wall clocks below which it does not jump.
const JUMP_MIN: Duration = Duration::from_secs(2);

/// Log time. A follower learns it from the leader; a leader counts it by its own steady clock. It follows the wall
/// clock slowly, so setting one wall clock never makes it jump.
///
/// A leader that has just started asks its followers. It uses its own wall clock only if a majority does not know log
/// time either.
pub(crate) struct NodeClock {
    source: Arc<dyn TimeSource>,
    /// Whether the wall clock of a single voter is enough for a jump.
    accept_time: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// `None` until log time is learned or taken from the wall clock.
    log: Option<LogTime>,
    poll: TimePoll,
    /// Wall clocks of peers.
    walls: BTreeMap<u64, PeerWall>,
}

/// The wall clock of a peer, as the difference to this node's steady clock.
struct PeerWall {
    ahead_us: i128,
    read: Instant,
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
    pub(crate) fn new(source: Arc<dyn TimeSource>, accept_time: bool) -> NodeClock {
        NodeClock { source, accept_time, state: Mutex::default() }
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

    /// Records a peer's wall clock from a reply. A slow reply says little about the peer's clock now.
    pub(crate) fn record_wall(&self, peer: u64, asked: Instant, wall: UnixMs) {
        if asked.elapsed() > WALLS_AGREE / 2 {
            return;
        }
        let wall_us = i128::from(wall.get()).saturating_mul(1_000);
        let ahead_us = wall_us.saturating_sub(i128::from(self.source.steady_us()));
        self.lock().walls.insert(peer, PeerWall { ahead_us, read: asked });
    }

    /// The time to which a leader may move log time forward: the earliest of the wall clocks of a majority that
    /// agree. `None` without agreement, or if log time is not clearly behind.
    pub(crate) fn jump(&self, now: UnixMs, lead: &Lead) -> Option<UnixMs> {
        if lead.voters.iter().any(|voters| voters.len() == 1) && !self.accept_time {
            return None;
        }
        let steady_us = i128::from(self.source.steady_us());
        let mut walls: Vec<(i128, u64)> = {
            let state = self.lock();
            let fresh = state.walls.iter().filter(|(_, wall)| wall.read.elapsed() < WALL_MAX_AGE);
            fresh.map(|(peer, wall)| (steady_us.saturating_add(wall.ahead_us), *peer)).collect()
        };
        walls.push((i128::from(self.source.wall_us()), lead.id));
        walls.sort_unstable();
        let agreed = walls.iter().enumerate().find(|(first, (earliest, _))| {
            let latest = earliest.saturating_add(WALLS_AGREE.as_micros() as i128);
            let agreeing: Vec<u64> =
                walls[*first..].iter().take_while(|(wall, _)| *wall <= latest).map(|(_, id)| *id).collect();
            lead.voters
                .iter()
                .all(|voters| voters.iter().filter(|voter| agreeing.contains(voter)).count() > voters.len() / 2)
        });
        let (_, (wall_us, _)) = agreed?;
        let wall = UnixMs::new(u64::try_from(*wall_us).ok()? / 1_000);
        (u128::from(wall.ms_since(now)) >= JUMP_MIN.as_millis()).then_some(wall)
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
        let clock = NodeClock::new(source.clone(), false);
        clock.learn(UnixMs::new(7 * HOUR_MS));
        source.advance_ms(1_000);
        // The last millisecond is the slow correction towards the wall clock.
        assert_eq!(now(&clock, 6 * HOUR_MS), Some(7 * HOUR_MS + 1_001));
    }

    #[test]
    fn a_node_alone_that_learned_nothing_takes_the_later_of_its_log_and_its_wall_clock() {
        for (wall, last) in [(5, 6), (5, 1)] {
            let clock = NodeClock::new(ManualClock::at(wall * HOUR_MS), false);
            assert_eq!(now(&clock, last * HOUR_MS), None);
            let lead = Lead { term: 1, id: 1, voters: vec![BTreeSet::from([1])], lease: LEASE };
            let begun = clock.begin(UnixMs::new(last * HOUR_MS), &lead).map(|moment| moment.log.get());
            assert_eq!(begun, Some(wall.max(last) * HOUR_MS));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_takes_its_wall_clock_only_if_no_voter_knows_better() {
        let clock = NodeClock::new(ManualClock::at(5 * HOUR_MS), false);
        assert_eq!(begin(&clock, 1, 0), None);
        clock.record_reply(1, 2, Instant::now(), None);
        assert_eq!(begin(&clock, 1, 0), None, "node 3 may know");
        clock.record_reply(1, 3, Instant::now(), Some(UnixMs::new(HOUR_MS)));
        assert_eq!(begin(&clock, 1, 0), Some(HOUR_MS));
        let clock = NodeClock::new(ManualClock::at(5 * HOUR_MS), false);
        clock.record_reply(1, 2, Instant::now(), None);
        clock.record_reply(1, 3, Instant::now(), None);
        assert_eq!(begin(&clock, 1, 0), Some(5 * HOUR_MS));
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_does_not_wait_for_ever_for_a_voter_that_is_gone() {
        let clock = NodeClock::new(ManualClock::at(5 * HOUR_MS), false);
        clock.record_reply(1, 2, Instant::now(), None);
        tokio::time::sleep(LEASE / 2).await;
        assert_eq!(begin(&clock, 1, 0), Some(5 * HOUR_MS));
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_voter_did_not_know_long_ago_or_in_another_term_says_nothing() {
        let clock = NodeClock::new(ManualClock::at(5 * HOUR_MS), false);
        clock.record_reply(1, 2, Instant::now(), None);
        clock.record_reply(1, 3, Instant::now(), None);
        assert_eq!(begin(&clock, 2, 0), None);
        tokio::time::sleep(LEASE).await;
        assert_eq!(begin(&clock, 1, 0), None);
    }

    #[test]
    fn time_never_runs_behind_the_log() {
        let source = ManualClock::at(5 * HOUR_MS);
        let clock = NodeClock::new(source.clone(), false);
        clock.learn(UnixMs::new(HOUR_MS));
        assert_eq!(now(&clock, 2 * HOUR_MS), Some(2 * HOUR_MS));
        source.advance_ms(10);
        assert!(now(&clock, 2 * HOUR_MS) >= Some(2 * HOUR_MS + 9));
    }

    fn lead(voters: &[u64]) -> Lead {
        Lead { term: 1, id: 1, voters: vec![voters.iter().copied().collect()], lease: LEASE }
    }

    fn jump(clock: &NodeClock, voters: &[u64]) -> Option<u64> {
        clock.jump(UnixMs::new(HOUR_MS), &lead(voters)).map(UnixMs::get)
    }

    #[tokio::test(start_paused = true)]
    async fn log_time_jumps_to_the_earliest_wall_clock_of_a_majority_that_agrees() {
        let source = ManualClock::at(5 * HOUR_MS);
        let clock = NodeClock::new(source.clone(), false);
        let voters = [1, 2, 3];
        assert_eq!(jump(&clock, &voters), None, "one of three is no majority");
        clock.record_wall(2, Instant::now(), UnixMs::new(4 * HOUR_MS));
        assert_eq!(jump(&clock, &voters), None, "two that differ by an hour");
        clock.record_wall(3, Instant::now(), UnixMs::new(5 * HOUR_MS - 2_000));
        assert_eq!(jump(&clock, &voters), Some(5 * HOUR_MS - 2_000));
        clock.record_wall(3, Instant::now(), UnixMs::new(5 * HOUR_MS - 2_001));
        assert_eq!(jump(&clock, &voters), None);
        clock.record_wall(2, Instant::now(), UnixMs::new(5 * HOUR_MS - 3_000));
        assert_eq!(jump(&clock, &voters), Some(5 * HOUR_MS - 3_000), "the others agree, this node does not");
        assert_eq!(jump(&clock, &[1, 2, 3, 4, 5]), None, "two of five agree");
        tokio::time::sleep(WALL_MAX_AGE).await;
        assert_eq!(jump(&clock, &voters), None, "old readings do not count");
    }

    #[tokio::test(start_paused = true)]
    async fn a_single_node_jumps_only_if_the_operator_accepts_its_time() {
        for accept_time in [false, true] {
            let clock = NodeClock::new(ManualClock::at(5 * HOUR_MS), accept_time);
            assert_eq!(jump(&clock, &[1]), accept_time.then_some(5 * HOUR_MS));
            let is_close = clock.jump(UnixMs::new(5 * HOUR_MS - 1_999), &lead(&[1]));
            assert_eq!(is_close, None, "it drifts the last two seconds");
        }
    }
}
