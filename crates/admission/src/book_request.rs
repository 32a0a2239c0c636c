//! Requests to a Book. Each request type names its answer, so that an answer cannot belong to another request.

use std::sync::Arc;

use earmark_core::{
    Book, CallMark, Command, Complete, CompleteOutcome, CreateKey, Definition, DeleteLimit, DropLimit, ExternalSetup,
    JobId, KeyInfo, LeaseClaim, LeaseId, LimitKey, LimitRef, NamespaceId, NamespaceName, NamespaceOutcome, Outcome,
    Part, Principal, PutLimit, Release, Reserve, ReserveOutcome, RevokeKey, SettleLabels, UnixMs, Write, WriteOutcome,
};
use earmark_trace::{InQueue, TraceContext};
use tokio::sync::oneshot;

use crate::answer;
use crate::backend::{Amount, BackendError, CompleteAnswer, LimitChange, LimitError, ReserveAnswer};
use crate::callers::KeyError;
use crate::writes::WriteAnswer;

/// A request to a Book.
pub trait BookRequest: Send + 'static {
    /// The answer.
    type Answer: Send + 'static;
    /// Why there is no answer.
    type Error: From<BackendError> + Send + 'static;

    /// The command that the Book applies.
    fn command(&self) -> Command<'_>;

    /// Translates the outcome of the command. `None` if it is the outcome of another command.
    fn answer(&self, applied: &Applied<'_>, outcome: Outcome) -> Option<Answered<Self>>;

    /// The write in this request. Its host sets the id and the log index. A write is submitted alone.
    fn write_mut(&mut self) -> Option<&mut Write> {
        None
    }
}

/// The result of one request.
pub type Answered<R> = Result<<R as BookRequest>::Answer, <R as BookRequest>::Error>;

/// The state after commands were applied, from which their answers are made.
pub struct Applied<'a> {
    /// The Book.
    pub book: &'a Book,
    /// The wall time of the commands.
    pub wall: UnixMs,
    /// Whether an earlier attempt has an unknown outcome.
    pub is_repeated: bool,
}

impl Applied<'_> {
    /// The answer to a request from the outcome of its command.
    ///
    /// # Errors
    /// When the caller is not authorized, or when the request fails.
    pub fn answer<R: BookRequest>(&self, request: &R, outcome: Outcome) -> Answered<R> {
        let failed = |why: &str| Err(BackendError::Failed(why.into()).into());
        match outcome {
            Outcome::Unauthenticated if self.is_repeated => {
                failed("the API key became invalid after an attempt whose outcome is unknown")
            }
            Outcome::Unauthenticated => Err(BackendError::Unauthenticated.into()),
            outcome => request
                .answer(self, outcome)
                .unwrap_or_else(|| failed("the leader sent the outcome of another command")),
        }
    }
}

/// Requests of one type by one caller, in a queue. They stay in one batch.
pub struct Submission {
    requests: Box<dyn Queued>,
    trace: Option<InQueue>,
}

/// A submission of any request type.
trait Queued: Send {
    fn each_command<'a>(&'a self, visit: &mut dyn FnMut(&'a Principal, Command<'a>));
    fn write_mut(&mut self) -> Option<&mut Write>;
    fn answer(&mut self, applied: &Applied<'_>, outcomes: &mut dyn Iterator<Item = Outcome>);
    fn send(self: Box<Self>, error: Option<&BackendError>);
}

/// The requests of a submission, and the channel for their answers.
struct Typed<R: BookRequest> {
    by: Principal,
    requests: Vec<R>,
    answers: Vec<Answered<R>>,
    reply: oneshot::Sender<Vec<Answered<R>>>,
}

