//! Sequenced writes: exactly once, whatever is lost on the way.

use std::time::Duration;

use earmark_client::core::Operation;
use earmark_client::{
    Deadline, Failure, Fate, Protocol, SequenceConflict, SequenceFileError, WriteCode, Writer, WriterError,
};
use tempfile::TempDir;

use crate::fixture::{
    Reply, ScriptedServer, WriterFixture, client_state, issue, shortly, unauthorized, unavailable, write_refused,
    writer_options, written,
};
use crate::support::proxy::Fault;
use crate::support::soon;

/// A writer of the client `billing`.
async fn open(fixture: &WriterFixture) -> Writer {
    open_at(fixture, "seq").await.unwrap()
}

async fn open_at(fixture: &WriterFixture, name: &str) -> Result<Writer, WriterError> {
    Writer::open(&fixture.client(), writer_options(&fixture.path(name)), soon()).await
}

/// A writer that has no time for a second attempt.
async fn open_impatient(fixture: &WriterFixture) -> Writer {
    let options = writer_options(&fixture.path("seq"));
    Writer::open(&fixture.impatient_client(), options, soon()).await.unwrap()
}

fn transfer(amount: u128) -> Vec<Operation> {
    let (from, to) = ("acme".parse().unwrap(), "bob".parse().unwrap());
    vec![Operation::Transfer { from, to, asset: "usd".parse().unwrap(), amount, memo: String::new() }]
}

#[tokio::test]
async fn sequences_are_consecutive_and_a_closed_writer_has_nothing_unfinished() {
    let fixture = WriterFixture::new().await;
    let mut writer = open(&fixture).await;
    // The first sequence of a writer without a file is a fence.
    for sequence in 2..=5 {
        assert_eq!(writer.write(issue(1), soon()).await.unwrap().sequence, Some(sequence));
    }
    writer.close().await.unwrap();
    let mut writer = open(&fixture).await;
    assert_eq!((writer.unfinished(), writer.committed()), (None, 5));
    assert_eq!(writer.write(issue(1), soon()).await.unwrap().sequence, Some(6));
    assert_eq!(fixture.available("acme").await, 5);
}

#[tokio::test]
async fn a_write_is_applied_once_whatever_happens_to_its_copies() {
    let fixture = WriterFixture::new().await;
    let mut writer = open(&fixture).await;
    let faults =
        [Fault::LoseRequest, Fault::CutRequest, Fault::LoseAnswer, Fault::CutAnswer, Fault::LateRequest, Fault::Twice];
    for (count, fault) in (1..).zip(faults) {
        fixture.proxy.script(&[Some(fault), Some(fault)]);
        assert_eq!(writer.write(issue(1), soon()).await.unwrap().sequence, Some(count + 1), "{fault:?}");
    }
    // Late copies have arrived by then.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(fixture.available("acme").await, 6);
}

/// A write is refused for lack of credit while an earlier copy of it is still on its way. Then credit arrives, and then
/// the copy: without a fence it would be executed after its caller got a refusal.
#[tokio::test]
async fn a_refusal_after_an_unknown_outcome_is_made_final_by_a_fence() {
    let fixture = WriterFixture::new().await;
    let mut writer = open(&fixture).await;
    fixture.proxy.script(&[Some(Fault::LateRequest)]);
    let error = writer.write(transfer(5), soon()).await.unwrap_err();
    let WriterError::Refused(refusal) = error else { panic!("{error:?}") };
    assert_eq!(refusal.code, WriteCode::InsufficientCredit);
    // The fence took sequence 2.
    assert_eq!(writer.write(issue(100), soon()).await.unwrap().sequence, Some(3));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!((fixture.available("acme").await, fixture.available("bob").await), (100, 0));
}

#[tokio::test]
async fn a_sequence_that_was_never_sent_is_free() {
    let fixture = WriterFixture::new().await;
    let mut writer = open(&fixture).await;
    let error = writer.write(issue(7), Deadline::after(Duration::ZERO)).await.unwrap_err();
    assert!(matches!(error, WriterError::NotSent(_)), "{error:?}");
    assert_eq!(writer.unfinished(), None);
    assert_eq!(writer.write(issue(1), soon()).await.unwrap().sequence, Some(2));
    assert_eq!(fixture.available("acme").await, 1);
}

