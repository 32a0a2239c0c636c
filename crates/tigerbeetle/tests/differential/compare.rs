//! Compares an answer of the Book with one of TigerBeetle.

use earmark_admission::{CompleteAnswer, EnforcedStatus, ExtendAnswer, LeaseView, Refusal, ReserveAnswer};
use earmark_core::{LeaseState, LimitStatus, UnixMs, Usage};

/// The common result, or a description of the difference.
pub type Compared<T> = Result<T, String>;

fn differ<A: std::fmt::Debug, B: std::fmt::Debug>(book: &A, ledger: &B) -> String {
    format!("the Book: {book:?}\nTigerBeetle: {ledger:?}")
}

/// Maximum difference between the two clocks read at the same moment.
const CLOCKS_MS: u64 = 2_000;

/// `took_ms`: maximum time between the two requests.
fn is_near(book: UnixMs, ledger: UnixMs, took_ms: u64) -> bool {
    book.get().abs_diff(ledger.get()) <= CLOCKS_MS + took_ms
}

/// `is_first`: a new lease, whose denial names the limit in the way.
pub fn reserve(book: &ReserveAnswer, ledger: &ReserveAnswer, is_first: bool, took_ms: u64) -> Compared<&'static str> {
    match (book, ledger) {
        (ReserveAnswer::Allowed { reserved_at: one, .. }, ReserveAnswer::Allowed { reserved_at: other, .. })
            if is_near(*one, *other, took_ms) =>
        {
            Ok("allowed")
        }
        (
            ReserveAnswer::Denied { limited_by, never, .. },
            ReserveAnswer::Denied { limited_by: by, never: is_never, retry_after_ms },
        ) => {
            let is_named = !by.is_empty() && by.iter().all(|key| limited_by.contains(key));
            let has_hint = if *is_never { *retry_after_ms == 60_000 } else { *retry_after_ms > 0 };
            match (is_first, is_named && never == is_never && has_hint) {
                (true, false) => Err(differ(book, ledger)),
                (true, true) if *never => Ok("never"),
                (true, true) | (false, _) => Ok("denied"),
            }
        }
        (ReserveAnswer::Refused(one), ReserveAnswer::Refused(other)) => match (one, other) {
            (Refusal::InvalidRequest { .. }, Refusal::InvalidRequest { .. }) => Ok("invalid"),
            (Refusal::UnknownLimitKey(one), Refusal::UnknownLimitKey(other)) if one == other => Ok("unknown key"),
            (Refusal::LimitDecreasing { key: one, .. }, Refusal::LimitDecreasing { key: other, .. })
                if one == other =>
            {
                Ok("decreasing")
            }
            (Refusal::LeaseExpired, Refusal::LeaseExpired) => Ok("expired"),
            (one, other) if is_same_shortage(one, other) => Ok("short of credit"),
            _ => Err(differ(book, ledger)),
        },
        _ => Err(differ(book, ledger)),
    }
}

/// Hints are not compared.
fn is_same_shortage(book: &Refusal, ledger: &Refusal) -> bool {
    match (book, ledger) {
        (
            Refusal::InsufficientCredit { key: one, why, .. },
            Refusal::InsufficientCredit { key: other, why: also, .. },
        ) => one == other && why == also,
        _ => false,
    }
}

