//! One server and the protocol that it is asked in.

mod grpc;
mod http;
mod read;

pub(crate) use grpc::{Grpc, failure};
pub(crate) use http::Http;
pub(crate) use read::Reader;

use crate::deadline::Deadline;
use crate::failure::Failure;
#[cfg(feature = "local")]
use crate::local::Local;
use crate::request::Request;

/// One server, or a Book in this process.
pub(crate) enum Wire {
    Http(Http),
    Grpc(Box<Grpc>),
    #[cfg(feature = "local")]
    Local(Local),
}

impl Wire {
    /// Sends the request once, and returns by the deadline.
    pub(crate) async fn ask<R: Request>(&self, request: &R, by: Deadline) -> Result<R::Answer, Failure> {
        match self {
            Wire::Http(http) => http.ask(request, by).await,
            Wire::Grpc(grpc) => grpc.ask(request, by).await,
            #[cfg(feature = "local")]
            Wire::Local(local) => request.local(local).await,
        }
    }
}
