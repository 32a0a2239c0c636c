//! A server at the concurrency limit of a caller.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{Keys as _, LocalBook, LocalOptions, ManualClock};
use earmark_core::{Principal, Role};

use super::client::Wire;
use super::doubles::Gate;
use super::keyed::key;
use super::test_server::{START_MS, TestServer, reserve};

/// A server with keys whose backend holds back reserves of the namespace `noisy` until the test releases them, so that
/// the test knows which requests are executing and which wait.
pub(crate) struct Crowded {
    pub(crate) server: TestServer,
    pub(crate) gate: Arc<Gate>,
    pub(crate) root: String,
    pub(crate) noisy: String,
    pub(crate) quiet: String,
}

impl Crowded {
    pub(crate) async fn open(at_once: u32, waiting_max: usize) -> Crowded {
        let clock = ManualClock::at(START_MS);
        let options = LocalOptions { clock: Arc::<ManualClock>::clone(&clock), ..LocalOptions::default() };
        let book = LocalBook::open(options).await.unwrap();
        let mut tokens = Vec::new();
        for (role, namespace) in [(Role::Admin, "default"), (Role::Caller, "noisy"), (Role::Admin, "quiet")] {
            let (token, command) = key(role, namespace);
            book.create(Principal::System, command).await.unwrap();
            tokens.push(token.reveal());
        }
        let gate = Arc::new(Gate { held_back: Some("noisy".parse().unwrap()), keeps_keys: true, ..Gate::before(book) });
        let mut options = TestServer::options();
        options.requests_at_once = NonZeroU32::new(at_once);
        options.requests_waiting_max = waiting_max;
        let server = TestServer::on(clock, Arc::<Gate>::clone(&gate), options).await;
        let [root, noisy, quiet] = <[String; 3]>::try_from(tokens).unwrap();
        Crowded { server, gate, root, noisy, quiet }
    }

    /// Sends a request without reading the response.
    pub(crate) async fn send(&self, key: &str, method: &str, path: &str, body: &str) -> Wire {
        let mut wire = Wire::to(self.server.address).await;
        let length = body.len();
        wire.send(&format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\ncontent-length: \
             {length}\r\n\r\n{body}"
        ))
        .await;
        wire
    }

    /// A reserve by the noisy key.
    pub(crate) async fn noise(&self, lease: &str) -> Wire {
        self.send(&self.noisy, "POST", "/v1/reserve", &reserve(lease, &[("a", 1)]).to_string()).await
    }

    /// Waits until a metric has a value.
    pub(crate) async fn until(&self, line: &str) {
        for _ in 0..400 {
            let mut wire = self.send(&self.root, "GET", "/metrics", "").await;
            if wire.answer().await.text.lines().any(|found| found == line) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the metrics never say {line}");
    }

    /// Waits until `count` reserves are held back.
    pub(crate) async fn until_came(&self, count: usize) {
        for _ in 0..400 {
            if self.came().len() == count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{:?} came to the backend, and not {count}", self.came());
    }

    pub(crate) fn came(&self) -> Vec<String> {
        self.gate.came.lock().unwrap().iter().map(ToString::to_string).collect()
    }
}
