//! Backends that fail or do not answer.

use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{BackendError, LocalBook, LocalOptions, ManualClock};
use earmark_proto::v1;
use earmark_server::ServerOptions;
use tonic::Code;

use crate::grpc::calls::{self, complete, refused, reserve, rolling, write};
use crate::support::{Broken, Gate, START_MS, TestServer};

pub(crate) async fn gated() -> (TestServer, Arc<Gate>) {
    let clock = ManualClock::at(START_MS);
    let local = LocalOptions { clock: Arc::<ManualClock>::clone(&clock), ..LocalOptions::default() };
    let gate = Arc::new(Gate::before(LocalBook::open(local).await.unwrap()));
    let server = TestServer::on(clock, Arc::<Gate>::clone(&gate), TestServer::options()).await;
    server.put_rolling("a", 5, 60).await;
    (server, gate)
}

#[tokio::test]
async fn a_backend_that_fails_is_a_status_and_in_a_batch_or_a_write_an_answer() {
    for (failure, code, error) in [
        (BackendError::Overloaded("full"), Code::Unavailable, "overloaded"),
        (BackendError::Failed("it broke".into()), Code::Internal, "backend_error"),
    ] {
        let server =
            TestServer::on(ManualClock::at(START_MS), Arc::new(Broken(failure.clone())), TestServer::options()).await;
        let mut client = calls::limits(&server).await;
        let again = format!("{failure}; retry with the same lease");
        assert_eq!(refused(client.reserve(reserve(&server.lease(), &[("a", 1)])).await, code), again);
        assert_eq!(refused(client.complete(complete(&server.lease(), &[])).await, code), again);
        let plain = failure.to_string();
        assert_eq!(refused(client.put_limit(rolling("a", 1)).await, code), plain);
        assert_eq!(refused(client.list_limits(v1::ListLimitsRequest::default()).await, code), plain);
        let usage = v1::GetUsageRequest { key: "a".into(), namespace: None };
        assert_eq!(refused(client.get_usage(usage).await, code), plain);

        let requests = vec![reserve(&server.lease(), &[("a", 1)])];
        let batch = client.reserve_batch(v1::ReserveBatchRequest { requests }).await.unwrap().into_inner();
        let result = &batch.results[0];
        assert_eq!((result.allowed, result.error.as_str(), result.retry_after_ms), (false, error, 100));
        assert_eq!(result.message.as_deref(), Some(again.as_str()));

        let mut ledger = calls::ledger(&server).await;
        let refusal = calls::error(ledger.write(write(None, 1, vec![])).await.unwrap().into_inner());
        assert_eq!(refusal.code(), v1::WriteErrorCode::Unavailable);
        assert!(refusal.message.ends_with("retry the same write"), "{refusal:?}");
        let audit = v1::AuditVaultRequest { namespace: None, vault: "main".into() };
        assert_eq!(refused(ledger.audit_vault(audit).await, code), plain);
    }
}

#[tokio::test]
async fn a_complete_that_the_backend_finds_malformed_is_invalid() {
    let (server, _gate) = gated().await;
    let mut client = calls::limits(&server).await;
    let message = refused(client.complete(complete(&server.lease(), &[])).await, Code::InvalidArgument);
    assert_eq!(message, "no");
    let requests = vec![complete(&server.lease(), &[])];
    let batch = client.complete_batch(v1::CompleteBatchRequest { requests }).await.unwrap().into_inner();
    assert_eq!((batch.results[0].ok, batch.results[0].error.as_str()), (false, "invalid_request"));
}

#[tokio::test]
async fn a_call_in_flight_is_finished_when_the_server_stops() {
    let clock = ManualClock::at(START_MS);
    let local = LocalOptions { clock: Arc::<ManualClock>::clone(&clock), ..LocalOptions::default() };
    let gate = Arc::new(Gate::before(LocalBook::open(local).await.unwrap()));
    let options = ServerOptions { shutdown_timeout: Duration::from_secs(20), ..TestServer::options() };
    let server = TestServer::on(clock, Arc::<Gate>::clone(&gate), options).await;
    server.put_rolling("a", 5, 60).await;
    let mut client = calls::limits(&server).await;
    let request = reserve(&server.lease(), &[("a", 1)]);
    let call = tokio::spawn(async move { client.reserve(request).await });
    server.until("earmark_live_leases", 1.0).await;
    let stopping = tokio::spawn(server.stop());
    tokio::time::sleep(Duration::from_millis(100)).await;
    gate.gate.add_permits(1);
    assert!(call.await.unwrap().unwrap().into_inner().allowed);
    stopping.await.unwrap();
}
