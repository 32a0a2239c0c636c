//! The client: the servers of one cluster, retries, and the choice of the next server.

use std::sync::Arc;
use std::time::Duration;

use earmark_core::{
    AccountName, BalanceInfo, ClientId, Definition, GrantInfo, IdempotencyKey, LeaseId, LimitKey, LimitStatus,
    Operation, Template, TemplateInfo, UnixMs, Usage, VaultName, WriteId,
};

use crate::answer::{
    ExtendAnswer, LeaseView, LimitView, Receipt, Scope, UsagePage, UsageQuery, WriteCode, WriteRefusal,
};
use crate::backoff::{Backoff, BackoffOptions};
use crate::batcher::ask_alone;
use crate::call::{Call, CallAnswer, CallCompleted, CallExplanation, CallExtension, CallOutcome, Identity};
use crate::connect::{Preferred, connectors};
use crate::deadline::Deadline;
use crate::env::SharedEnv;
use crate::failure::{Certainty, Failure};
use crate::http::ConnectionPool;
use crate::key::ClientKey;
#[cfg(feature = "local")]
use crate::local::{Local, LocalOptions};
use crate::options::{ClientOptions, OptionsError, Protocol};
use crate::request::{
    CompleteCall, DeleteLimit, DeleteTemplate, ExplainCall, ExtendCall, GetBalances, GetClientState, GetGrants,
    GetLease, GetLimit, GetUsage, Item, ListLimits, ListTemplates, ListUsage, Pause, PauseLimit, PlaceCall, PutLimit,
    PutTemplate, Request, WhoAmI, Write,
};
use crate::stream::LeaseStream;
use crate::wire::{Grpc, Http, Wire};

/// A client of the servers of one cluster, or of a Book in this process. Cheap to clone; all clones share their
/// connections.
///
/// Leases need a [`Limiter`](crate::Limiter) and sequenced writes a [`Writer`](crate::Writer), which follow the retry
/// rules. The methods here can be called again without any rule.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    servers: Vec<Wire>,
    preferred: Preferred,
    attempt_timeout: Duration,
    backoff: BackoffOptions,
    env: SharedEnv,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("servers", &self.0.servers.len()).finish_non_exhaustive()
    }
}

