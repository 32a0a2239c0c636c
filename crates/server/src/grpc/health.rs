//! `grpc.health.v1.Health`: the readiness of `/readyz` over gRPC.

use std::sync::Arc;
use std::time::Duration;

use earmark_proto::envoy::service::ratelimit::v3::rate_limit_service_server;
use earmark_proto::v1::{cluster_service_server, ledger_service_server, limits_service_server};
use tokio::sync::mpsc;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::RpcResult;
use crate::app::App;

/// Poll interval of `Watch`, and so its longest delay.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The known services. The empty name is the server as a whole.
const NAMES: [&str; 5] = [
    "",
    rate_limit_service_server::SERVICE_NAME,
    cluster_service_server::SERVICE_NAME,
    ledger_service_server::SERVICE_NAME,
    limits_service_server::SERVICE_NAME,
];

pub(super) struct Healthy(pub(super) Arc<App>);

fn serving(app: &App) -> ServingStatus {
    match app.ready() {
        Ok(()) => ServingStatus::Serving,
        Err(_) => ServingStatus::NotServing,
    }
}

#[async_trait]
impl Health for Healthy {
    async fn check(&self, request: Request<HealthCheckRequest>) -> RpcResult<HealthCheckResponse> {
        let service = &request.get_ref().service;
        if !NAMES.contains(&service.as_str()) {
            return Err(Status::not_found(format!("service {service:?} not found; reflection lists all services")));
        }
        Ok(Response::new(HealthCheckResponse { status: serving(&self.0).into() }))
    }

    type WatchStream = ReceiverStream<Result<HealthCheckResponse, Status>>;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> RpcResult<Self::WatchStream> {
        let is_known = NAMES.contains(&request.get_ref().service.as_str());
        let (sender, receiver) = mpsc::channel(1);
        earmark_admission::spawn(watch(Arc::clone(&self.0), is_known, sender));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// Sends the status and every change, until the server drains or the client leaves.
async fn watch(app: Arc<App>, is_known: bool, sender: mpsc::Sender<Result<HealthCheckResponse, Status>>) {
    let draining = app.draining();
    tokio::pin!(draining);
    let mut sent = None;
    let mut is_draining = false;
    while !is_draining {
        tokio::select! {
            biased;
            () = sender.closed() => return,
            () = &mut draining => is_draining = true,
            () = tokio::time::sleep(POLL_INTERVAL), if sent.is_some() => {}
            () = std::future::ready(()), if sent.is_none() => {}
        }
        // The protocol requires this status for an unknown service.
        let status = if is_known { serving(&app) } else { ServingStatus::ServiceUnknown };
        if sent != Some(status) {
            sent = Some(status);
            if sender.send(Ok(HealthCheckResponse { status: status.into() })).await.is_err() {
                return;
            }
        }
    }
}
