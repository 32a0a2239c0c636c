//! Short helpers for requests to a node.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use earmark_admission::{
    AccountPath, Amount, Backend, BackendError, CompleteAnswer, CompleteRequest, EntryQuery, LimitQuery,
    PutLimitRequest, ReserveAnswer, ReserveRequest, WriteAnswer, WriteRequest,
};
use earmark_core::{
    AccountName, Actor, AssetName, ClientId, CreditTerms, Definition, GrantTerms, Kind, LeaseId, LimitKey,
    NamespaceName, Operation, Overdraft, Principal, Receipt, UnixMs, Usage, VaultName,
};
use earmark_node::NodeBackend;

pub const MINUTE: Kind = Kind::Rolling { window_seconds: 60 };
pub const SLOTS: Kind = Kind::Concurrency { timeout_seconds: 60 };
/// Start time of the test clocks.
pub const START_MS: u64 = 1_700_000_000_000;

static LEASES: AtomicU64 = AtomicU64::new(1);

/// A new lease with a creation time.
pub fn lease_at(ms: u64) -> LeaseId {
    LeaseId::from_parts(UnixMs::new(ms), u128::from(LEASES.fetch_add(1, Ordering::Relaxed)))
}

pub fn lease() -> LeaseId {
    lease_at(START_MS)
}

pub fn namespace() -> NamespaceName {
    NamespaceName::new(NamespaceName::DEFAULT).unwrap()
}

pub fn key(name: &str) -> LimitKey {
    LimitKey::new(name).unwrap()
}

pub fn account(name: &str) -> AccountName {
    AccountName::new(name).unwrap()
}

pub fn vault() -> VaultName {
    VaultName::new(VaultName::MAIN).unwrap()
}

pub fn path(name: &str) -> AccountPath {
    AccountPath { namespace: namespace(), vault: vault(), account: account(name) }
}

pub fn usd() -> AssetName {
    AssetName::new("usd").unwrap()
}

pub fn open(name: &str) -> Operation {
    Operation::OpenAccount { account: account(name), overdraft: Overdraft::Deny, plan: None }
}

pub fn issue(name: &str, amount: u128) -> Operation {
    Operation::Issue { account: account(name), asset: usd(), amount, memo: "bought".into(), terms: GrantTerms::PLAIN }
}

pub fn transfer(from: &str, to: &str, amount: u128) -> Operation {
    let (from, to) = (account(from), account(to));
    Operation::Transfer { from, to, asset: usd(), amount, memo: String::new() }
}

pub fn definition(name: &str, kind: Kind, capacity: u64) -> Definition {
    Definition::new(key(name), kind, capacity)
}

/// A credit limit on an account's usd.
pub fn credit(name: &str, payer: &str, timeout_seconds: u32) -> Definition {
    let terms = CreditTerms {
        timeout_seconds,
        vault: vault(),
        account: account(payer),
        asset: usd(),
        revenue: account(AccountName::REVENUE),
        on_timeout: Default::default(),
    };
    definition(name, Kind::Credit(terms), 0)
}

pub fn amounts(parts: &[(&str, u64)]) -> Vec<Amount> {
    parts.iter().map(|(name, amount)| Amount { key: key(name), amount: *amount }).collect()
}

pub fn reserve_request(lease: LeaseId, parts: &[(&str, u64)]) -> ReserveRequest {
    ReserveRequest {
        namespace: namespace(),
        lease,
        job: None,
        call: None,
        by_gateway: false,
        requirements: amounts(parts),
    }
}

pub fn write_request(client: &str, sequence: u64, operations: Vec<Operation>) -> WriteRequest {
    WriteRequest {
        namespace: namespace(),
        vault: Some(vault()),
        id: earmark_core::WriteId::Sequence { client: ClientId::new(client).unwrap(), sequence },
        operations,
        actor: Actor::new("system:test").unwrap(),
    }
}

/// Client of one node.
#[derive(Clone)]
pub struct TestClient(pub Arc<NodeBackend>);

impl TestClient {
    pub async fn put(&self, definition: Definition) {
        let request = PutLimitRequest { namespace: namespace(), definition, expected_revision: None };
        self.0.put_limit(Principal::System, request).await.unwrap();
    }

    pub async fn ask(&self, request: ReserveRequest) -> Result<ReserveAnswer, BackendError> {
        self.0.reserve(Principal::System, vec![request]).await.pop().unwrap()
    }

    /// Reserves with a new lease; must be allowed.
    pub async fn admit(&self, parts: &[(&str, u64)]) -> ReserveRequest {
        let request = reserve_request(lease(), parts);
        let answer = self.ask(request.clone()).await.unwrap();
        assert!(matches!(answer, ReserveAnswer::Allowed { .. }), "{answer:?}");
        request
    }

    pub async fn complete(&self, lease: LeaseId, parts: &[(&str, u64)]) -> CompleteAnswer {
        let request = CompleteRequest {
            namespace: namespace(),
            lease,
            job: None,
            claim: earmark_core::LeaseClaim::default(),
            actuals: amounts(parts),
            labels: earmark_core::SettleLabels::NONE,
        };
        self.0.complete(Principal::System, vec![request]).await.pop().unwrap().unwrap()
    }

    pub async fn try_write(&self, request: WriteRequest) -> Result<WriteAnswer, BackendError> {
        self.0.write(Principal::System, request).await
    }

    /// A write that must be committed.
    pub async fn write(&self, client: &str, sequence: u64, operations: Vec<Operation>) -> Arc<Receipt> {
        match self.try_write(write_request(client, sequence, operations)).await.unwrap() {
            WriteAnswer::Committed(receipt) => receipt,
            WriteAnswer::Refused(error) => panic!("{error:?}"),
        }
    }

