//! Extensions. The newest anchor of a lease names its last extension, so any process can repeat the answer.

use std::sync::Arc;

use earmark_admission::{
    Amount, BackendError, CREDIT_RETRY_MS, CreditStep, Direction, ExtendAnswer, LimitsExtend, LimitsExtended,
    OTHER_CALL, Refusal,
};
use earmark_core::{EXTENSIONS_MAX, Kind, LeaseClaim, LimitKey, NEVER_RETRY_MS, REQUIREMENTS_MAX};
use sha2::{Digest, Sha256};

use crate::answer;
use crate::backend::{Inner, PendingAnswer, missing_result};
use crate::extend_chain::{ExtendPart, ExtendResult, Extending, replacement};
use crate::lease_cache::CachedLease;
use crate::lease_record::{Held, LeaseRecord};
use crate::required::{Limit, Requirement, Shortage};
use crate::reserve_chain::Taken;
use crate::retake::Retaken;
use crate::schema::{Anchor, ClaimRefusal, Decision, Holding, LeaseName, LimitAccounts, LimitName, SECOND_NS};

/// Attempts to extend a lease that other requests change at the same time.
const LOOKS_MAX: usize = 8;
const MS_NS: u64 = 1_000_000;

type Answered = Result<LimitsExtended, BackendError>;

/// A validated extension. Its amounts are sorted by limit.
struct CheckedExtend {
    name: LeaseName,
    number: u32,
    add: Vec<Requirement>,
    /// In request order.
    used: Vec<Amount>,
    renew: bool,
    fingerprint: u64,
    credit: CreditStep,
    claim: LeaseClaim,
}

/// An extension that is ready to send, and the added limits of its parts.
struct Prepared {
    extending: Extending,
    /// The amount that was asked for and its limit, for each part that adds something.
    asked: Vec<Option<(Taken, Limit)>>,
}

impl CheckedExtend {
    fn new(request: LimitsExtend) -> Result<CheckedExtend, ExtendAnswer> {
        let LimitsExtend { namespace, lease, number, add, used, renew, credit, claim } = request;
        if number == 0 || number > EXTENSIONS_MAX {
            let message = format!("extension: found {number}, allowed 1 to {EXTENSIONS_MAX}");
            return Err(ExtendAnswer::invalid(message));
        }
        let invalid = answer::invalid_amounts(&add, 1, "add").or_else(|| answer::invalid_amounts(&used, 0, "used"));
        if let Some(message) = invalid {
            return Err(ExtendAnswer::invalid(message));
        }
        let name = LeaseName::new(namespace, lease);
        let add = Requirement::sorted(&name, &add);
        let fingerprint = fingerprint(&add, &Requirement::sorted(&name, &used), renew);
        Ok(CheckedExtend { name, number, add, used, renew, fingerprint, credit, claim })
    }

    /// The anchor of this extension of a lease.
    fn anchor(&self, record: &LeaseRecord, decision: Decision, wait_ms: u64) -> Anchor {
        let has_credit = record.newest.has_credit;
        Anchor { amount: wait_ms, ..Anchor::made(self.number, self.fingerprint, decision, has_credit) }
    }

    /// The place of a key in the sorted amounts; below 32.
    fn rank(&self, key: &LimitKey) -> u8 {
        let rank = self.add.iter().position(|part| part.key == *key).unwrap_or_default();
        u8::try_from(rank).unwrap_or_default()
    }

    fn key_at(&self, rank: u8) -> Option<LimitKey> {
        self.add.get(usize::from(rank)).map(|part| part.key.clone())
    }
}

