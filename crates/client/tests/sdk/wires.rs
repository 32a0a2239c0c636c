//! The same answers over HTTP, over gRPC and without a server.

use earmark_client::core::{
    CreditTerms, GrantTerms, JobId, Kind, LeaseId, LeaseState, LimitStatus, Operation, Overdraft, UsageSort,
};
use earmark_client::{Client, Failure, OperationOutcome, Protocol, Scope, UsageQuery, Writer, WriterOptions};
use tempfile::TempDir;

use crate::fixture::{TestServer, client_of, each_way, limiter, scope};
use crate::support::{concurrency, job, key, limit, rolling, soon};

#[tokio::test]
async fn limits_are_put_read_and_deleted_every_way() {
    for (way, client, _server) in each_way().await {
        let credit = Kind::Credit(CreditTerms {
            timeout_seconds: 60,
            vault: "main".parse().unwrap(),
            account: "acme".parse().unwrap(),
            asset: "usd".parse().unwrap(),
            revenue: "revenue".parse().unwrap(),
            on_timeout: Default::default(),
        });
        let definitions = [concurrency("a", 3), rolling("b", 100, 60), limit("c", credit, 0)];
        for definition in &definitions {
            assert_eq!(client.put_limit(definition, soon()).await, Ok(LimitStatus::Active), "{way}");
        }
        let listed = client.limits(soon()).await.unwrap();
        assert_eq!(
            listed.iter().map(|limit| &limit.definition).collect::<Vec<_>>(),
            definitions.iter().collect::<Vec<_>>()
        );
        let found = client.limit(&key("b"), soon()).await.unwrap();
        assert_eq!((found.definition, found.status, found.revision), (definitions[1].clone(), LimitStatus::Active, 2));
        let usage = client.usage(&key("b"), soon()).await.unwrap();
        let query = UsageQuery { prefix: Some(key("b")), sort: UsageSort::Fullness, ..UsageQuery::default() };
        let listed = client.usage_page(&query, soon()).await.unwrap();
        assert_eq!((listed.usage.len(), &listed.usage[0].key, &listed.next), (1, &key("b"), &None), "{way}");
        assert_eq!(listed.usage[0].usage.reserved, usage.reserved, "{way}");
        let refused = UsageQuery { after: Some(key("a")), ..query };
        assert!(matches!(client.usage_page(&refused, soon()).await, Err(Failure::Invalid { .. })), "{way}");
        assert_eq!((usage.capacity, usage.reserved, usage.available, usage.debt), (100, 0, 100, 0), "{way}");
        assert_eq!(client.delete_limit(&key("b"), soon()).await, Ok(LimitStatus::Deleted), "{way}");
        for missing in [
            client.limit(&key("b"), soon()).await.map(drop),
            client.usage(&key("b"), soon()).await.map(drop),
            client.delete_limit(&key("b"), soon()).await.map(drop),
        ] {
            assert!(matches!(missing, Err(Failure::NotFound { .. })), "{way}: {missing:?}");
        }
        let mut wrong = concurrency("d", 1);
        wrong.unit = "u".repeat(10_000);
        let refused = client.put_limit(&wrong, soon()).await;
        assert!(matches!(refused, Err(Failure::Invalid { .. })), "{way}: {refused:?}");
    }
}

#[tokio::test]
async fn a_lease_is_read_with_its_job_every_way() {
    for (way, client, _server) in each_way().await {
        client.put_limit(&concurrency("a", 3), soon()).await.unwrap();
        let id: JobId = "nightly".parse().unwrap();
        let guard = limiter(&client).acquire(&job(&[("a", 1)]).named(id.clone()), soon()).await.unwrap();
        let view = client.lease(guard.lease().to_string().parse().unwrap(), soon()).await.unwrap();
        assert_eq!((view.state, view.job), (LeaseState::Live, Some(id)), "{way}");
        assert!(view.reserved_at.is_some(), "{way}");
        guard.release().await.unwrap();
        let missing = client.lease(LeaseId::from_u128(1), soon()).await;
        assert!(matches!(missing, Err(Failure::NotFound { .. })), "{way}: {missing:?}");
    }
}

