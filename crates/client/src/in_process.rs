//! A server in the process of its client: requests reach it without a connection. `earmark serve --gateway` uses it. A
//! Book in this process, which has no HTTP, is in `local`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

pub use bytes::Bytes;
pub use hyper::{Request, Response};

/// The response to come.
pub type Served<'a> = Pin<Box<dyn Future<Output = Response<Bytes>> + Send + 'a>>;

/// A server in this process. [`ClientOptions::in_process`](crate::ClientOptions::in_process) makes a client of it.
pub trait InProcessServer: Send + Sync + 'static {
    /// Serves one request of the HTTP API. The server decides about the rights of its caller; there is no network peer.
    fn serve(&self, request: Request<Bytes>) -> Served<'_>;
}

/// A server of this process, wrapped so that the options of a client can derive `Debug`.
#[derive(Clone)]
pub(crate) struct SharedServer(pub(crate) Arc<dyn InProcessServer>);

impl fmt::Debug for SharedServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedServer")
    }
}
