//! Translates outcomes of the Book into answers for callers.

use std::sync::Arc;

use earmark_core::{
    Book, CallMark, Charge, CompleteOutcome, CreditDenial, InvalidParts, KeyInfo, KeyOutcome, LimitKey, LimitOutcome,
    LimitStatus, NamespaceId, OverageHow, QuotaKind, REQUIREMENTS_MAX, RequirementSet, ReserveOutcome, Settlement,
    UnixMs,
};

use crate::applied::LimitOverage;
use crate::backend::{
    Amount, BackendError, CompleteAnswer, LimitChange, LimitError, Refusal, ReserveAnswer, describe_ignored,
    describe_raised,
};
use crate::callers::KeyError;
use crate::clock::{utc, utc_from};
use crate::quotas::describe_quota;
use crate::registry::PlacementError;

const LEASES_FULL: &str = "as many leases are remembered as may be";
pub(crate) const NO_SUCH_REQUIREMENT: &str = "a requirement was answered that nobody made";
pub(crate) const STALE: &str = "the id of a deleted limit was sent twice";

/// Translates the outcome of a reserve.
pub(crate) fn reserve(
    book: &Book,
    wall: UnixMs,
    (requirements, call): (&[Amount], Option<CallMark>),
    outcome: ReserveOutcome,
) -> Result<ReserveAnswer, BackendError> {
    let invalid = |message| Ok(ReserveAnswer::Refused(Refusal::InvalidRequest { message }));
    let key = |place: usize| requirements.get(place).map(|part| part.key.clone());
    let named = |place: usize, refusal: &dyn Fn(LimitKey) -> Refusal| match key(place) {
        Some(key) => Ok(ReserveAnswer::Refused(refusal(key))),
        None => Err(BackendError::Failed(NO_SUCH_REQUIREMENT.into())),
    };
    match outcome {
        ReserveOutcome::Created { reserved_at, would_deny } => {
            Ok(allowed(requirements, reserved_at, would_deny, call.map(|call| call.policy_revision)))
        }
        ReserveOutcome::Exists { reserved_at, would_deny, policy_revision } => {
            Ok(allowed(requirements, reserved_at, would_deny, policy_revision))
        }
        ReserveOutcome::ExistsDeniedByPolicy { policy_revision } => {
            Ok(ReserveAnswer::Refused(Refusal::DeniedByPolicy { policy_revision }))
        }
        ReserveOutcome::OwnedByGateway => Ok(ReserveAnswer::Refused(Refusal::OwnedByGateway)),
        ReserveOutcome::Denied(denial) | ReserveOutcome::ExistsDenied(denial) => Ok(ReserveAnswer::Denied {
            retry_after_ms: denial.retry_after_ms,
            limited_by: denial.limited_by.iter().filter_map(|place| key(*place)).collect(),
            never: denial.never,
        }),
        ReserveOutcome::InsufficientCredit(denial) | ReserveOutcome::ExistsInsufficientCredit(denial) => {
            let CreditDenial { requirement, retry_after_ms, why } = denial;
            named(requirement, &|key| Refusal::InsufficientCredit { key, retry_after_ms, why })
        }
        ReserveOutcome::LeaseExpired => Ok(ReserveAnswer::Refused(Refusal::LeaseExpired)),
        ReserveOutcome::ExistsWithOtherRequirements => {
            invalid("lease_id: this lease was used for other requirements; take a new one".into())
        }
        ReserveOutcome::LeaseTooOld { lease_time, forgotten_before } if wall < forgotten_before => invalid(format!(
            "lease_id: it was made at {}, and leases made before {} are forgotten; this server's clock says \
                 {}, so it was set back: set it right",
            utc_from(lease_time, wall),
            utc_from(forgotten_before, wall),
            utc(wall)
        )),
        ReserveOutcome::LeaseTooOld { lease_time, forgotten_before } => invalid(format!(
            "lease_id: it was made at {}, and leases made before {} are forgotten; take a new one, and check the \
             caller's clock",
            utc_from(lease_time, wall),
            utc_from(forgotten_before, wall)
        )),
        ReserveOutcome::LeaseInFuture { lease_time, wall } => invalid(format!(
            "lease_id: it was made at {}, and this server's clock says {}; allowed are {} s ahead of it; check \
             both clocks",
            utc_from(lease_time, wall),
            utc(wall),
            book.config().lease_ahead_ms / 1_000
        )),
        ReserveOutcome::Invalid(parts) => invalid(describe(parts, "requirements")),
        ReserveOutcome::UnknownLimit { requirement } => named(requirement, &Refusal::UnknownLimitKey),
        ReserveOutcome::LimitDecreasing { requirement, retry_after_ms } => {
            named(requirement, &|key| Refusal::LimitDecreasing { key, retry_after_ms })
        }
        ReserveOutcome::LimitPaused { requirement, retry_after_ms } => {
            named(requirement, &|key| Refusal::LimitPaused { key, retry_after_ms })
        }
        ReserveOutcome::AccountNotFound { requirement, retry_after_ms } => {
            named(requirement, &|key| Refusal::AccountNotFound { key, retry_after_ms })
        }
        ReserveOutcome::LimitsExternal => Err(PlacementError::LimitsExternal.into()),
        ReserveOutcome::QuotaExceeded { kind, retry_after_ms } => {
            Ok(ReserveAnswer::Refused(Refusal::QuotaExceeded { kind, retry_after_ms }))
        }
        ReserveOutcome::Overloaded => Err(BackendError::Overloaded(LEASES_FULL)),
        ReserveOutcome::StaleLimit { .. } => Err(BackendError::Failed(STALE.into())),
    }
}

