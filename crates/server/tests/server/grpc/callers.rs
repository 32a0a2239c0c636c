//! Which role may call which gRPC method.

use std::collections::BTreeSet;
use std::sync::Arc;

use earmark_core::Role;
use earmark_proto::v1;
use earmark_proto::v1::limits_service_client::LimitsServiceClient;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::grpc::calls;
use crate::support::KeyedServer;

const NOT_SERVER_ADMIN: &str = "needs role admin in namespace default; this key has role admin in namespace team";
const UNAUTHENTICATED: &str = "the credentials are missing or not valid";
/// The roles of the keys of a [`Row`], in order.
const ROLES: [&str; 8] = ["", "client", "gateway", "reader", "caller", "writer", "admin", "admin"];

/// Allowed for: no key, client, gateway, reader, caller, writer, admin of another namespace, admin of `default`.
type Row = (&'static str, [bool; 8]);

const ALL: [bool; 8] = [true; 8];
const CALL: [bool; 8] = [false, false, true, false, true, false, true, true];
/// Anyone with credentials but a client.
const IDENTIFY: [bool; 8] = [false, false, true, true, true, true, true, true];
const PAUSE: [bool; 8] = [false, false, true, false, false, true, true, true];
const WRITE: [bool; 8] = [false, false, false, false, false, true, true, true];
const READ: [bool; 8] = [false, false, false, true, false, true, true, true];
/// A gateway warns of limits that release what is not settled.
const READ_LIMITS: [bool; 8] = EXPLAIN;
const EXPLAIN: [bool; 8] = [false, false, true, true, false, true, true, true];
/// For an admin of `default` alone.
const OPERATE: [bool; 8] = [false, false, false, false, false, false, false, true];

/// One row per method. A method of our package without a row does not
/// compile.
const MATRIX: [Row; earmark_proto::METHODS.len() + 4] = [
    ("/earmark.v1.LimitsService/Reserve", CALL),
    ("/earmark.v1.LimitsService/Extend", CALL),
    ("/earmark.v1.LimitsService/Complete", CALL),
    ("/earmark.v1.LimitsService/ReserveBatch", CALL),
    ("/earmark.v1.LimitsService/ExtendBatch", CALL),
    ("/earmark.v1.LimitsService/CompleteBatch", CALL),
    ("/earmark.v1.LimitsService/Leases", CALL),
    ("/earmark.v1.LimitsService/PutLimit", WRITE),
    ("/earmark.v1.LimitsService/GetLimit", READ),
    ("/earmark.v1.LimitsService/ListLimits", READ_LIMITS),
    ("/earmark.v1.LimitsService/DeleteLimit", WRITE),
    ("/earmark.v1.LimitsService/PauseLimit", PAUSE),
    ("/earmark.v1.LimitsService/GetUsage", READ),
    ("/earmark.v1.LimitsService/PutTemplate", WRITE),
    ("/earmark.v1.LimitsService/ListTemplates", READ_LIMITS),
    ("/earmark.v1.LimitsService/DeleteTemplate", WRITE),
    ("/earmark.v1.LimitsService/ListUsage", READ),
    ("/earmark.v1.LimitsService/ListDecisions", READ),
    ("/earmark.v1.LimitsService/GetTop", READ),
    ("/earmark.v1.LimitsService/GetLease", READ),
    ("/earmark.v1.LimitsService/GetQuotas", OPERATE),
    ("/earmark.v1.LimitsService/PutQuotas", OPERATE),
    ("/earmark.v1.LimitsService/GetPolicy", OPERATE),
    ("/earmark.v1.LimitsService/PutPolicy", OPERATE),
    ("/earmark.v1.CallsService/Call", CALL),
    ("/earmark.v1.CallsService/CallBatch", CALL),
    ("/earmark.v1.CallsService/ExtendCall", CALL),
    ("/earmark.v1.CallsService/CompleteCall", CALL),
    ("/earmark.v1.CallsService/CompleteCallBatch", CALL),
    ("/earmark.v1.CallsService/ExplainCall", EXPLAIN),
    ("/earmark.v1.LimitsService/Whoami", IDENTIFY),
    ("/earmark.v1.LedgerService/Write", WRITE),
    ("/earmark.v1.LedgerService/BatchWrite", WRITE),
    ("/earmark.v1.LedgerService/GetClientState", READ),
    ("/earmark.v1.LedgerService/GetBalances", READ),
    ("/earmark.v1.LedgerService/GetGrants", READ),
    ("/earmark.v1.LedgerService/ListVaults", READ),
    ("/earmark.v1.LedgerService/ListAccounts", READ),
    ("/earmark.v1.LedgerService/ListEntries", READ),
    ("/earmark.v1.LedgerService/GetStatement", READ),
    ("/earmark.v1.LedgerService/AuditVault", READ),
    ("/earmark.v1.ClusterService/CreateInvitation", OPERATE),
    ("/earmark.v1.ClusterService/ListInvitations", OPERATE),
    ("/earmark.v1.ClusterService/RevokeInvitation", OPERATE),
    ("/earmark.v1.ClusterService/ListSigningKeys", OPERATE),
    ("/grpc.health.v1.Health/Check", ALL),
    ("/grpc.health.v1.Health/Watch", ALL),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", ALL),
    ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", ALL),
];

pub(crate) fn with<T>(key: Option<&str>, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(key) = key {
        let value = MetadataValue::try_from(format!("Bearer {key}")).unwrap();
        request.metadata_mut().insert("authorization", value);
    }
    request
}

/// Calls a method with an empty message. Of a stream only the first response counts.
async fn call(keyed: &KeyedServer, request: Request<()>, path: &'static str) -> Result<(), Status> {
    let mut client = Grpc::new(calls::channel(&keyed.server).await);
    client.ready().await.unwrap();
    let codec: ProstCodec<(), ()> = ProstCodec::default();
    let (metadata, extensions, message) = request.into_parts();
    let request = Request::from_parts(metadata, extensions, tonic::codegen::tokio_stream::iter([message]));
    let mut answers = client.streaming(request, PathAndQuery::from_static(path), codec).await?.into_inner();
    answers.message().await.map(drop)
}

#[tokio::test]
async fn every_method_lets_in_just_the_roles_of_its_row() {
    let keyed = KeyedServer::open().await;
    let callers = [
        None,
        Some(keyed.key(Role::Client, "default").await),
        Some(keyed.key(Role::Gateway, "default").await),
        Some(keyed.key(Role::Reader, "default").await),
        Some(keyed.key(Role::Caller, "default").await),
        Some(keyed.key(Role::Writer, "default").await),
        Some(keyed.key(Role::Admin, "team").await),
        Some(keyed.root.clone()),
    ];
    for (path, row) in MATRIX {
        for (place, is_let_in) in row.into_iter().enumerate() {
            let answer = call(&keyed, with(callers[place].as_deref(), ()), path).await;
            let (code, message) = match &answer {
                Ok(()) => (Code::Ok, ""),
                Err(status) => (status.code(), status.message()),
            };
            let what = format!("{path} by {place}: {answer:?}");
            let refusals = [Code::Unauthenticated, Code::PermissionDenied];
            match (is_let_in, place) {
                (true, _) => {
                    assert!(!refusals.contains(&code), "{what}");
                    assert!(!message.contains("not found; reflection"), "{what}");
                }
                (false, 0) => assert_eq!((code, message), (Code::Unauthenticated, UNAUTHENTICATED), "{what}"),
                (false, _) => {
                    let has = format!("; this key has role {}", ROLES[place]);
                    assert_eq!(code, Code::PermissionDenied, "{what}");
                    assert!(message.starts_with("needs role ") && message.contains(&has), "{what}: {message}");
                }
            }
        }
    }
}

#[test]
fn every_method_has_a_row() {
    use prost::Message as _;
    let mut served = BTreeSet::new();
    for set in [
        earmark_proto::FILE_DESCRIPTOR_SET,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
    ] {
        for file in prost_types::FileDescriptorSet::decode(set).unwrap().file {
            for service in &file.service {
                let name = format!("{}.{}", file.package(), service.name());
                served.extend(service.method.iter().map(|method| format!("/{name}/{}", method.name())));
            }
        }
    }
    let rows: BTreeSet<String> = MATRIX.iter().map(|(path, _)| (*path).to_owned()).collect();
    assert_eq!(rows, served);
}

/// The bad credentials and the message are those of HTTP.
#[tokio::test]
async fn credentials_that_are_not_good_are_all_answered_alike() {
    let keyed = Arc::new(KeyedServer::open().await);
    let wrong = keyed.wrong().await;
    let asked: Vec<_> = wrong
        .iter()
        .map(|headers| {
            let mut request = Request::new(());
            for (name, value) in headers {
                request.metadata_mut().append(*name, MetadataValue::try_from(value).unwrap());
            }
            let keyed = Arc::clone(&keyed);
            tokio::spawn(async move { call(&keyed, request, "/earmark.v1.LimitsService/ListLimits").await })
        })
        .collect();
    let mut first = None;
    for (asked, headers) in asked.into_iter().zip(&wrong) {
        let status = asked.await.unwrap().unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::Unauthenticated, UNAUTHENTICATED), "{headers:?}");
        let mut metadata = status.metadata().clone().into_headers();
        // These two headers always differ.
        metadata.remove("x-request-id");
        metadata.remove("date");
        let shown = (metadata, status.details().to_vec());
        assert_eq!(*first.get_or_insert_with(|| shown.clone()), shown, "{headers:?}");
    }
    assert!(call(&keyed, with(Some(&keyed.root), ()), "/earmark.v1.LimitsService/ListLimits").await.is_ok());
    let failed = format!("earmark_failed_logins_total {}\n", wrong.len());
    let metrics = keyed.ask(Some(&keyed.root), "GET", "/metrics", "").await.text;
    assert!(metrics.contains(&failed), "{metrics}");
}

