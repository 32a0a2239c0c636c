//! Statistics of a run.

use std::collections::BTreeMap;
use std::fmt;

/// Operations that each seed compares at least, if the machine does not stall.
const SEED_OPERATIONS_MIN: u64 = 5_000;

/// Cases that a run must contain.
const NEEDED: [&str; 37] = [
    "allowed",
    "denied",
    "never",
    "unknown key",
    "decreasing",
    "retried, same",
    "retried, denied again",
    "retried, expired",
    "retried, other body",
    "retried after an extension, same",
    "retried after an extension, expired",
    "view",
    "view of an extended lease",
    "view of an extended lease that timed out",
    "too old",
    "too new",
    "completed",
    "completed before",
    "completed, unknown",
    "overage reserved",
    "overage debt",
    "overage dropped",
    "put, active",
    "put, decreasing",
    "deleted",
    "deleting",
    "usage",
    "derived, allowed",
    "derived, decreasing",
    "override deleted",
    "extended",
    "extension denied",
    "extension of an ended lease",
    "extension after a timeout",
    "extension with another number or body",
    "extension by an unknown key",
    "extension by a decreasing limit",
];

#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Operations compared.
    pub operations: u64,
    /// Attempts without an operation, because the chosen limit could not be compared or did not exist.
    pub idle: u64,
    /// Reads by the second process of a limit that had changed.
    pub behind: u64,
    /// Streams ended early because the machine stalled longer than the tolerance.
    pub disturbed: u64,
    met: BTreeMap<&'static str, u64>,
}

impl Tally {
    pub fn met(&mut self, what: &'static str) {
        *self.met.entry(what).or_default() += 1;
    }

    pub fn add(&mut self, other: &Tally) {
        self.operations += other.operations;
        self.idle += other.idle;
        self.behind += other.behind;
        self.disturbed += other.disturbed;
        for (what, count) in &other.met {
            *self.met.entry(what).or_default() += count;
        }
    }

    /// Whether all of these cases were met.
    pub fn has_met(&self, needed: &[&str]) -> bool {
        needed.iter().all(|what| self.met.contains_key(*what))
    }

    /// # Panics
    /// Unless all of these cases were met.
    pub fn assert_met(&self, needed: &[&str]) {
        for what in needed {
            assert!(self.met.contains_key(what), "no stream met: {what}");
        }
    }

    pub fn check(&self, seeds: u64) {
        self.assert_met(&NEEDED);
        assert!(self.behind > 0, "the second process never knew less than the first");
        assert!(self.is_enough(seeds) || std::env::var("EARMARK_SEED").is_ok(), "{} operations", self.operations);
    }

    /// Whether as much was compared as this number of seeds should, and everything needed was met.
    pub fn is_enough(&self, seeds: u64) -> bool {
        self.operations >= seeds * SEED_OPERATIONS_MIN && self.has_met(&NEEDED)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { operations, idle, behind, disturbed, .. } = self;
        write!(f, "{operations} operations ({idle} more times there was nothing to ask)")?;
        write!(f, ", {behind} looks at limits that had changed, {disturbed} streams disturbed")?;
        self.met.iter().try_for_each(|(what, count)| write!(f, "; {what} {count}"))
    }
}
