//! `earmark.v1.LimitsService`.

use earmark_proto::v1;
use tonic::Code;

use crate::grpc::calls::{self, complete, refused, reserve, rolling};
use crate::support::{START_MS, TestServer};

#[tokio::test]
async fn limits_are_put_read_listed_and_deleted() {
    let server = TestServer::open().await;
    let mut client = calls::limits(&server).await;
    for key in ["b", "a"] {
        let put = client.put_limit(rolling(key, 5)).await.unwrap().into_inner();
        assert_eq!((put.ok, put.status()), (true, v1::LimitStatus::Active));
    }
    let listed = client.list_limits(v1::ListLimitsRequest::default()).await.unwrap().into_inner().limits;
    let keys: Vec<&str> = listed.iter().map(|limit| limit.definition.as_ref().unwrap().key.as_str()).collect();
    assert_eq!(keys, ["a", "b"]);
    let get = v1::GetLimitRequest { key: "a".into(), namespace: None };
    let limit = client.get_limit(get.clone()).await.unwrap().into_inner().limit.unwrap();
    assert_eq!(limit, listed[0]);
    assert_eq!((limit.revision, limit.status(), limit.pending_decrease_to), (2, v1::LimitStatus::Active, None));
    let definition = limit.definition.unwrap();
    assert_eq!((definition.kind(), definition.overage()), (v1::LimitKind::Rolling, v1::Overage::Debt));
    assert_eq!((definition.capacity, definition.window_seconds), (Some(5), Some(60)));

    let lease = server.lease();
    assert!(client.reserve(reserve(&lease, &[("a", 4)])).await.unwrap().into_inner().allowed);
    client.put_limit(rolling("a", 1)).await.unwrap();
    let usage = v1::GetUsageRequest { key: "a".into(), namespace: None };
    let usage = client.get_usage(usage).await.unwrap().into_inner();
    assert_eq!((usage.capacity, usage.reserved, usage.available, usage.debt.as_str()), (5, 4, 0, "0"));
    assert_eq!((usage.status(), usage.pending_decrease_to), (v1::LimitStatus::Decreasing, Some(1)));

    let delete = |key: &str| v1::DeleteLimitRequest { key: key.into(), namespace: None };
    let deleting = client.delete_limit(delete("a")).await.unwrap().into_inner();
    assert_eq!((deleting.ok, deleting.status()), (true, v1::LimitStatus::Decreasing));
    client.complete(complete(&lease, &[("a", 0)])).await.unwrap();
    assert_eq!(refused(client.get_limit(get).await, Code::NotFound), "key: no limit has this key");
    let deleted = client.delete_limit(delete("b")).await.unwrap().into_inner();
    assert_eq!(deleted.status(), v1::LimitStatus::Deleted);
    assert_eq!(refused(client.delete_limit(delete("c")).await, Code::NotFound), "key: no limit has this key");
}

#[tokio::test]
async fn a_reserve_is_allowed_denied_and_refused_in_the_words_of_the_contract() {
    let server = TestServer::open().await;
    let mut client = calls::limits(&server).await;
    client.put_limit(rolling("a", 5)).await.unwrap();
    let lease = server.lease();
    let allowed = client.reserve(reserve(&lease, &[("a", 5)])).await.unwrap().into_inner();
    let expected = v1::ReserveResponse { allowed: true, reserved_at_unix_ms: START_MS, ..Default::default() };
    assert_eq!(allowed, expected);
    assert_eq!(client.reserve(reserve(&lease, &[("a", 5)])).await.unwrap().into_inner(), expected);

    let denied = client.reserve(reserve(&server.lease(), &[("a", 1)])).await.unwrap().into_inner();
    assert_eq!((denied.allowed, denied.error.as_str(), denied.never), (false, "", false));
    assert_eq!((denied.limited_by, denied.retry_after_ms), (vec!["a".to_owned()], 5_000));
    let never = client.reserve(reserve(&server.lease(), &[("a", 6)])).await.unwrap().into_inner();
    assert!(never.never);
    let unknown = client.reserve(reserve(&server.lease(), &[("a", 1), ("b", 1)])).await.unwrap().into_inner();
    assert_eq!((unknown.allowed, unknown.error.as_str()), (false, "unknown_limit_key:b"));
    let other = client.reserve(reserve(&lease, &[("a", 4)])).await.unwrap().into_inner();
    assert_eq!((other.allowed, other.error.as_str()), (false, "invalid_request"));
    assert!(other.message.unwrap().starts_with("lease_id: this lease was used for other requirements"));

    let done = client.complete(complete(&lease, &[("a", 2), ("z", 1)])).await.unwrap().into_inner();
    assert_eq!((done.ok, done.reconciled, done.error.as_str()), (true, true, ""));
    assert_eq!(done.message.unwrap(), "ignored, since the lease had not reserved them: z");
    let expired = client.reserve(reserve(&lease, &[("a", 5)])).await.unwrap().into_inner();
    assert_eq!(expired.error, "lease_expired");
    assert_eq!(server.reserved("a").await, 2);
}