/// Hash of the body of an extension. It is stored, so the algorithm must not change.
fn fingerprint(add: &[Requirement], used: &[Requirement], renew: bool) -> u64 {
    let mut hash = Sha256::new();
    for (mark, parts) in [(b'+', add), (b'=', used)] {
        for part in parts {
            // No key contains a zero byte, so different lists give different bytes.
            hash.update([mark]);
            hash.update(part.key.as_str().as_bytes());
            hash.update([0]);
            hash.update(part.amount.to_le_bytes());
        }
    }
    hash.update([b'>', u8::from(renew)]);
    let digest: [u8; 32] = hash.finalize().into();
    let mut first = [0_u8; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(first).max(1)
}

impl Inner {
    /// Extends leases; answers in request order.
    pub(crate) async fn extend_all(self: Arc<Inner>, requests: Vec<LimitsExtend>) -> Vec<Answered> {
        let pending = requests.into_iter().map(|request| match CheckedExtend::new(request) {
            Ok(checked) => PendingAnswer::Task(earmark_admission::spawn(Arc::clone(&self).extend_checked(checked))),
            Err(answer) => PendingAnswer::Ready(Ok(answer.into())),
        });
        PendingAnswer::wait(pending.collect()).await
    }

    async fn extend_checked(self: Arc<Inner>, checked: CheckedExtend) -> Answered {
        self.wait_for_setup().await?;
        let id = checked.name.id;
        if tokio::time::timeout(self.options.deadline, self.leases.landed(id)).await.is_err() {
            return Err(BackendError::Failed(self.timeout_message()));
        }
        for _ in 0..LOOKS_MAX {
            let cached = match self.leases.get(id) {
                Some(CachedLease::Allowed(record)) => Some(record),
                Some(CachedLease::Denied(_)) | None => None,
            };
            let is_cached = cached.is_some();
            let record = match cached {
                Some(record) => Some(record),
                None => self.read_lease(&checked.name).await?.map(Arc::new),
            };
            let Some(record) = record else { return Ok(ExtendAnswer::expired().into()) };
            let record = match self.retake(&checked.name, &record).await? {
                // Usage of a limit without room counts in the period that it was sent for.
                Retaken::Not | Retaken::Denied(_) => record,
                Retaken::Now(record) => Arc::new(record),
                Retaken::Changed => continue,
            };
            match self.settled(&checked, &record) {
                // Another process may have extended or ended the lease since.
                Some(_) if is_cached => self.leases.forget(id),
                Some(answer) => return Ok(answer),
                None => {
                    match self.extend_next(&checked, &record).await? {
                        // No transfer was sent for such a refusal, so the ledger has not confirmed the cached lease.
                        Some(refused) if is_cached && leaves_number_free(&refused.answer) => self.leases.forget(id),
                        Some(answer) => return Ok(answer),
                        None => self.leases.forget(id),
                    }
                }
            }
        }
        Err(BackendError::Failed("the lease changed at every attempt; try again".into()))
    }

    /// The answer that follows from the state of the lease and from the number; `None` if the number is the next one.
    fn settled(&self, checked: &CheckedExtend, record: &LeaseRecord) -> Option<LimitsExtended> {
        let Anchor { number, fingerprint, .. } = record.newest;
        if !record.is_alive(self.shared.clock.now_ns()) {
            return Some(ExtendAnswer::expired().into());
        }
        if let Some(refusal) = record.first.refusal(checked.claim) {
            let answer = match refusal {
                ClaimRefusal::OwnedByGateway => ExtendAnswer::Refused(Refusal::OwnedByGateway),
                ClaimRefusal::OtherCall => ExtendAnswer::invalid(OTHER_CALL.into()),
            };
            return Some(answer.into());
        }
        if checked.number == number {
            let is_same = checked.fingerprint == fingerprint;
            return Some(if is_same {
                self.repeated(checked, record)
            } else {
                ExtendAnswer::number_reused(number).into()
            });
        }
        let expected = number.saturating_add(1);
        (checked.number != expected).then(|| ExtendAnswer::number_differs(checked.number, expected).into())
    }

    /// The first answer of the last extension.
    fn repeated(&self, checked: &CheckedExtend, record: &LeaseRecord) -> LimitsExtended {
        let Anchor { decision, amount: wait_ms, made_at_ns, .. } = record.newest;
        let retry_at_ns = made_at_ns.saturating_add(wait_ms.saturating_mul(MS_NS));
        // This process may not have seen the time of that denial yet.
        let left_ms = retry_at_ns.saturating_sub(self.shared.clock.now_ns()).div_ceil(MS_NS).min(wait_ms);
        let denied = match decision {
            Decision::Reserved | Decision::Marked | Decision::Extended => return self.extended(checked, record),
            Decision::Denied { rank, never } => ExtendAnswer::Denied {
                retry_after_ms: if never { NEVER_RETRY_MS } else { left_ms },
                limited_by: checked.key_at(rank).into_iter().collect(),
                never,
            },
            Decision::Short { rank, why } => match checked.key_at(rank) {
                Some(key) => ExtendAnswer::Refused(Refusal::InsufficientCredit { key, retry_after_ms: left_ms, why }),
                None => ExtendAnswer::expired(),
            },
        };
        denied.into()
    }

    /// The answer to an extension that was made, now or before.
    fn extended(&self, checked: &CheckedExtend, record: &LeaseRecord) -> LimitsExtended {
        let held_of = |used: &Amount| {
            let account = LimitAccounts::of(&LimitName::of(&checked.name.namespace, used)).limit;
            record.held.iter().find(|held| held.account == account)
        };
        let is_credit = |used: &&Amount| {
            let info = self.info(&LimitName::of(&checked.name.namespace, used));
            info.is_some_and(|info| matches!(info.definition.kind, Kind::Credit(_)))
        };
        let limits = || checked.used.iter().filter(|used| !is_credit(used));
        let ignored = limits().filter(|used| held_of(used).is_none()).map(|used| used.key.clone()).collect();
        let is_usage = |held: &&Held| held.holding != Holding::Concurrency;
        let is_above = |used: &&Amount| held_of(used).filter(is_usage).is_some_and(|held| used.amount > held.total());
        let above = limits().filter(is_above).map(|used| used.key.clone()).collect();
        let answer = ExtendAnswer::Extended { ends_at: record.ends_at(), ignored, above };
        LimitsExtended { answer, may_have_credit: record.newest.has_credit }
    }

    /// Makes the next extension of a lease that is alive; `None` if the lease changed meanwhile.
    async fn extend_next(
        &self,
        checked: &CheckedExtend,
        record: &LeaseRecord,
    ) -> Result<Option<LimitsExtended>, BackendError> {
        if let Some(refusal) = self.refusal_by_name(&checked.name, &checked.add).await? {
            return Ok(Some(ExtendAnswer::Refused(refusal).into()));
        }
        if let CreditStep::Blocked(refusal) = &checked.credit {
            return Ok(Some(ExtendAnswer::Refused(refusal.clone()).into()));
        }
        let is_new = |part: &&Requirement| held(record, &part.limit).is_none();
        let limits = record.held.len().saturating_add(checked.add.iter().filter(is_new).count());
        if limits > REQUIREMENTS_MAX {
            return Ok(Some(ExtendAnswer::too_many_limits(limits).into()));
        }
        if let CreditStep::Short { key, why } = &checked.credit {
            let decision = Decision::Short { rank: checked.rank(key), why: *why };
            let anchor = checked.anchor(record, decision, CREDIT_RETRY_MS);
            let (key, retry_after_ms) = (key.clone(), CREDIT_RETRY_MS);
            let refusal = Refusal::InsufficientCredit { key, retry_after_ms, why: *why };
            return self.deny(checked, record, anchor, ExtendAnswer::Refused(refusal)).await;
        }
        self.read_shadow_limits(&checked.add).await?;
        let Prepared { extending, asked } = self.prepare_extension(checked, record)?;
        let results = self.create_one(extending.chain(&self.common), Direction::Takes).await?;
        match extending.read(&self.common, &results, record) {
            ExtendResult::Done(record) => self.finish_extension(checked, record).await,
            ExtendResult::Changed => Ok(None),
            ExtendResult::Expired => Ok(Some(ExtendAnswer::expired().into())),
            ExtendResult::Denied { index } => self.deny_for_room(checked, record, &asked, index).await,
            ExtendResult::Failed(message) => {
                for (_, limit) in asked.iter().flatten() {
                    limit.tracked.invalidate(self.next_lookup_number());
                }
                Err(BackendError::Failed(message))
            }
        }
    }

    /// Takes reservations again that the ledger made in a later period, and answers.
    async fn finish_extension(
        &self,
        checked: &CheckedExtend,
        record: LeaseRecord,
    ) -> Result<Option<LimitsExtended>, BackendError> {
        let record = match self.retake(&checked.name, &record).await? {
            Retaken::Not | Retaken::Denied(_) => record,
            Retaken::Now(record) => record,
            Retaken::Changed => return Ok(None),
        };
        let answer = self.extended(checked, &record);
        self.leases.put(checked.name.id, CachedLease::Allowed(Arc::new(record)));
        Ok(Some(answer))
    }

    /// The chain of an extension.
    fn prepare_extension(&self, checked: &CheckedExtend, record: &LeaseRecord) -> Result<Prepared, BackendError> {
        let changed = || BackendError::Failed("the limit changed meanwhile; try again with the same number".into());
        let mut anchor = checked.anchor(record, Decision::Extended, 0);
        let mut grown: Vec<(u128, Taken, Limit)> = Vec::new();
        let (mut parts, mut asked) = (Vec::new(), Vec::new());
        for part in &checked.add {
            let info = self.info_for(&checked.name, &part.limit).ok_or_else(changed)?;
            let Some(holding) = Holding::of(&info.definition.kind) else {
                anchor.has_credit = true;
                continue;
            };
            let limit = Limit { tracked: self.table.limit(&part.limit, Some(&info)), info };
            if !limit.tracked.is_open(&limit.info) {
                return Err(changed());
            }
            let taken = self.taken(part, holding, &limit, checked.number);
            let before = held(record, &part.limit);
            if before.is_some_and(|held| held.holding == Holding::Concurrency) {
                grown.push((taken.account, taken, limit));
            } else {
                parts.push(ExtendPart { taken: taken.clone(), replaces: None });
                asked.push(Some((taken, limit)));
            }
        }
        for held in record.held.iter().filter(|held| held.holding == Holding::Concurrency) {
            let place = grown.iter().position(|(account, ..)| *account == held.account);
            let added = place.map(|place| grown.swap_remove(place));
            let add = added.as_ref().map_or(0, |(_, taken, _)| taken.amount);
            let timeout = checked.renew.then(|| self.timeout_seconds(held));
            let times = (record.first.made_at_ns, self.shared.clock.now_ns());
            if let Some(part) = replacement(held, (add, checked.number), timeout, times) {
                parts.push(part);
                asked.push(added.map(|(_, taken, limit)| (taken, limit)));
            }
        }
        let used = self.reports(checked, record);
        Ok(Prepared { extending: Extending { name: checked.name.clone(), anchor, parts, used }, asked })
    }

    /// The timeout of a concurrency limit. A deleted one leaves that of the reservation.
    fn timeout_seconds(&self, held: &Held) -> u32 {
        let defined = held.name.as_ref().and_then(|limit| match self.info(limit)?.definition.kind {
            Kind::Concurrency { timeout_seconds } => Some(timeout_seconds),
            Kind::Rolling { .. } | Kind::Calendar { .. } | Kind::Credit(_) => None,
        });
        let own = held.ends_at_ns.saturating_sub(held.made_at_ns).div_ceil(SECOND_NS);
        defined.unwrap_or_else(|| u32::try_from(own).unwrap_or(u32::MAX))
    }

    /// The usage to record: of limits that the lease has reserved, where it exceeds earlier reports.
    fn reports(&self, checked: &CheckedExtend, record: &LeaseRecord) -> Vec<(LimitName, u64)> {
        let report = |used: &Amount| {
            let limit = LimitName::of(&checked.name.namespace, used);
            let known = match held(record, &limit) {
                Some(held) => held.used,
                None if checked.add.iter().any(|part| part.limit == limit) => 0,
                None => return None,
            };
            let is_held = self.info(&limit).is_none_or(|info| Holding::of(&info.definition.kind).is_some());
            (is_held && used.amount > known).then_some((limit, used.amount))
        };
        checked.used.iter().filter_map(report).collect()
    }

    /// Records a denial for lack of room, and answers it.
    async fn deny_for_room(
        &self,
        checked: &CheckedExtend,
        record: &LeaseRecord,
        asked: &[Option<(Taken, Limit)>],
        index: usize,
    ) -> Result<Option<LimitsExtended>, BackendError> {
        let added: Vec<(&Taken, &Limit)> = asked.iter().flatten().map(|(taken, limit)| (taken, limit)).collect();
        let before = asked.iter().take(index).flatten().count();
        let place = asked.get(index).and_then(Option::as_ref).map(|_| before).ok_or_else(missing_result)?;
        let shortage = self.shortage(checked.name.lease, &added, place).await?;
        let Shortage { limited_by, never, retry_after_ms } = shortage;
        let limited_by: Vec<LimitKey> =
            limited_by.iter().map(|limit| limit.seen_from(&checked.name.namespace)).collect();
        let rank = limited_by.first().map_or(0, |key| checked.rank(key));
        let anchor = checked.anchor(record, Decision::Denied { rank, never }, retry_after_ms);
        self.deny(checked, record, anchor, ExtendAnswer::Denied { retry_after_ms, limited_by, never }).await
    }

    /// Posts the anchor of a denied extension alone. `None` if the lease changed meanwhile.
    async fn deny(
        &self,
        checked: &CheckedExtend,
        record: &LeaseRecord,
        anchor: Anchor,
        answer: ExtendAnswer,
    ) -> Result<Option<LimitsExtended>, BackendError> {
        let denied = Extending { name: checked.name.clone(), anchor, parts: Vec::new(), used: Vec::new() };
        let results = self.create_one(denied.chain(&self.common), Direction::Takes).await?;
        match denied.read(&self.common, &results, record) {
            ExtendResult::Done(record) => {
                self.leases.put(checked.name.id, CachedLease::Allowed(Arc::new(record)));
                Ok(Some(answer.into()))
            }
            ExtendResult::Changed | ExtendResult::Expired | ExtendResult::Denied { .. } => Ok(None),
            ExtendResult::Failed(message) => Err(BackendError::Failed(message)),
        }
    }
}

/// Whether an answer is a refusal that is not recorded in the ledger.
fn leaves_number_free(answer: &ExtendAnswer) -> bool {
    match answer {
        ExtendAnswer::Refused(Refusal::InsufficientCredit { .. }) => false,
        ExtendAnswer::Refused(_) => true,
        ExtendAnswer::Extended { .. } | ExtendAnswer::Denied { .. } => false,
    }
}

/// The reservation of a lease on a limit.
fn held<'a>(record: &'a LeaseRecord, limit: &LimitName) -> Option<&'a Held> {
    let account = LimitAccounts::of(limit).limit;
    record.held.iter().find(|held| held.account == account)
}
