//! The gateway before a real server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{Backend, LocalBook, LocalOptions};
use earmark_client::http::{HttpClient, HttpRequest, Method};
use earmark_client::{ApiKey, Client, ClientOptions, Deadline};
use earmark_gateway::earmark::Remote;
use earmark_gateway::open_calls::OpenCalls;
use earmark_server::{Server, ServerOptions};
use serde_json::{Value, json};

use crate::earmark::Double;
use crate::fixture::{CHAT_BODY, CHAT_STREAM_BODY, Running, config, send};
use crate::upstream::{CHAT, CHAT_STREAM, Step, Upstream, chunk, stream, stream_head, whole};

/// A token costs 1 for input, half of that if it is cached, and 10 for output.
const POLICY: &str = r#"
[[rules]]
name   = "all"
limits = [
  { key = "rpm", amount = "requests" },
  { key = "slots", amount = "requests" },
  { key = "usd", amount = "cost" },
]
[[prices]]
model = "gpt-4o*"
asset = "usd"
input = 1_000_000
cached_input = 500_000
output = 10_000_000
"#;

/// A server in this process. It stops with its runtime.
pub struct Real {
    url: String,
    http: HttpClient,
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

impl Real {
    /// A server with limits of these capacities, and credit of `credit`.
    pub async fn start(rpm: u64, slots: u64, credit: u64) -> Real {
        let backend: Arc<dyn Backend> = Arc::new(LocalBook::open(LocalOptions::default()).await.unwrap());
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::bind(ServerOptions { listen, ..ServerOptions::default() }, backend).await.unwrap();
        let url = format!("http://{}", server.local_addr());
        tokio::spawn(server.run(std::future::pending()));
        let http = HttpClient::new(&ClientOptions::of(&[&url]).unwrap()).unwrap();
        let real = Real { url, http };
        let write = json!({"namespace": "default", "vault": "main", "client_id": "test", "sequence": 1, "operations": [
            {"open_account": {"account": "acme", "overdraft": "deny"}},
            {"issue": {"account": "acme", "asset": "usd", "amount": credit.to_string()}}]});
        real.send(Method::POST, "/v1/write", write).await;
        for limit in [
            json!({"key": "rpm", "kind": "rolling", "capacity": rpm, "window_seconds": 3600}),
            json!({"key": "slots", "kind": "concurrency", "capacity": slots, "timeout_seconds": 600}),
            json!({"key": "usd", "kind": "credit", "vault": "main", "account": "acme", "asset": "usd",
                "timeout_seconds": 600}),
        ] {
            real.send(Method::PUT, "/v1/admin/limits", limit).await;
        }
        real.send(Method::PUT, "/v1/admin/policy", json!({"policy": POLICY})).await;
        real
    }

    async fn send(&self, method: Method, path: &str, body: Value) -> Value {
        let request = HttpRequest::new(method, path).json(body.to_string());
        let answer = self.http.send(&request, soon()).await.unwrap();
        assert!(answer.status.is_success(), "{path}: {}", String::from_utf8_lossy(&answer.body));
        serde_json::from_slice(&answer.body).unwrap()
    }

    /// Creates a key. The first one closes the server, and is used from then on.
    async fn key(&mut self, role: &str, more: Value) -> String {
        let mut body = json!({"name": role, "role": role});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let created = self.send(Method::POST, "/v1/admin/keys", body).await;
        let key = created["key"].as_str().unwrap().to_owned();
        if role == "admin" {
            self.http = self.client_with(&key);
        }
        key
    }

    fn client_with(&self, key: &str) -> HttpClient {
        let mut options = ClientOptions::of(&[&self.url]).unwrap();
        options.key = Some(ApiKey::new(key).unwrap());
        HttpClient::new(&options).unwrap()
    }

    async fn get(&self, path: &str) -> Value {
        let answer = self.http.send(&HttpRequest::new(Method::GET, path), soon()).await.unwrap();
        serde_json::from_slice(&answer.body).unwrap()
    }

