//! The flags of `earmark serve` for its decision log: recent denials, refusals, timeouts and overages.

use std::sync::Arc;

use clap::Args;
use earmark_admission::{MemoryRecords, RECORDS_BYTES_MIN, RecordBounds, RecordStore};
use earmark_core::UnixMs;
use earmark_node::{DecisionFiles, Identity, RealDisk};
use earmark_server::DECISIONS_IN_MEMORY;

use crate::failure::Failure;
use crate::quantity;

const DAYS_MAX: i64 = 366;
const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

/// The bounds of the decision log.
#[derive(Args, Debug)]
pub(super) struct DecisionLogArgs {
    /// Space for the decision log: a size such as 64M or 1G, at least 1M; 0 turns the log off. In memory at most 16M
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = bytes)]
    decisions_bytes: u64,
    /// Days after which the decision log forgets
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=DAYS_MAX))]
    decisions_days: u32,
}

fn bytes(text: &str) -> Result<u64, String> {
    let found = quantity::size(text).filter(|bytes| *bytes == 0 || *bytes >= RECORDS_BYTES_MIN);
    found.ok_or_else(|| format!("found {text:?}, allowed are 0, and sizes from 1M such as 64M or 1G"))
}

impl DecisionLogArgs {
    fn bounds(&self) -> Option<RecordBounds> {
        let age_ms = u64::from(self.decisions_days) * DAY_MS;
        (self.decisions_bytes > 0).then_some(RecordBounds { bytes: self.decisions_bytes, age_ms })
    }

    /// The log of a server in memory.
    pub(super) fn in_memory(&self) -> Option<Arc<dyn RecordStore>> {
        let bounds = self.bounds()?;
        let bytes = bounds.bytes.min(DECISIONS_IN_MEMORY.bytes);
        Some(Arc::new(MemoryRecords::new(RecordBounds { bytes, ..bounds })))
    }

    /// The log of a node, in its data folder. A full disk makes it drop records, and fails no
    /// request.
    pub(super) fn open(&self, disk: RealDisk, identity: Identity) -> Result<Option<Arc<dyn RecordStore>>, Failure> {
        let Some(bounds) = self.bounds() else { return Ok(None) };
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let now = UnixMs::new(u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
        let files = DecisionFiles::open(Arc::new(disk), identity.cluster, bounds, now);
        let files = files.map_err(|fault| Failure::Usage(format!("--data: the decision log: {fault}")))?;
        Ok(Some(Arc::new(files)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_space_of_the_log_is_a_size_or_nothing() {
        assert_eq!(bytes("0"), Ok(0));
        assert_eq!(bytes("1M"), Ok(1 << 20));
        assert_eq!(bytes("256M"), Ok(256 << 20));
        for wrong in ["", "1", "1023K", "5%", "-1", "lots"] {
            assert!(bytes(wrong).unwrap_err().starts_with("found \""), "{wrong}");
        }
    }
}
