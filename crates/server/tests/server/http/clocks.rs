//! Changes of the wall clock.

use serde_json::json;

use crate::support::{START_MS, TestServer};

const HOUR_MS: u64 = 3_600_000;

#[tokio::test]
async fn a_wall_clock_set_back_or_forward_neither_frees_nor_blocks_anything_early() {
    for wall in [START_MS - HOUR_MS / 6, START_MS + HOUR_MS] {
        let server = TestServer::open().await;
        server.put_rolling("rpm", 1, 60).await;
        server.put_concurrency("slots", 1, 60).await;
        server.reserve(&server.lease(), &[("rpm", 1), ("slots", 1)]).await;
        server.clock.set_wall(wall);
        server.clock.advance_ms(59_999);
        assert_eq!((server.reserved("rpm").await, server.reserved("slots").await), (1, 1));
        assert_eq!(server.reserve(&server.lease(), &[("rpm", 1)]).await["allowed"], false);
        server.clock.advance_ms(1);
        assert_eq!((server.reserved("rpm").await, server.reserved("slots").await), (0, 0));
        assert_eq!(server.reserve(&server.lease(), &[("rpm", 1), ("slots", 1)]).await["allowed"], true);
    }
}

#[tokio::test]
async fn a_lease_is_judged_by_the_clock_on_the_wall() {
    let server = TestServer::open().await;
    server.put_rolling("rpm", 9, 60).await;
    let ahead = TestServer::lease_at(START_MS + HOUR_MS);
    assert_eq!(server.reserve(&ahead, &[("rpm", 1)]).await["error"], "invalid_request");
    server.clock.set_wall(START_MS + HOUR_MS);
    assert_eq!(server.reserve(&ahead, &[("rpm", 1)]).await["allowed"], true);
}

#[tokio::test]
async fn a_clock_set_back_beyond_the_retention_refuses_leases_and_says_why() {
    let server = TestServer::open().await;
    server.put_rolling("rpm", 9, 60).await;
    server.clock.set_wall(START_MS - HOUR_MS);
    let refused = server.reserve(&server.lease(), &[("rpm", 1)]).await;
    assert_eq!((&refused["allowed"], &refused["error"]), (&json!(false), &json!("invalid_request")));
    let message = refused["message"].as_str().unwrap();
    let wall = earmark_admission::utc(earmark_core::UnixMs::new(START_MS - HOUR_MS));
    assert!(message.contains(&format!("this server's clock says {wall}")), "{message}");
    assert!(message.contains("set back"), "{message}");
}
