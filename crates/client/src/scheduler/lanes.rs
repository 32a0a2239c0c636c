//! The choice of the next task. Time is an argument, and there is no I/O.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;

use earmark_core::LimitKey;
use tokio::time::Instant;

use crate::job::Job;

/// Tasks of one priority that a lane examines to find one whose limits are not blocked. It bounds the cost of a pick.
const LOOKAHEAD: usize = 256;
/// Blocked limits above which expired blocks are removed, so that the map stays small.
const BLOCKED_USUAL: usize = 1_024;

/// The priority of a task in its lane. While all priorities are queued, 9 of 13 tasks are high, 3 normal and 1 low, so that
/// none starves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// For tasks that people wait for.
    High,
    /// The default.
    #[default]
    Normal,
    /// For background work.
    Low,
}

const LEVELS: usize = 3;
/// The priority level of each turn.
const PRIORITY_CYCLE: [usize; 13] = [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 2];

impl Priority {
    const fn level(self) -> usize {
        match self {
            Priority::High => 0,
            Priority::Normal => 1,
            Priority::Low => 2,
        }
    }
}

/// A task that can be queued.
pub(super) trait Queueable {
    fn job(&self) -> &Job;

    /// Whether the task was cancelled or its deadline has passed.
    fn is_abandoned(&self, now: Instant) -> bool;
}

/// The bounds of one lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneBounds {
    pub(super) attempts_max: usize,
    pub(super) running_max: usize,
}

/// A task to try.
pub(super) struct Candidate<T> {
    pub(super) lane: LaneId,
    pub(super) item: Queued<T>,
    /// Whether it was the turn of its priority level.
    has_turn: bool,
}

/// A queued task with its position.
pub(super) struct Queued<T> {
    pub(super) task: T,
    pub(super) priority: Priority,
    order: u64,
}

/// The result of a pick.
pub(super) enum Pick<T> {
    /// A task to try.
    Try(Candidate<T>),
    /// A task that was cancelled or whose deadline has passed.
    Abandoned(T),
    /// No task can be tried now.
    Nothing,
}

/// The slot of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LaneId(usize);

/// The queued tasks of one lane, by priority, and its share of attempts.
struct Lane<T> {
    name: Arc<str>,
    levels: [VecDeque<Queued<T>>; LEVELS],
    turn: usize,
    /// The least urgent level whose turn ended in a denial. It comes first until it is admitted. Otherwise small tasks
    /// would take the room of a large one at every turn.
    owed: Option<usize>,
    attempts: usize,
    /// The allowed concurrent attempts: 1 after a denial, doubled by each admission.
    window: usize,
    running: usize,
    is_ready: bool,
    asleep_until: Option<Instant>,
}

impl<T> Lane<T> {
    fn new(name: Arc<str>) -> Lane<T> {
        Lane {
            name,
            levels: Default::default(),
            turn: 0,
            owed: None,
            attempts: 0,
            window: 1,
            running: 0,
            is_ready: false,
            asleep_until: None,
        }
    }

    fn queued(&self) -> usize {
        self.levels.iter().map(VecDeque::len).sum()
    }

    fn is_unused(&self) -> bool {
        self.attempts == 0 && self.running == 0 && self.queued() == 0
    }

    /// The levels in the order of the search: the one whose turn it is, then the most urgent.
    fn order(&self) -> [usize; LEVELS] {
        match self.owed.unwrap_or(PRIORITY_CYCLE[self.turn % PRIORITY_CYCLE.len()]) {
            0 => [0, 1, 2],
            1 => [1, 0, 2],
            _ => [2, 0, 1],
        }
    }
}

impl<T> Lane<T> {
    /// Uses a turn for a level, and returns whether it was that level's turn.
    fn takes_turn(&mut self, level: usize) -> bool {
        let has_turn = self.order()[0] == level;
        match self.owed {
            Some(owed) if owed == level => self.owed = None,
            Some(owed) => {
                if self.levels[owed].is_empty() {
                    self.owed = None;
                }
                self.turn = (self.turn + 1) % PRIORITY_CYCLE.len();
            }
            None => self.turn = (self.turn + 1) % PRIORITY_CYCLE.len(),
        }
        has_turn
    }
}

