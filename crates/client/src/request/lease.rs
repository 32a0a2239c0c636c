//! Batches of reserves, of extensions and of completes.

use std::future::Future;

use earmark_core::{LeaseId, LimitKey, UnixMs};
use earmark_proto::{convert, v1};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tonic::{Response, Status};

use super::Request;
use super::plain::Rest;
use crate::answer::{Completed, ExtendAnswer, LeaseView, ReserveAnswer};
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::http::{HttpRequest, Method};
use crate::job::{Actuals, Job};
use crate::key::ClientKey;
#[cfg(feature = "local")]
use crate::local::Local;
use crate::wire::{Grpc, Reader};

/// Upper bounds in bytes: an item without its amounts, and an amount without its key.
const ITEM_BYTES: usize = 256;
const AMOUNT_BYTES: usize = 64;
/// An upper bound for the quotes and commas of a label, whose value may have escapes.
const LABEL_BYTES: usize = 8;

/// Reads one lease.
pub(crate) struct GetLease(pub(crate) LeaseId);

impl Request for GetLease {
    type Message = v1::GetLeaseResponse;
    type Answer = LeaseView;

    fn http(&self) -> serde_json::Result<HttpRequest> {
        Ok(HttpRequest::new(Method::GET, format!("/v1/leases/{}", self.0)))
    }

    async fn grpc(&self, grpc: &Grpc, by: Deadline) -> Result<Response<v1::GetLeaseResponse>, Status> {
        let (lease_id, namespace) = (self.0.to_string(), grpc.owned_namespace());
        grpc.limits().get_lease(grpc.request(v1::GetLeaseRequest { lease_id, namespace }, by)).await
    }

    fn read(&self, reader: Reader<'_>, message: v1::GetLeaseResponse) -> Result<LeaseView, Failure> {
        let lease = message.lease.unwrap_or_default();
        let used = |part: v1::Actual| {
            let key = LimitKey::parse_qualified(&part.key).map_err(|error| reader.unexpected(error))?;
            Ok((key, part.actual_amount))
        };
        Ok(LeaseView {
            state: reader.converted(convert::state_in(lease.state))?,
            reserved_at: Some(UnixMs::new(lease.reserved_at_unix_ms)).filter(|at| at.get() > 0),
            job: reader.converted(convert::job_in(lease.job_id.as_deref()))?,
            extensions: lease.extensions,
            used: lease.used.into_iter().map(used).collect::<Result<_, Failure>>()?,
            ends_at: Some(UnixMs::new(lease.ends_at_unix_ms)).filter(|at| at.get() > 0),
        })
    }

    #[cfg(feature = "local")]
    async fn local(&self, local: &Local) -> Result<LeaseView, Failure> {
        local.lease(self.0).await
    }
}

/// One reserve attempt.
#[derive(Clone, Debug)]
pub(crate) struct ReserveItem {
    pub(crate) lease: LeaseId,
    pub(crate) job: Job,
}

/// One extension of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExtendItem {
    pub(crate) lease: LeaseId,
    pub(crate) number: u32,
    pub(crate) add: Vec<(LimitKey, u64)>,
    pub(crate) used: Vec<(LimitKey, u64)>,
    pub(crate) renew: bool,
}

/// The completion of one lease.
#[derive(Clone, Debug)]
pub(crate) struct CompleteItem {
    pub(crate) lease: LeaseId,
    pub(crate) job: Job,
    pub(crate) actuals: Actuals,
}

/// A request that can share a batch with others of its kind.
pub(crate) trait Item: Sized + Send + Sync + 'static {
    type Answer: Send + 'static;
    /// The request message of one item.
    type Message: Serialize + Send;
    /// The response message of one item.
    type Reply: DeserializeOwned + Send;
    /// The HTTP path for one item. A batch has `/batch` behind it.
    const PATH: &'static str;

    /// An upper bound for the size of the item in a request body.
    fn bytes(&self) -> usize;

    /// The client that a gateway calls for. All items of a batch have the same.
    fn client(&self) -> Option<&ClientKey> {
        None
    }

    fn message(&self, namespace: Option<&str>) -> Self::Message;

    /// Appends the item as JSON.
    fn write_json(&self, body: &mut Vec<u8>) -> serde_json::Result<()> {
        serde_json::to_writer(body, &self.message(None))
    }

    fn grpc(
        grpc: &Grpc,
        requests: Vec<Self::Message>,
        by: Deadline,
    ) -> impl Future<Output = Result<Response<Vec<Self::Reply>>, Status>> + Send;

    /// Reads the response message from the rest of an HTTP body, if it has the usual form.
    fn plain(_: &mut Rest<'_>) -> Option<Self::Reply> {
        None
    }

    fn read(reader: Reader<'_>, reply: Self::Reply) -> Result<Self::Answer, Failure>;

    #[cfg(feature = "local")]
    fn local(local: &Local, items: &[Self]) -> impl Future<Output = Vec<Result<Self::Answer, Failure>>> + Send;
}