/// `is_first`: a new number, whose denial names the limits in the way.
pub fn extend(book: &ExtendAnswer, ledger: &ExtendAnswer, is_first: bool, took_ms: u64) -> Compared<&'static str> {
    match (book, ledger) {
        (
            ExtendAnswer::Extended { ends_at: one, ignored, above },
            ExtendAnswer::Extended { ends_at: other, ignored: also_ignored, above: also_above },
        ) => {
            let is_near = match (one, other) {
                (Some(one), Some(other)) => is_near(*one, *other, took_ms),
                (one, other) => one == other,
            };
            let is_same = is_near && ignored == also_ignored && above == also_above;
            if is_same { Ok("extended") } else { Err(differ(book, ledger)) }
        }
        (
            ExtendAnswer::Denied { limited_by, never, .. },
            ExtendAnswer::Denied { limited_by: by, never: is_never, retry_after_ms },
        ) => {
            let is_named = !by.is_empty() && by.iter().all(|key| limited_by.contains(key));
            let has_hint = !is_never || *retry_after_ms == 60_000;
            let is_same = is_named && never == is_never && has_hint;
            if is_same || !is_first { Ok("extension denied") } else { Err(differ(book, ledger)) }
        }
        (ExtendAnswer::Refused(Refusal::LeaseExpired), ExtendAnswer::Refused(Refusal::LeaseExpired)) => {
            Ok("extension of an ended lease")
        }
        (ExtendAnswer::Refused(one), ExtendAnswer::Refused(other)) => match (one, other) {
            (Refusal::InvalidRequest { .. }, Refusal::InvalidRequest { .. }) if one == other => {
                Ok("extension with another number or body")
            }
            (Refusal::UnknownLimitKey(one), Refusal::UnknownLimitKey(other)) if one == other => {
                Ok("extension by an unknown key")
            }
            (Refusal::LimitDecreasing { key: one, .. }, Refusal::LimitDecreasing { key: other, .. })
                if one == other =>
            {
                Ok("extension by a decreasing limit")
            }
            (one, other) if is_same_shortage(one, other) => Ok("extension short of credit"),
            _ => Err(differ(book, ledger)),
        },
        _ => Err(differ(book, ledger)),
    }
}

/// Messages about a lease that held nothing depend on the cache; for other leases they are equal.
pub fn complete(book: &CompleteAnswer, ledger: &CompleteAnswer) -> Compared<()> {
    // The Book forgets whether a lease that ended was extended.
    let told = |answer: &CompleteAnswer| {
        let mut told = CompleteAnswer { is_extended: false, ..answer.clone() };
        // A deleted limit drops usage. The Book forgets its name with its last lease.
        if answer.overage_dropped > 0 {
            told.overages.clear();
        }
        told
    };
    let same = if book.reconciled {
        told(book) == told(ledger)
    } else {
        book.is_invalid == ledger.is_invalid && !ledger.reconciled
    };
    if same { Ok(()) } else { Err(differ(book, ledger)) }
}

pub fn put(book: LimitStatus, ledger: EnforcedStatus) -> Compared<&'static str> {
    match (book, ledger) {
        (LimitStatus::Active, EnforcedStatus::InForce) => Ok("put, active"),
        (LimitStatus::Decreasing { to: 1.. }, EnforcedStatus::Decreasing) => Ok("put, decreasing"),
        (LimitStatus::Decreasing { to: 0 }, EnforcedStatus::Decreasing) => Ok("deleting"),
        (LimitStatus::Deleted, EnforcedStatus::Absent) => Ok("deleted"),
        _ => Err(differ(&book, &ledger)),
    }
}

pub fn usage(book: Option<Usage>, ledger: Option<Usage>) -> Compared<()> {
    if book == ledger { Ok(()) } else { Err(differ(&book, &ledger)) }
}

/// The reserved amount and the debt of a derived limit. The Book shows the capacity of its last decision, TigerBeetle that of
/// its next one.
pub fn used(book: Option<Usage>, ledger: Option<Usage>) -> Compared<()> {
    let used = |usage: Option<Usage>| usage.map(|usage| (usage.reserved, usage.debt));
    if used(book) == used(ledger) { Ok(()) } else { Err(differ(&book, &ledger)) }
}

pub fn lease(book: Option<&LeaseView>, ledger: Option<&LeaseView>, took_ms: u64) -> Compared<()> {
    let same = match (book, ledger) {
        (None, None) => true,
        (Some(book), Some(ledger)) => {
            let is_near = match (book.reserved_at, ledger.reserved_at) {
                (Some(one), Some(other)) => is_near(one, other, took_ms),
                (one, other) => one == other,
            };
            let is_same = book.state == ledger.state && book.requirements == ledger.requirements;
            // The Book forgets the extensions of a lease that has ended.
            let is_live = book.state == LeaseState::Live;
            let extensions = |view: &LeaseView| (view.extensions, view.used.clone(), view.ends_at.is_some());
            is_near && is_same && (!is_live || extensions(book) == extensions(ledger))
        }
        (None, Some(_)) | (Some(_), None) => false,
    };
    if same { Ok(()) } else { Err(differ(&book, &ledger)) }
}