    pub async fn usage(&self, name: &str) -> Usage {
        self.0.usage(namespace(), key(name)).await.unwrap().unwrap()
    }

    /// Available and held balance of an account.
    pub async fn balance_of(&self, name: &str) -> (i128, i128) {
        let balances = self.0.balances(path(name)).await.unwrap();
        balances.first().map_or((0, 0), |balance| (balance.available, balance.held))
    }
}

/// All externally visible state as lines: limits, usage, balances, histories, audit, sequences, leases.
pub async fn visible_state(client: &TestClient, leases: &[LeaseId]) -> Vec<String> {
    try_visible_state(client, leases).await.unwrap()
}

/// Like [`visible_state`], or the node's error.
pub async fn try_visible_state(client: &TestClient, leases: &[LeaseId]) -> Result<Vec<String>, String> {
    fn failed(error: impl std::fmt::Display) -> String {
        error.to_string()
    }
    let TestClient(backend) = client;
    let mut lines = Vec::new();
    for limit in backend.limits(namespace(), LimitQuery::default()).await.map_err(failed)?.limits {
        let usage = backend.usage(namespace(), limit.definition.key.clone()).await.map_err(failed)?;
        lines.push(format!("{limit:?} {usage:?}"));
    }
    for name in ["acme", "other", AccountName::REVENUE] {
        lines.push(format!("{name}: {:?}", backend.balances(path(name)).await.map_err(failed)?));
        let mut after = 0;
        loop {
            let page = backend.entries(path(name), EntryQuery::oldest_first(after, 3)).await.map_err(failed)?;
            lines.extend(page.entries.iter().map(|entry| format!("{name}: {entry:?}")));
            let Some(next) = page.next else { break };
            after = next;
        }
    }
    let audit = backend.audit(namespace(), vault()).await.map_err(failed)?;
    assert!(audit.balanced, "{audit:?}");
    lines.push(format!("{:?}", audit.assets));
    for client in ["billing", "load"] {
        let client = ClientId::new(client).unwrap();
        let last = backend.client_state(namespace(), Some(vault()), client.clone()).await;
        lines.push(format!("{client:?}: {:?}", last.map_err(failed)?));
    }
    for lease in leases {
        lines.push(format!("{:?}", backend.lease(namespace(), *lease).await.map_err(failed)?));
    }
    Ok(lines)
}

/// Requests of a scenario, with their answers.
#[derive(Default)]
pub struct Scenario {
    pub leases: Vec<LeaseId>,
    pub writes: Vec<(WriteRequest, WriteAnswer)>,
    pub reserves: Vec<(ReserveRequest, ReserveAnswer)>,
}

impl Scenario {
    /// A scenario with rate limits, slots, credit, debt, a decreasing limit, holds, denials and writes.
    pub async fn run(client: &TestClient) -> Scenario {
        let mut scenario = Scenario::default();
        let mut sequence = 0;
        let mut scripts =
            vec![vec![open("acme"), open("other"), issue("acme", 1_000)], vec![transfer("acme", "other", 100)], vec![]];
        scripts.extend((1..6).map(|amount| vec![transfer("other", "acme", amount)]));
        for operations in scripts {
            sequence += 1;
            scenario.write(client, write_request("billing", sequence, operations)).await;
        }
        client.put(definition("rpm", MINUTE, 100)).await;
        client.put(definition("tokens", MINUTE, 10)).await;
        client.put(definition("slots", SLOTS, 3)).await;
        client.put(definition("down", MINUTE, 10)).await;
        client.put(credit("usd", "acme", 60)).await;
        scenario.reserve(client, &[("rpm", 1), ("slots", 1), ("usd", 30)]).await;
        scenario.reserve(client, &[("down", 8)]).await;
        // These exceed the capacity or the balance.
        scenario.reserve(client, &[("tokens", 11)]).await;
        scenario.reserve(client, &[("usd", 5_000)]).await;
        client.put(definition("down", MINUTE, 5)).await;
        let over = client.admit(&[("tokens", 10), ("usd", 40)]).await.lease;
        client.complete(over, &[("tokens", 15), ("usd", 25)]).await;
        scenario.leases.push(over);
        scenario
    }

    pub async fn write(&mut self, client: &TestClient, request: WriteRequest) {
        let answer = client.try_write(request.clone()).await.unwrap();
        assert!(matches!(answer, WriteAnswer::Committed(_)), "{answer:?}");
        self.writes.push((request, answer));
    }

    pub async fn reserve(&mut self, client: &TestClient, parts: &[(&str, u64)]) {
        let request = reserve_request(lease(), parts);
        let answer = client.ask(request.clone()).await.unwrap();
        self.leases.push(request.lease);
        self.reserves.push((request, answer));
    }

    /// Repeats all requests and expects the first answers.
    pub async fn repeat_all(&self, client: &TestClient) {
        for (request, answer) in &self.writes {
            assert_eq!(client.try_write(request.clone()).await.unwrap(), *answer);
        }
        for (request, answer) in &self.reserves {
            let again = client.ask(request.clone()).await.unwrap();
            match answer {
                ReserveAnswer::Allowed { .. } => assert_eq!(again, *answer),
                // The retry hint depends on the time and on other leases.
                _ => assert_eq!(std::mem::discriminant(&again), std::mem::discriminant(answer), "{again:?}"),
            }
        }
    }

    pub async fn visible_state(&self, client: &TestClient) -> Vec<String> {
        visible_state(client, &self.leases).await
    }
}
