//! The connections to an upstream: which are kept, and for how long.

use std::time::Duration;

use earmark_client::CallResult;
use tokio::time::{advance, pause, resume, sleep};

use crate::fixture::{CHAT_BODY, CHAT_STREAM_BODY, Running};
use crate::upstream::{CHAT, CHAT_STREAM, Step, chunk, stream, stream_head, whole};

#[tokio::test]
async fn one_connection_serves_calls_that_follow_each_other() {
    let gateway = Running::start("").await;
    gateway.upstream.then(whole(200, "", CHAT));
    gateway.upstream.then(stream(&CHAT_STREAM));
    gateway.upstream.then(whole(400, "", "{\"error\":{}}"));
    gateway.upstream.then(whole(200, "", CHAT));
    for (body, status) in [(CHAT_BODY, 200), (CHAT_STREAM_BODY, 200), (CHAT_BODY, 400), (CHAT_BODY, 200)] {
        assert_eq!(gateway.chat(body).await.status, status, "{body}");
    }
    assert_eq!(gateway.upstream.connections(), (1, 1));
    let host = gateway.upstream.url.trim_start_matches("http://");
    for seen in gateway.upstream.seen() {
        assert!(seen.headers("host").eq([host]), "{}", seen.head);
        assert!(seen.head.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"), "{}", seen.head);
    }
}

#[tokio::test]
async fn calls_at_the_same_time_have_a_connection_each() {
    let gateway = Running::start("").await;
    let mut slow = whole(200, "", CHAT);
    slow.insert(0, Step::Wait(Duration::from_millis(200)));
    gateway.upstream.always(slow);
    let (first, second) = tokio::join!(gateway.chat(CHAT_BODY), gateway.chat(CHAT_BODY));
    assert_eq!((first.status, second.status), (200, 200));
    assert_eq!(gateway.upstream.connections(), (2, 2));
}

#[tokio::test]
async fn a_connection_that_the_upstream_closed_gets_no_call() {
    let gateway = Running::start("").await;
    for calls in 1..=3 {
        let mut closing = whole(200, "", CHAT);
        closing.push(Step::Close);
        gateway.upstream.then(closing);
        assert_eq!(gateway.chat(CHAT_BODY).await.status, 200);
        sleep(Duration::from_millis(50)).await;
        assert_eq!(gateway.upstream.connections(), (calls, 0));
    }
}

#[tokio::test]
async fn a_connection_whose_answer_was_cut_off_gets_no_call() {
    let gateway = Running::start("disconnect = \"cancel\"").await;
    gateway.upstream.then(vec![stream_head(), chunk(CHAT_STREAM[0]), Step::Hang]);
    gateway.upstream.then(whole(200, "", CHAT));
    let mut client = gateway.connect().await;
    crate::fixture::send(&mut client, "/v1/chat/completions", "", CHAT_STREAM_BODY).await;
    while gateway.upstream.seen().is_empty() {
        sleep(Duration::from_millis(5)).await;
    }
    sleep(Duration::from_millis(50)).await;
    drop(client);
    assert_eq!(gateway.earmark.settled().await, [CallResult::Unknown]);
    assert_eq!(gateway.chat(CHAT_BODY).await.status, 200);
    assert_eq!(gateway.upstream.connections(), (2, 1));
}

#[tokio::test]
async fn an_idle_connection_is_closed() {
    let gateway = Running::start("").await;
    gateway.upstream.always(whole(200, "", CHAT));
    assert_eq!(gateway.chat(CHAT_BODY).await.status, 200);
    sleep(Duration::from_millis(50)).await;
    assert_eq!(gateway.upstream.connections(), (1, 1));
    pause();
    advance(Duration::from_secs(40)).await;
    resume();
    sleep(Duration::from_millis(200)).await;
    assert_eq!(gateway.upstream.connections(), (1, 0));
    assert_eq!(gateway.chat(CHAT_BODY).await.status, 200);
    assert_eq!(gateway.upstream.connections(), (2, 1));
}
