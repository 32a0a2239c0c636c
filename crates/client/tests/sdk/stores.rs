//! What a writer sends is in its file, whatever becomes of storing it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use earmark_client::{
    ClientOptions, ContentHash, Deadline, Fate, Protocol, Step, Writer, WriterError, WriterOptions,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::scripted::Scripted;
use crate::served::{Served, client_of};
use crate::support::proxy::{Fault, Proxy};
use crate::support::soon;
use crate::writes::{accounts, issue, scope};

/// What goes wrong with the file of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// It takes until somebody lets it go on.
    Blocks,
    /// There is no room for what is written.
    Full,
    /// What was written does not get onto the disk.
    NotFlushed,
    /// It does not take the place of the old one.
    NotRenamed,
    /// Nobody can say that it stays there.
    FolderNotFlushed,
}

const FAILURES: [Trouble; 4] =
    [Trouble::Full, Trouble::NotFlushed, Trouble::NotRenamed, Trouble::FolderNotFlushed];

/// Makes trouble, and sees whether what is sent is in the file.
struct Watch {
    folder: PathBuf,
    trouble: Mutex<Option<Trouble>>,
    over: Condvar,
    /// What is written now.
    expected: Mutex<ContentHash>,
    /// What was sent, and what the file said then, where that is not the same.
    unstored: Mutex<Vec<String>>,
    sent: Mutex<Vec<Step>>,
}

impl Watch {
    fn new(folder: &Path) -> Arc<Watch> {
        Arc::new(Watch {
            folder: folder.to_owned(),
            trouble: Mutex::new(None),
            over: Condvar::new(),
            expected: Mutex::new(ContentHash::of(&[])),
            unstored: Mutex::default(),
            sent: Mutex::default(),
        })
    }

    fn begin(&self, trouble: Trouble) {
        *self.trouble.lock().unwrap() = Some(trouble);
    }

