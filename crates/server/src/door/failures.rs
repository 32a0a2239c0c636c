//! Failed logins by address: whoever fails often waits for the answer.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

/// So many addresses are told apart; when there are more, those that were quiet longest are forgotten.
const ADDRESSES_MAX: usize = 4_096;
/// So many failures of an address are answered at once.
const FREE: u32 = 5;
/// Each further one waits so much longer,
const STEP: Duration = Duration::from_millis(100);
/// up to this.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// After so long without a failure an address begins anew.
const QUIET: Duration = Duration::from_secs(60);
/// That an address is slowed is logged so often at most.
const SAID_EVERY: Duration = Duration::from_secs(60);
/// What one customer of a network has of IPv6: all addresses that begin with so many bits.
const NETWORK_BITS: u32 = 64;

/// What becomes of the connection of somebody who failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// It stays open: its client has waited.
    Stays,
    /// It ends with the answer.
    Ends,
}

/// An address as it is told apart from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Origin(IpAddr);

impl Origin {
    fn of(address: IpAddr) -> Origin {
        match address.to_canonical() {
            IpAddr::V6(address) => {
                let network = u128::from(address) >> (128 - NETWORK_BITS) << (128 - NETWORK_BITS);
                Origin(Ipv6Addr::from(network).into())
            }
            address @ IpAddr::V4(_) => Origin(address),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => write!(f, "{address}"),
            IpAddr::V6(address) => write!(f, "{address}/{NETWORK_BITS}"),
        }
    }
}

/// Who failed how often.
pub(crate) struct Failures {
    by_origin: Mutex<HashMap<Origin, Record>>,
    places: Semaphore,
}

/// What is known of an address that failed.
struct Record {
    /// How often, lately.
    count: u32,
    last: Instant,
    /// When it was last logged that it is slowed,
    said: Option<Instant>,
    /// and how often it failed since.
    unsaid: u32,
}

/// One failure, as it was counted.
struct Counted {
    count: u32,
    /// How many failures are to be logged now; none if none are.
    to_say: Option<u32>,
}

impl Record {
    fn count(&mut self, now: Instant) -> Counted {
        if now.duration_since(self.last) >= QUIET {
            *self = Record { count: 0, last: now, said: None, unsaid: 0 };
        }
        self.last = now;
        self.count = self.count.saturating_add(1);
        self.unsaid = self.unsaid.saturating_add(1);
        let is_time = self.said.is_none_or(|said| now.duration_since(said) >= SAID_EVERY);
        let to_say = (self.count > FREE && is_time).then_some(self.unsaid);
        if to_say.is_some() {
            (self.said, self.unsaid) = (Some(now), 0);
        }
        Counted { count: self.count, to_say }
    }
}

impl Failures {
    /// So many may wait at once, or waiting would itself be a way to do harm. Beyond that the answer comes at once, and costs
    /// the connection.
    pub(super) fn new(waiting_max: usize) -> Failures {
        let places = Semaphore::new(waiting_max.min(Semaphore::MAX_PERMITS));
        Failures { by_origin: Mutex::default(), places }
    }

    /// Counts a failure, and waits as long as it should.
    pub(crate) async fn wait(&self, address: IpAddr) -> After {
        let origin = Origin::of(address);
        let Counted { count, to_say } = self.count(origin, Instant::now());
        if let Some(failures) = to_say {
            tracing::warn!(address = %origin, failures, "logins fail again and again, and are slowed");
        }
        let wait = STEP.saturating_mul(count.saturating_sub(FREE)).min(WAIT_MAX);
        if wait.is_zero() {
            return After::Stays;
        }
        let Ok(_place) = self.places.try_acquire() else { return After::Ends };
        tokio::time::sleep(wait).await;
        After::Stays
    }

