//! The thread that writes the decision log.

use std::time::{Duration, Instant};

use super::{Shared, now};

/// Pause before a write, so that it takes the records of many requests.
const BATCH_PAUSE: Duration = Duration::from_millis(5);
/// Time between two log lines about writes that fail.
const COMPLAINT_PAUSE: Duration = Duration::from_secs(60);

impl Shared {
    /// Writes records until the queue is stopped.
    pub(super) fn write_until_stopped(&self) {
        let mut complained: Option<Instant> = None;
        loop {
            let work = self.queue.next(now);
            let written = self.write(&work.records);
            if let Err(why) = written {
                self.dropped.increment(work.records.len() as u64);
                if complained.is_none_or(|at| at.elapsed() >= COMPLAINT_PAUSE) {
                    tracing::warn!(%why, "cannot write the decision log; records are dropped");
                    complained = Some(Instant::now());
                }
            }
            let is_read = !work.waiting.is_empty();
            for reader in work.waiting {
                // The reader may be gone.
                _ = reader.send(());
            }
            if work.is_last {
                return;
            }
            if !is_read {
                std::thread::sleep(BATCH_PAUSE);
            }
        }
    }

    /// Appends records, and closes the segment once it is full.
    fn write(&self, records: &[earmark_admission::StoredRecord]) -> Result<(), String> {
        if records.is_empty() || !self.store.append(records)? {
            return Ok(());
        }
        let rest = self.queue.close_segment(now);
        let closed = match rest.records.is_empty() {
            true => Ok(false),
            false => self.store.append(&rest.records),
        };
        if closed.is_err() {
            self.dropped.increment(rest.records.len() as u64);
        }
        for reader in rest.waiting {
            _ = reader.send(());
        }
        closed?;
        self.store.rotate(now())
    }
}
