//! A server that finds a gap before the number of a write: it was behind for a moment, it has lost what it had, or nobody
//! can say.

use std::time::Duration;

use earmark_client::{Danger, Deadline, Failure, Protocol, Writer, WriterError, WriterOptions};
use tempfile::TempDir;

use crate::scripted::{Scene, Scripted};
use crate::served::client_of;
use crate::support::soon;
use crate::writes::{issue, scope};

const GAP: &str = r#"{"error":{"code":"SEQUENCE_GAP","message":"a gap","last_committed_sequence":0}}"#;

fn success(sequence: u64) -> Scene {
    let body = r#"{"success":{"tx_id":"t","sequence":N,"log_index":1,"committed_at_unix_ms":1,"actor":"a","results":[]}}"#;
    Some((200, body.replace('N', &sequence.to_string())))
}

fn state(last: u64) -> Scene {
    Some((200, format!(r#"{{"last_committed_sequence":{last}}}"#)))
}

struct Desk {
    writer: Writer,
    script: Scripted,
    _folder: TempDir,
}

/// A writer that has committed number 1, and whose number 2 meets a gap; and what comes after.
async fn desk(after: Vec<Scene>) -> Desk {
    let mut scenes = vec![state(0), success(1), Some((409, GAP.to_owned()))];
    scenes.extend(after);
    let mut scenes = scenes.into_iter();
    let script = Scripted::by(move |_| scenes.next().flatten()).await;
    let folder = TempDir::new().unwrap();
    let options = WriterOptions::new(folder.path().join("seq"), scope(), "billing".parse().unwrap());
    let client = client_of(std::slice::from_ref(&script.url), Protocol::Http);
    let writer = Writer::open(&client, options, soon()).await.unwrap();
    Desk { writer, script, _folder: folder }
}

#[tokio::test]
async fn a_gap_that_the_server_no_longer_sees_is_written_over() {
    let mut desk = desk(vec![state(1), success(2)]).await;
    assert_eq!(desk.writer.write(issue(1), soon()).await.unwrap().sequence, 2);
    assert_eq!(desk.script.asked().len(), 5);
}

#[tokio::test]
async fn a_gap_that_the_server_confirms_is_a_loss_and_stops_the_writer() {
    let mut desk = desk(vec![state(0)]).await;
    for _ in 0..2 {
        let error = desk.writer.write(issue(1), soon()).await.unwrap_err();
        let WriterError::Unsafe(Danger::ServerBehind { server: 0, file: 1 }) = error else {
            panic!("{error:?}")
        };
    }
    assert_eq!(desk.script.asked().len(), 4, "nothing is sent after that");
}

/// A node that had just become leader saw a gap, and was gone before it could be asked about it. The writer took that
/// for data that was lost, and told its operator to remove the file.
#[tokio::test]
async fn a_gap_that_nobody_can_be_asked_about_is_no_verdict() {
    let unavailable = || Some((503, r#"{"error":"unavailable","message":"no leader"}"#.to_owned()));
    for silence in [None, unavailable()] {
        let mut desk = desk(vec![silence; 1_000]).await;
        let deadline = Deadline::after(Duration::from_millis(300));
        let error = desk.writer.write(issue(1), deadline).await.unwrap_err();
        assert!(matches!(error, WriterError::OutcomeUnknown { sequence: 2, .. }), "{error:?}");
        assert_eq!(desk.writer.unfinished().map(|unfinished| unfinished.sequence), Some(2));
    }
    // It is asked again and again, and the first answer counts.
    let mut desk = desk(vec![None, unavailable(), state(1), success(2)]).await;
    assert_eq!(desk.writer.write(issue(1), soon()).await.unwrap().sequence, 2);
}

#[tokio::test]
async fn a_gap_whose_question_is_refused_is_no_verdict_either() {
    let refused = Some((401, r#"{"error":"unauthorized","message":"no such key"}"#.to_owned()));
    let mut desk = desk(vec![refused, success(2)]).await;
    let error = desk.writer.write(issue(1), soon()).await.unwrap_err();
    let WriterError::NotSent(Failure::Unauthorized { .. }) = error else { panic!("{error:?}") };
    assert_eq!(desk.writer.unfinished(), None);
    assert_eq!(desk.writer.write(issue(1), soon()).await.unwrap().sequence, 2);
}
