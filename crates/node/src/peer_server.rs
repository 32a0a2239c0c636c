//! The gRPC server of a node for its peers.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::NamedService;

use crate::net::{Connection, Listener};

/// Idle time after which a connection is probed.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Accepted connections that wait for the server.
pub(crate) const CONNECTIONS_WAITING: usize = 16;

/// Accepts connections until their receiver is gone.
pub(crate) async fn accept(listener: &mut dyn Listener, connections: mpsc::Sender<io::Result<Connection>>) {
    loop {
        match listener.accept().await {
            Ok(connection) => {
                if connections.send(Ok(connection)).await.is_err() {
                    return;
                }
            }
            // For example too many open files; the next accept may succeed.
            Err(error) => {
                tracing::warn!("accepting a peer connection failed: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Serves connections until `stop` is ready.
pub(crate) async fn serve<S>(
    connections: mpsc::Receiver<io::Result<Connection>>,
    service: S,
    stop: impl Future<Output = ()>,
) where
    S: tower_service::Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>
        + NamedService
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send + 'static,
{
    let served = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(8 << 20)
        .add_service(service)
        .serve_with_incoming_shutdown(ReceiverStream::new(connections), stop)
        .await;
    if let Err(error) = served {
        tracing::error!("the peer service stopped: {error}");
    }
}
