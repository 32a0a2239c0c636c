//! What is found in the logs of a request. In a process of its own: there is one log for all of it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

#[path = "http/support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the other test binary uses the rest")]
mod support;

use std::io;
use std::sync::{Arc, Mutex, OnceLock};

use earmark_admission::{BackendError, ManualClock};
use serde_json::Value;
use tracing_subscriber::fmt::MakeWriter;

use support::{Broken, Desk, START_MS, Wire, reserve};

/// Lines of JSON.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Lines;

    fn make_writer(&'a self) -> Lines {
        self.clone()
    }
}

static LINES: OnceLock<Lines> = OnceLock::new();

impl Lines {
    /// Everything that is logged from now on.
    fn listen() -> &'static Lines {
        LINES.get_or_init(|| {
            let lines = Lines::default();
            let level = tracing_subscriber::filter::LevelFilter::DEBUG;
            tracing_subscriber::fmt().json().with_max_level(level).with_writer(lines.clone()).init();
            lines
        })
    }

    /// The levels and fields of the lines with this message about this request.
    fn of(&self, request_id: &str, message: &str) -> Vec<(String, Value)> {
        let bytes = self.0.lock().unwrap();
        let lines = std::str::from_utf8(&bytes).unwrap().lines();
        let lines = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
        let lines = lines.filter(|line| line["fields"]["message"] == message);
        let lines = lines.filter(|line| line["fields"]["request_id"] == request_id);
        lines.map(|line| (line["level"].as_str().unwrap().to_owned(), line["fields"].clone())).collect()
    }
}

#[tokio::test]
async fn a_request_is_found_by_its_id_with_its_lease_and_job() {
    let lines = Lines::listen();
    let desk = Desk::open().await;
    let mut body = reserve(&desk.lease(), &[("a", 1)]);
    body["job_id"] = "job:7".into();
    let text = body.to_string();
    let mut wire = Wire::to(desk.address).await;
    wire.send(&format!(
        "POST /v1/reserve HTTP/1.1\r\nhost: earmark\r\nx-request-id: mine-1\r\ncontent-length: {}\r\n\r\n{text}",
        text.len()
    ))
    .await;
    assert_eq!(wire.answer().await.status, 200);

    let reserves = lines.of("mine-1", "reserve");
    assert_eq!(reserves.len(), 1);
    let (level, fields) = &reserves[0];
    assert_eq!(level, "DEBUG");
    assert_eq!(fields["lease"], body["lease_id"]);
    assert_eq!(fields["job"], "job:7");
    let (level, fields) = &lines.of("mine-1", "answered")[0];
    assert_eq!(level, "DEBUG");
    assert_eq!(fields["status"], 200);
}

#[tokio::test]
async fn what_fails_is_a_warning_with_the_answer_in_it() {
    let lines = Lines::listen();
    let broken = Arc::new(Broken(BackendError::Failed("the ledger broke".into())));
    let desk = Desk::on(ManualClock::at(START_MS), broken, Desk::options()).await;
    let answer = desk.ask("GET", "/v1/admin/limits", "").await;
    assert_eq!(answer.status, 500);
    let (level, fields) = &lines.of(answer.header("x-request-id").unwrap(), "answered")[0];
    assert_eq!(level, "WARN");
    assert!(fields["answer"].as_str().unwrap().contains("the ledger broke"), "{fields}");
}
