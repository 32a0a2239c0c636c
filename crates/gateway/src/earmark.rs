//! Earmark, as the gateway uses it.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use earmark_client::core::{Definition, LeaseId, LimitKey, OnTimeout};
use earmark_client::{
    BatchOptions, Call, CallAnswer, CallCompleted, CallExplanation, CallExtension, CallOutcome, Calls, Client,
    ClientKey, Deadline, ExtendAnswer, Failure, Identity, OptionsError,
};

/// Seconds for who a client is. The client waits for it.
const WHO_TIMEOUT: Duration = Duration::from_secs(5);
/// Seconds for a reserve: longer than a cluster takes to elect a leader. The client waits for it.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// Seconds for one try of a settlement, an extension or a pause. Nobody waits for it.
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(30);

/// The answer to a request.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// Earmark, as the gateway uses it. Every method retries within its own time, with the same lease.
pub trait Earmark: Send + Sync + 'static {
    /// The identity of a client; without a client's key, of the gateway.
    fn who<'a>(&'a self, client: Option<&'a ClientKey>) -> Answer<'a, Identity>;

    /// Reserves what a call may need.
    fn call<'a>(&'a self, call: &'a Call, client: Option<&'a ClientKey>) -> Answer<'a, CallAnswer>;

    /// The answer that a call would get.
    fn explain<'a>(&'a self, call: &'a Call, client: Option<&'a ClientKey>) -> Answer<'a, CallExplanation>;

    /// Renews a call, and reports its usage so far.
    fn extend<'a>(&'a self, lease: LeaseId, extension: &'a CallExtension) -> Answer<'a, ExtendAnswer>;

    /// Settles a call.
    fn complete<'a>(&'a self, lease: LeaseId, outcome: &'a CallOutcome) -> Answer<'a, CallCompleted>;

    /// Pauses a limit.
    fn pause<'a>(&'a self, key: &'a LimitKey, length: Duration, reason: &'a str) -> Answer<'a, ()>;

    /// The credit limits and templates of the gateway's namespace whose timeout releases what is not settled.
    fn releasing(&self) -> Answer<'_, Vec<LimitKey>>;
}

/// Requests under way of the calls of one client, and of all completes. Two keep the server busy; more would only make the
/// batches smaller.
const IN_FLIGHT_MAX: usize = 2;

/// Earmark on servers.
#[derive(Debug)]
pub struct Remote {
    client: Client,
    calls: Calls,
}

impl Remote {
    /// Earmark on the servers of this client, whose protocol is HTTP.
    ///
    /// # Errors
    /// Those of [`Calls::new`].
    pub fn new(client: Client) -> Result<Remote, OptionsError> {
        let batching = BatchOptions { in_flight_max: IN_FLIGHT_MAX, ..BatchOptions::default() };
        Ok(Remote { calls: Calls::new(client.clone(), batching)?, client })
    }
}

impl Earmark for Remote {
    fn who<'a>(&'a self, client: Option<&'a ClientKey>) -> Answer<'a, Identity> {
        Box::pin(self.client.whoami(client, Deadline::after(WHO_TIMEOUT)))
    }

    fn call<'a>(&'a self, call: &'a Call, client: Option<&'a ClientKey>) -> Answer<'a, CallAnswer> {
        Box::pin(self.calls.call(call, client, Deadline::after(CALL_TIMEOUT)))
    }

    fn explain<'a>(&'a self, call: &'a Call, client: Option<&'a ClientKey>) -> Answer<'a, CallExplanation> {
        Box::pin(self.client.explain(call, client, Deadline::after(WHO_TIMEOUT)))
    }

    fn extend<'a>(&'a self, lease: LeaseId, extension: &'a CallExtension) -> Answer<'a, ExtendAnswer> {
        Box::pin(self.client.extend_call(lease, extension, Deadline::after(BACKGROUND_TIMEOUT)))
    }

    fn complete<'a>(&'a self, lease: LeaseId, outcome: &'a CallOutcome) -> Answer<'a, CallCompleted> {
        Box::pin(self.calls.complete(lease, outcome, Deadline::after(BACKGROUND_TIMEOUT)))
    }

    fn pause<'a>(&'a self, key: &'a LimitKey, length: Duration, reason: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            self.client.pause_limit(key, length, reason, Deadline::after(BACKGROUND_TIMEOUT)).await.map(drop)
        })
    }

    fn releasing(&self) -> Answer<'_, Vec<LimitKey>> {
        Box::pin(async move {
            let deadline = || Deadline::after(BACKGROUND_TIMEOUT);
            // A derived limit is reported by its template.
            let limits = self.client.limits(deadline()).await?.into_iter().filter(|limit| limit.template.is_none());
            let templates = self.client.templates(deadline()).await?.into_iter();
            let definitions = limits.map(|limit| limit.definition).chain(templates.map(|one| one.definition));
            let releases = |definition: &Definition| {
                definition.kind.terms().is_some_and(|terms| terms.on_timeout == OnTimeout::Release)
            };
            Ok(definitions.filter(releases).map(|definition| definition.key).collect())
        })
    }
}
