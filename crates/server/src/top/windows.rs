//! Sketches of one namespace over sliding windows, as panes of fixed length.

use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};

use earmark_core::LimitKey;

use super::sketch::{Count, Sketch};
use super::{MEASURES, Measure, Within};

/// The panes of one window, the newest last. Together with the pane that has begun they cover at least the window.
#[derive(Debug, Default)]
struct Panes(VecDeque<(u64, Sketch)>);

impl Panes {
    fn add(&mut self, within: Within, now_ms: u64, key: &LimitKey, amount: u64) {
        let current = now_ms / within.pane_ms();
        self.forget(within, now_ms);
        if self.0.back().is_none_or(|(pane, _)| *pane < current) {
            self.0.push_back((current, Sketch::default()));
        }
        if let Some((_, sketch)) = self.0.back_mut() {
            sketch.add(key, amount);
        }
    }

    fn forget(&mut self, within: Within, now_ms: u64) {
        let oldest = (now_ms / within.pane_ms()).saturating_sub(within.panes());
        while self.0.front().is_some_and(|(pane, _)| *pane < oldest) {
            self.0.pop_front();
        }
    }
}

/// The sketches of one namespace, by measure and window.
#[derive(Debug, Default)]
pub(super) struct Windows {
    panes: [[Panes; Within::ALL.len()]; MEASURES],
    /// When the namespace was last counted.
    pub(super) last_ms: u64,
}

impl Windows {
    pub(super) fn add(&mut self, measure: Measure, now_ms: u64, key: &LimitKey, amount: u64) {
        self.last_ms = now_ms;
        for (panes, within) in self.panes[measure as usize].iter_mut().zip(Within::ALL) {
            panes.add(within, now_ms, key, amount);
        }
    }

    /// The heaviest keys that begin with `prefix`, the heaviest first.
    pub(super) fn top(
        &mut self,
        (measure, within): (Measure, Within),
        now_ms: u64,
        prefix: &str,
        most: usize,
    ) -> Vec<(LimitKey, Count)> {
        let panes = &mut self.panes[measure as usize][within as usize];
        panes.forget(within, now_ms);
        let keys = panes.0.iter().flat_map(|(_, sketch)| sketch.keys());
        let keys: BTreeSet<&LimitKey> = keys.filter(|key| key.as_str().starts_with(prefix)).collect();
        let count =
            |key: &LimitKey| panes.0.iter().fold(Count::default(), |sum, (_, sketch)| sum.plus(sketch.get(key)));
        let mut top: Vec<(LimitKey, Count)> = keys.into_iter().map(|key| (key.clone(), count(key))).collect();
        top.sort_by_key(|(_, count)| Reverse(count.amount));
        top.truncate(most);
        top
    }

    /// Whether nothing was counted within the longest window.
    pub(super) fn is_idle(&mut self, now_ms: u64) -> bool {
        for measure in &mut self.panes {
            measure.iter_mut().zip(Within::ALL).for_each(|(panes, within)| panes.forget(within, now_ms));
        }
        self.panes.iter().flatten().all(|panes| panes.0.iter().all(|(_, sketch)| sketch.is_empty()))
    }
}