#[tokio::test]
async fn a_refusal_leaves_its_sequence_free() {
    let fixture = WriterFixture::new().await;
    let mut writer = open(&fixture).await;
    let error = writer.write(transfer(5), soon()).await.unwrap_err();
    assert!(matches!(error, WriterError::Refused(_)), "{error:?}");
    assert_eq!(writer.unfinished(), None);
    assert_eq!(writer.write(issue(1), soon()).await.unwrap().sequence, Some(2));
}

#[tokio::test]
async fn a_write_without_an_answer_is_unfinished_until_it_is_repeated_or_settled() {
    let fixture = WriterFixture::new().await;
    let mut writer = open_impatient(&fixture).await;
    for (fault, fate) in [(Fault::LoseAnswer, Fate::Committed), (Fault::LoseRequest, Fate::NeverHappened)] {
        for repeats in [true, false] {
            let before = fixture.available("acme").await;
            fixture.proxy.script(&[Some(fault)]);
            let error = writer.write(issue(7), shortly()).await.unwrap_err();
            let WriterError::OutcomeUnknown { sequence, .. } = error else { panic!("{error:?}") };
            assert_eq!(writer.unfinished().map(|unfinished| unfinished.sequence), Some(sequence));
            let next = writer.write(issue(9), soon()).await.unwrap_err();
            assert!(matches!(next, WriterError::Unfinished { .. }), "{next:?}");
            let other = writer.repeat(issue(9), soon()).await.unwrap_err();
            assert!(matches!(other, WriterError::OtherContent { .. }), "{other:?}");
            let happened = if repeats {
                assert_eq!(writer.repeat(issue(7), soon()).await.unwrap().sequence, Some(sequence));
                true
            } else {
                assert_eq!(writer.settle(soon()).await.unwrap(), Some(fate));
                fate == Fate::Committed
            };
            assert_eq!(writer.settle(soon()).await.unwrap(), None);
            let expected = if happened { before + 7 } else { before };
            assert_eq!(fixture.available("acme").await, expected, "{fault:?}, {repeats}");
        }
    }
}

#[tokio::test]
async fn a_writer_that_was_not_closed_comes_back_unfinished() {
    let fixture = WriterFixture::new().await;
    let mut writer = open(&fixture).await;
    let receipt = writer.write(issue(1), soon()).await.unwrap();
    drop(writer);
    let mut writer = open(&fixture).await;
    assert_eq!(writer.unfinished().map(|unfinished| unfinished.sequence), Some(2));
    assert_eq!(writer.repeat(issue(1), soon()).await.unwrap(), receipt);
    drop(writer);
    let mut writer = open(&fixture).await;
    assert_eq!(writer.settle(soon()).await.unwrap(), Some(Fate::Committed));
    assert_eq!(writer.write(issue(1), soon()).await.unwrap().sequence, Some(3));
    assert_eq!(fixture.available("acme").await, 2);
}

#[tokio::test]
async fn a_fenced_write_cannot_be_repeated() {
    let fixture = WriterFixture::new().await;
    let mut writer = open_impatient(&fixture).await;
    fixture.proxy.script(&[Some(Fault::LoseRequest)]);
    writer.write(issue(7), shortly()).await.unwrap_err();
    // The answer to the fence is lost, so it is unknown which of the two has the sequence.
    fixture.proxy.script(&[Some(Fault::LoseAnswer)]);
    let error = writer.settle(shortly()).await.unwrap_err();
    assert!(matches!(error, WriterError::OutcomeUnknown { .. }), "{error:?}");
    drop(writer);
    let mut writer = open(&fixture).await;
    let error = writer.repeat(issue(7), soon()).await.unwrap_err();
    assert!(matches!(error, WriterError::Fenced { sequence: 2 }), "{error:?}");
    assert_eq!(writer.write(issue(7), soon()).await.unwrap().sequence, Some(3));
    assert_eq!(fixture.available("acme").await, 7);
}