#[tokio::test]
async fn a_key_that_is_bound_to_a_client_writes_as_that_client_only_and_is_called_by_it() {
    let keyed = KeyedServer::open().await;
    let bound = |key: &mut earmark_core::CreateKey| key.client = Some("billing-1".parse().unwrap());
    let key = keyed.key_of(Role::Writer, "default", bound).await;
    let mut ledger = calls::ledger(&keyed.server).await;
    let write = |client: &str| v1::WriteRequest {
        client_id: client.into(),
        ..calls::write(None, 1, vec![calls::open_vault("eu")])
    };
    let batch = |client: &str| {
        let v1::WriteRequest { namespace, vault, client_id, sequence, operations, .. } = write(client);
        let writes = vec![v1::WritePart { operations }];
        v1::BatchWriteRequest { namespace, vault, client_id, sequence, writes, idempotency_key: None }
    };
    let state = |client: &str| v1::GetClientStateRequest { client_id: client.into(), ..Default::default() };
    let answers = [
        ledger.write(with(Some(&key), write("billing-2"))).await.map(drop),
        ledger.batch_write(with(Some(&key), batch("billing-2"))).await.map(drop),
        ledger.get_client_state(with(Some(&key), state("billing-2"))).await.map(drop),
    ];
    for answer in answers {
        let message = "client_id: found billing-2, this key is bound to client id billing-1";
        assert_eq!(calls::refused(answer, Code::PermissionDenied), message);
    }
    let counted = ledger.get_client_state(with(Some(&keyed.root), state("billing-2"))).await.unwrap();
    assert_eq!(counted.into_inner().last_committed_sequence, 0, "it has written nothing");
    let audit = keyed.ask(Some(&keyed.root), "GET", "/v1/audit", "").await.text;
    assert!(!audit.contains("open_vault"), "{audit}");

    let done = ledger.write(with(Some(&key), write("billing-1"))).await.unwrap().into_inner();
    assert_eq!(calls::success(done).actor, "client:billing-1");
    let counted = ledger.get_client_state(with(Some(&key), state("billing-1"))).await.unwrap();
    assert_eq!(counted.into_inner().last_committed_sequence, 1);
}

