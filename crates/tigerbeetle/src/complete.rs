//! Completes and releases.

use std::sync::Arc;

use earmark_admission::{BackendError, CompleteAnswer, Direction, LimitsComplete};
use earmark_core::{LeaseClaim, LeaseId, NamespaceName, Overage};
use tigerbeetle::CreateTransferStatus;

use crate::answer;
use crate::backend::{Inner, PendingAnswer, missing_result};
use crate::batch::Chains;
use crate::lease_cache::CachedLease;
use crate::lease_record::LeaseRecord;
use crate::limit_table::target;
use crate::requests::Created;
use crate::retake::Retaken;
use crate::schema::{Anchor, ClaimRefusal, Decision, Ending, LeaseName, LimitName};
use crate::settle_chain::{SettleChain, SettleResult, Settling};
use crate::status::exists;

/// Attempts at one settle chain. Each retry drops one part that failed: at most one void and one overage per limit of a
/// lease, plus a margin.
const ROUNDS_MAX: usize = 72;
/// Attempts to read a lease that changes concurrently.
const LOOKS_MAX: usize = 8;

type Answered = Result<CompleteAnswer, BackendError>;

/// How a complete is processed.
enum Dispatch {
    Pending(PendingAnswer<CompleteAnswer>),
    /// The lease is cached, so its chain can be sent at once.
    Send(LimitsComplete, Settling, SettleChain),
}

/// Outcome of ending a lease.
enum EndOutcome {
    Now(Settling),
    /// It had ended earlier.
    Before {
        ending: Ending,
        is_extended: bool,
    },
    /// The lease was unknown. The anchor now prevents a late reserve.
    Marked,
    /// The lease holds nothing.
    HeldNothing,
    /// The claim does not fit the lease.
    Refused(ClaimRefusal),
}

fn is_done(created: &Created) -> bool {
    let first = created.as_ref().ok().and_then(|results| results.first());
    first.is_some_and(|result| result.status == CreateTransferStatus::Created)
}

impl Inner {
    /// Completes leases; answers in request order.
    pub(crate) async fn complete_all(self: Arc<Inner>, requests: Vec<LimitsComplete>) -> Vec<Answered> {
        let dispatches: Vec<Dispatch> = requests.into_iter().map(|request| self.dispatch_complete(request)).collect();
        let mut created = self.send_settle_chains(&dispatches).await.into_iter();
        let mut begun = Vec::with_capacity(dispatches.len());
        for dispatch in dispatches {
            begun.push(match dispatch {
                Dispatch::Send(request, settling, chain) => {
                    let created = created.next().unwrap_or_else(|| Err(missing_result()));
                    if is_done(&created) {
                        PendingAnswer::Ready(self.first_round(request, settling, &chain, created).await)
                    } else {
                        // Sequential follow-ups of a batch could exceed the deadline.
                        let inner = Arc::clone(&self);
                        let rest = async move { inner.first_round(request, settling, &chain, created).await };
                        PendingAnswer::Task(earmark_admission::spawn(rest))
                    }
                }
                Dispatch::Pending(pending) => pending,
            });
        }
        PendingAnswer::wait(begun).await
    }

    fn dispatch_complete(self: &Arc<Inner>, request: LimitsComplete) -> Dispatch {
        if let Some(message) = answer::invalid_parts(&request.actuals, 0, "actuals") {
            let is_invalid = true;
            return Dispatch::Pending(PendingAnswer::Ready(Ok(CompleteAnswer {
                message: Some(message),
                is_invalid,
                ..CompleteAnswer::default()
            })));
        }
        let name = LeaseName::new(request.namespace.clone(), request.lease);
        match self.leases.get(name.id).filter(|_| !self.leases.is_in_flight(name.id)) {
            Some(CachedLease::Allowed(record)) => {
                // The first anchor of a lease never changes, so the cached one tells.
                if let Some(refusal) = record.first.refusal(request.claim) {
                    return Dispatch::Pending(PendingAnswer::Ready(Ok(answer::claim_refused(refusal))));
                }
                let settling = Settling::complete(name, &record, &request.actuals);
                if settling.growing().any(|limit| self.is_changing(limit)) {
                    return Dispatch::Pending(PendingAnswer::Task(earmark_admission::spawn(
                        Arc::clone(self).complete_uncached(request),
                    )));
                }
                let chain = self.settle_chain(&settling, self.shared.clock.now_ns());
                Dispatch::Send(request, settling, chain)
            }
            Some(CachedLease::Denied(_)) | None => Dispatch::Pending(PendingAnswer::Task(earmark_admission::spawn(
                Arc::clone(self).complete_uncached(request),
            ))),
        }
    }

