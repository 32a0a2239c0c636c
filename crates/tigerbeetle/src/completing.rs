//! Completes and releases.

use std::sync::Arc;

use earmark_admission::{BackendError, CompleteAnswer, Direction, LimitsComplete};
use earmark_core::{LeaseId, LimitKey, NamespaceName, Overage};
use tigerbeetle::CreateTransferStatus;
use tokio::task::JoinHandle;

use crate::answer;
use crate::backend::{Inner, mixed_up};
use crate::batch::Chains;
use crate::chart::{Ending, LeaseName, Origin};
use crate::lease::LeaseRecord;
use crate::leases::Memory;
use crate::requests::Created;
use crate::settle::{SettleChain, SettleRead, Settling};
use crate::status::exists;
use crate::table::target;

/// A chain is tried again without what was not possible: once for each void and each overage of a lease, and a few
/// more.
const ROUNDS_MAX: usize = 72;
/// How often a lease is looked up again because it changed in between.
const LOOKS_MAX: usize = 8;

type Answered = Result<CompleteAnswer, BackendError>;

/// What to do with a complete.
enum Way {
    Answer(Answered),
    /// What the lease holds is known here.
    Send(LimitsComplete, Settling, SettleChain),
    Wait(JoinHandle<Answered>),
}

/// What became of a lease that was to end.
enum Ended {
    /// It did, now.
    Now(Settling),
    /// It had before.
    Before(Ending),
    /// It held nothing: nobody had reserved it, and now nobody can.
    Marked,
    /// It holds nothing.
    HeldNothing,
}

/// Whether the first chain was all there was to do.
fn is_done(created: &Created) -> bool {
    let first = created.as_ref().ok().and_then(|results| results.first());
    first.is_some_and(|result| result.status == CreateTransferStatus::Created)
}

impl Inner {
    /// Answers completes, in their order.
    pub(crate) async fn complete_all(self: Arc<Inner>, requests: Vec<LimitsComplete>) -> Vec<Answered> {
        let ways: Vec<Way> = requests.into_iter().map(|request| self.complete_way(request)).collect();
        let mut created = self.send_ends(&ways).await.into_iter();
        let mut begun = Vec::with_capacity(ways.len());
        for way in ways {
            begun.push(match way {
                Way::Send(request, settling, chain) => {
                    let created = created.next().unwrap_or_else(|| Err(mixed_up()));
                    if is_done(&created) {
                        Way::Answer(self.first_round(request, settling, &chain, created).await)
                    } else {
                        // One by one, what is left to do for a batch could outlast the deadline.
                        let inner = Arc::clone(&self);
                        let rest = async move { inner.first_round(request, settling, &chain, created).await };
                        Way::Wait(tokio::spawn(rest))
                    }
                }
                Way::Answer(_) | Way::Wait(_) => way,
            });
        }
        let mut answers = Vec::with_capacity(begun.len());
        for way in begun {
            answers.push(match way {
                Way::Answer(answer) => answer,
                Way::Wait(task) => {
                    task.await.unwrap_or_else(|error| Err(BackendError::Failed(error.to_string())))
                }
                Way::Send(..) => Err(mixed_up()),
            });
        }
        answers
    }

    fn complete_way(self: &Arc<Inner>, request: LimitsComplete) -> Way {
        if let Some(message) = answer::invalid_parts(&request.actuals, 0, "actuals") {
            let is_invalid = true;
            return Way::Answer(Ok(CompleteAnswer {
                message: Some(message),
                is_invalid,
                ..CompleteAnswer::default()
            }));
        }
        let name = LeaseName::new(request.namespace.clone(), request.lease);
        match self.leases.get(name.id).filter(|_| !self.leases.is_in_flight(name.id)) {
            Some(Memory::Allowed(record)) => {
                let settling = Settling::complete(name, &record, &request.actuals);
                if settling.growing().any(|key| self.is_changing(&request.namespace, key)) {
                    return Way::Wait(tokio::spawn(Arc::clone(self).complete_with_care(request)));
                }
                let chain = settling.chain(&self.common, self.shared.clock.now_ns());
                Way::Send(request, settling, chain)
            }
            Some(Memory::Denied(_)) | None => {
                Way::Wait(tokio::spawn(Arc::clone(self).complete_with_care(request)))
            }
        }
    }

    async fn send_ends(&self, ways: &[Way]) -> Vec<Created> {
        let mut chains = Chains::default();
        for way in ways {
            if let Way::Send(_, _, chain) = way {
                chains.push(&chain.transfers);
            }
        }
        let count = chains.lens.len();
        if count == 0 {
            return Vec::new();
        }
        match self.create(chains, Direction::GivesBack).await {
            Ok(created) => created,
            Err(error) => std::iter::repeat_with(|| Err(error.clone())).take(count).collect(),
        }
    }

    /// The first chain of a complete has its results; what is left is done on its own.
    async fn first_round(
        self: &Arc<Inner>,
        request: LimitsComplete,
        mut settling: Settling,
        chain: &SettleChain,
        created: Created,
    ) -> Answered {
        let name = LeaseName::new(request.namespace.clone(), request.lease);
        match settling.read(chain, &created?, |key| self.overage(&name.namespace, key)) {
            SettleRead::Done => {
                self.leases.forget(name.id);
                Ok(answer::settled(&settling))
            }
            SettleRead::Again { now_ns } => match self.settle(&name, settling, now_ns).await? {
                Some(settling) => Ok(answer::settled(&settling)),
                None => Arc::clone(self).complete_with_care(request).await,
            },
            SettleRead::Before => {
                self.leases.forget(name.id);
                Arc::clone(self).complete_with_care(request).await
            }
            SettleRead::Failed(message) => {
                self.leases.forget(name.id);
                Err(BackendError::Failed(message))
            }
        }
    }