/// Sends one request over the stream `Leases`.
async fn over_stream(
    limits: &mut LimitsServiceClient<Channel>,
    key: &str,
    request: v1::leases_request::Request,
) -> Result<(), Status> {
    let request = v1::LeasesRequest { request_id: 1, request: Some(request) };
    let requests = tonic::codegen::tokio_stream::iter([request]);
    let mut answers = limits.leases(with(Some(key), requests)).await?.into_inner();
    match answers.message().await?.and_then(|response| response.answer) {
        Some(v1::leases_response::Answer::Error(error)) => Err(Status::new(Code::from_i32(error.code), error.message)),
        _ => Ok(()),
    }
}

/// The same write of a namespace alone and as a batch.
fn writes(namespace: &str) -> (v1::WriteRequest, v1::BatchWriteRequest) {
    let write =
        v1::WriteRequest { namespace: namespace.into(), ..calls::write(None, 1, vec![calls::open_vault("eu")]) };
    let batch = v1::BatchWriteRequest {
        namespace: namespace.into(),
        vault: None,
        client_id: write.client_id.clone(),
        sequence: 1,
        writes: vec![v1::WritePart { operations: write.operations.clone() }],
        idempotency_key: None,
    };
    (write, batch)
}

/// Sends a message with the key of the caller.
macro_rules! asked {
    ($key:expr, $client:ident.$method:ident($message:expr)) => {
        $client.$method(with(Some($key), $message)).await.map(drop)
    };
}