#[tokio::test]
async fn a_lease_is_read_back() {
    let server = TestServer::open().await;
    let mut client = calls::limits(&server).await;
    client.put_limit(rolling("a", 5)).await.unwrap();
    let lease = server.lease();
    client.reserve(v1::ReserveRequest { job_id: Some("j".into()), ..reserve(&lease, &[("a", 2)]) }).await.unwrap();
    let get = |lease_id: &str| v1::GetLeaseRequest { lease_id: lease_id.into(), namespace: None };
    let view = client.get_lease(get(&lease.to_lowercase())).await.unwrap().into_inner().lease.unwrap();
    assert_eq!((view.lease_id.as_str(), view.reserved_at_unix_ms), (lease.as_str(), START_MS));
    assert_eq!((view.state(), view.job_id.as_deref()), (v1::LeaseState::Live, Some("j")));
    assert_eq!(view.requirements, [v1::Requirement { key: "a".into(), amount: 2, namespace: None }]);
    let unknown = client.get_lease(get(&server.lease())).await;
    assert_eq!(refused(unknown, Code::NotFound), "lease_id: lease not found, or forgotten since");
    let none = client.get_lease(get("x")).await;
    assert_eq!(refused(none, Code::InvalidArgument), "lease_id: found 1 bytes, a ULID has 26 characters");
}

#[tokio::test]
async fn a_batch_answers_each_by_itself_in_their_order() {
    let server = TestServer::open().await;
    let mut client = calls::limits(&server).await;
    client.put_limit(rolling("a", 5)).await.unwrap();
    let leases: Vec<String> = (0..3).map(|_| server.lease()).collect();
    let requests =
        vec![reserve(&leases[0], &[("a", 5)]), reserve(&leases[1], &[("a", 1)]), reserve(&leases[2], &[("z", 1)])];
    let results = client.reserve_batch(v1::ReserveBatchRequest { requests }).await.unwrap().into_inner().results;
    let found: Vec<(bool, &str)> = results.iter().map(|it| (it.allowed, it.error.as_str())).collect();
    assert_eq!(found, [(true, ""), (false, ""), (false, "unknown_limit_key:z")]);
    let requests = vec![complete(&leases[0], &[("a", 1)]), complete(&server.lease(), &[])];
    let results = client.complete_batch(v1::CompleteBatchRequest { requests }).await.unwrap().into_inner().results;
    let found: Vec<(bool, bool)> = results.iter().map(|it| (it.ok, it.reconciled)).collect();
    assert_eq!(found, [(true, true), (true, false)]);
}

#[tokio::test]
async fn namespaces_keep_their_limits_apart() {
    let server = TestServer::open().await;
    let mut client = calls::limits(&server).await;
    let team = || Some("team".to_owned());
    client.put_limit(v1::PutLimitRequest { namespace: team(), ..rolling("a", 1) }).await.unwrap();
    let missing = client.reserve(reserve(&server.lease(), &[("a", 1)])).await.unwrap().into_inner();
    assert_eq!(missing.error, "unknown_limit_key:a");
    let lease = server.lease();
    let there = v1::ReserveRequest { namespace: team(), ..reserve(&lease, &[("a", 1)]) };
    assert!(client.reserve(there).await.unwrap().into_inner().allowed);
    let list = v1::ListLimitsRequest { namespace: team(), ..v1::ListLimitsRequest::default() };
    assert_eq!(client.list_limits(list).await.unwrap().into_inner().limits.len(), 1);
    assert!(client.list_limits(v1::ListLimitsRequest::default()).await.unwrap().into_inner().limits.is_empty());
    let elsewhere = v1::GetLeaseRequest { lease_id: lease.clone(), namespace: None };
    refused(client.get_lease(elsewhere).await, Code::NotFound);
    let done = v1::CompleteRequest { namespace: team(), ..complete(&lease, &[]) };
    assert!(client.complete(done).await.unwrap().into_inner().reconciled);
}

#[tokio::test]
async fn a_limit_of_kind_credit_is_put_and_read_back() {
    let server = TestServer::open().await;
    let mut ledger = calls::ledger(&server).await;
    let setup = calls::write(Some("main"), 1, vec![calls::open("acme"), calls::issue("acme", "10")]);
    calls::success(ledger.write(setup).await.unwrap().into_inner());
    let mut client = calls::limits(&server).await;
    let mut definition = v1::LimitDefinition {
        key: "acme:usd".into(),
        timeout_seconds: Some(60),
        vault: Some("main".into()),
        account: Some("acme".into()),
        asset: Some("usd".into()),
        ..Default::default()
    };
    definition.set_kind(v1::LimitKind::Credit);
    let put = v1::PutLimitRequest { definition: Some(definition.clone()), namespace: None };
    client.put_limit(put).await.unwrap();
    let get = v1::GetLimitRequest { key: "acme:usd".into(), namespace: None };
    let read = client.get_limit(get).await.unwrap().into_inner().limit.unwrap().definition.unwrap();
    definition.revenue = Some("revenue".into());
    definition.set_overage(v1::Overage::Debt);
    assert_eq!(read, definition);
    let lease = server.lease();
    assert!(client.reserve(reserve(&lease, &[("acme:usd", 6)])).await.unwrap().into_inner().allowed);
    assert!(!client.reserve(reserve(&server.lease(), &[("acme:usd", 6)])).await.unwrap().into_inner().allowed);
    client.complete(complete(&lease, &[("acme:usd", 4)])).await.unwrap();
    let balances = v1::GetBalancesRequest { namespace: None, vault: "main".into(), account: "acme".into() };
    let balances = ledger.get_balances(balances).await.unwrap().into_inner().balances;
    assert_eq!((balances[0].available.as_str(), balances[0].held.as_str()), ("6", "0"));
}
