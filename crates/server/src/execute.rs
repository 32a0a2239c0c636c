//! Executes parsed requests on the backend, for HTTP and gRPC alike.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{
    Amount, BackendError, CompleteAnswer, CompleteRequest, DeleteLimitRequest, DeleteTemplateRequest, EntryQuery,
    ExtendAnswer, ExtendRequest, LimitChange, LimitError, PAGE_MAX, PauseLimitRequest, PutLimitRequest,
    PutTemplateRequest, QuotaError, Refusal, ReserveAnswer, ReserveRequest, UsageQuery, WriteAnswer, WriteRequest,
    describe_conflict, describe_write_error,
};
use earmark_core::{JobId, LeaseId, LimitKey, Role, SetQuotas, UnixMs, WriteError};
use tokio::task::JoinError;
use tokio::time::Instant;

use crate::answer::{CompleteWire, ExtendWire, INVALID, ReserveWire, UNAVAILABLE};
use crate::app::App;
use crate::auth::{Peer, WaitBounds, WorkPermit};
use crate::budget::Holders;
use crate::caller::{AuthError, Caller};
use crate::calls::CallAttributes;
use crate::http::RequestId;
use crate::metrics::Reason;
use crate::observed::{self, Subject};

pub(crate) const LIMIT_NOT_FOUND: &str = "key: no limit has this key";
pub(crate) const TEMPLATE_NOT_FOUND: &str = "key: no template has this key";
pub(crate) const NAMESPACE_NOT_FOUND: &str = "namespace: no namespace has this name";
pub(crate) const LEASE_NOT_FOUND: &str = "lease_id: lease not found, or forgotten since";
/// Entries on a page when the request gives no page size.
pub(crate) const PAGE_SIZE_DEFAULT: usize = 100;

/// The permits of a page of entries. A filter may read many entries for each one that it finds.
pub(crate) fn entries_cost(query: &EntryQuery) -> usize {
    let is_filtered = query.since.is_some() || query.until.is_some();
    if is_filtered { PAGE_MAX } else { query.page_size }
}

/// How long to wait for a quorum to confirm that a key is still valid. Short, because node status must also be readable
/// while there is no quorum.
const QUORUM_CHECK_TIMEOUT: Duration = Duration::from_millis(250);

/// A request's id, deadline and caller.
#[derive(Clone)]
pub(crate) struct RequestContext {
    /// The request id, as it is logged and sent back.
    pub(crate) id: RequestId,
    pub(crate) deadline: Instant,
    pub(crate) caller: Arc<Caller>,
    /// The client at the other end of the connection.
    pub(crate) peer: Option<Peer>,
}

impl RequestContext {
    /// Charges `items` items to the caller's request rate, and waits for their turn in its queue.
    pub(crate) async fn admit(&self, app: &App, items: usize) -> Result<WorkPermit<'_>, AuthError> {
        app.auth.charge_batch(&self.caller, items)?;
        self.acquire(items).await
    }

    /// Charges requests that arrived on a stream, and waits for their turn in the caller's queue.
    pub(crate) async fn admit_all(&self, app: &App, requests: usize) -> Result<WorkPermit<'_>, AuthError> {
        app.auth.charge(&self.caller, requests)?;
        self.acquire(requests).await
    }

    /// Charges the audit of a vault, and waits until no other request of the caller is executed: it reads the whole
    /// history.
    pub(crate) async fn admit_audit(&self, app: &App) -> Result<WorkPermit<'_>, AuthError> {
        app.auth.charge_audit(&self.caller)?;
        self.acquire(usize::MAX).await
    }

    /// Charges a list of limits with their usage. One that reads all limits is charged like an audit, and waits until no
    /// other request of the caller is executed.
    pub(crate) async fn admit_usage(&self, app: &App, query: &UsageQuery) -> Result<WorkPermit<'_>, AuthError> {
        if query.reads_all() { self.admit_audit(app).await } else { self.admit(app, query.page_size).await }
    }

    /// Waits for the permits of `items` items. They are held until the response is built.
    pub(crate) async fn acquire(&self, items: usize) -> Result<WorkPermit<'_>, AuthError> {
        self.caller.acquire(items, self.wait_bounds()).await
    }

    pub(crate) fn wait_bounds(&self) -> WaitBounds<'_> {
        let hangup = self.peer.as_ref().and_then(|peer| peer.hangup.as_deref());
        WaitBounds { deadline: self.deadline, hangup }
    }

    /// The holders that its memory is charged to.
    pub(crate) fn holders(&self) -> Holders<'_> {
        Holders { connection: self.peer.as_ref().map(|peer| &peer.connection), caller: self.caller.shares.as_ref() }
    }

    /// The request id as text.
    pub(crate) fn id(&self) -> &str {
        self.id.as_str()
    }

    /// Logs a request about a lease before it is executed.
    fn log_start(&self, operation: &str, lease: LeaseId, job: Option<&JobId>) {
        let (actor, job_id) = (&self.caller.actor, job.map(tracing::field::display));
        tracing::debug!(request_id = self.id(), %actor, %lease, job_id, "{operation}");
    }

    /// Logs a denial or failure at info if it has a job id, so that a job's owner can find it.
    fn log_failure(&self, operation: &str, subject: &Subject, error: &str, limited_by: &[LimitKey]) {
        let Some(job_id) = &subject.job else { return };
        let (actor, lease) = (&self.caller.actor, subject.lease);
        let limited_by = limited_by.iter().map(LimitKey::as_str).collect::<Vec<_>>().join(",");
        tracing::info!(
            request_id = self.id(), %actor, %lease, %job_id, error, limited_by, "{operation} denied or failed"
        );
    }
}

