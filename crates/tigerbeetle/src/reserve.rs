//! Reserves. Cached limits are sent in one batch; the others are looked up first, each in its own task.

use std::sync::Arc;

use earmark_admission::{BackendError, Direction, LimitsReserve, Refusal, ReserveAnswer};
use earmark_core::{CallMark, LimitKey, NEVER_RETRY_MS};
use tigerbeetle::{CreateTransferStatus as Status, Transfer};

use crate::answer;
use crate::backend::{Inner, PendingAnswer, Setup, missing_result};
use crate::batch::Chains;
use crate::lease_cache::{CachedLease, Denied, InFlight};
use crate::lease_record::{LeaseRecord, Retry};
use crate::requests::Created;
use crate::required::{Limit, Requirement, Shortage};
use crate::reserve_chain::{ReservePlan, ReserveResult, Taken};
use crate::retake::Retaken;
use crate::schema::{Decision, Holding, LeaseName, PartVersion, ReserveBody, fingerprint};
use crate::settle_chain::Settling;
use crate::status::exists;

/// Maximum transfers in one queue item, so that large batches spread over sessions.
const ITEM_EVENTS_MAX: usize = 2_048;

type Answered = Result<ReserveAnswer, BackendError>;

/// A validated reserve, sorted by limit.
struct Checked {
    name: LeaseName,
    requirements: Vec<Requirement>,
    body: ReserveBody,
    /// Completes of the same lease wait for this guard.
    _in_flight: InFlight,
}

/// The chain of a reserve, and its limits in the same order.
struct Prepared {
    plan: ReservePlan,
    limits: Vec<Limit>,
}

/// A reserve whose chain is sent.
struct Sending {
    checked: Checked,
    prepared: Prepared,
    chain: Vec<Transfer>,
}

/// How a reserve is processed.
enum Dispatch {
    Pending(PendingAnswer<ReserveAnswer>),
    Send(Box<Sending>),
}

impl Sending {
    /// Whether the answer needs further requests: the lease exists and must be looked up, or it was made in a later
    /// period than it was sent for.
    fn needs_more(&self, created: &Created) -> bool {
        let first = created.as_ref().ok().and_then(|results| results.first());
        first.is_some_and(|first| {
            let has_ended = |taken: &Taken| taken.ends_at_ns.is_some_and(|end_ns| end_ns <= first.timestamp);
            exists(first.status) || self.prepared.plan.taken.iter().any(has_ended)
        })
    }
}

impl Inner {
    /// Reserves leases; answers in request order.
    pub(crate) async fn reserve_all(self: Arc<Inner>, requests: Vec<LimitsReserve>) -> Vec<Answered> {
        let dispatches: Vec<Dispatch> = requests.into_iter().map(|request| self.dispatch_reserve(request)).collect();
        let mut created = self.send_all(&dispatches).await.into_iter();
        let mut begun = Vec::with_capacity(dispatches.len());
        for dispatch in dispatches {
            begun.push(match dispatch {
                Dispatch::Send(sending) => {
                    let created = created.next().unwrap_or_else(|| Err(missing_result()));
                    if sending.needs_more(&created) {
                        // Sequential requests of a batch could exceed the deadline.
                        let inner = Arc::clone(&self);
                        PendingAnswer::Task(earmark_admission::spawn(
                            async move { inner.answer(&sending, created).await },
                        ))
                    } else {
                        PendingAnswer::Ready(self.answer(&sending, created).await)
                    }
                }
                Dispatch::Pending(pending) => pending,
            });
        }
        PendingAnswer::wait(begun).await
    }

    /// Sends all prepared chains. Results are in order.
    async fn send_all(&self, dispatches: &[Dispatch]) -> Vec<Created> {
        let chains = dispatches.iter().filter_map(|dispatch| match dispatch {
            Dispatch::Send(sending) => Some(&sending.chain),
            Dispatch::Pending(_) => None,
        });
        let mut items = vec![Chains::default()];
        for chain in chains {
            match items.last_mut() {
                Some(item) if item.transfers.len().saturating_add(chain.len()) <= ITEM_EVENTS_MAX => {
                    item.push(chain);
                }
                Some(_) | None => items.push(Chains::one(chain.clone())),
            }
        }
        items.retain(|item| !item.lens.is_empty());
        // Queue all items before waiting for any.
        let sent: Vec<_> =
            items.into_iter().map(|item| (item.lens.len(), self.create(item, Direction::Takes))).collect();
        let mut all = Vec::new();
        for (chains, created) in sent {
            match created.await {
                Ok(created) => all.extend(created),
                Err(error) => all.extend(std::iter::repeat_with(|| Err(error.clone())).take(chains)),
            }
        }
        all
    }