impl Client {
    /// A client of these servers. It connects with the first request.
    ///
    /// # Errors
    /// When there are no servers or the options contradict each other; over gRPC, outside of a tokio runtime.
    pub fn new(options: ClientOptions) -> Result<Client, OptionsError> {
        if options.protocol == Protocol::Http && !options.namespace.is_default() {
            return Err(OptionsError::NamespaceOverHttp { found: options.namespace });
        }
        // A gRPC channel spawns a task at once.
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
            env: options.env,
        })))
    }

    /// A client of a Book in this process. Its state is gone with the last clone.
    ///
    /// # Errors
    /// Never, as long as `default` is a valid namespace.
    #[cfg(feature = "local")]
    pub fn local(options: LocalOptions) -> Result<Client, OptionsError> {
        Client::local_with(options, Arc::new(crate::SystemEnv))
    }

    /// A client of a Book in this process with another source of wall time and randomness, which should agree with the
    /// clock of the Book.
    ///
    /// # Errors
    /// Never, as long as `default` is a valid namespace.
    #[cfg(feature = "local")]
    pub fn local_with(options: LocalOptions, env: Arc<dyn crate::Env>) -> Result<Client, OptionsError> {
        Ok(Client(Arc::new(Inner {
            servers: vec![Wire::Local(Local::new(options)?)],
            preferred: Preferred::default(),
            attempt_timeout: Duration::from_secs(1),
            backoff: BackoffOptions::default(),
            env: SharedEnv::new(env),
        })))
    }

    /// The Book of this process, unless the client has servers.
    #[cfg(feature = "local")]
    pub(crate) fn book(&self) -> Option<&Local> {
        match self.0.servers.as_slice() {
            [Wire::Local(local)] => Some(local),
            _ => None,
        }
    }

    pub(crate) fn env(&self) -> &SharedEnv {
        &self.0.env
    }

    pub(crate) fn servers(&self) -> usize {
        self.0.servers.len()
    }

    pub(crate) fn backoff(&self) -> Backoff<'_> {
        Backoff::new(&self.0.env, self.0.backoff)
    }

    /// Sends a request once, to the preferred server. When that server is at fault, the next request goes to the next
    /// server.
    pub(crate) async fn ask_once<R: Request>(&self, request: &R, deadline: Deadline) -> Result<R::Answer, Failure> {
        let Inner { servers, preferred, attempt_timeout, .. } = &*self.0;
        let (index, server) = preferred.of(servers)?;
        let by = match server {
            #[cfg(feature = "local")]
            Wire::Local(_) => deadline,
            _ => deadline.or_after(*attempt_timeout),
        };
        let answer = server.ask(request, by).await;
        if answer.as_ref().map_or_else(Failure::blames_server, R::blames_server) {
            preferred.advance(index, servers.len());
        }
        answer
    }

    /// Sends a request until it has an answer or the deadline passes.
    pub(crate) async fn ask<R: Request>(&self, request: &R, deadline: Deadline) -> Result<R::Answer, Failure> {
        self.retry(R::CHANGES_STATE, deadline, || self.ask_once(request, deadline)).await
    }

    /// Sends an item in a request of its own until it has an answer or the deadline passes.
    pub(crate) async fn ask_alone<I: Item + Clone>(&self, item: I, deadline: Deadline) -> Result<I::Answer, Failure> {
        self.retry(true, deadline, || ask_alone(self, item.clone(), deadline)).await
    }

    /// Makes attempts until one has an answer, fails for good, or the deadline passes.
    pub(crate) async fn retry<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        changes_state: bool,
        deadline: Deadline,
        attempt: impl Fn() -> F,
    ) -> Result<T, Failure> {
        let mut backoff = self.backoff();
        let (mut last, mut earlier) = (None, Certainty::NothingHappened);
        while !deadline.has_passed() {
            match deadline.bound(attempt()).await {
                Some(Err(failure)) if failure.is_transient() => {
                    if changes_state {
                        earlier = earlier.or(failure.certainty());
                    }
                    let wait = backoff.wait(&failure, self.servers());
                    last = Some(Box::new(failure));
                    _ = deadline.bound(tokio::time::sleep(wait)).await;
                }
                Some(answer) => return answer.map_err(|failure| failure.after(earlier)),
                None => break,
            }
        }
        Err(Failure::DeadlinePassed { last })
    }

    /// Opens a stream of reserves and completes to the preferred server. It is not opened again when it ends.
    ///
    /// # Errors
    /// Without [`Protocol::Grpc`], or when the server refuses it or does not answer.
    pub async fn lease_stream(&self, deadline: Deadline) -> Result<LeaseStream, Failure> {
        let Inner { servers, preferred, attempt_timeout, .. } = &*self.0;
        let (index, server) = preferred.of(servers)?;
        let Wire::Grpc(grpc) = server else {
            return Err(Failure::Invalid { message: "a lease stream needs Protocol::Grpc".into() });
        };
        let stream = LeaseStream::open(grpc, deadline.or_after(*attempt_timeout)).await;
        if stream.as_ref().is_err_and(Failure::blames_server) {
            preferred.advance(index, servers.len());
        }
        stream
    }

    /// Creates a limit or changes its definition.
    ///
    /// An attempt whose answer was lost may still arrive after this returns, and undo a later change of the same limit.
    /// Use a [`Writer`](crate::Writer) where changes of one limit follow each other closely: its sequence numbers keep
    /// late copies out.
    ///
    /// # Errors
    /// When the definition is refused, or no answer came in time.
    pub async fn put_limit(&self, definition: &Definition, deadline: Deadline) -> Result<LimitStatus, Failure> {
        self.ask(&PutLimit(definition), deadline).await
    }

    /// Stops reserves on a limit, and deletes it once it is empty.
    ///
    /// # Errors
    /// [`Failure::NotFound`] if the limit does not exist, also when an attempt without an answer has just deleted it; or
    /// when no answer came in time.
    pub async fn delete_limit(&self, key: &LimitKey, deadline: Deadline) -> Result<LimitStatus, Failure> {
        self.ask(&DeleteLimit(key), deadline).await
    }

    /// Refuses new reserves of a limit for a time, at most one hour; [`Duration::ZERO`] resumes it. A second pause replaces
    /// the first. Returns the server time at which the pause ends, or `None` if the limit is not paused.
    ///
    /// # Errors
    /// [`Failure::NotFound`] if the limit does not exist; or when the pause is refused, or no answer came in time.
    pub async fn pause_limit(
        &self,
        key: &LimitKey,
        length: Duration,
        reason: &str,
        deadline: Deadline,
    ) -> Result<Option<UnixMs>, Failure> {
        self.ask(&PauseLimit(key, Pause { length, reason }), deadline).await
    }

    /// Asks for a call, with the same lease until there is an answer. A denied or refused call needs a new lease.
    /// `client` is the key of the client that a gateway calls for.
    ///
    /// # Errors
    /// When the call is malformed, the caller may not set an attribute, or no answer came in time: then the lease may
    /// hold amounts, so repeat it or complete it as [`CallResult::Refused`](crate::CallResult::Refused).
    pub async fn call(
        &self,
        call: &Call,
        client: Option<&ClientKey>,
        deadline: Deadline,
    ) -> Result<CallAnswer, Failure> {
        self.ask_alone(PlaceCall(Arc::new(call.clone()), client.cloned()), deadline).await
    }

    /// Extends a live call. Repeat an extension without an answer as it is; the next one has the next number.
    ///
    /// # Errors
    /// When the extension is malformed, or no answer came in time.
    pub async fn extend_call(
        &self,
        lease: LeaseId,
        extension: &CallExtension,
        deadline: Deadline,
    ) -> Result<ExtendAnswer, Failure> {
        self.ask(&ExtendCall(lease, extension), deadline).await
    }

    /// Settles a call. It may be repeated: only the first one counts.
    ///
    /// # Errors
    /// When the outcome is malformed or does not belong to the lease, or no answer came in time.
    pub async fn complete_call(
        &self,
        lease: LeaseId,
        outcome: &CallOutcome,
        deadline: Deadline,
    ) -> Result<CallCompleted, Failure> {
        self.ask_alone(CompleteCall(lease, Arc::new(outcome.clone())), deadline).await
    }

    /// The answer that a call would get. It takes nothing; the lease of `call` is not used.
    ///
    /// # Errors
    /// When the call is malformed, or no answer came in time.
    pub async fn explain(
        &self,
        call: &Call,
        client: Option<&ClientKey>,
        deadline: Deadline,
    ) -> Result<CallExplanation, Failure> {
        self.ask(&ExplainCall(call, client), deadline).await
    }

    /// The identity of this client's key, or of the client that a gateway calls for.
    ///
    /// # Errors
    /// [`Failure::Unauthorized`] if the key is not valid; or when no answer came in time.
    pub async fn whoami(&self, client: Option<&ClientKey>, deadline: Deadline) -> Result<Identity, Failure> {
        self.ask(&WhoAmI(client), deadline).await
    }

    /// One limit.
    ///
    /// # Errors
    /// [`Failure::NotFound`] if the limit does not exist; or when no answer came in time.
    pub async fn limit(&self, key: &LimitKey, deadline: Deadline) -> Result<LimitView, Failure> {
        self.ask(&GetLimit(key), deadline).await
    }

    /// All limits, sorted by key. They are read in pages, so limits that change meanwhile may appear or not.
    ///
    /// # Errors
    /// When no answer came in time.
    pub async fn limits(&self, deadline: Deadline) -> Result<Vec<LimitView>, Failure> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let page = self.ask(&ListLimits { after }, deadline).await?;
            all.extend(page.limits);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(all),
            }
        }
    }

    /// Creates a template or changes its definition, and returns its revision. Every key that matches it is a limit of
    /// its own.
    ///
    /// # Errors
    /// When the template is refused, or no answer came in time.
    pub async fn put_template(&self, template: &Template, deadline: Deadline) -> Result<u64, Failure> {
        self.ask(&PutTemplate(template), deadline).await
    }

    /// Deletes a template. Its keys are unknown at once, and reserved amounts settle as usual.
    ///
    /// # Errors
    /// [`Failure::NotFound`] if the template does not exist, also when an attempt without an answer has just deleted it;
    /// or when no answer came in time.
    pub async fn delete_template(&self, key: &LimitKey, deadline: Deadline) -> Result<(), Failure> {
        self.ask(&DeleteTemplate(key), deadline).await
    }

    /// All templates, sorted by key.
    ///
    /// # Errors
    /// When no answer came in time.
    pub async fn templates(&self, deadline: Deadline) -> Result<Vec<TemplateInfo>, Failure> {
        self.ask(&ListTemplates, deadline).await
    }

    /// The usage of a limit.
    ///
    /// # Errors
    /// [`Failure::NotFound`] if the limit does not exist; or when no answer came in time.
    pub async fn usage(&self, key: &LimitKey, deadline: Deadline) -> Result<Usage, Failure> {
        self.ask(&GetUsage(key), deadline).await
    }

    /// Limits with their usage: a page by key, or the first ones by fullness or debt.
    ///
    /// # Errors
    /// When the query is refused, or no answer came in time.
    pub async fn usage_page(&self, query: &UsageQuery, deadline: Deadline) -> Result<UsagePage, Failure> {
        self.ask(&ListUsage(query), deadline).await
    }

    /// One lease.
    ///
    /// # Errors
    /// [`Failure::NotFound`] if the lease does not exist or is forgotten; or when no answer came in time.
    pub async fn lease(&self, lease: LeaseId, deadline: Deadline) -> Result<LeaseView, Failure> {
        self.ask(&GetLease(lease), deadline).await
    }

    /// The balances of an account, sorted by asset.
    ///
    /// # Errors
    /// [`Failure::NotFound`] if the account does not exist; or when no answer came in time.
    pub async fn balances(
        &self,
        vault: &VaultName,
        account: &AccountName,
        deadline: Deadline,
    ) -> Result<Vec<BalanceInfo>, Failure> {
        self.ask(&GetBalances { vault, account }, deadline).await
    }

    /// The grants of an account, by asset and then in spending order. Plain credit is one of them.
    ///
    /// # Errors
    /// [`Failure::NotFound`] if the account does not exist; or when no answer came in time.
    pub async fn grants(
        &self,
        vault: &VaultName,
        account: &AccountName,
        deadline: Deadline,
    ) -> Result<Vec<GrantInfo>, Failure> {
        self.ask(&GetGrants { vault, account }, deadline).await
    }

    /// Applies operations once under an idempotency key, from any process and without a sequence file. It sends the same
    /// write until its outcome is known or the deadline passes; call it again with the same key to learn an outcome that
    /// is unknown. `ALREADY_COMMITTED` means that the write took effect more than a day ago.
    ///
    /// # Errors
    /// The request failed. After a lost answer a refusal is not final: a copy may still arrive.
    pub async fn write_once(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        operations: Vec<Operation>,
        deadline: Deadline,
    ) -> Result<Result<Receipt, WriteRefusal>, Failure> {
        let write = Write { scope: scope.clone(), id: WriteId::Key(key.clone()), operations };
        let attempt = || async {
            match self.ask_once(&write, deadline).await? {
                Err(WriteRefusal { code: WriteCode::Unavailable, message, .. }) => {
                    Err(Failure::Unavailable { server: "the server".into(), message })
                }
                answer => Ok(answer),
            }
        };
        self.retry(true, deadline, attempt).await
    }

    /// The last sequence number that a client committed in a scope; 0 before the first.
    ///
    /// # Errors
    /// [`Failure::NotFound`] if the scope does not exist; or when no answer came in time.
    pub async fn client_state(&self, scope: &Scope, client: &ClientId, deadline: Deadline) -> Result<u64, Failure> {
        self.ask(&GetClientState { scope, client }, deadline).await
    }
}