    /// The spendable and the held amount.
    async fn balance(&self) -> (u64, u64) {
        let balances = self.get("/v1/vaults/main/accounts/acme/balances").await;
        let amount = |name: &str| balances["balances"][0][name].as_str().unwrap().parse().unwrap();
        (amount("available"), amount("held"))
    }

    async fn reserved(&self, key: &str) -> u64 {
        self.get(&format!("/v1/admin/limits/{key}/usage")).await["reserved"].as_u64().unwrap()
    }

    /// Waits until nothing is held and no slot is taken.
    async fn settled(&self) {
        for _ in 0..500 {
            if self.balance().await.1 == 0 && self.reserved("slots").await == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("not settled: {:?}, {} slots", self.balance().await, self.reserved("slots").await);
    }

    async fn gateway(&self, upstream: &Upstream, key: Option<&str>, calls: OpenCalls) -> Running {
        let mut options = ClientOptions::of(&[&self.url]).unwrap();
        options.key = key.map(|key| ApiKey::new(key).unwrap());
        let remote = Remote::new(Client::new(options).unwrap()).unwrap();
        let earmark = (Double::default(), Arc::new(remote) as Arc<_>);
        Running::before(&config(upstream, ""), upstream.clone(), earmark, calls, key.is_some()).await
    }

    pub async fn open(&self, upstream: &Upstream) -> Running {
        self.gateway(upstream, None, OpenCalls::in_memory()).await
    }

    /// A gateway with `more` in the configuration of its first upstream.
    async fn open_with(&self, upstream: &Upstream, more: &str) -> Running {
        let remote = Remote::new(Client::new(ClientOptions::of(&[&self.url]).unwrap()).unwrap()).unwrap();
        let earmark = (Double::default(), Arc::new(remote) as Arc<_>);
        Running::before(&config(upstream, more), upstream.clone(), earmark, OpenCalls::in_memory(), false).await
    }
}

/// The most that [`CHAT_BODY`] may cost: its bytes and the overhead, and 100 output tokens.
fn bound(body: &str) -> u64 {
    body.len() as u64 + 512 + 100 * 10
}

#[tokio::test]
async fn cached_tokens_are_priced_as_cached() {
    let (real, upstream) = (Real::start(100, 10, 100_000).await, Upstream::start().await);
    let gateway = real.open(&upstream).await;
    upstream.always(whole(200, "", CHAT));
    let answer = gateway.chat(CHAT_BODY).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    // 3 input tokens, 4 cached ones, 3 output tokens.
    assert_eq!(answer.header("x-earmark-cost").as_deref(), Some("35"));
    real.settled().await;
    assert_eq!(real.balance().await, (100_000 - 35, 0));
    assert_eq!(real.reserved("rpm").await, 1);
}

#[tokio::test]
async fn parallel_calls_cannot_spend_the_same_credit() {
    let upstream = Upstream::start().await;
    let real = Real::start(100, 100, 2 * bound(CHAT_BODY) + 100).await;
    let gateway = real.open(&upstream).await;
    let mut slow = whole(200, "", CHAT);
    slow.insert(0, Step::Wait(Duration::from_millis(500)));
    upstream.always(slow);
    let calls = (0..12).map(|_| gateway.chat(CHAT_BODY));
    let mut tasks = Vec::new();
    for call in calls {
        tasks.push(call);
    }
    let statuses: Vec<u16> = futures(tasks).await.into_iter().map(|answer| answer.status).collect();
    let passed = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!(passed, 2, "{statuses:?}");
    assert!(statuses.iter().all(|status| matches!(status, 200 | 429)), "{statuses:?}");
    real.settled().await;
    assert_eq!(real.balance().await.0, 2 * bound(CHAT_BODY) + 100 - 2 * 35);
    assert_eq!(upstream.seen().len(), 2);
}

/// Polls all of them at once.
async fn futures<F: Future>(all: Vec<F>) -> Vec<F::Output> {
    let mut all: Vec<_> = all.into_iter().map(|one| (Box::pin(one), None)).collect();
    std::future::poll_fn(|context| {
        let mut is_done = true;
        for (one, output) in &mut all {
            if output.is_none() {
                match one.as_mut().poll(context) {
                    std::task::Poll::Ready(ready) => *output = Some(ready),
                    std::task::Poll::Pending => is_done = false,
                }
            }
        }
        if is_done { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    all.into_iter().filter_map(|(_, output)| output).collect()
}

#[tokio::test]
async fn limits_do_not_multiply_with_replicas() {
    let (real, upstream) = (Real::start(5, 100, 1_000_000).await, Upstream::start().await);
    upstream.always(whole(200, "", CHAT));
    let gateways = [real.open(&upstream).await, real.open(&upstream).await, real.open(&upstream).await];
    let calls: Vec<_> = (0..30).map(|number| gateways[number % 3].chat(CHAT_BODY)).collect();
    let answers = futures(calls).await;
    assert_eq!(answers.iter().filter(|answer| answer.status == 200).count(), 5);
    let denied = answers.iter().find(|answer| answer.status == 429).unwrap();
    assert_eq!(denied.header("x-earmark-limited-by").as_deref(), Some("rpm"));
    assert!(denied.header("retry-after-ms").is_some());
    real.settled().await;
    assert_eq!((upstream.seen().len(), real.reserved("rpm").await), (5, 5));
}

/// Others count the request, or take the slot, before the credit denies the call.
#[tokio::test]
async fn a_denied_call_burns_nothing() {
    let upstream = Upstream::start().await;
    let real = Real::start(5, 1, bound(CHAT_BODY) - 1).await;
    let gateway = real.open(&upstream).await;
    for _ in 0..10 {
        let answer = gateway.chat(CHAT_BODY).await;
        assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (429, Some("insufficient_quota")));
    }
    assert_eq!((real.reserved("rpm").await, real.reserved("slots").await), (0, 0));
    assert_eq!(real.balance().await, (bound(CHAT_BODY) - 1, 0));
    assert!(upstream.seen().is_empty());
}

#[tokio::test]
async fn a_finished_stream_frees_its_slot() {
    let (real, upstream) = (Real::start(100, 1, 1_000_000).await, Upstream::start().await);
    let gateway = real.open(&upstream).await;
    upstream.always(stream(&CHAT_STREAM));
    for _ in 0..3 {
        let answer = gateway.chat(CHAT_STREAM_BODY).await;
        assert!(answer.status == 200 && answer.is_whole, "{answer:?}");
        real.settled().await;
    }
    assert_eq!(real.balance().await.0, 1_000_000 - 3 * 37);
}

/// LiteLLM keeps a slot, or a key, after a provider's timeout.
#[tokio::test]
async fn a_provider_timeout_locks_no_key() {
    let (real, upstream) = (Real::start(100, 1, 1_000_000).await, Upstream::start().await);
    let gateway = real.open_with(&upstream, "timeouts = { first_byte_seconds = 1 }").await;
    upstream.then(vec![Step::Hang]);
    let answer = gateway.chat(CHAT_BODY).await;
    assert_eq!((answer.status, answer.json()["error"]["type"].as_str()), (504, Some("server_error")));
    real.settled().await;
    upstream.then(whole(200, "", CHAT));
    assert_eq!(gateway.chat(CHAT_BODY).await.status, 200, "the only slot is free again");
    real.settled().await;
    assert_eq!(real.balance().await.0, 1_000_000 - bound(CHAT_BODY) - 35);
}

#[tokio::test]
async fn an_outage_of_the_provider_charges_nobody() {
    let (real, mut upstream) = (Real::start(100, 1, 1_000_000).await, Upstream::start().await);
    let gateway = real.open(&upstream).await;
    upstream.then(whole(503, "", "{}"));
    assert_eq!(gateway.chat(CHAT_BODY).await.status, 503);
    real.settled().await;
    // A port that nobody listens on.
    upstream.url = "http://127.0.0.1:1".to_owned();
    let gateway = real.open(&upstream).await;
    for _ in 0..3 {
        assert_eq!(gateway.chat(CHAT_BODY).await.status, 502);
        real.settled().await;
    }
    assert_eq!(real.balance().await, (1_000_000, 0));
    assert_eq!(real.reserved("rpm").await, 0);
}

#[tokio::test]
async fn a_client_that_leaves_pays_what_was_generated() {
    let (real, upstream) = (Real::start(100, 1, 1_000_000).await, Upstream::start().await);
    let gateway = real.open(&upstream).await;
    let mut steps = stream(&CHAT_STREAM);
    steps.insert(2, Step::Wait(Duration::from_millis(300)));
    upstream.always(steps);
    {
        let mut client = gateway.connect().await;
        send(&mut client, "/v1/chat/completions", "", CHAT_STREAM_BODY).await;
        while upstream.seen().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    real.settled().await;
    assert_eq!(real.balance().await.0, 1_000_000 - 37);
}

#[tokio::test]
async fn a_killed_gateway_settles_at_its_next_start() {
    let (real, upstream) = (Real::start(100, 1, 1_000_000).await, Upstream::start().await);
    let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    upstream.always(vec![stream_head(), chunk(CHAT_STREAM[0]), Step::Hang]);
    {
        let gateway = real.gateway(&upstream, None, OpenCalls::open(folder.path()).unwrap()).await;
        let mut client = gateway.connect().await;
        send(&mut client, "/v1/chat/completions", "", CHAT_STREAM_BODY).await;
        while upstream.seen().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(real.balance().await.1, bound(CHAT_STREAM_BODY));
        std::fs::copy(folder.path().join("calls"), copy.path().join("calls")).unwrap();
    }
    let _next = real.gateway(&upstream, None, OpenCalls::open(copy.path()).unwrap()).await;
    real.settled().await;
    assert_eq!(real.balance().await.0, 1_000_000 - bound(CHAT_STREAM_BODY));
}

#[tokio::test]
async fn a_client_cannot_complete_its_own_call() {
    let (mut real, upstream) = (Real::start(100, 10, 1_000_000).await, Upstream::start().await);
    real.key("admin", json!({})).await;
    let own = real.key("gateway", json!({})).await;
    let more = json!({"labels": {"tenant": "acme"}, "may_set": ["user"]});
    let keys = [real.key("caller", more.clone()).await, real.key("client", more).await];
    let gateway = real.gateway(&upstream, Some(&own), OpenCalls::in_memory()).await;
    for key in &keys {
        let mut slow = whole(200, "", CHAT);
        slow.insert(0, Step::Wait(Duration::from_millis(700)));
        upstream.then(slow);
        let header = format!("authorization: Bearer {key}\r\n");
        let before = upstream.seen().len();
        let call = gateway.post("/v1/chat/completions", &header, CHAT_BODY);
        let cheat = async {
            while upstream.seen().len() == before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let (available, held) = real.balance().await;
            let leases = real.get("/v1/admin/limits/slots/usage").await["reserved"].as_u64();
            assert_eq!((held, leases), (bound(CHAT_BODY), Some(1)));
            available
        };
        let (answer, _) = tokio::join!(call, cheat);
        assert_eq!(answer.status, 200, "{answer:?}");
        let lease = answer.header("x-earmark-lease").unwrap();
        let attributes = json!({"model": "gpt-4o", "alias": "fast", "provider": "one", "operation": "chat"});
        for (path, body) in [
            ("/v1/calls/complete", json!({"lease_id": lease, "attributes": attributes, "outcome": "refused"})),
            ("/v1/complete", json!({"lease_id": lease, "actuals": [{"key": "usd", "actual_amount": 0}]})),
        ] {
            let request = HttpRequest::new(Method::POST, path).json(body.to_string());
            let answer = real.client_with(key).send(&request, soon()).await.unwrap();
            assert_eq!(answer.status.as_u16(), 403, "{path}: {}", String::from_utf8_lossy(&answer.body));
        }
    }
    real.settled().await;
    assert_eq!(real.balance().await.0, 1_000_000 - 2 * 35);
    let wrong = gateway.post("/v1/chat/completions", "authorization: Bearer emk_a_b\r\n", CHAT_BODY).await;
    assert_eq!(wrong.status, 401, "{wrong:?}");
    let header = format!("authorization: Bearer {}\r\nx-earmark-attributes: tenant=other\r\n", keys[0]);
    let other = gateway.post("/v1/chat/completions", &header, CHAT_BODY).await;
    assert_eq!(other.status, 403, "a label cannot be contradicted: {other:?}");
    assert_eq!(upstream.seen().len(), 2);
}

/// Every attribute, by every way a request to a gateway can carry it.
#[tokio::test]
async fn a_client_poses_as_nobody_through_a_gateway() {
    let (mut real, upstream) = (Real::start(100, 10, 1_000_000).await, Upstream::start().await);
    upstream.always(whole(200, "", CHAT));
    real.key("admin", json!({})).await;
    for key in ["t:{tenant}", "u:{user}"] {
        let template = json!({"key": key, "kind": "rolling", "capacity": 100, "window_seconds": 600});
        real.send(Method::PUT, "/v1/admin/templates", template).await;
    }
    let rule = |name: &str, key: &str| {
        format!("[[rules]]\nname = \"{name}\"\noptional = true\nlimits = [ {{ key = \"{key}\", amount = 1 }} ]\n")
    };
    let policy = rule("tenant", "t:{tenant}") + &rule("user", "u:{user}");
    real.send(Method::PUT, "/v1/admin/policy", json!({"policy": policy})).await;
    let own = real.key("gateway", json!({})).await;
    let labels = json!({"tenant": "acme", "plan": "pro"});
    let may = real.key("client", json!({"labels": labels, "may_set": ["user"]})).await;
    let may_not = real.key("client", json!({"labels": labels})).await;
    let gateway = real.gateway(&upstream, Some(&own), OpenCalls::in_memory()).await;
    let credentials = |key: &str| format!("authorization: Bearer {key}\r\n");
    for (key, attributes, status) in [
        (&may, "tenant=other", 403),
        (&may, "plan=free", 403),
        (&may, "feature=chat", 403),
        (&may_not, "user=u1", 403),
        (&may, "key=k1", 400),
        (&may, "model=cheap", 400),
        (&may, "provider=other", 400),
        (&may, "alias=cheap", 400),
        (&may, "operation=embeddings", 400),
        (&may, "Tenant=other", 400),
        (&may, "tenant=acme, tenant=other", 400),
        (&may, "tenant=acme, plan=pro", 200),
        (&may, "user=u1", 200),
    ] {
        let headers = format!("{}x-earmark-attributes: {attributes}\r\n", credentials(key));
        let answer = gateway.post("/v1/chat/completions", &headers, CHAT_BODY).await;
        assert_eq!(answer.status, status, "{attributes}: {answer:?}");
    }
    // A client that names another one as a gateway does is still itself.
    let headers = format!("{}x-earmark-client-key: {may}\r\n", credentials(&may_not));
    for (headers, user) in [(credentials(&may), "u2"), (credentials(&may_not), "u3"), (headers, "u4")] {
        let body = CHAT_BODY.replacen('{', &format!("{{\"user\":\"{user}\","), 1);
        assert_eq!(gateway.post("/v1/chat/completions", &headers, &body).await.status, 200, "{user}");
    }
    real.settled().await;
    let usage = real.get("/v1/usage?page_size=100").await;
    let keys = usage["usage"].as_array().unwrap().iter().map(|limit| limit["key"].as_str().unwrap());
    let named: Vec<&str> = keys.filter(|key| key.starts_with("t:") || key.starts_with("u:")).collect();
    assert_eq!(named, ["t:acme", "u:u1", "u:u2"]);
}

#[tokio::test]
async fn a_revoked_clients_call_is_still_settled() {
    let (mut real, upstream) = (Real::start(100, 10, 1_000_000).await, Upstream::start().await);
    real.key("admin", json!({})).await;
    let own = real.key("gateway", json!({})).await;
    let key = real.key("client", json!({"namespace": "default", "labels": {"tenant": "acme"}})).await;
    let gateway = real.gateway(&upstream, Some(&own), OpenCalls::in_memory()).await;
    let mut slow = whole(200, "", CHAT);
    slow.insert(0, Step::Wait(Duration::from_millis(700)));
    upstream.then(slow);
    let header = format!("x-api-key: {key}\r\n");
    let revoke = async {
        while upstream.seen().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let id = key.split('_').nth(1).unwrap();
        let request = HttpRequest::new(Method::DELETE, format!("/v1/admin/keys/{id}"));
        assert!(real.http.send(&request, soon()).await.unwrap().status.is_success());
    };
    let (answer, ()) = tokio::join!(gateway.post("/v1/chat/completions", &header, CHAT_BODY), revoke);
    assert_eq!(answer.status, 200);
    real.settled().await;
    assert_eq!(real.balance().await.0, 1_000_000 - 35);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(gateway.post("/v1/chat/completions", &header, CHAT_BODY).await.status, 401);
}

/// The gateway warns of them at its start, so its role must be able to read them.
#[tokio::test]
async fn a_gateway_finds_the_credit_limits_that_release_what_is_not_settled() {
    use earmark_gateway::earmark::Earmark as _;
    let mut real = Real::start(100, 10, 1_000_000).await;
    let credit = |key: &str, account: &str, on_timeout: &str| {
        json!({"key": key, "kind": "credit", "vault": "main", "account": account, "asset": "usd",
            "timeout_seconds": 600, "on_timeout": on_timeout})
    };
    real.send(Method::PUT, "/v1/admin/limits", credit("charged", "acme", "charge")).await;
    real.send(Method::PUT, "/v1/admin/templates", credit("{tenant}:usd", "{tenant}", "release")).await;
    real.key("admin", json!({})).await;
    let own = real.key("gateway", json!({})).await;
    let mut options = ClientOptions::of(&[&real.url]).unwrap();
    options.key = Some(ApiKey::new(&own).unwrap());
    let remote = Remote::new(Client::new(options).unwrap()).unwrap();
    let keys: Vec<String> = remote.releasing().await.unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(keys, ["usd", "{tenant}:usd"]);
}

#[tokio::test]
async fn a_gateway_needs_a_key_of_its_role() {
    let (mut real, upstream) = (Real::start(100, 10, 1_000_000).await, Upstream::start().await);
    let admin = real.key("admin", json!({})).await;
    for (key, what) in
        [(Some(admin.as_str()), "has role admin, and needs role gateway"), (None, "refuses this gateway")]
    {
        let mut options = ClientOptions::of(&[&real.url]).unwrap();
        options.key = key.map(|key| ApiKey::new(key).unwrap());
        let earmark = Arc::new(Remote::new(Client::new(options).unwrap()).unwrap());
        let config = earmark_gateway::config::Config::parse(&config(&upstream, "")).unwrap();
        let calls = OpenCalls::in_memory();
        let options = earmark_gateway::GatewayOptions { config, earmark, calls, has_key: key.is_some() };
        let error = earmark_gateway::Gateway::bind(options).await.err().unwrap().to_string();
        assert!(error.contains(what), "{error}");
    }
}
