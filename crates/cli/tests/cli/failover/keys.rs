//! Revoked keys, used on a node that has not received the revocation.

use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ulid::Ulid;

use super::links::Links;
use super::nodes::{COUNT, Nodes};
use crate::ask::{Answered, ask_by};

const PATIENCE: Duration = Duration::from_secs(15);
/// Delay of messages between nodes, longer than a client needs to repeat a request.
const SLOW: Duration = Duration::from_millis(15);
/// Delivery time of messages that were in flight when a link was cut.
const ON_ITS_WAY: Duration = Duration::from_millis(100);
const REFUSED: &str = r#"{"error":"unauthenticated","message":"the credentials are missing or not valid"}"#;

/// A key of each role, and the lease and client id that they use.
struct Callers {
    caller: String,
    writer: String,
    reader: String,
    admin: String,
    lease: String,
    client: String,
}

/// A request: key, method, path and body.
type Asked = (String, &'static str, String, String);

impl Callers {
    fn new(nodes: &Nodes) -> Callers {
        let [caller, writer, reader, admin] = ["caller", "writer", "reader", "admin"].map(|role| nodes.key(role));
        let (lease, client) = (Ulid::generate().to_string(), Ulid::generate().to_string());
        Callers { caller, writer, reader, admin, lease, client }
    }

    fn all(&self) -> [&String; 4] {
        [&self.caller, &self.writer, &self.reader, &self.admin]
    }

    /// Requests that the valid keys may make. Every change is a new one for each `sequence`.
    fn asks(&self, lease: &str, sequence: u64) -> Vec<Asked> {
        let fresh = || reserve(&Ulid::generate().to_string()).to_string();
        let batch = format!(r#"{{"requests":[{}]}}"#, fresh());
        let complete = json!({"lease_id": self.lease, "actuals": []});
        let completes = json!({"requests": [complete]}).to_string();
        let write = json!({
            "namespace": "default", "client_id": self.client, "sequence": sequence, "operations": [],
        });
        let limit = json!({"key": "other", "kind": "rolling", "capacity": sequence, "window_seconds": 60});
        let mut asks: Vec<Asked> = vec![
            (self.caller.clone(), "POST", "/v1/reserve".into(), reserve(lease).to_string()),
            (self.caller.clone(), "POST", "/v1/reserve/batch".into(), batch),
            (self.writer.clone(), "POST", "/v1/write".into(), write.to_string()),
            (self.writer.clone(), "PUT", "/v1/admin/limits".into(), limit.to_string()),
            (self.admin.clone(), "GET", "/v1/admin/keys".into(), String::new()),
            (self.admin.clone(), "GET", "/v1/audit".into(), String::new()),
        ];
        // Only in the second round, because a lease can be completed once.
        if sequence > 1 {
            let create = json!({"name": "more", "role": "admin"}).to_string();
            asks.push((self.caller.clone(), "POST", "/v1/complete".into(), complete.to_string()));
            asks.push((self.caller.clone(), "POST", "/v1/complete/batch".into(), completes));
            asks.push((self.admin.clone(), "POST", "/v1/admin/keys".into(), create));
        }
        for path in [
            "/v1/admin/limits".to_owned(),
            "/v1/admin/limits/slots".into(),
            "/v1/admin/limits/slots/usage".into(),
            format!("/v1/leases/{}", self.lease),
            format!("/v1/clients/{}", self.client),
        ] {
            asks.push((self.reader.clone(), "GET", path, String::new()));
        }
        asks
    }
}

fn reserve(lease: &str) -> Value {
    json!({"lease_id": lease, "requirements": [{"key": "slots", "amount": 1}]})
}

fn root(nodes: &Nodes, place: usize, method: &str, path: &str, body: &Value) -> String {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let asked = (method, path, body.as_str());
    let answered = ask_by(nodes.root.as_deref(), &nodes.urls()[place], asked, PATIENCE).unwrap();
    assert_eq!(answered.status, 200, "{method} {path}: {}", answered.body);
    answered.body
}

/// Starts all requests in parallel.
fn start(url: &str, asks: Vec<Asked>) -> Vec<JoinHandle<(String, Answered)>> {
    let one = |(key, method, path, body): Asked| {
        let url = url.to_owned();
        spawn(move || {
            let answered = ask_by(Some(&key), &url, (method, &path, &body), PATIENCE).unwrap();
            (format!("{method} {path}"), answered)
        })
    };
    asks.into_iter().map(one).collect()
}

fn answers(started: Vec<JoinHandle<(String, Answered)>>) -> Vec<(String, Answered)> {
    started.into_iter().map(|asked| asked.join().unwrap()).collect()
}

/// Whether this is the answer to an invalid key.
fn is_refused(answered: &Answered) -> bool {
    answered.status == 401 && answered.body == REFUSED
}

/// Whether the outcome is unknown; in a batch each item says so.
fn is_unknown(answered: &Answered) -> bool {
    answered.status >= 500 || answered.body.contains(r#""error":"backend_error""#)
}

fn isolate(links: &Links, place: usize) {
    for other in (0..COUNT).filter(|other| *other != place) {
        links.hold(place, other, true);
        links.hold(other, place, true);
    }
}

fn revoke(nodes: &Nodes, leader: usize, key: &str) {
    let path = format!("/v1/admin/keys/{}", key.split('_').nth(1).unwrap());
    root(nodes, leader, "DELETE", &path, &Value::Null);
}

/// The state that any applied request would change.
fn state(nodes: &Nodes, leader: usize, callers: &Callers) -> Vec<String> {
    let client = format!("/v1/clients/{}", callers.client);
    let lease = format!("/v1/leases/{}", callers.lease);
    ["/v1/admin/limits", "/v1/admin/limits/slots/usage", &client, &lease, "/v1/admin/keys", "/v1/audit"]
        .map(|path| root(nodes, leader, "GET", path, &Value::Null))
        .into()
}

#[test]
fn a_revoked_key_replayed_on_a_follower_is_refused_whatever_it_has_heard() {
    let nodes = Nodes::with_keys();
    let links = nodes.links();
    let leader = nodes.leader();
    let follower = (leader + 1) % COUNT;
    let url = &nodes.urls()[follower];
    let slots = json!({"key": "slots", "kind": "concurrency", "capacity": 100, "timeout_seconds": 3_600});
    root(&nodes, leader, "PUT", "/v1/admin/limits", &slots);
    let (slow, cut) = (Callers::new(&nodes), Callers::new(&nodes));
    nodes.settled(follower);
    for callers in [&slow, &cut] {
        // In order, because later requests read the results of earlier ones.
        for asked in callers.asks(&callers.lease, 1) {
            for (what, answered) in answers(start(url, vec![asked])) {
                assert_eq!(answered.status, 200, "{what}: {}", answered.body);
            }
        }
    }

    // The follower receives the revocation with a delay.
    links.delay(SLOW);
    let mut replayed = Vec::new();
    for revoked in slow.all() {
        revoke(&nodes, leader, revoked);
        let mut asks = slow.asks(&Ulid::generate().to_string(), 2);
        asks.retain(|(key, ..)| key == revoked);
        replayed.extend(start(url, asks));
    }
    for (what, answered) in answers(replayed) {
        assert!(is_refused(&answered), "{what}: {} {}", answered.status, answered.body);
    }
    links.heal();

    // The follower is isolated.
    isolate(&links, follower);
    sleep(ON_ITS_WAY);
    cut.all().into_iter().for_each(|key| revoke(&nodes, leader, key));
    let before = state(&nodes, leader, &cut);
    for (what, answered) in answers(start(url, cut.asks(&Ulid::generate().to_string(), 2))) {
        assert!(is_refused(&answered) || is_unknown(&answered), "{what}: {} {}", answered.status, answered.body);
    }
    // The partition ends.
    links.heal();
    let mut asks = cut.asks(&Ulid::generate().to_string(), 2);
    let since = Instant::now();
    while !asks.is_empty() {
        let answered = answers(start(url, asks.clone()));
        let mut answered = answered.iter();
        asks.retain(|_| {
            let (what, answered) = answered.next().unwrap();
            assert!(is_refused(answered) || is_unknown(answered), "{what}: {}", answered.body);
            is_unknown(answered)
        });
        assert!(since.elapsed() < PATIENCE * 2, "{asks:?}");
    }
    let leader = nodes.leader();
    assert_eq!(state(&nodes, leader, &cut), before, "a revoked key changed something");
}

/// A node answers questions about itself from its own copy of the keys. It once used a cached check, even after it had
/// received the revocation.
#[test]
fn a_key_that_a_node_knows_to_be_revoked_is_refused_for_local_answers_too() {
    let nodes = Nodes::with_keys();
    let links = nodes.links();
    let leader = nodes.leader();
    let follower = (leader + 1) % COUNT;
    let url = &nodes.urls()[follower];
    let (reader, admin) = (nodes.key("reader"), nodes.key("admin"));
    nodes.settled(follower);
    let alone = |key: &str, path: &str| ask_by(Some(key), url, ("GET", path, ""), PATIENCE).unwrap();
    let asks = [(&reader, "/metrics"), (&admin, "/metrics"), (&admin, "/v1/admin/cluster")];
    for (key, path) in asks {
        assert_eq!(alone(key, path).status, 200, "{path}");
    }
    revoke(&nodes, leader, &reader);
    revoke(&nodes, leader, &admin);
    nodes.settled(follower);
    isolate(&links, follower);
    for (key, path) in asks {
        let answered = alone(key, path);
        assert!(is_refused(&answered), "{path}: {} {}", answered.status, answered.body);
    }
    // An admin gets local answers, but none that need a quorum.
    let root = nodes.root.as_deref().unwrap();
    for path in ["/metrics", "/v1/admin/cluster"] {
        assert_eq!(alone(root, path).status, 200, "{path}");
    }
    let answered = alone(root, "/v1/admin/keys");
    assert!(answered.status >= 500, "{} {}", answered.status, answered.body);
    links.heal();
    nodes.leader();
}