impl<R: BookRequest> Queued for Typed<R> {
    fn each_command<'a>(&'a self, visit: &mut dyn FnMut(&'a Principal, Command<'a>)) {
        self.requests.iter().for_each(|request| visit(&self.by, request.command()));
    }

    fn write_mut(&mut self) -> Option<&mut Write> {
        self.requests.first_mut().and_then(R::write_mut)
    }

    fn answer(&mut self, applied: &Applied<'_>, outcomes: &mut dyn Iterator<Item = Outcome>) {
        let pairs = self.requests.iter().zip(outcomes);
        self.answers = pairs.map(|(request, outcome)| applied.answer(request, outcome)).collect();
    }

    fn send(self: Box<Self>, error: Option<&BackendError>) {
        let answers = match error {
            Some(error) => self.requests.iter().map(|_| Err(error.clone().into())).collect(),
            None => self.answers,
        };
        // The send fails only if the caller has disconnected.
        _ = self.reply.send(answers);
    }
}

impl Submission {
    /// Queues requests with `enqueue`, and waits for their answers.
    pub async fn run<R: BookRequest>(
        by: Principal,
        requests: Vec<R>,
        enqueue: impl FnOnce(Submission) -> Result<(), BackendError>,
    ) -> Vec<Answered<R>> {
        let count = requests.len();
        let (reply, answers) = oneshot::channel();
        let stopped = |_| BackendError::Failed("the server stopped before it answered".into());
        let typed = Typed { by, requests, answers: Vec::new(), reply };
        let answers = match enqueue(Submission { requests: Box::new(typed), trace: InQueue::begin() }) {
            Ok(()) => answers.await.map_err(stopped),
            Err(error) => Err(error),
        };
        answers.unwrap_or_else(|error| (0..count).map(|_| Err(error.clone().into())).collect())
    }

    /// The context of its request, if that is sampled.
    pub fn trace(&self) -> Option<TraceContext> {
        self.trace.as_ref().map(InQueue::context)
    }

    /// Ends the span of its time in the queue.
    pub fn dequeued(&self) {
        if let Some(queued) = self.trace {
            queued.end();
        }
    }

    /// Calls `visit` with each command, in order.
    pub fn each_command<'a>(&'a self, visit: &mut dyn FnMut(&'a Principal, Command<'a>)) {
        self.requests.each_command(visit);
    }

    /// The write, if this is one.
    pub fn write_mut(&mut self) -> Option<&mut Write> {
        self.requests.write_mut()
    }

    /// Translates the outcomes of the commands, one for each.
    pub fn answer(&mut self, applied: &Applied<'_>, outcomes: &mut dyn Iterator<Item = Outcome>) {
        self.requests.answer(applied, outcomes);
    }

    /// Sends the answers to the caller.
    pub fn send(self) {
        self.requests.send(None);
    }

    /// Answers each request with an error.
    pub fn fail(self, error: &BackendError) {
        self.requests.send(Some(error));
    }
}

/// The answer to a request about a lease, or the request to send instead.
pub(crate) enum Decided<A, R> {
    /// The answer.
    Answer(A),
    /// A cached id was stale: its limit was deleted. The same request with keys instead of ids.
    Stale(R),
}

/// A request that names limits, by id where the id is known.
pub(crate) trait NamesLimits {
    /// The namespace, and the amounts with their keys.
    fn names(&self) -> (Option<NamespaceId>, &[Amount]);
}

pub(crate) fn by_key(amounts: &[Amount]) -> Vec<Part> {
    let part = |amount: &Amount| Part { limit: LimitRef::from(amount.key.clone()), amount: amount.amount };
    amounts.iter().map(part).collect()
}

/// A reserve. Without a namespace, it does not exist; then a tick still checks the caller's key.
#[derive(Clone)]
pub(crate) struct BookReserve {
    pub(crate) namespace: Option<NamespaceId>,
    pub(crate) lease: LeaseId,
    pub(crate) job: Option<JobId>,
    pub(crate) call: Option<CallMark>,
    pub(crate) by_gateway: bool,
    /// The requirements, by id where the id is known.
    pub(crate) parts: Vec<Part>,
    pub(crate) requirements: Vec<Amount>,
}