/// Calls the methods about calls and about credit for a namespace.
async fn calls_and_ledger(keyed: &KeyedServer, key: &str, namespace: &str) -> [Result<(), Status>; 14] {
    let named = || Some(namespace.to_owned());
    let (vault, account) = ("main".to_owned(), "acme".to_owned());
    let (write, batch) = writes(namespace);
    let mut ledger = calls::ledger(&keyed.server).await;
    let mut made = calls::calls(&keyed.server).await;
    let state = v1::GetClientStateRequest { namespace: named(), vault: None, client_id: "billing".into() };
    let balances = v1::GetBalancesRequest { namespace: named(), vault: vault.clone(), account: account.clone() };
    let accounts = v1::ListAccountsRequest { namespace: named(), vault: vault.clone(), ..Default::default() };
    let grants = v1::GetGrantsRequest { namespace: named(), vault: vault.clone(), account: account.clone() };
    let (at, of) = (vault.clone(), account.clone());
    let statement = v1::GetStatementRequest { namespace: named(), vault: at, account: of, ..Default::default() };
    let entries = v1::ListEntriesRequest { namespace: named(), vault: vault.clone(), account, ..Default::default() };
    let complete = v1::CompleteCallRequest {
        lease_id: keyed.server.lease(),
        outcome: v1::CallOutcome::Refused.into(),
        namespace: named(),
        ..Default::default()
    };
    [
        asked!(
            key,
            made.extend_call(v1::ExtendCallRequest {
                lease_id: keyed.server.lease(),
                extension: 1,
                namespace: named(),
                ..Default::default()
            })
        ),
        asked!(key, made.complete_call(complete.clone())),
        asked!(key, made.complete_call_batch(v1::CompleteCallBatchRequest { requests: vec![complete] })),
        asked!(key, made.explain_call(v1::ExplainCallRequest { namespace: named(), ..Default::default() })),
        asked!(key, ledger.write(write)),
        asked!(key, ledger.batch_write(batch)),
        asked!(key, ledger.get_client_state(state)),
        asked!(key, ledger.get_balances(balances)),
        asked!(key, ledger.get_grants(grants)),
        asked!(key, ledger.list_vaults(v1::ListVaultsRequest { namespace: named(), ..Default::default() })),
        asked!(key, ledger.list_accounts(accounts)),
        asked!(key, ledger.list_entries(entries)),
        asked!(key, ledger.get_statement(statement)),
        asked!(key, ledger.audit_vault(v1::AuditVaultRequest { namespace: named(), vault })),
    ]
}

