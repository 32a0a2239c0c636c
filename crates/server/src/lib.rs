//! Earmark over HTTP and gRPC on one port: the API, health, metrics, and a description of itself.
//!
//! One table of routes drives both what is served and what `/openapi.json` says of it. A request is read
//! and checked in full before the [`Backend`](earmark_admission::Backend) sees any of it; what is malformed
//! is refused with the field, what was found and what is allowed, and changes nothing.
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
mod body;
mod budget;
mod caller;
mod carry_out;
mod door;
mod grpc;
mod http;
mod metrics;
mod server;
mod tls;

pub use door::{Issuer, IssuerError, IssuerOptions};
pub use metrics::install_metrics;
pub use server::{Address, REQUESTS_AT_ONCE, REQUESTS_WAITING_MAX, Server, ServerError, ServerOptions};
pub use tls::{Tls, TlsError};

pub use body::BODY_BYTES_MAX;