    fn dispatch_reserve(self: &Arc<Inner>, request: LimitsReserve) -> Dispatch {
        if let Some(message) = answer::invalid_parts(&request.requirements, 1, "requirements") {
            return Dispatch::Pending(PendingAnswer::Ready(Ok(ReserveAnswer::Refused(Refusal::InvalidRequest {
                message,
            }))));
        }
        let name = LeaseName::new(request.namespace, request.lease);
        let requirements = Requirement::sorted(&name, &request.requirements);
        if let Some(job) = request.job {
            self.leases.put_job(name.id, job);
        }
        let of_requirements = || fingerprint(requirements.iter().map(|part| (&part.key, part.amount)));
        let body = ReserveBody {
            fingerprint: request.call.map_or_else(of_requirements, CallMark::fingerprint),
            policy_revision: request.call.map(|call| call.policy_revision),
            by_gateway: request.by_gateway,
        };
        // A cached denial is final. The ledger would not say more: it only recognises the id that this body spent.
        if let Some(CachedLease::Denied(denied)) = self.leases.get(name.id) {
            return Dispatch::Pending(PendingAnswer::Ready(Ok(self.denied_before(&denied, &body))));
        }
        let in_flight = self.leases.begin(name.id);
        let checked = Checked { name, requirements, body, _in_flight: in_flight };
        match self.age(&checked.name).is_none().then(|| self.prepare(&checked, false)).flatten() {
            Some(prepared) => {
                let chain = prepared.plan.chain(&self.common);
                Dispatch::Send(Box::new(Sending { checked, prepared, chain }))
            }
            None => Dispatch::Pending(PendingAnswer::Task(earmark_admission::spawn(
                Arc::clone(self).reserve_uncached(checked),
            ))),
        }
    }

    /// The refusal of an unknown lease by the time in its id.
    pub(crate) fn age(&self, name: &LeaseName) -> Option<String> {
        let config = self.config();
        let wall = self.options.clock.now().wall;
        answer::age(name.lease, wall, config.retention_ms, config.lease_ahead_ms)
    }

    /// The chain to send; `None` if a limit must be read first.
    fn prepare(&self, checked: &Checked, is_fresh: bool) -> Option<Prepared> {
        let mut taken = Vec::with_capacity(checked.requirements.len());
        let mut limits = Vec::with_capacity(checked.requirements.len());
        let mut has_credit = false;
        for part in &checked.requirements {
            let info = self.info_for(&checked.name, &part.limit)?;
            // The refusal by name tells how long.
            if self.paused_for_ms(&info).is_some() {
                return None;
            }
            let Some(holding) = Holding::of(&info.definition.kind) else {
                has_credit = true;
                continue;
            };
            let tracked = self.table.limit(&part.limit, Some(&info));
            if !tracked.is_open(&info) || !info.definition.enforce && !is_fresh {
                return None;
            }
            let limit = Limit { tracked, info };
            taken.push(self.taken(part, holding, &limit, 0));
            limits.push(limit);
        }
        // An open limit implies a finished setup; a credit-only lease must check. A transfer whose accounts are missing
        // spends its id, and the lease could never be reserved or completed.
        if taken.is_empty() && *self.setup.borrow() != Setup::Ready {
            return None;
        }
        let plan = ReservePlan { name: checked.name.clone(), body: checked.body, has_credit, taken };
        Some(Prepared { plan, limits })
    }