    /// A complete of a lease of which nothing is known here.
    async fn complete_with_care(self: Arc<Inner>, request: LimitsComplete) -> Answered {
        let name = LeaseName::new(request.namespace, request.lease);
        if let Some(message) = self.age(&name)
            && self.leases.get(name.id).is_none()
            && self.look(&name).await?.is_none()
        {
            tracing::debug!("{message}");
            return Ok(answer::unknown_by_age());
        }
        let settle =
            |name: LeaseName, record: &LeaseRecord| Settling::complete(name, record, &request.actuals);
        Ok(match self.end(&name, settle).await? {
            Ended::Now(settling) => answer::settled(&settling),
            Ended::Before(Ending::Completed) => {
                CompleteAnswer { reconciled: true, ..CompleteAnswer::default() }
            }
            Ended::Before(Ending::Released) | Ended::HeldNothing => answer::held_nothing(),
            Ended::Marked => answer::marked(),
        })
    }

    /// Gives back all that a lease has taken.
    pub(crate) async fn release(
        self: Arc<Inner>,
        namespace: NamespaceName,
        lease: LeaseId,
    ) -> Result<(), BackendError> {
        self.end(&LeaseName::new(namespace, lease), Settling::release).await.map(|_| ())
    }

    /// Ends a lease, whatever is known of it.
    async fn end(
        &self,
        name: &LeaseName,
        settle: impl Fn(LeaseName, &LeaseRecord) -> Settling,
    ) -> Result<Ended, BackendError> {
        self.set_up().await?;
        if tokio::time::timeout(self.options.deadline, self.leases.landed(name.id)).await.is_err() {
            return Err(BackendError::Failed(self.silence()));
        }
        for _ in 0..LOOKS_MAX {
            let memory = self.leases.get(name.id);
            let was_denied = matches!(memory, Some(Memory::Denied(_)));
            let record = match memory {
                Some(Memory::Allowed(record)) => Some(record),
                // Another process may have allowed the lease for something else, and that is to be given back.
                Some(Memory::Denied(_)) | None => self.look(name).await?.map(Arc::new),
            };
            let Some(record) = record else {
                if was_denied {
                    return Ok(Ended::HeldNothing);
                }
                if self.mark(name).await? {
                    return Ok(Ended::Marked);
                }
                continue;
            };
            match (record.origin, record.ending) {
                (Origin::Marked, _) => return Ok(Ended::HeldNothing),
                (Origin::Reserved, Some(ending)) => return Ok(Ended::Before(ending)),
                (Origin::Reserved, None) => {}
            }
            let settling = settle(name.clone(), &record);
            for key in settling.growing().filter(|key| self.is_changing(&name.namespace, key)) {
                let cell = self.table.cell(&name.namespace, key);
                if let Err(error) = self.bring_in_line(&cell).await {
                    tracing::debug!("a lease is completed on a limit that may be going down: {error}");
                }
            }
            if let Some(settling) = self.settle(name, settling, self.shared.clock.now_ns()).await? {
                return Ok(Ended::Now(settling));
            }
        }
        Err(BackendError::Failed("a lease keeps changing while it is looked at".into()))
    }

    /// Makes sure that nobody can reserve a lease any more; false if somebody has.
    async fn mark(&self, name: &LeaseName) -> Result<bool, BackendError> {
        let anchor = name.anchor(&self.common, Origin::Marked, 0);
        let results = self.create_one(vec![anchor], Direction::GivesBack).await?;
        match results.first().map(|result| result.status) {
            Some(CreateTransferStatus::Created) => Ok(true),
            Some(status) if exists(status) => Ok(false),
            Some(status) => Err(BackendError::Failed(crate::status::describe(status))),
            None => Err(mixed_up()),
        }
    }

    /// Sends the end of a lease until it is there; none if someone else ended it.
    async fn settle(
        &self,
        name: &LeaseName,
        mut settling: Settling,
        mut now_ns: u64,
    ) -> Result<Option<Settling>, BackendError> {
        for _ in 0..ROUNDS_MAX {
            let chain = settling.chain(&self.common, now_ns);
            let results = self.create_one(chain.transfers.clone(), Direction::GivesBack).await?;
            match settling.read(&chain, &results, |key| self.overage(&name.namespace, key)) {
                SettleRead::Done => {
                    self.leases.forget(name.id);
                    return Ok(Some(settling));
                }
                SettleRead::Before => {
                    self.leases.forget(name.id);
                    return Ok(None);
                }
                SettleRead::Again { now_ns: told } => now_ns = told,
                SettleRead::Failed(message) => {
                    self.leases.forget(name.id);
                    return Err(BackendError::Failed(message));
                }
            }
        }
        Err(BackendError::Failed("a complete came to no end".into()))
    }

    /// Whether a limit may have more than it is to have; or is not known here, where others may have put it since.
    fn is_changing(&self, namespace: &NamespaceName, key: &LimitKey) -> bool {
        let info = self.registry.limit(namespace, key);
        info.is_none_or(|info| !self.table.cell(namespace, key).is_open(&info))
    }

    /// What becomes of usage that does not fit; nothing where there is no such limit, or it is gone.
    fn overage(&self, namespace: &NamespaceName, key: &LimitKey) -> Option<Overage> {
        let info = self.registry.limit(namespace, key)?;
        let is_gone = target(Some(&info)) == 0
            && self.table.cell(namespace, key).seen().is_none_or(|seen| seen.in_force == 0);
        (!is_gone).then_some(info.definition.overage)
    }
}
