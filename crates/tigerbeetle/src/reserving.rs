//! Reserves: what can be sent at once goes together, what needs care is looked after on its own.

use std::sync::Arc;

use earmark_admission::{Amount, BackendError, Direction, LimitsReserve, Refusal, ReserveAnswer};
use earmark_core::{LimitInfo, LimitKey};
use tigerbeetle::{CreateTransferStatus as Status, Transfer};
use tokio::task::JoinHandle;

use crate::answer;
use crate::backend::{Inner, Setup, mixed_up};
use crate::batch::Chains;
use crate::chart::{Holding, LeaseName, Origin, fingerprint};
use crate::lease::{LeaseRecord, Retry};
use crate::leases::{Denied, InFlight, Memory};
use crate::requests::Created;
use crate::reserve::{ReservePlan, ReserveRead, Taken};
use crate::status::exists;
use crate::table::{Cell, target};

/// The most transfers that are put into the queue as one item.
const ITEM_EVENTS_MAX: usize = 2_048;

type Answered = Result<ReserveAnswer, BackendError>;

/// A reserve that was checked: its requirements are in order of key.
struct Checked {
    name: LeaseName,
    requirements: Vec<Amount>,
    fingerprint: u64,
    /// Completes of the same lease wait until this is gone.
    _in_flight: InFlight,
}

/// What is to be sent, and the limits that it is taken from.
struct Prepared {
    plan: ReservePlan,
    limits: Vec<Limit>,
}

struct Limit {
    cell: Arc<Cell>,
    info: Arc<LimitInfo>,
}

/// A reserve on its way.
struct Sending {
    checked: Checked,
    prepared: Prepared,
    chain: Vec<Transfer>,
}

/// What to do with a reserve.
enum Way {
    Answer(Answered),
    Send(Box<Sending>),
    Wait(JoinHandle<Answered>),
}

/// Whether the lease was there already, so that it has to be looked up.
fn is_known(created: &Created) -> bool {
    let first = created.as_ref().ok().and_then(|results| results.first());
    first.is_some_and(|result| exists(result.status))
}

