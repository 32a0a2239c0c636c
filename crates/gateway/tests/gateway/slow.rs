//! Connections whose clients send nothing, or take nothing.

use std::time::Duration;

use bytes::Bytes;
use earmark_gateway::open_calls::OpenCalls;
use http_body_util::Full;
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{advance, pause, resume, sleep, timeout};

use crate::earmark::Double;
use crate::fixture::{CHAT_BODY, CHAT_STREAM_BODY, Running};
use crate::upstream::{CHAT, Step, Upstream, chunk, stream_head, whole};

/// Whether the gateway closes a connection within a second.
async fn is_closed(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    timeout(Duration::from_secs(1), stream.read_to_end(&mut rest)).await.is_ok()
}

/// hyper's timeout for a head begins behind the bytes that tell HTTP/1 from HTTP/2, so such connections stayed for ever:
/// 10,000 of them locked everybody out.
#[tokio::test]
async fn a_connection_that_says_nothing_is_closed() {
    let gateway = Running::start("").await;
    let mut silent = Vec::new();
    for said in ["", "P", "PRI * HTTP/2.0\r\n\r\nSM\r\n", "GET / HTTP/1.1\r\n"] {
        let mut stream = gateway.connect().await;
        stream.write_all(said.as_bytes()).await.unwrap();
        silent.push((said, stream));
    }
    sleep(Duration::from_millis(200)).await;
    pause();
    advance(Duration::from_secs(11)).await;
    resume();
    for (said, stream) in &mut silent {
        assert!(is_closed(stream).await, "after {said:?}");
    }
}

/// A gateway whose clients may take nothing for a second.
async fn impatient(answer: Vec<Step>) -> Running {
    let upstream = Upstream::start().await;
    upstream.always(answer);
    let text = format!(
        "listen = \"127.0.0.1:0\"\n[[upstreams]]\nname = \"one\"\napi = \"openai\"\nbase_url = \"{}/v1\"\n\
         timeouts = {{ idle_seconds = 1 }}\n\
         [[models]]\nname = \"fast\"\ntargets = [\"one/gpt-4o\"]\nmax_output_tokens = 100\n",
        upstream.url
    );
    Running::with(&text, upstream, Double::default(), OpenCalls::in_memory(), false).await
}

fn large() -> Vec<Step> {
    answer_of(900_000)
}

fn answer_of(bytes: usize) -> Vec<Step> {
    whole(200, "", &CHAT.replace("hello", &"x".repeat(bytes)))
}

async fn until_settled(gateway: &Running, calls: usize) {
    while gateway.earmark.leases().iter().filter(|lease| lease.outcome.is_some()).count() < calls {
        sleep(Duration::from_millis(10)).await;
    }
}

async fn until_used(gateway: &Running) {
    while gateway.metric("earmark_gateway_buffered_bytes").await == 0 {
        sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until the memory for buffers is free, which it is once the connections are closed.
async fn until_free(gateway: &Running) {
    for _ in 0..100 {
        if gateway.metric("earmark_gateway_buffered_bytes").await == 0 {
            return;
        }
        sleep(Duration::from_millis(50)).await;
    }
    panic!("{} bytes are in use", gateway.metric("earmark_gateway_buffered_bytes").await);
}

/// The kernel of this machine takes some megabytes for a client; of the rest every connection kept up to a megabyte of
/// the memory for buffers, until nothing was left for others.
#[tokio::test]
async fn the_memory_of_answers_that_nobody_reads_returns() {
    let gateway = impatient(large()).await;
    let head =
        format!("POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", CHAT_BODY.len());
    let mut client = gateway.connect().await;
    for _ in 0..12 {
        client.write_all((head.clone() + CHAT_BODY).as_bytes()).await.unwrap();
    }
    until_used(&gateway).await;
    until_free(&gateway).await;
    assert!(gateway.upstream.seen().len() < 12, "the kernel took all");
}

#[tokio::test]
async fn the_connection_of_a_stream_that_nobody_reads_is_closed() {
    let frame = format!("data: {}\n\n", "x".repeat(60_000));
    let mut steps = vec![stream_head()];
    steps.extend((0..1_000).map(|_| chunk(&frame)));
    let gateway = impatient(steps).await;
    let mut client = gateway.connect().await;
    crate::fixture::send(&mut client, "/v1/chat/completions", "", CHAT_STREAM_BODY).await;
    until_used(&gateway).await;
    until_free(&gateway).await;
    until_settled(&gateway, 1).await;
}

/// Over HTTP/2 each answer waits for a window of its own, and the connection goes on. hyper asks for the end of an answer
/// while its last part waits for a window, which looked like an answer that was taken.
#[tokio::test]
async fn answers_of_http_2_that_nobody_takes_are_given_up() {
    for (window, bytes) in [(0, 900_000), (100, 900_000), (900_000, 900_000), (1, 10_000)] {
        let gateway = impatient(answer_of(bytes)).await;
        let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(window);
        let stream = TokioIo::new(gateway.connect().await);
        let (mut sender, connection) = builder.handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let mut answers = Vec::new();
        for _ in 0..4 {
            let request = Request::post("http://localhost/v1/chat/completions");
            let request = request.body(Full::new(Bytes::from_static(CHAT_BODY.as_bytes()))).unwrap();
            answers.push(sender.send_request(request).await.unwrap());
        }
        until_settled(&gateway, 4).await;
        assert!(gateway.metric("earmark_gateway_buffered_bytes").await > 3 * bytes as u64, "window {window}");
        until_free(&gateway).await;
        assert_eq!(answers.len(), 4);
    }
}

/// A slow client is no idle one.
#[tokio::test]
async fn a_client_that_takes_its_answer_slowly_gets_all_of_it() {
    let gateway = impatient(large()).await;
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(65_535);
    let (mut sender, connection) = builder.handshake(TokioIo::new(gateway.connect().await)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post("http://localhost/v1/chat/completions");
    let request = request.body(Full::new(Bytes::from_static(CHAT_BODY.as_bytes()))).unwrap();
    let mut answer = sender.send_request(request).await.unwrap().into_body();
    let mut read = 0;
    while let Some(frame) = http_body_util::BodyExt::frame(&mut answer).await {
        read += frame.unwrap().into_data().map_or(0, |data| data.len());
        // Some 60 pieces, in more than the timeout.
        sleep(Duration::from_millis(40)).await;
    }
    assert_eq!(read, CHAT.len() - 5 + 900_000);
}
