//! The gRPC stream `Leases`: many leases over one call.

use earmark_core::LeaseId;
use earmark_proto::v1;
use earmark_proto::v1::leases_request::Request;
use earmark_proto::v1::leases_response::Answer;
use tokio::sync::mpsc;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::answer::{Completed, ExtendAnswer, ReserveAnswer};
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::job::{Actuals, Job};
use crate::limiter::Extension;
use crate::request::{CompleteItem, ExtendItem, Item as _, ReserveItem};
use crate::wire::{Grpc, Reader};

/// Requests that wait to be sent. A server reads as many before it sends answers.
const WAITING_MAX: usize = 1_024;

/// A stream of reserves, extensions and completes, for programs that keep their leases themselves. It sends every request once and
/// retries nothing; a [`Limiter`](crate::Limiter) does.
///
/// The caller chooses an id for each request, and its answer has the same id. Answers come in any order. Read answers
/// while requests are in flight: with 1,024 of them the server reads no more.
pub struct LeaseStream {
    server: String,
    namespace: Option<String>,
    requests: Option<mpsc::Sender<v1::LeasesRequest>>,
    answers: Streaming<v1::LeasesResponse>,
}

/// The answer to a request of a [`LeaseStream`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseAnswer {
    /// To a reserve.
    Reserved(ReserveAnswer),
    /// To an extension.
    Extended(ExtendAnswer),
    /// To a complete.
    Completed(Completed),
}

impl LeaseStream {
    pub(crate) async fn open(grpc: &Grpc, deadline: Deadline) -> Result<LeaseStream, Failure> {
        let (requests, receiver) = mpsc::channel(WAITING_MAX);
        let request = grpc.stream_request(ReceiverStream::new(receiver));
        let mut limits = grpc.limits();
        let late = || Failure::NoAnswer { server: grpc.name().to_owned(), why: "no response in time".into() };
        let response = deadline.bound(limits.leases(request)).await.ok_or_else(late)?;
        let answers = response.map_err(|status| grpc.failure(&status))?.into_inner();
        let (server, namespace) = (grpc.name().to_owned(), grpc.owned_namespace());
        Ok(LeaseStream { server, namespace, requests: Some(requests), answers })
    }

    /// Sends a reserve. Waits while 1,024 requests wait to be sent.
    ///
    /// # Errors
    /// When the stream has ended.
    pub async fn reserve(&mut self, id: u64, lease: LeaseId, job: &Job) -> Result<(), Failure> {
        let message = ReserveItem { lease, job: job.clone() }.message(self.namespace.as_deref());
        self.send(id, Request::Reserve(message)).await
    }

    /// Sends an extension with its number, and the usage that is certain. Waits while 1,024 requests wait to be sent.
    ///
    /// # Errors
    /// When the stream has ended.
    pub async fn extend(
        &mut self,
        id: u64,
        (lease, number): (LeaseId, u32),
        extension: &Extension,
        used: &Actuals,
    ) -> Result<(), Failure> {
        let (add, used) = (extension.added().to_vec(), used.amounts().to_vec());
        let item = ExtendItem { lease, number, add, used, renew: extension.renews() };
        self.send(id, Request::Extend(item.message(self.namespace.as_deref()))).await
    }

    /// Sends a complete. Waits while 1,024 requests wait to be sent.
    ///
    /// # Errors
    /// When the stream has ended.
    pub async fn complete(&mut self, id: u64, lease: LeaseId, job: &Job, actuals: Actuals) -> Result<(), Failure> {
        let message = CompleteItem { lease, job: job.clone(), actuals }.message(self.namespace.as_deref());
        self.send(id, Request::Complete(message)).await
    }

    async fn send(&mut self, request_id: u64, request: Request) -> Result<(), Failure> {
        let ended = || Failure::Unreachable {
            server: self.server.clone(),
            why: "the stream has ended; open a new one".into(),
            kind: std::io::ErrorKind::BrokenPipe,
        };
        let requests = self.requests.as_ref().ok_or_else(ended)?;
        requests.send(v1::LeasesRequest { request_id, request: Some(request) }).await.map_err(|_| ended())
    }

    /// Sends no more requests. The answers to earlier ones still come.
    pub fn finish(&mut self) {
        self.requests = None;
    }

    /// The next answer and the id of its request; `None` after the last one. Dropping the future loses nothing.
    ///
    /// # Errors
    /// When the stream broke or the server ended it. The outcome of requests without an answer is then unknown.
    pub async fn next(&mut self) -> Result<Option<(u64, Result<LeaseAnswer, Failure>)>, Failure> {
        let failed = |status: Status| crate::wire::failure(&self.server, &status);
        let Some(v1::LeasesResponse { request_id, answer }) = self.answers.message().await.map_err(failed)? else {
            return Ok(None);
        };
        let reader = Reader(&self.server);
        let answer = match answer {
            Some(Answer::Reserve(message)) => reader.reserved(message).map(LeaseAnswer::Reserved),
            Some(Answer::Extend(message)) => reader.extended(message).map(LeaseAnswer::Extended),
            Some(Answer::Complete(message)) => reader.completed(message).map(LeaseAnswer::Completed),
            Some(Answer::Error(error)) => Err(self.refused(error)),
            None => Err(reader.unexpected("an answer without content")),
        };
        Ok(Some((request_id, answer)))
    }

    fn refused(&self, error: v1::LeasesError) -> Failure {
        let v1::LeasesError { code, message, retry_after_ms } = error;
        match Code::from_i32(code) {
            Code::ResourceExhausted if retry_after_ms > 0 => {
                Failure::RateLimited { server: self.server.clone(), message }
            }
            code => crate::wire::failure(&self.server, &Status::new(code, message)),
        }
    }
}

impl std::fmt::Debug for LeaseStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaseStream").field("server", &self.server).finish_non_exhaustive()
    }
}
