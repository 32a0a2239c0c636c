use std::time::Duration;

use super::*;

/// A numbered task.
struct TestTask {
    number: u32,
    job: Job,
    is_abandoned: bool,
}

impl Queueable for TestTask {
    fn job(&self) -> &Job {
        &self.job
    }

    fn is_abandoned(&self, _: Instant) -> bool {
        self.is_abandoned
    }
}

fn key(text: &str) -> LimitKey {
    text.parse().unwrap()
}

struct Fixture {
    lanes: Lanes<TestTask>,
    now: Instant,
}

impl Fixture {
    fn new() -> Fixture {
        let bounds = LaneBounds { attempts_max: 4, running_max: 100 };
        Fixture { lanes: Lanes::new(bounds), now: Instant::now() }
    }

    fn push(&mut self, lane: &str, priority: Priority, number: u32) {
        self.push_needing(lane, priority, number, &[lane]);
    }

    fn push_needing(&mut self, lane: &str, priority: Priority, number: u32, keys: &[&str]) {
        let job = Job::new(keys.iter().map(|name| (key(name), 1))).unwrap();
        self.lanes.push(self.now, &lane.into(), priority, TestTask { number, job, is_abandoned: false });
    }

    fn next(&mut self) -> Option<Candidate<TestTask>> {
        match self.lanes.next(self.now) {
            Pick::Try(next) => Some(next),
            Pick::Abandoned(task) => panic!("{} is abandoned", task.number),
            Pick::Nothing => None,
        }
    }

    /// Admits the next task, which ends at once.
    fn admit(&mut self) -> Option<u32> {
        let next = self.next()?;
        self.lanes.admitted(next.lane, &next.item.task.job);
        self.lanes.ended(next.lane, &next.item.task.job);
        Some(next.item.task.number)
    }

    fn deny(&mut self, next: Candidate<TestTask>, limited_by: &[&str], ms: u64) {
        let keys: Vec<LimitKey> = limited_by.iter().map(|name| key(name)).collect();
        self.lanes.denied(self.now, next, &keys, self.now + Duration::from_millis(ms));
    }

    fn advance(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
    }
}

#[test]
fn lanes_take_turns_however_long_they_are() {
    let mut fixture = Fixture::new();
    (0..100).for_each(|number| fixture.push("a", Priority::Normal, number));
    (100..103).for_each(|number| fixture.push("b", Priority::Normal, number));
    let order: Vec<u32> = (0..7).filter_map(|_| fixture.admit()).collect();
    assert_eq!(order, [0, 100, 1, 101, 2, 102, 3]);
}

#[test]
fn an_exhausted_lane_is_left_alone_and_the_others_go_on() {
    let mut fixture = Fixture::new();
    fixture.push("a", Priority::Normal, 1);
    fixture.push("a", Priority::Normal, 2);
    let first = fixture.next().unwrap();
    fixture.deny(first, &["a"], 50);
    fixture.push("b", Priority::Normal, 10);
    assert_eq!(fixture.admit(), Some(10));
    assert!(fixture.next().is_none());
    assert_eq!(fixture.lanes.wake_at(), Some(fixture.now + Duration::from_millis(50)));
    fixture.push("a", Priority::High, 3);
    assert!(fixture.next().is_none(), "a later task with the same limit is blocked too");
    fixture.advance(50);
    assert_eq!([fixture.admit(), fixture.admit(), fixture.admit()], [Some(3), Some(1), Some(2)]);
}

#[test]
fn a_denied_task_goes_back_to_its_place() {
    let mut fixture = Fixture::new();
    (1..=5).for_each(|number| fixture.push("a", Priority::Normal, number));
    assert_eq!(fixture.admit(), Some(1));
    let second = fixture.next().unwrap();
    let third = fixture.next().unwrap();
    fixture.deny(third, &["a"], 10);
    fixture.deny(second, &["a"], 10);
    fixture.advance(10);
    let order: Vec<u32> = (0..4).filter_map(|_| fixture.admit()).collect();
    assert_eq!(order, [2, 3, 4, 5]);
}

#[test]
fn a_tenant_that_has_run_out_does_not_hold_up_the_others_of_its_lane() {
    let mut fixture = Fixture::new();
    fixture.push_needing("a", Priority::Normal, 1, &["a", "acme"]);
    let first = fixture.next().unwrap();
    fixture.deny(first, &["acme"], 1_000);
    fixture.push_needing("a", Priority::Normal, 2, &["a", "acme"]);
    fixture.push_needing("a", Priority::Normal, 3, &["a", "bob"]);
    assert_eq!(fixture.admit(), Some(3));
    assert!(fixture.next().is_none());
    fixture.advance(1_000);
    assert_eq!([fixture.admit(), fixture.admit()], [Some(1), Some(2)]);
}

