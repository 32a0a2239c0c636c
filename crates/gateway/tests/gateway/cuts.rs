//! The connection to the client, to the upstream and the gateway itself are cut at every frame: each call is charged
//! exactly once.

use std::time::Duration;

use earmark_client::{CallResult, CallUsage};
use earmark_gateway::open_calls::OpenCalls;
use tokio::io::AsyncReadExt as _;

use crate::earmark::Double;
use crate::fixture::{Answer, CHAT_BODY, CHAT_STREAM_BODY, Running, config, send};
use crate::upstream::{CHAT, CHAT_STREAM, Step, Upstream, chunk, stream, stream_end, stream_head, whole};

fn used() -> CallResult {
    CallResult::Used(CallUsage { input_tokens: 7, output_tokens: 3, ..CallUsage::default() })
}

/// A stream with a pause after `frames` of its frames.
fn paused_after(frames: usize) -> Vec<Step> {
    let mut steps = vec![stream_head()];
    for (place, frame) in CHAT_STREAM.iter().enumerate() {
        if place == frames {
            steps.push(Step::Wait(Duration::from_millis(150)));
        }
        steps.push(chunk(frame));
    }
    steps.push(stream_end());
    steps
}

/// Reads until a text was seen, and leaves.
async fn leave_after(gateway: &Running, frames: usize) {
    let mut stream = gateway.connect().await;
    send(&mut stream, "/v1/chat/completions", "", CHAT_STREAM_BODY).await;
    let mut read = Vec::new();
    let mut piece = [0; 1_024];
    while read.windows(6).filter(|six| six == b"data: ").count() < frames {
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => break,
            Ok(length) => read.extend_from_slice(&piece[..length]),
        }
    }
}

/// LiteLLM and others free a call whose client leaves.
#[tokio::test]
async fn a_client_that_disconnects_does_not_get_a_free_call() {
    for frames in 0..4 {
        let gateway = Running::start("").await;
        gateway.upstream.always(paused_after(frames));
        leave_after(&gateway, frames.min(3)).await;
        while gateway.earmark.leases().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let results = gateway.earmark.settled().await;
        // A client that leaves before its call is sent pays nothing, because nothing was sent.
        let was_sent = !gateway.upstream.seen().is_empty();
        assert_eq!(results, [if was_sent { used() } else { CallResult::Refused }], "after {frames}");
        assert_eq!(gateway.upstream.finished(), usize::from(was_sent), "the stream was read to its end");
    }
}

