//! The gateway: LLM traffic, limited and charged between an SDK and its provider.
//!
//! A client changes the `base_url` of its SDK. The gateway bounds each call from its own bytes, reserves the bound at
//! Earmark, sends the call to the provider, and settles what the provider says was used.
//!
//! The modules without I/O decide; the others execute. [`api`] knows the paths of both APIs, [`body`] scans, bounds and
//! changes a request, [`sse`] cuts a stream into frames, [`usage`] reads what was used,
//! and [`error`] has the errors of both APIs.

pub mod api;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
pub mod body;
mod buffers;
mod call;
mod circuit;
pub mod config;
pub mod earmark;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
pub mod error;
mod gateway;
mod head;
mod identities;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
pub mod json;
mod listener;
mod metrics;
pub mod open_calls;
mod origin;
mod progress;
mod refusal;
mod relay;
mod renew;
mod reply;
mod serve;
mod settle;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
pub mod sse;
mod tls;
mod upstream;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
pub mod usage;

pub use api::{Api, Endpoint};
pub use gateway::{Gateway, GatewayError, GatewayOptions, check};
pub use tls::TlsError;
pub use upstream::UpstreamError;
