//! The failure that stopped a node.

use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

/// The first fatal failure of a node. Later ones are consequences of it.
#[derive(Clone, Debug, Default)]
pub struct Failure(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    first: OnceLock<String>,
    happened: Notify,
}

impl Failure {
    /// Records the failure, unless one was recorded before.
    pub(crate) fn set(&self, what: &dyn std::fmt::Display) {
        let message = what.to_string();
        if self.0.first.set(message.clone()).is_ok() {
            tracing::error!("{message}");
            self.0.happened.notify_waiters();
        }
    }

    /// # Errors
    /// If a failure was recorded.
    pub(crate) fn check(&self) -> std::io::Result<()> {
        self.get().map_or(Ok(()), |message| Err(std::io::Error::other(message.to_owned())))
    }

    /// The recorded failure.
    #[must_use]
    pub fn get(&self) -> Option<&str> {
        self.0.first.get().map(String::as_str)
    }

    /// Waits for a failure.
    pub async fn wait(&self) -> &str {
        loop {
            let happened = self.0.happened.notified();
            tokio::pin!(happened);
            happened.as_mut().enable();
            if let Some(message) = self.get() {
                return message;
            }
            happened.await;
        }
    }
}
