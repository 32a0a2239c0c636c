//! The memory of a gateway has a bound, whatever clients and upstreams do.

use std::time::Duration;

use earmark_client::CallResult;
use earmark_gateway::open_calls::OpenCalls;
use earmark_gateway::sse::FRAME_BYTES_MAX;
use tokio::io::AsyncWriteExt as _;

use crate::earmark::Double;
use crate::fixture::{Answer, CHAT_BODY, CHAT_STREAM_BODY, Running, config, send};
use crate::upstream::{CHAT, CHAT_STREAM, Step, Upstream, chunk, stream_head, whole};

/// A gateway with these settings at the top.
async fn start(top: &str) -> Running {
    let upstream = Upstream::start().await;
    let text = format!("{top}\n{}", config(&upstream, ""));
    Running::with(&text, upstream, Double::default(), OpenCalls::in_memory(), false).await
}

fn large(body: &str, bytes: usize) -> String {
    body.replace("hi", &"x".repeat(bytes))
}

async fn until_seen(gateway: &Running, requests: usize) {
    while gateway.upstream.seen().len() < requests {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn bodies_share_one_bound_until_their_answers_begin() {
    let gateway = start("max_body_bytes = 60000\nmax_buffered_bytes = 100000").await;
    gateway.upstream.then(vec![Step::Hang]);
    let mut waiting = gateway.connect().await;
    send(&mut waiting, "/v1/chat/completions", "", &large(CHAT_BODY, 55_000)).await;
    until_seen(&gateway, 1).await;
    assert!(gateway.metric("earmark_gateway_buffered_bytes").await >= 55_000);
    let refused = gateway.chat(&large(CHAT_BODY, 55_000)).await;
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (503, Some("overloaded")));
    assert!(refused.header("retry-after").is_some());

    // Another one whose answer has begun needs no memory for its request.
    let gateway = start("max_body_bytes = 60000\nmax_buffered_bytes = 100000").await;
    gateway.upstream.then(vec![stream_head(), chunk(CHAT_STREAM[0]), Step::Hang]);
    let mut streaming = gateway.connect().await;
    send(&mut streaming, "/v1/chat/completions", "", &large(CHAT_STREAM_BODY, 55_000)).await;
    let mut first = [0; 1];
    tokio::io::AsyncReadExt::read_exact(&mut streaming, &mut first).await.unwrap();
    gateway.upstream.then(whole(200, "", CHAT));
    assert_eq!(gateway.chat(&large(CHAT_BODY, 55_000)).await.status, 200);
}

#[tokio::test]
async fn answers_that_nobody_reads_share_the_same_bound() {
    let gateway = start("max_body_bytes = 10000\nmax_buffered_bytes = 300000").await;
    let frame = format!("data: {}\n\n", "x".repeat(50_000));
    let mut steps = vec![stream_head()];
    steps.extend((0..400).map(|_| chunk(&frame)));
    gateway.upstream.always(steps);
    let mut clients = Vec::new();
    for _ in 0..6 {
        let mut client = gateway.connect().await;
        send(&mut client, "/v1/chat/completions", "", CHAT_STREAM_BODY).await;
        clients.push(client);
    }
    until_seen(&gateway, 6).await;
    for _ in 0..20 {
        assert!(gateway.metric("earmark_gateway_buffered_bytes").await <= 300_032);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(gateway.upstream.finished(), 0, "slow clients stop the upstream");
    drop(clients);
}

#[tokio::test]
async fn a_body_of_100_mb_is_refused_and_its_client_sees_why() {
    let gateway = start("").await;
    let mut client = gateway.connect().await;
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    let mega = vec![b'x'; 1 << 20];
    client.write_all(format!("{head}content-length: 104857600\r\n\r\n").as_bytes()).await.unwrap();
    for _ in 0..100 {
        client.write_all(&mega).await.unwrap();
    }
    assert_eq!(Answer::read(&mut client).await.status, 413);

    let mut client = gateway.connect().await;
    client.write_all(format!("{head}transfer-encoding: chunked\r\n\r\n").as_bytes()).await.unwrap();
    for _ in 0..100 {
        client.write_all(b"100000\r\n").await.unwrap();
        client.write_all(&mega).await.unwrap();
        client.write_all(b"\r\n").await.unwrap();
    }
    client.write_all(b"0\r\n\r\n").await.unwrap();
    assert_eq!(Answer::read(&mut client).await.status, 413);
    assert!(gateway.earmark.leases().is_empty() && gateway.upstream.seen().is_empty());
    assert_eq!(gateway.metric("earmark_gateway_buffered_bytes").await, 0);
}

#[tokio::test]
async fn an_endless_frame_passes_in_pieces_and_ends_with_the_total_timeout() {
    let upstream = Upstream::start().await;
    let text = config(&upstream, "timeouts = { total_seconds = 1 }");
    let gateway = Running::with(&text, upstream, Double::default(), OpenCalls::in_memory(), false).await;
    let mut steps = vec![stream_head(), chunk("data: ")];
    steps.extend((0..20_000).map(|_| chunk(&"x".repeat(100))));
    steps.push(Step::Hang);
    gateway.upstream.always(steps);
    let answer = gateway.chat(CHAT_STREAM_BODY).await;
    assert!(!answer.is_whole && answer.body.len() > 2 * FRAME_BYTES_MAX, "{}", answer.body.len());
    assert_eq!(gateway.earmark.settled().await, [CallResult::Unknown]);
}
