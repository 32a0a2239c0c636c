//! A gateway in the process of its server: its requests reach the routes without a connection.

use axum::body::Bytes;
use axum::http::{Request, Response};

use crate::http::Routes;

/// The mark of a request by the gateway in this process. No request over a connection has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByOwnGateway;

/// The server, for a gateway in its process.
#[derive(Clone)]
pub struct InProcess {
    routes: Routes,
    has_keys: bool,
}

impl InProcess {
    pub(crate) fn new(routes: Routes, has_keys: bool) -> InProcess {
        InProcess { routes, has_keys }
    }

    /// Whether the server had keys or an issuer when it started. Then requests have the rights of a gateway of namespace
    /// `default`. If not, they have those of any program on this machine, until the first key is created.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        self.has_keys
    }

    /// Serves one request of the HTTP API.
    pub async fn serve(&self, mut request: Request<Bytes>) -> Response<Bytes> {
        if self.has_keys {
            request.extensions_mut().insert(ByOwnGateway);
        }
        self.routes.serve_in_process(request).await
    }
}