fn allowed(
    requirements: &[Amount],
    reserved_at: UnixMs,
    would_deny: RequirementSet,
    policy_revision: Option<u64>,
) -> ReserveAnswer {
    let key = |place: usize| requirements.get(place).map(|part| part.key.clone());
    let mut would_deny: Vec<LimitKey> = would_deny.iter().filter_map(key).collect();
    would_deny.sort_unstable();
    ReserveAnswer::Allowed { reserved_at, would_deny, policy_revision }
}

/// Translates the outcome of a complete.
pub(crate) fn complete(
    (book, namespace): (&Book, Option<NamespaceId>),
    actuals: &[Amount],
    outcome: CompleteOutcome,
) -> Result<CompleteAnswer, BackendError> {
    let reconciled = outcome.is_reconciled();
    let say =
        |message: &str| Ok(CompleteAnswer { reconciled, message: Some(message.into()), ..CompleteAnswer::default() });
    match outcome {
        CompleteOutcome::Completed(settlement) => {
            let overages = namespace.map_or_else(Vec::new, |own| overages(book, own, &settlement));
            Ok(CompleteAnswer { overages, ..settled(actuals, &settlement) })
        }
        // Whether it was extended is forgotten; when in doubt, its credit is settled again.
        CompleteOutcome::Before => Ok(CompleteAnswer { reconciled, is_extended: true, ..CompleteAnswer::default() }),
        CompleteOutcome::OwnedByGateway => Ok(CompleteAnswer::owned_by_gateway()),
        CompleteOutcome::OtherCall => Ok(CompleteAnswer::other_call()),
        CompleteOutcome::HeldNothing => say("this lease held nothing"),
        CompleteOutcome::Marked => say("this lease was not known; a reserve of it that arrives late will take nothing"),
        CompleteOutcome::UnknownByAge => {
            say("this lease is not known, and is too old or too far in the future to be reserved")
        }
        CompleteOutcome::LeasesQuotaExceeded => Ok(CompleteAnswer {
            message: Some(describe_quota(QuotaKind::Leases)),
            exceeded: Some(QuotaKind::Leases),
            ..CompleteAnswer::default()
        }),
        CompleteOutcome::Overloaded => Err(BackendError::Overloaded(LEASES_FULL)),
        CompleteOutcome::StaleLimit { .. } => Err(BackendError::Failed(STALE.into())),
        CompleteOutcome::Invalid(parts) => Ok(CompleteAnswer {
            message: Some(describe(parts, "actuals")),
            is_invalid: true,
            ..CompleteAnswer::default()
        }),
    }
}

fn settled(actuals: &[Amount], settlement: &Settlement) -> CompleteAnswer {
    let sum = |how: OverageHow| {
        let taken = settlement.overages.iter().filter(|taken| taken.how == how);
        taken.fold(0_u64, |sum, taken| sum.saturating_add(taken.amount))
    };
    let charged = |part: fn(&Charge) -> u64| {
        settlement.charges.iter().fold(0_u64, |sum, charge| sum.saturating_add(part(charge)))
    };
    let ignored = settlement.ignored.iter().filter_map(|place| actuals.get(*place));
    let ignored: Vec<LimitKey> = ignored.map(|actual| actual.key.clone()).collect();
    let raised = settlement.raised.iter().filter_map(|place| actuals.get(*place));
    let raised: Vec<LimitKey> = raised.map(|actual| actual.key.clone()).collect();
    CompleteAnswer {
        reconciled: true,
        message: joined(describe_ignored(&ignored), describe_raised(&raised)),
        ignored,
        raised,
        is_invalid: false,
        owned_by_gateway: false,
        is_extended: settlement.is_extended,
        exceeded: None,
        overage_reserved: sum(OverageHow::Reserved),
        overage_debt: sum(OverageHow::Debt),
        overage_dropped: sum(OverageHow::Dropped),
        credit_paid: charged(|charge| charge.paid.saturating_sub(charge.debt)),
        credit_debt: charged(|charge| charge.debt),
        credit_uncollected: charged(|charge| charge.uncollected),
        overages: Vec::new(),
    }
}