/// All lanes.
pub(super) struct Lanes<T> {
    bounds: LaneBounds,
    lanes: Vec<Option<Lane<T>>>,
    names: HashMap<Arc<str>, usize>,
    free: Vec<usize>,
    /// Lanes that may have a task to try, in the order of their turns.
    ready: VecDeque<usize>,
    asleep: BinaryHeap<Reverse<(Instant, usize)>>,
    /// Limits without room, and until when it is useless to try them.
    blocked: HashMap<LimitKey, Instant>,
    /// The lanes that sleep because of a limit.
    sleepers: HashMap<LimitKey, Sleepers>,
    queued: usize,
    order: u64,
}

/// The lanes that sleep because of one limit, and the one that was woken last.
#[derive(Default)]
struct Sleepers {
    slots: BTreeSet<usize>,
    last: usize,
}

impl Sleepers {
    /// The next lane to wake, in turn.
    fn pop(&mut self) -> Option<usize> {
        let next = self.slots.range(self.last.saturating_add(1)..).next().or_else(|| self.slots.first());
        let slot = *next?;
        self.slots.remove(&slot);
        self.last = slot;
        Some(slot)
    }
}

impl<T: Queueable> Lanes<T> {
    pub(super) fn new(bounds: LaneBounds) -> Lanes<T> {
        Lanes {
            bounds,
            lanes: Vec::new(),
            names: HashMap::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            asleep: BinaryHeap::new(),
            blocked: HashMap::new(),
            sleepers: HashMap::new(),
            queued: 0,
            order: 0,
        }
    }

    /// The number of queued tasks.
    pub(super) const fn queued(&self) -> usize {
        self.queued
    }

    /// The number of queued tasks of a lane.
    pub(super) fn queued_in(&self, name: &Arc<str>) -> usize {
        let lane = self.names.get(name).and_then(|slot| self.lanes.get(*slot)?.as_ref());
        lane.map_or(0, Lane::queued)
    }

    pub(super) fn push(&mut self, now: Instant, name: &Arc<str>, priority: Priority, task: T) {
        let slot = self.slot_of(name);
        let is_blocked = self.blocked_by(task.job(), now).is_some();
        let order = self.order;
        self.order += 1;
        self.queued += 1;
        let Some(lane) = self.lanes.get_mut(slot).and_then(Option::as_mut) else { return };
        lane.levels[priority.level()].push_back(Queued { task, priority, order });
        // A new task wakes a sleeping lane only if the search would reach it and its limits are not blocked.
        let is_seen = lane.levels[priority.level()].len() <= LOOKAHEAD;
        let is_new = lane.asleep_until.is_none() || (!is_blocked && is_seen);
        if is_new {
            lane.asleep_until = None;
            self.make_ready(slot);
        }
    }

    fn slot_of(&mut self, name: &Arc<str>) -> usize {
        if let Some(slot) = self.names.get(name) {
            return *slot;
        }
        let lane = Some(Lane::new(Arc::clone(name)));
        let slot = match self.free.pop() {
            Some(slot) => {
                self.lanes[slot] = lane;
                slot
            }
            None => {
                self.lanes.push(lane);
                self.lanes.len() - 1
            }
        };
        self.names.insert(Arc::clone(name), slot);
        slot
    }