impl BookRequest for BookReserve {
    type Answer = Decided<ReserveAnswer, BookReserve>;
    type Error = BackendError;

    fn command(&self) -> Command<'_> {
        self.namespace.map_or(Command::Tick, |namespace| {
            let BookReserve { lease, ref job, call, by_gateway, .. } = *self;
            let (job, requirements) = (job.as_ref(), &self.parts);
            Command::Reserve(Reserve { namespace, lease, job, call, by_gateway, requirements })
        })
    }

    fn answer(&self, applied: &Applied<'_>, outcome: Outcome) -> Option<Answered<Self>> {
        match outcome {
            Outcome::Reserve(ReserveOutcome::StaleLimit { .. }) if self.has_ids() => {
                Some(Ok(Decided::Stale(BookReserve { parts: by_key(&self.requirements), ..self.clone() })))
            }
            Outcome::Reserve(outcome) => {
                let answer = answer::reserve(applied.book, applied.wall, (&self.requirements, self.call), outcome);
                Some(answer.map(Decided::Answer))
            }
            Outcome::Ticked => Some(Ok(Decided::Answer(answer::unknown_namespace(&self.requirements)))),
            _ => None,
        }
    }
}

/// A complete, or a release if there are no actuals to tell the Book.
#[derive(Clone)]
pub(crate) struct BookComplete {
    pub(crate) namespace: Option<NamespaceId>,
    pub(crate) lease: LeaseId,
    /// The actuals, by id where the id is known; `None` returns everything that the lease reserved.
    pub(crate) parts: Option<Vec<Part>>,
    pub(crate) claim: LeaseClaim,
    pub(crate) actuals: Vec<Amount>,
    pub(crate) labels: SettleLabels,
}

impl BookRequest for BookComplete {
    type Answer = Decided<CompleteAnswer, BookComplete>;
    type Error = BackendError;

    fn command(&self) -> Command<'_> {
        let lease = self.lease;
        match (self.namespace, &self.parts) {
            (Some(namespace), Some(actuals)) => {
                Command::Complete(Complete { namespace, lease, claim: self.claim, actuals, labels: &self.labels })
            }
            (Some(namespace), None) => Command::Release(Release { namespace, lease }),
            (None, _) => Command::Tick,
        }
    }

    fn answer(&self, applied: &Applied<'_>, outcome: Outcome) -> Option<Answered<Self>> {
        match outcome {
            Outcome::Complete(CompleteOutcome::StaleLimit { .. }) if self.has_ids() => {
                Some(Ok(Decided::Stale(BookComplete { parts: Some(by_key(&self.actuals)), ..self.clone() })))
            }
            Outcome::Complete(outcome) => {
                let answer = answer::complete((applied.book, self.namespace), &self.actuals, outcome);
                Some(answer.map(Decided::Answer))
            }
            Outcome::Ticked => Some(Ok(Decided::Answer(answer::complete_in_unknown_namespace()))),
            _ => None,
        }
    }
}

impl NamesLimits for BookReserve {
    fn names(&self) -> (Option<NamespaceId>, &[Amount]) {
        (self.namespace, &self.requirements)
    }
}

impl NamesLimits for BookComplete {
    fn names(&self) -> (Option<NamespaceId>, &[Amount]) {
        (self.namespace, &self.actuals)
    }
}

impl BookReserve {
    fn has_ids(&self) -> bool {
        self.parts.iter().any(|part| matches!(part.limit, LimitRef::Id(_)))
    }
}

impl BookComplete {
    fn has_ids(&self) -> bool {
        self.parts.iter().flatten().any(|part| matches!(part.limit, LimitRef::Id(_)))
    }
}

/// Creates a namespace, or finds its id.
pub(crate) struct OpenNamespace(pub(crate) NamespaceName);

impl BookRequest for OpenNamespace {
    type Answer = NamespaceId;
    type Error = LimitError;

