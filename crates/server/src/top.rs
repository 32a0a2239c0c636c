//! The heaviest limits of each namespace: what was taken, denied and owed within the last minute, five minutes or hour.
//!
//! Requests count into small tables of their thread's shard, which sums equal keys. A table is added to the sketches when
//! it is full or a second old, and before a read. Nothing is sampled and nothing dropped.

mod sketch;
mod windows;

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasher as _, BuildHasherDefault};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use earmark_admission::NameHash;
use earmark_core::{LimitKey, NamespaceName};

pub(crate) use sketch::Count;

use crate::decisions::Unhashed;
use windows::Windows;

/// Limits in an answer.
pub(crate) const TOP_MAX: usize = sketch::COUNTERS;
/// Namespaces with sketches, at most about 1.5 MB each. Beyond this the one that was counted longest ago begins anew.
const NAMESPACES_MAX: usize = 128;
/// Tables that threads count into.
pub(crate) const SHARDS: usize = 16;
/// Keys in a table. Then it is added to the sketches.
const TABLE_KEYS_MAX: usize = 1_024;
/// Milliseconds after which a table is added to the sketches.
const TABLE_MS: u64 = 1_000;

pub(crate) const MEASURES: usize = Measure::NAMES.len();

/// A quantity that is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Measure {
    /// Amounts reserved, by reserves and extensions.
    #[default]
    Taken,
    /// Denials, once for each limit in the way.
    Denied,
    /// Usage beyond the reservation that became debt.
    Debt,
}

impl Measure {
    /// The names, in the API and on the command line.
    pub(crate) const NAMES: [&'static str; 3] = ["taken", "denied", "debt"];

    pub(crate) fn from_name(name: &str) -> Option<Measure> {
        [Measure::Taken, Measure::Denied, Measure::Debt]
            .into_iter()
            .find(|measure| Measure::NAMES.get(*measure as usize) == Some(&name))
    }
}

/// The length of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Within {
    Minute,
    #[default]
    FiveMinutes,
    Hour,
}

