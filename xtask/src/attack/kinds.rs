//! The attacks. Each has its threads, and stops once the target is over.

use std::io;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Scope, sleep};
use std::time::Duration;

use super::wire::{self, Request, Wire};

/// Connections with unfinished bodies, and their threads.
const BODIES: (usize, usize) = (200, 20);
/// Bytes of a body that are announced, and that are sent.
const BODY_BYTES: (usize, usize) = (1_000_000, 950_000);
/// HTTP/2 connections that open no window, and requests on each.
const ZERO_WINDOWS: (usize, u32) = (32, 100);
/// Idle connections: nearly the default of `--connections-max`.
const IDLE: usize = 9_900;
/// Concurrent lists of all limits.
const LISTS: usize = 200;
/// Limits in those lists.
const LISTED: u64 = 20_480;
/// Threads that send malformed requests, and that guess keys.
const SENDERS: usize = 8;
/// Operations in one write: the maximum.
const OPERATIONS: u64 = 256;
/// Time that a held connection stays open before it is replaced.
const HELD: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(50);
const BACK_OFF: Duration = Duration::from_millis(5);

/// The nodes under attack.
pub(super) struct Target {
    pub(super) addresses: Vec<SocketAddr>,
    /// An admin key of the attacker's namespace.
    pub(super) key: String,
    /// The number of this run, for client ids that were not used before.
    pub(super) run: u64,
    pub(super) is_over: AtomicBool,
    /// Requests and connections of the attackers.
    pub(super) count: AtomicU64,
    /// The path of the calls.
    pub(super) path: &'static str,
    /// The first success of an attack, which fails the task.
    pub(super) breach: OnceLock<String>,
}

/// An attack.
pub(super) struct Attack {
    pub(super) name: &'static str,
    /// Starts its threads.
    pub(super) start: for<'scope, 'env> fn(&'scope Scope<'scope, 'env>, &'scope Target),
}

/// All attacks.
pub(super) const ATTACKS: [Attack; 7] = [
    Attack { name: "bodies", start: bodies },
    Attack { name: "windows", start: windows },
    Attack { name: "idle", start: idle },
    Attack { name: "lists", start: lists },
    Attack { name: "tables", start: tables },
    Attack { name: "malformed", start: malformed },
    Attack { name: "logins", start: logins },
];

impl Target {
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Notes that an attack had success.
    pub(super) fn note(&self, breach: String) {
        _ = self.breach.set(breach);
    }

    pub(super) fn address(&self, place: usize) -> SocketAddr {
        let count = self.addresses.len().max(1);
        self.addresses.get(place % count).copied().unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    /// Repeats some work until the target is over. Failures are the expected result of an attack.
    pub(super) fn repeat(&self, mut work: impl FnMut() -> io::Result<()>) {
        while !self.is_over() {
            match work() {
                Ok(()) => _ = self.count.fetch_add(1, Ordering::Relaxed),
                Err(_) => sleep(BACK_OFF),
            }
        }
    }

    /// Waits, but not beyond the end.
    pub(super) fn hold(&self, time: Duration) {
        for _ in 0..time.as_millis() / POLL.as_millis().max(1) {
            if self.is_over() {
                return;
            }
            sleep(POLL);
        }
    }

    /// Sends writes of one client until one is refused for good, or the target is over.
    fn write(&self, client: &str, place: usize, most: u64, operation: impl Fn(u64) -> String) {
        let client = format!("{client}-{}", self.run);
        let mut sequence = 1;
        self.repeat(|| {
            if sequence > most {
                self.hold(HELD);
                return Ok(());
            }
            let operations: Vec<String> = (0..OPERATIONS).map(|n| operation(sequence * OPERATIONS + n)).collect();
            let operations = operations.join(",");
            let body = format!(
                r#"{{"namespace":"red","client_id":"{client}","sequence":{sequence},"operations":[{operations}]}}"#
            );
            let request = Request { key: &self.key, method: "POST", path: "/v1/write", body: &body };
            match wire::ask(self.address(place), request)?.status {
                200 => sequence += 1,
                _ => sleep(POLL),
            }
            Ok(())
        });
    }
}

/// Announces bodies and does not finish them.
pub(super) fn bodies<'scope>(scope: &'scope Scope<'scope, '_>, target: &'scope Target) {
    let (connections, threads) = BODIES;
    for place in 0..threads {
        scope.spawn(move || {
            let (announced, sent) = BODY_BYTES;
            let (key, path) = (&target.key, target.path);
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\ncontent-length: {announced}\r\n\r\n"
            );
            let part = vec![b' '; sent];
            while !target.is_over() {
                let mut held = Vec::new();
                for _ in 0..connections / threads {
                    let Ok(mut wire) = Wire::connect(target.address(place)) else { continue };
                    _ = wire.stream().set_write_timeout(Some(POLL));
                    _ = wire.send(head.as_bytes()).and_then(|()| wire.send(&part));
                    target.count.fetch_add(1, Ordering::Relaxed);
                    held.push(wire);
                }
                target.hold(HELD);
            }
        });
    }
}

