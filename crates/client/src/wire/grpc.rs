//! A server over gRPC.

use std::error::Error;

use earmark_proto::convert;
use earmark_proto::v1;
use earmark_proto::v1::ledger_service_client::LedgerServiceClient;
use earmark_proto::v1::limits_service_client::LimitsServiceClient;
use tonic::metadata::MetadataValue;
use tonic::metadata::errors::InvalidMetadataValueBytes;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

use super::read::Reader;
use crate::ask::{Answer, Ask, CompleteItem, ReserveItem, Scope, WriteItem};
use crate::connect::{Connector, NotConnected};
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::options::ClientOptions;

/// How the codec begins what it says of bytes that are no message, on either side.
const UNREADABLE: &str = "body: found no message";

/// When to come back, which tells a caller who asks too often from a message that is too large.
const RETRY_AFTER: &str = "retry-after-ms";

/// A server over gRPC. The connection is made when it is needed, and again when it broke.
pub(crate) struct Grpc {
    name: String,
    namespace: Option<String>,
    key: Option<MetadataValue<tonic::metadata::Ascii>>,
    limits: LimitsServiceClient<Channel>,
    ledger: LedgerServiceClient<Channel>,
}

impl Grpc {
    pub(crate) fn new(connector: Connector, options: &ClientOptions) -> Result<Grpc, Failure> {
        let ClientOptions { key, namespace, answer_bytes_max, .. } = options;
        let name = connector.address().to_string();
        let invalid = |error: &dyn Error| Failure::Invalid { message: format!("{name}: {error}") };
        // The connector knows whether there is TLS; the channel must not try by itself.
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

    fn request<T>(&self, message: T, by: Deadline) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(by.instant().saturating_duration_since(tokio::time::Instant::now()));
        if let Some(key) = &self.key {
            request.metadata_mut().insert("authorization", key.clone());
        }
        request
    }

    fn answer<T>(&self, answer: Result<Response<T>, Status>) -> Result<T, Failure> {
        answer.map(Response::into_inner).map_err(|status| self.failure(&status))
    }

    fn failure(&self, status: &Status) -> Failure {
        let (server, message) = (self.name.clone(), status.message().to_owned());
        let mut source = status.source();
        while let Some(error) = source {
            if let Some(why) = error.downcast_ref::<NotConnected>() {
                return why.failure(&server);
            }
            source = error.source();
        }
        // What has a source was made on this side, of an answer that broke or made no sense: the server may have done
        // what it was asked. So may one whose answer could not be read.
        let is_said = status.source().is_none() && !message.starts_with(UNREADABLE);
        match status.code() {
            Code::ResourceExhausted if status.metadata().contains_key(RETRY_AFTER) => {
                Failure::TooMany { server, message }
            }
            Code::InvalidArgument | Code::ResourceExhausted if is_said => Failure::Invalid { message },
            Code::NotFound if is_said => Failure::NotFound { message },
            Code::Unauthenticated | Code::PermissionDenied if is_said => Failure::Unauthorized { message },
            Code::Unavailable | Code::Internal => Failure::Unavailable { server, message },
            code => Failure::NoAnswer { server, why: format!("{code}: {message}") },
        }
    }

    /// Asks once, or fails at the deadline.
    pub(crate) async fn ask_by(&self, ask: &Ask, by: Deadline) -> Result<Answer, Failure> {
        let why = || Failure::NoAnswer { server: self.name.clone(), why: "no response in time".into() };
        by.bound(self.ask(ask, by)).await.unwrap_or_else(|| Err(why()))
    }

    async fn ask(&self, ask: &Ask, by: Deadline) -> Result<Answer, Failure> {
        let reader = Reader(&self.name);
        let namespace = self.namespace.clone();
        let mut limits = self.limits.clone();
        match ask {
            Ask::Reserve(_) | Ask::Complete(_) => self.lease(ask, by).await,
            Ask::PutLimit(definition) => {
                let definition = Some(convert::definition_of(definition));
                let request = self.request(v1::PutLimitRequest { definition, namespace }, by);
                let answer = self.answer(limits.put_limit(request).await)?;
                Ok(Answer::LimitStatus(reader.status(answer.status)?))
            }
            Ask::DeleteLimit(key) => {
                let request = self.request(v1::DeleteLimitRequest { key: key.to_string(), namespace }, by);
                let answer = self.answer(limits.delete_limit(request).await)?;
                Ok(Answer::LimitStatus(reader.status(answer.status)?))
            }
            Ask::Limit(key) => {
                let request = self.request(v1::GetLimitRequest { key: key.to_string(), namespace }, by);
                let answer = self.answer(limits.get_limit(request).await)?;
                Ok(Answer::Limits(vec![reader.limit(answer.limit)?]))
            }
            Ask::Limits => {
                let request = self.request(v1::ListLimitsRequest { namespace }, by);
                let answer = self.answer(limits.list_limits(request).await)?;
                let views = answer.limits.into_iter().map(|limit| reader.limit(Some(limit)));
                Ok(Answer::Limits(views.collect::<Result<_, _>>()?))
            }
            Ask::Usage(key) => {
                let request = self.request(v1::GetUsageRequest { key: key.to_string(), namespace }, by);
                Ok(Answer::Usage(reader.usage(&self.answer(limits.get_usage(request).await)?)?))
            }
            Ask::Write(_) | Ask::ClientState { .. } | Ask::Balances { .. } => self.of_ledger(ask, by).await,
        }
    }

