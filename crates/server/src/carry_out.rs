//! What is done with requests once they were read and checked, whatever their clients speak.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderValue;
use earmark_admission::{
    BackendError, CompleteAnswer, CompleteRequest, DeleteLimitRequest, LimitChange, LimitError,
    PutLimitRequest, ReserveAnswer, ReserveRequest, WriteAnswer, WriteRequest,
};
use earmark_core::NamespaceName;
use tokio::task::JoinError;
use tokio::time::Instant;

use crate::answer::{CompleteWire, INVALID, ReserveWire, UNAVAILABLE};
use crate::app::App;
use crate::caller::{Caller, Refused};
use crate::door::{Patience, Place, Presence};

/// What is said of a limit that is not there.
pub(crate) const NO_SUCH_LIMIT: &str = "key: no limit has this key";
/// What is said of a lease that is not there.
pub(crate) const NO_SUCH_LEASE: &str = "lease_id: no such lease is remembered";
/// So many entries are on a page if nobody says how many.
pub(crate) const PAGE_USUAL: usize = 100;

/// So long it is waited for others to say whether somebody was turned away.
const PATIENCE: Duration = Duration::from_millis(250);

/// A request, as far as what is done with it depends on how it came.
#[derive(Clone)]
pub(crate) struct Ticket {
    /// Its name in the logs.
    pub(crate) id: HeaderValue,
    /// When an answer is too late.
    pub(crate) deadline: Instant,
    /// Whose it is.
    pub(crate) caller: Arc<Caller>,
    /// Whether its client is still there, where the protocol does not tell.
    pub(crate) presence: Option<Arc<Presence>>,
}

impl Ticket {
    /// For how long it waits for its turn.
    pub(crate) fn patience(&self) -> Patience<'_> {
        Patience { deadline: self.deadline, presence: self.presence.as_deref() }
    }

    /// Waits until it is the turn of so many items, which keep their places until the answer is made.
    pub(crate) async fn turn(&self, items: usize) -> Result<Place<'_>, Refused> {
        self.caller.turn(items, self.patience()).await
    }

    /// Its name in the logs, as a text, which every id is that was found fit.
    pub(crate) fn id(&self) -> &str {
        self.id.to_str().unwrap_or_default()
    }
}

/// Reserves, and counts how it came out.
pub(crate) async fn reserve(
    app: &App,
    ticket: &Ticket,
    requests: Vec<ReserveRequest>,
) -> Vec<Result<ReserveAnswer, BackendError>> {
    let actor = &ticket.caller.actor;
    for request in &requests {
        let job = request.job.as_ref().map(tracing::field::display);
        tracing::debug!(request_id = ticket.id(), %actor, lease = %request.lease, job, "reserve");
    }
    let namespaces: Vec<NamespaceName> = requests.iter().map(|request| request.namespace.clone()).collect();
    let count = requests.len();
    let answers = of_batch(
        app.by(ticket.deadline, app.backend.reserve_by(ticket.caller.by.clone(), requests)).await,
        count,
    );
    if is_turned_away(&answers) {
        app.door.forget(&ticket.caller);
        return answers;
    }
    for (wire, namespace) in answers.iter().map(ReserveWire::of).zip(&namespaces) {
        app.metrics.reserved(wire.outcome());
        let (keys, reason) = wire.limited_by();
        app.metrics.denied_by(namespace, keys, reason);
    }
    answers
}

/// Completes, and counts how it came out.
pub(crate) async fn complete(
    app: &App,
    ticket: &Ticket,
    requests: Vec<CompleteRequest>,
) -> Vec<Result<CompleteAnswer, BackendError>> {
    let actor = &ticket.caller.actor;
    for request in &requests {
        let job = request.job.as_ref().map(tracing::field::display);
        tracing::debug!(request_id = ticket.id(), %actor, lease = %request.lease, job, "complete");
    }
    let count = requests.len();
    let answers = of_batch(
        app.by(ticket.deadline, app.backend.complete_by(ticket.caller.by.clone(), requests)).await,
        count,
    );
    if is_turned_away(&answers) {
        app.door.forget(&ticket.caller);
        return answers;
    }
    for answer in &answers {
        if let Ok(answer) = answer {
            app.metrics.settled(answer);
        }
        app.metrics.completed(CompleteWire::of(answer).outcome());
    }
    answers
}

/// Creates a limit or changes it.
pub(crate) async fn put_limit(
    app: &App,
    ticket: &Ticket,
    request: PutLimitRequest,
) -> Result<LimitChange, LimitError> {
    let (backend, by) = (Arc::clone(&app.backend), ticket.caller.by.clone());
    let (actor, key) = (&ticket.caller.actor, &request.definition.key);
    tracing::info!(request_id = ticket.id(), %actor, %key, "put limit");
    change(app, ticket, async move { backend.put_limit_by(by, request).await }).await
}

