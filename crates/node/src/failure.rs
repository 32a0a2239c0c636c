//! Why a node had to stop.

use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

/// The first thing that went wrong for good. Everything after it is a consequence.
#[derive(Clone, Debug, Default)]
pub struct Failure(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    first: OnceLock<String>,
    happened: Notify,
}

impl Failure {
    /// Says what went wrong, unless something did before.
    pub(crate) fn set(&self, what: &dyn std::fmt::Display) {
        let message = what.to_string();
        if self.0.first.set(message.clone()).is_ok() {
            tracing::error!("{message}");
            self.0.happened.notify_waiters();
        }
    }

    /// # Errors
    /// If anything went wrong before.
    pub(crate) fn check(&self) -> std::io::Result<()> {
        self.get().map_or(Ok(()), |message| Err(std::io::Error::other(message.to_owned())))
    }

    /// What went wrong first.
    #[must_use]
    pub fn get(&self) -> Option<&str> {
        self.0.first.get().map(String::as_str)
    }

    /// Waits until something goes wrong.
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
