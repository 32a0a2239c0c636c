//! A caller beyond its concurrency limit, over gRPC.

use earmark_proto::v1;
use tonic::Code;

use crate::grpc::callers::with;
use crate::grpc::calls;
use crate::support::Crowded;

#[tokio::test]
async fn calls_wait_behind_those_of_the_same_key_and_one_that_is_given_up_leaves_the_line() {
    let crowded = Crowded::open(1, 2).await;
    let leases: Vec<String> = (0..4).map(|_| crowded.server.lease()).collect();
    let limits = calls::limits(&crowded.server).await;
    let call = |lease: &str| {
        let (mut limits, request) = (limits.clone(), with(Some(&crowded.noisy), calls::reserve(lease, &[("a", 1)])));
        tokio::spawn(async move { limits.reserve(request).await })
    };
    let worked_on = call(&leases[0]);
    crowded.until_came(1).await;
    let given_up = call(&leases[1]);
    crowded.until("earmark_requests_waiting 1").await;
    let batch = v1::ReserveBatchRequest {
        requests: leases[2..].iter().map(|lease| calls::reserve(lease, &[("a", 1)])).collect(),
    };
    let (mut more, batch) = (limits.clone(), with(Some(&crowded.noisy), batch));
    let batch = tokio::spawn(async move { more.reserve_batch(batch).await });
    crowded.until("earmark_requests_waiting 2").await;

    let refused = call(&crowded.server.lease()).await.unwrap().unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(refused.metadata().get("retry-after-ms").unwrap(), "1000");
    let quiet = with(Some(&crowded.quiet), v1::ListLimitsRequest::default());
    assert!(limits.clone().list_limits(quiet).await.is_ok());

    given_up.abort();
    crowded.until("earmark_requests_waiting 1").await;
    crowded.gate.gate.add_permits(2);
    assert_eq!(worked_on.await.unwrap().unwrap().into_inner().error, "unknown_limit_key:a");
    assert_eq!(batch.await.unwrap().unwrap().into_inner().results.len(), 2);
    assert_eq!(crowded.came(), [&leases[0], &leases[2], &leases[3]].map(String::clone));
}
