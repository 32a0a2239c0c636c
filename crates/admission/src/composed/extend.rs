//! Extending in three steps: the credit grows, the limits decide about the number, and the credit is renewed.
//!
//! Each step can be repeated, so a retry with the same number performs what is missing. Growth that the limits deny or
//! refuse is returned.

use std::collections::BTreeMap;
use std::sync::Arc;

use earmark_core::{
    Actor, CreditShortage, EXTENSIONS_MAX, LeaseId, LeaseState, LimitKey, NamespaceName, REQUIREMENTS_MAX, UnixMs,
};
use earmark_trace::step;

use super::reserve::{CreditNeed, account_not_found, shortage};
use super::{Parts, all};
use crate::backend::{Amount, Answer, BackendError, Refusal};
use crate::book_host::BookHost;
use crate::credits::{
    GrowAnswer, GrowRequest, HoldPart, HoldState, RenewAnswer, RenewRequest, ShrinkRequest, Timeouts,
};
use crate::extend::{ExtendAnswer, ExtendRequest};
use crate::lease_view::LeaseView;
use crate::limits::{CreditStep, LimitsExtend, LimitsExtended, Registry};

/// The credit of an extension before the limits decide.
enum Growth {
    /// The lease was never allowed, or has ended.
    Expired,
    /// The answer of credit for the limits, the holds of this extension, and when the lease was reserved if that was looked up.
    Told(CreditStep, Vec<HoldPart>, Option<UnixMs>),
    /// The limits have decided about this number before, so nothing is held for it now. A growth that they accepted is
    /// held with its confirmation. The holds of the request, and when the lease was reserved.
    Decided(Vec<HoldPart>, Option<UnixMs>),
}

impl Growth {
    fn nothing(step: CreditStep) -> Growth {
        Growth::Told(step, Vec::new(), None)
    }
}