#[tokio::test]
async fn a_writer_without_its_file_continues_after_the_last_sequence_of_the_server() {
    let fixture = WriterFixture::new().await;
    let mut writer = open_impatient(&fixture).await;
    writer.write(issue(1), soon()).await.unwrap();
    // The unfinished write of the file is still on its way when the file is lost.
    fixture.proxy.script(&[Some(Fault::LateRequest)]);
    let cut_off = tokio::time::timeout(Duration::from_millis(30), writer.write(issue(10), soon())).await;
    assert!(cut_off.is_err(), "{cut_off:?}");
    drop(writer);
    std::fs::remove_file(fixture.path("seq")).unwrap();
    let mut writer = open(&fixture).await;
    assert_eq!(writer.unfinished(), None);
    let now = fixture.available("acme").await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(fixture.available("acme").await, now, "no earlier write is executed once the writer is open");
    assert!(writer.write(issue(1), soon()).await.unwrap().sequence >= Some(4));
}

#[tokio::test]
async fn a_second_writer_of_the_same_name_stops_the_first() {
    let fixture = WriterFixture::new().await;
    let mut first = open(&fixture).await;
    first.write(issue(1), soon()).await.unwrap();
    let mut second = open_at(&fixture, "other").await.unwrap();
    for _ in 0..2 {
        let error = first.write(issue(1), soon()).await.unwrap_err();
        let WriterError::Conflict(SequenceConflict::NumberTaken { sequence: 3 }) = error else { panic!("{error:?}") };
    }
    second.write(issue(1), soon()).await.unwrap();
    drop(first);
    let error = open_at(&fixture, "seq").await.unwrap_err();
    let WriterError::Conflict(SequenceConflict::ServerAhead { server: 4, file: 3 }) = error else {
        panic!("{error:?}")
    };
    assert!(error.to_string().contains("another writer"), "{error}");
    assert_eq!(fixture.available("acme").await, 2);
}

/// A writer with an unknown outcome finds its sequence taken, and others after it: it cannot tell whether the sequence is
/// its own.
#[tokio::test]
async fn a_sequence_that_another_writer_continued_from_is_a_conflict() {
    let fixture = WriterFixture::new().await;
    let mut first = open_impatient(&fixture).await;
    // The other writer has a copy of the file, as from a restored backup.
    std::fs::copy(fixture.path("seq"), fixture.path("copy")).unwrap();
    fixture.proxy.script(&[Some(Fault::LoseRequest)]);
    first.write(issue(1), shortly()).await.unwrap_err();
    let mut second = open_at(&fixture, "copy").await.unwrap();
    second.write(issue(5), soon()).await.unwrap();
    second.write(issue(5), soon()).await.unwrap();
    let error = first.settle(soon()).await.unwrap_err();
    let WriterError::Conflict(SequenceConflict::ServerAhead { server: 3, file: 2 }) = error else {
        panic!("{error:?}")
    };
}

#[tokio::test]
async fn a_server_that_lost_what_it_acknowledged_is_not_written_to() {
    let fixture = WriterFixture::new().await;
    let mut writer = open(&fixture).await;
    for _ in 0..3 {
        writer.write(issue(1), soon()).await.unwrap();
    }
    let fresh = WriterFixture::new().await;
    let mut other = Writer::open(&fresh.client(), writer_options(&fresh.path("new")), soon()).await.unwrap();
    other.write(issue(1), soon()).await.unwrap();
    drop(other);
    std::fs::copy(fixture.path("seq"), fresh.path("old")).unwrap();
    let direct = fresh.server.client(Protocol::Grpc);
    let error = Writer::open(&direct, writer_options(&fresh.path("old")), soon()).await.unwrap_err();
    let WriterError::Conflict(SequenceConflict::ServerBehind { server: 2, file: 3 }) = error else {
        panic!("{error:?}")
    };
    assert!(error.to_string().contains("older backup"), "{error}");
}

#[tokio::test]
async fn only_one_writer_has_the_file() {
    let fixture = WriterFixture::new().await;
    let _first = open(&fixture).await;
    let error = open_at(&fixture, "seq").await.unwrap_err();
    assert!(matches!(error, WriterError::File(SequenceFileError::InUse { .. })), "{error:?}");
}