    /// How often an address has failed lately, this time included.
    fn count(&self, origin: Origin, now: Instant) -> Counted {
        let mut all = self.by_origin.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= ADDRESSES_MAX && !all.contains_key(&origin) {
            all.retain(|_, record| now.duration_since(record.last) < QUIET);
            if all.len() >= ADDRESSES_MAX {
                let oldest = all.iter().min_by_key(|(_, record)| record.last).map(|(origin, _)| *origin);
                oldest.map(|origin| all.remove(&origin));
            }
        }
        all.entry(origin).or_insert(Record { count: 0, last: now, said: None, unsaid: 0 }).count(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAITING_MAX: usize = 100;

    fn address(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_fails_often_waits_longer_and_nobody_else_does() {
        let failures = Failures::new(WAITING_MAX);
        let start = Instant::now();
        for _ in 0..FREE {
            failures.wait(address(1)).await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        failures.wait(address(1)).await;
        assert_eq!(start.elapsed(), STEP);
        failures.wait(address(2)).await;
        assert_eq!(start.elapsed(), STEP);
        for _ in 0..100 {
            failures.wait(address(1)).await;
        }
        let before = Instant::now();
        failures.wait(address(1)).await;
        assert_eq!(before.elapsed(), WAIT_MAX);
        tokio::time::sleep(QUIET).await;
        let before = Instant::now();
        failures.wait(address(1)).await;
        assert_eq!(before.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn only_so_many_addresses_are_told_apart() {
        let failures = Failures::new(WAITING_MAX);
        for number in 0..ADDRESSES_MAX as u32 + 100 {
            failures.wait(address(number)).await;
        }
        assert_eq!(failures.by_origin.lock().unwrap().len(), ADDRESSES_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn all_of_a_network_of_ipv6_is_one_address_and_ipv4_is_the_same_in_either_form() {
        let origin = |text: &str| Origin::of(text.parse().unwrap());
        assert_eq!(origin("2001:db8:1:2::1"), origin("2001:db8:1:2:ffff:ffff:ffff:ffff"));
        assert_ne!(origin("2001:db8:1:2::1"), origin("2001:db8:1:3::1"));
        assert_eq!(origin("2001:db8:1:2::1").to_string(), "2001:db8:1:2::/64");
        assert_eq!(origin("::ffff:192.0.2.7"), origin("192.0.2.7"));
        assert_ne!(origin("192.0.2.7"), origin("192.0.2.8"));
        let failures = Failures::new(WAITING_MAX);
        let start = Instant::now();
        for number in 0..=FREE {
            failures.wait(format!("2001:db8::{number:x}").parse().unwrap()).await;
        }
        assert_eq!(start.elapsed(), STEP);
    }

    /// Whoever had a thousand failures waiting was answered at once from then on, and could go on as fast as before.
    #[tokio::test(start_paused = true)]
    async fn where_too_many_wait_an_answer_comes_at_once_and_costs_the_connection() {
        let failures = std::sync::Arc::new(Failures::new(WAITING_MAX));
        for _ in 0..FREE {
            assert_eq!(failures.wait(address(1)).await, After::Stays);
        }
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..WAITING_MAX {
            let failures = std::sync::Arc::clone(&failures);
            waiting.spawn(async move { failures.wait(address(1)).await });
        }
        while failures.places.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let start = Instant::now();
        assert_eq!(failures.wait(address(1)).await, After::Ends);
        assert_eq!(start.elapsed(), Duration::ZERO);
        // Nobody else is slowed or cut off by that.
        assert_eq!(failures.wait(address(2)).await, After::Stays);
        while let Some(after) = waiting.join_next().await {
            assert_eq!(after.unwrap(), After::Stays);
        }
        assert_eq!(failures.places.available_permits(), WAITING_MAX);
    }

    #[test]
    fn an_address_that_begins_to_be_slowed_is_logged_and_then_once_a_minute() {
        let failures = Failures::new(WAITING_MAX);
        let start = Instant::now();
        let mut said = Vec::new();
        // One failure each second, for ten minutes.
        for second in 0..600 {
            let now = start + Duration::from_secs(second);
            said.extend(failures.count(Origin(address(1)), now).to_say.map(|count| (second, count)));
        }
        assert_eq!(said[..3], [(5, 6), (65, 60), (125, 60)]);
        assert_eq!(said.len(), 10);
        // After a while without any it begins anew.
        let later = start + Duration::from_secs(900);
        assert!((0..FREE).all(|_| failures.count(Origin(address(1)), later).to_say.is_none()));
        assert_eq!(failures.count(Origin(address(1)), later).to_say, Some(FREE + 1));
    }
}
