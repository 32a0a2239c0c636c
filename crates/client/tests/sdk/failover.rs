//! The choice of the next server after one that answers but cannot serve.

use std::time::{Duration, Instant};

use earmark_client::{Deadline, Protocol, Writer};

use crate::fixture::{
    ScriptedServer, TestServer, WriterFixture, client_of, client_state, issue, limiter, ok, refused, writer_options,
};
use crate::support::{concurrency, job, soon};

/// A node without a majority takes a batch, waits, and answers 200 with `backend_error` for each item. Only the failure
/// of a whole request led to the next server, so callers stayed with that node until their deadlines.
#[tokio::test]
async fn a_server_that_fails_the_items_of_a_batch_is_left_for_the_next() {
    for error in ["backend_error", "overloaded"] {
        let server = TestServer::start().await;
        server.client(Protocol::Http).put_limit(&concurrency("slots", 4), soon()).await.unwrap();
        let cut_off = ScriptedServer::by(move |request| {
            let items = request.matches("lease_id").count();
            let complete = r#"{"ok":false,"error":"ERROR","reconciled":false}"#;
            let is_reserve = request.contains("/v1/reserve");
            let one = if is_reserve { refused(error, 0) } else { complete.replace("ERROR", error) };
            ok(&format!(r#"{{"results":[{}]}}"#, vec![one; items].join(",")))
        })
        .await;
        let limiter = limiter(&client_of(&[cut_off.url.clone(), server.url()], Protocol::Http));
        let slot = job(&[("slots", 1)]);
        // Both wait before the batcher runs, so they share a request.
        let (one, two) = tokio::join!(limiter.acquire(&slot, soon()), limiter.acquire(&slot, soon()));
        one.unwrap().release().await.unwrap();
        two.unwrap().release().await.unwrap();
        let requests = cut_off.requests();
        assert_eq!(requests.len(), 1, "{error}: {requests:?}");
        assert!(requests[0].starts_with("POST /v1/reserve/batch "), "{requests:?}");
    }
}

/// A node that cannot reach the others answers a write with `UNAVAILABLE`. That is an answer and not a failed request, so
/// the writer asked the same node again and again.
#[tokio::test]
async fn a_server_that_cannot_write_is_left_for_the_next() {
    let fixture = WriterFixture::new().await;
    let cut_off = ScriptedServer::by(|request| match request.starts_with("GET ") {
        true => client_state(0),
        false => Some((503, r#"{"error":{"code":"UNAVAILABLE","message":"no majority"}}"#.to_owned())),
    })
    .await;
    let client = client_of(&[cut_off.url.clone(), fixture.server.url()], Protocol::Http);
    let mut writer = Writer::open(&client, writer_options(&fixture.path("seq")), soon()).await.unwrap();
    assert_eq!(writer.write(issue(1), soon()).await.unwrap().sequence, Some(2));
    assert_eq!(cut_off.count("POST "), 1);
}

/// A host accepted connections and sent no response. Callers gave up at their deadlines, but their shared request went
/// on, so later callers asked the same host.
#[tokio::test]
async fn a_server_that_is_silent_until_all_callers_gave_up_is_left_for_the_next() {
    let server = TestServer::start().await;
    server.client(Protocol::Http).put_limit(&concurrency("slots", 4), soon()).await.unwrap();
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let limiter = limiter(&client_of(&[url, server.url()], Protocol::Http));
    let slot = job(&[("slots", 1)]);
    let start = Instant::now();
    limiter.acquire(&slot, Deadline::after(Duration::from_millis(100))).await.unwrap_err();
    tokio::time::sleep(Duration::from_millis(50)).await;
    limiter.acquire(&slot, soon()).await.unwrap().release().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
}