impl Inner {
    /// Answers reserves, in their order.
    pub(crate) async fn reserve_all(self: Arc<Inner>, requests: Vec<LimitsReserve>) -> Vec<Answered> {
        let ways: Vec<Way> = requests.into_iter().map(|request| self.way(request)).collect();
        let mut created = self.send_all(&ways).await.into_iter();
        let mut begun = Vec::with_capacity(ways.len());
        for way in ways {
            begun.push(match way {
                Way::Send(sending) => {
                    let created = created.next().unwrap_or_else(|| Err(mixed_up()));
                    if is_known(&created) {
                        // One by one, the look-ups of a batch of retries could outlast the deadline each time.
                        let inner = Arc::clone(&self);
                        Way::Wait(tokio::spawn(async move { inner.answer(&sending, created).await }))
                    } else {
                        Way::Answer(self.answer(&sending, created).await)
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
                Way::Send(_) => Err(mixed_up()),
            });
        }
        answers
    }

    /// Sends the chains of all that can be sent. The results are in their order.
    async fn send_all(&self, ways: &[Way]) -> Vec<Created> {
        let chains = ways.iter().filter_map(|way| match way {
            Way::Send(sending) => Some(&sending.chain),
            Way::Answer(_) | Way::Wait(_) => None,
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
        // All are in the queue before any is waited for.
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

    fn way(self: &Arc<Inner>, request: LimitsReserve) -> Way {
        if let Some(message) = answer::invalid_parts(&request.requirements, 1, "requirements") {
            return Way::Answer(Ok(ReserveAnswer::Refused(Refusal::InvalidRequest { message })));
        }
        let mut requirements = request.requirements;
        requirements.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        let name = LeaseName::new(request.namespace, request.lease);
        let fingerprint = fingerprint(requirements.iter().map(|part| (&part.key, part.amount)));
        // A denial is for good, and no look-up would say more: the ledger has spent an id that every retry of this body
        // names, and of a body that was denied it knows nothing else.
        if let Some(Memory::Denied(denied)) = self.leases.get(name.id) {
            return Way::Answer(Ok(self.denied_before(&denied, fingerprint)));
        }
        let in_flight = self.leases.begin(name.id);
        let checked = Checked { name, requirements, fingerprint, _in_flight: in_flight };
        match self.age(&checked.name).is_none().then(|| self.prepare(&checked)).flatten() {
            Some(prepared) => {
                let chain = prepared.plan.chain(&self.common);
                Way::Send(Box::new(Sending { checked, prepared, chain }))
            }
            None => Way::Wait(tokio::spawn(Arc::clone(self).reserve_with_care(checked))),
        }
    }

    /// Why a lease that is not known is refused by its own time.
    pub(crate) fn age(&self, name: &LeaseName) -> Option<String> {
        let config = &self.options.config;
        let wall = self.options.clock.now().wall;
        answer::age(name.lease, wall, config.retention_ms, config.lease_ahead_ms)
    }

    /// What to send, if all limits are known to be in line.
    fn prepare(&self, checked: &Checked) -> Option<Prepared> {
        let namespace = &checked.name.namespace;
        let mut taken = Vec::with_capacity(checked.requirements.len());
        let mut limits = Vec::with_capacity(checked.requirements.len());
        for part in &checked.requirements {
            let info = self.registry.limit(namespace, &part.key)?;
            let Some(holding) = Holding::of(&info.definition.kind) else { continue };
            let cell = self.table.cell(namespace, &part.key);
            if !cell.is_open(&info) {
                return None;
            }
            taken.push(Taken {
                key: part.key.clone(),
                account: cell.accounts.limit,
                amount: part.amount,
                holding,
                hold_seconds: info.definition.kind.hold_seconds(),
            });
            limits.push(Limit { cell, info });
        }
        // A limit that is open has been seen in a ledger that is set up. Who names none must ask: a transfer whose
        // accounts are missing spends its id, and the lease could never be reserved or completed.
        if taken.is_empty() && *self.setup.borrow() != Setup::Ready {
            return None;
        }
        let plan = ReservePlan { name: checked.name.clone(), fingerprint: checked.fingerprint, taken };
        Some(Prepared { plan, limits })
    }

    /// A reserve that cannot simply be sent: a limit has to be looked at first, or the lease may be refused.
    async fn reserve_with_care(self: Arc<Inner>, checked: Checked) -> Answered {
        self.set_up().await?;
        let refusal = match self.age(&checked.name) {
            Some(message) => Some(Refusal::InvalidRequest { message }),
            None => self.refusal_by_name(&checked).await?,
        };
        if let Some(refusal) = refusal {
            // It may be a retry, whose answer stands whatever has happened since.
            if let Some(record) = self.look(&checked.name).await? {
                return Ok(self.retried(&checked, record, None));
            }
            return Ok(match self.find_denial(&checked).await? {
                Some(part) => self.denied_elsewhere(&checked, &part),
                None => ReserveAnswer::Refused(refusal),
            });
        }
        let prepared = self.prepare(&checked).ok_or_else(|| {
            BackendError::Failed(
                "a limit changed while it was looked at; try again with the same lease".into(),
            )
        })?;
        let chain = prepared.plan.chain(&self.common);
        let created = self.create_one(chain.clone(), Direction::Takes).await;
        self.answer(&Sending { checked, prepared, chain }, created).await
    }

    /// Whether the lease was denied before, and for which of its requirements. A denial leaves nothing but an id that
    /// was spent. It shows when a transfer of that id is sent, and one without accounts is refused otherwise and leaves
    /// no trace.
    async fn find_denial(&self, checked: &Checked) -> Result<Option<Amount>, BackendError> {
        let mut probes = Chains::default();
        for part in &checked.requirements {
            probes.push(&[Transfer { id: checked.name.reserve_id(&part.key), ..Transfer::default() }]);
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
    fn denied_elsewhere(&self, checked: &Checked, part: &Amount) -> ReserveAnswer {
        let info = self.registry.limit(&checked.name.namespace, &part.key);
        let never = info.is_some_and(|info| part.amount > info.definition.capacity);
        let retry_after_ms = if never { 0 } else { self.options.config.hints.decreasing_ms };
        ReserveAnswer::Denied { retry_after_ms, limited_by: vec![part.key.clone()], never }
    }

    /// The first limit, in order of key, that is unknown or decreasing.
    async fn refusal_by_name(&self, checked: &Checked) -> Result<Option<Refusal>, BackendError> {
        let namespace = &checked.name.namespace;
        let keys = || checked.requirements.iter().map(|part| &part.key);
        if keys().any(|key| self.registry.limit(namespace, key).is_none()) {
            self.registry.refresh().await?;
        }
        for key in keys() {
            let unknown = || Ok(Some(Refusal::UnknownLimitKey(key.clone())));
            let Some(info) = self.registry.limit(namespace, key) else { return unknown() };
            if Holding::of(&info.definition.kind).is_none() {
                continue;
            }
            let cell = self.table.cell(namespace, key);
            if cell.is_open(&info) {
                continue;
            }
            self.bring_in_line(&cell).await?;
            let Some(info) = self.registry.limit(namespace, key) else { return unknown() };
            let (target, in_force) = (target(Some(&info)), cell.seen().map_or(0, |seen| seen.in_force));
            if target == 0 && in_force == 0 {
                return unknown();
            }
            if in_force > target {
                let retry_after_ms = self.options.config.hints.decreasing_ms;
                return Ok(Some(Refusal::LimitDecreasing { key: key.clone(), retry_after_ms }));
            }
        }
        Ok(None)
    }

    /// The answer to a reserve, from what the ledger said to its chain.
    async fn answer(&self, sending: &Sending, created: Created) -> Answered {
        let Sending { checked, prepared, chain } = sending;
        match prepared.plan.read(chain, &created?) {
            ReserveRead::Created(record) => {
                let reserved_at = record.reserved_at();
                self.leases.put(checked.name.id, Memory::Allowed(Arc::new(record)));
                for limit in &prepared.limits {
                    limit.cell.allow();
                }
                Ok(ReserveAnswer::Allowed { reserved_at })
            }
            ReserveRead::Denied { place } => self.denied(checked, prepared, place).await,
            ReserveRead::Known { now_ns } => match self.look(&checked.name).await? {
                Some(record) => Ok(self.retried(checked, record, now_ns)),
                None => Err(BackendError::Failed("TigerBeetle has a lease that it does not find".into())),
            },
            ReserveRead::Failed(message) => {
                // Whatever is wrong, the limits have to be looked at again before anything is sent.
                for limit in &prepared.limits {
                    limit.cell.doubt(self.next_turn());
                }
                Err(BackendError::Failed(message))
            }
        }
    }

    /// The answer to a reserve of a lease that is there already.
    fn retried(&self, checked: &Checked, record: LeaseRecord, now_ns: Option<u64>) -> ReserveAnswer {
        let now_ns = now_ns.unwrap_or_else(|| self.shared.clock.now_ns());
        let retry = record.retry(checked.fingerprint, now_ns);
        if record.origin == Origin::Reserved && record.ending.is_none() {
            self.leases.put(checked.name.id, Memory::Allowed(Arc::new(record)));
        }
        match retry {
            Retry::Ended => ReserveAnswer::Refused(Refusal::LeaseExpired),
            Retry::OtherRequirements => answer::other_requirements(),
            Retry::Holds { reserved_at } => ReserveAnswer::Allowed { reserved_at },
        }
    }

    /// The limits that could never have as much as is asked for of them, as far as is known here.
    fn too_large(&self, checked: &Checked, prepared: &Prepared) -> Vec<LimitKey> {
        let most = |limit: &Limit| {
            let in_force = limit.cell.seen().map_or(0, |seen| seen.in_force);
            let info = self.registry.limit(&checked.name.namespace, &limit.info.definition.key);
            in_force.max(info.as_ref().unwrap_or(&limit.info).definition.capacity)
        };
        let parts = prepared.plan.taken.iter().zip(&prepared.limits);
        parts
            .filter(|(taken, limit)| taken.amount > most(limit))
            .map(|(taken, _)| taken.key.clone())
            .collect()
    }

    /// The limit at this place has too little. The ledger names only the first of several; of all the others it is
    /// known whether they could ever have enough.
    async fn denied(&self, checked: &Checked, prepared: &Prepared, place: usize) -> Answered {
        let (Some(taken), Some(limit)) = (prepared.plan.taken.get(place), prepared.limits.get(place)) else {
            return Err(mixed_up());
        };
        let mut limited_by = self.too_large(checked, prepared);
        if !limited_by.is_empty() && self.registry.refresh().await.is_ok() {
            // Others may have given the limit more, and whoever is told that there never is enough does not come back.
            limited_by = self.too_large(checked, prepared);
        }
        let never = !limited_by.is_empty();
        if !limited_by.contains(&taken.key) {
            limited_by.push(taken.key.clone());
        }
        let retry_after_ms = if never { 0 } else { self.wait_ms(checked, taken, &limit.cell) };
        let denied = Denied {
            fingerprint: checked.fingerprint,
            limited_by: limited_by.first().unwrap_or(&taken.key).clone(),
            never,
            retry_at: self.options.clock.now().log.plus_ms(retry_after_ms),
        };
        self.leases.put(checked.name.id, Memory::Denied(Arc::new(denied)));
        Ok(ReserveAnswer::Denied { retry_after_ms, limited_by, never })
    }

    /// When what is in the way frees cannot be known here, so it is the backoff, at most until all of it has ended.
    fn wait_ms(&self, checked: &Checked, taken: &Taken, cell: &Cell) -> u64 {
        let hold_ms = u64::from(taken.hold_seconds).saturating_mul(1_000);
        let is_rolling = taken.holding == Holding::Rolling;
        let hints = &self.options.config.hints;
        hints.backoff_ms(is_rolling, hold_ms, cell.deny(), checked.name.lease).min(hold_ms)
    }

    fn denied_before(&self, denied: &Denied, fingerprint: u64) -> ReserveAnswer {
        if denied.fingerprint != fingerprint {
            return answer::other_requirements();
        }
        ReserveAnswer::Denied {
            retry_after_ms: denied.retry_at.ms_since(self.options.clock.now().log),
            limited_by: vec![denied.limited_by.clone()],
            never: denied.never,
        }
    }
}