    async fn send_settle_chains(&self, dispatches: &[Dispatch]) -> Vec<Created> {
        let mut chains = Chains::default();
        for dispatch in dispatches {
            if let Dispatch::Send(_, _, chain) = dispatch {
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

    /// Interprets the first chain; sends further chains if needed.
    async fn first_round(
        self: &Arc<Inner>,
        request: LimitsComplete,
        mut settling: Settling,
        chain: &SettleChain,
        created: Created,
    ) -> Answered {
        let name = LeaseName::new(request.namespace.clone(), request.lease);
        match settling.read(chain, &created?, |limit| self.overage(limit)) {
            SettleResult::Done => {
                self.leases.forget(name.id);
                Ok(answer::settled(&settling))
            }
            SettleResult::Again { now_ns } => match self.settle(&name, settling, now_ns).await? {
                Some(settling) => Ok(answer::settled(&settling)),
                None => Arc::clone(self).complete_uncached(request).await,
            },
            SettleResult::Before | SettleResult::Changed => {
                self.leases.forget(name.id);
                Arc::clone(self).complete_uncached(request).await
            }
            SettleResult::Failed(message) => {
                self.leases.forget(name.id);
                Err(BackendError::Failed(message))
            }
        }
    }

    /// Completes a lease that is not in the cache.
    async fn complete_uncached(self: Arc<Inner>, request: LimitsComplete) -> Answered {
        let name = LeaseName::new(request.namespace, request.lease);
        if let Some(message) = self.age(&name)
            && self.leases.get(name.id).is_none()
            && self.read_lease(&name).await?.is_none()
        {
            tracing::debug!("{message}");
            return Ok(answer::unknown_by_age());
        }
        let settle = |name: LeaseName, record: &LeaseRecord| Settling::complete(name, record, &request.actuals);
        Ok(match self.end(&name, Some(request.claim), settle).await? {
            EndOutcome::Refused(refusal) => answer::claim_refused(refusal),
            EndOutcome::Now(settling) => answer::settled(&settling),
            EndOutcome::Before { ending: Ending::Completed, is_extended } => {
                CompleteAnswer { reconciled: true, is_extended, ..CompleteAnswer::default() }
            }
            EndOutcome::Before { ending: Ending::Released, .. } | EndOutcome::HeldNothing => answer::held_nothing(),
            EndOutcome::Marked => answer::marked(),
        })
    }

    /// Releases everything that a lease holds.
    pub(crate) async fn release(
        self: Arc<Inner>,
        namespace: NamespaceName,
        lease: LeaseId,
    ) -> Result<(), BackendError> {
        self.end(&LeaseName::new(namespace, lease), None, Settling::release).await.map(|_| ())
    }

    /// Ends a lease, cached or not.
    async fn end(
        &self,
        name: &LeaseName,
        claim: Option<LeaseClaim>,
        settle: impl Fn(LeaseName, &LeaseRecord) -> Settling,
    ) -> Result<EndOutcome, BackendError> {
        self.wait_for_setup().await?;
        if tokio::time::timeout(self.options.deadline, self.leases.landed(name.id)).await.is_err() {
            return Err(BackendError::Failed(self.timeout_message()));
        }
        for _ in 0..LOOKS_MAX {
            let memory = self.leases.get(name.id);
            let denied = match &memory {
                Some(CachedLease::Denied(denied)) => Some(Anchor::reserved(&denied.body, false)),
                Some(CachedLease::Allowed(_)) | None => None,
            };
            let record = match memory {
                Some(CachedLease::Allowed(record)) => Some(record),
                // Another process may have allowed the lease with other requirements.
                Some(CachedLease::Denied(_)) | None => self.read_lease(name).await?.map(Arc::new),
            };
            let Some(record) = record else {
                if let Some(denied) = denied {
                    let refusal = claim.and_then(|claim| denied.refusal(claim));
                    return Ok(refusal.map_or(EndOutcome::HeldNothing, EndOutcome::Refused));
                }
                if self.mark(name).await? {
                    return Ok(EndOutcome::Marked);
                }
                continue;
            };
            if record.first.decision == Decision::Marked {
                return Ok(EndOutcome::HeldNothing);
            }
            if let Some(refusal) = claim.and_then(|claim| record.first.refusal(claim)) {
                return Ok(EndOutcome::Refused(refusal));
            }
            if let Some(ending) = record.ending {
                return Ok(EndOutcome::Before { ending, is_extended: record.newest.number > 0 });
            }
            let record = match self.retake(name, &record).await? {
                Retaken::Not => record,
                Retaken::Now(record) => Arc::new(record),
                // Its usage counts in the period that it was sent for.
                Retaken::Denied(_) => record,
                Retaken::Changed => continue,
            };
            let settling = settle(name.clone(), &record);
            for limit in settling.growing().filter(|limit| self.is_changing(limit)) {
                let tracked = self.table.limit(limit, self.info(limit).as_deref());
                if let Err(error) = self.reconcile(&tracked).await {
                    tracing::debug!("a lease is completed on a limit that may be going down: {error}");
                }
            }
            if let Some(settling) = self.settle(name, settling, self.shared.clock.now_ns()).await? {
                return Ok(EndOutcome::Now(settling));
            }
        }
        Err(BackendError::Failed("the lease changed at every attempt; try again".into()))
    }

    /// Posts the anchor of an unknown lease, so that nobody can reserve it; false if it exists.
    async fn mark(&self, name: &LeaseName) -> Result<bool, BackendError> {
        let anchor = name.anchor(&self.common, &Anchor::marked());
        let results = self.create_one(vec![anchor], Direction::GivesBack).await?;
        match results.first().map(|result| result.status) {
            Some(CreateTransferStatus::Created) => Ok(true),
            Some(status) if exists(status) => Ok(false),
            Some(status) => Err(BackendError::Failed(crate::status::describe(status))),
            None => Err(missing_result()),
        }
    }

    /// Sends settle chains until one succeeds; `None` if another request ended or extended the lease.
    pub(crate) async fn settle(
        &self,
        name: &LeaseName,
        mut settling: Settling,
        mut now_ns: u64,
    ) -> Result<Option<Settling>, BackendError> {
        for _ in 0..ROUNDS_MAX {
            let chain = self.settle_chain(&settling, now_ns);
            let results = self.create_one(chain.transfers.clone(), Direction::GivesBack).await?;
            match settling.read(&chain, &results, |limit| self.overage(limit)) {
                SettleResult::Done => {
                    self.leases.forget(name.id);
                    return Ok(Some(settling));
                }
                SettleResult::Before | SettleResult::Changed => {
                    self.leases.forget(name.id);
                    return Ok(None);
                }
                SettleResult::Again { now_ns: ledger_ns } => now_ns = ledger_ns,
                SettleResult::Failed(message) => {
                    self.leases.forget(name.id);
                    return Err(BackendError::Failed(message));
                }
            }
        }
        Err(BackendError::Failed(format!("the complete did not succeed after {ROUNDS_MAX} attempts; try again")))
    }

    fn settle_chain(&self, settling: &Settling, now_ns: u64) -> SettleChain {
        settling.chain(&self.common, now_ns, |limit, at_ns| self.period_end_ns(limit, at_ns))
    }

    /// Whether the limit may be above its target capacity, or is not loaded here.
    fn is_changing(&self, limit: &LimitName) -> bool {
        self.info(limit).is_none_or(|info| !self.table.limit(limit, Some(&info)).is_open(&info))
    }

    /// The overage rule of a limit; `None` if it is deleted or unknown.
    fn overage(&self, limit: &LimitName) -> Option<Overage> {
        let info = self.info(limit)?;
        let is_gone = target(Some(&info)) == 0
            && self.table.limit(limit, Some(&info)).totals().is_none_or(|totals| totals.in_force == 0);
        (!is_gone).then_some(info.definition.overage)
    }
}
