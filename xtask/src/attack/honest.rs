//! The honest tenants: they reserve and complete at a steady rate, and measure.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Scope, ScopedJoinHandle, sleep};
use std::time::{Duration, Instant};

use super::wire::{self, Request, Wire};

/// Callers of each tenant.
const CALLERS: usize = 2;
/// Requests on one connection. New ones show whether connections are still accepted.
const REQUESTS_PER_CONNECTION: u32 = 50;
/// Pause after a call, so that the tenants leave most of the machine to the attackers.
const PAUSE: Duration = Duration::from_millis(3);
/// Failures that are shown in full.
const SHOWN_MAX: usize = 5;
/// The limit of every tenant.
pub(super) const LIMIT: &str = r#"{"key":"calls","kind":"rolling","capacity":1000000000,"window_seconds":60}"#;

/// One call of a tenant on a connection, with a key, a new lease id and the time when it began.
pub(super) type Call = fn(&mut Wire, &str, &str, Instant) -> Result<Duration, String>;

/// The start and the end of a run, and its results so far.
pub(super) struct Live {
    began: Instant,
    pub(super) is_over: AtomicBool,
    pub(super) reserves: AtomicU64,
    pub(super) failed: AtomicU64,
}

impl Live {
    pub(super) fn new() -> Live {
        let (reserves, failed) = (AtomicU64::new(0), AtomicU64::new(0));
        Live { began: Instant::now(), is_over: AtomicBool::new(false), reserves, failed }
    }
}

/// The results of a tenant.
#[derive(Default)]
pub(super) struct Seen {
    /// Time of each reserve, in microseconds, with its connection if that is new.
    pub(super) reserves_us: Vec<u64>,
    pub(super) failed: usize,
    /// The first failures.
    pub(super) failures: Vec<String>,
}

impl Seen {
    pub(super) fn add(&mut self, other: Seen) {
        self.reserves_us.extend(other.reserves_us);
        self.failed += other.failed;
        self.failures.extend(other.failures);
        self.failures.truncate(SHOWN_MAX);
    }

    /// Notes a failure with the time since the run began, by which it is found in the logs of the nodes.
    fn fail(&mut self, live: &Live, why: &str) {
        live.failed.fetch_add(1, Ordering::Relaxed);
        self.failed += 1;
        if self.failures.len() < SHOWN_MAX {
            self.failures.push(format!("after {:.1} s: {why}", live.began.elapsed().as_secs_f64()));
        }
    }

    /// The time within which this share of the reserves was answered.
    pub(super) fn quantile(&mut self, share: f64) -> Duration {
        self.reserves_us.sort_unstable();
        let place = (self.reserves_us.len() as f64 * share) as usize;
        let us = self.reserves_us.get(place).or(self.reserves_us.last()).copied();
        Duration::from_micros(us.unwrap_or_default())
    }
}

/// Starts the callers of a tenant. They stop once the run is over.
pub(super) fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    addresses: &'scope [SocketAddr],
    key: &'scope str,
    (live, one): (&'scope Live, Call),
) -> Vec<ScopedJoinHandle<'scope, Seen>> {
    let callers = addresses.iter().cycle().take(CALLERS.max(addresses.len()));
    callers.map(|address| scope.spawn(move || call(*address, key, live, one))).collect()
}

fn call(address: SocketAddr, key: &str, live: &Live, one: Call) -> Seen {
    let mut seen = Seen::default();
    let mut connection: Option<(Wire, u32)> = None;
    while !live.is_over.load(Ordering::Relaxed) {
        let start = Instant::now();
        let kept = connection.take().filter(|(_, used)| *used < REQUESTS_PER_CONNECTION);
        let (mut wire, used) = match kept.map_or_else(|| Wire::connect(address).map(|wire| (wire, 0)), Ok) {
            Ok(connected) => connected,
            Err(error) => {
                seen.fail(live, &format!("connect: {}", describe(&error)));
                sleep(PAUSE);
                continue;
            }
        };
        let lease = wire::lease();
        match one(&mut wire, key, &lease, start) {
            Ok(took) => {
                seen.reserves_us.push(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
                live.reserves.fetch_add(1, Ordering::Relaxed);
                connection = Some((wire, used + 2));
            }
            Err(why) => seen.fail(live, &why),
        }
        sleep(PAUSE);
    }
    seen
}

/// The time until the reserve was answered.
pub(super) fn reserve_and_complete(
    wire: &mut Wire,
    key: &str,
    lease: &str,
    start: Instant,
) -> Result<Duration, String> {
    let body = format!(r#"{{"lease_id":"{lease}","requirements":[{{"key":"calls","amount":1}}]}}"#);
    let request = Request { key, method: "POST", path: "/v1/reserve", body: &body };
    let answer = wire.ask(request).map_err(|error| format!("reserve: {}", describe(&error)))?;
    let took = start.elapsed();
    if answer.status != 200 || !answer.body.contains("\"allowed\":true") {
        return Err(format!("reserve: {} {}", answer.status, answer.body));
    }
    let body = format!(r#"{{"lease_id":"{lease}","actuals":[]}}"#);
    let request = Request { key, method: "POST", path: "/v1/complete", body: &body };
    let answer = wire.ask(request).map_err(|error| format!("complete: {}", describe(&error)))?;
    match answer.status {
        200 => Ok(took),
        status => Err(format!("complete: {status} {}", answer.body)),
    }
}

/// The error, in other words than the system's where those are unclear.
fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "no answer in time".to_owned(),
        io::ErrorKind::UnexpectedEof => "the connection was closed".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_that_of_the_sorted_times() {
        let mut seen = Seen { reserves_us: (1..=100).rev().collect(), ..Seen::default() };
        assert_eq!(seen.quantile(0.5), Duration::from_micros(51));
        assert_eq!(seen.quantile(0.99), Duration::from_micros(100));
        assert_eq!(Seen::default().quantile(0.99), Duration::ZERO);
    }
}
