//! When a denied job is tried again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use earmark_client::{Actuals, Deadline, Limiter, LimiterOptions, Protocol};

use crate::scripted::Scripted;
use crate::served::client_of;
use crate::support::{job, soon};

/// A server whose limit `a` has room or not, and whose hint is further away than any test waits.
struct Desk {
    script: Scripted,
    limiter: Limiter,
    has_room: Arc<AtomicBool>,
}

async fn desk() -> Desk {
    let has_room = Arc::new(AtomicBool::new(true));
    let room = Arc::clone(&has_room);
    let script = Scripted::by(move |request| {
        let body = if request.starts_with("POST /v1/complete ") {
            r#"{"ok":true,"error":"","reconciled":true}"#
        } else if request.contains("\"a\"") && !room.load(Ordering::SeqCst) {
            r#"{"allowed":false,"retry_after_ms":59000,"reserved_at_unix_ms":0,"error":"","limited_by":["a"]}"#
        } else {
            r#"{"allowed":true,"retry_after_ms":0,"reserved_at_unix_ms":1,"error":""}"#
        };
        Some((200, body.to_owned()))
    })
    .await;
    let client = client_of(std::slice::from_ref(&script.url), Protocol::Http);
    let limiter =
        Limiter::new(&client, LimiterOptions { batching: None, ..LimiterOptions::default() }).unwrap();
    Desk { script, limiter, has_room }
}

impl Desk {
    /// How often `a` was asked for.
    fn attempts(&self) -> usize {
        let asked = self.script.asked();
        asked.iter().filter(|asked| asked.starts_with("POST /v1/reserve ") && asked.contains("\"a\"")).count()
    }
}

/// One place was told of everything that was given back: a job that waited for one limit was tried again whenever a job
/// of any other ended, and once more for something that had been given back before it came.
#[tokio::test]
async fn a_denied_job_follows_its_hint_whatever_else_is_given_back() {
    let desk = desk().await;
    for _ in 0..5 {
        let guard = desk.limiter.acquire(&job(&[("a", 1)]), soon()).await.unwrap();
        guard.complete(Actuals::unknown()).await.unwrap();
    }
    assert_eq!(desk.attempts(), 5);
    desk.has_room.store(false, Ordering::SeqCst);
    let waiting = tokio::spawn({
        let limiter = desk.limiter.clone();
        async move { limiter.acquire(&job(&[("a", 1)]), Deadline::after(Duration::from_millis(800))).await }
    });
    while !waiting.is_finished() {
        let guard = desk.limiter.acquire(&job(&[("b", 1)]), soon()).await.unwrap();
        guard.complete(Actuals::unknown()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    waiting.await.unwrap().unwrap_err();
    // The one of the start, and the last chance before the deadline.
    assert!(desk.attempts() <= 7, "{} attempts", desk.attempts() - 5);
}

#[tokio::test]
async fn a_denied_job_is_tried_again_as_soon_as_what_it_waits_for_is_given_back() {
    let desk = desk().await;
    let holds = desk.limiter.acquire(&job(&[("a", 1), ("b", 1)]), soon()).await.unwrap();
    desk.has_room.store(false, Ordering::SeqCst);
    let waiting = tokio::spawn({
        let limiter = desk.limiter.clone();
        async move { limiter.acquire(&job(&[("a", 1)]), soon()).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(desk.attempts(), 2);
    desk.has_room.store(true, Ordering::SeqCst);
    holds.complete(Actuals::unknown()).await.unwrap();
    // Far sooner than the hint said.
    waiting.await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(desk.attempts(), 3);
}
