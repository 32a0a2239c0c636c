//! Failed logins by client address. Responses to an address that fails often are delayed.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::client_network::ClientNetwork;

/// Tracked addresses. Beyond this the one that failed longest ago is forgotten, which bounds memory.
const ADDRESSES_MAX: usize = 4_096;
/// Failures that get an immediate response, since typing errors happen.
const FREE: u32 = 5;
/// Extra delay of each further failure, up to [`DELAY_MAX`].
const DELAY_STEP: Duration = Duration::from_millis(100);
/// Longest delay; it stays below the usual client timeout.
const DELAY_MAX: Duration = Duration::from_secs(2);
/// Time without a failure after which an address starts again at zero.
const QUIET: Duration = Duration::from_secs(60);
/// Shortest interval between log lines about one address.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Whether the connection of a rejected request stays open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connection {
    Stays,
    /// It closes after the response.
    Closes,
}

/// Counts failed logins by client network.
pub(crate) struct FailedLogins {
    by_network: Mutex<HashMap<ClientNetwork, Record>>,
    delay_permits: Semaphore,
}

/// The recent failures of one client network.
struct Record {
    count: u32,
    last: Instant,
    /// When they were last logged.
    logged: Option<Instant>,
    /// Failures since then.
    unlogged: u32,
}

struct Counted {
    /// Recent failures, this one included.
    count: u32,
    /// The number to log, if a log line is due.
    to_log: Option<u32>,
}

impl Record {
    fn count(&mut self, now: Instant) -> Counted {
        if now.duration_since(self.last) >= QUIET {
            *self = Record { count: 0, last: now, logged: None, unlogged: 0 };
        }
        self.last = now;
        self.count = self.count.saturating_add(1);
        self.unlogged = self.unlogged.saturating_add(1);
        let is_time = self.logged.is_none_or(|logged| now.duration_since(logged) >= LOG_INTERVAL);
        let to_log = (self.count > FREE && is_time).then_some(self.unlogged);
        if to_log.is_some() {
            (self.logged, self.unlogged) = (Some(now), 0);
        }
        Counted { count: self.count, to_log }
    }
}

impl FailedLogins {
    /// At most `waiting_max` responses are delayed at once, because a delayed request holds memory. Beyond that the
    /// response is immediate, and its connection closes.
    pub(super) fn new(waiting_max: usize) -> FailedLogins {
        let delay_permits = Semaphore::new(waiting_max.min(Semaphore::MAX_PERMITS));
        FailedLogins { by_network: Mutex::default(), delay_permits }
    }

    /// Counts a failure, and waits for the delay it has earned.
    pub(crate) async fn record(&self, network: ClientNetwork) -> Connection {
        let Counted { count, to_log } = self.count(network, Instant::now());
        if let Some(failures) = to_log {
            tracing::warn!(address = %network, failures, "repeated failed logins; responses are delayed");
        }
        let wait = DELAY_STEP.saturating_mul(count.saturating_sub(FREE)).min(DELAY_MAX);
        if wait.is_zero() {
            return Connection::Stays;
        }
        let Ok(_permit) = self.delay_permits.try_acquire() else { return Connection::Closes };
        tokio::time::sleep(wait).await;
        Connection::Stays
    }

    fn count(&self, network: ClientNetwork, now: Instant) -> Counted {
        let mut all = self.by_network.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= ADDRESSES_MAX && !all.contains_key(&network) {
            all.retain(|_, record| now.duration_since(record.last) < QUIET);
            if all.len() >= ADDRESSES_MAX {
                let oldest = all.iter().min_by_key(|(_, record)| record.last).map(|(network, _)| *network);
                oldest.map(|network| all.remove(&network));
            }
        }
        all.entry(network).or_insert(Record { count: 0, last: now, logged: None, unlogged: 0 }).count(now)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    const WAITING_MAX: usize = 100;

    fn address(number: u32) -> ClientNetwork {
        ClientNetwork::of(IpAddr::from(number.to_be_bytes()))
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_fails_often_waits_longer_and_others_do_not() {
        let failures = FailedLogins::new(WAITING_MAX);
        let start = Instant::now();
        for _ in 0..FREE {
            failures.record(address(1)).await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        failures.record(address(1)).await;
        assert_eq!(start.elapsed(), DELAY_STEP);
        failures.record(address(2)).await;
        assert_eq!(start.elapsed(), DELAY_STEP);
        for _ in 0..100 {
            failures.record(address(1)).await;
        }
        let before = Instant::now();
        failures.record(address(1)).await;
        assert_eq!(before.elapsed(), DELAY_MAX);
        tokio::time::sleep(QUIET).await;
        let before = Instant::now();
        failures.record(address(1)).await;
        assert_eq!(before.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_tracked_addresses_is_bounded() {
        let failures = FailedLogins::new(WAITING_MAX);
        for number in 0..ADDRESSES_MAX as u32 + 100 {
            failures.record(address(number)).await;
        }
        assert_eq!(failures.by_network.lock().unwrap().len(), ADDRESSES_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_network_of_ipv6_fails_together() {
        let failures = FailedLogins::new(WAITING_MAX);
        let start = Instant::now();
        for number in 0..=FREE {
            failures.record(ClientNetwork::of(format!("2001:db8::{number:x}").parse().unwrap())).await;
        }
        assert_eq!(start.elapsed(), DELAY_STEP);
    }

    /// Once a thousand failures of a client were delayed, its further ones got immediate responses, so it could guess on
    /// at full speed.
    #[tokio::test(start_paused = true)]
    async fn where_too_many_wait_an_answer_comes_at_once_and_costs_the_connection() {
        let failures = std::sync::Arc::new(FailedLogins::new(WAITING_MAX));
        for _ in 0..FREE {
            assert_eq!(failures.record(address(1)).await, Connection::Stays);
        }
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..WAITING_MAX {
            let failures = std::sync::Arc::clone(&failures);
            waiting.spawn(async move { failures.record(address(1)).await });
        }
        while failures.delay_permits.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let start = Instant::now();
        assert_eq!(failures.record(address(1)).await, Connection::Closes);
        assert_eq!(start.elapsed(), Duration::ZERO);
        // Other addresses are neither delayed nor disconnected.
        assert_eq!(failures.record(address(2)).await, Connection::Stays);
        while let Some(after) = waiting.join_next().await {
            assert_eq!(after.unwrap(), Connection::Stays);
        }
        assert_eq!(failures.delay_permits.available_permits(), WAITING_MAX);
    }

    #[test]
    fn an_address_that_begins_to_be_slowed_is_logged_and_then_once_a_minute() {
        let failures = FailedLogins::new(WAITING_MAX);
        let start = Instant::now();
        let mut logged = Vec::new();
        // One failure each second, for ten minutes.
        for second in 0..600 {
            let now = start + Duration::from_secs(second);
            logged.extend(failures.count(address(1), now).to_log.map(|count| (second, count)));
        }
        assert_eq!(logged[..3], [(5, 6), (65, 60), (125, 60)]);
        assert_eq!(logged.len(), 10);
        // After a quiet time the count starts again.
        let later = start + Duration::from_secs(900);
        assert!((0..FREE).all(|_| failures.count(address(1), later).to_log.is_none()));
        assert_eq!(failures.count(address(1), later).to_log, Some(FREE + 1));
    }
}
