//! The last hour of the reserves that this node served, at steps of ten seconds: outcomes and latency, by namespace and in
//! total.
//!
//! Requests count into the step of their thread's shard. A shard is added to the series when its step is over, and before
//! a read. A step without reserves takes no memory.

mod step;

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use earmark_core::NamespaceName;

pub(crate) use step::{ChartPoint, Decided};

use crate::top::{SHARDS, lock, shard};
use step::Step;

/// Length of a step, in milliseconds.
pub(crate) const STEP_MS: u64 = 10_000;
/// Steps of a series: one hour.
pub(crate) const STEPS_MAX: usize = 360;
/// Namespaces with a series, at most about 90 kB each. Beyond this the one that was counted longest ago begins anew.
const NAMESPACES_MAX: usize = 64;
/// Namespaces in a shard. Then it is added to the series.
const SHARD_NAMESPACES_MAX: usize = 16;

/// The reserves of one thread in one step.
#[derive(Default)]
struct Shard {
    step: u64,
    counts: Vec<(NamespaceName, Step)>,
}

/// Steps in order of time, each with its number. Those without reserves are left out.
#[derive(Default)]
struct Series(VecDeque<(u64, Step)>);

#[derive(Default)]
struct AllSeries {
    node: Series,
    namespaces: HashMap<NamespaceName, Series>,
}

/// Whose reserves to show.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ChartOf<'a> {
    Namespace(&'a NamespaceName),
    /// All reserves of this node.
    Node,
}

/// The charts of a server.
pub(crate) struct Charts {
    started: Instant,
    /// Wall time of the start. A step begins at a multiple of its length by this clock, which never goes back.
    started_unix_ms: u64,
    shards: [Mutex<Shard>; SHARDS],
    series: Mutex<AllSeries>,
}

impl Charts {
    pub(crate) fn new() -> Charts {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Charts {
            started: Instant::now(),
            started_unix_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            shards: Default::default(),
            series: Mutex::default(),
        }
    }

    /// The number of the current step.
    pub(crate) fn current_step(&self) -> u64 {
        let elapsed = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.started_unix_ms.saturating_add(elapsed) / STEP_MS
    }

    /// Counts a reserve.
    pub(crate) fn count(&self, namespace: &NamespaceName, decided: Decided, took: Duration) {
        self.count_at(self.current_step(), namespace, decided, took);
    }

    fn count_at(&self, step: u64, namespace: &NamespaceName, decided: Decided, took: Duration) {
        let Some(shard) = self.shards.get(shard()) else { return };
        let mut shard = lock(shard);
        let over = (shard.step != step).then(|| std::mem::take(&mut shard.counts));
        let over = over.map(|counts| (std::mem::replace(&mut shard.step, step), counts));
        match shard.counts.iter_mut().find(|(name, _)| name == namespace) {
            Some((_, counts)) => counts.count(decided, took),
            None => {
                let mut counts = Step::default();
                counts.count(decided, took);
                shard.counts.push((namespace.clone(), counts));
            }
        }
        let is_full = shard.counts.len() >= SHARD_NAMESPACES_MAX;
        let full = is_full.then(|| (step, std::mem::take(&mut shard.counts)));
        drop(shard);
        for (step, counts) in [over, full].into_iter().flatten() {
            self.add(step, counts);
        }
    }

    fn add(&self, step: u64, counts: Vec<(NamespaceName, Step)>) {
        if counts.is_empty() {
            return;
        }
        let mut all = lock(&self.series);
        for (namespace, counts) in counts {
            all.node.add(step, &counts);
            all.of(namespace).add(step, &counts);
        }
    }

    /// The steps of the last hour that have reserves, oldest first, the current one included.
    pub(crate) fn points(&self, of: ChartOf<'_>) -> Vec<ChartPoint> {
        self.points_at(self.current_step(), of)
    }

    fn points_at(&self, now: u64, of: ChartOf<'_>) -> Vec<ChartPoint> {
        self.read(of, |series| {
            let since = now.saturating_sub(STEPS_MAX as u64 - 1);
            let recent = series.0.iter().filter(|(number, _)| (since..=now).contains(number));
            recent.map(|(number, step)| step.point(number.saturating_mul(STEP_MS))).collect()
        })
    }

    /// One step, which may have no reserves.
    pub(crate) fn point(&self, of: ChartOf<'_>, number: u64) -> ChartPoint {
        self.read(of, |series| {
            let found = series.0.iter().rev().find(|(found, _)| *found == number);
            let at_unix_ms = number.saturating_mul(STEP_MS);
            found.map_or_else(|| Step::default().point(at_unix_ms), |(_, step)| step.point(at_unix_ms))
        })
    }

