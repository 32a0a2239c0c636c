//! Sequenced writes: once each, whatever is lost on the way, and never where that is not certain.

use std::path::{Path, PathBuf};
use std::time::Duration;

use earmark_client::core::{Operation, Overdraft};
use earmark_client::{
    BackoffOptions, Client, ClientOptions, Danger, Deadline, Fate, Protocol, Scope, SequenceFileError,
    WriteCode, Writer, WriterError, WriterOptions,
};
use tempfile::TempDir;

use crate::scripted::Scripted;
use crate::served::{Served, client_of};
use crate::support::proxy::{Fault, Proxy};
use crate::support::soon;

struct Desk {
    served: Served,
    proxy: Proxy,
    folder: TempDir,
    /// Through the proxy.
    client: Client,
}

impl Desk {
    async fn new() -> Desk {
        let served = Served::start().await;
        let proxy = Proxy::http(&served.address.to_string(), 1, 0).await;
        let client = client_of(&[proxy.url()], Protocol::Http);
        let desk = Desk { served, proxy, folder: TempDir::new().unwrap(), client };
        let mut setup = desk.open_as("setup", &desk.path("setup")).await.unwrap();
        setup.write(accounts(), soon()).await.unwrap();
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn open_as(&self, name: &str, path: &Path) -> Result<Writer, WriterError> {
        Writer::open(&self.client, WriterOptions::new(path, scope(), name.parse().unwrap()), soon()).await
    }

    /// A writer that has no time for a second attempt.
    async fn open_impatient(&self) -> Writer {
        let mut options = ClientOptions::of(&[self.proxy.url()]).unwrap();
        options.backoff = BackoffOptions { first: Duration::from_secs(60), longest: Duration::from_secs(60) };
        let client = Client::new(options).unwrap();
        Writer::open(&client, options_of(&self.path("seq")), soon()).await.unwrap()
    }

    async fn open(&self) -> Writer {
        self.open_as("billing", &self.path("seq")).await.unwrap()
    }

    async fn available(&self, account: &str) -> i128 {
        let direct = self.served.client(Protocol::Http);
        let found = direct.balances(&"main".parse().unwrap(), &account.parse().unwrap(), soon()).await;
        found.unwrap().first().map_or(0, |balance| balance.available)
    }
}

/// Enough for one attempt on a busy machine.
fn shortly() -> Deadline {
    Deadline::after(Duration::from_millis(700))
}

pub fn scope() -> Scope {
    Scope { namespace: "default".parse().unwrap(), vault: Some("main".parse().unwrap()) }
}

/// Opens the accounts that these tests write to.
pub fn accounts() -> Vec<Operation> {
    let open = |account: &str| Operation::OpenAccount {
        account: account.parse().unwrap(),
        overdraft: Overdraft::Deny,
    };
    vec![open("acme"), open("bob")]
}

pub fn issue(amount: u128) -> Vec<Operation> {
    let (account, asset) = ("acme".parse().unwrap(), "usd".parse().unwrap());
    vec![Operation::Issue { account, asset, amount, memo: String::new() }]
}

fn transfer(amount: u128) -> Vec<Operation> {
    let (from, to) = ("acme".parse().unwrap(), "bob".parse().unwrap());
    vec![Operation::Transfer { from, to, asset: "usd".parse().unwrap(), amount, memo: String::new() }]
}

#[tokio::test]
async fn numbers_go_up_by_one_and_a_closed_writer_has_nothing_unfinished() {
    let desk = Desk::new().await;
    let mut writer = desk.open().await;
    // The first number of a writer without a file is a fence.
    for sequence in 2..=5 {
        assert_eq!(writer.write(issue(1), soon()).await.unwrap().sequence, sequence);
    }
    writer.close().await.unwrap();
    let mut writer = desk.open().await;
    assert_eq!((writer.unfinished(), writer.committed()), (None, 5));
    assert_eq!(writer.write(issue(1), soon()).await.unwrap().sequence, 6);
    assert_eq!(desk.available("acme").await, 5);
}

#[tokio::test]
async fn a_write_is_applied_once_whatever_becomes_of_its_copies() {
    let desk = Desk::new().await;
    let mut writer = desk.open().await;
    let faults = [
        Fault::LoseRequest,
        Fault::CutRequest,
        Fault::LoseAnswer,
        Fault::CutAnswer,
        Fault::LateRequest,
        Fault::Twice,
    ];
    for (count, fault) in (1..).zip(faults) {
        desk.proxy.script(&[Some(fault), Some(fault)]);
        assert_eq!(writer.write(issue(1), soon()).await.unwrap().sequence, count + 1, "{fault:?}");
    }
    // What is late has arrived by then.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(desk.available("acme").await, 6);
}

/// A write is refused for lack of credit, but an earlier copy of it is still under way. Credit comes, and then the
/// copy: without a fence it would be carried out after its caller was told that it was not.
#[tokio::test]
async fn a_refusal_after_an_unknown_outcome_is_made_final_by_a_fence() {
    let desk = Desk::new().await;
    let mut writer = desk.open().await;
    desk.proxy.script(&[Some(Fault::LateRequest)]);
    let error = writer.write(transfer(5), soon()).await.unwrap_err();
    let WriterError::Refused(refusal) = error else { panic!("{error:?}") };
    assert_eq!(refusal.code, WriteCode::InsufficientCredit);
    // Number 2 went to the fence, so this is number 3.
    assert_eq!(writer.write(issue(100), soon()).await.unwrap().sequence, 3);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!((desk.available("acme").await, desk.available("bob").await), (100, 0));
}

#[tokio::test]
async fn a_number_that_was_never_sent_is_free() {
    let desk = Desk::new().await;
    let mut writer = desk.open().await;
    let error = writer.write(issue(7), Deadline::after(Duration::ZERO)).await.unwrap_err();
    assert!(matches!(error, WriterError::NotSent(_)), "{error:?}");
    assert_eq!(writer.unfinished(), None);
    assert_eq!(writer.write(issue(1), soon()).await.unwrap().sequence, 2);
    assert_eq!(desk.available("acme").await, 1);
}

#[tokio::test]
async fn a_plain_refusal_leaves_its_number_free() {
    let desk = Desk::new().await;
    let mut writer = desk.open().await;
    let error = writer.write(transfer(5), soon()).await.unwrap_err();
    assert!(matches!(error, WriterError::Refused(_)), "{error:?}");
    assert_eq!(writer.unfinished(), None);
    assert_eq!(writer.write(issue(1), soon()).await.unwrap().sequence, 2);
}

#[tokio::test]
async fn what_has_no_answer_is_unfinished_until_it_is_repeated_or_settled() {
    let desk = Desk::new().await;
    let mut writer = desk.open_impatient().await;
    for (fault, fate) in [(Fault::LoseAnswer, Fate::Committed), (Fault::LoseRequest, Fate::NeverHappened)] {
        for repeats in [true, false] {
            let before = desk.available("acme").await;
            desk.proxy.script(&[Some(fault)]);
            let error = writer.write(issue(7), shortly()).await.unwrap_err();
            let WriterError::OutcomeUnknown { sequence, .. } = error else { panic!("{error:?}") };
            assert_eq!(writer.unfinished().map(|unfinished| unfinished.sequence), Some(sequence));
            let next = writer.write(issue(9), soon()).await.unwrap_err();
            assert!(matches!(next, WriterError::Unfinished { .. }), "{next:?}");
            let other = writer.repeat(issue(9), soon()).await.unwrap_err();
            assert!(matches!(other, WriterError::OtherContent { .. }), "{other:?}");
            let happened = if repeats {
                assert_eq!(writer.repeat(issue(7), soon()).await.unwrap().sequence, sequence);
                true
            } else {
                assert_eq!(writer.settle(soon()).await.unwrap(), Some(fate));
                fate == Fate::Committed
            };
            assert_eq!(writer.settle(soon()).await.unwrap(), None);
            let expected = if happened { before + 7 } else { before };
            assert_eq!(desk.available("acme").await, expected, "{fault:?}, {repeats}");
        }
    }
}

#[tokio::test]
async fn a_writer_that_was_not_closed_comes_back_unfinished() {
    let desk = Desk::new().await;
    let mut writer = desk.open().await;
    let receipt = writer.write(issue(1), soon()).await.unwrap();
    drop(writer);
    let mut writer = desk.open().await;
    assert_eq!(writer.unfinished().map(|unfinished| unfinished.sequence), Some(2));
    assert_eq!(writer.repeat(issue(1), soon()).await.unwrap(), receipt);
    drop(writer);
    let mut writer = desk.open().await;
    assert_eq!(writer.settle(soon()).await.unwrap(), Some(Fate::Committed));
    assert_eq!(writer.write(issue(1), soon()).await.unwrap().sequence, 3);
    assert_eq!(desk.available("acme").await, 2);
}

#[tokio::test]
async fn a_fenced_write_cannot_be_repeated_under_its_number() {
    let desk = Desk::new().await;
    let mut writer = desk.open_impatient().await;
    desk.proxy.script(&[Some(Fault::LoseRequest)]);
    writer.write(issue(7), shortly()).await.unwrap_err();
    // The answer to the fence is lost, so whether it has the number is not known.
    desk.proxy.script(&[Some(Fault::LoseAnswer)]);
    let error = writer.settle(shortly()).await.unwrap_err();
    assert!(matches!(error, WriterError::OutcomeUnknown { .. }), "{error:?}");
    drop(writer);
    let mut writer = desk.open().await;
    let error = writer.repeat(issue(7), soon()).await.unwrap_err();
    assert!(matches!(error, WriterError::Fenced { sequence: 2 }), "{error:?}");
    assert_eq!(writer.write(issue(7), soon()).await.unwrap().sequence, 3);
    assert_eq!(desk.available("acme").await, 7);
}

#[tokio::test]
async fn a_lost_file_is_taken_up_behind_what_the_server_has() {
    let desk = Desk::new().await;
    let mut writer = desk.open_impatient().await;
    writer.write(issue(1), soon()).await.unwrap();
    // The last thing that the file knew of is still under way when it is lost.
    desk.proxy.script(&[Some(Fault::LateRequest)]);
    let cut_off = tokio::time::timeout(Duration::from_millis(30), writer.write(issue(10), soon())).await;
    assert!(cut_off.is_err(), "{cut_off:?}");
    drop(writer);
    std::fs::remove_file(desk.path("seq")).unwrap();
    let mut writer = desk.open().await;
    assert_eq!(writer.unfinished(), None);
    let now = desk.available("acme").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(desk.available("acme").await, now, "nothing happens any more once it is open");
    assert!(writer.write(issue(1), soon()).await.unwrap().sequence >= 4);
}

#[tokio::test]
async fn a_second_writer_of_the_same_name_stops_the_first() {
    let desk = Desk::new().await;
    let mut first = desk.open().await;
    first.write(issue(1), soon()).await.unwrap();
    let mut second = desk.open_as("billing", &desk.path("other")).await.unwrap();
    for _ in 0..2 {
        let error = first.write(issue(1), soon()).await.unwrap_err();
        let WriterError::Unsafe(Danger::NumberTaken { sequence: 3 }) = error else { panic!("{error:?}") };
    }
    second.write(issue(1), soon()).await.unwrap();
    drop(first);
    let error = desk.open_as("billing", &desk.path("seq")).await.unwrap_err();
    let WriterError::Unsafe(Danger::ServerAhead { server: 4, file: 3 }) = error else { panic!("{error:?}") };
    assert!(error.to_string().contains("another writer"), "{error}");
    assert_eq!(desk.available("acme").await, 2);
}

/// A writer whose last outcome is unknown finds its number taken, and others behind it: whether the number is its own
/// cannot be told.
#[tokio::test]
async fn a_number_that_others_have_counted_on_from_is_not_taken_for_ones_own() {
    let desk = Desk::new().await;
    let mut first = desk.open_impatient().await;
    // The other has a copy of the file, as of a backup that was restored beside it.
    std::fs::copy(desk.path("seq"), desk.path("copy")).unwrap();
    desk.proxy.script(&[Some(Fault::LoseRequest)]);
    first.write(issue(1), shortly()).await.unwrap_err();
    let mut second = desk.open_as("billing", &desk.path("copy")).await.unwrap();
    second.write(issue(5), soon()).await.unwrap();
    second.write(issue(5), soon()).await.unwrap();
    let error = first.settle(soon()).await.unwrap_err();
    let WriterError::Unsafe(Danger::ServerAhead { server: 3, file: 2 }) = error else { panic!("{error:?}") };
}

#[tokio::test]
async fn a_server_that_lost_what_it_acknowledged_is_not_written_to() {
    let desk = Desk::new().await;
    let mut writer = desk.open().await;
    for _ in 0..3 {
        writer.write(issue(1), soon()).await.unwrap();
    }
    let fresh = Desk::new().await;
    let mut other = Writer::open(&fresh.client, options_of(&fresh.path("new")), soon()).await.unwrap();
    other.write(issue(1), soon()).await.unwrap();
    drop(other);
    std::fs::copy(desk.path("seq"), fresh.path("old")).unwrap();
    let direct = fresh.served.client(Protocol::Grpc);
    let error = Writer::open(&direct, options_of(&fresh.path("old")), soon()).await.unwrap_err();
    let WriterError::Unsafe(Danger::ServerBehind { server: 2, file: 3 }) = error else { panic!("{error:?}") };
    assert!(error.to_string().contains("older backup"), "{error}");
}

fn options_of(path: &Path) -> WriterOptions {
    WriterOptions::new(path, scope(), "billing".parse().unwrap())
}

#[tokio::test]
async fn only_one_writer_has_the_file() {
    let desk = Desk::new().await;
    let _first = desk.open().await;
    let error = desk.open_as("billing", &desk.path("seq")).await.unwrap_err();
    assert!(matches!(error, WriterError::File(SequenceFileError::InUse { .. })), "{error:?}");
}

#[tokio::test]
async fn a_write_that_is_cancelled_half_way_is_unfinished_or_never_began() {
    let desk = Desk::new().await;
    let mut writer = desk.open().await;
    let (mut expected, mut interrupted) = (0, 0);
    for turns in (0..100).map(|turn| turn * turn) {
        // Turns of the runtime and not time, so that a fast machine is interrupted too.
        let finished = tokio::select! {
            biased;
            () = yield_often(turns) => None,
            written = writer.write(issue(1), soon()) => Some(written),
        };
        let happened = match finished {
            Some(written) => written.map(|_| true).unwrap(),
            None => {
                interrupted += 1;
                writer.settle(soon()).await.unwrap() == Some(Fate::Committed)
            }
        };
        expected += i128::from(happened);
    }
    assert!(interrupted > 10, "{interrupted} were interrupted");
    assert_eq!(desk.available("acme").await, expected);
}

async fn yield_often(turns: u32) {
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
}

/// The key is taken away while an outcome is unknown: neither a copy nor a fence gets through any more, so nobody can
/// say that the write did not happen.
#[tokio::test]
async fn an_unknown_outcome_that_cannot_be_fenced_stays_unknown() {
    let success = r#"{"success":{"tx_id":"t","sequence":1,"log_index":1,"committed_at_unix_ms":1,"actor":"a","results":[]}}"#;
    let refused = (401, r#"{"error":"unauthorized","message":"no such key"}"#);
    let state = (200, r#"{"last_committed_sequence":0}"#);
    let answers = vec![Some(state), Some((200, success)), None, Some(refused), Some(refused)];
    let client = client_of(&[Scripted::lines(answers).await.url], Protocol::Http);
    let folder = TempDir::new().unwrap();
    let mut writer = Writer::open(&client, options_of(&folder.path().join("seq")), soon()).await.unwrap();
    let error = writer.write(issue(1), soon()).await.unwrap_err();
    let WriterError::OutcomeUnknown { sequence: 2, .. } = error else { panic!("{error:?}") };
    assert_eq!(writer.unfinished().map(|unfinished| unfinished.sequence), Some(2));
}