/// An upper bound for the size of an item with these amounts.
fn bytes(amounts: &[(LimitKey, u64)]) -> usize {
    let amounts = amounts.iter().map(|(key, _)| key.as_str().len() + AMOUNT_BYTES);
    ITEM_BYTES + amounts.sum::<usize>()
}

fn requirement((key, amount): &(LimitKey, u64)) -> v1::Requirement {
    let (namespace, key) = named(key);
    v1::Requirement { key, amount: *amount, namespace }
}

fn actual((key, amount): &(LimitKey, u64)) -> v1::Actual {
    let (namespace, key) = named(key);
    v1::Actual { key, actual_amount: *amount, namespace }
}

/// The namespace of a shared limit, and the key.
fn named(key: &LimitKey) -> (Option<String>, String) {
    match key.foreign() {
        Some((namespace, key)) => (Some(namespace.to_string()), key.to_string()),
        None => (None, key.to_string()),
    }
}

impl Item for ReserveItem {
    type Answer = ReserveAnswer;
    type Message = v1::ReserveRequest;
    type Reply = v1::ReserveResponse;
    const PATH: &'static str = "/v1/reserve";

    fn bytes(&self) -> usize {
        bytes(self.job.requirements())
    }

    fn message(&self, namespace: Option<&str>) -> v1::ReserveRequest {
        v1::ReserveRequest {
            lease_id: self.lease.to_string(),
            job_id: self.job.id().map(ToString::to_string),
            requirements: self.job.requirements().iter().map(requirement).collect(),
            namespace: namespace.map(str::to_owned),
        }
    }

    async fn grpc(
        grpc: &Grpc,
        requests: Vec<v1::ReserveRequest>,
        by: Deadline,
    ) -> Result<Response<Vec<v1::ReserveResponse>>, Status> {
        let request = grpc.request(v1::ReserveBatchRequest { requests }, by);
        Ok(grpc.limits().reserve_batch(request).await?.map(|batch| batch.results))
    }

    fn read(reader: Reader<'_>, reply: v1::ReserveResponse) -> Result<ReserveAnswer, Failure> {
        reader.reserved(reply)
    }

    #[cfg(feature = "local")]
    async fn local(local: &Local, items: &[ReserveItem]) -> Vec<Result<ReserveAnswer, Failure>> {
        local.reserve(items).await
    }
}

impl Item for ExtendItem {
    type Answer = ExtendAnswer;
    type Message = v1::ExtendRequest;
    type Reply = v1::ExtendResponse;
    const PATH: &'static str = "/v1/extend";

    fn bytes(&self) -> usize {
        bytes(&self.add) + bytes(&self.used)
    }

    fn message(&self, namespace: Option<&str>) -> v1::ExtendRequest {
        v1::ExtendRequest {
            lease_id: self.lease.to_string(),
            extension: self.number,
            add: self.add.iter().map(requirement).collect(),
            used: self.used.iter().map(actual).collect(),
            renew: Some(self.renew),
            namespace: namespace.map(str::to_owned),
        }
    }

    async fn grpc(
        grpc: &Grpc,
        requests: Vec<v1::ExtendRequest>,
        by: Deadline,
    ) -> Result<Response<Vec<v1::ExtendResponse>>, Status> {
        let request = grpc.request(v1::ExtendBatchRequest { requests }, by);
        Ok(grpc.limits().extend_batch(request).await?.map(|batch| batch.results))
    }

    fn read(reader: Reader<'_>, reply: v1::ExtendResponse) -> Result<ExtendAnswer, Failure> {
        reader.extended(reply)
    }

    #[cfg(feature = "local")]
    async fn local(local: &Local, items: &[ExtendItem]) -> Vec<Result<ExtendAnswer, Failure>> {
        local.extend(items).await
    }
}

impl Item for CompleteItem {
    type Answer = Completed;
    type Message = v1::CompleteRequest;
    type Reply = v1::CompleteResponse;
    const PATH: &'static str = "/v1/complete";

