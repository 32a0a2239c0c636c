//! One server and the protocol that it is asked in.

mod grpc;
mod http;
mod json;
mod read;

pub(crate) use grpc::Grpc;
pub(crate) use http::Http;

use crate::ask::{Answer, Ask};
use crate::deadline::Deadline;
use crate::failure::Failure;
#[cfg(feature = "local")]
use crate::local::Local;

/// One server, or a Book in this process.
pub(crate) enum Wire {
    Http(Http),
    Grpc(Box<Grpc>),
    #[cfg(feature = "local")]
    Local(Local),
}

impl Wire {
    /// Asks once. It returns by the deadline.
    pub(crate) async fn ask(&self, ask: &Ask, by: Deadline) -> Result<Answer, Failure> {
        match self {
            Wire::Http(http) => http.ask(ask, by).await,
            Wire::Grpc(grpc) => grpc.ask_by(ask, by).await,
            #[cfg(feature = "local")]
            Wire::Local(local) => local.ask(ask).await,
        }
    }
}