    fn end(&self) {
        *self.trouble.lock().unwrap() = None;
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

    fn see(&self, step: Step) {
        let trouble = *self.trouble.lock().unwrap();
        let link = |to: &str| {
            _ = std::fs::remove_file(self.beside());
            std::os::unix::fs::symlink(to, self.beside()).unwrap();
        };
        match (step, trouble) {
            (Step::Writing, Some(Trouble::Blocks)) => {
                let trouble = self.trouble.lock().unwrap();
                let wait = self.over.wait_timeout_while(trouble, Duration::from_secs(20), |trouble| {
                    *trouble == Some(Trouble::Blocks)
                });
                drop(wait.unwrap());
            }
            (Step::Writing, Some(Trouble::Full)) => link("/dev/full"),
            (Step::Writing, Some(Trouble::NotFlushed)) => link("/dev/null"),
            (Step::Flushed, Some(Trouble::NotRenamed)) => std::fs::remove_file(self.beside()).unwrap(),
            (Step::Renamed, Some(Trouble::FolderNotFlushed)) => {
                std::fs::rename(self.folder(), self.elsewhere()).unwrap();
            }
            (Step::Sending | Step::SendingFence, _) => self.compare(step),
            _ => {}
        }
    }

    fn compare(&self, step: Step) {
        self.sent.lock().unwrap().push(step);
        let text = std::fs::read_to_string(self.path()).unwrap_or_default();
        let record: Value =
            text.lines().next().map_or(Value::Null, |line| serde_json::from_str(line).unwrap());
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

struct Desk {
    served: Served,
    proxy: Proxy,
    watch: Arc<Watch>,
    _folder: TempDir,
}

impl Desk {
    async fn new() -> Desk {
        let served = Served::start().await;
        let proxy = Proxy::http(&served.address.to_string(), 1, 0).await;
        let folder = TempDir::new().unwrap();
        let watch = Watch::new(folder.path());
        std::fs::create_dir(watch.folder()).unwrap();
        let setup = WriterOptions::new(folder.path().join("setup"), scope(), "setup".parse().unwrap());
        let mut setup = Writer::open(&served.client(Protocol::Http), setup, soon()).await.unwrap();
        setup.write(accounts(), soon()).await.unwrap();
        Desk { served, proxy, watch, _folder: folder }
    }

    async fn open(&self) -> Writer {
        let mut options = ClientOptions::of(&[self.proxy.url()]).unwrap();
        // One attempt is all there is time for.
        let never = Duration::from_secs(60);
        options.backoff = earmark_client::BackoffOptions { first: never, longest: never };
        let client = earmark_client::Client::new(options).unwrap();
        let mut options = WriterOptions::new(self.watch.path(), scope(), "billing".parse().unwrap());
        let watch = Arc::clone(&self.watch);
        options.observer = Some(Arc::new(move |step| watch.see(step)));
        Writer::open(&client, options, soon()).await.unwrap()
    }

    /// A writer whose last write was lost on its way.
    async fn open_unfinished(&self, amount: u128) -> Writer {
        let mut writer = self.open().await;
        self.watch.expect(amount);
        self.proxy.script(&[Some(Fault::LoseRequest)]);
        let error = writer.write(issue(amount), shortly()).await.unwrap_err();
        assert!(matches!(error, WriterError::OutcomeUnknown { sequence: 2, .. }), "{error:?}");
        writer
    }

    async fn available(&self) -> i128 {
        let direct = self.served.client(Protocol::Http);
        let found = direct.balances(&"main".parse().unwrap(), &"acme".parse().unwrap(), soon()).await;
        found.unwrap().first().map_or(0, |balance| balance.available)
    }
}

fn shortly() -> Deadline {
    Deadline::after(Duration::from_millis(700))
}

async fn cancelled<T: std::fmt::Debug>(work: impl Future<Output = T>) {
    let ended = tokio::time::timeout(Duration::from_millis(100), work).await;
    assert!(ended.is_err(), "it was to be cancelled: {ended:?}");
}

/// A caller gave up while the number was on its way to the disk, and then repeated its write: it was sent at once. Had
/// the process ended there, the server would have had a number that the file knew nothing of.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_cancelled_before_it_is_stored_is_not_sent_by_a_repeat() {
    let desk = Desk::new().await;
    let mut writer = desk.open().await;
    desk.watch.expect(7);
    desk.watch.begin(Trouble::Blocks);
    cancelled(writer.write(issue(7), soon())).await;
    assert_eq!(writer.unfinished(), None, "nothing was sent, so the number is free");
    let error = writer.repeat(issue(7), shortly()).await.unwrap_err();
    assert!(matches!(error, WriterError::NothingToRepeat), "{error:?}");
    assert_eq!(writer.settle(shortly()).await.unwrap(), None);
    // Another write under the same number waits for the disk as the first one did, and takes its place there.
    desk.watch.expect(8);
    cancelled(writer.write(issue(8), soon())).await;
    desk.watch.end();
    desk.watch.expect(9);
    assert_eq!(writer.write(issue(9), soon()).await.unwrap().sequence, 2);
    desk.watch.check("write");
    assert_eq!(desk.available().await, 9);
}

/// A fence was noted as sent before its record was stored, so the next one went out without any.
#[tokio::test(flavor = "multi_thread")]
async fn a_fence_that_is_cancelled_before_it_is_stored_is_stored_the_next_time() {
    let desk = Desk::new().await;
    let mut writer = desk.open_unfinished(7).await;
    desk.watch.begin(Trouble::Blocks);
    cancelled(writer.settle(soon())).await;
    cancelled(writer.settle(soon())).await;
    let fences = |desk: &Desk| {
        desk.watch.sent.lock().unwrap().iter().filter(|step| **step == Step::SendingFence).count()
    };
    assert_eq!(fences(&desk), 1, "the one of the start");
    cancelled(writer.repeat(issue(7), soon())).await;
    desk.watch.end();
    assert_eq!(writer.settle(soon()).await.unwrap(), Some(Fate::NeverHappened));
    desk.watch.check("settle");
    assert_eq!(desk.available().await, 0);
}

/// The same with a disk that fails: what could not be stored was taken for stored.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_while_the_disk_fails_and_all_goes_on_when_it_works_again() {
    for trouble in FAILURES {
        let desk = Desk::new().await;
        let mut writer = desk.open().await;
        desk.watch.expect(7);
        desk.watch.begin(trouble);
        for _ in 0..2 {
            let error = writer.write(issue(7), soon()).await.unwrap_err();
            assert!(matches!(error, WriterError::File(_)), "{trouble:?}: {error:?}");
            assert_eq!(writer.unfinished(), None, "{trouble:?}");
        }
        desk.watch.end();
        assert_eq!(writer.write(issue(7), soon()).await.unwrap().sequence, 2, "{trouble:?}");
        desk.watch.check(&format!("{trouble:?}, write"));
        // Whatever the disk kept of the attempts, the file goes with what the server has.
        drop(writer);
        assert_eq!(desk.open().await.unfinished().map(|unfinished| unfinished.sequence), Some(2));
        assert_eq!(desk.available().await, 7, "{trouble:?}");

        let desk = Desk::new().await;
        let mut writer = desk.open_unfinished(7).await;
        desk.watch.begin(trouble);
        for _ in 0..2 {
            let error = writer.settle(soon()).await.unwrap_err();
            assert!(matches!(error, WriterError::File(_)), "{trouble:?}: {error:?}");
        }
        desk.watch.end();
        assert_eq!(writer.repeat(issue(7), soon()).await.unwrap().sequence, 2, "{trouble:?}");
        desk.watch.check(&format!("{trouble:?}, settle and repeat"));
        assert_eq!(desk.available().await, 7, "{trouble:?}");
    }
}

const STATE: &str = r#"{"last_committed_sequence":0}"#;
const REFUSED: &str = r#"{"error":{"code":"INSUFFICIENT_CREDIT","message":"too little"}}"#;
const REUSED: &str =
    r#"{"error":{"code":"SEQUENCE_REUSED","message":"other content","last_committed_sequence":2}}"#;

fn success(sequence: u64) -> String {
    format!(
        r#"{{"success":{{"tx_id":"t","sequence":{sequence},"log_index":1,"committed_at_unix_ms":1,"actor":"a","results":[]}}}}"#
    )
}

/// A write without an answer is refused when it is sent again, and the fence finds that it was committed all the same.
/// When no receipt came before the deadline, the writer took its number for committed and for unfinished at once, and
/// wrote a file that it called damaged later; a caller that gave up then was told that nothing was unfinished.
#[tokio::test]
async fn a_number_found_committed_stays_unfinished_until_its_receipt_is_here() {
    for is_cancelled in [false, true] {
        let mut asked = 0;
        let script = Scripted::by(move |request| {
            asked += 1;
            match (request.starts_with("GET "), asked) {
                (true, 1) => Some((200, STATE.to_owned())),
                (true, _) => Some((200, STATE.replace('0', "2"))),
                (_, 2) => Some((200, success(1))),
                // The write: no answer, a refusal; and its fence, which comes too late.
                (_, 4) => Some((402, REFUSED.to_owned())),
                (_, 5) => Some((409, REUSED.to_owned())),
                _ => None,
            }
        })
        .await;
        let folder = TempDir::new().unwrap();
        let options = || WriterOptions::new(folder.path().join("seq"), scope(), "billing".parse().unwrap());
        let client = client_of(std::slice::from_ref(&script.url), Protocol::Http);
        let mut writer = Writer::open(&client, options(), soon()).await.unwrap();
        if is_cancelled {
            let write = writer.write(issue(1), soon());
            assert!(tokio::time::timeout(Duration::from_millis(700), write).await.is_err());
        } else {
            let error = writer.write(issue(1), shortly()).await.unwrap_err();
            assert!(matches!(error, WriterError::OutcomeUnknown { sequence: 2, .. }), "{error:?}");
        }
        assert!(script.asked().len() > 5, "{:?}", script.asked());
        assert_eq!(writer.unfinished().map(|unfinished| unfinished.sequence), Some(2));
        assert_eq!(writer.committed(), 1);
        let error = writer.settle(shortly()).await.unwrap_err();
        assert!(matches!(error, WriterError::OutcomeUnknown { sequence: 2, .. }), "{error:?}");
        drop(writer);
        let writer = Writer::open(&client, options(), soon()).await.unwrap();
        assert_eq!(writer.unfinished().map(|unfinished| unfinished.sequence), Some(2));
    }
}
