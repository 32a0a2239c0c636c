//! Quotas: one tenant uses up its share of each table, and another goes on.

use earmark_core::{QuotaKind, Role};
use earmark_proto::v1;
use serde_json::{Value, json};

use crate::grpc::callers::with;
use crate::grpc::calls;
use crate::support::KeyedServer;

/// A writer, a caller and an admin of one namespace.
struct Tenant {
    name: &'static str,
    writer: String,
    caller: String,
    admin: String,
    sequence: u64,
}

impl Tenant {
    async fn new(keyed: &KeyedServer, name: &'static str) -> Tenant {
        Tenant {
            name,
            writer: keyed.key(Role::Writer, name).await,
            caller: keyed.key(Role::Caller, name).await,
            admin: keyed.key(Role::Admin, name).await,
            sequence: 0,
        }
    }

    /// Writes as client `c`; a refused write leaves its sequence free.
    async fn write(&mut self, keyed: &KeyedServer, vault: Option<&str>, operation: Value) -> (u16, Value) {
        let sequence = self.sequence + 1;
        let client = vault.map_or("c".to_owned(), |vault| format!("c-{vault}-{sequence}"));
        let sequence = if vault.is_some() { 1 } else { sequence };
        let body = json!({
            "namespace": self.name, "vault": vault, "client_id": client, "sequence": sequence, "operations": [operation],
        });
        let answer = keyed.ask(Some(&self.writer), "POST", "/v1/write", &body.to_string()).await;
        if answer.status == 200 {
            self.sequence += 1;
        }
        (answer.status, answer.json())
    }

    async fn put_limit(&self, keyed: &KeyedServer, key: &str) -> (u16, Value) {
        let body = json!({"key": key, "kind": "rolling", "capacity": 1, "window_seconds": 60});
        let answer = keyed.ask(Some(&self.writer), "PUT", "/v1/admin/limits", &body.to_string()).await;
        (answer.status, answer.json())
    }