    fn bytes(&self) -> usize {
        let labels = self.actuals.labels().iter().map(|(name, value)| name.len() + 2 * value.len() + LABEL_BYTES);
        bytes(self.actuals.amounts()) + labels.sum::<usize>()
    }

    fn message(&self, namespace: Option<&str>) -> v1::CompleteRequest {
        v1::CompleteRequest {
            lease_id: self.lease.to_string(),
            job_id: self.job.id().map(ToString::to_string),
            actuals: self.actuals.amounts().iter().map(actual).collect(),
            namespace: namespace.map(str::to_owned),
            labels: self.actuals.labels().iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        }
    }

    async fn grpc(
        grpc: &Grpc,
        requests: Vec<v1::CompleteRequest>,
        by: Deadline,
    ) -> Result<Response<Vec<v1::CompleteResponse>>, Status> {
        let request = grpc.request(v1::CompleteBatchRequest { requests }, by);
        Ok(grpc.limits().complete_batch(request).await?.map(|batch| batch.results))
    }

    fn read(reader: Reader<'_>, reply: v1::CompleteResponse) -> Result<Completed, Failure> {
        reader.completed(reply)
    }

    #[cfg(feature = "local")]
    async fn local(local: &Local, items: &[CompleteItem]) -> Vec<Result<Completed, Failure>> {
        local.complete(items).await
    }
}

/// Several items of one client in one request. One alone is sent without a batch around it.
pub(crate) struct Batch<I>(pub(crate) Vec<I>);

#[derive(Deserialize)]
struct Results<T> {
    results: Vec<T>,
}

/// The response messages of a batch in their usual form.
fn plain<I: Item>(body: &[u8], count: usize) -> Option<Vec<I::Reply>> {
    let mut rest = Rest::of(body)?;
    let mut replies = Vec::with_capacity(count);
    if count == 1 {
        replies.push(I::plain(&mut rest)?);
    } else {
        rest.expect(r#"{"results":["#)?;
        loop {
            replies.push(I::plain(&mut rest)?);
            if !rest.take(",") {
                break;
            }
        }
        rest.expect("]}")?;
    }
    rest.is_empty().then_some(replies)
}

impl<I: Item> Request for Batch<I> {
    type Message = Vec<I::Reply>;
    type Answer = Vec<Result<I::Answer, Failure>>;
    const CHANGES_STATE: bool = true;

    fn http(&self) -> serde_json::Result<HttpRequest> {
        let mut body = Vec::new();
        let path = match self.0.as_slice() {
            [item] => {
                item.write_json(&mut body)?;
                I::PATH.to_owned()
            }
            items => {
                body.extend_from_slice(br#"{"requests":"#);
                for (place, item) in items.iter().enumerate() {
                    body.push(if place == 0 { b'[' } else { b',' });
                    item.write_json(&mut body)?;
                }
                body.extend_from_slice(b"]}");
                format!("{}/batch", I::PATH)
            }
        };
        let client = self.0.first().and_then(Item::client);
        Ok(HttpRequest::new(Method::POST, path).json(body).for_client(client.cloned()))
    }

    fn parse(&self, body: &[u8]) -> serde_json::Result<Vec<I::Reply>> {
        if let Some(replies) = plain::<I>(body, self.0.len()) {
            return Ok(replies);
        }
        match self.0.as_slice() {
            [_] => Ok(vec![serde_json::from_slice(body)?]),
            _ => Ok(serde_json::from_slice::<Results<I::Reply>>(body)?.results),
        }
    }

    async fn grpc(&self, grpc: &Grpc, by: Deadline) -> Result<Response<Vec<I::Reply>>, Status> {
        let requests = self.0.iter().map(|item| item.message(grpc.namespace())).collect();
        I::grpc(grpc, requests, by).await
    }

    fn read(&self, reader: Reader<'_>, replies: Vec<I::Reply>) -> Result<Self::Answer, Failure> {
        let (found, sent) = (replies.len(), self.0.len());
        match found == sent {
            true => Ok(replies.into_iter().map(|reply| I::read(reader, reply)).collect()),
            false => Err(reader.unexpected(format!("results: found {found} for {sent} requests"))),
        }
    }

    fn blames_server(answers: &Self::Answer) -> bool {
        answers.iter().any(|answer| answer.as_ref().is_err_and(Failure::blames_server))
    }

    #[cfg(feature = "local")]
    async fn local(&self, local: &Local) -> Result<Self::Answer, Failure> {
        Ok(I::local(local, &self.0).await)
    }
}
