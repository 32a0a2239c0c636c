//! Clients that retry until they know the outcome, and count acknowledged results.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ulid::Ulid;

use crate::ask::ask;

const SLOTS: &str = "slots";
const TOKENS: &str = "tokens";
/// Fewer slots than callers, so that some reserves are denied.
const SLOTS_CAPACITY: u64 = 3;
const CALLERS: usize = 5;
const TRANSFERRERS: usize = 3;
const TOKENS_RESERVED: u64 = 10;
const TOKENS_USED: u64 = 7;
/// Client timeouts: the longer one outlasts a frozen leader.
const PATIENCES: [Duration; 2] = [Duration::from_millis(1_500), Duration::from_secs(7)];
const RESERVE: &str = "/v1/reserve";
/// Time until a signal takes effect. Requests sent earlier may still be answered.
const SPARED: Duration = Duration::from_millis(20);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(10);
/// Longest allowed outage.
const OUTAGE_MAX: Duration = Duration::from_secs(30);

/// State shared by all clients.
pub(crate) struct Load {
    urls: Vec<String>,
    is_over: AtomicBool,
    taken: AtomicU64,
    unanswered: AtomicU64,
    denials: AtomicU64,
    /// Last acknowledged sequence number of each transferrer.
    acknowledged: [AtomicU64; TRANSFERRERS],
    /// Start of the current outage, and the time until the first reserve sent since was answered.
    outage: Mutex<Option<(Instant, Option<Duration>)>>,
}

#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) transfers: u64,
    pub(crate) calls: u64,
    pub(crate) denials: u64,
    pub(crate) unanswered: u64,
    pub(crate) tokens: u64,
    pub(crate) transferred: Vec<u64>,
    pub(crate) sequences: Vec<u64>,
}

/// The amount of a transfer.
pub(crate) fn amount(sequence: u64) -> u64 {
    1 + sequence % 7
}

pub(crate) struct Workers {
    transferrers: Vec<JoinHandle<(u64, u64)>>,
    callers: Vec<JoinHandle<u64>>,
}

impl Load {
    pub(crate) fn new(urls: &[String]) -> Load {
        Load {
            urls: urls.to_vec(),
            is_over: AtomicBool::new(false),
            taken: AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
            denials: AtomicU64::new(0),
            acknowledged: Default::default(),
            outage: Mutex::new(None),
        }
    }

    pub(crate) fn prepare(&self) {
        for limit in [
            json!({"key": SLOTS, "kind": "concurrency", "capacity": SLOTS_CAPACITY, "timeout_seconds": 3_600}),
            json!({"key": TOKENS, "kind": "rolling", "capacity": 1_u64 << 40, "window_seconds": 86_400}),
        ] {
            let put = ask(&self.urls[0], "PUT", "/v1/admin/limits", &limit.to_string(), PATIENCES[1]).unwrap();
            assert_eq!(put.status, 200, "{}", put.body);
        }
        let open = |account: &str| json!({"open_account": {"account": account, "overdraft": "deny"}});
        let mut operations = vec![open("from")];
        operations.extend((0..TRANSFERRERS).map(|worker| open(&format!("to-{worker}"))));
        operations.push(json!({"issue": {"account": "from", "asset": "usd", "amount": "1000000000"}}));
        self.write("setup", 1, &json!(operations));
    }

    /// Repeats a request on random nodes until the outcome is known.
    fn insist(&self, method: &str, path: &str, body: &str) -> String {
        let start = Instant::now();
        loop {
            let random = Ulid::generate().0;
            let url = &self.urls[usize::try_from(random % self.urls.len() as u128).unwrap()];
            let patience = PATIENCES[usize::from(random & 0x700 == 0)];
            let asked = Instant::now();
            match ask(url, method, path, body, patience) {
                Ok(answered) if answered.status == 200 => {
                    if path == RESERVE {
                        self.answered(asked);
                    }
                    return answered.body;
                }
                // The outcome is unknown, or nothing happened.
                Ok(answered) if answered.status >= 500 => {}
                Ok(answered) => panic!("{path} {body}: {} {}", answered.status, answered.body),
                Err(_) => {}
            }
            self.unanswered.fetch_add(1, Ordering::Relaxed);
            assert!(start.elapsed() < OUTAGE_MAX * 2, "{path}: no answer");
            sleep(PAUSE);
        }
    }

    fn answered(&self, asked: Instant) {
        if let Some((since, over @ None)) = &mut *self.outage.lock().unwrap()
            && asked > *since + SPARED
        {
            *over = Some(since.elapsed());
        }
    }

    /// Starts an outage and returns the time until a reserve that was sent during it is answered.
    pub(crate) fn outage(&self, what: &str, begin: impl FnOnce()) -> Duration {
        let start = Instant::now();
        begin();
        *self.outage.lock().unwrap() = Some((start, None));
        loop {
            if let Some((_, Some(over))) = *self.outage.lock().unwrap() {
                return over;
            }
            assert!(start.elapsed() < OUTAGE_MAX, "no reserve is answered after {what}");
            sleep(Duration::from_millis(1));
        }
    }

    fn write(&self, client: &str, sequence: u64, operations: &Value) -> String {
        let body = json!({
            "namespace": "default", "vault": "main", "client_id": client, "sequence": sequence,
            "operations": operations,
        });
        let answer = self.insist("POST", "/v1/write", &body.to_string());
        let success = &serde_json::from_str::<Value>(&answer).unwrap()["success"];
        assert_eq!(success["sequence"], sequence, "{answer}");
        answer
    }

