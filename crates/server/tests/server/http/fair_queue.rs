//! A caller beyond its concurrency limit, beside others.

use std::num::NonZeroU32;

use earmark_core::Role;
use serde_json::json;
use tokio::task::JoinSet;

use crate::support::{Crowded, KeyedServer, Wire, reserve};

#[tokio::test]
async fn a_noisy_key_waits_behind_its_own_requests_while_others_are_answered() {
    let crowded = Crowded::open(2, 3).await;
    let leases: Vec<String> = (0..6).map(|_| crowded.server.lease()).collect();
    let mut wires = Vec::new();
    for (number, lease) in leases[..2].iter().enumerate() {
        wires.push(crowded.noise(lease).await);
        crowded.until_came(number + 1).await;
    }
    for (number, lease) in leases[2..5].iter().enumerate() {
        wires.push(crowded.noise(lease).await);
        crowded.until(&format!("earmark_requests_waiting {}", number + 1)).await;
    }
    // The queue is full.
    let refused = crowded.noise(&leases[5]).await.answer().await;
    refused.problem(429, "rate_limited");
    assert_eq!(refused.header("retry-after"), Some("1"));
    // Other keys are not delayed.
    let limit = json!({"key": "a", "kind": "rolling", "capacity": 9, "window_seconds": 60}).to_string();
    let put = crowded.send(&crowded.quiet, "PUT", "/v1/admin/limits", &limit).await.answer().await;
    assert_eq!(put.status, 200, "{put:?}");
    let asks = reserve(&crowded.server.lease(), &[("a", 1)]).to_string();
    let answer = crowded.send(&crowded.quiet, "POST", "/v1/reserve", &asks).await.answer().await;
    assert_eq!(answer.json()["allowed"], true, "{answer:?}");
    assert_eq!(crowded.came(), leases[..2]);

    // The third hangs up and leaves the queue.
    drop(wires.remove(2));
    crowded.until("earmark_requests_waiting 2").await;
    for wire in &mut wires {
        crowded.gate.gate.add_permits(1);
        let answer = wire.answer().await;
        assert_eq!(answer.json()["error"], "unknown_limit_key:a", "{answer:?}");
    }
    assert_eq!(crowded.came(), [&leases[0], &leases[1], &leases[3], &leases[4]].map(String::clone));
    crowded.until("earmark_requests_waiting 0").await;
    crowded.until("earmark_requests_waited_total 3").await;
}

/// A client may close its sending side and still wait for the response.
#[tokio::test]
async fn whoever_only_stops_sending_while_it_waits_hears_that_nothing_happened() {
    use tokio::io::AsyncWriteExt as _;
    let crowded = Crowded::open(1, 9).await;
    let first = crowded.server.lease();
    let mut worked_on = crowded.noise(&first).await;
    crowded.until_came(1).await;
    let mut waits = crowded.noise(&crowded.server.lease()).await;
    crowded.until("earmark_requests_waiting 1").await;
    waits.tcp.shutdown().await.unwrap();
    waits.answer().await.problem(429, "rate_limited");
    // A request that is being executed still gets its response.
    worked_on.tcp.shutdown().await.unwrap();
    crowded.gate.gate.add_permits(1);
    assert_eq!(worked_on.answer().await.status, 200);
    assert_eq!(crowded.came(), [first]);
}

#[tokio::test]
async fn a_batch_takes_a_place_for_every_eight_items() {
    let crowded = Crowded::open(2, 9).await;
    let leases: Vec<String> = (0..10).map(|_| crowded.server.lease()).collect();
    let requests: Vec<_> = leases[..9].iter().map(|lease| reserve(lease, &[("a", 1)])).collect();
    let batch = json!({"requests": requests}).to_string();
    let mut batch = crowded.send(&crowded.noisy, "POST", "/v1/reserve/batch", &batch).await;
    crowded.until_came(9).await;
    let mut behind = crowded.noise(&leases[9]).await;
    crowded.until("earmark_requests_waiting 1").await;
    assert_eq!(crowded.came().len(), 9);
    crowded.gate.gate.add_permits(2);
    assert_eq!((batch.answer().await.status, behind.answer().await.status), (200, 200));
    assert_eq!(crowded.came(), leases);
}

#[tokio::test]
async fn a_quiet_key_is_answered_while_a_noisy_one_floods_the_server() {
    const CONNECTIONS: usize = 300;
    const ROUNDS: usize = 3;
    const ITEMS: usize = 64;
    let keyed = KeyedServer::with(|options| options.requests_at_once = NonZeroU32::new(256)).await;
    let noisy = keyed.key(Role::Admin, "noisy").await;
    let quiet = keyed.key(Role::Admin, "quiet").await;
    let limit = json!({"key": "a", "kind": "rolling", "capacity": 1_000_000, "window_seconds": 60});
    for key in [&noisy, &quiet] {
        let put = keyed.ask(Some(key), "PUT", "/v1/admin/limits", &limit.to_string()).await;
        assert_eq!(put.status, 200, "{put:?}");
    }
    let mut noise = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let batches: Vec<String> = (0..ROUNDS)
            .map(|_| {
                let requests: Vec<_> = (0..ITEMS).map(|_| reserve(&keyed.server.lease(), &[("a", 1)])).collect();
                post("/v1/reserve/batch", &noisy, &json!({"requests": requests}).to_string())
            })
            .collect();
        let mut wire = Wire::to(keyed.server.address).await;
        noise.spawn(async move {
            for batch in &batches {
                wire.send(batch).await;
                assert_eq!(wire.answer().await.status, 200);
            }
        });
    }
    for _ in 0..40 {
        let asks = reserve(&keyed.server.lease(), &[("a", 1)]).to_string();
        let answer = keyed.ask(Some(&quiet), "POST", "/v1/reserve", &asks).await;
        assert_eq!(answer.json()["allowed"], true, "{answer:?}");
    }
    while let Some(ended) = noise.join_next().await {
        ended.unwrap();
    }
    let usage = keyed.ask(Some(&noisy), "GET", "/v1/admin/limits/a/usage", "").await.json();
    assert_eq!(usage["reserved"], CONNECTIONS * ROUNDS * ITEMS);
}

fn post(path: &str, key: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}
