//! openraft's storage suite on real files, with the Book as state machine.

use std::sync::Arc;

use earmark_node::{BookStateMachine, Disk, LogOptions, LogStore, RealDisk, Types, stores};
use openraft::StorageError;
use openraft::testing::{StoreBuilder, Suite};
use tempfile::TempDir;

struct Builder(LogOptions);

impl StoreBuilder<Types, LogStore, BookStateMachine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore, BookStateMachine), StorageError<u64>> {
        let folder = TempDir::new().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(folder.path()).unwrap());
        LogStore::create(&*disk, 7).unwrap();
        let (log, machine) = stores(disk, 7, self.0).await.unwrap();
        Ok((folder, log, machine))
    }
}

#[test]
fn openrafts_tests_pass_with_the_log_as_it_is_served() {
    Suite::test_all(Builder(LogOptions::default())).unwrap();
}

#[test]
fn openrafts_tests_pass_with_a_segment_for_every_write_and_no_memory_for_entries() {
    Suite::test_all(Builder(LogOptions { segment_bytes: 0, cache_bytes: 0 })).unwrap();
}
