//! A writer sends nothing that is not in its sequence file, also when storing fails.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use earmark_client::{ContentHash, Fate, Step, Writer, WriterError};
use serde_json::Value;
use tempfile::TempDir;

use crate::fixture::{
    ScriptedServer, WriterFixture, client_state, issue, shortly, write_refused, writer_options, written,
};
use crate::support::proxy::Fault;
use crate::support::soon;

/// A fault of the sequence file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileFault {
    /// The write blocks until the fault ends.
    Blocks,
    /// The disk is full.
    Full,
    /// The flush fails.
    NotFlushed,
    /// The rename fails.
    NotRenamed,
    /// The flush of the directory fails.
    FolderNotFlushed,
}

const FAILURES: [FileFault; 4] =
    [FileFault::Full, FileFault::NotFlushed, FileFault::NotRenamed, FileFault::FolderNotFlushed];

/// Injects faults, and compares the file with what is sent.
struct FileFaults {
    folder: PathBuf,
    fault: Mutex<Option<FileFault>>,
    over: Condvar,
    /// The operations of the current write.
    expected: Mutex<ContentHash>,
    /// The steps that sent something that was not in the file.
    unstored: Mutex<Vec<String>>,
    sent: Mutex<Vec<Step>>,
}

impl FileFaults {
    fn new(folder: &Path) -> Arc<FileFaults> {
        Arc::new(FileFaults {
            folder: folder.to_owned(),
            fault: Mutex::new(None),
            over: Condvar::new(),
            expected: Mutex::new(ContentHash::of(&[])),
            unstored: Mutex::default(),
            sent: Mutex::default(),
        })
    }

    fn begin(&self, fault: FileFault) {
        *self.fault.lock().unwrap() = Some(fault);
    }

    fn end(&self) {
        *self.fault.lock().unwrap() = None;
        self.over.notify_all();
        _ = std::fs::remove_file(self.beside());
        if self.elsewhere().exists() {
            std::fs::rename(self.elsewhere(), self.folder()).unwrap();
        }
    }

    fn folder(&self) -> PathBuf {
        self.folder.join("files")
    }

    fn elsewhere(&self) -> PathBuf {
        self.folder.join("elsewhere")
    }

    fn path(&self) -> PathBuf {
        self.folder().join("seq")
    }

    fn beside(&self) -> PathBuf {
        self.folder().join("seq.new")
    }

    fn expect(&self, amount: u128) {
        *self.expected.lock().unwrap() = ContentHash::of(&issue(amount));
    }

    fn observe(&self, step: Step) {
        let fault = *self.fault.lock().unwrap();
        let link = |to: &str| {
            _ = std::fs::remove_file(self.beside());
            std::os::unix::fs::symlink(to, self.beside()).unwrap();
        };
        match (step, fault) {
            (Step::Writing, Some(FileFault::Blocks)) => {
                let fault = self.fault.lock().unwrap();
                let wait = self
                    .over
                    .wait_timeout_while(fault, Duration::from_secs(20), |fault| *fault == Some(FileFault::Blocks));
                drop(wait.unwrap());
            }
            (Step::Writing, Some(FileFault::Full)) => link("/dev/full"),
            (Step::Writing, Some(FileFault::NotFlushed)) => link("/dev/null"),
            (Step::Flushed, Some(FileFault::NotRenamed)) => std::fs::remove_file(self.beside()).unwrap(),
            (Step::Renamed, Some(FileFault::FolderNotFlushed)) => {
                std::fs::rename(self.folder(), self.elsewhere()).unwrap();
            }
            (Step::Sending | Step::SendingFence, _) => self.compare(step),
            _ => {}
        }
    }

    fn compare(&self, step: Step) {
        self.sent.lock().unwrap().push(step);
        let text = std::fs::read_to_string(self.path()).unwrap_or_default();
        let record: Value = text.lines().next().map_or(Value::Null, |line| serde_json::from_str(line).unwrap());
        let unfinished = &record["unfinished"];
        let is_there = match step {
            Step::Sending => unfinished["content"] == self.expected.lock().unwrap().to_string(),
            _ => unfinished["is_fenced"] == true,
        };
        if !is_there {
            self.unstored.lock().unwrap().push(format!("{step:?}: {record}"));
        }
    }

