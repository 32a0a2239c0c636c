//! Answers to callers, with the same wording as the Book.

use earmark_admission::{
    Amount, CompleteAnswer, Refusal, ReserveAnswer, describe_ignored, describe_raised, utc, utc_from,
};
use earmark_core::{LeaseId, REQUIREMENTS_MAX, UnixMs};

use crate::schema::ClaimRefusal;
use crate::settle_chain::Settling;

/// Validates requirements or actuals. Returns the error message.
pub(crate) fn invalid_parts(parts: &[Amount], amount_min: u64, field: &str) -> Option<String> {
    if parts.is_empty() && amount_min > 0 {
        return Some(format!("{field}: found none, allowed are 1 to {REQUIREMENTS_MAX}"));
    }
    invalid_amounts(parts, amount_min, field)
}

/// Validates amounts that may be absent. Returns the error message.
pub(crate) fn invalid_amounts(parts: &[Amount], amount_min: u64, field: &str) -> Option<String> {
    if parts.len() > REQUIREMENTS_MAX {
        return Some(format!("{field}: found {}, allowed are up to {REQUIREMENTS_MAX}", parts.len()));
    }
    if let Some(part) = parts.iter().position(|part| part.amount < amount_min) {
        return Some(format!("{field}[{part}].amount: found 0, allowed are integers from 1 to {}", u64::MAX));
    }
    let is_twice = |index: &usize| {
        let key = parts.get(*index).map(|part| &part.key);
        parts.iter().take(*index).any(|part| Some(&part.key) == key)
    };
    (0..parts.len()).find(is_twice).map(|part| format!("{field}[{part}].key: this key is there twice"))
}

/// The refusal of an unknown lease whose id is too old or too far in the future.
pub(crate) fn age(lease: LeaseId, wall: UnixMs, retention_ms: u64, ahead_ms: u64) -> Option<String> {
    let made_at = lease.time();
    let oldest = wall.minus_ms(retention_ms);
    if made_at < oldest {
        return Some(format!(
            "lease_id: it was made at {}, and leases made before {} are refused; take a new one, and check the \
             caller's clock",
            utc_from(made_at, wall),
            utc_from(oldest, wall)
        ));
    }
    (made_at > wall.plus_ms(ahead_ms)).then(|| {
        format!(
            "lease_id: it was made at {}, and this server's clock says {}; allowed are {} s ahead of it; check \
             both clocks",
            utc_from(made_at, wall),
            utc(wall),
            ahead_ms / 1_000
        )
    })
}

pub(crate) fn other_requirements() -> ReserveAnswer {
    ReserveAnswer::Refused(Refusal::InvalidRequest {
        message: "lease_id: this lease was used for other requirements; take a new one".into(),
    })
}

pub(crate) fn claim_refused(refusal: ClaimRefusal) -> CompleteAnswer {
    match refusal {
        ClaimRefusal::OwnedByGateway => CompleteAnswer::owned_by_gateway(),
        ClaimRefusal::OtherCall => CompleteAnswer::other_call(),
    }
}

pub(crate) fn settled(settling: &Settling) -> CompleteAnswer {
    let overages = settling.overages();
    CompleteAnswer {
        reconciled: true,
        message: settled_message(settling),
        raised: settling.below_used.clone(),
        is_extended: settling.is_extended(),
        ignored: settling.ignored.clone(),
        overage_reserved: overages.reserved,
        overage_debt: overages.debt,
        overage_dropped: overages.dropped,
        overages: settling.limit_overages(),
        ..CompleteAnswer::default()
    }
}

fn settled_message(settling: &Settling) -> Option<String> {
    let notes = [describe_ignored(&settling.ignored), describe_raised(&settling.below_used)];
    let notes: Vec<String> = notes.into_iter().flatten().collect();
    (!notes.is_empty()).then(|| notes.join("; "))
}

pub(crate) fn held_nothing() -> CompleteAnswer {
    with_message("this lease held nothing")
}

pub(crate) fn marked() -> CompleteAnswer {
    with_message("this lease was not known; a reserve of it that arrives late will take nothing")
}

pub(crate) fn unknown_by_age() -> CompleteAnswer {
    with_message("this lease is not known, and is too old or too far in the future to be reserved")
}

fn with_message(message: &str) -> CompleteAnswer {
    CompleteAnswer { message: Some(message.into()), ..CompleteAnswer::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(parts: &[(&str, u64)]) -> Vec<Amount> {
        parts.iter().map(|(key, amount)| Amount { key: key.parse().unwrap(), amount: *amount }).collect()
    }

    #[test]
    fn what_is_wrong_with_a_request_is_named_by_its_field() {
        for (given, min, expected) in [
            (&[][..], 1, Some("requirements: found none")),
            (&[], 0, None),
            (&[("a", 0)], 0, None),
            (&[("a", 1), ("b", 0)], 1, Some("requirements[1].amount")),
            (&[("a", 1), ("b", 1), ("a", 2)], 1, Some("requirements[2].key")),
            (&[("a", 1), ("b", 1)], 1, None),
        ] {
            let message = invalid_parts(&parts(given), min, "requirements");
            match expected {
                Some(part) => assert!(message.unwrap().contains(part), "{given:?}"),
                None => assert_eq!(message, None, "{given:?}"),
            }
        }
        let many: Vec<_> = (0..33).map(|n| Amount { key: format!("k{n}").parse().unwrap(), amount: 1 }).collect();
        assert!(invalid_parts(&many, 1, "requirements").unwrap().contains("found 33"));
    }

    #[test]
    fn a_lease_is_refused_by_age_on_both_sides() {
        let wall = UnixMs::new(1_700_000_000_000);
        let age = |ms| age(LeaseId::from_parts(UnixMs::new(ms), 1), wall, 900_000, 60_000);
        for (ms, is_refused) in [
            (1_700_000_000_000, false),
            (1_700_000_060_000, false),
            (1_700_000_060_001, true),
            (1_699_999_100_000, false),
            (1_699_999_099_999, true),
        ] {
            assert_eq!(age(ms).is_some(), is_refused, "{ms}");
            let made = earmark_admission::utc_from(UnixMs::new(ms), wall);
            assert!(age(ms).is_none_or(|message| message.contains(&made)), "{:?}", age(ms));
        }
    }
}
