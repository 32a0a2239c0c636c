//! Counts the outcomes of a run. An outcome that never occurs is untested.

use std::collections::BTreeMap;
use std::fmt;

use earmark_core::{
    Charge, CompleteOutcome, ConfigureOutcome, CreditShortage, ExtendOutcome, InvalidOperation, InvalidParts,
    InvalidWrite, LimitOutcome, LimitStatus, NamespaceOutcome, Outcome, OverageHow, PauseOutcome, PolicyOutcome,
    QuotasOutcome, ReserveOutcome, TemplateOutcome, WriteError, WriteOutcome,
};

/// Every kind of outcome that a script can cause.
pub const ALL: &[&str] = &[
    "namespace opened",
    "namespace exists",
    "limit invalid",
    "limit in unknown namespace",
    "limit revision differs",
    "limit not found",
    "limit kind differs",
    "limit beyond its quota",
    "limit changed, active",
    "limit changed, decreasing",
    "limit changed, deleted",
    "reserve in unknown namespace",
    "reserve empty",
    "reserve of too many",
    "reserve of 0",
    "reserve of one limit twice",
    "reserve exists with other requirements",
    "reserve exists",
    "reserve exists, for a call",
    "reserve of a gateway's lease",
    "complete of a gateway's lease",
    "complete of another call",
    "extend of a gateway's lease",
    "extend of another call",
    "reserve exists, a shadow limit would deny",
    "reserve exists, denied",
    "reserve, lease expired",
    "reserve, lease too old",
    "reserve, lease in future",
    "reserve, unknown limit",
    "reserve, limit decreasing",
    "reserve, limit paused",
    "pause too long",
    "pause with too long a reason",
    "pause of unknown limit",
    "paused",
    "resumed",
    "reserve, overloaded",
    "reserve beyond a quota",
    "reserve denied by one",
    "reserve denied by several",
    "reserve denied for ever",
    "reserve, account unknown",
    "reserve, account frozen",
    "reserve, account closed",
    "reserve, not enough credit",
    "reserve exists, without credit",
    "reserve created",
    "reserve created, a shadow limit would deny",
    "complete in unknown namespace",
    "complete of too many",
    "complete of one limit twice",
    "complete before",
    "complete held nothing",
    "complete unknown by age",
    "complete overloaded",
    "complete beyond a quota",
    "complete marked",
    "completed",
    "completed, something ignored",
    "completed, overage reserved",
    "completed, overage is debt",
    "completed, overage dropped",
    "completed, credit returned",
    "completed, credit paid",
    "completed, credit is debt",
    "completed, credit uncollected",
    "committed",
    "committed before",
    "INVALID",
    "INVALID operation",
    "INVALID amount",
    "VAULT_NOT_FOUND",
    "SEQUENCE_GAP",
    "ALREADY_COMMITTED",
    "SEQUENCE_REUSED",
    "TOO_MANY_CLIENTS",
    "KEY_REUSED",
    "TOO_MANY_KEYS",
    "QUOTA_EXCEEDED",
    "quotas set",
    "quotas too high",
    "policy revision differs",
    "policy beyond its quota",
    "policy changed",
    "WRONG_SCOPE",
    "CONDITION_FAILED",
    "ACCOUNT_NOT_FOUND",
    "ACCOUNT_CLOSED",
    "ACCOUNT_FROZEN",
    "CONFLICT",
    "INSUFFICIENT_CREDIT",
    "extend malformed",
    "extend of a stale limit",
    "extend of an expired lease",
    "extend with another body",
    "extend with another number",
    "extend of an unknown limit",
    "extend of a decreasing limit",
    "extend of a paused limit",
    "extend of an unknown account",
    "extend of limits elsewhere",
    "extend to too many limits",
    "extend denied",
    "extend denied credit",
    "extended",
    "completed, reported usage counted",
    "kept elsewhere",
    "template in unknown namespace",
    "template differs in names only",
    "template revision differs",
    "template not found",
    "template kind differs",
    "template beyond its quota",
    "template changed",
    "configured",
    "configured, not allowed",
    "ticked",
];