    /// Adds all shards to the series, and reads one.
    fn read<T>(&self, of: ChartOf<'_>, read: impl FnOnce(&Series) -> T) -> T {
        for shard in &self.shards {
            let (step, counts) = {
                let mut shard = lock(shard);
                (shard.step, std::mem::take(&mut shard.counts))
            };
            self.add(step, counts);
        }
        let all = lock(&self.series);
        match of {
            ChartOf::Node => read(&all.node),
            ChartOf::Namespace(namespace) => match all.namespaces.get(namespace) {
                Some(series) => read(series),
                None => read(&Series::default()),
            },
        }
    }
}

impl AllSeries {
    /// The series of a namespace. Beyond the bound the one that was counted longest ago makes room.
    fn of(&mut self, namespace: NamespaceName) -> &mut Series {
        if self.namespaces.len() >= NAMESPACES_MAX && !self.namespaces.contains_key(&namespace) {
            let oldest = self.namespaces.iter().min_by_key(|(_, series)| series.last());
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                self.namespaces.remove(&oldest);
            }
        }
        self.namespaces.entry(namespace).or_default()
    }
}

impl Series {
    fn last(&self) -> u64 {
        self.0.back().map_or(0, |(number, _)| *number)
    }

    /// Adds the counts of a shard. Shards of other threads may be later than this one.
    fn add(&mut self, number: u64, counts: &Step) {
        let place = self.0.partition_point(|(found, _)| *found < number);
        match self.0.get_mut(place) {
            Some((found, step)) if *found == number => step.add(counts),
            Some(_) | None => {
                let mut step = Step::default();
                step.add(counts);
                self.0.insert(place, (number, step));
            }
        }
        while self.0.len() > STEPS_MAX {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(text: &str) -> NamespaceName {
        NamespaceName::new(text).unwrap()
    }

    #[test]
    fn a_step_has_its_outcomes_and_the_latency_of_its_reserves() {
        let (charts, team) = (Charts::new(), space("team"));
        for millis in 1..=99 {
            charts.count_at(7, &team, Decided::Allowed, Duration::from_millis(millis));
        }
        charts.count_at(7, &team, Decided::Denied, Duration::from_secs(2));
        charts.count_at(8, &team, Decided::Refused, Duration::ZERO);
        charts.count_at(8, &space("other"), Decided::Failed, Duration::from_micros(3));
        let points = charts.points_at(8, ChartOf::Namespace(&team));
        let [seven, eight] = points.as_slice() else { panic!("{points:?}") };
        assert_eq!((seven.at_unix_ms, seven.allowed, seven.denied, seven.refused, seven.failed), (70_000, 99, 1, 0, 0));
        // A quantile is the end of its bucket, which is at most half as long again.
        let (half, most) = (seven.p50_us.unwrap(), seven.p99_us.unwrap());
        assert!((50_000..75_000).contains(&half), "{half}");
        assert!((99_000..150_000).contains(&most), "{most}");
        assert_eq!((eight.allowed, eight.refused, eight.failed), (0, 1, 0));
        let node = charts.points_at(8, ChartOf::Node);
        assert_eq!((node[1].refused, node[1].failed), (1, 1));
        assert!(charts.points_at(8, ChartOf::Namespace(&space("none"))).is_empty());
        assert_eq!(charts.point(ChartOf::Node, 9).p99_us, None);
    }

    #[test]
    fn an_hour_is_kept_and_shown() {
        let (charts, team) = (Charts::new(), space("team"));
        for step in 1..=2 * STEPS_MAX as u64 {
            charts.count_at(step, &team, Decided::Allowed, Duration::ZERO);
        }
        assert_eq!(charts.points_at(720, ChartOf::Node).len(), STEPS_MAX);
        assert_eq!(lock(&charts.series).node.0.len(), STEPS_MAX);
        assert_eq!(charts.points_at(730, ChartOf::Node).first().unwrap().at_unix_ms, 371 * STEP_MS);
        assert!(charts.points_at(2_000, ChartOf::Node).is_empty());
    }

    #[test]
    fn namespaces_are_bounded_and_the_one_counted_longest_ago_makes_room() {
        let charts = Charts::new();
        for number in 0..=NAMESPACES_MAX as u64 {
            charts.count_at(number, &space(&format!("n{number}")), Decided::Allowed, Duration::ZERO);
        }
        let has = |name: &str| !charts.points_at(64, ChartOf::Namespace(&space(name))).is_empty();
        assert!(has("n1") && has("n64") && !has("n0"));
        assert_eq!(lock(&charts.series).namespaces.len(), NAMESPACES_MAX);
    }

    #[test]
    fn every_thread_is_counted_in_its_step() {
        let (charts, team) = (Charts::new(), space("team"));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                let count = |step| charts.count_at(step, &team, Decided::Allowed, Duration::ZERO);
                scope.spawn(move || (0..1_000).for_each(|number| count(number / 500)));
            }
        });
        let allowed: Vec<u64> = charts.points_at(1, ChartOf::Node).iter().map(|point| point.allowed).collect();
        assert_eq!(allowed, [4_000, 4_000]);
    }
}