    /// What leases are about.
    async fn lease(&self, ask: &Ask, by: Deadline) -> Result<Answer, Failure> {
        let reader = Reader(&self.name);
        let mut limits = self.limits.clone();
        match ask {
            Ask::Reserve(items) => {
                let requests: Vec<v1::ReserveRequest> =
                    items.iter().map(|item| reserve(item, self.namespace.clone())).collect();
                let request = self.request(v1::ReserveBatchRequest { requests }, by);
                let answer = self.answer(limits.reserve_batch(request).await)?;
                let results = reader.each(answer.results, items.len(), |one| reader.reserved(one))?;
                Ok(Answer::Reserve(results))
            }
            Ask::Complete(items) => {
                let requests: Vec<v1::CompleteRequest> =
                    items.iter().map(|item| complete(item, self.namespace.clone())).collect();
                let request = self.request(v1::CompleteBatchRequest { requests }, by);
                let answer = self.answer(limits.complete_batch(request).await)?;
                let results = reader.each(answer.results, items.len(), |one| reader.completed(one))?;
                Ok(Answer::Complete(results))
            }
            _ => Err(mixed_up()),
        }
    }

    async fn of_ledger(&self, ask: &Ask, by: Deadline) -> Result<Answer, Failure> {
        let reader = Reader(&self.name);
        let mut ledger = self.ledger.clone();
        match ask {
            Ask::Write(item) => {
                let request = self.request(write(item), by);
                Ok(Answer::Write(reader.written(self.answer(ledger.write(request).await)?)?))
            }
            Ask::ClientState { scope: Scope { namespace, vault }, client } => {
                let request = v1::GetClientStateRequest {
                    namespace: Some(namespace.to_string()),
                    vault: vault.as_ref().map(ToString::to_string),
                    client_id: client.to_string(),
                };
                let answer = self.answer(ledger.get_client_state(self.request(request, by)).await)?;
                Ok(Answer::ClientState(answer.last_committed_sequence))
            }
            Ask::Balances { vault, account } => {
                let request = v1::GetBalancesRequest {
                    namespace: self.namespace.clone(),
                    vault: vault.to_string(),
                    account: account.to_string(),
                };
                let answer = self.answer(ledger.get_balances(self.request(request, by)).await)?;
                Ok(Answer::Balances(reader.balances(&answer.balances)?))
            }
            _ => Err(mixed_up()),
        }
    }
}

fn mixed_up() -> Failure {
    Failure::Invalid { message: "a bug of this client: it asked the wrong service".into() }
}

fn reserve(item: &ReserveItem, namespace: Option<String>) -> v1::ReserveRequest {
    let requirements = item.job.requirements().iter();
    let requirements =
        requirements.map(|(key, amount)| v1::Requirement { key: key.to_string(), amount: *amount });
    v1::ReserveRequest {
        lease_id: item.lease.to_string(),
        job_id: item.job.id().map(ToString::to_string),
        requirements: requirements.collect(),
        namespace,
    }
}

fn complete(item: &CompleteItem, namespace: Option<String>) -> v1::CompleteRequest {
    let actuals = item.actuals.amounts().iter();
    let actuals = actuals.map(|(key, amount)| v1::Actual { key: key.to_string(), actual_amount: *amount });
    v1::CompleteRequest {
        lease_id: item.lease.to_string(),
        job_id: item.job.id().map(ToString::to_string),
        actuals: actuals.collect(),
        namespace,
    }
}

fn write(item: &WriteItem) -> v1::WriteRequest {
    v1::WriteRequest {
        namespace: item.scope.namespace.to_string(),
        vault: item.scope.vault.as_ref().map(ToString::to_string),
        client_id: item.client.to_string(),
        sequence: item.sequence,
        operations: item.operations.iter().map(convert::operation_of).collect(),
    }
}