impl Within {
    /// The names, in the API and on the command line.
    pub(crate) const NAMES: [&'static str; 3] = ["1m", "5m", "1h"];
    const ALL: [Within; 3] = [Within::Minute, Within::FiveMinutes, Within::Hour];

    pub(crate) fn from_name(name: &str) -> Option<Within> {
        Within::ALL.into_iter().find(|within| Within::NAMES.get(*within as usize) == Some(&name))
    }

    /// The length of a pane. A window is cut off at the beginning of a pane, so it may be longer by one.
    const fn pane_ms(self) -> u64 {
        match self {
            Within::Minute => 5_000,
            Within::FiveMinutes => 30_000,
            Within::Hour => 300_000,
        }
    }

    /// The whole panes of the window.
    const fn panes(self) -> u64 {
        match self {
            Within::Minute => 12,
            Within::FiveMinutes => 10,
            Within::Hour => 12,
        }
    }
}

/// The counts of one key since its table was last added to the sketches.
struct Pending {
    namespace: NamespaceName,
    key: LimitKey,
    amounts: [u64; MEASURES],
}

#[derive(Default)]
struct Table {
    keys: HashMap<u64, Pending, BuildHasherDefault<Unhashed>>,
    begun_ms: u64,
}

/// The counts of a server.
pub(crate) struct Top {
    started: Instant,
    hasher: NameHash,
    tables: [Mutex<Table>; SHARDS],
    namespaces: Mutex<HashMap<NamespaceName, Windows, NameHash>>,
}

thread_local! {
    /// The table of this thread; set at its first count.
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The table of this thread.
pub(crate) fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    SHARD.with(|shard| {
        if shard.get() == usize::MAX {
            shard.set(NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
        }
        shard.get()
    })
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Top {
    pub(crate) fn new() -> Top {
        Top {
            started: Instant::now(),
            hasher: NameHash::default(),
            tables: Default::default(),
            namespaces: Mutex::default(),
        }
    }

    fn now_ms(&self) -> u64 {
        // Panes begin above 0, so that subtraction needs no care.
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(3_600_000 * 2)
    }

    /// Counts amounts of limits that a lease of `namespace` names.
    pub(crate) fn count<'a>(
        &self,
        measure: Measure,
        namespace: &NamespaceName,
        amounts: impl IntoIterator<Item = (&'a LimitKey, u64)>,
    ) {
        self.count_at(self.now_ms(), measure, namespace, amounts);
    }

    fn count_at<'a>(
        &self,
        now_ms: u64,
        measure: Measure,
        namespace: &NamespaceName,
        amounts: impl IntoIterator<Item = (&'a LimitKey, u64)>,
    ) {
        let Some(table) = self.tables.get(shard()) else { return };
        let mut amounts = amounts.into_iter().peekable();
        if amounts.peek().is_none() {
            return;
        }
        let mut table = lock(table);
        for (key, amount) in amounts {
            let identity = self.hasher.hash_one((namespace.as_str(), key.as_str()));
            let pending = table.keys.entry(identity).or_insert_with(|| Pending {
                namespace: namespace.clone(),
                key: key.clone(),
                amounts: [0; MEASURES],
            });
            let count = &mut pending.amounts[measure as usize];
            *count = count.saturating_add(amount);
        }
        if table.keys.len() >= TABLE_KEYS_MAX || now_ms.saturating_sub(table.begun_ms) >= TABLE_MS {
            let full = std::mem::take(&mut table.keys);
            table.begun_ms = now_ms;
            drop(table);
            self.add(now_ms, full.into_values());
        }
    }

    /// Adds a table to the sketches. Amounts of another namespace's limit also count for its owner.
    fn add(&self, now_ms: u64, table: impl Iterator<Item = Pending>) {
        let mut namespaces = lock(&self.namespaces);
        for Pending { namespace, key, amounts } in table {
            let owner = key.foreign();
            let own = Some((namespace, key));
            for (namespace, key) in [own, owner].into_iter().flatten() {
                let windows = windows_of(&mut namespaces, namespace, now_ms);
                let measures = [Measure::Taken, Measure::Denied, Measure::Debt];
                for (measure, amount) in measures.into_iter().zip(amounts).filter(|(_, amount)| *amount > 0) {
                    windows.add(measure, now_ms, &key, amount);
                }
            }
        }
    }

    /// The heaviest limits of a namespace whose key begins with `prefix`, the heaviest first.
    pub(crate) fn top(
        &self,
        namespace: &NamespaceName,
        measure: Measure,
        within: Within,
        prefix: &str,
    ) -> Vec<(LimitKey, Count)> {
        self.top_at(self.now_ms(), namespace, (measure, within), prefix)
    }

    fn top_at(
        &self,
        now_ms: u64,
        namespace: &NamespaceName,
        which: (Measure, Within),
        prefix: &str,
    ) -> Vec<(LimitKey, Count)> {
        for table in &self.tables {
            let pending = {
                let mut table = lock(table);
                table.begun_ms = now_ms;
                std::mem::take(&mut table.keys)
            };
            self.add(now_ms, pending.into_values());
        }
        let mut namespaces = lock(&self.namespaces);
        namespaces.get_mut(namespace).map_or_else(Vec::new, |windows| windows.top(which, now_ms, prefix, TOP_MAX))
    }
}

/// The sketches of a namespace. Beyond the bound, namespaces without counts make room, then the one counted longest ago.
fn windows_of(
    namespaces: &mut HashMap<NamespaceName, Windows, NameHash>,
    namespace: NamespaceName,
    now_ms: u64,
) -> &mut Windows {
    if namespaces.len() >= NAMESPACES_MAX && !namespaces.contains_key(&namespace) {
        namespaces.retain(|_, windows| !windows.is_idle(now_ms));
        let oldest = namespaces.iter().min_by_key(|(_, windows)| windows.last_ms).map(|(name, _)| name.clone());
        if let Some(oldest) = oldest.filter(|_| namespaces.len() >= NAMESPACES_MAX) {
            namespaces.remove(&oldest);
        }
    }
    namespaces.entry(namespace).or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;

    fn key(text: &str) -> LimitKey {
        LimitKey::parse_qualified(text).unwrap()
    }

    fn space(text: &str) -> NamespaceName {
        NamespaceName::new(text).unwrap()
    }

    fn amounts(top: &[(LimitKey, Count)]) -> Vec<(String, u64, u64)> {
        top.iter().map(|(key, count)| (key.to_string(), count.amount, count.error)).collect()
    }

    #[test]
    fn counts_leave_their_window_and_stay_in_the_longer_ones() {
        let (top, team) = (Top::new(), space("team"));
        let start = top.now_ms();
        top.count_at(start, Measure::Taken, &team, [(&key("a:rpm"), 5), (&key("b"), 7)]);
        top.count_at(start + 2 * MINUTE, Measure::Taken, &team, [(&key("a:rpm"), 1)]);
        let read = |at, measure, within, prefix| amounts(&top.top_at(at, &team, (measure, within), prefix));
        let now = start + 2 * MINUTE;
        assert_eq!(read(now, Measure::Taken, Within::Minute, ""), [("a:rpm".to_owned(), 1, 0)]);
        let both = [("b".to_owned(), 7, 0), ("a:rpm".to_owned(), 6, 0)];
        assert_eq!(read(now, Measure::Taken, Within::FiveMinutes, ""), both);
        assert_eq!(read(now, Measure::Taken, Within::FiveMinutes, "a:"), both[1..]);
        assert_eq!(read(start + 30 * MINUTE, Measure::Taken, Within::Hour, ""), both);
        top.count_at(start + 31 * MINUTE, Measure::Taken, &team, [(&key("c"), 3)]);
        assert_eq!(read(start + 66 * MINUTE, Measure::Taken, Within::Hour, ""), [("c".to_owned(), 3, 0)]);
        assert!(read(start + 100 * MINUTE, Measure::Taken, Within::Hour, "").is_empty());
        assert!(read(now, Measure::Denied, Within::Hour, "").is_empty());
    }

    #[test]
    fn a_foreign_limit_counts_for_both_namespaces_and_others_see_nothing() {
        let (top, team, default) = (Top::new(), space("team"), space("default"));
        let now = top.now_ms();
        top.count_at(now, Measure::Denied, &team, [(&key("!default:gpt:rpm"), 1)]);
        let which = (Measure::Denied, Within::Minute);
        assert_eq!(amounts(&top.top_at(now, &team, which, "")), [("!default:gpt:rpm".to_owned(), 1, 0)]);
        assert_eq!(amounts(&top.top_at(now, &default, which, "")), [("gpt:rpm".to_owned(), 1, 0)]);
        assert!(top.top_at(now, &space("other"), which, "").is_empty());
    }

    #[test]
    fn namespaces_are_bounded_and_the_oldest_makes_room() {
        let top = Top::new();
        let now = top.now_ms();
        for number in 0..=NAMESPACES_MAX as u64 {
            top.count_at(now + 2_000 * number, Measure::Taken, &space(&format!("n{number}")), [(&key("a"), 1)]);
        }
        assert_eq!(lock(&top.namespaces).len(), NAMESPACES_MAX);
        let at = now + 2_000 * NAMESPACES_MAX as u64;
        let has = |name: &str| !top.top_at(at, &space(name), (Measure::Taken, Within::Hour), "").is_empty();
        assert!(!has("n0") && has("n1") && has("n128"));
    }

    #[test]
    fn every_thread_is_counted() {
        let (top, team, key) = (Top::new(), space("team"), key("a"));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..1_000).for_each(|_| top.count(Measure::Taken, &team, [(&key, 2)])));
            }
        });
        assert_eq!(amounts(&top.top(&team, Measure::Taken, Within::Minute, "")), [("a".to_owned(), 16_000, 0)]);
    }
}