#[test]
fn after_a_denial_one_is_tried_and_with_each_success_more() {
    let mut fixture = Fixture::new();
    (0..100).for_each(|number| fixture.push("a", Priority::Normal, number));
    let first = fixture.next().unwrap();
    fixture.deny(first, &["a"], 10);
    fixture.advance(10);
    for at_once in [1, 2, 4, 4] {
        let tried: Vec<Candidate<TestTask>> = std::iter::from_fn(|| fixture.next()).collect();
        assert_eq!(tried.len(), at_once);
        for next in tried {
            fixture.lanes.admitted(next.lane, &next.item.task.job);
            fixture.lanes.ended(next.lane, &next.item.task.job);
        }
    }
}

#[test]
fn the_end_of_a_task_lets_one_lane_that_waits_for_its_limits_try_at_once() {
    let mut fixture = Fixture::new();
    for (number, lane) in (0..).zip(["a", "b", "c"]) {
        fixture.push_needing(lane, Priority::Normal, number, &["shared"]);
        fixture.push_needing(lane, Priority::Normal, 10 + number, &["shared"]);
    }
    let first = fixture.next().unwrap();
    fixture.lanes.admitted(first.lane, &first.item.task.job);
    for _ in 0..3 {
        let next = fixture.next();
        // The block of the first denial keeps the others from trying at all.
        let Some(next) = next else { break };
        fixture.deny(next, &["shared"], 5_000);
    }
    assert!(fixture.next().is_none());
    let job = first.item.task.job.clone();
    let mut order = Vec::new();
    let mut lane = first.lane;
    for _ in 0..5 {
        fixture.lanes.ended(lane, &job);
        let next = fixture.next().expect("one lane tries again");
        order.push(next.item.task.number);
        lane = next.lane;
        fixture.lanes.admitted(lane, &job);
        while let Some(denied) = fixture.next() {
            fixture.deny(denied, &["shared"], 5_000);
        }
        assert!(fixture.next().is_none(), "the others wait");
    }
    order.sort_unstable();
    assert_eq!(order, [1, 2, 10, 11, 12]);
}

#[test]
fn no_priority_starves_and_the_more_urgent_comes_more_often() {
    let mut fixture = Fixture::new();
    for number in 0..1_000 {
        fixture.push("a", Priority::High, number);
        fixture.push("a", Priority::Normal, 1_000 + number);
        fixture.push("a", Priority::Low, 2_000 + number);
    }
    let order: Vec<u32> = (0..130).filter_map(|_| fixture.admit()).collect();
    let count = |from: u32| order.iter().filter(|number| (from..from + 1_000).contains(number)).count();
    assert_eq!((count(0), count(1_000), count(2_000)), (90, 30, 10));
    // Every 13 tasks include one of the lowest priority.
    for thirteen in order.chunks(13) {
        assert_eq!(thirteen.iter().filter(|number| **number >= 2_000).count(), 1);
    }
}

#[test]
fn a_single_level_has_all_turns() {
    let mut fixture = Fixture::new();
    (0..20).for_each(|number| fixture.push("a", Priority::Low, number));
    let order: Vec<u32> = std::iter::from_fn(|| fixture.admit()).collect();
    assert_eq!(order, (0..20).collect::<Vec<u32>>());
}

#[test]
fn a_lane_has_a_bounded_number_of_running_tasks() {
    let mut fixture = Fixture::new();
    fixture.lanes.bounds = LaneBounds { attempts_max: 2, running_max: 3 };
    (0..10).for_each(|number| fixture.push("a", Priority::Normal, number));
    let mut running = 0;
    while let Some(next) = fixture.next() {
        fixture.lanes.admitted(next.lane, &next.item.task.job);
        running += 1;
    }
    assert_eq!(running, 3);
    fixture.push("b", Priority::Normal, 10);
    assert_eq!(fixture.admit(), Some(10));
}

#[test]
fn an_abandoned_task_is_picked_even_while_its_limits_are_blocked() {
    let mut fixture = Fixture::new();
    fixture.push("a", Priority::Normal, 1);
    fixture.push("a", Priority::Normal, 2);
    let first = fixture.next().unwrap();
    let job = first.item.task.job.clone();
    fixture.deny(first, &["a"], 1_000);
    fixture.lanes.push(fixture.now, &"b".into(), Priority::Normal, TestTask { number: 3, job, is_abandoned: true });
    let Pick::Abandoned(task) = fixture.lanes.next(fixture.now) else { panic!("the task is abandoned") };
    assert_eq!((task.number, fixture.lanes.queued()), (3, 2));
}

