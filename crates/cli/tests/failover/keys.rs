//! Keys that are revoked while a node does not hear of it, replayed there over HTTP.

use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ulid::Ulid;

use crate::ask::{Answered, ask_by};
use crate::links::Links;
use crate::nodes::{COUNT, Nodes};

const PATIENCE: Duration = Duration::from_secs(15);
/// So long takes everything that nodes say to each other: longer than it takes to send a request again.
const SLOW: Duration = Duration::from_millis(15);
/// What was on its way when a link was cut may still arrive.
const ON_ITS_WAY: Duration = Duration::from_millis(100);
const REFUSED: &str = r#"{"error":"unauthenticated","message":"the credentials are missing or not valid"}"#;

/// A key of each role, and a lease that one of them has.
struct Callers {
    caller: String,
    writer: String,
    reader: String,
    admin: String,
    lease: String,
    client: String,
}

/// A request: by whom, and what.
type Asked = (String, &'static str, String, String);

impl Callers {
    fn new(nodes: &Nodes) -> Callers {
        let [caller, writer, reader, admin] =
            ["caller", "writer", "reader", "admin"].map(|role| nodes.key(role));
        let (lease, client) = (Ulid::generate().to_string(), Ulid::generate().to_string());
        Callers { caller, writer, reader, admin, lease, client }
    }

    fn all(&self) -> [&String; 4] {
        [&self.caller, &self.writer, &self.reader, &self.admin]
    }

    /// What they may do while their keys are good. What changes something is another thing each time.
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
        // Once only, for a lease stays what it was completed as.
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

/// Everything at once, each as soon as it can be.
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

/// Whether it is the one answer that there is to a key which is not good.
fn is_refused(answered: &Answered) -> bool {
    answered.status == 401 && answered.body == REFUSED
}

/// Whether a node says that it cannot know. In a batch it says so of each.
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

/// What would not be the same if anything had been done.
fn seen(nodes: &Nodes, leader: usize, callers: &Callers) -> Vec<String> {
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
        // One after the other: what is read was made before.
        for asked in callers.asks(&callers.lease, 1) {
            for (what, answered) in answers(start(url, vec![asked])) {
                assert_eq!(answered.status, 200, "{what}: {}", answered.body);
            }
        }
    }

    // The follower hears of it later than whoever revoked them.
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

    // It hears of nothing at all.
    isolate(&links, follower);
    sleep(ON_ITS_WAY);
    cut.all().into_iter().for_each(|key| revoke(&nodes, leader, key));
    let before = seen(&nodes, leader, &cut);
    for (what, answered) in answers(start(url, cut.asks(&Ulid::generate().to_string(), 2))) {
        assert!(
            is_refused(&answered) || is_unknown(&answered),
            "{what}: {} {}",
            answered.status,
            answered.body
        );
    }
    // And now of everything, in whatever order.
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
    assert_eq!(seen(&nodes, leader, &cut), before, "nothing was done by keys that were revoked");
}

/// What a node tells of itself it tells alone, by what it knows of keys. It went by what its door had seen a moment
/// before, even if it had heard since that the key was revoked.
#[test]
fn a_key_that_a_node_knows_to_be_revoked_is_refused_also_where_it_answers_alone() {
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
    // Whoever looks after it is told how it is, and nothing that it would have to ask others for.
    let root = nodes.root.as_deref().unwrap();
    for path in ["/metrics", "/v1/admin/cluster"] {
        assert_eq!(alone(root, path).status, 200, "{path}");
    }
    let answered = alone(root, "/v1/admin/keys");
    assert!(answered.status >= 500, "{} {}", answered.status, answered.body);
    links.heal();
    nodes.leader();
}
