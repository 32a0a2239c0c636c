//! The servers of one cluster, and whom to ask next.

use std::sync::Arc;
use std::time::Duration;

use earmark_core::{AccountName, BalanceInfo, ClientId, Definition, LimitKey, LimitStatus, Usage, VaultName};

use crate::ask::{Answer, Ask, LimitView, Receipt, Scope, WriteItem, WriteRefusal};
use crate::backoff::{Backoff, BackoffOptions};
use crate::connect::{Preferred, connectors};
use crate::deadline::Deadline;
use crate::failure::{Certainty, Failure};
use crate::http::ConnectionPool;
#[cfg(feature = "local")]
use crate::local::{Local, LocalOptions};
use crate::options::{ClientOptions, OptionsError, Protocol};
use crate::surroundings::Around;
use crate::wire::{Grpc, Http, Wire};

/// The servers of one cluster, or a Book in this process. Cheap to clone; all clones share their connections.
///
/// Reserving is for the [`Limiter`](crate::Limiter), and sequenced writes are for the [`Writer`](crate::Writer): they
/// keep the rules. What is here may be asked again without any.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    servers: Vec<Wire>,
    preferred: Preferred,
    attempt_timeout: Duration,
    backoff: BackoffOptions,
    around: Around,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("servers", &self.0.servers.len()).finish_non_exhaustive()
    }
}

impl Client {
    /// A client of these servers. Connections are made when they are needed.
    ///
    /// # Errors
    /// When there are no servers, or the options do not go together; over gRPC, outside of a tokio runtime.
    pub fn new(options: ClientOptions) -> Result<Client, OptionsError> {
        if options.protocol == Protocol::Http && !options.namespace.is_default() {
            return Err(OptionsError::NamespaceOverHttp { found: options.namespace });
        }
        // A channel of gRPC has a task of its own from the start.
        if options.protocol == Protocol::Grpc && tokio::runtime::Handle::try_current().is_err() {
            return Err(OptionsError::NoRuntime);
        }
        let connectors = connectors(&options, options.protocol)?;
        let servers = connectors.into_iter().map(|connector| match options.protocol {
            Protocol::Http => Ok(Wire::Http(Http(ConnectionPool::new(connector, &options)))),
            Protocol::Grpc => Grpc::new(connector, &options)
                .map(|grpc| Wire::Grpc(Box::new(grpc)))
                .map_err(|error| OptionsError::Roots { why: error.to_string() }),
        });
        Ok(Client(Arc::new(Inner {
            servers: servers.collect::<Result<_, _>>()?,
            preferred: Preferred::default(),
            attempt_timeout: options.attempt_timeout,
            backoff: options.backoff,
            around: options.around,
        })))
    }

    /// A client of a Book in this process. What it holds is gone when the last clone is.
    ///
    /// # Errors
    /// Never, as long as the namespace `default` has a name.
    #[cfg(feature = "local")]
    pub fn local(options: LocalOptions) -> Result<Client, OptionsError> {
        Client::local_with(options, Arc::new(crate::Machine))
    }

    /// The same with another source of wall time and randomness, which should agree with the clock of the Book.
    ///
    /// # Errors
    /// Never, as long as the namespace `default` has a name.
    #[cfg(feature = "local")]
    pub fn local_with(
        options: LocalOptions,
        surroundings: Arc<dyn crate::Surroundings>,
    ) -> Result<Client, OptionsError> {
        Ok(Client(Arc::new(Inner {
            servers: vec![Wire::Local(Local::new(options)?)],
            preferred: Preferred::default(),
            attempt_timeout: Duration::from_secs(1),
            backoff: BackoffOptions::default(),
            around: Around::new(surroundings),
        })))
    }

    /// The Book of this process, if that is what is asked.
    #[cfg(feature = "local")]
    pub(crate) fn book(&self) -> Option<&Local> {
        match self.0.servers.as_slice() {
            [Wire::Local(local)] => Some(local),
            _ => None,
        }
    }

    pub(crate) fn around(&self) -> &Around {
        &self.0.around
    }

    pub(crate) fn servers(&self) -> usize {
        self.0.servers.len()
    }

