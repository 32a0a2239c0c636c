use std::time::Duration;

use super::*;

/// What waits here: a number, and whether nobody wants it.
struct Ball {
    number: u32,
    job: Job,
    is_over: bool,
}

impl Waits for Ball {
    fn job(&self) -> &Job {
        &self.job
    }

    fn is_over(&self, _: Instant) -> bool {
        self.is_over
    }
}

fn key(text: &str) -> LimitKey {
    text.parse().unwrap()
}

struct Desk {
    lanes: Lanes<Ball>,
    now: Instant,
}

impl Desk {
    fn new() -> Desk {
        let bounds = LaneBounds { attempts_max: 4, running_max: 100 };
        Desk { lanes: Lanes::new(bounds), now: Instant::now() }
    }

    fn push(&mut self, lane: &str, priority: Priority, number: u32) {
        self.push_needing(lane, priority, number, &[lane]);
    }

    fn push_needing(&mut self, lane: &str, priority: Priority, number: u32, keys: &[&str]) {
        let job = Job::new(keys.iter().map(|name| (key(name), 1))).unwrap();
        self.lanes.push(self.now, &lane.into(), priority, Ball { number, job, is_over: false });
    }

    fn next(&mut self) -> Option<Next<Ball>> {
        match self.lanes.next(self.now) {
            Pick::Try(next) => Some(next),
            Pick::Over(ball) => panic!("{} is over", ball.number),
            Pick::Nothing => None,
        }
    }

    /// Admits the next, which ends at once.
    fn admit(&mut self) -> Option<u32> {
        let next = self.next()?;
        self.lanes.admitted(next.lane, &next.item.what.job);
        self.lanes.ended(next.lane, &next.item.what.job);
        Some(next.item.what.number)
    }

    fn deny(&mut self, next: Next<Ball>, limited_by: &[&str], ms: u64) {
        let keys: Vec<LimitKey> = limited_by.iter().map(|name| key(name)).collect();
        self.lanes.denied(self.now, next, &keys, self.now + Duration::from_millis(ms));
    }

    fn advance(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
    }
}

#[test]
fn lanes_take_turns_however_long_they_are() {
    let mut desk = Desk::new();
    (0..100).for_each(|number| desk.push("a", Priority::Normal, number));
    (100..103).for_each(|number| desk.push("b", Priority::Normal, number));
    let order: Vec<u32> = (0..7).filter_map(|_| desk.admit()).collect();
    assert_eq!(order, [0, 100, 1, 101, 2, 102, 3]);
}

#[test]
fn an_exhausted_lane_is_left_alone_and_the_others_go_on() {
    let mut desk = Desk::new();
    desk.push("a", Priority::Normal, 1);
    desk.push("a", Priority::Normal, 2);
    let first = desk.next().unwrap();
    desk.deny(first, &["a"], 50);
    desk.push("b", Priority::Normal, 10);
    assert_eq!(desk.admit(), Some(10));
    assert!(desk.next().is_none());
    assert_eq!(desk.lanes.wake_at(), Some(desk.now + Duration::from_millis(50)));
    desk.push("a", Priority::High, 3);
    assert!(desk.next().is_none(), "what is pushed behind it is in vain too");
    desk.advance(50);
    assert_eq!([desk.admit(), desk.admit(), desk.admit()], [Some(3), Some(1), Some(2)]);
}

#[test]
fn a_denied_task_goes_back_to_its_place() {
    let mut desk = Desk::new();
    (1..=5).for_each(|number| desk.push("a", Priority::Normal, number));
    assert_eq!(desk.admit(), Some(1));
    let second = desk.next().unwrap();
    let third = desk.next().unwrap();
    desk.deny(third, &["a"], 10);
    desk.deny(second, &["a"], 10);
    desk.advance(10);
    let order: Vec<u32> = (0..4).filter_map(|_| desk.admit()).collect();
    assert_eq!(order, [2, 3, 4, 5]);
}

#[test]
fn a_tenant_that_has_run_out_does_not_hold_up_the_others_of_its_lane() {
    let mut desk = Desk::new();
    desk.push_needing("a", Priority::Normal, 1, &["a", "acme"]);
    let first = desk.next().unwrap();
    desk.deny(first, &["acme"], 1_000);
    desk.push_needing("a", Priority::Normal, 2, &["a", "acme"]);
    desk.push_needing("a", Priority::Normal, 3, &["a", "bob"]);
    assert_eq!(desk.admit(), Some(3));
    assert!(desk.next().is_none());
    desk.advance(1_000);
    assert_eq!([desk.admit(), desk.admit()], [Some(1), Some(2)]);
}