#[derive(Default)]
pub struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    pub fn count(&mut self, outcome: &Outcome) {
        self.add(name(outcome));
        if let Outcome::Complete(CompleteOutcome::Completed(settlement)) = outcome {
            if !settlement.ignored.is_empty() {
                self.add("completed, something ignored");
            }
            if !settlement.raised.is_empty() {
                self.add("completed, reported usage counted");
            }
            for overage in &settlement.overages {
                self.add(match overage.how {
                    OverageHow::Reserved => "completed, overage reserved",
                    OverageHow::Debt => "completed, overage is debt",
                    OverageHow::Dropped => "completed, overage dropped",
                });
            }
            settlement.charges.iter().for_each(|charge| self.add(charged(charge)));
        }
    }

    fn add(&mut self, name: &'static str) {
        *self.0.entry(name).or_default() += 1;
    }

    /// Outcomes that never occurred.
    pub fn missing(&self) -> Vec<&'static str> {
        ALL.iter().copied().filter(|name| !self.0.contains_key(name)).collect()
    }

    /// Number of outcomes counted.
    pub fn total(&self) -> u64 {
        self.0.iter().filter(|(name, _)| !name.starts_with("completed, ")).map(|(_, count)| count).sum()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in &self.0 {
            writeln!(f, "{count:>12}  {name}")?;
        }
        Ok(())
    }
}

fn name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Namespace(NamespaceOutcome::Opened(_)) => "namespace opened",
        Outcome::Namespace(NamespaceOutcome::Exists(_)) => "namespace exists",
        Outcome::Namespace(NamespaceOutcome::TooMany) => "too many namespaces",
        Outcome::Limit(outcome) => limit(outcome),
        Outcome::Pause(outcome) => pause(*outcome),
        Outcome::Reserve(outcome) => reserve(outcome),
        Outcome::Extend(outcome) => extend(outcome),
        Outcome::Complete(outcome) => complete(outcome),
        Outcome::Write(outcome) => write(outcome),
        Outcome::ExternalSet => "kept elsewhere",
        Outcome::Configure(ConfigureOutcome::Configured) => "configured",
        Outcome::Configure(ConfigureOutcome::Invalid(_)) => "configured, not allowed",
        Outcome::Key(_) => "key",
        Outcome::Template(outcome) => template(outcome),
        Outcome::Quotas(QuotasOutcome::Set) => "quotas set",
        Outcome::Quotas(QuotasOutcome::TooHigh(_)) => "quotas too high",
        Outcome::Quotas(QuotasOutcome::TooManyNamespaces) => "quotas of too many namespaces",
        Outcome::Policy(PolicyOutcome::TooLarge) => "policy too large",
        Outcome::Policy(PolicyOutcome::RevisionDiffers { .. }) => "policy revision differs",
        Outcome::Policy(PolicyOutcome::QuotaExceeded(_)) => "policy beyond its quota",
        Outcome::Policy(PolicyOutcome::TooManyNamespaces) => "policy of too many namespaces",
        Outcome::Policy(PolicyOutcome::Changed { .. }) => "policy changed",
        Outcome::Unauthenticated => "unauthenticated",
        Outcome::Ticked => "ticked",
    }
}

fn extend(outcome: &ExtendOutcome) -> &'static str {
    match outcome {
        ExtendOutcome::Invalid(_) => "extend malformed",
        ExtendOutcome::StaleLimit => "extend of a stale limit",
        ExtendOutcome::LeaseExpired => "extend of an expired lease",
        ExtendOutcome::OwnedByGateway => "extend of a gateway's lease",
        ExtendOutcome::OtherCall => "extend of another call",
        ExtendOutcome::NumberReused => "extend with another body",
        ExtendOutcome::NumberDiffers { .. } => "extend with another number",
        ExtendOutcome::UnknownLimit { .. } => "extend of an unknown limit",
        ExtendOutcome::LimitDecreasing { .. } => "extend of a decreasing limit",
        ExtendOutcome::LimitPaused { .. } => "extend of a paused limit",
        ExtendOutcome::AccountNotFound { .. } => "extend of an unknown account",
        ExtendOutcome::LimitsExternal => "extend of limits elsewhere",
        ExtendOutcome::TooManyLimits { .. } => "extend to too many limits",
        ExtendOutcome::QuotaExceeded { .. } => "extend beyond a quota",
        ExtendOutcome::Denied(_) => "extend denied",
        ExtendOutcome::InsufficientCredit(_) => "extend denied credit",
        ExtendOutcome::Extended(_) => "extended",
    }
}