    fn check(&self, what: &str) {
        let unstored = self.unstored.lock().unwrap();
        assert!(unstored.is_empty(), "{what}: sent and not in the file: {unstored:?}");
    }
}

/// A server, and a sequence file with faults.
struct StoreFixture {
    servers: WriterFixture,
    faults: Arc<FileFaults>,
}

impl StoreFixture {
    async fn new() -> StoreFixture {
        let servers = WriterFixture::new().await;
        let faults = FileFaults::new(servers.folder.path());
        std::fs::create_dir(faults.folder()).unwrap();
        StoreFixture { servers, faults }
    }

    async fn open(&self) -> Writer {
        let mut options = writer_options(&self.faults.path());
        let faults = Arc::clone(&self.faults);
        options.observer = Some(Arc::new(move |step| faults.observe(step)));
        Writer::open(&self.servers.impatient_client(), options, soon()).await.unwrap()
    }

    /// A writer whose last write was lost on its way.
    async fn open_unfinished(&self, amount: u128) -> Writer {
        let mut writer = self.open().await;
        self.faults.expect(amount);
        self.servers.proxy.script(&[Some(Fault::LoseRequest)]);
        let error = writer.write(issue(amount), shortly()).await.unwrap_err();
        assert!(matches!(error, WriterError::OutcomeUnknown { sequence: 2, .. }), "{error:?}");
        writer
    }

    async fn available(&self) -> i128 {
        self.servers.available("acme").await
    }
}

async fn cancelled<T: std::fmt::Debug>(work: impl Future<Output = T>) {
    let ended = tokio::time::timeout(Duration::from_millis(100), work).await;
    assert!(ended.is_err(), "it was to be cancelled: {ended:?}");
}

/// A caller gave up during the store of its sequence and then repeated its write, which was sent at once. After a crash
/// there the server would have had a sequence that is not in the file.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_cancelled_before_it_is_stored_is_not_sent_by_a_repeat() {
    let fixture = StoreFixture::new().await;
    let mut writer = fixture.open().await;
    fixture.faults.expect(7);
    fixture.faults.begin(FileFault::Blocks);
    cancelled(writer.write(issue(7), soon())).await;
    assert_eq!(writer.unfinished(), None, "nothing was sent, so the sequence is free");
    let error = writer.repeat(issue(7), shortly()).await.unwrap_err();
    assert!(matches!(error, WriterError::NothingToRepeat), "{error:?}");
    assert_eq!(writer.settle(shortly()).await.unwrap(), None);
    // Another write with the same sequence waits for the disk too, and replaces the first.
    fixture.faults.expect(8);
    cancelled(writer.write(issue(8), soon())).await;
    fixture.faults.end();
    fixture.faults.expect(9);
    assert_eq!(writer.write(issue(9), soon()).await.unwrap().sequence, Some(2));
    fixture.faults.check("write");
    assert_eq!(fixture.available().await, 9);
}

/// A fence counted as stored before it was, so the next one was sent without a record.
#[tokio::test(flavor = "multi_thread")]
async fn a_fence_that_is_cancelled_before_it_is_stored_is_stored_the_next_time() {
    let fixture = StoreFixture::new().await;
    let mut writer = fixture.open_unfinished(7).await;
    fixture.faults.begin(FileFault::Blocks);
    cancelled(writer.settle(soon())).await;
    cancelled(writer.settle(soon())).await;
    let fences = |fixture: &StoreFixture| {
        fixture.faults.sent.lock().unwrap().iter().filter(|step| **step == Step::SendingFence).count()
    };
    assert_eq!(fences(&fixture), 1, "the fence of the open");
    cancelled(writer.repeat(issue(7), soon())).await;
    fixture.faults.end();
    assert_eq!(writer.settle(soon()).await.unwrap(), Some(Fate::NeverHappened));
    fixture.faults.check("settle");
    assert_eq!(fixture.available().await, 0);
}

