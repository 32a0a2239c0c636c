//! A storm of streams that extend their leases, and of which some die without a word.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::ask::ask;
use crate::support::{Server, TIMEOUT, wait};

const STREAMS: usize = 16;
const SLOTS: usize = 5;
const TOKENS: u64 = 400;
const CREDIT: u64 = 100_000;
/// The timeout of slots and holds. Streams renew well before it, even on a busy machine.
const TIMEOUT_SECONDS: u32 = 6;
const STORM: Duration = Duration::from_secs(15);

/// One reserve takes this much.
const HOLD: u64 = 40;

fn post(server: &Server, path: &str, body: &Value) -> Value {
    let answer = ask(&server.address, "POST", path, &body.to_string(), TIMEOUT).unwrap();
    assert_eq!(answer.status, 200, "{path} {body}: {}", answer.body);
    serde_json::from_str(&answer.body).unwrap()
}

/// The counts of all streams.
#[derive(Default)]
struct Storm {
    /// Streams that were admitted and have neither begun to complete nor died.
    running: AtomicUsize,
    is_over: AtomicBool,
    /// The cost of each lease that an extension reported and the server acknowledged.
    reported: Mutex<BTreeMap<String, u64>>,
    killed: AtomicUsize,
    extended: AtomicUsize,
    denied: AtomicUsize,
}

impl Storm {
    /// Runs streams of random length, one after the other.
    fn streams(&self, server: &Server, number: usize) {
        let mut random = fastrand(number);
        let mut killed_in = number % 10;
        while !self.is_over.load(Ordering::SeqCst) {
            let lease = ulid::Ulid::generate().to_string();
            let parts =
                json!([{"key": "slots", "amount": 1}, {"key": "tokens", "amount": 4}, {"key": "usd", "amount": HOLD}]);
            let answer = post(server, "/v1/reserve", &json!({"lease_id": lease, "requirements": parts}));
            if answer["allowed"] != true {
                assert_eq!(answer["error"], "", "{answer}");
                std::thread::sleep(Duration::from_millis(50 + random() % 100));
                continue;
            }
            let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
            assert!(running <= SLOTS, "{running} streams run in {SLOTS} slots");
            let used = self.extend(server, &lease, &mut random);
            self.running.fetch_sub(1, Ordering::SeqCst);
            if killed_in == 0 {
                self.killed.fetch_add(1, Ordering::SeqCst);
                killed_in = 10;
            } else {
                let actuals = json!([{"key": "usd", "actual_amount": used + random() % 5}, {"key": "tokens", "actual_amount": 3}]);
                let done = post(server, "/v1/complete", &json!({"lease_id": lease, "actuals": actuals}));
                assert_eq!((&done["ok"], &done["reconciled"]), (&json!(true), &json!(true)), "{done}");
            }
            killed_in -= 1;
        }
    }

    /// Extends one lease a random number of times. Returns the cost that it reported.
    fn extend(&self, server: &Server, lease: &str, random: &mut impl FnMut() -> u64) -> u64 {
        let (mut used, mut ends_at) = (0, 0);
        for number in 1..=1 + random() % 8 {
            std::thread::sleep(Duration::from_millis(50 + random() % 600));
            let cost = used + random() % 9;
            let mut body =
                json!({"lease_id": lease, "extension": number, "used": [{"key": "usd", "actual_amount": cost}]});
            if number % 3 == 0 {
                body["add"] = json!([{"key": "usd", "amount": 10}, {"key": "tokens", "amount": 2}]);
            }
            let answer = post(server, "/v1/extend", &body);
            if answer["allowed"] == true {
                // The answer is the same for the same number, whatever happened meanwhile.
                assert_eq!(post(server, "/v1/extend", &body), answer);
                used = cost;
                let end = answer["ends_at_unix_ms"].as_u64().unwrap();
                assert!(end >= ends_at, "the end moved back");
                ends_at = end;
                self.reported.lock().unwrap().insert(lease.to_owned(), used);
                self.extended.fetch_add(1, Ordering::SeqCst);
            } else {
                assert_eq!(answer["error"], "", "a live lease was refused: {answer}");
                self.denied.fetch_add(1, Ordering::SeqCst);
            }
        }
        used
    }

    /// Reads the usage of the limits all the time: none is exceeded at any moment.
    fn watch(&self, server: &Server) {
        while !self.is_over.load(Ordering::SeqCst) {
            for key in ["slots", "tokens", "usd"] {
                let usage: Value = serde_json::from_str(&server.get(&format!("/v1/admin/limits/{key}/usage"))).unwrap();
                let of = |name: &str| usage[name].as_u64().unwrap();
                assert!(of("reserved") <= of("capacity"), "{key}: {usage}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A small generator with a fixed seed.
fn fastrand(seed: usize) -> impl FnMut() -> u64 {
    let mut state = (seed as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 33
    }
}

/// The payments of each lease, from the history of the account.
fn paid(server: &Server) -> BTreeMap<String, u64> {
    let mut paid: BTreeMap<String, u64> = BTreeMap::new();
    let mut after = 0;
    loop {
        let path = format!("/v1/vaults/main/accounts/acme/entries?after={after}&page_size=1000");
        let page: Value = serde_json::from_str(&server.get(&path)).unwrap();
        for entry in page["entries"].as_array().unwrap().iter().filter(|entry| entry["kind"] == "settle") {
            let amount: u64 = entry["paid"].as_str().unwrap().parse().unwrap();
            *paid.entry(entry["lease_id"].as_str().unwrap().to_owned()).or_default() += amount;
        }
        match page["next"].as_u64() {
            Some(next) => after = next,
            None => return paid,
        }
    }
}

#[test]
fn a_storm_of_streams_exceeds_no_limit_and_pays_what_it_reported() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::on(folder.path(), &[]);
    server.issue_credit(CREDIT).ends(0);
    server
        .line(&format!("limits put --key slots --kind concurrency --capacity {SLOTS} --timeout {TIMEOUT_SECONDS}s"))
        .ends(0);
    server.line(&format!("limits put --key tokens --kind rolling --capacity {TOKENS} --window 10s")).ends(0);
    server
        .line(&format!("limits put --key usd --kind credit --account acme --asset usd --timeout {TIMEOUT_SECONDS}s"))
        .ends(0);
    let storm = Storm::default();
    std::thread::scope(|scope| {
        for number in 0..STREAMS {
            let (storm, server) = (&storm, &server);
            scope.spawn(move || storm.streams(server, number));
        }
        scope.spawn(|| storm.watch(&server));
        let start = Instant::now();
        while start.elapsed() < STORM {
            std::thread::sleep(Duration::from_millis(100));
        }
        storm.is_over.store(true, Ordering::SeqCst);
    });
    let count = |count: &AtomicUsize| count.load(Ordering::SeqCst);
    assert!(count(&storm.killed) > 1, "no stream died");
    assert!(count(&storm.extended) > 50, "only {} extensions", count(&storm.extended));
    // The killed ones run out: their slots are free, and nothing is held.
    wait("the end of all leases", || server.reserved("slots") == 0 && server.credit().1 == 0);
    let (paid, reported) = (paid(&server), storm.reported.into_inner().unwrap());
    for (lease, used) in &reported {
        let paid = paid.get(lease).copied().unwrap_or_default();
        assert!(paid >= *used, "lease {lease} reported {used} and paid {paid}");
    }
    let spent: u64 = paid.values().sum();
    assert_eq!(server.credit().0, CREDIT - spent);
    let audit: Value = serde_json::from_str(&server.get("/v1/vaults/main/audit")).unwrap();
    assert_eq!(audit["balanced"], true, "{audit}");
}