fn template(outcome: &TemplateOutcome) -> &'static str {
    match outcome {
        TemplateOutcome::UnknownNamespace => "template in unknown namespace",
        TemplateOutcome::DiffersInNamesOnly { .. } => "template differs in names only",
        TemplateOutcome::RevisionDiffers { .. } => "template revision differs",
        TemplateOutcome::NotFound => "template not found",
        TemplateOutcome::KindDiffers => "template kind differs",
        TemplateOutcome::VaultNotFound => "template on unknown vault",
        TemplateOutcome::QuotaExceeded(_) => "template beyond its quota",
        TemplateOutcome::Changed { .. } => "template changed",
    }
}

fn limit(outcome: &LimitOutcome) -> &'static str {
    match outcome {
        LimitOutcome::Invalid(_) => "limit invalid",
        LimitOutcome::UnknownNamespace => "limit in unknown namespace",
        LimitOutcome::RevisionDiffers { .. } => "limit revision differs",
        LimitOutcome::NotFound => "limit not found",
        LimitOutcome::KindDiffers => "limit kind differs",
        LimitOutcome::TooMany => "too many limits",
        LimitOutcome::QuotaExceeded(_) => "limit beyond its quota",
        LimitOutcome::VaultNotFound => "limit on unknown vault",
        LimitOutcome::Changed { status: LimitStatus::Active, .. } => "limit changed, active",
        LimitOutcome::Changed { status: LimitStatus::Decreasing { .. }, .. } => "limit changed, decreasing",
        LimitOutcome::Changed { status: LimitStatus::Deleted, .. } => "limit changed, deleted",
    }
}

fn pause(outcome: PauseOutcome) -> &'static str {
    match outcome {
        PauseOutcome::TooLong { .. } => "pause too long",
        PauseOutcome::ReasonTooLong { .. } => "pause with too long a reason",
        PauseOutcome::NotFound => "pause of unknown limit",
        PauseOutcome::TooManyInNamespace => "too many pauses in a namespace",
        PauseOutcome::TooMany => "too many pauses",
        PauseOutcome::QuotaExceeded(_) => "pause beyond a quota",
        PauseOutcome::Paused { .. } => "paused",
        PauseOutcome::Resumed => "resumed",
    }
}

