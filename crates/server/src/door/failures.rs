//! Failed logins by address: whoever fails often waits for the answer.

use std::collections::HashMap;
use std::net::IpAddr;
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
/// So many may wait at once. Beyond that the answer comes at once, or waiting would itself be a way to do harm.
const WAITING_MAX: usize = 1_024;

/// Who failed how often.
pub(crate) struct Failures {
    by_address: Mutex<HashMap<IpAddr, (u32, Instant)>>,
    places: Semaphore,
}

impl Default for Failures {
    fn default() -> Failures {
        Failures { by_address: Mutex::default(), places: Semaphore::new(WAITING_MAX) }
    }
}

impl Failures {
    /// Counts a failure, and waits as long as it should.
    pub(crate) async fn wait(&self, address: IpAddr) {
        let count = self.count(address, Instant::now());
        let wait = STEP.saturating_mul(count.saturating_sub(FREE)).min(WAIT_MAX);
        if wait.is_zero() {
            return;
        }
        if let Ok(_place) = self.places.try_acquire() {
            tokio::time::sleep(wait).await;
        }
    }

    /// How often an address has failed lately, this time included.
    fn count(&self, address: IpAddr, now: Instant) -> u32 {
        let mut all = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= ADDRESSES_MAX && !all.contains_key(&address) {
            all.retain(|_, (_, last)| now.duration_since(*last) < QUIET);
            if all.len() >= ADDRESSES_MAX {
                let oldest = all.iter().min_by_key(|(_, (_, last))| *last).map(|(address, _)| *address);
                oldest.map(|address| all.remove(&address));
            }
        }
        let (count, last) = all.entry(address).or_insert((0, now));
        if now.duration_since(*last) >= QUIET {
            *count = 0;
        }
        *count = count.saturating_add(1);
        *last = now;
        *count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_fails_often_waits_longer_and_nobody_else_does() {
        let failures = Failures::default();
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
        let failures = Failures::default();
        for number in 0..ADDRESSES_MAX as u32 + 100 {
            failures.wait(address(number)).await;
        }
        assert_eq!(failures.by_address.lock().unwrap().len(), ADDRESSES_MAX);
    }
}