    /// Reserves a lease after reading its limits from the ledger, or refuses it.
    async fn reserve_uncached(self: Arc<Inner>, checked: Checked) -> Answered {
        self.wait_for_setup().await?;
        let refusal = match self.age(&checked.name) {
            Some(message) => Some(Refusal::InvalidRequest { message }),
            None => self.refusal_by_name(&checked.name, &checked.requirements).await?,
        };
        if let Some(refusal) = refusal {
            // It may be a retry of a lease that exists.
            if let Some(record) = self.read_lease(&checked.name).await? {
                return self.retried(&checked, record, None).await;
            }
            return Ok(match self.find_denial(&checked).await? {
                Some(part) => self.denied_elsewhere(&part),
                None => ReserveAnswer::Refused(refusal),
            });
        }
        self.read_shadow_limits(&checked.requirements).await?;
        let prepared = self
            .prepare(&checked, true)
            .ok_or_else(|| BackendError::Failed("the limit changed meanwhile; try again with the same lease".into()))?;
        let chain = prepared.plan.chain(&self.common);
        let created = self.create_one(chain.clone(), Direction::Takes).await;
        self.answer(&Sending { checked, prepared, chain }, created).await
    }

    /// The requirement that was denied earlier, if any. A denial only leaves a spent id. To find it, send a transfer
    /// with that id and no accounts: it fails without a trace.
    async fn find_denial(&self, checked: &Checked) -> Result<Option<Requirement>, BackendError> {
        let mut probes = Chains::default();
        for part in &checked.requirements {
            probes.push(&[Transfer {
                id: checked.name.reserve_id(Some(&part.limit), 0, PartVersion::default()),
                ..Transfer::default()
            }]);
        }
        let created = self.create(probes, Direction::Takes).await?;
        for (part, created) in checked.requirements.iter().zip(created) {
            if created?.iter().any(|result| result.status == Status::IdAlreadyFailed) {
                return Ok(Some(part.clone()));
            }
        }
        Ok(None)
    }

    /// The answer to a retry of a lease that another process denied.
    fn denied_elsewhere(&self, part: &Requirement) -> ReserveAnswer {
        let info = self.info(&part.limit);
        let never = info.is_some_and(|info| part.amount > info.definition.capacity);
        let retry_after_ms = if never { NEVER_RETRY_MS } else { self.config().hints.decreasing_ms };
        ReserveAnswer::Denied { retry_after_ms, limited_by: vec![part.key.clone()], never }
    }

    /// The answer to a reserve, from the results of its chain.
    async fn answer(&self, sending: &Sending, created: Created) -> Answered {
        let Sending { checked, prepared, chain } = sending;
        match prepared.plan.read(chain, &created?) {
            ReserveResult::Created(record) => {
                let record = match self.retake(&checked.name, &record).await? {
                    Retaken::Not => record,
                    Retaken::Now(record) => record,
                    Retaken::Denied(limit) => {
                        self.release_denied(&checked.name, &record).await?;
                        let index = prepared.plan.taken.iter().position(|taken| taken.limit == limit);
                        return self.denied(checked, prepared, index.unwrap_or(0)).await;
                    }
                    Retaken::Changed => return self.look_up(checked, None).await,
                };
                for limit in &prepared.limits {
                    limit.tracked.reset_denials();
                }
                Ok(self.allowed(checked, record))
            }
            ReserveResult::Denied { index } => self.denied(checked, prepared, index).await,
            ReserveResult::Known { now_ns } => self.look_up(checked, now_ns).await,
            ReserveResult::Failed(message) => {
                // The cached limits may be wrong, so read them again before the next reserve.
                for limit in &prepared.limits {
                    limit.tracked.invalidate(self.next_lookup_number());
                }
                Err(BackendError::Failed(message))
            }
        }
    }

    /// The answer to a reserve of a lease that exists in the ledger.
    async fn look_up(&self, checked: &Checked, now_ns: Option<u64>) -> Answered {
        match self.read_lease(&checked.name).await? {
            Some(record) => self.retried(checked, record, now_ns).await,
            None => Err(BackendError::Failed("TigerBeetle reports a lease that it cannot find".into())),
        }
    }

    fn allowed(&self, checked: &Checked, record: LeaseRecord) -> ReserveAnswer {
        let (reserved_at, would_deny) = (record.reserved_at(), record.would_deny(&checked.name.namespace));
        let policy_revision = record.first.policy_revision();
        self.leases.put(checked.name.id, CachedLease::Allowed(Arc::new(record)));
        ReserveAnswer::Allowed { reserved_at, would_deny, policy_revision }
    }