impl<H: BookHost> Parts<H> {
    pub(super) async fn extend(
        &self,
        actor: Option<Actor>,
        requests: Vec<ExtendRequest>,
    ) -> Vec<Result<ExtendAnswer, BackendError>> {
        if let Err(error) = self.ensure_placement().await {
            return vec![Err(error.into()); requests.len()];
        }
        let is_behind = |request: &ExtendRequest| {
            [&request.add, &request.used].iter().any(|amounts| self.has_unknown(&request.namespace, amounts))
        };
        if requests.iter().any(is_behind) {
            self.catch_up().await;
        }
        // The extensions of one lease follow each other, because each has the next number.
        let mut leases: BTreeMap<(&NamespaceName, LeaseId), Vec<usize>> = BTreeMap::new();
        for (place, request) in requests.iter().enumerate() {
            leases.entry((&request.namespace, request.lease)).or_default().push(place);
        }
        let answers = leases.into_values().map(|places| {
            let answer: Answer<'_, _> = Box::pin(self.extend_in_order(actor.clone(), &requests, places));
            answer
        });
        let mut answers: Vec<_> = all(answers.collect()).await.into_iter().flatten().collect();
        answers.sort_unstable_by_key(|(place, _)| *place);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Extends one lease, by the requests at these places. Returns the answers with their places.
    async fn extend_in_order(
        &self,
        actor: Option<Actor>,
        requests: &[ExtendRequest],
        places: Vec<usize>,
    ) -> Vec<(usize, Result<ExtendAnswer, BackendError>)> {
        let mut answers = Vec::with_capacity(places.len());
        for place in places {
            let Some(request) = requests.get(place) else { continue };
            answers.push((place, self.extend_one(actor.clone(), request).await));
        }
        answers
    }

    async fn extend_one(&self, actor: Option<Actor>, request: &ExtendRequest) -> Result<ExtendAnswer, BackendError> {
        let mut is_decided = false;
        let (credit, holds, reserved_at) = match self.grow(actor.clone(), request).await? {
            Growth::Expired => return Ok(ExtendAnswer::expired()),
            Growth::Told(credit, holds, reserved_at) => (credit, holds, reserved_at),
            Growth::Decided(holds, reserved_at) => {
                is_decided = true;
                (CreditStep::Held, holds, reserved_at)
            }
        };
        let asked = LimitsExtend {
            namespace: request.namespace.clone(),
            lease: request.lease,
            number: request.number,
            add: request.add.clone(),
            used: request.used.clone(),
            renew: request.renew,
            claim: request.claim,
            credit,
        };
        let extended = step("limits", self.limits.extend(vec![asked])).await.into_iter().next();
        let LimitsExtended { answer, may_have_credit } = extended.ok_or_else(unanswered)??;
        match answer {
            ExtendAnswer::Extended { ends_at, ignored, above } => {
                let by_limits = Extended { ends_at, ignored, above };
                if holds.is_empty() && !may_have_credit {
                    return Ok(self.merge_extended(request, by_limits, &Extended::ignoring(&request.used)));
                }
                self.renew(actor, (request, holds, reserved_at), by_limits).await
            }
            ExtendAnswer::Denied { .. } | ExtendAnswer::Refused(_) => {
                if !holds.is_empty() && !is_other_body(&answer, is_decided) {
                    let (namespace, lease, number) = (request.namespace.clone(), request.lease, request.number);
                    let shrink = self.credits.shrink(actor, ShrinkRequest { namespace, lease, number, holds });
                    step("credit", shrink).await?;
                }
                Ok(answer)
            }
        }
    }

    /// Holds the credit of an extension.
    async fn grow(&self, actor: Option<Actor>, request: &ExtendRequest) -> Result<Growth, BackendError> {
        if is_malformed(request) {
            // The limits name what is wrong.
            return Ok(Growth::nothing(CreditStep::Held));
        }
        if let Some(refusal) = self.refusal_by_name(request) {
            return Ok(Growth::nothing(CreditStep::Blocked(refusal)));
        }
        let (namespace, lease, number) = (request.namespace.clone(), request.lease, request.number);
        let holds = match self.credit_need(&namespace, &request.add) {
            CreditNeed::None | CreditNeed::Unknown(_) => Vec::new(),
            CreditNeed::Credit(holds) => holds,
        };
        for part in &holds {
            if self.lacks_account(&namespace, part).await {
                return Ok(Growth::nothing(CreditStep::Blocked(account_not_found(part.limit.key.clone()))));
            }
        }
        let (mut reserved_at, mut first) = (None, None);
        if holds.is_empty() {
            if self.creditless.has(&namespace, lease) {
                return Ok(Growth::nothing(CreditStep::Held));
            }
        } else {
            // A lease that was never allowed must not get a hold, not even for a moment.
            let Some(view) = self.allowed_lease(&namespace, request).await? else { return Ok(Growth::Expired) };
            if view.refuses(request.claim) {
                // The limits name why. No credit is touched for a claim that they refuse.
                return Ok(Growth::nothing(CreditStep::Held));
            }
            let expected = view.extensions.saturating_add(1);
            if number != view.extensions && number != expected {
                return Ok(blocked(format!("extension: found {number}, expected {expected}")));
            }
            if number == view.extensions {
                let state = self.credits.holds(namespace, lease, Vec::new()).await?;
                let has_ended = state == HoldState::Ended;
                return Ok(if has_ended { Growth::Expired } else { Growth::Decided(holds, view.reserved_at) });
            }
            reserved_at = view.reserved_at;
            first = reserved_at.filter(|_| !view.has_credit);
            // From now on completes settle its credit, and extensions look at its ends.
            self.creditless.remove(&namespace, lease);
        }
        let grow = GrowRequest { namespace, lease, number, holds: holds.clone(), first };
        let grown =
            step("credit", self.credits.grow(actor, vec![grow])).await.into_iter().next().ok_or_else(unanswered)??;
        Ok(match grown {
            GrowAnswer::Held => Growth::Told(CreditStep::Held, holds, reserved_at),
            GrowAnswer::Refused { key, why: CreditShortage::UnknownAccount } => {
                Growth::nothing(CreditStep::Blocked(account_not_found(key)))
            }
            GrowAnswer::Refused { key, why } => Growth::nothing(CreditStep::Short { key, why }),
            GrowAnswer::Ended => Growth::Expired,
            GrowAnswer::Differs => blocked(format!("extension: {number} was used with another body")),
            GrowAnswer::Blocked(refusal) => Growth::nothing(CreditStep::Blocked(refusal)),
        })
    }

    /// A lease that was allowed; `None` if it was never allowed or has been completed.
    async fn allowed_lease(
        &self,
        namespace: &NamespaceName,
        request: &ExtendRequest,
    ) -> Result<Option<LeaseView>, BackendError> {
        let view = self.limits.lease(namespace.clone(), request.lease).await?;
        // The limits judge whether a lease with reservations that ran out is alive.
        let view = view.filter(|view| matches!(view.state, LeaseState::Live | LeaseState::Expired));
        Ok(view.filter(|view| view.reserved_at.is_some()))
    }

    /// The first added limit, by key, that is unknown or paused as this process knows. Growth for it would be returned
    /// at once, with two entries in the history of its account.
    fn refusal_by_name(&self, request: &ExtendRequest) -> Option<Refusal> {
        let mut keys: Vec<&LimitKey> = request.add.iter().map(|part| &part.key).collect();
        keys.sort_unstable();
        let now = self.registry.0.host.now();
        let refusal = |key: &LimitKey| {
            let Some(limit) = self.known(&request.namespace, key) else {
                return Some(Refusal::UnknownLimitKey(key.clone()));
            };
            let retry_after_ms = limit.pause.as_ref()?.until.ms_since(now);
            (retry_after_ms > 0).then(|| Refusal::LimitPaused { key: key.clone(), retry_after_ms })
        };
        let unknown = keys.iter().find(|key| self.known(&request.namespace, key).is_none());
        unknown.map_or_else(|| keys.iter().find_map(|key| refusal(key)), |key| refusal(key))
    }

    /// Confirms the growth, moves the ends of the holds and reports usage.
    async fn renew(
        &self,
        actor: Option<Actor>,
        (request, holds, reserved_at): (&ExtendRequest, Vec<HoldPart>, Option<UnixMs>),
        by_limits: Extended,
    ) -> Result<ExtendAnswer, BackendError> {
        let (namespace, lease, number) = (request.namespace.clone(), request.lease, request.number);
        let reserved_at = match reserved_at {
            Some(reserved_at) => reserved_at,
            None => match self.allowed_lease(&namespace, request).await?.and_then(|view| view.reserved_at) {
                Some(reserved_at) => reserved_at,
                None => return Ok(ExtendAnswer::expired()),
            },
        };
        let of_credit = request.used.iter().filter(|used| !self.is_limit(&namespace, &used.key));
        let renew = RenewRequest {
            namespace: namespace.clone(),
            lease,
            number,
            holds,
            reserved_at,
            renew: request.renew,
            used: of_credit.cloned().collect(),
            timeouts: self.timeouts(&namespace),
        };
        let renewed = step("credit", self.credits.renew(actor, vec![renew]))
            .await
            .into_iter()
            .next()
            .ok_or_else(unanswered)??;
        Ok(match renewed {
            RenewAnswer::Alive { ends_at, ignored, above } => {
                self.merge_extended(request, by_limits, &Extended { ends_at, ignored, above })
            }
            RenewAnswer::Refused { key, why } => ExtendAnswer::Refused(shortage(key, why)),
            RenewAnswer::Ended => ExtendAnswer::expired(),
        })
    }

    fn timeouts(&self, namespace: &NamespaceName) -> Timeouts {
        let (registry, namespace) = (self.registry.clone(), namespace.clone());
        Timeouts::new(move |key| {
            let limit: Arc<_> = Registry::limit(&registry, &namespace, key)?;
            limit.definition.kind.terms().map(|terms| terms.timeout_seconds)
        })
    }

    /// Merges the answers of limits and credit. A key is ignored if neither has it.
    fn merge_extended(&self, request: &ExtendRequest, by_limits: Extended, by_credit: &Extended) -> ExtendAnswer {
        let is_ignored = |key: &&LimitKey| {
            let by_limits = self.is_credit(&request.namespace, key) || by_limits.ignored.contains(key);
            by_limits && (self.is_limit(&request.namespace, key) || by_credit.ignored.contains(key))
        };
        let is_above = |key: &&LimitKey| by_limits.above.contains(key) || by_credit.above.contains(key);
        let keys = || request.used.iter().map(|used| &used.key);
        let ends_at = [by_limits.ends_at, by_credit.ends_at].into_iter().flatten().min();
        let (ignored, above) =
            (keys().filter(is_ignored).cloned().collect(), keys().filter(is_above).cloned().collect());
        ExtendAnswer::Extended { ends_at, ignored, above }
    }
}

/// The answer of one part to an extension that was made.
struct Extended {
    ends_at: Option<UnixMs>,
    ignored: Vec<LimitKey>,
    above: Vec<LimitKey>,
}

impl Extended {
    /// The answer of a credit store that has no hold of the lease.
    fn ignoring(used: &[Amount]) -> Extended {
        let ignored = used.iter().map(|used| used.key.clone()).collect();
        Extended { ends_at: None, ignored, above: Vec::new() }
    }
}

/// Whether the limits refused a decided number because its body differs. The growth under that number is of the first body.
fn is_other_body(answer: &ExtendAnswer, is_decided: bool) -> bool {
    is_decided && matches!(answer, ExtendAnswer::Refused(Refusal::InvalidRequest { .. }))
}

fn is_malformed(request: &ExtendRequest) -> bool {
    let is_wrong = |amounts: &[Amount]| amounts.len() > REQUIREMENTS_MAX || super::complete::is_any_twice(amounts);
    let has_zero = request.add.iter().any(|part| part.amount == 0);
    let is_number_wrong = !(1..=EXTENSIONS_MAX).contains(&request.number);
    is_number_wrong || has_zero || is_wrong(&request.add) || is_wrong(&request.used)
}

fn blocked(message: String) -> Growth {
    Growth::nothing(CreditStep::Blocked(Refusal::InvalidRequest { message }))
}

fn unanswered() -> BackendError {
    BackendError::Failed("a step of an extension was not answered".into())
}
