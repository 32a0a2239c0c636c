//! The memory and the disk of the nodes during a run, and whether they have a bound.

use std::time::Duration;

use super::nodes::Nodes;

/// Time between two looks at the disk, which read every folder.
const DISK_INTERVAL: Duration = Duration::from_secs(5);
/// Highest memory of one node. The shares of bodies, answers and tables of a tenant add up to less.
const MEMORY_MAX: u64 = 4 << 30;
/// Shortest run in which growth is judged. Before that tables fill up to their quotas.
const JUDGED_MIN: Duration = Duration::from_secs(10 * 60);
/// Growth from the second third of a run to the last one that is no leak, in bytes and as a part of the former.
const SLACK_BYTES: u64 = 128 << 20;
const SLACK_PART: u64 = 4;

/// Memory and disk of the nodes, over time.
#[derive(Default)]
pub(super) struct Usage {
    /// The time, the memory of the largest node, and the size of all folders.
    samples: Vec<(Duration, u64, u64)>,
    disk_at: Option<Duration>,
}

impl Usage {
    /// Looks at the memory, and at the disk if it is time.
    pub(super) fn look(&mut self, at: Duration, nodes: &Nodes) {
        let disk = match self.disk_at {
            Some(last) if at < last + DISK_INTERVAL => self.samples.last().map_or(0, |(_, _, disk)| *disk),
            Some(_) | None => {
                self.disk_at = Some(at);
                nodes.disk()
            }
        };
        self.samples.push((at, nodes.memory(), disk));
    }

    pub(super) fn look_at_disk(&mut self, at: Duration, nodes: &Nodes) {
        self.disk_at = None;
        self.look(at, nodes);
    }

    /// The highest memory of a node so far.
    pub(super) fn memory(&self) -> u64 {
        self.samples.iter().map(|(_, memory, _)| *memory).max().unwrap_or(0)
    }

    /// The last size of all folders.
    pub(super) fn disk(&self) -> u64 {
        self.samples.last().map_or(0, |(_, _, disk)| *disk)
    }

    /// Why memory or disk do not seem to have a bound.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.memory() > MEMORY_MAX {
            problems.push(format!("a node took {} MiB, allowed are {}", self.memory() >> 20, MEMORY_MAX >> 20));
        }
        let end = self.samples.last().map_or(Duration::ZERO, |(at, _, _)| *at);
        if end < JUDGED_MIN {
            return problems;
        }
        type Value = fn(&(Duration, u64, u64)) -> u64;
        let values: [(&str, Value); 2] = [("memory", |sample| sample.1), ("disk", |sample| sample.2)];
        for (what, value) in values {
            let highest = |from: Duration, to: Duration| {
                let between = self.samples.iter().filter(|(at, ..)| (from..=to).contains(at));
                between.map(value).max().unwrap_or(0)
            };
            let (before, last) = (highest(end / 3, end * 2 / 3), highest(end * 2 / 3, end));
            if last > before + before / SLACK_PART + SLACK_BYTES {
                problems.push(format!("{what} grew from {} to {} MiB in the last third", before >> 20, last >> 20));
            }
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(seconds: u64, memory: impl Fn(u64) -> u64) -> Usage {
        let samples = (0..=seconds).map(|at| (Duration::from_secs(at), memory(at) << 20, 1 << 20)).collect();
        Usage { samples, disk_at: None }
    }

    #[test]
    fn steady_growth_is_a_problem_and_a_table_that_fills_up_is_none() {
        assert_eq!(usage(3_600, |second| (second * 2).min(900)).problems(), Vec::<String>::new());
        let problems = usage(3_600, |second| 100 + second / 2).problems();
        assert_eq!(problems, ["memory grew from 1300 to 1900 MiB in the last third"]);
        assert_eq!(usage(60, |second| second * 60).problems(), Vec::<String>::new(), "too short to judge");
        assert_eq!(usage(1, |_| 5_000).problems(), ["a node took 5000 MiB, allowed are 4096"]);
    }
}