/// Calls every method of our package for a namespace.
async fn each(keyed: &KeyedServer, key: &str, namespace: &str) -> Vec<(&'static str, Result<(), Status>)> {
    let named = || Some(namespace.to_owned());
    let limit = "a".to_owned();
    let reserve = v1::ReserveRequest { namespace: named(), ..calls::reserve(&keyed.server.lease(), &[("a", 1)]) };
    let streamed = v1::leases_request::Request::Reserve(reserve.clone());
    let own = v1::ReserveRequest { namespace: None, ..reserve.clone() };
    let complete = v1::CompleteRequest { namespace: named(), ..calls::complete(&keyed.server.lease(), &[("a", 1)]) };
    let put = v1::PutLimitRequest { namespace: named(), ..calls::rolling("a", 77) };
    let mut limits = calls::limits(&keyed.server).await;
    // One item of another namespace rejects the whole batch.
    let reserves = v1::ReserveBatchRequest { requests: vec![own, reserve.clone()] };
    let extend = v1::ExtendRequest { namespace: named(), ..calls::extend(&keyed.server.lease(), 1) };
    let extends = v1::ExtendBatchRequest { requests: vec![extend.clone()] };
    let completes = v1::CompleteBatchRequest { requests: vec![complete.clone()] };
    let pattern = calls::rolling("a:{b}", 5).definition;
    let template = v1::PutTemplateRequest { definition: pattern, namespace: named(), expected_revision: None };
    let answers = [
        asked!(key, limits.reserve(reserve)),
        asked!(key, limits.complete(complete)),
        asked!(key, limits.extend(extend)),
        asked!(key, limits.reserve_batch(reserves)),
        asked!(key, limits.complete_batch(completes)),
        asked!(key, limits.extend_batch(extends)),
        over_stream(&mut limits, key, streamed).await,
        asked!(key, limits.put_limit(put)),
        asked!(key, limits.get_limit(v1::GetLimitRequest { key: limit.clone(), namespace: named() })),
        asked!(
            key,
            limits.list_limits(v1::ListLimitsRequest { namespace: named(), ..v1::ListLimitsRequest::default() })
        ),
        asked!(key, limits.delete_limit(v1::DeleteLimitRequest { key: limit.clone(), namespace: named() })),
        asked!(
            key,
            limits.pause_limit(v1::PauseLimitRequest {
                key: limit.clone(),
                for_ms: Some(1),
                reason: String::new(),
                namespace: named(),
            })
        ),
        asked!(key, limits.get_usage(v1::GetUsageRequest { key: limit, namespace: named() })),
        asked!(key, limits.put_template(template)),
        asked!(key, limits.list_templates(v1::ListTemplatesRequest { namespace: named() })),
        asked!(
            key,
            limits.delete_template(v1::DeleteTemplateRequest {
                key: "a:{b}".into(),
                namespace: named(),
                expected_revision: None,
            })
        ),
        asked!(key, limits.list_usage(v1::ListUsageRequest { namespace: named(), ..v1::ListUsageRequest::default() })),
        asked!(key, limits.list_decisions(v1::ListDecisionsRequest { namespace: named(), ..Default::default() })),
        asked!(key, limits.get_top(v1::GetTopRequest { namespace: named(), ..Default::default() })),
        asked!(key, limits.get_lease(v1::GetLeaseRequest { lease_id: keyed.server.lease(), namespace: named() })),
        asked!(key, limits.get_quotas(v1::GetQuotasRequest { namespace: namespace.into() })),
        asked!(key, limits.put_quotas(v1::PutQuotasRequest { namespace: namespace.into(), ..Default::default() })),
        asked!(key, limits.get_policy(v1::GetPolicyRequest { namespace: named() })),
        asked!(key, limits.put_policy(v1::PutPolicyRequest { namespace: named(), ..Default::default() })),
    ];
    // The cluster belongs to no namespace, and neither a call nor the question who one is names one.
    let unnamed =
        ["/earmark.v1.CallsService/Call", "/earmark.v1.CallsService/CallBatch", "/earmark.v1.LimitsService/Whoami"];
    let is_named = |path: &&str| !path.contains("ClusterService") && !unnamed.contains(path);
    let methods = earmark_proto::METHODS.iter().copied().filter(is_named);
    let methods: [&str; 38] = methods.collect::<Vec<_>>().try_into().expect("a method is missing here");
    let others = calls_and_ledger(keyed, key, namespace).await;
    methods.into_iter().zip(answers.into_iter().chain(others)).collect()
}

