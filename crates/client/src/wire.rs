//! One server, and what is spoken with it.

mod connect;
mod grpc;
mod http;
mod json;
mod read;

pub(crate) use connect::Connector;
pub(crate) use grpc::Grpc;
pub(crate) use http::Http;

use crate::ask::{Answer, Ask};
use crate::deadline::Deadline;
use crate::failure::Failure;
#[cfg(feature = "local")]
use crate::local::Local;

/// The most bytes of one answer: more than a list of as many limits as most servers have.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// One server, or a Book in this process.
pub(crate) enum Wire {
    Http(Http),
    Grpc(Box<Grpc>),
    #[cfg(feature = "local")]
    Local(Local),
}

impl Wire {
    /// Asks once. Whatever comes of it comes before the deadline.
    pub(crate) async fn ask(&self, ask: &Ask, by: Deadline) -> Result<Answer, Failure> {
        let late = |server: &str| {
            let why = "nothing came in time".to_owned();
            Err(Failure::NoAnswer { server: server.to_owned(), why })
        };
        match self {
            Wire::Http(http) => by.bound(http.ask(ask)).await.unwrap_or_else(|| late(http.name())),
            Wire::Grpc(grpc) => by.bound(grpc.ask(ask, by)).await.unwrap_or_else(|| late(grpc.name())),
            #[cfg(feature = "local")]
            Wire::Local(local) => local.ask(ask).await,
        }
    }
}