/// A call for nobody would be paid by the client that has gone.
#[tokio::test]
async fn a_client_that_has_gone_gets_no_second_target() {
    let gateway = Running::start("").await;
    let refusal = whole(503, "", "{}").remove(0);
    gateway.upstream.then(vec![Step::Wait(Duration::from_millis(300)), refusal]);
    gateway.upstream.always(stream(&CHAT_STREAM));
    {
        let mut client = gateway.connect().await;
        send(&mut client, "/v1/chat/completions", "", &CHAT_STREAM_BODY.replace("fast", "both")).await;
        while gateway.upstream.seen().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    assert_eq!(gateway.earmark.settled().await, [CallResult::Refused]);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(gateway.upstream.seen().len(), 1);
}

#[tokio::test]
async fn a_cancelled_stream_pays_its_bound() {
    let gateway = Running::start("disconnect = \"cancel\"").await;
    gateway.upstream.always(vec![stream_head(), chunk(CHAT_STREAM[0]), Step::Hang]);
    leave_after(&gateway, 1).await;
    assert_eq!(gateway.earmark.settled().await, [CallResult::Unknown]);
}

#[tokio::test]
async fn drains_have_bounds() {
    let gateway = Running::start("drain_max = 1\ndrain_seconds = 1").await;
    gateway.upstream.always(vec![stream_head(), chunk(CHAT_STREAM[0]), Step::Hang]);
    leave_after(&gateway, 1).await;
    leave_after(&gateway, 1).await;
    let started = std::time::Instant::now();
    assert_eq!(gateway.earmark.settled().await, [CallResult::Unknown, CallResult::Unknown]);
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn an_upstream_that_is_cut_at_any_frame_never_ends_the_clients_stream_cleanly() {
    for frames in 0..=CHAT_STREAM.len() {
        let gateway = Running::start("").await;
        let mut steps = vec![stream_head()];
        steps.extend(CHAT_STREAM[..frames].iter().map(|frame| chunk(frame)));
        steps.push(Step::Close);
        gateway.upstream.always(steps);
        let answer = gateway.chat(CHAT_STREAM_BODY).await;
        assert!(!answer.is_whole, "after {frames}: {answer:?}");
        let results = gateway.earmark.settled().await;
        // With its terminal event the usage is complete, whatever happens to the connection.
        let expected = if frames == CHAT_STREAM.len() { used() } else { CallResult::Unknown };
        assert_eq!(results, [expected], "after {frames}");
    }
}

/// Such an answer ends with its connection, so that a cut looks like an end.
#[tokio::test]
async fn an_answer_without_a_length_is_whole_only_with_the_end_of_its_json() {
    let gateway = Running::start("").await;
    for length in [0, 1, CHAT.len() / 2, CHAT.len() - 1, CHAT.len()] {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n";
        gateway.upstream.then(vec![Step::Send((head.to_owned() + &CHAT[..length]).into_bytes()), Step::Close]);
        let answer = gateway.chat(CHAT_BODY).await;
        let is_whole = length == CHAT.len();
        assert_eq!(answer.status, if is_whole { 200 } else { 502 }, "{length} bytes: {answer:?}");
        let result = gateway.earmark.settled().await.pop().unwrap();
        assert_eq!(matches!(result, CallResult::Used(_)), is_whole, "{length} bytes: {result:?}");
        assert!(is_whole || result == CallResult::Unknown, "{length} bytes: {result:?}");
    }
}

#[tokio::test]
async fn a_client_that_reads_nothing_stops_the_upstream_and_is_cut_off() {
    let gateway = Running::start("timeouts = { idle_seconds = 1 }\ndisconnect = \"cancel\"").await;
    let frame = format!("data: {}\n\n", "x".repeat(60_000));
    let mut steps = vec![stream_head()];
    steps.extend((0..1_000).map(|_| chunk(&frame)));
    gateway.upstream.always(steps);
    let mut stream = gateway.connect().await;
    send(&mut stream, "/v1/chat/completions", "", CHAT_STREAM_BODY).await;
    assert_eq!(gateway.earmark.settled().await.len(), 0, "not yet");
    while gateway.earmark.leases().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(gateway.earmark.settled().await, [CallResult::Unknown]);
    assert_eq!(gateway.upstream.finished(), 0, "60 MB did not go into memory");
    let answer = Answer::read(&mut stream).await;
    assert!(!answer.is_whole);
}

/// A gateway that is gone at any step leaves the call in its folder, and the next one settles it.
#[tokio::test]
async fn the_next_start_settles_what_a_crash_left() {
    for (steps, expected) in [
        (vec![Step::Hang], CallResult::Unknown),
        (vec![stream_head(), chunk(CHAT_STREAM[0]), Step::Hang], CallResult::Unknown),
    ] {
        let (upstream, earmark) = (Upstream::start().await, Double::default());
        let folder = tempfile::tempdir().unwrap();
        upstream.always(steps);
        // A killed gateway leaves its folder, as it is at that moment.
        let copy = tempfile::tempdir().unwrap();
        {
            let gateway = Running::on(folder.path(), &upstream, &earmark).await;
            let mut stream = gateway.connect().await;
            send(&mut stream, "/v1/chat/completions", "", CHAT_STREAM_BODY).await;
            while upstream.seen().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            std::fs::copy(folder.path().join("calls"), copy.path().join("calls")).unwrap();
        }
        assert!(earmark.leases()[0].outcome.is_none());
        let next = Running::on(copy.path(), &upstream, &earmark).await;
        assert_eq!(earmark.settled().await, [expected]);
        assert_eq!(next.metric("earmark_gateway_settled_total{by=\"recovered\"}").await, 1);
        next.stop().await;
        assert!(OpenCalls::open(copy.path()).unwrap().list().is_empty());
    }
}

#[tokio::test]
async fn a_stop_finishes_the_calls_in_flight() {
    let gateway = Running::start("").await;
    gateway.upstream.always(paused_after(2));
    let mut stream = gateway.connect().await;
    send(&mut stream, "/v1/chat/completions", "", CHAT_STREAM_BODY).await;
    while gateway.upstream.seen().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let earmark = gateway.earmark.clone();
    let (answer, ()) = tokio::join!(Answer::read(&mut stream), gateway.stop());
    assert!(answer.is_whole, "{answer:?}");
    assert_eq!(earmark.settled().await, [used()]);
}

#[tokio::test]
async fn a_call_has_its_place_until_it_is_settled() {
    let upstream = Upstream::start().await;
    let text = "max_calls = 1\n".to_owned() + &config(&upstream, "");
    let gateway = Running::with(&text, upstream, Double::default(), OpenCalls::in_memory(), false).await;
    gateway.upstream.then(stream(&CHAT_STREAM));
    assert!(gateway.chat(CHAT_STREAM_BODY).await.is_whole);
    gateway.earmark.settled().await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    gateway.upstream.then(vec![Step::Wait(Duration::from_millis(300)), whole(200, "", CHAT).remove(0)]);
    let (first, second) = tokio::join!(gateway.chat(CHAT_STREAM_BODY), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        gateway.chat(CHAT_STREAM_BODY).await
    });
    assert_eq!((first.status, second.status), (200, 503), "one call at a time");
}

#[tokio::test]
async fn an_upstream_that_stalls_is_cut_off_after_the_idle_timeout() {
    let gateway = Running::start("timeouts = { idle_seconds = 1 }").await;
    gateway.upstream.always(vec![stream_head(), chunk(CHAT_STREAM[0]), Step::Hang]);
    let answer = gateway.chat(CHAT_STREAM_BODY).await;
    assert_eq!((answer.status, answer.text().as_str(), answer.is_whole), (200, CHAT_STREAM[0], false));
    assert_eq!(gateway.earmark.settled().await, [CallResult::Unknown]);
}