    /// The limit of the job that is blocked the longest, and until when.
    fn blocked_by<'a>(&self, job: &'a Job, now: Instant) -> Option<(Instant, &'a LimitKey)> {
        if self.blocked.is_empty() {
            return None;
        }
        let blocked = job.requirements().iter().filter_map(|(key, _)| Some((*self.blocked.get(key)?, key)));
        blocked.max_by_key(|(until, _)| *until).filter(|(until, _)| *until > now)
    }

    fn make_ready(&mut self, slot: usize) {
        let bounds = self.bounds;
        let Some(lane) = self.lanes.get_mut(slot).and_then(Option::as_mut) else { return };
        let has_room = lane.attempts < lane.window.min(bounds.attempts_max)
            && lane.running.saturating_add(lane.attempts) < bounds.running_max;
        if !lane.is_ready && lane.asleep_until.is_none() && has_room && lane.queued() > 0 {
            lane.is_ready = true;
            self.ready.push_back(slot);
        }
    }

    /// Picks the next task.
    pub(super) fn next(&mut self, now: Instant) -> Pick<T> {
        self.wake(now);
        while let Some(slot) = self.ready.pop_front() {
            if let Some(lane) = self.lanes.get_mut(slot).and_then(Option::as_mut) {
                lane.is_ready = false;
            }
            match self.take(slot, now) {
                Pick::Nothing => {}
                found => {
                    self.make_ready(slot);
                    return found;
                }
            }
        }
        Pick::Nothing
    }

    /// Wakes the lanes whose sleep is over.
    fn wake(&mut self, now: Instant) {
        while let Some(Reverse((until, slot))) = self.asleep.peek().copied() {
            if until > now {
                break;
            }
            self.asleep.pop();
            let lane = self.lanes.get_mut(slot).and_then(Option::as_mut);
            // A lane that was woken early, or another one in the same slot, has another wake time.
            if let Some(lane) = lane
                && lane.asleep_until.is_some_and(|until| until <= now)
            {
                lane.asleep_until = None;
                self.make_ready(slot);
            }
        }
    }

    /// Picks the next task of a lane. When all examined tasks are blocked, the lane sleeps.
    fn take(&mut self, slot: usize, now: Instant) -> Pick<T> {
        let Some(lane) = self.lanes.get(slot).and_then(Option::as_ref) else { return Pick::Nothing };
        let mut earliest: Option<Instant> = None;
        let mut in_the_way: BTreeSet<&LimitKey> = BTreeSet::new();
        let mut found = None;
        'levels: for level in lane.order() {
            for (index, item) in lane.levels[level].iter().take(LOOKAHEAD).enumerate() {
                let is_abandoned = item.task.is_abandoned(now);
                match self.blocked_by(item.task.job(), now) {
                    Some((until, key)) if !is_abandoned => {
                        earliest = Some(earliest.map_or(until, |earliest| earliest.min(until)));
                        in_the_way.insert(key);
                    }
                    _ => {
                        found = Some((level, index, is_abandoned));
                        break 'levels;
                    }
                }
            }
        }
        // A release of any of these limits wakes the lane.
        let in_the_way: Vec<LimitKey> =
            if found.is_none() { in_the_way.into_iter().cloned().collect() } else { Vec::new() };
        let Some(lane) = self.lanes.get_mut(slot).and_then(Option::as_mut) else { return Pick::Nothing };
        match (found, earliest) {
            (Some((level, index, is_abandoned)), _) => {
                let Some(item) = lane.levels[level].remove(index) else { return Pick::Nothing };
                self.queued -= 1;
                if is_abandoned {
                    self.retire(slot);
                    return Pick::Abandoned(item.task);
                }
                let has_turn = lane.takes_turn(level);
                lane.attempts += 1;
                Pick::Try(Candidate { lane: LaneId(slot), item, has_turn })
            }
            (None, Some(until)) => {
                lane.asleep_until = Some(until);
                for key in in_the_way {
                    self.sleepers.entry(key).or_default().slots.insert(slot);
                }
                self.asleep.push(Reverse((until, slot)));
                Pick::Nothing
            }
            (None, None) => {
                self.retire(slot);
                Pick::Nothing
            }
        }
    }

    /// Removes a lane without tasks.
    fn retire(&mut self, slot: usize) {
        let Some(Some(lane)) = self.lanes.get(slot) else { return };
        if lane.is_unused() && !lane.is_ready {
            self.names.remove(&lane.name);
            self.lanes[slot] = None;
            self.free.push(slot);
        }
    }

    fn attempted(&mut self, LaneId(slot): LaneId, change: impl FnOnce(&mut Lane<T>)) {
        if let Some(lane) = self.lanes.get_mut(slot).and_then(Option::as_mut) {
            lane.attempts = lane.attempts.saturating_sub(1);
            change(lane);
        }
        self.make_ready(slot);
        self.retire(slot);
    }

    /// An attempt was admitted. Its limits may have more room, so one sleeping lane of each tries again.
    pub(super) fn admitted(&mut self, lane: LaneId, job: &Job) {
        for (key, _) in job.requirements() {
            if !self.blocked.contains_key(key) {
                self.wake_one(key);
            }
        }
        let window_max = self.bounds.attempts_max;
        self.attempted(lane, |lane| {
            lane.running += 1;
            lane.window = lane.window.saturating_mul(2).min(window_max);
        });
    }

    /// A task has ended and freed its limits, perhaps before their hints. One sleeping lane of each limit tries again.
    pub(super) fn ended(&mut self, LaneId(slot): LaneId, job: &Job) {
        if let Some(lane) = self.lanes.get_mut(slot).and_then(Option::as_mut) {
            lane.running = lane.running.saturating_sub(1);
        }
        for (key, _) in job.requirements() {
            self.blocked.remove(key);
            self.wake_one(key);
        }
        self.make_ready(slot);
        self.retire(slot);
    }

    fn wake_one(&mut self, key: &LimitKey) {
        let Some(sleepers) = self.sleepers.get_mut(key) else { return };
        while let Some(slot) = sleepers.pop() {
            if let Some(lane) = self.lanes.get_mut(slot).and_then(Option::as_mut)
                && lane.asleep_until.take().is_some()
            {
                return self.make_ready(slot);
            }
        }
        self.sleepers.remove(key);
    }

    /// An attempt ended without an admission or a denial.
    pub(super) fn settled(&mut self, lane: LaneId) {
        self.attempted(lane, |_| ());
    }

    /// An attempt was denied: the task returns to its position, and its limits are blocked until `until`.
    pub(super) fn denied(&mut self, now: Instant, next: Candidate<T>, limited_by: &[LimitKey], until: Instant) {
        let Candidate { lane: LaneId(slot), item, has_turn } = next;
        if self.blocked.len() >= BLOCKED_USUAL {
            self.blocked.retain(|_, until| *until > now);
        }
        for key in limited_by {
            let known = self.blocked.entry(key.clone()).or_insert(until);
            *known = (*known).max(until);
        }
        self.queued += 1;
        let Some(lane) = self.lanes.get_mut(slot).and_then(Option::as_mut) else { return };
        if has_turn {
            lane.owed = lane.owed.max(Some(item.priority.level()));
        }
        let level = &mut lane.levels[item.priority.level()];
        // Other denied tasks may already be back in the queue.
        let behind = level.iter().take_while(|other| other.order < item.order).count();
        level.insert(behind, item);
        if limited_by.is_empty() {
            lane.asleep_until = Some(until);
            self.asleep.push(Reverse((until, slot)));
        }
        self.attempted(LaneId(slot), |lane| lane.window = 1);
    }

    /// The earliest wake time of a sleeping lane.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        self.asleep.peek().map(|Reverse((until, _))| *until)
    }

    /// Removes the tasks that are not wanted.
    pub(super) fn sweep(&mut self, mut is_wanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut swept = Vec::new();
        for slot in 0..self.lanes.len() {
            if let Some(lane) = &mut self.lanes[slot] {
                for level in &mut lane.levels {
                    let (wanted, others): (VecDeque<_>, VecDeque<_>) =
                        std::mem::take(level).into_iter().partition(|item| is_wanted(&item.task));
                    *level = wanted;
                    swept.extend(others.into_iter().map(|item| item.task));
                }
            }
            self.retire(slot);
        }
        self.queued -= swept.len();
        swept
    }
}

#[cfg(test)]
mod tests;
