//! Requests to a server, each with the type of its answer, over HTTP, over gRPC and on a Book in this process.

mod call;
mod lease;
mod limit;
mod plain;
mod template;
mod write;

use std::future::Future;

use serde::de::DeserializeOwned;
use tonic::{Response, Status};

pub(crate) use call::{CompleteCall, ExplainCall, ExtendCall, PlaceCall, WhoAmI};
pub(crate) use lease::{Batch, CompleteItem, ExtendItem, GetLease, Item, ReserveItem};
#[cfg(feature = "local")]
pub(crate) use limit::LimitViews;
pub(crate) use limit::{DeleteLimit, GetLimit, GetUsage, ListLimits, ListUsage, Pause, PauseLimit, PutLimit};
pub(crate) use template::{DeleteTemplate, ListTemplates, PutTemplate};
pub(crate) use write::{GetBalances, GetClientState, GetGrants, Write};

use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::http::{HttpRequest, StatusCode};
#[cfg(feature = "local")]
use crate::local::Local;
use crate::wire::{Grpc, Reader};

/// A request. Its gRPC messages are also its JSON bodies.
pub(crate) trait Request: Sync {
    /// The response message.
    type Message: DeserializeOwned + Send;
    /// The result for the caller.
    type Answer: Send;
    /// Whether the request changes state: then an attempt without an answer may have taken effect.
    const CHANGES_STATE: bool = false;

    fn http(&self) -> serde_json::Result<HttpRequest>;

    /// Reads the response message from the body of an HTTP response.
    fn parse(&self, body: &[u8]) -> serde_json::Result<Self::Message> {
        serde_json::from_slice(body)
    }

    /// Whether an HTTP response has an answer. Otherwise its status and its body tell why not.
    fn is_answer(status: StatusCode, _: &Self::Message) -> bool {
        status == StatusCode::OK
    }

    fn grpc(&self, grpc: &Grpc, by: Deadline) -> impl Future<Output = Result<Response<Self::Message>, Status>> + Send;

    /// Converts a response message, over either protocol.
    fn read(&self, reader: Reader<'_>, message: Self::Message) -> Result<Self::Answer, Failure>;

    /// Whether another server may give a better answer. A node without a majority still answers: each item of a batch
    /// with a failure, and a write with a refusal.
    fn blames_server(_: &Self::Answer) -> bool {
        false
    }

    #[cfg(feature = "local")]
    fn local(&self, local: &Local) -> impl Future<Output = Result<Self::Answer, Failure>> + Send;
}