    /// The answer to a reserve of a lease that exists.
    async fn retried(&self, checked: &Checked, record: LeaseRecord, now_ns: Option<u64>) -> Answered {
        let now_ns = now_ns.unwrap_or_else(|| self.shared.clock.now_ns());
        let may_repeat = checked.body.by_gateway || !record.first.by_gateway;
        if may_repeat && record.is_late() && record.first.body().is_same(&checked.body) {
            return self.retried_late(checked, record).await;
        }
        let (retry, would_deny) = (record.retry(&checked.body, now_ns), record.would_deny(&checked.name.namespace));
        let policy_revision = record.first.policy_revision();
        if record.first.decision == Decision::Reserved && record.ending.is_none() {
            self.leases.put(checked.name.id, CachedLease::Allowed(Arc::new(record)));
        }
        Ok(match retry {
            Retry::Ended => ReserveAnswer::Refused(Refusal::LeaseExpired),
            Retry::OtherRequirements => answer::other_requirements(),
            Retry::OwnedByGateway => ReserveAnswer::Refused(Refusal::OwnedByGateway),
            Retry::Holds { reserved_at } => ReserveAnswer::Allowed { reserved_at, would_deny, policy_revision },
        })
    }

    /// The answer to a reserve of a lease whose first attempt stopped before its late reservations were taken again.
    async fn retried_late(&self, checked: &Checked, record: LeaseRecord) -> Answered {
        match self.retake(&checked.name, &record).await? {
            Retaken::Not => Ok(ReserveAnswer::Refused(Refusal::LeaseExpired)),
            Retaken::Now(record) => Ok(self.allowed(checked, record)),
            Retaken::Denied(limit) => {
                self.release_denied(&checked.name, &record).await?;
                let part = checked.requirements.iter().find(|part| Some(&part.limit) == limit.as_ref());
                let expired = ReserveAnswer::Refused(Refusal::LeaseExpired);
                Ok(part.map_or(expired, |part| self.denied_elsewhere(part)))
            }
            Retaken::Changed => Err(BackendError::Failed("the lease changed meanwhile; try again".into())),
        }
    }

    /// Releases a lease whose late reservations do not fit into the current period.
    async fn release_denied(&self, name: &LeaseName, record: &LeaseRecord) -> Result<(), BackendError> {
        let settling = Settling::release(name.clone(), record);
        self.settle(name, settling, self.shared.clock.now_ns()).await.map(drop)
    }

    /// Answers a denial, and remembers it.
    async fn denied(&self, checked: &Checked, prepared: &Prepared, index: usize) -> Answered {
        let asked: Vec<(&Taken, &Limit)> = prepared.plan.taken.iter().zip(&prepared.limits).collect();
        let Shortage { limited_by, never, retry_after_ms } = self.shortage(checked.name.lease, &asked, index).await?;
        let limited_by: Vec<LimitKey> =
            limited_by.into_iter().map(|limit| limit.seen_from(&checked.name.namespace)).collect();
        let denied = Denied {
            body: checked.body,
            limited_by: limited_by.first().cloned().ok_or_else(missing_result)?,
            never,
            retry_at: self.options.clock.now().log.plus_ms(retry_after_ms),
        };
        self.leases.put(checked.name.id, CachedLease::Denied(Arc::new(denied)));
        Ok(ReserveAnswer::Denied { retry_after_ms, limited_by, never })
    }

    fn denied_before(&self, denied: &Denied, body: &ReserveBody) -> ReserveAnswer {
        if denied.body.by_gateway && !body.by_gateway {
            return ReserveAnswer::Refused(Refusal::OwnedByGateway);
        }
        if !denied.body.is_same(body) {
            return answer::other_requirements();
        }
        ReserveAnswer::Denied {
            retry_after_ms: match denied.never {
                true => NEVER_RETRY_MS,
                false => denied.retry_at.ms_since(self.options.clock.now().log),
            },
            limited_by: vec![denied.limited_by.clone()],
            never: denied.never,
        }
    }
}
