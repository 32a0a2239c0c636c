//! Which job is next. It takes the time as an argument, and knows neither tasks nor servers.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;

use earmark_core::LimitKey;
use tokio::time::Instant;

use crate::job::Job;

/// So many jobs of a lane are looked at to find one that is not known to be in vain.
const LOOKAHEAD: usize = 256;
/// More blocked limits than that are looked through for those that are free again.
const BLOCKED_USUAL: usize = 1_024;

/// How urgent a job is among those of its lane. While all kinds wait, 9 of 13 are high, 3 normal and 1 low, so that
/// none waits for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// People wait for it.
    High,
    /// As it comes.
    #[default]
    Normal,
    /// Whenever there is room.
    Low,
}

const LEVELS: usize = 3;
/// Whose turn it is.
const TURNS: [usize; 13] = [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 2];

impl Priority {
    const fn level(self) -> usize {
        match self {
            Priority::High => 0,
            Priority::Normal => 1,
            Priority::Low => 2,
        }
    }
}

/// What waits.
pub(super) trait Waits {
    fn job(&self) -> &Job;

    /// Nobody wants it any more.
    fn is_over(&self, now: Instant) -> bool;
}

/// How much of a lane is at work.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneBounds {
    pub(super) attempts_max: usize,
    pub(super) running_max: usize,
}

/// One that is next.
pub(super) struct Next<T> {
    pub(super) lane: LaneId,
    pub(super) item: Queued<T>,
    /// It was the turn of its level.
    has_turn: bool,
}

/// What waits, and where it belongs among the others.
pub(super) struct Queued<T> {
    pub(super) what: T,
    pub(super) priority: Priority,
    order: u64,
}

/// What came of looking for the next.
pub(super) enum Pick<T> {
    /// This one is to be tried.
    Try(Next<T>),
    /// Nobody wants this one any more.
    Over(T),
    /// Nothing can be tried now.
    Nothing,
}

/// A lane, by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LaneId(usize);

struct Lane<T> {
    name: Arc<str>,
    levels: [VecDeque<Queued<T>>; LEVELS],
    turn: usize,
    /// The least urgent level whose turn was spent on a denial. It comes first until it has had it, or a job that needs
    /// much would find the room taken by those that need little, at every turn.
    owed: Option<usize>,
    attempts: usize,
    /// How many attempts there may be: few after a denial, more with each that is admitted.
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

    /// The levels in the order in which they are looked at: the one whose turn it is, then the most urgent.
    fn order(&self) -> [usize; LEVELS] {
        match self.owed.unwrap_or(TURNS[self.turn % TURNS.len()]) {
            0 => [0, 1, 2],
            1 => [1, 0, 2],
            _ => [2, 0, 1],
        }
    }
}

