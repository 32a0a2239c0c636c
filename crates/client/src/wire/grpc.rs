//! A server over gRPC.

use std::error::Error;

use earmark_proto::v1::ledger_service_client::LedgerServiceClient;
use earmark_proto::v1::limits_service_client::LimitsServiceClient;
use tonic::metadata::errors::InvalidMetadataValueBytes;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request as GrpcRequest, Response, Status};

use super::read::Reader;
use crate::connect::{Connector, NotConnected};
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::options::ClientOptions;
use crate::request::Request;

/// The beginning of the codec's error about bytes that it cannot decode, on either side.
const UNREADABLE: &str = "body: found no message";

/// Metadata of a rate limit. A message that is too large has the same status without it.
const RETRY_AFTER: &str = "retry-after-ms";

/// A server over gRPC. The channel connects with the first request, and again when its connection breaks.
pub(crate) struct Grpc {
    name: String,
    namespace: Option<String>,
    key: Option<MetadataValue<Ascii>>,
    limits: LimitsServiceClient<Channel>,
    ledger: LedgerServiceClient<Channel>,
}

impl Grpc {
    pub(crate) fn new(connector: Connector, options: &ClientOptions) -> Result<Grpc, Failure> {
        let ClientOptions { key, namespace, answer_bytes_max, .. } = options;
        let name = connector.address().to_string();
        let invalid = |error: &dyn Error| Failure::Invalid { message: format!("{name}: {error}") };
        // The connector does TLS, so the channel must not.
        let endpoint = Endpoint::from_shared(format!("http://{}", connector.address().authority()))
            .map_err(|error| invalid(&error))?;
        let channel = endpoint.connect_with_connector_lazy(connector);
        let key = key.as_ref().map(|key| MetadataValue::try_from(key.header().as_bytes())).transpose();
        let mut key = key.map_err(|error: InvalidMetadataValueBytes| invalid(&error))?;
        if let Some(key) = &mut key {
            key.set_sensitive(true);
        }
        Ok(Grpc {
            namespace: (!namespace.is_default()).then(|| namespace.to_string()),
            key,
            limits: LimitsServiceClient::new(channel.clone()).max_decoding_message_size(*answer_bytes_max),
            ledger: LedgerServiceClient::new(channel).max_decoding_message_size(*answer_bytes_max),
            name,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn limits(&self) -> LimitsServiceClient<Channel> {
        self.limits.clone()
    }

    pub(crate) fn ledger(&self) -> LedgerServiceClient<Channel> {
        self.ledger.clone()
    }

    /// The namespace of limits and leases, unless it is `default`.
    pub(crate) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    pub(crate) fn owned_namespace(&self) -> Option<String> {
        self.namespace.clone()
    }

    /// A message with the deadline and the key.
    pub(crate) fn request<T>(&self, message: T, by: Deadline) -> GrpcRequest<T> {
        let mut request = GrpcRequest::new(message);
        request.set_timeout(by.instant().saturating_duration_since(tokio::time::Instant::now()));
        self.with_key(request)
    }

    /// A message stream with the key and without a deadline.
    pub(crate) fn stream_request<T>(&self, messages: T) -> GrpcRequest<T> {
        self.with_key(GrpcRequest::new(messages))
    }

    fn with_key<T>(&self, mut request: GrpcRequest<T>) -> GrpcRequest<T> {
        if let Some(key) = &self.key {
            request.metadata_mut().insert("authorization", key.clone());
        }
        if let Some(header) = earmark_trace::current().and_then(|context| context.header().parse().ok()) {
            request.metadata_mut().insert(earmark_trace::TRACEPARENT, header);
        }
        request
    }

    pub(super) async fn ask<R: Request>(&self, request: &R, by: Deadline) -> Result<R::Answer, Failure> {
        let Some(response) = by.bound(request.grpc(self, by)).await else {
            let (server, why) = (self.name.clone(), "no response in time".into());
            return Err(Failure::NoAnswer { server, why });
        };
        let message = response.map(Response::into_inner).map_err(|status| self.failure(&status))?;
        request.read(Reader(&self.name), message)
    }

    pub(crate) fn failure(&self, status: &Status) -> Failure {
        failure(&self.name, status)
    }
}

/// The failure behind a status of this server, or of the connection to it.
pub(crate) fn failure(server: &str, status: &Status) -> Failure {
    let (server, message) = (server.to_owned(), status.message().to_owned());
    let mut source = status.source();
    while let Some(error) = source {
        if let Some(not_connected) = error.downcast_ref::<NotConnected>() {
            return not_connected.failure(&server);
        }
        source = error.source();
    }
    // A status with a source was made on this side, because the response broke or could not be decoded. Then the
    // server may have executed the request.
    let is_from_server = status.source().is_none() && !message.starts_with(UNREADABLE);
    match status.code() {
        Code::ResourceExhausted if status.metadata().contains_key(RETRY_AFTER) => {
            Failure::RateLimited { server, message }
        }
        Code::InvalidArgument | Code::ResourceExhausted if is_from_server => Failure::Invalid { message },
        Code::NotFound if is_from_server => Failure::NotFound { message },
        Code::Unauthenticated if is_from_server => Failure::Unauthorized { message },
        Code::PermissionDenied if is_from_server => Failure::Forbidden { message },
        Code::Unavailable | Code::Internal => Failure::Unavailable { server, message },
        code => Failure::NoAnswer { server, why: format!("{code}: {message}") },
    }
}
