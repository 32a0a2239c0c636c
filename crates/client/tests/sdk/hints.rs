//! The moment at which a denied job is tried again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use earmark_client::{Actuals, Deadline, Limiter, LimiterOptions};

use crate::fixture::{ALLOWED, COMPLETED, ScriptedServer, ok, refused};
use crate::support::{job, soon};

/// A server whose limit `a` has room or not, with a hint that is longer than any test waits.
struct LimitedServer {
    script: ScriptedServer,
    limiter: Limiter,
    has_room: Arc<AtomicBool>,
}

impl LimitedServer {
    async fn start() -> LimitedServer {
        let has_room = Arc::new(AtomicBool::new(true));
        let room = Arc::clone(&has_room);
        let script = ScriptedServer::by(move |request| {
            if request.starts_with("POST /v1/complete ") {
                return ok(COMPLETED);
            }
            let is_denied = request.contains("\"a\"") && !room.load(Ordering::SeqCst);
            ok(&if is_denied { refused("", 59_000) } else { ALLOWED.to_owned() })
        })
        .await;
        let options = LimiterOptions { batching: None, ..LimiterOptions::default() };
        let limiter = Limiter::new(&script.client(), options).unwrap();
        LimitedServer { script, limiter, has_room }
    }

    /// The number of attempts to reserve `a`.
    fn attempts(&self) -> usize {
        let requests = self.script.requests();
        let is_attempt = |request: &&String| request.starts_with("POST /v1/reserve ") && request.contains("\"a\"");
        requests.iter().filter(is_attempt).count()
    }
}

/// Every release was announced to every waiting caller: a job that waited for one limit was tried again whenever a job of
/// another limit ended, and once more for a release before it came.
#[tokio::test]
async fn a_denied_job_follows_its_hint_whatever_other_limits_are_released() {
    let server = LimitedServer::start().await;
    for _ in 0..5 {
        let guard = server.limiter.acquire(&job(&[("a", 1)]), soon()).await.unwrap();
        guard.complete(Actuals::unknown()).await.unwrap();
    }
    assert_eq!(server.attempts(), 5);
    server.has_room.store(false, Ordering::SeqCst);
    let waiting = tokio::spawn({
        let limiter = server.limiter.clone();
        async move { limiter.acquire(&job(&[("a", 1)]), Deadline::after(Duration::from_millis(300))).await }
    });
    while !waiting.is_finished() {
        let guard = server.limiter.acquire(&job(&[("b", 1)]), soon()).await.unwrap();
        guard.complete(Actuals::unknown()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    waiting.await.unwrap().unwrap_err();
    // The first attempt, and the last one before the deadline.
    assert!(server.attempts() <= 7, "{} attempts", server.attempts() - 5);
}

#[tokio::test]
async fn a_denied_job_is_tried_again_as_soon_as_its_limit_is_released() {
    let server = LimitedServer::start().await;
    let holds = server.limiter.acquire(&job(&[("a", 1), ("b", 1)]), soon()).await.unwrap();
    server.has_room.store(false, Ordering::SeqCst);
    let waiting = tokio::spawn({
        let limiter = server.limiter.clone();
        async move { limiter.acquire(&job(&[("a", 1)]), soon()).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(server.attempts(), 2);
    server.has_room.store(true, Ordering::SeqCst);
    holds.complete(Actuals::unknown()).await.unwrap();
    // Long before the hint.
    waiting.await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(server.attempts(), 3);
}