/// Asks for large public answers over HTTP/2 and reads none of them.
fn windows<'scope>(scope: &'scope Scope<'scope, '_>, target: &'scope Target) {
    scope.spawn(move || {
        let (connections, requests) = ZERO_WINDOWS;
        let bytes = wire::zero_window("/openapi.json", requests);
        while !target.is_over() {
            let mut held = Vec::new();
            for place in 0..connections {
                let Ok(mut wire) = Wire::connect(target.address(place)) else { continue };
                _ = wire.stream().set_write_timeout(Some(POLL));
                _ = wire.send(&bytes);
                target.count.fetch_add(u64::from(requests), Ordering::Relaxed);
                held.push(wire);
            }
            target.hold(HELD);
        }
    });
}

/// Opens connections and sends nothing.
pub(super) fn idle<'scope>(scope: &'scope Scope<'scope, '_>, target: &'scope Target) {
    scope.spawn(move || {
        let mut held = Vec::new();
        target.repeat(|| {
            if held.len() < IDLE {
                held.push(Wire::connect(target.address(held.len()))?);
            } else {
                target.hold(HELD);
                // The server may have closed them.
                held.clear();
            }
            Ok(())
        });
    });
}

/// Lists all limits of a namespace with many, many times at once.
fn lists<'scope>(scope: &'scope Scope<'scope, '_>, target: &'scope Target) {
    for place in 0..LISTS {
        scope.spawn(move || {
            target.repeat(|| {
                let path = "/v1/admin/limits";
                wire::ask(target.address(place), Request { key: &target.key, method: "GET", path, body: "" }).map(drop)
            });
        });
    }
}

/// The operation that puts a limit.
fn put_limit(name: &str, number: u64) -> String {
    format!(
        r#"{{"put_limit":{{"definition":{{"key":"{name}{number}","kind":"rolling","capacity":1,"window_seconds":60}}}}}}"#
    )
}

/// Puts the limits that [`lists`] lists.
pub(super) fn prepare_lists(target: &Target) {
    std::thread::scope(|scope| {
        scope.spawn(|| target.write("lists", 0, LISTED / OPERATIONS, |n| put_limit("listed", n)));
        while target.count.load(Ordering::Relaxed) < LISTED / OPERATIONS && !target.is_over() {
            sleep(POLL);
        }
        target.is_over.store(true, Ordering::Relaxed);
    });
}

/// Fills the tables of vaults, limits, clients and leases.
fn tables<'scope>(scope: &'scope Scope<'scope, '_>, target: &'scope Target) {
    let run = target.run;
    scope.spawn(move || {
        target.write("vaults", 0, u64::MAX, |n| format!(r#"{{"open_vault":{{"vault":"v{run}.{n}"}}}}"#));
    });
    scope.spawn(move || target.write("limits", 1, u64::MAX, |n| put_limit(&format!("t{run}."), n)));
    scope.spawn(move || {
        let mut number = 0_u64;
        target.repeat(|| {
            number += 1;
            let body = format!(r#"{{"namespace":"red","client_id":"c{run}.{number}","sequence":1,"operations":[]}}"#);
            let request = Request { key: &target.key, method: "POST", path: "/v1/write", body: &body };
            wire::ask(target.address(2), request).map(drop)
        });
    });
    scope.spawn(move || {
        target.repeat(|| {
            let one = |_| format!(r#"{{"lease_id":"{}","requirements":[{{"key":"full","amount":2}}]}}"#, wire::lease());
            let requests: Vec<String> = (0..OPERATIONS).map(one).collect();
            let body = format!(r#"{{"requests":[{}]}}"#, requests.join(","));
            let request = Request { key: &target.key, method: "POST", path: "/v1/reserve/batch", body: &body };
            wire::ask(target.address(0), request).map(drop)
        });
    });
}

/// Sends requests that are not HTTP, not JSON, or have no path of the server.
fn malformed<'scope>(scope: &'scope Scope<'scope, '_>, target: &'scope Target) {
    const REQUESTS: [&[u8]; 4] = [
        b"\x16\x03\x01garbage\r\n\r\n",
        b"POST /v1/reserve HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n{{{{{",
        b"GET /nowhere HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        b"POST /v1/write HTTP/9.9\r\n\r\n",
    ];
    for place in 0..SENDERS {
        scope.spawn(move || {
            let mut requests = REQUESTS.iter().cycle();
            target.repeat(|| {
                let mut wire = Wire::connect(target.address(place))?;
                wire.send(requests.next().copied().unwrap_or_default())?;
                wire.answer().map(drop)
            });
        });
    }
}

/// Guesses keys.
fn logins<'scope>(scope: &'scope Scope<'scope, '_>, target: &'scope Target) {
    for place in 0..SENDERS {
        scope.spawn(move || {
            let key = format!("{}x", target.key);
            target.repeat(|| {
                let path = "/v1/admin/limits";
                wire::ask(target.address(place), Request { key: &key, method: "GET", path, body: "" }).map(drop)
            });
        });
    }
}
