//! What every request needs.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use earmark_admission::{Backend, BackendError};
use earmark_core::{NameError, NamespaceName};
use tokio::time::Instant;

use crate::http::{RequestIds, document};
use crate::metrics::Metrics;

/// What every request needs, shared by all of them.
pub(crate) struct App {
    pub(crate) backend: Arc<dyn Backend>,
    /// Requests name no namespace; all of them mean this one.
    pub(crate) namespace: NamespaceName,
    pub(crate) metrics: Metrics,
    pub(crate) request_ids: RequestIds,
    pub(crate) request_timeout: Duration,
    pub(crate) openapi: Bytes,
    is_draining: AtomicBool,
}

impl App {
    pub(crate) fn new(backend: Arc<dyn Backend>, request_timeout: Duration) -> Result<App, NameError> {
        Ok(App {
            backend,
            namespace: NamespaceName::new(NamespaceName::DEFAULT)?,
            metrics: Metrics::new(),
            request_ids: RequestIds::new(),
            request_timeout,
            openapi: Bytes::from(document().to_string()),
            is_draining: AtomicBool::new(false),
        })
    }

    /// From now on it is not ready.
    pub(crate) fn drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }

    /// Whether it can serve; if not, why not.
    pub(crate) fn ready(&self) -> Result<(), String> {
        if self.is_draining.load(Ordering::Relaxed) {
            return Err("shutting down".into());
        }
        self.backend.ready()
    }

    /// Waits for the backend up to the deadline. What was submitted is carried out all the same.
    pub(crate) async fn by<T>(
        &self,
        deadline: Instant,
        answer: impl Future<Output = T>,
    ) -> Result<T, BackendError> {
        tokio::time::timeout_at(deadline, answer)
            .await
            .map_err(|_| BackendError::Failed(format!("no answer within {:?}", self.request_timeout)))
    }
}