#[tokio::test]
async fn a_cancelled_write_is_unfinished_or_never_began() {
    let fixture = WriterFixture::new().await;
    let mut writer = open(&fixture).await;
    let (mut expected, mut interrupted) = (0, 0);
    for turns in (0..100).map(|turn| turn * turn) {
        // Counted in turns of the runtime, so that a fast machine is interrupted too.
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
    assert_eq!(fixture.available("acme").await, expected);
}

async fn yield_often(turns: u32) {
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
}

/// The key is revoked while an outcome is unknown: neither a copy nor a fence is accepted any more, so the outcome cannot
/// be learned.
#[tokio::test]
async fn an_unknown_outcome_that_cannot_be_fenced_stays_unknown() {
    let replies = vec![client_state(0), written(1), None, unauthorized(), unauthorized()];
    let client = ScriptedServer::list(replies).await.client();
    let folder = TempDir::new().unwrap();
    let mut writer = Writer::open(&client, writer_options(&folder.path().join("seq")), soon()).await.unwrap();
    let error = writer.write(issue(1), soon()).await.unwrap_err();
    let WriterError::OutcomeUnknown { sequence: 2, .. } = error else { panic!("{error:?}") };
    assert_eq!(writer.unfinished().map(|unfinished| unfinished.sequence), Some(2));
}

/// A writer that has committed sequence 1, and whose sequence 2 meets a gap; `after` are the replies after that.
struct GapFixture {
    writer: Writer,
    script: ScriptedServer,
    _folder: TempDir,
}

impl GapFixture {
    async fn new(after: Vec<Reply>) -> GapFixture {
        let mut replies = vec![client_state(0), written(1), write_refused(409, "SEQUENCE_GAP", 0)];
        replies.extend(after);
        let script = ScriptedServer::list(replies).await;
        let folder = TempDir::new().unwrap();
        let options = writer_options(&folder.path().join("seq"));
        let writer = Writer::open(&script.client(), options, soon()).await.unwrap();
        GapFixture { writer, script, _folder: folder }
    }
}

#[tokio::test]
async fn a_gap_that_the_server_no_longer_sees_is_retried() {
    let mut gap = GapFixture::new(vec![client_state(1), written(2)]).await;
    assert_eq!(gap.writer.write(issue(1), soon()).await.unwrap().sequence, Some(2));
    assert_eq!(gap.script.requests().len(), 5);
}

#[tokio::test]
async fn a_gap_that_the_server_confirms_is_a_loss_and_stops_the_writer() {
    let mut gap = GapFixture::new(vec![client_state(0)]).await;
    for _ in 0..2 {
        let error = gap.writer.write(issue(1), soon()).await.unwrap_err();
        let WriterError::Conflict(SequenceConflict::ServerBehind { server: 0, file: 1 }) = error else {
            panic!("{error:?}")
        };
    }
    assert_eq!(gap.script.requests().len(), 4, "nothing is sent after that");
}

/// A new leader saw a gap, and was gone before it could be asked about it. The writer took that for lost data, and told
/// its operator to remove the file.
#[tokio::test]
async fn a_gap_is_no_loss_while_no_server_confirms_it() {
    for silence in [None, unavailable()] {
        let mut gap = GapFixture::new(vec![silence; 1_000]).await;
        let deadline = Deadline::after(Duration::from_millis(300));
        let error = gap.writer.write(issue(1), deadline).await.unwrap_err();
        assert!(matches!(error, WriterError::OutcomeUnknown { sequence: 2, .. }), "{error:?}");
        assert_eq!(gap.writer.unfinished().map(|unfinished| unfinished.sequence), Some(2));
    }
    // The question is repeated, and the first answer counts.
    let mut gap = GapFixture::new(vec![None, unavailable(), client_state(1), written(2)]).await;
    assert_eq!(gap.writer.write(issue(1), soon()).await.unwrap().sequence, Some(2));
}

#[tokio::test]
async fn a_gap_is_no_loss_while_the_question_about_it_is_refused() {
    let mut gap = GapFixture::new(vec![unauthorized(), written(2)]).await;
    let error = gap.writer.write(issue(1), soon()).await.unwrap_err();
    let WriterError::NotSent(Failure::Unauthorized { .. }) = error else { panic!("{error:?}") };
    assert_eq!(gap.writer.unfinished(), None);
    assert_eq!(gap.writer.write(issue(1), soon()).await.unwrap().sequence, Some(2));
}