/// Lets a limit run empty.
pub(crate) async fn delete_limit(
    app: &App,
    ticket: &Ticket,
    request: DeleteLimitRequest,
) -> Result<LimitChange, LimitError> {
    let (backend, by) = (Arc::clone(&app.backend), ticket.caller.by.clone());
    tracing::info!(request_id = ticket.id(), actor = %ticket.caller.actor, key = %request.key, "delete limit");
    change(app, ticket, async move { backend.delete_limit_by(by, request).await }).await
}

/// Carries a change out. It has several steps, so it goes on by itself if nobody waits for it any longer.
async fn change(
    app: &App,
    ticket: &Ticket,
    change: impl Future<Output = Result<LimitChange, LimitError>> + Send + 'static,
) -> Result<LimitChange, LimitError> {
    let lost = |error: JoinError| Err(BackendError::Failed(error.to_string()).into());
    app.by(ticket.deadline, tokio::spawn(change)).await?.unwrap_or_else(lost)
}

/// What became of a write.
pub(crate) struct Written {
    pub(crate) answer: Result<WriteAnswer, BackendError>,
    /// What its operations are about, by name and in their order.
    pub(crate) subjects: Vec<String>,
}

/// Applies a transaction, and counts how it came out.
pub(crate) async fn write(app: &App, ticket: &Ticket, request: WriteRequest) -> Written {
    let (client, sequence) = (&request.client, request.sequence);
    tracing::debug!(request_id = ticket.id(), actor = %ticket.caller.actor, %client, sequence, "write");
    let subjects = request.operations.iter().map(|operation| operation.subject().to_owned()).collect();
    let write = app.backend.write_by(ticket.caller.by.clone(), request);
    let answer = app.by(ticket.deadline, write).await.and_then(|answer| answer);
    app.metrics.written(match &answer {
        Ok(WriteAnswer::Committed(_)) => None,
        Ok(WriteAnswer::Refused(error)) => Some(error.code()),
        Err(_) => Some(UNAVAILABLE),
    });
    Written { answer, subjects }
}

/// Counts a write that could not be read.
pub(crate) fn malformed_write(app: &App) {
    app.metrics.written(Some(INVALID));
}

/// What a client is told whose write has no answer.
pub(crate) fn unavailable(error: &BackendError) -> String {
    match error {
        BackendError::Overloaded(why) => format!("{why}; retry the same write"),
        BackendError::Failed(why) => format!("{why}; the outcome is unknown, retry the same write"),
        other => other.to_string(),
    }
}

/// What the backend answers, if it does in time, and if whoever asks may still read it: they are asked for again while
/// the answer is put together, however up to date this server is.
pub(crate) async fn read<T, E: From<BackendError>>(
    app: &App,
    ticket: &Ticket,
    answer: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let both = async { tokio::join!(app.backend.check_right(ticket.caller.by.clone()), answer) };
    let (permitted, answer) = app.by(ticket.deadline, both).await?;
    if permitted == Err(BackendError::Unauthenticated) {
        app.door.forget(&ticket.caller);
    }
    permitted?;
    answer
}

/// Whether whoever asks may still do it, for what the backend is not asked about.
pub(crate) async fn check(app: &App, ticket: &Ticket) -> Result<(), BackendError> {
    read(app, ticket, std::future::ready(Ok(()))).await
}

/// Whether whoever asks is known to have no right to any more, for what a node can tell by itself and must tell also when it
/// hears of no other: whoever looks after it asks just then.
pub(crate) async fn is_over(app: &App, ticket: &Ticket) -> bool {
    let by = &ticket.caller.by;
    let is_over = match tokio::time::timeout(PATIENCE, app.backend.check_right(by.clone())).await {
        Ok(Ok(())) => false,
        Ok(Err(BackendError::Unauthenticated)) => true,
        // What is known here counts, and not what the door saw of it a moment ago.
        Ok(Err(_)) | Err(_) => app.backend.keys().is_some_and(|keys| !keys.permits(by)),
    };
    if is_over {
        app.door.forget(&ticket.caller);
    }
    is_over
}

/// Whether a batch was turned away where it was decided. All of it is of one caller.
pub(crate) fn is_turned_away<T>(answers: &[Result<T, BackendError>]) -> bool {
    matches!(answers.first(), Some(Err(BackendError::Unauthenticated)))
}

/// The answers to a batch of `count`, also where the backend gave none in time.
fn of_batch<T>(
    answers: Result<Vec<Result<T, BackendError>>, BackendError>,
    count: usize,
) -> Vec<Result<T, BackendError>> {
    let failed = |error: BackendError| (0..count).map(|_| Err(error.clone())).collect();
    match answers {
        Ok(answers) if answers.len() == count => answers,
        Ok(answers) => {
            failed(BackendError::Failed(format!("found {} answers to {count} requests", answers.len())))
        }
        Err(error) => failed(error),
    }
}
