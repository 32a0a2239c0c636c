//! What every request needs.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Bytes;
use earmark_admission::{Backend, BackendError, Cluster};
use earmark_core::NameError;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::budget::Budget;
use crate::door::{Door, DoorOptions};
use crate::http::{RequestIds, document};
use crate::metrics::Metrics;

/// Why a server that drains is not ready.
pub(crate) const SHUTTING_DOWN: &str = "shutting down";

/// The most memory that large answers may take which are not yet taken, of all requests together.
const ANSWERS_BYTES_MAX: usize = 256 << 20;

/// What every request needs, shared by all of them.
pub(crate) struct App {
    pub(crate) backend: Arc<dyn Backend>,
    /// The nodes, where the backend is one of several or could be.
    pub(crate) cluster: OnceLock<Arc<dyn Cluster>>,
    /// Who is let in.
    pub(crate) door: Door,
    pub(crate) metrics: Metrics,
    pub(crate) request_ids: RequestIds,
    pub(crate) request_timeout: Duration,
    pub(crate) openapi: Bytes,
    pub(crate) bodies: Arc<Budget>,
    pub(crate) answers: Arc<Budget>,
    is_draining: watch::Sender<bool>,
}

impl App {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        request_timeout: Duration,
        bodies_bytes_max: usize,
        door: DoorOptions,
    ) -> Result<App, NameError> {
        let metrics = Metrics::new();
        Ok(App {
            backend,
            cluster: OnceLock::new(),
            door: Door::new(door, metrics.door())?,
            metrics,
            request_ids: RequestIds::new(),
            request_timeout,
            openapi: Bytes::from(document().to_string()),
            bodies: Budget::of(bodies_bytes_max),
            answers: Budget::of(ANSWERS_BYTES_MAX),
            is_draining: watch::Sender::new(false),
        })
    }

    /// From now on it is not ready.
    pub(crate) fn drain(&self) {
        self.is_draining.send_replace(true);
    }

    /// Ends when it is to drain.
    pub(crate) fn draining(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut is_draining = self.is_draining.subscribe();
        async move {
            // If whoever could say it is gone, everything ends as well.
            _ = is_draining.wait_for(|is_draining| *is_draining).await;
        }
    }

    /// Whether it can serve; if not, why not.
    pub(crate) fn ready(&self) -> Result<(), String> {
        if *self.is_draining.borrow() {
            return Err(SHUTTING_DOWN.into());
        }
        self.backend.ready()
    }

    /// Waits for the backend up to the deadline. What was submitted is carried out all the same.
    pub(crate) async fn by<T>(
        &self,
        deadline: Instant,
        answer: impl Future<Output = T>,
    ) -> Result<T, BackendError> {
        tokio::time::timeout_at(deadline, answer).await.map_err(|_| {
            BackendError::Failed(format!(
                "no answer within {:?}; the outcome is unknown",
                self.request_timeout
            ))
        })
    }
}