    pub(crate) fn backoff(&self) -> Backoff<'_> {
        Backoff::new(&self.0.around, self.0.backoff)
    }

    /// Asks one server once. If that fails by its fault, or any part of it, the next request goes to the next one.
    pub(crate) async fn ask_once(&self, ask: &Ask, deadline: Deadline) -> Result<Answer, Failure> {
        let Inner { servers, preferred, attempt_timeout, .. } = &*self.0;
        let (index, server) = preferred.of(servers)?;
        let by = match server {
            #[cfg(feature = "local")]
            Wire::Local(_) => deadline,
            _ => deadline.or_after(*attempt_timeout),
        };
        let answer = server.ask(ask, by).await;
        if answer.as_ref().map_or_else(Failure::blames_server, Answer::blames_server) {
            preferred.advance(index, servers.len());
        }
        answer
    }

    /// Asks until there is an answer, or the deadline passes.
    pub(crate) async fn ask(&self, ask: &Ask, deadline: Deadline) -> Result<Answer, Failure> {
        let mut backoff = self.backoff();
        let (mut last, mut earlier) = (None, Certainty::NothingHappened);
        while !deadline.has_passed() {
            match self.ask_once(ask, deadline).await {
                Err(failure) if failure.is_transient() => {
                    if ask.changes_something() {
                        earlier = earlier.or(failure.certainty());
                    }
                    let wait = backoff.wait(&failure, self.servers());
                    last = Some(Box::new(failure));
                    _ = deadline.bound(tokio::time::sleep(wait)).await;
                }
                other => return other.map_err(|failure| failure.after(earlier)),
            }
        }
        Err(Failure::DeadlinePassed { last })
    }

    /// Creates a limit or changes its definition.
    ///
    /// A copy of the request whose answer was lost may still be under way when this returns, and arrive after a later
    /// change of the same limit, which it undoes. Where several changes of one limit follow each other closely, put it by
    /// a [`Writer`](crate::Writer), whose numbers keep late copies out.
    ///
    /// # Errors
    /// When the definition is refused, or no answer came in time.
    pub async fn put_limit(
        &self,
        definition: &Definition,
        deadline: Deadline,
    ) -> Result<LimitStatus, Failure> {
        match self.ask(&Ask::PutLimit(Box::new(definition.clone())), deadline).await? {
            Answer::LimitStatus(status) => Ok(status),
            _ => Err(mixed_up()),
        }
    }

    /// Lets a limit run empty and then forgets it.
    ///
    /// # Errors
    /// [`Failure::NotFound`] if there is none, also when an attempt without an answer has just deleted it; or when no
    /// answer came in time.
    pub async fn delete_limit(&self, key: &LimitKey, deadline: Deadline) -> Result<LimitStatus, Failure> {
        match self.ask(&Ask::DeleteLimit(key.clone()), deadline).await? {
            Answer::LimitStatus(status) => Ok(status),
            _ => Err(mixed_up()),
        }
    }

    /// One limit.
    ///
    /// # Errors
    /// [`Failure::NotFound`] if there is none; or when no answer came in time.
    pub async fn limit(&self, key: &LimitKey, deadline: Deadline) -> Result<LimitView, Failure> {
        match self.ask(&Ask::Limit(key.clone()), deadline).await? {
            Answer::Limits(found) => found.into_iter().next().ok_or_else(mixed_up),
            _ => Err(mixed_up()),
        }
    }

    /// All limits, in order of their keys.
    ///
    /// # Errors
    /// When no answer came in time.
    pub async fn limits(&self, deadline: Deadline) -> Result<Vec<LimitView>, Failure> {
        match self.ask(&Ask::Limits, deadline).await? {
            Answer::Limits(found) => Ok(found),
            _ => Err(mixed_up()),
        }
    }

    /// What a limit holds.
    ///
    /// # Errors
    /// [`Failure::NotFound`] if there is none; or when no answer came in time.
    pub async fn usage(&self, key: &LimitKey, deadline: Deadline) -> Result<Usage, Failure> {
        match self.ask(&Ask::Usage(key.clone()), deadline).await? {
            Answer::Usage(usage) => Ok(usage),
            _ => Err(mixed_up()),
        }
    }

    /// What an account has, in order of asset.
    ///
    /// # Errors
    /// [`Failure::NotFound`] if there is none; or when no answer came in time.
    pub async fn balances(
        &self,
        vault: &VaultName,
        account: &AccountName,
        deadline: Deadline,
    ) -> Result<Vec<BalanceInfo>, Failure> {
        let ask = Ask::Balances { vault: vault.clone(), account: account.clone() };
        match self.ask(&ask, deadline).await? {
            Answer::Balances(balances) => Ok(balances),
            _ => Err(mixed_up()),
        }
    }

    /// The last number that a client committed in a scope; 0 before the first.
    ///
    /// # Errors
    /// [`Failure::NotFound`] if there is no such scope; or when no answer came in time.
    pub async fn client_state(
        &self,
        scope: &Scope,
        client: &ClientId,
        deadline: Deadline,
    ) -> Result<u64, Failure> {
        let ask = Ask::ClientState { scope: scope.clone(), client: client.clone() };
        match self.ask(&ask, deadline).await? {
            Answer::ClientState(last) => Ok(last),
            _ => Err(mixed_up()),
        }
    }

    /// Sends a transaction once.
    pub(crate) async fn write_once(
        &self,
        item: &Ask,
        deadline: Deadline,
    ) -> Result<Result<Receipt, WriteRefusal>, Failure> {
        match self.ask_once(item, deadline).await? {
            Answer::Write(written) => Ok(written),
            _ => Err(mixed_up()),
        }
    }
}

impl From<WriteItem> for Ask {
    fn from(item: WriteItem) -> Ask {
        Ask::Write(Box::new(item))
    }
}

pub(crate) fn mixed_up() -> Failure {
    Failure::Invalid { message: "a bug of this client: the answer is to something else".into() }
}
