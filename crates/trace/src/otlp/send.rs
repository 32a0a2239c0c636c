//! Sends batches to the collector.

use bytes::Bytes;
use earmark_proto::opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest;
use earmark_proto::opentelemetry::proto::collector::trace::v1::trace_service_client::TraceServiceClient;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use prost::Message as _;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint as ChannelEndpoint};

use super::connect::Connector;
use super::{Options, Protocol, StartError};

/// Bytes of an answer that are read.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// The connection to a collector. It is made with the first batch, and again when it breaks.
pub(super) struct Sender {
    name: String,
    headers: HeaderMap,
    wire: Wire,
}

enum Wire {
    Grpc(Box<TraceServiceClient<Channel>>),
    Http { connector: Connector, path: String, connection: Option<SendRequest<Full<Bytes>>> },
}

impl Sender {
    pub(super) fn new(connector: Connector, options: &Options) -> Result<Sender, StartError> {
        let mut headers = HeaderMap::new();
        for (name, value) in &options.headers {
            let refused = || StartError::Header { name: name.clone() };
            let header = HeaderName::try_from(name.as_str()).map_err(|_| refused())?;
            let mut value = HeaderValue::try_from(value.as_str()).map_err(|_| refused())?;
            value.set_sensitive(true);
            headers.insert(header, value);
        }
        let name = options.endpoint.authority();
        let wire = match options.endpoint.protocol {
            Protocol::Grpc => {
                // The connector does TLS, so the channel must not.
                let endpoint = ChannelEndpoint::from_shared(format!("http://{name}"));
                let endpoint = endpoint.map_err(|_| StartError::Header { name: name.clone() })?;
                Wire::Grpc(Box::new(TraceServiceClient::new(endpoint.connect_with_connector_lazy(connector))))
            }
            Protocol::Http => Wire::Http { connector, path: options.endpoint.path.clone(), connection: None },
        };
        Ok(Sender { name, headers, wire })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Sends a batch once. The error says why the collector does not have it.
    pub(super) async fn send(&mut self, batch: ExportTraceServiceRequest) -> Result<(), String> {
        match &mut self.wire {
            Wire::Grpc(client) => {
                let metadata = MetadataMap::from_headers(self.headers.clone());
                let request = tonic::Request::from_parts(metadata, tonic::Extensions::default(), batch);
                let answer = client.export(request).await.map_err(|status| status.to_string())?.into_inner();
                match answer.partial_success.filter(|partial| partial.rejected_spans > 0) {
                    None => Ok(()),
                    Some(partial) => Err(format!("spans rejected: {}", partial.error_message)),
                }
            }
            Wire::Http { connector, path, connection } => {
                let mut request = hyper::Request::post(path.as_str())
                    .header(HOST, &self.name)
                    .header(CONTENT_TYPE, "application/x-protobuf")
                    .body(Full::new(Bytes::from(batch.encode_to_vec())))
                    .map_err(|error| error.to_string())?;
                request.headers_mut().extend(self.headers.clone());
                post(connector, connection, request).await
            }
        }
    }
}

async fn post(
    connector: &Connector,
    kept: &mut Option<SendRequest<Full<Bytes>>>,
    request: hyper::Request<Full<Bytes>>,
) -> Result<(), String> {
    let mut connection = match kept.take().filter(|connection| connection.is_ready()) {
        Some(connection) => connection,
        None => {
            let stream = connector.connect().await.map_err(|error| error.to_string())?;
            let (sender, driver) = handshake(stream).await.map_err(|error| error.to_string())?;
            // It ends with the connection.
            tokio::spawn(driver);
            sender
        }
    };
    let answer = connection.send_request(request).await.map_err(|error| error.to_string())?;
    let status = answer.status();
    // A whole body leaves the connection free for the next batch.
    let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
    body.map_err(|error| error.to_string())?;
    *kept = Some(connection);
    if status.is_success() { Ok(()) } else { Err(format!("status {status}")) }
}