/// Usage beyond the reservations by limit, ordered by key.
fn overages(book: &Book, own: NamespaceId, settlement: &Settlement) -> Vec<LimitOverage> {
    let of_limits = settlement.overages.iter().map(|taken| (taken.limit, taken.amount, taken.how == OverageHow::Debt));
    let of_credit = settlement.charges.iter().filter(|charge| charge.debt > 0 || charge.uncollected > 0);
    let of_credit =
        of_credit.map(|charge| (charge.limit, charge.debt.saturating_add(charge.uncollected), charge.debt > 0));
    let named = |(limit, amount, is_debt)| Some(LimitOverage { key: book.key_seen_from(own, limit)?, amount, is_debt });
    let mut overages: Vec<LimitOverage> = of_limits.chain(of_credit).filter_map(named).collect();
    overages.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    overages
}

/// Both messages, or the one that is there.
fn joined(first: Option<String>, second: Option<String>) -> Option<String> {
    match (first, second) {
        (Some(first), Some(second)) => Some(format!("{first}; {second}")),
        (first, second) => first.or(second),
    }
}

/// Translates the outcome of a put or a delete.
pub(crate) fn limit(outcome: LimitOutcome) -> Result<LimitChange, LimitError> {
    match outcome {
        LimitOutcome::Changed { revision, status, .. } => Ok(LimitChange { revision, status }),
        LimitOutcome::Invalid(error) => Err(LimitError::Invalid(error)),
        LimitOutcome::RevisionDiffers { revision } => Err(LimitError::RevisionDiffers { revision }),
        LimitOutcome::NotFound | LimitOutcome::UnknownNamespace => Err(LimitError::NotFound),
        LimitOutcome::KindDiffers => Err(LimitError::KindDiffers),
        LimitOutcome::TooMany => Err(LimitError::TooMany),
        LimitOutcome::QuotaExceeded(kind) => Err(LimitError::QuotaExceeded(kind)),
        LimitOutcome::VaultNotFound => Err(LimitError::VaultNotFound),
    }
}

/// Translates the outcome of a key command.
pub(crate) fn key(book: &Book, outcome: KeyOutcome) -> Result<Arc<KeyInfo>, KeyError> {
    match outcome {
        KeyOutcome::Exists(number) | KeyOutcome::Created(number) | KeyOutcome::Revoked(number) => {
            let lost = || BackendError::Failed("a key was answered that nobody made".into());
            Ok(book.key_info(number).cloned().ok_or_else(lost)?)
        }
        KeyOutcome::IdTaken => Err(BackendError::Failed("another key has this id; make it again".into()).into()),
        KeyOutcome::NotTheFirst => Err(KeyError::NotTheFirst),
        KeyOutcome::NotAnAdmin => Err(KeyError::NotAnAdmin),
        KeyOutcome::ClientIsKey => Err(KeyError::ClientIsKey),
        KeyOutcome::InvalidExpiry => Err(KeyError::InvalidExpiry),
        KeyOutcome::QuotaExceeded(kind) => Err(KeyError::QuotaExceeded(kind)),
        KeyOutcome::TooMany => Err(KeyError::TooMany),
        KeyOutcome::TooManyNamespaces => Err(KeyError::TooManyNamespaces),
        KeyOutcome::NotFound => Err(KeyError::NotFound),
        KeyOutcome::LastAdmin => Err(KeyError::LastAdmin),
    }
}

/// Whether a limit is deleted or being deleted.
pub(crate) fn is_deleting(status: LimitStatus) -> bool {
    matches!(status, LimitStatus::Deleted | LimitStatus::Decreasing { to: 0 })
}

/// The answer to a complete in a namespace that does not exist.
pub(crate) fn complete_in_unknown_namespace() -> CompleteAnswer {
    let message = Some(describe(InvalidParts::UnknownNamespace, "actuals"));
    CompleteAnswer { message, ..CompleteAnswer::default() }
}

/// The answer to a reserve in a namespace that does not exist.
pub(crate) fn unknown_namespace(requirements: &[Amount]) -> ReserveAnswer {
    let first = requirements.iter().map(|part| &part.key).min_by_key(|key| (key.foreign(), LimitKey::clone(key)));
    ReserveAnswer::Refused(match first {
        Some(key) => Refusal::UnknownLimitKey(LimitKey::clone(key)),
        None => Refusal::InvalidRequest { message: describe(InvalidParts::Empty, "requirements") },
    })
}

pub(crate) fn describe(parts: InvalidParts, field: &str) -> String {
    match parts {
        InvalidParts::UnknownNamespace => "namespace: no namespace has this name".into(),
        InvalidParts::Empty => format!("{field}: found none, allowed are 1 to {REQUIREMENTS_MAX}"),
        InvalidParts::TooMany { found } => {
            format!("{field}: found {found}, allowed are up to {REQUIREMENTS_MAX}")
        }
        InvalidParts::AmountZero { part } => {
            format!("{field}[{part}].amount: found 0, allowed are integers from 1 to {}", u64::MAX)
        }
        InvalidParts::Duplicate { part } => format!("{field}[{part}].key: this key is there twice"),
    }
}