    fn command(&self) -> Command<'_> {
        Command::OpenNamespace(&self.0)
    }

    fn answer(&self, _: &Applied<'_>, outcome: Outcome) -> Option<Answered<Self>> {
        let Outcome::Namespace(outcome) = outcome else { return None };
        Some(match outcome {
            NamespaceOutcome::Exists(id) | NamespaceOutcome::Opened(id) => Ok(id),
            NamespaceOutcome::TooMany => Err(LimitError::TooMany),
        })
    }
}

/// A change of a limit.
pub(crate) struct ChangeLimit {
    pub(crate) namespace: NamespaceId,
    pub(crate) change: LimitCommand,
}

/// A change of a limit. The number of a put or a delete is the expected revision.
pub(crate) enum LimitCommand {
    Put(Definition, Option<u64>),
    Delete(LimitKey, Option<u64>),
    /// Forgets a limit that was deleted with this revision and that its enforcer no longer has.
    Drop(LimitKey, u64),
}

impl LimitCommand {
    pub(crate) fn key(&self) -> &LimitKey {
        match self {
            LimitCommand::Put(definition, _) => &definition.key,
            LimitCommand::Delete(key, _) | LimitCommand::Drop(key, _) => key,
        }
    }
}

impl BookRequest for ChangeLimit {
    type Answer = LimitChange;
    type Error = LimitError;

    fn command(&self) -> Command<'_> {
        let namespace = self.namespace;
        match &self.change {
            LimitCommand::Put(definition, expected_revision) => {
                Command::PutLimit(PutLimit { namespace, definition, expected_revision: *expected_revision })
            }
            LimitCommand::Delete(key, expected_revision) => {
                Command::DeleteLimit(DeleteLimit { namespace, key, expected_revision: *expected_revision })
            }
            LimitCommand::Drop(key, revision) => Command::DropLimit(DropLimit { namespace, key, revision: *revision }),
        }
    }

    fn answer(&self, _: &Applied<'_>, outcome: Outcome) -> Option<Answered<Self>> {
        if let Outcome::Limit(outcome) = outcome { Some(answer::limit(outcome)) } else { None }
    }
}

impl BookRequest for ExternalSetup {
    type Answer = ();
    type Error = BackendError;

    fn command(&self) -> Command<'_> {
        Command::SetExternal(*self)
    }

    fn answer(&self, _: &Applied<'_>, outcome: Outcome) -> Option<Answered<Self>> {
        matches!(outcome, Outcome::ExternalSet).then_some(Ok(()))
    }
}

impl BookRequest for Write {
    type Answer = WriteAnswer;
    type Error = BackendError;

    fn command(&self) -> Command<'_> {
        Command::Write(self)
    }

    fn answer(&self, _: &Applied<'_>, outcome: Outcome) -> Option<Answered<Self>> {
        let Outcome::Write(outcome) = outcome else { return None };
        Some(Ok(match outcome {
            WriteOutcome::Committed(receipt) | WriteOutcome::Exists(receipt) => WriteAnswer::Committed(receipt),
            WriteOutcome::Refused(error) => WriteAnswer::Refused(error),
        }))
    }

    fn write_mut(&mut self) -> Option<&mut Write> {
        Some(self)
    }
}

/// A change of an API key.
pub(crate) enum ChangeKey {
    Create(CreateKey),
    Revoke(RevokeKey),
}

impl BookRequest for ChangeKey {
    type Answer = Arc<KeyInfo>;
    type Error = KeyError;

    fn command(&self) -> Command<'_> {
        match self {
            ChangeKey::Create(create) => Command::CreateKey(create),
            ChangeKey::Revoke(revoke) => Command::RevokeKey(revoke),
        }
    }

    fn answer(&self, applied: &Applied<'_>, outcome: Outcome) -> Option<Answered<Self>> {
        if let Outcome::Key(outcome) = outcome { Some(answer::key(applied.book, outcome)) } else { None }
    }
}