#[test]
fn after_a_denial_one_is_tried_and_with_each_success_more() {
    let mut desk = Desk::new();
    (0..100).for_each(|number| desk.push("a", Priority::Normal, number));
    let first = desk.next().unwrap();
    desk.deny(first, &["a"], 10);
    desk.advance(10);
    for at_once in [1, 2, 4, 4] {
        let tried: Vec<Next<Ball>> = std::iter::from_fn(|| desk.next()).collect();
        assert_eq!(tried.len(), at_once);
        for next in tried {
            desk.lanes.admitted(next.lane, &next.item.what.job);
            desk.lanes.ended(next.lane, &next.item.what.job);
        }
    }
}

#[test]
fn what_ends_lets_one_of_those_that_wait_for_its_limits_try_at_once() {
    let mut desk = Desk::new();
    for (number, lane) in (0..).zip(["a", "b", "c"]) {
        desk.push_needing(lane, Priority::Normal, number, &["shared"]);
        desk.push_needing(lane, Priority::Normal, 10 + number, &["shared"]);
    }
    let first = desk.next().unwrap();
    desk.lanes.admitted(first.lane, &first.item.what.job);
    for _ in 0..3 {
        let next = desk.next();
        // The block of the first denial keeps the others from trying at all.
        let Some(next) = next else { break };
        desk.deny(next, &["shared"], 5_000);
    }
    assert!(desk.next().is_none());
    let job = first.item.what.job.clone();
    let mut order = Vec::new();
    let mut lane = first.lane;
    for _ in 0..5 {
        desk.lanes.ended(lane, &job);
        let next = desk.next().expect("one lane tries again");
        order.push(next.item.what.number);
        lane = next.lane;
        desk.lanes.admitted(lane, &job);
        while let Some(denied) = desk.next() {
            desk.deny(denied, &["shared"], 5_000);
        }
        assert!(desk.next().is_none(), "the others wait");
    }
    order.sort_unstable();
    assert_eq!(order, [1, 2, 10, 11, 12]);
}

#[test]
fn no_priority_starves_and_the_more_urgent_comes_more_often() {
    let mut desk = Desk::new();
    for number in 0..1_000 {
        desk.push("a", Priority::High, number);
        desk.push("a", Priority::Normal, 1_000 + number);
        desk.push("a", Priority::Low, 2_000 + number);
    }
    let order: Vec<u32> = (0..130).filter_map(|_| desk.admit()).collect();
    let count = |from: u32| order.iter().filter(|number| (from..from + 1_000).contains(number)).count();
    assert_eq!((count(0), count(1_000), count(2_000)), (90, 30, 10));
    // Within a level they stay in order, and each 13 have one of the lowest.
    for thirteen in order.chunks(13) {
        assert_eq!(thirteen.iter().filter(|number| **number >= 2_000).count(), 1);
    }
}

#[test]
fn a_level_that_is_alone_has_all_turns() {
    let mut desk = Desk::new();
    (0..20).for_each(|number| desk.push("a", Priority::Low, number));
    let order: Vec<u32> = std::iter::from_fn(|| desk.admit()).collect();
    assert_eq!(order, (0..20).collect::<Vec<u32>>());
}

#[test]
fn a_lane_has_so_many_at_work_at_most() {
    let mut desk = Desk::new();
    desk.lanes.bounds = LaneBounds { attempts_max: 2, running_max: 3 };
    (0..10).for_each(|number| desk.push("a", Priority::Normal, number));
    let mut running = 0;
    while let Some(next) = desk.next() {
        desk.lanes.admitted(next.lane, &next.item.what.job);
        running += 1;
    }
    assert_eq!(running, 3);
    desk.push("b", Priority::Normal, 10);
    assert_eq!(desk.admit(), Some(10));
}

#[test]
fn what_is_over_is_handed_out_as_such_even_while_its_limits_are_blocked() {
    let mut desk = Desk::new();
    desk.push("a", Priority::Normal, 1);
    desk.push("a", Priority::Normal, 2);
    let first = desk.next().unwrap();
    let job = first.item.what.job.clone();
    desk.deny(first, &["a"], 1_000);
    desk.lanes.push(desk.now, &"b".into(), Priority::Normal, Ball { number: 3, job, is_over: true });
    let Pick::Over(ball) = desk.lanes.next(desk.now) else { panic!("it is over") };
    assert_eq!((ball.number, desk.lanes.queued()), (3, 2));
}