/// Reserves, and records the outcomes in the metrics and the decision log.
pub(crate) async fn reserve(
    app: &App,
    context: &RequestContext,
    requests: Vec<ReserveRequest>,
) -> Vec<Result<ReserveAnswer, BackendError>> {
    reserve_for(app, context, requests, &[]).await.0
}

/// Reserves for calls, each with its attributes. Returns the amounts that each asked for too.
pub(crate) async fn reserve_calls(
    app: &App,
    context: &RequestContext,
    requests: Vec<ReserveRequest>,
    attributes: &[CallAttributes<'_>],
) -> Vec<(Result<ReserveAnswer, BackendError>, Vec<Amount>)> {
    if requests.is_empty() {
        return Vec::new();
    }
    let (answers, subjects) = reserve_for(app, context, requests, attributes).await;
    answers.into_iter().zip(subjects.into_iter().map(|subject| subject.asked)).collect()
}

async fn reserve_for(
    app: &App,
    context: &RequestContext,
    mut requests: Vec<ReserveRequest>,
    attributes: &[CallAttributes<'_>],
) -> (Vec<Result<ReserveAnswer, BackendError>>, Vec<Subject>) {
    requests.iter_mut().for_each(|request| request.by_gateway = context.caller.by_gateway);
    let subject = |request: &ReserveRequest| {
        context.log_start("reserve", request.lease, request.job.as_ref());
        Subject {
            namespace: request.namespace.clone(),
            lease: request.lease,
            job: request.job.clone(),
            asked: request.requirements.clone(),
        }
    };
    let subjects: Vec<Subject> = requests.iter().map(subject).collect();
    let answers = app.backend.reserve(context.caller.by.clone(), requests);
    let answers = one_per_request(app.in_time(context, answers).await, subjects.len());
    if is_unauthenticated(&answers) {
        app.auth.forget(&context.caller);
        return (answers, subjects);
    }
    for (place, (answer, subject)) in answers.iter().zip(&subjects).enumerate() {
        // Asked again by the revision that denied the call, which is counted.
        if let Ok(ReserveAnswer::Refused(Refusal::DeniedByPolicy { .. })) = answer {
            continue;
        }
        let wire = ReserveWire::of(answer);
        app.metrics.reserved(wire.outcome());
        let (keys, reason) = wire.limited_by();
        let template_of = |key: &LimitKey| app.backend.template_of(&subject.namespace, key);
        app.metrics.denied_by(&subject.namespace, keys, reason, template_of);
        app.metrics.denied_by(&subject.namespace, wire.would_deny, Reason::Shadow, template_of);
        let asked = (context, subject, attributes.get(place).copied());
        observed::taken(app, asked, (wire.allowed, wire.error, wire.limited_by));
        observed::reserved(app, context, &subject.namespace, wire.allowed, wire.error);
        if !wire.allowed && subject.job.is_some() {
            context.log_failure("reserve", subject, &wire.error.to_string(), keys);
        }
    }
    (answers, subjects)
}

/// Extends leases, and records the outcomes in the metrics and the decision log.
pub(crate) async fn extend(
    app: &App,
    context: &RequestContext,
    requests: Vec<ExtendRequest>,
) -> Vec<Result<ExtendAnswer, BackendError>> {
    extend_calls(app, context, requests, None).await
}

/// Extends the leases of a call with these attributes.
pub(crate) async fn extend_calls(
    app: &App,
    context: &RequestContext,
    mut requests: Vec<ExtendRequest>,
    attributes: Option<CallAttributes<'_>>,
) -> Vec<Result<ExtendAnswer, BackendError>> {
    requests.iter_mut().for_each(|request| request.claim.by_gateway = context.caller.by_gateway);
    let subject = |request: &ExtendRequest| {
        context.log_start("extend", request.lease, None);
        let (namespace, lease) = (request.namespace.clone(), request.lease);
        Subject { namespace, lease, job: None, asked: request.add.clone() }
    };
    let subjects: Vec<Subject> = requests.iter().map(subject).collect();
    let answers = app.backend.extend(context.caller.settles_by().clone(), requests);
    let answers = one_per_request(app.in_time(context, answers).await, subjects.len());
    if is_unauthenticated(&answers) {
        app.auth.forget(&context.caller);
        return answers;
    }
    for (wire, subject) in answers.iter().map(ExtendWire::of).zip(&subjects) {
        app.metrics.extended(wire.outcome());
        let ((keys, reason), namespace) = (wire.limited_by(), &subject.namespace);
        app.metrics.denied_by(namespace, keys, reason, |key| app.backend.template_of(namespace, key));
        observed::taken(app, (context, subject, attributes), (wire.allowed, wire.error, wire.limited_by));
    }
    answers
}

/// Completes, and records the outcomes in the metrics and the decision log.
pub(crate) async fn complete(
    app: &App,
    context: &RequestContext,
    requests: Vec<CompleteRequest>,
) -> Vec<Result<CompleteAnswer, BackendError>> {
    complete_calls(app, context, requests, &[]).await
}

/// Completes the leases of calls, each with its attributes.
pub(crate) async fn complete_calls(
    app: &App,
    context: &RequestContext,
    mut requests: Vec<CompleteRequest>,
    attributes: &[CallAttributes<'_>],
) -> Vec<Result<CompleteAnswer, BackendError>> {
    requests.iter_mut().for_each(|request| request.claim.by_gateway = context.caller.by_gateway);
    let subject = |request: &CompleteRequest| {
        context.log_start("complete", request.lease, request.job.as_ref());
        let (namespace, job) = (request.namespace.clone(), request.job.clone());
        Subject { namespace, lease: request.lease, job, asked: Vec::new() }
    };
    let subjects: Vec<Subject> = requests.iter().map(subject).collect();
    let answers = app.backend.complete(context.caller.settles_by().clone(), requests);
    let answers = one_per_request(app.in_time(context, answers).await, subjects.len());
    if is_unauthenticated(&answers) {
        app.auth.forget(&context.caller);
        return answers;
    }
    for (place, (answer, subject)) in answers.iter().zip(&subjects).enumerate() {
        if let Ok(answer) = answer {
            app.metrics.settled(answer);
            observed::settled(app, (context, subject, attributes.get(place).copied()), &answer.overages);
        }
        let wire = CompleteWire::of(answer);
        app.metrics.completed(wire.outcome());
        if !wire.reconciled && subject.job.is_some() {
            let error = if wire.ok { "lease not found".into() } else { wire.error.to_string() };
            context.log_failure("complete", subject, &error, &[]);
        }
    }
    answers
}

/// Creates or changes a limit.
pub(crate) async fn put_limit(
    app: &App,
    context: &RequestContext,
    request: PutLimitRequest,
) -> Result<LimitChange, LimitError> {
    let (backend, by) = (Arc::clone(&app.backend), context.caller.by.clone());
    let (actor, key) = (&context.caller.actor, &request.definition.key);
    tracing::info!(request_id = context.id(), %actor, %key, "put limit");
    change(app, context, async move { backend.put_limit(by, request).await }).await
}

/// Deletes a limit, or drains it first while leases hold it.
pub(crate) async fn delete_limit(
    app: &App,
    context: &RequestContext,
    request: DeleteLimitRequest,
) -> Result<LimitChange, LimitError> {
    let (backend, by) = (Arc::clone(&app.backend), context.caller.by.clone());
    tracing::info!(request_id = context.id(), actor = %context.caller.actor, key = %request.key, "delete limit");
    change(app, context, async move { backend.delete_limit(by, request).await }).await
}

/// Pauses or resumes a limit. A gateway can only lengthen a pause. Returns when the pause ends.
pub(crate) async fn pause_limit(
    app: &App,
    context: &RequestContext,
    request: PauseLimitRequest,
) -> Result<Option<UnixMs>, LimitError> {
    let only_lengthen = context.caller.role == Role::Gateway;
    let request = PauseLimitRequest { only_lengthen, ..request };
    let (actor, key, for_ms) = (&context.caller.actor, &request.key, request.for_ms);
    tracing::info!(request_id = context.id(), %actor, %key, for_ms, "pause limit");
    app.by(context.deadline, app.backend.pause_limit(context.caller.by.clone(), request)).await?
}

/// Creates or changes a template. Returns its revision.
pub(crate) async fn put_template(
    app: &App,
    context: &RequestContext,
    request: PutTemplateRequest,
) -> Result<u64, LimitError> {
    let (actor, key) = (&context.caller.actor, request.template.key());
    tracing::info!(request_id = context.id(), %actor, %key, "put template");
    app.by(context.deadline, app.backend.put_template(context.caller.by.clone(), request)).await?
}

/// Deletes a template.
pub(crate) async fn delete_template(
    app: &App,
    context: &RequestContext,
    request: DeleteTemplateRequest,
) -> Result<u64, LimitError> {
    tracing::info!(request_id = context.id(), actor = %context.caller.actor, key = %request.key, "delete template");
    app.by(context.deadline, app.backend.delete_template(context.caller.by.clone(), request)).await?
}

/// Sets quotas of a namespace.
pub(crate) async fn set_quotas(app: &App, context: &RequestContext, command: SetQuotas) -> Result<(), QuotaError> {
    let (actor, namespace) = (&context.caller.actor, &command.namespace);
    tracing::info!(request_id = context.id(), %actor, %namespace, "set quotas");
    app.by(context.deadline, app.backend.set_quotas(context.caller.by.clone(), command)).await?
}

/// Executes a change of a limit in a task of its own: it has several steps, which must not stop half way when the
/// client hangs up.
async fn change(
    app: &App,
    context: &RequestContext,
    change: impl Future<Output = Result<LimitChange, LimitError>> + Send + 'static,
) -> Result<LimitChange, LimitError> {
    let lost = |error: JoinError| Err(BackendError::Failed(error.to_string()).into());
    app.by(context.deadline, earmark_admission::spawn(change)).await?.unwrap_or_else(lost)
}

/// The outcome of a write.
pub(crate) struct Written {
    pub(crate) answer: Result<WriteAnswer, BackendError>,
    /// The limit, vault or account name of each operation, in order.
    pub(crate) subjects: Vec<String>,
    /// The reason of a conflict at each operation, in order.
    conflicts: Vec<&'static str>,
    scope: String,
}

impl Written {
    /// Explains a refused write. An error about its identity names the scope, so that a forgotten vault is visible. `parts` are the
    /// numbers of operations in each write of a batch.
    pub(crate) fn message(&self, error: &WriteError, parts: Option<&[usize]>) -> String {
        let conflict = error.operation().and_then(|operation| self.conflicts.get(operation));
        let message = describe_write_error(error, conflict.copied().unwrap_or_default());
        match error {
            WriteError::SequenceGap { .. }
            | WriteError::AlreadyCommitted { .. }
            | WriteError::SequenceReused { .. }
            | WriteError::KeyCommitted
            | WriteError::KeyReused => format!("{message} (scope: {})", self.scope),
            _ => match (error.operation(), parts) {
                (Some(operation), Some(parts)) => in_batch(&message, operation, parts),
                _ => message,
            },
        }
    }
}

/// Replaces `operations[n]` of the joined operations of a batch by `writes[i].operations[j]`.
fn in_batch(message: &str, operation: usize, parts: &[usize]) -> String {
    let joined = format!("operations[{operation}]");
    let mut index = operation;
    for (part, count) in parts.iter().enumerate() {
        match index.checked_sub(*count) {
            Some(rest) => index = rest,
            None => return message.replacen(&joined, &format!("writes[{part}].operations[{index}]"), 1),
        }
    }
    message.to_owned()
}

/// Executes a sequenced write, and records its outcome in the metrics.
pub(crate) async fn write(app: &App, context: &RequestContext, request: WriteRequest) -> Written {
    tracing::debug!(request_id = context.id(), actor = %context.caller.actor, id = %request.id, "write");
    let subjects = request.operations.iter().map(|operation| operation.subject().to_owned()).collect();
    let conflicts = request.operations.iter().map(describe_conflict).collect();
    let vault = request.vault.as_ref().map_or("no vault".to_owned(), |vault| format!("vault {vault}"));
    let client = request.id.client().map_or(String::new(), |client| format!(", client {client}"));
    let scope = format!("namespace {}, {vault}{client}", request.namespace);
    let write = app.backend.write(context.caller.by.clone(), request);
    let answer = app.by(context.deadline, write).await.and_then(|answer| answer);
    app.metrics.written(match &answer {
        Ok(WriteAnswer::Committed(_)) => None,
        Ok(WriteAnswer::Refused(error)) => Some(error.code()),
        Err(_) => Some(UNAVAILABLE),
    });
    Written { answer, subjects, conflicts, scope }
}

/// Counts a malformed write.
pub(crate) fn malformed_write(app: &App) {
    app.metrics.written(Some(INVALID));
}

/// The message for a write without an answer.
pub(crate) fn unavailable(error: &BackendError) -> String {
    match error {
        BackendError::Overloaded(why) => format!("{why}; retry the same write"),
        BackendError::Failed(why) => format!("{why}; the outcome is unknown, retry the same write"),
        other => other.to_string(),
    }
}

/// Reads from the backend, and checks meanwhile that the caller's key is still valid.
pub(crate) async fn read<T, E: From<BackendError>>(
    app: &App,
    context: &RequestContext,
    answer: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let both = async { tokio::join!(app.backend.check_right(context.caller.by.clone()), answer) };
    let (permitted, answer) = app.by(context.deadline, both).await?;
    if permitted == Err(BackendError::Unauthenticated) {
        app.auth.forget(&context.caller);
    }
    permitted?;
    answer
}

/// Checks that the caller's key is still valid, for requests that do not read from the backend.
pub(crate) async fn check_key(app: &App, context: &RequestContext) -> Result<(), BackendError> {
    read(app, context, std::future::ready(Ok(()))).await
}

/// Whether the caller's key is known to be invalid. Without a quorum this node decides by its own state, because an
/// operator reads the node's status just then.
pub(crate) async fn is_revoked(app: &App, context: &RequestContext) -> bool {
    let by = &context.caller.by;
    let is_revoked = match tokio::time::timeout(QUORUM_CHECK_TIMEOUT, app.backend.check_right(by.clone())).await {
        Ok(Ok(())) => false,
        Ok(Err(BackendError::Unauthenticated)) => true,
        // The local state decides, not the credential cache.
        Ok(Err(_)) | Err(_) => app.backend.keys().is_some_and(|keys| !keys.permits(by)),
    };
    if is_revoked {
        app.auth.forget(&context.caller);
    }
    is_revoked
}

/// Whether the state machine rejected the key of a batch. All its items have one caller.
pub(crate) fn is_unauthenticated<T>(answers: &[Result<T, BackendError>]) -> bool {
    matches!(answers.first(), Some(Err(BackendError::Unauthenticated)))
}

/// One answer for each of `count` requests, also when the backend failed as a whole.
fn one_per_request<T>(
    answers: Result<Vec<Result<T, BackendError>>, BackendError>,
    count: usize,
) -> Vec<Result<T, BackendError>> {
    let failed = |error: BackendError| (0..count).map(|_| Err(error.clone())).collect();
    match answers {
        Ok(answers) if answers.len() == count => answers,
        Ok(answers) => {
            failed(BackendError::Failed(format!("the backend gave {} answers to {count} requests", answers.len())))
        }
        Err(error) => failed(error),
    }
}