#[tokio::test]
async fn every_operation_is_written_every_way() {
    for (way, client, _server) in each_way().await {
        let folder = TempDir::new().unwrap();
        let (acme, bob, usd) = ("acme".parse().unwrap(), "bob".parse().unwrap(), "usd".parse().unwrap());
        let memo = "why \"so\"".to_owned();
        let of_namespace = Scope { vault: None, ..scope() };
        let options = WriterOptions::new(folder.path().join("n"), of_namespace, "ops+1".parse().unwrap());
        let mut writer = Writer::open(&client, options, soon()).await.unwrap();
        let operations = vec![
            Operation::OpenVault { vault: "v2".parse().unwrap() },
            Operation::PutLimit { definition: rolling("z", 9, 60), expected_revision: Some(0) },
            Operation::DeleteLimit { key: key("z"), expected_revision: Some(1) },
        ];
        let receipt = writer.write(operations, soon()).await.unwrap();
        let expected = [
            OperationOutcome::Vault("v2".into()),
            OperationOutcome::Limit { key: "z".into(), revision: 1 },
            OperationOutcome::Limit { key: "z".into(), revision: 2 },
        ];
        assert_eq!((receipt.sequence, receipt.results.as_slice()), (Some(2), expected.as_slice()), "{way}");
        assert_eq!(receipt.actor, "system:local", "{way}");

        let options = WriterOptions::new(folder.path().join("v"), scope(), "ops+1".parse().unwrap());
        let mut writer = Writer::open(&client, options, soon()).await.unwrap();
        let open = |account: &earmark_client::core::AccountName| Operation::OpenAccount {
            account: account.clone(),
            overdraft: if *account == bob { Overdraft::Allow } else { Overdraft::Deny },
            plan: None,
        };
        let operations = vec![
            open(&acme),
            open(&bob),
            Operation::Issue {
                account: acme.clone(),
                asset: usd,
                amount: 1 << 100,
                memo: memo.clone(),
                terms: GrantTerms::PLAIN,
            },
            Operation::Transfer {
                from: acme.clone(),
                to: bob.clone(),
                asset: "usd".parse().unwrap(),
                amount: 5,
                memo: memo.clone(),
            },
            Operation::Retire { account: bob.clone(), asset: "usd".parse().unwrap(), amount: 5, memo },
            Operation::FreezeAccount { account: bob.clone() },
            Operation::UnfreezeAccount { account: bob.clone() },
            Operation::CloseAccount { account: bob },
        ];
        let receipt = writer.write(operations, soon()).await.unwrap();
        assert_eq!(receipt.results.len(), 8, "{way}");
        let balances = client.balances(&"main".parse().unwrap(), &acme, soon()).await.unwrap();
        assert_eq!(balances[0].available, (1 << 100) - 5, "{way}");
        let missing = client.balances(&"main".parse().unwrap(), &"eve".parse().unwrap(), soon()).await;
        assert!(matches!(missing, Err(Failure::NotFound { .. })), "{way}: {missing:?}");
    }
}

#[tokio::test]
async fn namespaces_besides_the_default_are_reached_over_grpc() {
    let server = TestServer::start().await;
    let mut options = earmark_client::ClientOptions::of(&[server.url()]).unwrap();
    options.namespace = "team-a".parse().unwrap();
    let error = Client::new(options.clone()).unwrap_err().to_string();
    assert!(error.contains("allowed over HTTP is default"), "{error}");
    options.protocol = Protocol::Grpc;
    let client = Client::new(options).unwrap();
    client.put_limit(&concurrency("a", 1), soon()).await.unwrap();
    assert_eq!(client.limits(soon()).await.unwrap().len(), 1);
    assert_eq!(server.client(Protocol::Grpc).limits(soon()).await.unwrap(), []);
}

#[tokio::test]
async fn a_server_that_is_gone_is_named_and_the_next_one_is_asked() {
    // No server listens on a port that was just freed.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gone = format!("http://{gone}");
    let server = TestServer::start().await;
    for protocol in [Protocol::Http, Protocol::Grpc] {
        let alone = client_of(std::slice::from_ref(&gone), protocol);
        let deadline = earmark_client::Deadline::after(std::time::Duration::from_millis(100));
        let failure = alone.limits(deadline).await.unwrap_err();
        let Failure::DeadlinePassed { last: Some(last) } = &failure else { panic!("{failure:?}") };
        assert!(matches!(**last, Failure::Unreachable { .. }), "{protocol:?}: {failure:?}");
        assert!(failure.to_string().contains(&gone), "{failure}");
        let both = client_of(&[gone.clone(), server.url()], protocol);
        assert_eq!(both.limits(soon()).await, Ok(vec![]), "{protocol:?}");
    }
}
