//! Peer calls that a test writes itself, with any certificate and any route.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use earmark_node::{Connection, Net};
use earmark_proto::peer::peer_service_client::PeerServiceClient;
use earmark_proto::peer::{HelloRequest, Route};
use hyper_util::rt::TokioIo;
use prost::Message as _;
use tonic::metadata::MetadataValue;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint, Uri};
use tower_service::Service;

/// Connects a client to one address.
struct Dial(Arc<dyn Net>, String);

impl Service<Uri> for Dial {
    type Response = TokioIo<Connection>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Connection>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connecting = self.0.connect(self.1.clone());
        Box::pin(async { connecting.await.map(TokioIo::new) })
    }
}

/// Adds a route to every call, or none.
#[derive(Clone)]
pub struct Header(pub Option<Route>);

impl Interceptor for Header {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
        if let Some(route) = &self.0 {
            let value = MetadataValue::from_bytes(&route.encode_to_vec());
            request.metadata_mut().insert_bin("earmark-route-bin", value);
        }
        Ok(request)
    }
}

pub type RawClient = PeerServiceClient<InterceptedService<Channel, Header>>;

/// A connection with the certificate of a network.
pub async fn channel(net: Arc<dyn Net>, address: &str) -> Result<Channel, tonic::transport::Error> {
    Endpoint::from_static("http://peer").connect_with_connector(Dial(net, address.to_owned())).await
}

pub fn client(channel: &Channel, route: Option<&Route>) -> RawClient {
    PeerServiceClient::with_interceptor(channel.clone(), Header(route.cloned()))
}

/// The route of calls to the node of a connection.
pub async fn route(channel: &Channel, from: u64, from_incarnation: u128) -> Route {
    let from_incarnation = Bytes::copy_from_slice(&from_incarnation.to_le_bytes());
    let plain = Route { from, from_incarnation, ..Route::default() };
    let hello = client(channel, Some(&plain)).hello(HelloRequest {}).await.unwrap().into_inner();
    Route { cluster: hello.cluster, to: hello.node, to_incarnation: hello.incarnation, ..plain }
}
