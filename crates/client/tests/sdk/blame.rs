//! Which server is asked next after one that answers and cannot serve.

use std::time::{Duration, Instant};

use earmark_client::{Deadline, Limiter, LimiterOptions, Protocol, Writer, WriterOptions};
use tempfile::TempDir;

use crate::scripted::Scripted;
use crate::served::{Served, client_of};
use crate::support::{concurrency, job, soon};
use crate::writes::{issue, scope};

/// A node without a majority lives: it takes a batch, waits, and answers 200 with `backend_error` for each item. Only a
/// request that failed as a whole led to the next server, so callers stayed with that node until their deadlines.
#[tokio::test]
async fn a_server_that_fails_the_items_of_a_batch_is_left_for_the_next() {
    for error in ["backend_error", "overloaded"] {
        let served = Served::start().await;
        served.client(Protocol::Http).put_limit(&concurrency("slots", 4), soon()).await.unwrap();
        let cut_off = Scripted::by(move |request| {
            let items = request.matches("lease_id").count();
            let (reserve, complete) = (
                r#"{"allowed":false,"retry_after_ms":0,"reserved_at_unix_ms":0,"error":"ERROR"}"#,
                r#"{"ok":false,"error":"ERROR","reconciled":false}"#,
            );
            let one = if request.contains("/v1/reserve") { reserve } else { complete };
            let body = format!(r#"{{"results":[{}]}}"#, vec![one; items].join(","));
            Some((200, body.replace("ERROR", error)))
        })
        .await;
        let client = client_of(&[cut_off.url.clone(), served.url()], Protocol::Http);
        let limiter = Limiter::new(&client, LimiterOptions::default()).unwrap();
        let what = job(&[("slots", 1)]);
        // Both wait before the batcher looks, so they share a request.
        let (one, two) = tokio::join!(limiter.acquire(&what, soon()), limiter.acquire(&what, soon()));
        one.unwrap().release().await.unwrap();
        two.unwrap().release().await.unwrap();
        let asked = cut_off.asked();
        assert_eq!(asked.len(), 1, "{error}: {asked:?}");
        assert!(asked[0].starts_with("POST /v1/reserve/batch "), "{asked:?}");
    }
}

/// The same of writes: a node that cannot reach the others answers `UNAVAILABLE`, which is an answer and no failure of
/// the request, so the writer asked it again and again.
#[tokio::test]
async fn a_server_that_cannot_write_is_left_for_the_next() {
    let served = Served::start().await;
    let folder = TempDir::new().unwrap();
    let options = |name: &str, client: &str| {
        WriterOptions::new(folder.path().join(name), scope(), client.parse().unwrap())
    };
    let direct = served.client(Protocol::Http);
    let mut setup = Writer::open(&direct, options("setup", "setup"), soon()).await.unwrap();
    setup.write(crate::writes::accounts(), soon()).await.unwrap();
    let cut_off = Scripted::by(|request| {
        // It knows how far the client has counted, and nothing more.
        Some(match request.starts_with("GET ") {
            true => (200, r#"{"last_committed_sequence":0}"#.to_owned()),
            false => (503, r#"{"error":{"code":"UNAVAILABLE","message":"no majority"}}"#.to_owned()),
        })
    })
    .await;
    let client = client_of(&[cut_off.url.clone(), served.url()], Protocol::Http);
    let within = Deadline::after(Duration::from_secs(20));
    let mut writer = Writer::open(&client, options("seq", "billing"), within).await.unwrap();
    assert_eq!(writer.write(issue(1), within).await.unwrap().sequence, 2);
    let writes = cut_off.asked().iter().filter(|request| request.starts_with("POST ")).count();
    assert_eq!(writes, 1);
}

/// A host took connections and answered nothing. Callers gave up at their deadlines, but the request that they shared
/// went on, so the next callers asked the same host.
#[tokio::test]
async fn a_server_that_is_silent_until_all_have_given_up_is_left_for_the_next() {
    let served = Served::start().await;
    served.client(Protocol::Http).put_limit(&concurrency("slots", 4), soon()).await.unwrap();
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let client = client_of(&[url, served.url()], Protocol::Http);
    let limiter = Limiter::new(&client, LimiterOptions::default()).unwrap();
    let what = job(&[("slots", 1)]);
    let start = Instant::now();
    limiter.acquire(&what, Deadline::after(Duration::from_millis(300))).await.unwrap_err();
    tokio::time::sleep(Duration::from_millis(100)).await;
    limiter.acquire(&what, soon()).await.unwrap().release().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
}