impl<T> Lane<T> {
    /// One of a level is tried next; says whether it was its turn.
    fn takes_turn(&mut self, level: usize) -> bool {
        let has_turn = self.order()[0] == level;
        match self.owed {
            Some(owed) if owed == level => self.owed = None,
            Some(owed) => {
                if self.levels[owed].is_empty() {
                    self.owed = None;
                }
                self.turn = (self.turn + 1) % TURNS.len();
            }
            None => self.turn = (self.turn + 1) % TURNS.len(),
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
    /// Those that may have something to try, in the order of their turns.
    ready: VecDeque<usize>,
    asleep: BinaryHeap<Reverse<(Instant, usize)>>,
    /// Limits that were in the way, and until when it is in vain to ask for them.
    blocked: HashMap<LimitKey, Instant>,
    /// Lanes that sleep because of a limit.
    sleepers: HashMap<LimitKey, Sleepers>,
    queued: usize,
    order: u64,
}

/// Lanes that sleep because of one limit, and the last that was woken.
#[derive(Default)]
struct Sleepers {
    places: BTreeSet<usize>,
    last: usize,
}

impl Sleepers {
    /// The one whose turn it is.
    fn pop(&mut self) -> Option<usize> {
        let next = self.places.range(self.last.saturating_add(1)..).next().or_else(|| self.places.first());
        let place = *next?;
        self.places.remove(&place);
        self.last = place;
        Some(place)
    }
}

impl<T: Waits> Lanes<T> {
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

    /// How many wait.
    pub(super) const fn queued(&self) -> usize {
        self.queued
    }

    /// How many of a lane wait.
    pub(super) fn queued_in(&self, name: &Arc<str>) -> usize {
        let lane = self.names.get(name).and_then(|place| self.lanes.get(*place)?.as_ref());
        lane.map_or(0, Lane::queued)
    }

    pub(super) fn push(&mut self, now: Instant, name: &Arc<str>, priority: Priority, what: T) {
        let place = self.place(name);
        let is_blocked = self.blocked_by(what.job(), now).is_some();
        let order = self.order;
        self.order += 1;
        self.queued += 1;
        let Some(lane) = self.lanes.get_mut(place).and_then(Option::as_mut) else { return };
        lane.levels[priority.level()].push_back(Queued { what, priority, order });
        // A lane that sleeps is woken only by something that would be looked at, and is not in vain.
        let is_seen = lane.levels[priority.level()].len() <= LOOKAHEAD;
        let is_new = lane.asleep_until.is_none() || (!is_blocked && is_seen);
        if is_new {
            lane.asleep_until = None;
            self.make_ready(place);
        }
    }

    fn place(&mut self, name: &Arc<str>) -> usize {
        if let Some(place) = self.names.get(name) {
            return *place;
        }
        let lane = Some(Lane::new(Arc::clone(name)));
        let place = match self.free.pop() {
            Some(place) => {
                self.lanes[place] = lane;
                place
            }
            None => {
                self.lanes.push(lane);
                self.lanes.len() - 1
            }
        };
        self.names.insert(Arc::clone(name), place);
        place
    }

    /// The limit that makes it in vain to try a job for the longest, and until when, if one does.
    fn blocked_by<'a>(&self, job: &'a Job, now: Instant) -> Option<(Instant, &'a LimitKey)> {
        if self.blocked.is_empty() {
            return None;
        }
        let blocked = job.requirements().iter().filter_map(|(key, _)| Some((*self.blocked.get(key)?, key)));
        blocked.max_by_key(|(until, _)| *until).filter(|(until, _)| *until > now)
    }

    fn make_ready(&mut self, place: usize) {
        let bounds = self.bounds;
        let Some(lane) = self.lanes.get_mut(place).and_then(Option::as_mut) else { return };
        let has_room = lane.attempts < lane.window.min(bounds.attempts_max)
            && lane.running.saturating_add(lane.attempts) < bounds.running_max;
        if !lane.is_ready && lane.asleep_until.is_none() && has_room && lane.queued() > 0 {
            lane.is_ready = true;
            self.ready.push_back(place);
        }
    }

    /// What is next, if anything is.
    pub(super) fn next(&mut self, now: Instant) -> Pick<T> {
        self.wake(now);
        while let Some(place) = self.ready.pop_front() {
            if let Some(lane) = self.lanes.get_mut(place).and_then(Option::as_mut) {
                lane.is_ready = false;
            }
            match self.take(place, now) {
                Pick::Nothing => {}
                found => {
                    self.make_ready(place);
                    return found;
                }
            }
        }
        Pick::Nothing
    }

    /// Wakes the lanes whose time has come.
    fn wake(&mut self, now: Instant) {
        while let Some(Reverse((until, place))) = self.asleep.peek().copied() {
            if until > now {
                break;
            }
            self.asleep.pop();
            let lane = self.lanes.get_mut(place).and_then(Option::as_mut);
            // A lane that was woken before, or whose place another one has, sleeps until another time.
            if let Some(lane) = lane
                && lane.asleep_until.is_some_and(|until| until <= now)
            {
                lane.asleep_until = None;
                self.make_ready(place);
            }
        }
    }

    /// The next of a lane. If all that is looked at is in vain, it sleeps.
    fn take(&mut self, place: usize, now: Instant) -> Pick<T> {
        let Some(lane) = self.lanes.get(place).and_then(Option::as_ref) else { return Pick::Nothing };
        let mut earliest: Option<Instant> = None;
        let mut in_the_way: BTreeSet<&LimitKey> = BTreeSet::new();
        let mut found = None;
        'levels: for level in lane.order() {
            for (index, item) in lane.levels[level].iter().take(LOOKAHEAD).enumerate() {
                let is_over = item.what.is_over(now);
                match self.blocked_by(item.what.job(), now) {
                    Some((until, key)) if !is_over => {
                        earliest = Some(earliest.map_or(until, |earliest| earliest.min(until)));
                        in_the_way.insert(key);
                    }
                    _ => {
                        found = Some((level, index, is_over));
                        break 'levels;
                    }
                }
            }
        }
        // Whichever of them is free first, the lane goes on.
        let in_the_way: Vec<LimitKey> =
            if found.is_none() { in_the_way.into_iter().cloned().collect() } else { Vec::new() };
        let Some(lane) = self.lanes.get_mut(place).and_then(Option::as_mut) else { return Pick::Nothing };
        match (found, earliest) {
            (Some((level, index, is_over)), _) => {
                let Some(item) = lane.levels[level].remove(index) else { return Pick::Nothing };
                self.queued -= 1;
                if is_over {
                    self.retire(place);
                    return Pick::Over(item.what);
                }
                let has_turn = lane.takes_turn(level);
                lane.attempts += 1;
                Pick::Try(Next { lane: LaneId(place), item, has_turn })
            }
            (None, Some(until)) => {
                lane.asleep_until = Some(until);
                for key in in_the_way {
                    self.sleepers.entry(key).or_default().places.insert(place);
                }
                self.asleep.push(Reverse((until, place)));
                Pick::Nothing
            }
            (None, None) => {
                self.retire(place);
                Pick::Nothing
            }
        }
    }