    /// Transfers until the run ends. Returns the sum and the last sequence number.
    fn transfer(&self, worker: usize) -> (u64, u64) {
        let (client, to) = (format!("transferrer-{worker}"), format!("to-{worker}"));
        let (mut sum, mut sequence) = (0, 0);
        while !self.is_over.load(Ordering::Relaxed) {
            sequence += 1;
            let amount = amount(sequence);
            let operations =
                json!([{"transfer": {"from": "from", "to": to, "asset": "usd", "amount": amount.to_string()}}]);
            let answer = self.write(&client, sequence, &operations);
            sum += amount;
            self.acknowledged[worker].store(sequence, Ordering::SeqCst);
            if sequence.is_multiple_of(5) {
                let again = self.write(&client, sequence, &operations);
                assert_eq!(again, answer, "a repeated write got another answer");
            }
        }
        (sum, sequence)
    }

    /// Reserves and completes until the run ends. Returns the number of calls.
    fn call(&self) -> u64 {
        let mut calls = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            let lease = Ulid::generate().to_string();
            let body = json!({"lease_id": lease, "requirements": [
                {"key": SLOTS, "amount": 1}, {"key": TOKENS, "amount": TOKENS_RESERVED},
            ]});
            let answer: Value = serde_json::from_str(&self.insist("POST", RESERVE, &body.to_string())).unwrap();
            assert_eq!(answer["error"], "", "{answer}");
            if answer["allowed"] != true {
                self.denials.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_millis(5));
                continue;
            }
            let taken = self.taken.fetch_add(1, Ordering::SeqCst) + 1;
            assert!(taken <= SLOTS_CAPACITY, "{taken} slots of {SLOTS_CAPACITY} are taken at once");
            sleep(Duration::from_millis(2));
            self.taken.fetch_sub(1, Ordering::SeqCst);
            let body = json!({"lease_id": lease, "actuals": [{"key": TOKENS, "actual_amount": TOKENS_USED}]});
            let answer: Value = serde_json::from_str(&self.insist("POST", "/v1/complete", &body.to_string())).unwrap();
            assert_eq!(answer["reconciled"], true, "an allowed lease is unknown: {answer}");
            calls += 1;
        }
        calls
    }

    pub(crate) fn start(load: &Arc<Load>) -> Workers {
        let transferrers = (0..TRANSFERRERS).map(|worker| {
            let load = Arc::clone(load);
            std::thread::spawn(move || load.transfer(worker))
        });
        let callers = (0..CALLERS).map(|_| {
            let load = Arc::clone(load);
            std::thread::spawn(move || load.call())
        });
        Workers { transferrers: transferrers.collect(), callers: callers.collect() }
    }

    /// Stops the clients once their last outcome is known, and adds up their counts.
    pub(crate) fn finish(&self, workers: Workers) -> Counts {
        self.is_over.store(true, Ordering::Relaxed);
        let mut counts = Counts::default();
        for worker in workers.transferrers {
            let (sum, sequence) = worker.join().expect("a transferrer failed");
            counts.transferred.push(sum);
            counts.sequences.push(sequence);
            counts.transfers += sequence;
        }
        for worker in workers.callers {
            counts.calls += worker.join().expect("a caller failed");
        }
        counts.tokens = counts.calls * TOKENS_USED;
        counts.denials = self.denials.load(Ordering::Relaxed);
        counts.unanswered = self.unanswered.load(Ordering::Relaxed);
        counts
    }

    /// The last acknowledged sequence number of each transferrer.
    pub(crate) fn acknowledged(&self) -> [u64; TRANSFERRERS] {
        self.acknowledged.each_ref().map(|sequence| sequence.load(Ordering::SeqCst))
    }

    /// Asserts that every node has exactly the acknowledged results.
    pub(crate) fn check(&self, counts: &Counts) {
        for url in &self.urls {
            for (worker, sum) in counts.transferred.iter().enumerate() {
                let balances = read(url, &format!("/v1/vaults/main/accounts/to-{worker}/balances"));
                assert_eq!(balances["balances"][0]["available"], sum.to_string(), "{url}, worker {worker}");
                let client = read(url, &format!("/v1/clients/transferrer-{worker}?namespace=default&vault=main"));
                assert_eq!(client["last_committed_sequence"], counts.sequences[worker], "{url}");
            }
            let audit = read(url, "/v1/vaults/main/audit");
            assert_eq!(audit["balanced"], true, "{url}: {audit}");
            let slots = read(url, &format!("/v1/admin/limits/{SLOTS}/usage"));
            assert_eq!(slots["reserved"], 0, "{url}: a slot is lost: {slots}");
            let tokens = read(url, &format!("/v1/admin/limits/{TOKENS}/usage"));
            assert_eq!(tokens["reserved"], counts.tokens, "{url}: {tokens}");
            assert_eq!(tokens["debt"], 0, "{url}: {tokens}");
        }
        assert_eq!(counts.transferred.len(), TRANSFERRERS);
    }
}

/// The JSON body of a GET request.
pub(crate) fn read(url: &str, path: &str) -> Value {
    let answered = ask(url, "GET", path, "", PATIENCES[1]).unwrap();
    assert_eq!(answered.status, 200, "{path}: {}", answered.body);
    serde_json::from_str(&answered.body).unwrap()
}
