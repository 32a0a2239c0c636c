//! A session with the cluster: one client, one request in flight, a new client when the old one was sent away.

use std::sync::Arc;
use std::time::Duration;

use earmark_admission::BackendError;
use tigerbeetle::{Client, Error, InitError};

use crate::clock::{Health, LedgerClock};
use crate::options::LedgerUrl;

/// How long to wait before a client is made again, at first and at most.
const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// What all sessions share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) url: LedgerUrl,
    pub(crate) health: Health,
    pub(crate) clock: LedgerClock,
}

/// One session. Requests are repeated by the client until the cluster answers, however long that takes.
pub(crate) struct Session {
    shared: Arc<Shared>,
    number: usize,
    client: Option<Client>,
    backoff: Duration,
}

/// Why a request had no answer.
pub(crate) enum Lost {
    /// The session has ended. The request may have happened; it can be repeated, for each of its events has an id.
    Session,
    /// It was more than the server takes, and was not sent.
    TooMuchData,
    /// There will be no answer.
    Stopped(BackendError),
}

impl Session {
    pub(crate) fn new(shared: Arc<Shared>, number: usize) -> Session {
        Session { shared, number, client: None, backoff: BACKOFF_FIRST }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Makes one request, on a client that is made if there is none.
    pub(crate) async fn ask<T, F>(&mut self, request: impl FnOnce(&Client) -> F) -> Result<T, Lost>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let client = match self.client.take() {
            Some(client) => client,
            None => self.connect().await?,
        };
        self.shared.health.asks(self.number);
        let answer = request(&client).await;
        match answer {
            Ok(answer) => {
                self.shared.health.answered(self.number);
                self.shared.health.set_trouble(None);
                self.backoff = BACKOFF_FIRST;
                self.client = Some(client);
                Ok(answer)
            }
            Err(Error::TooMuchData) => {
                self.shared.health.answered(self.number);
                self.client = Some(client);
                Err(Lost::TooMuchData)
            }
            Err(error) => {
                drop(client);
                Err(self.lose(error).await)
            }
        }
    }

    async fn connect(&mut self) -> Result<Client, Lost> {
        loop {
            if self.shared.health.is_stopped() {
                return Err(stopped());
            }
            let url = &self.shared.url;
            match Client::new(url.cluster, &url.addresses()) {
                Ok(client) => return Ok(client),
                Err(error) => {
                    let trouble = format!("no client for {url} can be made: {}", describe_init(error));
                    self.shared.health.set_trouble(Some(trouble));
                    self.pause().await;
                }
            }
        }
    }

    /// The client is of no more use.
    async fn lose(&mut self, error: Error) -> Lost {
        if self.shared.health.is_stopped() {
            return stopped();
        }
        let url = &self.shared.url;
        match error {
            Error::ClientEvicted | Error::ClientClosed => {
                tracing::warn!("a session with {url} was ended by the cluster ({error}); a new one is made");
            }
            Error::ClientReleaseTooLow | Error::ClientReleaseTooHigh => {
                let trouble = format!(
                    "{url} is of a version that the client in here does not go with ({error}); this is client \
                     0.17.9: run a server of this version or a later one that still takes it"
                );
                self.shared.health.set_trouble(Some(trouble));
            }
            other => self.shared.health.set_trouble(Some(format!("{url} refuses what it is sent: {other}"))),
        }
        self.pause().await;
        Lost::Session
    }

    async fn pause(&mut self) {
        tokio::time::sleep(self.backoff).await;
        self.backoff = self.backoff.saturating_mul(2).min(BACKOFF_MAX);
    }
}

fn stopped() -> Lost {
    Lost::Stopped(BackendError::Failed("it is shutting down".into()))
}

fn describe_init(error: InitError) -> String {
    match error {
        InitError::AddressInvalid => "an address is not one; allowed are IP addresses with ports".into(),
        InitError::AddressLimitExceeded => "there are too many addresses".into(),
        other => other.to_string(),
    }
}