    /// Forgets a lane that has nothing.
    fn retire(&mut self, place: usize) {
        let Some(Some(lane)) = self.lanes.get(place) else { return };
        if lane.is_unused() && !lane.is_ready {
            self.names.remove(&lane.name);
            self.lanes[place] = None;
            self.free.push(place);
        }
    }

    fn attempted(&mut self, LaneId(place): LaneId, change: impl FnOnce(&mut Lane<T>)) {
        if let Some(lane) = self.lanes.get_mut(place).and_then(Option::as_mut) {
            lane.attempts = lane.attempts.saturating_sub(1);
            change(lane);
        }
        self.make_ready(place);
        self.retire(place);
    }

    /// An attempt was admitted, and runs. Where there was room there may be more, so one lane that sleeps for want of it
    /// tries again too.
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

    /// What ran has ended, and has given back what it held: whatever is in the way may be gone, sooner than the hints
    /// said. So one lane for each of its limits tries again.
    pub(super) fn ended(&mut self, LaneId(place): LaneId, job: &Job) {
        if let Some(lane) = self.lanes.get_mut(place).and_then(Option::as_mut) {
            lane.running = lane.running.saturating_sub(1);
        }
        for (key, _) in job.requirements() {
            self.blocked.remove(key);
            self.wake_one(key);
        }
        self.make_ready(place);
        self.retire(place);
    }

    fn wake_one(&mut self, key: &LimitKey) {
        let Some(sleepers) = self.sleepers.get_mut(key) else { return };
        while let Some(place) = sleepers.pop() {
            if let Some(lane) = self.lanes.get_mut(place).and_then(Option::as_mut)
                && lane.asleep_until.take().is_some()
            {
                return self.make_ready(place);
            }
        }
        self.sleepers.remove(key);
    }

    /// An attempt came to an end that is none of the lane's business.
    pub(super) fn settled(&mut self, lane: LaneId) {
        self.attempted(lane, |_| ());
    }

    /// An attempt was denied: it goes back to where it was, and what was in the way is left alone until then.
    pub(super) fn denied(&mut self, now: Instant, next: Next<T>, limited_by: &[LimitKey], until: Instant) {
        let Next { lane: LaneId(place), item, has_turn } = next;
        if self.blocked.len() >= BLOCKED_USUAL {
            self.blocked.retain(|_, until| *until > now);
        }
        for key in limited_by {
            let known = self.blocked.entry(key.clone()).or_insert(until);
            *known = (*known).max(until);
        }
        self.queued += 1;
        let Some(lane) = self.lanes.get_mut(place).and_then(Option::as_mut) else { return };
        if has_turn {
            lane.owed = lane.owed.max(Some(item.priority.level()));
        }
        let level = &mut lane.levels[item.priority.level()];
        // Those that were denied before it, and came later, stand in front.
        let behind = level.iter().take_while(|other| other.order < item.order).count();
        level.insert(behind, item);
        if limited_by.is_empty() {
            lane.asleep_until = Some(until);
            self.asleep.push(Reverse((until, place)));
        }
        self.attempted(LaneId(place), |lane| lane.window = 1);
    }

    /// When something may be tried that cannot be now.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        self.asleep.peek().map(|Reverse((until, _))| *until)
    }

    /// Takes out what nobody wants any more, or everything.
    pub(super) fn sweep(&mut self, mut is_wanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut swept = Vec::new();
        for place in 0..self.lanes.len() {
            if let Some(lane) = &mut self.lanes[place] {
                for level in &mut lane.levels {
                    let (wanted, others): (VecDeque<_>, VecDeque<_>) =
                        std::mem::take(level).into_iter().partition(|item| is_wanted(&item.what));
                    *level = wanted;
                    swept.extend(others.into_iter().map(|item| item.what));
                }
            }
            self.retire(place);
        }
        self.queued -= swept.len();
        swept
    }
}

#[cfg(test)]
mod tests;
