//! Free space on the data disk, and what is refused when it runs short.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use earmark_core::Command;

use crate::disk::Disk;
use crate::fault::{Fault, Operation};

/// Most bytes of the default reserve: room for snapshots and for the completes of all live leases.
const RESERVE_BYTES_MAX: u64 = 1 << 30;
/// Part of the disk that is the default reserve if that is less.
const RESERVE_PERCENT: u64 = 5;
/// Part of the reserve that must be free beyond it before the leader takes writes again, so that it does not alternate.
const RECOVERY_PART: u64 = 8;

/// The answer to a command that needs space.
pub(crate) const NO_SPACE: &str = "the data disk of the leader is nearly full (--disk-reserve); nothing happened";

/// Space that a leader keeps free on its data disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskReserve {
    /// 1 GiB, or 5% of the disk if that is less.
    #[default]
    Auto,
    /// Bytes; 0 keeps nothing free.
    Bytes(u64),
    /// Percent of the disk.
    Percent(u8),
}

impl DiskReserve {
    /// The reserve of a disk.
    #[must_use]
    pub fn of(self, total: u64) -> u64 {
        let part = |percent: u64| total / 100 * percent;
        match self {
            DiskReserve::Auto => part(RESERVE_PERCENT).min(RESERVE_BYTES_MAX),
            DiskReserve::Bytes(bytes) => bytes,
            DiskReserve::Percent(percent) => part(percent.into()),
        }
    }
}

/// The space of a disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// Bytes that this process may still write; 0 after a write that found the disk full.
    pub free: u64,
    /// Size of the file system.
    pub total: u64,
}

/// Watches the space of a node's data disk.
#[derive(Debug)]
pub(crate) struct SpaceMonitor {
    reserve: DiskReserve,
    disk: Arc<dyn Disk>,
    /// The disk reports its space.
    is_known: bool,
    is_short: AtomicBool,
    /// The leader refused commands for lack of space. Reset at every check, so that one batch tries again.
    is_leader_short: AtomicBool,
    free: AtomicU64,
    needed: AtomicU64,
}

impl SpaceMonitor {
    pub(crate) fn open(reserve: DiskReserve, disk: Arc<dyn Disk>) -> Result<SpaceMonitor, Fault> {
        let space = disk.check(Operation::Read, "", disk.space())?;
        let monitor = SpaceMonitor {
            reserve,
            disk,
            is_known: space.is_some(),
            is_short: AtomicBool::new(false),
            is_leader_short: AtomicBool::new(false),
            free: AtomicU64::new(u64::MAX),
            needed: AtomicU64::new(0),
        };
        if let Some(space) = space {
            monitor.update(space);
        }
        Ok(monitor)
    }

    /// Reads the free space, away from the async worker threads.
    pub(crate) async fn check(&self) {
        self.is_leader_short.store(false, Ordering::Relaxed);
        if !self.is_known {
            return;
        }
        let disk = Arc::clone(&self.disk);
        match self.disk.run(move || disk.check(Operation::Read, "", disk.space())).await {
            Ok(Some(space)) => self.update(space),
            Ok(None) => {}
            Err(error) => tracing::warn!("reading the free space failed: {error}"),
        }
    }

    /// Ends the waits of writes that found the disk full.
    pub(crate) fn stop_waiting(&self) {
        self.disk.stop_waiting();
    }

    /// Records the space of the disk.
    fn update(&self, space: DiskSpace) {
        let reserve = self.reserve.of(space.total);
        let was_short = self.is_short();
        let needed = if was_short { reserve.saturating_add(reserve / RECOVERY_PART) } else { reserve };
        let is_short = space.free < needed;
        self.free.store(space.free, Ordering::Relaxed);
        self.needed.store(needed, Ordering::Relaxed);
        self.is_short.store(is_short, Ordering::Relaxed);
        metrics::gauge!("earmark_node_disk_free_bytes").set(space.free as f64);
        metrics::gauge!("earmark_node_disk_reserve_bytes").set(reserve as f64);
        metrics::gauge!("earmark_node_disk_is_short").set(f64::from(u8::from(is_short)));
        match (was_short, is_short) {
            (false, true) => tracing::warn!("{}", self.message()),
            (true, false) => tracing::info!("the disk of {} has enough free space again", self.disk.show("")),
            (true, true) | (false, false) => {}
        }
    }

    /// Whether this node's disk is short of space.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// Whether the disk has room for a file of this size.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.free.load(Ordering::Relaxed) > bytes
    }

    /// Whether the leader has lately refused commands for lack of space.
    pub(crate) fn is_leader_short(&self) -> bool {
        self.is_leader_short.load(Ordering::Relaxed)
    }

    pub(crate) fn set_leader_short(&self) {
        self.is_leader_short.store(true, Ordering::Relaxed);
    }

    /// The warning for the operator, if the disk is short of space.
    pub(crate) fn warning(&self) -> Option<String> {
        self.is_short().then(|| self.message())
    }

    fn message(&self) -> String {
        let mib = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed) >> 20;
        format!(
            "the disk of {} has {} MiB free and needs {} MiB (--disk-reserve); a leader refuses reserves and writes, and \
             takes completes, until there is more",
            self.disk.show(""),
            mib(&self.free),
            mib(&self.needed)
        )
    }
}

/// Whether a command adds to the state or the history, so that it is refused while space is short. Those that end or take
/// back something are not.
pub(crate) const fn needs_space(command: &Command<'_>) -> bool {
    match command {
        Command::Reserve(_)
        | Command::Write(_)
        | Command::PutLimit(_)
        | Command::DeleteLimit(_)
        | Command::PauseLimit(_)
        | Command::PutTemplate(_)
        | Command::DeleteTemplate(_)
        | Command::PutPolicy(_)
        | Command::OpenNamespace(_)
        | Command::CreateKey(_) => true,
        // An extension that only renews or reports keeps a lease alive that is there already.
        Command::Extend(extend) => !extend.add.is_empty(),
        Command::Complete(_)
        | Command::Release(_)
        | Command::DropLimit(_)
        | Command::SetExternal(_)
        | Command::Configure(_)
        | Command::SetQuotas(_)
        | Command::RevokeKey(_)
        | Command::Tick
        | Command::AdvanceTime(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_a_gibibyte_or_five_percent_of_a_small_disk() {
        assert_eq!(DiskReserve::Auto.of(1 << 40), 1 << 30);
        assert_eq!(DiskReserve::Auto.of(1_000), 50);
        assert_eq!(DiskReserve::Bytes(7).of(1 << 40), 7);
        assert_eq!(DiskReserve::Percent(10).of(1_000), 100);
    }

    #[test]
    fn a_disk_that_was_short_needs_more_than_its_reserve() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let disk = Arc::new(crate::disk::RealDisk::new(folder.path())?);
        let monitor = SpaceMonitor::open(DiskReserve::Bytes(800), disk)?;
        assert!(!monitor.is_short() && monitor.is_known);
        let is_short = |free| {
            monitor.update(DiskSpace { free, total: 10_000 });
            monitor.is_short()
        };
        let states = [1_000, 800, 799, 800, 899, 900, 800, 0].map(is_short);
        assert_eq!(states, [false, false, true, true, true, false, false, true]);
        assert!(monitor.warning().is_some_and(|warning| warning.contains("0 MiB free")));
        Ok(())
    }
}
