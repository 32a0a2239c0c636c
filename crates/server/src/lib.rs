//! The Earmark server: HTTP and gRPC on one port, with health checks, metrics and API descriptions.
//!
//! One table of routes drives both the router and `/openapi.json`. A request is parsed and checked in full before the
//! [`Backend`](earmark_admission::Backend) sees it. A malformed one changes nothing, and the response names the field, the
//! value found and the values allowed.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! use earmark_admission::{LocalBook, LocalOptions};
//! use earmark_server::{Server, ServerOptions, install_metrics};
//!
//! install_metrics();
//! let backend = LocalBook::open(LocalOptions::default()).await?;
//! let server = Server::bind(ServerOptions::default(), Arc::new(backend)).await?;
//! println!("http://{}", server.local_addr());
//! server.run(std::future::pending()).await?;
//! # Ok(())
//! # }
//! ```

mod answer;
mod app;
mod auth;
mod body;
mod budget;
mod caller;
mod calls;
mod charts;
mod client_network;
mod decisions;
mod events;
mod execute;
mod grpc;
mod head;
mod http;
mod in_process;
mod log_rate;
mod metrics;
mod observed;
mod places;
mod policy;
mod server;
mod shared_map;
mod tls;
mod top;
mod trace;

pub use auth::{CertificateKeys, CertificateKeysError, Issuer, IssuerError, IssuerOptions};
pub use in_process::InProcess;
pub use metrics::install_metrics;
pub use server::{
    BoundAddress, CONNECTIONS_PER_ADDRESS, DECISIONS_IN_MEMORY, REQUESTS_AT_ONCE, REQUESTS_WAITING_MAX, Server,
    ServerError, ServerOptions,
};
pub use tls::{Tls, TlsError};

pub use body::BODY_BYTES_MAX;