    async fn reserve(&self, keyed: &KeyedServer, lease: &str, key: &str) -> Value {
        let body = json!({"lease_id": lease, "requirements": [{"key": key, "amount": 1}]});
        let answer = keyed.ask(Some(&self.caller), "POST", "/v1/reserve", &body.to_string()).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    async fn create_key(&self, keyed: &KeyedServer) -> (u16, Value) {
        let body = json!({"name": "more", "role": "reader"});
        let answer = keyed.ask(Some(&self.admin), "POST", "/v1/admin/keys", &body.to_string()).await;
        (answer.status, answer.json())
    }
}

async fn set(keyed: &KeyedServer, namespace: &str, quotas: Value) {
    let path = format!("/v1/admin/quotas/{namespace}");
    let answer = keyed.ask(Some(&keyed.root), "PUT", &path, &quotas.to_string()).await;
    assert_eq!((answer.status, answer.json()), (200, json!({"ok": true})));
}

async fn get(keyed: &KeyedServer, namespace: &str) -> Value {
    let path = format!("/v1/admin/quotas/{namespace}");
    let answer = keyed.ask(Some(&keyed.root), "GET", &path, "").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["quotas"].clone()
}

fn assert_refused((status, answer): (u16, Value), code: &str, what: &str) {
    assert_eq!(status, 409, "{answer}");
    assert_eq!(answer["error"]["code"], code, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains(what), "{answer}");
}

/// Regression: one writer key filled the tables of limits, vaults, accounts and clients, and one caller that of leases,
/// for every tenant and for good.
#[tokio::test]
async fn a_tenant_that_uses_up_each_table_leaves_the_other_working() {
    let keyed = KeyedServer::open().await;
    let (mut greedy, mut honest) = (Tenant::new(&keyed, "greedy").await, Tenant::new(&keyed, "honest").await);
    let quotas = json!({"limits": 2, "vaults": 2, "accounts": 4, "clients": 4, "keys": 4, "leases": 3});
    set(&keyed, "greedy", quotas).await;

    for key in ["a", "b"] {
        assert_eq!(greedy.put_limit(&keyed, key).await.0, 200);
    }
    let (status, answer) = greedy.put_limit(&keyed, "c").await;
    assert_eq!((status, &answer["error"]), (409, &json!("quota_exceeded:limits")));
    let operation =
        json!({"put_limit": {"definition": {"key": "c", "kind": "rolling", "capacity": 1, "window_seconds": 1}}});
    assert_refused(greedy.write(&keyed, None, operation).await, "QUOTA_EXCEEDED", "quota_exceeded:limits");

    let open_vault = |name: &str| json!({"open_vault": {"vault": name}});
    let open_account = |name: &str| json!({"open_account": {"account": name, "overdraft": "deny"}});
    for vault in ["x", "y"] {
        assert_eq!(greedy.write(&keyed, None, open_vault(vault)).await.0, 200);
    }
    assert_refused(greedy.write(&keyed, None, open_vault("z")).await, "QUOTA_EXCEEDED", "quota_exceeded:vaults");
    for account in ["p", "q"] {
        assert_eq!(greedy.write(&keyed, Some("x"), open_account(account)).await.0, 200);
    }
    assert_refused(
        greedy.write(&keyed, Some("x"), open_account("r")).await,
        "QUOTA_EXCEEDED",
        "quota_exceeded:accounts",
    );
    let freeze = json!({"freeze_account": {"account": "p"}});
    assert_eq!(greedy.write(&keyed, Some("x"), freeze.clone()).await.0, 200, "the fourth client");
    assert_refused(greedy.write(&keyed, Some("x"), freeze).await, "TOO_MANY_CLIENTS", "quota_exceeded:clients");

    let (status, answer) = greedy.create_key(&keyed).await;
    assert_eq!((status, answer["info"]["namespace"].as_str()), (200, Some("greedy")));
    let (status, answer) = greedy.create_key(&keyed).await;
    assert_eq!((status, &answer["error"]), (409, &json!("quota_exceeded:keys")));

    // The first lease is allowed, the second and the third are denied; all three are remembered.
    for _ in 0..3 {
        let answer = greedy.reserve(&keyed, &keyed.server.lease(), "a").await;
        assert_eq!(answer["error"], "", "{answer}");
    }
    let lease = keyed.server.lease();
    let answer = greedy.reserve(&keyed, &lease, "a").await;
    assert_eq!((&answer["allowed"], &answer["error"]), (&json!(false), &json!("quota_exceeded:leases")));
    assert!(answer["retry_after_ms"].as_u64().unwrap() > 0, "{answer}");

    let used = get(&keyed, "greedy").await;
    for kind in ["limits", "vaults", "accounts", "clients", "keys", "leases"] {
        assert_eq!(used[kind]["used"], used[kind]["quota"], "{kind}: {used}");
    }
    assert!(used["journal_bytes_per_day"]["used"].as_u64().unwrap() > 0, "{used}");
    assert_eq!(used["templates"]["used"], 0);

    assert_eq!(honest.put_limit(&keyed, "a").await.0, 200);
    assert_eq!(honest.write(&keyed, None, open_vault("x")).await.0, 200);
    assert_eq!(honest.write(&keyed, Some("x"), open_account("p")).await.0, 200);
    assert_eq!(honest.create_key(&keyed).await.0, 200);
    assert_eq!(honest.reserve(&keyed, &keyed.server.lease(), "a").await["allowed"], true);

    // The refused lease left no trace, so a higher quota lets it try again.
    set(&keyed, "greedy", json!({"leases": 4})).await;
    assert_eq!(greedy.reserve(&keyed, &lease, "b").await["allowed"], true);
}

/// Regression: templates, the limits derived from them, and idempotency keys had no quota of a tenant either.
#[tokio::test]
async fn a_tenant_that_uses_up_templates_derived_limits_and_keys_of_writes_leaves_the_other_working() {
    let keyed = KeyedServer::open().await;
    let (greedy, honest) = (Tenant::new(&keyed, "greedy").await, Tenant::new(&keyed, "honest").await);
    let quotas = json!({"templates": 1, "derived_limits": 2, "idempotency_keys": 1, "policy_bytes": 10});
    set(&keyed, "greedy", quotas).await;
    let template = async |tenant: &Tenant, key: &str| {
        let body = json!({"key": key, "kind": "rolling", "capacity": 5, "window_seconds": 60}).to_string();
        let answer = keyed.ask(Some(&tenant.writer), "PUT", "/v1/admin/templates", &body).await;
        (answer.status, answer.json()["error"].clone())
    };
    let write = async |tenant: &Tenant, key: &str| {
        let body = json!({"namespace": tenant.name, "idempotency_key": key, "operations": []}).to_string();
        let answer = keyed.ask(Some(&tenant.writer), "POST", "/v1/write", &body).await;
        (answer.status, answer.json()["error"]["code"].clone())
    };
    assert_eq!(template(&greedy, "{user}:rpm").await, (200, Value::Null));
    assert_eq!(template(&greedy, "{user}:tpm").await, (409, json!("quota_exceeded:templates")));
    for user in ["a:rpm", "b:rpm"] {
        assert_eq!(greedy.reserve(&keyed, &keyed.server.lease(), user).await["allowed"], true);
    }
    let lease = keyed.server.lease();
    let answer = greedy.reserve(&keyed, &lease, "c:rpm").await;
    assert_eq!((&answer["allowed"], &answer["error"]), (&json!(false), &json!("quota_exceeded:derived_limits")));
    assert_eq!(greedy.reserve(&keyed, &keyed.server.lease(), "a:rpm").await["allowed"], true, "a live key goes on");
    assert_eq!(write(&greedy, "evt_1").await, (200, Value::Null));
    assert_eq!(write(&greedy, "evt_2").await, (409, json!("TOO_MANY_KEYS")));
    let policy = json!({"policy": "unmatched = \"allow\"\n"}).to_string();
    let answer = keyed.ask(Some(&keyed.root), "PUT", "/v1/admin/policy?namespace=greedy", &policy).await;
    assert_eq!((answer.status, &answer.json()["error"]), (409, &json!("quota_exceeded:policy_bytes")));
    let used = get(&keyed, "greedy").await;
    for (kind, count) in [("templates", 1), ("derived_limits", 2), ("idempotency_keys", 1), ("policy_bytes", 0)] {
        assert_eq!(used[kind]["used"], count, "{kind}: {used}");
    }

    assert_eq!(template(&honest, "{user}:rpm").await, (200, Value::Null));
    assert_eq!(honest.reserve(&keyed, &keyed.server.lease(), "c:rpm").await["allowed"], true);
    assert_eq!(write(&honest, "evt_2").await, (200, Value::Null));
    set(&keyed, "greedy", json!({"derived_limits": 3})).await;
    assert_eq!(greedy.reserve(&keyed, &lease, "c:rpm").await["allowed"], true, "the refusal left no trace");
}

/// The fields of both protocols are listed by hand, so a pair of them could be exchanged.
#[tokio::test]
async fn quotas_are_the_same_over_http_and_grpc() {
    let keyed = KeyedServer::open().await;
    let team = Tenant::new(&keyed, "team").await;
    assert_eq!(team.put_limit(&keyed, "a").await.0, 200);
    let mut limits = calls::limits(&keyed.server).await;
    let request = v1::PutQuotasRequest {
        namespace: "team".into(),
        limits: Some(1),
        derived_limits: Some(2),
        templates: Some(3),
        vaults: Some(4),
        accounts: Some(5),
        clients: Some(6),
        keys: Some(7),
        leases: Some(8),
        idempotency_keys: Some(9),
        journal_bytes_per_day: Some(10),
        policy_bytes: Some(11),
    };
    limits.put_quotas(with(Some(&keyed.root), request)).await.unwrap();
    let by_http = get(&keyed, "team").await;
    for (place, kind) in (1..).zip(QuotaKind::ALL) {
        assert_eq!(by_http[kind.as_str()]["quota"], place, "{kind}: {by_http}");
    }
    let all: serde_json::Map<String, Value> =
        (21..).zip(QuotaKind::ALL).map(|(quota, kind)| (kind.as_str().to_owned(), json!(quota))).collect();
    set(&keyed, "team", Value::Object(all)).await;
    let request = v1::GetQuotasRequest { namespace: "team".into() };
    let found = limits.get_quotas(with(Some(&keyed.root), request)).await.unwrap().into_inner().quotas.unwrap();
    let by_grpc = [
        found.limits,
        found.derived_limits,
        found.templates,
        found.vaults,
        found.accounts,
        found.clients,
        found.keys,
        found.leases,
        found.idempotency_keys,
        found.journal_bytes_per_day,
        found.policy_bytes,
    ];
    let by_http = get(&keyed, "team").await;
    for (kind, quota) in QuotaKind::ALL.into_iter().zip(by_grpc) {
        let quota = quota.unwrap();
        assert_eq!(by_http[kind.as_str()], json!({"quota": quota.quota, "used": quota.used}), "{kind}");
    }
    let beyond = v1::PutQuotasRequest { namespace: "team".into(), keys: Some(1 << 53), ..Default::default() };
    let refused = limits.put_quotas(with(Some(&keyed.root), beyond)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
    let nobody = v1::GetQuotasRequest { namespace: "nobody".into() };
    let unknown = limits.get_quotas(with(Some(&keyed.root), nobody)).await.unwrap_err();
    assert_eq!(unknown.code(), tonic::Code::NotFound, "{unknown}");
}

#[tokio::test]
async fn an_admin_retires_a_client_and_its_late_writes_are_refused() {
    let keyed = KeyedServer::open().await;
    let mut team = Tenant::new(&keyed, "team").await;
    assert_eq!(team.write(&keyed, None, json!({"open_vault": {"vault": "x"}})).await.0, 200);
    let retire = |key: &str| {
        let body = json!({
            "namespace": "team", "client_id": "boss", "sequence": 1,
            "operations": [{"retire_client": {"client_id": "c"}}],
        });
        let (key, body) = (key.to_owned(), body.to_string());
        let keyed = &keyed;
        async move { keyed.ask(Some(&key), "POST", "/v1/write", &body).await }
    };
    let answer = retire(&team.writer).await;
    assert_eq!(answer.problem(403, "forbidden"), "needs role admin; this key has role writer");
    let answer = retire(&team.admin).await;
    assert_eq!(answer.json()["success"]["results"], json!([{"client_id": "c"}]), "{answer:?}");
    team.sequence = 0;
    let (status, answer) = team.write(&keyed, None, json!({"open_vault": {"vault": "x"}})).await;
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("INVALID")), "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("c was retired"), "{answer}");
    let log = keyed.ask(Some(&team.admin), "GET", "/v1/audit", "").await.text;
    assert!(log.contains("retire_client c"), "{log}");
}

/// Regression: a vault kept its place for ever, so that a table filled by mistake stayed full.
#[tokio::test]
async fn a_deleted_vault_makes_room_for_another() {
    let keyed = KeyedServer::open().await;
    let mut team = Tenant::new(&keyed, "team").await;
    set(&keyed, "team", json!({"vaults": 2})).await;
    let open = |vault: &str| json!({"open_vault": {"vault": vault}});
    let delete = |vault: &str| json!({"delete_vault": {"vault": vault}});
    let (_, opened) = team.write(&keyed, None, open("a")).await;
    assert_eq!(team.write(&keyed, None, open("b")).await.0, 200);
    assert_refused(team.write(&keyed, None, open("c")).await, "QUOTA_EXCEEDED", "quota_exceeded:vaults");
    let (status, deleted) = team.write(&keyed, None, delete("a")).await;
    assert_eq!((status, &deleted["success"]["results"]), (200, &opened["success"]["results"]), "{deleted}");
    assert_eq!(get(&keyed, "team").await["vaults"]["used"], 1);
    assert_eq!(team.write(&keyed, None, open("c")).await.0, 200);

    let account = json!({"open_account": {"account": "p", "overdraft": "deny"}});
    assert_eq!(team.write(&keyed, Some("c"), account).await.0, 200);
    // That was a sequence of another client.
    team.sequence -= 1;
    assert_refused(team.write(&keyed, None, delete("c")).await, "CONFLICT", "the vault has accounts");
    let (status, answer) = team.write(&keyed, None, delete("a")).await;
    assert_eq!((status, &answer["error"]["code"]), (404, &json!("VAULT_NOT_FOUND")), "{answer}");
    let log = keyed.ask(Some(&team.admin), "GET", "/v1/audit", "").await.text;
    assert!(log.contains("delete_vault a"), "{log}");
}

#[tokio::test]
async fn journal_bytes_beyond_the_quota_refuse_writes_and_definitions() {
    let keyed = KeyedServer::open().await;
    let (mut greedy, mut honest) = (Tenant::new(&keyed, "greedy").await, Tenant::new(&keyed, "honest").await);
    set(&keyed, "greedy", json!({"journal_bytes_per_day": 1})).await;
    let open = json!({"open_vault": {"vault": "x"}});
    let what = "quota_exceeded:journal_bytes_per_day";
    assert_refused(greedy.write(&keyed, None, open.clone()).await, "QUOTA_EXCEEDED", what);
    let (status, answer) = greedy.put_limit(&keyed, "a").await;
    assert_eq!((status, &answer["error"]), (409, &json!(what)));
    assert_eq!(honest.write(&keyed, None, open).await.0, 200);
}

#[tokio::test]
async fn quotas_have_defaults_are_checked_recorded_and_shown_to_the_right_eyes() {
    let keyed = KeyedServer::open().await;
    let team = Tenant::new(&keyed, "team").await;
    let (own, whole) = (get(&keyed, "team").await, get(&keyed, "default").await);
    assert_eq!((&own["vaults"]["quota"], &whole["vaults"]["quota"]), (&json!(6_553), &json!(65_536)));
    assert_eq!((&own["limits"]["quota"], &whole["limits"]["quota"]), (&json!(1_000_000), &json!(10_000_000)));
    assert_eq!(own["keys"]["used"], 3);
    let path = "/v1/admin/quotas/team";
    let answer = keyed.ask(Some(&team.admin), "GET", path, "").await;
    assert!(answer.problem(403, "forbidden").contains("admin in namespace default"), "{answer:?}");
    for body in [json!({"limit": 1}), json!({"limits": -1}), json!({"limits": 1_u64 << 53})] {
        let answer = keyed.ask(Some(&keyed.root), "PUT", path, &body.to_string()).await;
        assert!(answer.problem(400, "invalid_request").contains("limit"), "{answer:?}");
    }
    assert_eq!(get(&keyed, "team").await["limits"], own["limits"], "nothing was changed");
    assert_eq!(keyed.ask(Some(&keyed.root), "GET", "/v1/admin/quotas/nobody", "").await.status, 404);

    set(&keyed, "team", json!({"limits": 7, "vaults": 1})).await;
    let log = keyed.ask(Some(&keyed.root), "GET", "/v1/audit", "").await.json();
    let entry = log["entries"].as_array().unwrap().iter().find(|entry| entry["kind"] == "quotas").unwrap();
    assert_eq!(entry["summary"], "set_quotas limits 1000000 to 7, vaults 6553 to 1");
    assert_eq!(entry["namespace"], "team");

    let metrics = keyed.ask(Some(&keyed.root), "GET", "/metrics", "").await.text;
    assert!(metrics.contains("earmark_quota{namespace=\"team\",kind=\"limits\"} 7\n"), "{metrics}");
    assert!(metrics.contains("earmark_quota_used{namespace=\"default\",kind=\"keys\"} 1\n"), "{metrics}");
    let theirs = keyed.ask(Some(&team.admin), "GET", "/metrics", "").await.text;
    assert!(theirs.contains("namespace=\"team\",kind=\"limits\"") && !theirs.contains("namespace=\"default\",kind"));
}