fn reserve(outcome: &ReserveOutcome) -> &'static str {
    match outcome {
        ReserveOutcome::Invalid(InvalidParts::UnknownNamespace) => "reserve in unknown namespace",
        ReserveOutcome::Invalid(InvalidParts::Empty) => "reserve empty",
        ReserveOutcome::Invalid(InvalidParts::TooMany { .. }) => "reserve of too many",
        ReserveOutcome::Invalid(InvalidParts::AmountZero { .. }) => "reserve of 0",
        ReserveOutcome::Invalid(InvalidParts::Duplicate { .. }) => "reserve of one limit twice",
        ReserveOutcome::StaleLimit { .. } => "reserve of a stale id",
        ReserveOutcome::OwnedByGateway => "reserve of a gateway's lease",
        ReserveOutcome::ExistsWithOtherRequirements => "reserve exists with other requirements",
        ReserveOutcome::Exists { would_deny, .. } if !would_deny.is_empty() => {
            "reserve exists, a shadow limit would deny"
        }
        ReserveOutcome::Exists { policy_revision: Some(_), .. } => "reserve exists, for a call",
        ReserveOutcome::Exists { .. } => "reserve exists",
        ReserveOutcome::ExistsDeniedByPolicy { .. } => "reserve exists, denied by another policy",
        ReserveOutcome::ExistsDenied(_) => "reserve exists, denied",
        ReserveOutcome::LeaseExpired => "reserve, lease expired",
        ReserveOutcome::LeaseTooOld { .. } => "reserve, lease too old",
        ReserveOutcome::LeaseInFuture { .. } => "reserve, lease in future",
        ReserveOutcome::UnknownLimit { .. } => "reserve, unknown limit",
        ReserveOutcome::LimitDecreasing { .. } => "reserve, limit decreasing",
        ReserveOutcome::LimitPaused { .. } => "reserve, limit paused",
        ReserveOutcome::AccountNotFound { .. } => "reserve, account unknown",
        ReserveOutcome::LimitsExternal => "reserve, limits elsewhere",
        ReserveOutcome::Overloaded => "reserve, overloaded",
        ReserveOutcome::QuotaExceeded { .. } => "reserve beyond a quota",
        ReserveOutcome::Denied(denial) if denial.never => "reserve denied for ever",
        ReserveOutcome::Denied(denial) if denial.limited_by.len() == 1 => "reserve denied by one",
        ReserveOutcome::Denied(_) => "reserve denied by several",
        ReserveOutcome::InsufficientCredit(denial) => match denial.why {
            CreditShortage::UnknownAccount => unreachable!("the Book answers AccountNotFound"),
            CreditShortage::Frozen => "reserve, account frozen",
            CreditShortage::Closed => "reserve, account closed",
            CreditShortage::NotEnough => "reserve, not enough credit",
        },
        ReserveOutcome::ExistsInsufficientCredit(_) => "reserve exists, without credit",
        ReserveOutcome::Created { would_deny, .. } if !would_deny.is_empty() => {
            "reserve created, a shadow limit would deny"
        }
        ReserveOutcome::Created { .. } => "reserve created",
    }
}

fn complete(outcome: &CompleteOutcome) -> &'static str {
    match outcome {
        CompleteOutcome::Invalid(InvalidParts::UnknownNamespace) => "complete in unknown namespace",
        CompleteOutcome::Invalid(InvalidParts::Empty) => "complete empty",
        CompleteOutcome::Invalid(InvalidParts::TooMany { .. }) => "complete of too many",
        CompleteOutcome::Invalid(InvalidParts::AmountZero { .. }) => "complete of 0",
        CompleteOutcome::Invalid(InvalidParts::Duplicate { .. }) => "complete of one limit twice",
        CompleteOutcome::StaleLimit { .. } => "complete of a stale id",
        CompleteOutcome::OwnedByGateway => "complete of a gateway's lease",
        CompleteOutcome::OtherCall => "complete of another call",
        CompleteOutcome::Before => "complete before",
        CompleteOutcome::HeldNothing => "complete held nothing",
        CompleteOutcome::UnknownByAge => "complete unknown by age",
        CompleteOutcome::Overloaded => "complete overloaded",
        CompleteOutcome::LeasesQuotaExceeded => "complete beyond a quota",
        CompleteOutcome::Marked => "complete marked",
        CompleteOutcome::Completed(_) => "completed",
    }
}

fn charged(charge: &Charge) -> &'static str {
    match charge {
        Charge { cost: 0, .. } => "completed, credit returned",
        Charge { debt: 1.., .. } => "completed, credit is debt",
        Charge { uncollected: 1.., .. } => "completed, credit uncollected",
        Charge { .. } => "completed, credit paid",
    }
}

fn write(outcome: &WriteOutcome) -> &'static str {
    match outcome {
        WriteOutcome::Committed(_) => "committed",
        WriteOutcome::Exists(_) => "committed before",
        WriteOutcome::Refused(WriteError::Invalid(InvalidWrite::Operation { why, .. })) => match why {
            InvalidOperation::AmountZero | InvalidOperation::OutOfRange => "INVALID amount",
            _ => "INVALID operation",
        },
        WriteOutcome::Refused(error) => error.code(),
    }
}
