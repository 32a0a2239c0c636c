//! `grpc.health.v1.Health`: what `/readyz` says, for those who ask this way.

use std::sync::Arc;
use std::time::Duration;

use earmark_proto::v1::{ledger_service_server, limits_service_server};
use tokio::sync::mpsc;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::app::App;

/// How soon whoever watches hears of a change.
const LOOK: Duration = Duration::from_millis(500);

/// The services that can be asked about; the one without a name is the server as a whole.
const NAMES: [&str; 3] = ["", ledger_service_server::SERVICE_NAME, limits_service_server::SERVICE_NAME];

pub(super) struct Healthy(pub(super) Arc<App>);

fn serving(app: &App) -> ServingStatus {
    match app.ready() {
        Ok(()) => ServingStatus::Serving,
        Err(_) => ServingStatus::NotServing,
    }
}

#[async_trait]
impl Health for Healthy {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = &request.get_ref().service;
        if !NAMES.contains(&service.as_str()) {
            return Err(Status::not_found(format!(
                "service: found {service:?}, which is none of this server's"
            )));
        }
        Ok(Response::new(HealthCheckResponse { status: serving(&self.0).into() }))
    }

    type WatchStream = ReceiverStream<Result<HealthCheckResponse, Status>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let is_known = NAMES.contains(&request.get_ref().service.as_str());
        let (say, hear) = mpsc::channel(1);
        tokio::spawn(watch(Arc::clone(&self.0), is_known, say));
        Ok(Response::new(ReceiverStream::new(hear)))
    }
}

/// Says how the server is and every change, until it stops or nobody listens.
async fn watch(app: Arc<App>, is_known: bool, say: mpsc::Sender<Result<HealthCheckResponse, Status>>) {
    let draining = app.draining();
    tokio::pin!(draining);
    let mut said = None;
    let mut is_over = false;
    while !is_over {
        tokio::select! {
            biased;
            () = say.closed() => return,
            () = &mut draining => is_over = true,
            () = tokio::time::sleep(LOOK), if said.is_some() => {}
            () = std::future::ready(()), if said.is_none() => {}
        }
        // The protocol wants an answer for a service that may come to be.
        let status = if is_known { serving(&app) } else { ServingStatus::ServiceUnknown };
        if said != Some(status) {
            said = Some(status);
            if say.send(Ok(HealthCheckResponse { status: status.into() })).await.is_err() {
                return;
            }
        }
    }
}
