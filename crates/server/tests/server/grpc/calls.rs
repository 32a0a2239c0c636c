//! gRPC clients and requests.

use earmark_proto::v1;
use earmark_proto::v1::calls_service_client::CallsServiceClient;
use earmark_proto::v1::ledger_service_client::LedgerServiceClient;
use earmark_proto::v1::limits_service_client::LimitsServiceClient;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::support::{TestServer, new_address};

pub(crate) async fn channel(server: &TestServer) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address)).unwrap();
    endpoint.local_address(Some(new_address())).connect().await.unwrap()
}

pub(crate) async fn limits(server: &TestServer) -> LimitsServiceClient<Channel> {
    LimitsServiceClient::new(channel(server).await)
}

pub(crate) async fn calls(server: &TestServer) -> CallsServiceClient<Channel> {
    CallsServiceClient::new(channel(server).await)
}

pub(crate) async fn ledger(server: &TestServer) -> LedgerServiceClient<Channel> {
    LedgerServiceClient::new(channel(server).await)
}

/// Asserts the code of a failed call, and returns its message.
pub(crate) fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code) -> String {
    let status = answer.unwrap_err();
    assert_eq!(status.code(), code, "{status:?}");
    status.message().to_owned()
}

pub(crate) fn rolling(key: &str, capacity: u64) -> v1::PutLimitRequest {
    let mut definition = v1::LimitDefinition {
        key: key.into(),
        capacity: Some(capacity),
        window_seconds: Some(60),
        ..Default::default()
    };
    definition.set_kind(v1::LimitKind::Rolling);
    v1::PutLimitRequest { definition: Some(definition), namespace: None }
}

pub(crate) fn reserve(lease: &str, amounts: &[(&str, u64)]) -> v1::ReserveRequest {
    let part = |(key, amount): &(&str, u64)| v1::Requirement { key: (*key).into(), amount: *amount, namespace: None };
    let requirements = amounts.iter().map(part).collect();
    v1::ReserveRequest { lease_id: lease.into(), requirements, ..Default::default() }
}

pub(crate) fn extend(lease: &str, extension: u32) -> v1::ExtendRequest {
    v1::ExtendRequest { lease_id: lease.into(), extension, ..Default::default() }
}

pub(crate) fn complete(lease: &str, amounts: &[(&str, u64)]) -> v1::CompleteRequest {
    let part = |(key, amount): &(&str, u64)| v1::Actual { key: (*key).into(), actual_amount: *amount, namespace: None };
    let actuals = amounts.iter().map(part).collect();
    v1::CompleteRequest { lease_id: lease.into(), actuals, ..Default::default() }
}

pub(crate) fn write(vault: Option<&str>, sequence: u64, operations: Vec<v1::Operation>) -> v1::WriteRequest {
    let (namespace, client_id) = ("default".into(), "billing".into());
    v1::WriteRequest { namespace, vault: vault.map(Into::into), client_id, sequence, operations, idempotency_key: None }
}

fn operation(operation: v1::operation::Operation) -> v1::Operation {
    v1::Operation { operation: Some(operation) }
}

pub(crate) fn open(account: &str) -> v1::Operation {
    let overdraft = v1::Overdraft::Deny.into();
    let open = v1::OpenAccountOperation { account: account.into(), overdraft, overdraft_limit: None, plan: None };
    operation(v1::operation::Operation::OpenAccount(open))
}

pub(crate) fn issue(account: &str, amount: &str) -> v1::Operation {
    let (account, asset, amount, memo) = (account.into(), "usd".into(), amount.into(), String::new());
    operation(v1::operation::Operation::Issue(v1::IssueOperation {
        account,
        asset,
        amount,
        memo,
        ..v1::IssueOperation::default()
    }))
}

pub(crate) fn transfer(from: &str, to: &str, amount: &str) -> v1::Operation {
    let (from, to, asset, amount) = (from.into(), to.into(), "usd".into(), amount.into());
    let transfer = v1::TransferOperation { from, to, asset, amount, memo: "rent".into() };
    operation(v1::operation::Operation::Transfer(transfer))
}

pub(crate) fn open_vault(vault: &str) -> v1::Operation {
    operation(v1::operation::Operation::OpenVault(v1::OpenVaultOperation { vault: vault.into() }))
}

pub(crate) fn put_limit(key: &str, expected_revision: Option<u64>) -> v1::Operation {
    let definition = rolling(key, 5).definition;
    operation(v1::operation::Operation::PutLimit(v1::PutLimitOperation { definition, expected_revision }))
}

/// Asserts that a write succeeded.
pub(crate) fn success(response: v1::WriteResponse) -> v1::WriteSuccess {
    match response.result {
        Some(v1::write_response::Result::Success(success)) => success,
        other => panic!("{other:?}"),
    }
}

/// Asserts that a write failed.
pub(crate) fn error(response: v1::WriteResponse) -> v1::WriteError {
    match response.result {
        Some(v1::write_response::Result::Error(error)) => error,
        other => panic!("{other:?}"),
    }
}
