//! Extensions on a Book: the command, its outcomes as answers, and the backend's part.

use earmark_core::{
    Command, CreditDenial, EXTENSIONS_MAX, Extend, ExtendOutcome, ExtendStep, Extension, InvalidExtend, LeaseClaim,
    LeaseId, LimitKey, LimitRef, NamespaceId, Outcome, Part, Principal,
};

use crate::answer::{NO_SUCH_REQUIREMENT, STALE, describe};
use crate::backend::{Amount, Answers, BackendError, OTHER_CALL, Refusal};
use crate::book_host::{BookBackend, BookHost, Inner};
use crate::book_request::{Answered, Applied, BookRequest, Decided, NamesLimits, by_key};
use crate::extend::{ExtendAnswer, ExtendRequest};
use crate::registry::PlacementError;
use crate::submitter::Direction;

/// An extension, or a step of it. Without a namespace, the lease does not exist; then a tick still checks the caller's
/// key.
#[derive(Clone)]
pub(crate) struct BookExtend {
    namespace: Option<NamespaceId>,
    lease: LeaseId,
    number: u32,
    /// The added amounts and the reported usage, by id where the id is known.
    parts: [Vec<Part>; 2],
    /// The added amounts, then the reported usage.
    amounts: Vec<Amount>,
    added: usize,
    renew: bool,
    step: ExtendStep,
    claim: LeaseClaim,
}

impl BookExtend {
    pub(crate) fn new<H: BookHost>(inner: &Inner<H>, request: ExtendRequest, step: ExtendStep) -> BookExtend {
        let ExtendRequest { namespace, lease, number, add, used, renew, claim } = request;
        let parts = [inner.parts(&namespace, &add), inner.parts(&namespace, &used)];
        let added = add.len();
        let amounts = add.into_iter().chain(used).collect();
        BookExtend { namespace: inner.namespace(&namespace), lease, number, parts, amounts, added, renew, step, claim }
    }

    fn has_ids(&self) -> bool {
        self.parts.iter().flatten().any(|part| matches!(part.limit, LimitRef::Id(_)))
    }

    fn with_keys(&self) -> BookExtend {
        let (add, used) = self.amounts.split_at(self.added.min(self.amounts.len()));
        BookExtend { parts: [by_key(add), by_key(used)], ..self.clone() }
    }
}

impl BookRequest for BookExtend {
    type Answer = Decided<ExtendAnswer, BookExtend>;
    type Error = BackendError;

    fn command(&self) -> Command<'_> {
        let BookExtend { lease, number, renew, step, claim, .. } = *self;
        let [add, used] = &self.parts;
        self.namespace.map_or(Command::Tick, |namespace| {
            Command::Extend(Extend { namespace, lease, number, add, used, renew, step, claim })
        })
    }

    fn answer(&self, _: &Applied<'_>, outcome: Outcome) -> Option<Answered<Self>> {
        match outcome {
            Outcome::Extend(ExtendOutcome::StaleLimit) if self.has_ids() => Some(Ok(Decided::Stale(self.with_keys()))),
            Outcome::Extend(outcome) => {
                let (add, used) = self.amounts.split_at(self.added.min(self.amounts.len()));
                Some(extended(self.number, (add, used), outcome).map(Decided::Answer))
            }
            Outcome::Ticked => Some(Ok(Decided::Answer(ExtendAnswer::expired()))),
            _ => None,
        }
    }
}

impl NamesLimits for BookExtend {
    fn names(&self) -> (Option<NamespaceId>, &[Amount]) {
        (self.namespace, &self.amounts)
    }
}