/// A record counted as stored although the disk had failed.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_while_the_disk_fails_and_writes_continue_after_it() {
    for fault in FAILURES {
        let fixture = StoreFixture::new().await;
        let mut writer = fixture.open().await;
        fixture.faults.expect(7);
        fixture.faults.begin(fault);
        for _ in 0..2 {
            let error = writer.write(issue(7), soon()).await.unwrap_err();
            assert!(matches!(error, WriterError::File(_)), "{fault:?}: {error:?}");
            assert_eq!(writer.unfinished(), None, "{fault:?}");
        }
        fixture.faults.end();
        assert_eq!(writer.write(issue(7), soon()).await.unwrap().sequence, Some(2), "{fault:?}");
        fixture.faults.check(&format!("{fault:?}, write"));
        // The file agrees with the server, whatever the disk kept of the failed stores.
        drop(writer);
        assert_eq!(fixture.open().await.unfinished().map(|unfinished| unfinished.sequence), Some(2));
        assert_eq!(fixture.available().await, 7, "{fault:?}");

        let fixture = StoreFixture::new().await;
        let mut writer = fixture.open_unfinished(7).await;
        fixture.faults.begin(fault);
        for _ in 0..2 {
            let error = writer.settle(soon()).await.unwrap_err();
            assert!(matches!(error, WriterError::File(_)), "{fault:?}: {error:?}");
        }
        fixture.faults.end();
        assert_eq!(writer.repeat(issue(7), soon()).await.unwrap().sequence, Some(2), "{fault:?}");
        fixture.faults.check(&format!("{fault:?}, settle and repeat"));
        assert_eq!(fixture.available().await, 7, "{fault:?}");
    }
}

/// A write without an answer is refused when it is sent again, but the fence finds that it was committed. When no receipt
/// came before the deadline, the writer had the sequence both as committed and as unfinished, and stored a file that it
/// called damaged later. A caller that gave up then got no unfinished write.
#[tokio::test]
async fn a_committed_write_stays_unfinished_until_its_receipt_arrives() {
    for is_cancelled in [false, true] {
        let mut requests = 0;
        let script = ScriptedServer::by(move |request| {
            requests += 1;
            match (request.starts_with("GET "), requests) {
                (true, 1) => client_state(0),
                (true, _) => client_state(2),
                (_, 2) => written(1),
                // The write gets no answer, then a refusal. Its fence comes too late.
                (_, 4) => write_refused(402, "INSUFFICIENT_CREDIT", 1),
                (_, 5) => write_refused(409, "SEQUENCE_REUSED", 2),
                _ => None,
            }
        })
        .await;
        let folder = TempDir::new().unwrap();
        let options = || writer_options(&folder.path().join("seq"));
        let client = script.client();
        let mut writer = Writer::open(&client, options(), soon()).await.unwrap();
        if is_cancelled {
            let write = writer.write(issue(1), soon());
            assert!(tokio::time::timeout(Duration::from_millis(700), write).await.is_err());
        } else {
            let error = writer.write(issue(1), shortly()).await.unwrap_err();
            assert!(matches!(error, WriterError::OutcomeUnknown { sequence: 2, .. }), "{error:?}");
        }
        assert!(script.requests().len() > 5, "{:?}", script.requests());
        assert_eq!(writer.unfinished().map(|unfinished| unfinished.sequence), Some(2));
        assert_eq!(writer.committed(), 1);
        let error = writer.settle(shortly()).await.unwrap_err();
        assert!(matches!(error, WriterError::OutcomeUnknown { sequence: 2, .. }), "{error:?}");
        drop(writer);
        let writer = Writer::open(&client, options(), soon()).await.unwrap();
        assert_eq!(writer.unfinished().map(|unfinished| unfinished.sequence), Some(2));
    }
}
