//! A session with the cluster: one client, one request in flight, a new client after an error.

use std::sync::Arc;
use std::time::Duration;

use earmark_admission::BackendError;
use tigerbeetle::{Error, InitError};

use crate::clock::{Health, LedgerClock};
use crate::ledger_client::{Connect, LedgerClient};
use crate::options::LedgerUrl;

/// Backoff before creating another client, doubling from the first to the maximum.
const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// The state that all sessions share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) url: LedgerUrl,
    pub(crate) connect: Arc<dyn Connect>,
    pub(crate) health: Health,
    pub(crate) clock: LedgerClock,
}

/// One session. TigerBeetle's client repeats a request until the cluster answers, so a request has no timeout here;
/// `Health` reports one that waits for long.
pub(crate) struct Session {
    shared: Arc<Shared>,
    /// Index of this session in `Health`.
    number: usize,
    /// `None` before the first request and after an error.
    client: Option<Box<dyn LedgerClient>>,
    backoff: Duration,
}

/// Why a request has no answer.
pub(crate) enum SessionError {
    /// The client failed. The request may have taken effect. The caller repeats it, which is safe because every event
    /// has an id.
    ClientLost,
    /// The request exceeds the server's `--limit-request` and was not sent. The caller sends a smaller one.
    TooMuchData,
    /// This process shuts down.
    Stopped(BackendError),
}

impl Session {
    pub(crate) fn new(shared: Arc<Shared>, number: usize) -> Session {
        Session { shared, number, client: None, backoff: BACKOFF_FIRST }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Sends one request, and connects first if necessary.
    pub(crate) async fn request<T, F>(
        &mut self,
        request: impl FnOnce(&dyn LedgerClient) -> F,
    ) -> Result<T, SessionError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let client = match self.client.take() {
            Some(client) => client,
            None => self.connect().await?,
        };
        self.shared.health.request_started(self.number);
        let answer = request(&*client).await;
        match answer {
            Ok(answer) => {
                self.shared.health.request_finished(self.number);
                self.shared.health.set_problem(None);
                self.backoff = BACKOFF_FIRST;
                self.client = Some(client);
                Ok(answer)
            }
            Err(Error::TooMuchData) => {
                self.shared.health.request_finished(self.number);
                self.client = Some(client);
                Err(SessionError::TooMuchData)
            }
            Err(error) => {
                drop(client);
                // `Health` keeps the request as unanswered until the caller has repeated it.
                Err(self.handle_error(error).await)
            }
        }
    }

    /// Creates a client, and retries until that succeeds or this process shuts down.
    async fn connect(&mut self) -> Result<Box<dyn LedgerClient>, SessionError> {
        loop {
            if self.shared.health.is_stopped() {
                return Err(stopped());
            }
            let url = &self.shared.url;
            match self.shared.connect.connect(url) {
                Ok(client) => return Ok(client),
                Err(error) => {
                    let problem = format!("cannot create a client for {url}: {}", describe_init(error));
                    self.shared.health.set_problem(Some(problem));
                    self.pause().await;
                }
            }
        }
    }

    /// Reports an error of the client, and waits for the backoff, so that the caller can repeat the request at once.
    async fn handle_error(&mut self, error: Error) -> SessionError {
        if self.shared.health.is_stopped() {
            return stopped();
        }
        let url = &self.shared.url;
        match error {
            Error::ClientEvicted | Error::ClientClosed => {
                tracing::warn!("a session with {url} was ended by the cluster ({error}); connecting again");
            }
            Error::ClientReleaseTooLow | Error::ClientReleaseTooHigh => {
                let problem = format!(
                    "{url} has an incompatible version ({error}); the client is 0.17.9: run a server of \
                     this version, or a later one that accepts it"
                );
                self.shared.health.set_problem(Some(problem));
            }
            other => self.shared.health.set_problem(Some(format!("{url} refused a request: {other}"))),
        }
        self.pause().await;
        SessionError::ClientLost
    }

    /// Waits for the backoff, and doubles it.
    async fn pause(&mut self) {
        tokio::time::sleep(self.backoff).await;
        self.backoff = self.backoff.saturating_mul(2).min(BACKOFF_MAX);
    }
}

fn stopped() -> SessionError {
    SessionError::Stopped(BackendError::Failed("limits on TigerBeetle are shutting down".into()))
}

fn describe_init(error: InitError) -> String {
    match error {
        InitError::AddressInvalid => "an address is invalid; use IP:PORT".into(),
        InitError::AddressLimitExceeded => "too many addresses".into(),
        other => other.to_string(),
    }
}