/// Translates the outcome of an extension.
fn extended(
    number: u32,
    (add, used): (&[Amount], &[Amount]),
    outcome: ExtendOutcome,
) -> Result<ExtendAnswer, BackendError> {
    let refuse = |place: usize, refusal: &dyn Fn(LimitKey) -> Refusal| match add.get(place) {
        Some(part) => Ok(ExtendAnswer::Refused(refusal(part.key.clone()))),
        None => Err(BackendError::Failed(NO_SUCH_REQUIREMENT.into())),
    };
    match outcome {
        ExtendOutcome::Invalid(invalid) => Ok(ExtendAnswer::invalid(describe_invalid(invalid))),
        ExtendOutcome::StaleLimit => Err(BackendError::Failed(STALE.into())),
        ExtendOutcome::LeaseExpired => Ok(ExtendAnswer::expired()),
        ExtendOutcome::OwnedByGateway => Ok(ExtendAnswer::Refused(Refusal::OwnedByGateway)),
        ExtendOutcome::OtherCall => Ok(ExtendAnswer::invalid(OTHER_CALL.into())),
        ExtendOutcome::NumberReused => Ok(ExtendAnswer::number_reused(number)),
        ExtendOutcome::NumberDiffers { expected } => Ok(ExtendAnswer::number_differs(number, expected)),
        ExtendOutcome::UnknownLimit { part } => refuse(part, &Refusal::UnknownLimitKey),
        ExtendOutcome::LimitDecreasing { part, retry_after_ms } => {
            refuse(part, &|key| Refusal::LimitDecreasing { key, retry_after_ms })
        }
        ExtendOutcome::LimitPaused { part, retry_after_ms } => {
            refuse(part, &|key| Refusal::LimitPaused { key, retry_after_ms })
        }
        ExtendOutcome::AccountNotFound { part, retry_after_ms } => {
            refuse(part, &|key| Refusal::AccountNotFound { key, retry_after_ms })
        }
        ExtendOutcome::LimitsExternal => Err(PlacementError::LimitsExternal.into()),
        ExtendOutcome::TooManyLimits { found } => Ok(ExtendAnswer::too_many_limits(found)),
        ExtendOutcome::QuotaExceeded { kind, retry_after_ms } => {
            Ok(ExtendAnswer::Refused(Refusal::QuotaExceeded { kind, retry_after_ms }))
        }
        ExtendOutcome::Denied(denial) => Ok(ExtendAnswer::Denied {
            retry_after_ms: denial.retry_after_ms,
            limited_by: denial.limited_by.iter().filter_map(|place| Some(add.get(*place)?.key.clone())).collect(),
            never: denial.never,
        }),
        ExtendOutcome::InsufficientCredit(CreditDenial { requirement, retry_after_ms, why }) => {
            refuse(requirement, &|key| Refusal::InsufficientCredit { key, retry_after_ms, why })
        }
        ExtendOutcome::Extended(Extension { ends_at, ignored, above }) => {
            let keys = |places: earmark_core::RequirementSet| {
                places.iter().filter_map(|place| Some(used.get(place)?.key.clone())).collect()
            };
            Ok(ExtendAnswer::Extended { ends_at, ignored: keys(ignored), above: keys(above) })
        }
    }
}

fn describe_invalid(invalid: InvalidExtend) -> String {
    match invalid {
        InvalidExtend::Number { found } => {
            format!("extension: found {found}, allowed are integers from 1 to {EXTENSIONS_MAX}")
        }
        InvalidExtend::Add(parts) => describe(parts, "add"),
        InvalidExtend::Used(parts) => describe(parts, "used"),
    }
}

impl<H: BookHost> BookBackend<H> {
    /// Performs one step of each extension. Answers are in request order.
    pub(crate) fn extend_step(
        &self,
        by: Principal,
        requests: Vec<(ExtendRequest, ExtendStep)>,
    ) -> Answers<'_, ExtendAnswer> {
        let resolve =
            |inner: &Inner<H>, (request, step): (ExtendRequest, ExtendStep)| BookExtend::new(inner, request, step);
        // A renewal gets the extra room of a complete: without it a running call loses its slots.
        let takes = requests.iter().any(|(request, _)| !request.add.is_empty());
        let direction = if takes { Direction::Takes } else { Direction::GivesBack };
        Box::pin(self.decide(by, requests, direction, |(request, _)| &request.namespace, resolve))
    }
}