#[test]
fn lanes_without_tasks_are_removed() {
    let mut fixture = Fixture::new();
    for number in 0..10_000 {
        fixture.push(&format!("lane{number}"), Priority::Normal, number);
        assert_eq!(fixture.admit(), Some(number));
        assert!(fixture.next().is_none());
    }
    assert!(fixture.lanes.names.len() <= 1, "{} lanes", fixture.lanes.names.len());
    assert!(fixture.lanes.lanes.len() <= 2, "{} slots", fixture.lanes.lanes.len());
}

#[test]
fn blocked_limits_are_removed_once_they_are_free() {
    let mut fixture = Fixture::new();
    for number in 0..5_000_u32 {
        let name = format!("lane{number}");
        fixture.push(&name, Priority::Normal, number);
        let next = fixture.next().unwrap();
        fixture.deny(next, &[&name], 1);
        fixture.advance(2);
        assert_eq!(fixture.admit(), Some(number));
    }
    assert!(fixture.lanes.blocked.len() <= BLOCKED_USUAL, "{}", fixture.lanes.blocked.len());
}

#[test]
fn a_sweep_removes_unwanted_tasks_only() {
    let mut fixture = Fixture::new();
    (0..100).for_each(|number| fixture.push(&format!("l{}", number % 3), Priority::Normal, number));
    let swept = fixture.lanes.sweep(|task| task.number % 2 == 0);
    assert_eq!((swept.len(), fixture.lanes.queued()), (50, 50));
    let mut left: Vec<u32> = std::iter::from_fn(|| fixture.admit()).collect();
    left.sort_unstable();
    assert_eq!(left, (0..100).step_by(2).collect::<Vec<u32>>());
}

/// Only the limit with the earliest hint could wake a sleeping lane. A task behind another limit that was released before
/// its hint kept waiting.
#[test]
fn a_lane_is_woken_by_any_of_the_limits_that_it_sleeps_for() {
    let mut fixture = Fixture::new();
    fixture.push_needing("other", Priority::Normal, 0, &["late"]);
    let runs = fixture.next().unwrap();
    fixture.lanes.admitted(runs.lane, &runs.item.task.job);
    for (number, name, ms) in [(1, "soon", 1_000), (2, "late", 2_000)] {
        fixture.push_needing("a", Priority::Normal, number, &[name]);
        let next = fixture.next().unwrap();
        fixture.deny(next, &[name], ms);
    }
    assert!(fixture.next().is_none());
    fixture.lanes.ended(runs.lane, &runs.item.task.job);
    assert_eq!(fixture.next().map(|next| next.item.task.number), Some(2));
}

/// The lookahead was counted over all levels of a lane together, although each level has its own. An urgent task behind
/// many blocked ones did not wake its lane.
#[test]
fn an_urgent_job_wakes_a_lane_with_many_that_are_blocked() {
    let mut fixture = Fixture::new();
    fixture.push("a", Priority::Low, 0);
    let first = fixture.next().unwrap();
    fixture.deny(first, &["a"], 1_000);
    (1..=u32::try_from(LOOKAHEAD).unwrap()).for_each(|number| fixture.push("a", Priority::Low, number));
    assert!(fixture.next().is_none());
    fixture.push_needing("a", Priority::High, 1_000, &["free"]);
    assert_eq!(fixture.admit(), Some(1_000));
}

/// A task that needs four of four slots was denied at its turn, because three were taken. Before its next turn small tasks
/// had taken the free slots again: it never ran.
#[test]
fn a_large_job_of_low_priority_is_admitted_beside_many_small_ones_of_high() {
    let mut fixture = Fixture::new();
    let large = 10_000;
    fixture.push("a", Priority::Low, large);
    (0..1_000).for_each(|number| fixture.push("a", Priority::High, number));
    let mut running: VecDeque<Candidate<TestTask>> = VecDeque::new();
    for _ in 0..1_000 {
        while let Some(next) = fixture.next() {
            let needs = if next.item.task.number == large { 4 } else { 1 };
            if running.len() + needs <= 4 {
                fixture.lanes.admitted(next.lane, &next.item.task.job);
                if next.item.task.number == large {
                    return;
                }
                running.push_back(next);
            } else {
                fixture.deny(next, &["a"], 50);
            }
        }
        match running.pop_front() {
            Some(ended) => fixture.lanes.ended(ended.lane, &ended.item.task.job),
            None => fixture.advance(50),
        }
    }
    panic!("the large task was never admitted");
}
