//! So many requests a second for each caller, by Earmark's own engine: a small Book with one rolling limit for each.

use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use earmark_core::{
    Book, Command, Config, Definition, Kind, LeaseId, LimitId, LimitKey, LimitOutcome, LimitRef, NamespaceId,
    Outcome, Overage, Part, PutLimit, Reserve, ReserveOutcome, UnixMs,
};

use crate::caller::AuthError;

/// So many callers are told apart before all begin anew: the Book keeps a limit for ever.
const CALLERS_MAX: usize = 50_000;
/// Nobody comes back with a lease of this Book, so that none is remembered for longer than it must be.
const CONFIG_RETENTION_MS: u64 = 1;

/// Counts the requests of every caller.
pub(super) struct RequestRate {
    requests_per_second: u64,
    started: (Instant, u64),
    desk: Mutex<Desk>,
}

struct Desk {
    book: Book,
    leases: u128,
    callers: usize,
}

impl Desk {
    fn new() -> Desk {
        let config = Config { retention_ms: CONFIG_RETENTION_MS, ..Config::default() };
        Desk { book: Book::new(config, 0), leases: 0, callers: 0 }
    }
}

impl RequestRate {
    pub(super) fn new(requests_per_second: u64) -> RequestRate {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall_ms = u64::try_from(wall.as_millis()).unwrap_or(0);
        RequestRate { requests_per_second, started: (Instant::now(), wall_ms), desk: Mutex::new(Desk::new()) }
    }

    /// QueueCost so many requests of a caller, if there are as many left in this second.
    pub(super) fn take(&self, key: &LimitKey, count: u64) -> Result<(), AuthError> {
        let since = u64::try_from(self.started.0.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.take_at(UnixMs::new(self.started.1.saturating_add(since)), key, count)
    }

    /// QueueCost what a request that was counted as one is beyond that.
    pub(super) fn take_more(&self, key: &LimitKey, more: u64) -> Result<(), AuthError> {
        match more.min(self.capacity().saturating_sub(1)) {
            0 => Ok(()),
            more => self.take(key, more),
        }
    }

    fn take_at(&self, now: UnixMs, key: &LimitKey, count: u64) -> Result<(), AuthError> {
        let mut desk = self.desk.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = match desk.book.resolve(NamespaceId::DEFAULT, key) {
            Some(limit) => limit,
            None => match self.begin(&mut desk, now, key.clone()) {
                Some(limit) => limit,
                None => return Ok(()),
            },
        };
        desk.leases = desk.leases.wrapping_add(1);
        let reserve = Reserve {
            namespace: NamespaceId::DEFAULT,
            lease: LeaseId::from_parts(now, desk.leases),
            // A batch that is larger than a second allows takes all of one.
            requirements: &[Part { limit: LimitRef::Id(limit), amount: count.clamp(1, self.capacity()) }],
        };
        match desk.book.apply(now, Command::Reserve(reserve)) {
            Outcome::Reserve(ReserveOutcome::Denied(denial)) => {
                Err(AuthError::RateLimited { retry_after_ms: denial.retry_after_ms })
            }
            _ => Ok(()),
        }
    }

    fn capacity(&self) -> u64 {
        self.requests_per_second.max(1)
    }

    fn begin(&self, desk: &mut Desk, now: UnixMs, key: LimitKey) -> Option<LimitId> {
        if desk.callers >= CALLERS_MAX {
            *desk = Desk::new();
        }
        desk.callers = desk.callers.saturating_add(1);
        let definition = Definition {
            key,
            kind: Kind::Rolling { window_seconds: 1 },
            capacity: self.capacity(),
            unit: String::new(),
            description: String::new(),
            overage: Overage::Deny,
        };
        let put =
            PutLimit { namespace: NamespaceId::DEFAULT, definition: &definition, expected_revision: None };
        match desk.book.apply(now, Command::PutLimit(put)) {
            Outcome::Limit(LimitOutcome::Changed { limit, .. }) => Some(limit),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: UnixMs = UnixMs::new(1_700_000_000_000);

    #[test]
    fn a_noisy_caller_is_told_when_to_come_back_and_takes_nothing_from_the_others() {
        let fair = RequestRate::new(3);
        let (noisy, quiet) = (LimitKey::new("key:1").unwrap(), LimitKey::new("team:user:quiet").unwrap());
        for _ in 0..3 {
            assert_eq!(fair.take_at(START, &noisy, 1), Ok(()));
        }
        let Err(AuthError::RateLimited { retry_after_ms }) = fair.take_at(START, &noisy, 1) else {
            panic!("a fourth one was let in")
        };
        assert!((1..=1_000).contains(&retry_after_ms), "{retry_after_ms}");
        assert_eq!(fair.take_at(START, &quiet, 1), Ok(()));
        assert_eq!(fair.take_at(START.plus_ms(1_000), &noisy, 1), Ok(()));
        assert!(fair.take_at(START.plus_ms(1_000), &noisy, 256).is_err());
        assert_eq!(fair.take_at(START.plus_ms(2_000), &noisy, 256), Ok(()));
        assert!(fair.take_at(START.plus_ms(2_000), &noisy, 1).is_err());
    }

    #[test]
    fn what_was_counted_is_soon_forgotten() {
        let fair = RequestRate::new(u64::MAX);
        let caller = LimitKey::new("key:7").unwrap();
        for ms in 0..20_000 {
            assert_eq!(fair.take_at(START.plus_ms(ms), &caller, 1), Ok(()));
        }
        let leases = fair.desk.lock().unwrap().book.leases();
        assert!(leases < 5_000, "{leases}");
    }
}