#[test]
fn lanes_that_have_nothing_are_forgotten() {
    let mut desk = Desk::new();
    for number in 0..10_000 {
        desk.push(&format!("lane{number}"), Priority::Normal, number);
        assert_eq!(desk.admit(), Some(number));
        assert!(desk.next().is_none());
    }
    assert!(desk.lanes.names.len() <= 1, "{} lanes", desk.lanes.names.len());
    assert!(desk.lanes.lanes.len() <= 2, "{} places", desk.lanes.lanes.len());
}

#[test]
fn blocked_limits_are_forgotten_once_they_are_free() {
    let mut desk = Desk::new();
    for number in 0..5_000_u32 {
        let name = format!("lane{number}");
        desk.push(&name, Priority::Normal, number);
        let next = desk.next().unwrap();
        desk.deny(next, &[&name], 1);
        desk.advance(2);
        assert_eq!(desk.admit(), Some(number));
    }
    assert!(desk.lanes.blocked.len() <= BLOCKED_USUAL, "{}", desk.lanes.blocked.len());
}

#[test]
fn a_sweep_takes_out_what_is_not_wanted_and_nothing_else() {
    let mut desk = Desk::new();
    (0..100).for_each(|number| desk.push(&format!("l{}", number % 3), Priority::Normal, number));
    let swept = desk.lanes.sweep(|ball| ball.number % 2 == 0);
    assert_eq!((swept.len(), desk.lanes.queued()), (50, 50));
    let mut left: Vec<u32> = std::iter::from_fn(|| desk.admit()).collect();
    left.sort_unstable();
    assert_eq!(left, (0..100).step_by(2).collect::<Vec<u32>>());
}

/// A lane slept for the limit that was to be free first, and only that one could wake it: when another was free sooner
/// than its hint said, the job behind it waited all the same.
#[test]
fn a_lane_is_woken_by_any_of_the_limits_that_it_sleeps_for() {
    let mut desk = Desk::new();
    desk.push_needing("other", Priority::Normal, 0, &["late"]);
    let runs = desk.next().unwrap();
    desk.lanes.admitted(runs.lane, &runs.item.what.job);
    for (number, name, ms) in [(1, "soon", 1_000), (2, "late", 2_000)] {
        desk.push_needing("a", Priority::Normal, number, &[name]);
        let next = desk.next().unwrap();
        desk.deny(next, &[name], ms);
    }
    assert!(desk.next().is_none());
    desk.lanes.ended(runs.lane, &runs.item.what.job);
    assert_eq!(desk.next().map(|next| next.item.what.number), Some(2));
}

/// Whether a new job would be looked at was judged by all levels of its lane together, although each is looked at by
/// itself: an urgent job behind many that were blocked did not wake its lane.
#[test]
fn an_urgent_job_wakes_a_lane_with_many_that_are_blocked() {
    let mut desk = Desk::new();
    desk.push("a", Priority::Low, 0);
    let first = desk.next().unwrap();
    desk.deny(first, &["a"], 1_000);
    (1..=u32::try_from(LOOKAHEAD).unwrap()).for_each(|number| desk.push("a", Priority::Low, number));
    assert!(desk.next().is_none());
    desk.push_needing("a", Priority::High, 1_000, &["free"]);
    assert_eq!(desk.admit(), Some(1_000));
}

/// A job that needs four of four slots had its turn while three were taken. It was denied, its turn was over, and before
/// the next one those that need a single slot had taken what was free: it never ran.
#[test]
fn a_large_job_of_low_priority_is_admitted_beside_many_small_ones_of_high() {
    let mut desk = Desk::new();
    let large = 10_000;
    desk.push("a", Priority::Low, large);
    (0..1_000).for_each(|number| desk.push("a", Priority::High, number));
    let mut running: VecDeque<Next<Ball>> = VecDeque::new();
    for _ in 0..1_000 {
        while let Some(next) = desk.next() {
            let needs = if next.item.what.number == large { 4 } else { 1 };
            if running.len() + needs <= 4 {
                desk.lanes.admitted(next.lane, &next.item.what.job);
                if next.item.what.number == large {
                    return;
                }
                running.push_back(next);
            } else {
                desk.deny(next, &["a"], 50);
            }
        }
        match running.pop_front() {
            Some(ended) => desk.lanes.ended(ended.lane, &ended.item.what.job),
            None => desk.advance(50),
        }
    }
    panic!("it was never admitted");
}