/// Quotas and policies belong to the admins of `default`, in every namespace.
fn is_for_server_admins(path: &str) -> bool {
    path.ends_with("Quotas") || path.ends_with("Policy")
}

/// An admin of one namespace has no rights in another, existing or not.
#[tokio::test]
async fn an_admin_of_another_namespace_is_refused_by_every_method_alike() {
    let keyed = KeyedServer::open().await;
    let limits = &mut calls::limits(&keyed.server).await;
    limits.put_limit(with(Some(&keyed.root), calls::rolling("a", 5))).await.unwrap();
    let seen = async || {
        let mut seen = Vec::new();
        for path in ["/v1/admin/limits", "/v1/admin/limits/a/usage", "/v1/clients/billing"] {
            seen.push(keyed.ask(Some(&keyed.root), "GET", path, "").await.text);
        }
        seen
    };
    let key = keyed.key(Role::Admin, "team").await;
    let before = seen().await;
    for namespace in ["default", "nowhere"] {
        for (path, answer) in each(&keyed, &key, namespace).await {
            let status = answer.expect_err(path);
            let message = match is_for_server_admins(path) {
                true => NOT_SERVER_ADMIN.to_owned(),
                false => format!("namespace: found {namespace}, this key belongs to namespace team"),
            };
            assert_eq!((status.code(), status.message()), (Code::PermissionDenied, message.as_str()), "{path}");
        }
    }
    assert_eq!(seen().await, before);
    for (path, answer) in each(&keyed, &key, "team").await {
        let code = answer.map_or_else(|status| status.code(), |()| Code::Ok);
        assert_eq!(code == Code::PermissionDenied, is_for_server_admins(path), "{path} in its own namespace");
    }
}

#[tokio::test]
async fn a_key_of_one_namespace_names_no_other_and_a_revoked_one_is_refused_alike() {
    let keyed = KeyedServer::open().await;
    let key = keyed.key(Role::Admin, "team").await;
    let mut client = calls::limits(&keyed.server).await;
    client.put_limit(with(Some(&key), calls::rolling("a", 5))).await.unwrap();
    let reserve = |namespace: Option<&str>| v1::ReserveRequest {
        namespace: namespace.map(Into::into),
        ..calls::reserve(&keyed.server.lease(), &[("a", 1)])
    };
    assert!(client.reserve(with(Some(&key), reserve(None))).await.unwrap().into_inner().allowed);
    assert!(client.reserve(with(Some(&key), reserve(Some("team")))).await.unwrap().into_inner().allowed);
    for namespace in ["default", "nowhere"] {
        let answer = client.reserve(with(Some(&key), reserve(Some(namespace)))).await;
        let message = format!("namespace: found {namespace}, this key belongs to namespace team");
        assert_eq!(calls::refused(answer, Code::PermissionDenied), message);
    }
    let list = v1::ListLimitsRequest { namespace: Some("default".into()), ..v1::ListLimitsRequest::default() };
    assert_eq!(client.list_limits(with(Some(&key), list)).await.unwrap_err().code(), Code::PermissionDenied);
    let mut ledger = calls::ledger(&keyed.server).await;
    let write = calls::write(None, 1, Vec::new());
    assert_eq!(ledger.write(with(Some(&key), write)).await.unwrap_err().code(), Code::PermissionDenied);
    keyed.revoke(&key).await;
    let answer = client.reserve(with(Some(&key), reserve(None))).await;
    assert_eq!(calls::refused(answer, Code::Unauthenticated), UNAUTHENTICATED);
}
