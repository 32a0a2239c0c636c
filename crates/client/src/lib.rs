//! The Rust client of Earmark: it keeps the rules of retrying, so that callers cannot break them.
//!
//! The rules are simple to state and easy to break: an unknown outcome is retried with the *same* lease, a denial with a
//! *new* one; a sequence is on disk *before* it is sent, and goes up by exactly one. Here the right thing is the only
//! thing there is:
//!
//! - [`Limiter`] admits jobs. [`Limiter::acquire`] waits until there is room and gives a [`Guard`]; completing the guard
//!   consumes it, and dropping it gives back what it can. Many callers share few requests.
//! - [`Scheduler`] does tasks once they are admitted: a queue for each model, priorities, cancellation, and an end that
//!   drains.
//! - [`Writer`] writes transactions exactly once, also by a process that is killed in between.
//! - [`llm`] says what a call of a language model needs, and reads what it used.
//! - [`Client`] is the servers behind all of them, over HTTP or gRPC, with TLS and keys; or, with [`Client::local`], a
//!   Book in this process and no server at all.
//!
//! Every call that may wait takes a [`Deadline`].
//!
//! ```
//! use std::time::Duration;
//! use earmark_client::core::{Definition, Kind, Overage};
//! use earmark_client::{Actuals, Client, Deadline, Job, Limiter, LimiterOptions, LocalOptions};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // With servers: Client::new(ClientOptions::of(&["http://127.0.0.1:7878"])?)?
//! let client = Client::local(LocalOptions::default())?;
//! let within = || Deadline::after(Duration::from_secs(10));
//! let tokens = Definition {
//!     key: "gpt-4o:tpm".parse()?, kind: Kind::Rolling { window_seconds: 60 }, capacity: 10_000,
//!     unit: "tokens".into(), description: String::new(), overage: Overage::Debt,
//! };
//! client.put_limit(&tokens, within()).await?;
//!
//! let limiter = Limiter::new(&client, LimiterOptions::default())?;
//! let job = Job::new([("gpt-4o:tpm".parse()?, 6_000)])?;
//! let guard = limiter.acquire(&job, within()).await?;
//! // Here the call is made; it used 1200 tokens.
//! guard.complete(Actuals::unknown().used("gpt-4o:tpm".parse()?, 1_200)).await?;
//! assert_eq!(client.usage(&tokens.key, within()).await?.available, 8_800);
//! # Ok(())
//! # }
//! ```
//!
//! A guard that was completed cannot be completed again:
//!
//! ```compile_fail
//! # async fn twice(guard: earmark_client::Guard) {
//! guard.complete(earmark_client::Actuals::unknown()).await.ok();
//! guard.complete(earmark_client::Actuals::unknown()).await.ok();
//! # }
//! ```

mod address;
mod ask;
mod backoff;
mod batcher;
mod client;
mod connect;
mod deadline;
mod failure;
pub mod http;
mod job;
mod key;
mod limiter;
pub mod llm;
#[cfg(feature = "local")]
mod local;
mod options;
mod scheduler;
mod surroundings;
#[cfg(feature = "tls")]
mod tls;
mod wire;
mod writer;

pub use address::{AddressError, ServerAddress};
pub use ask::{Completed, Denial, LimitView, OperationOutcome, Receipt, Scope, WriteCode, WriteRefusal};
pub use backoff::BackoffOptions;
pub use batcher::BatchOptions;
pub use client::Client;
pub use deadline::Deadline;
pub use earmark_core as core;
pub use failure::{Certainty, Failure};
pub use job::{Actuals, Job, JobError};
pub use key::{ApiKey, ApiKeyError};
pub use limiter::{AcquireError, Guard, Limiter, LimiterOptions, TryAcquire};
#[cfg(feature = "local")]
pub use local::LocalOptions;
pub use options::{ClientOptions, OptionsError, Protocol};
pub use scheduler::{Lane, Priority, Scheduler, SchedulerOptions, SubmitError, Task, TaskError, Ticket};
pub use surroundings::{Machine, Surroundings};
#[cfg(feature = "tls")]
pub use tls::Roots;
pub use writer::{
    ContentHash, Danger, Fate, SequenceFileError, Step, Unfinished, Writer, WriterError, WriterOptions,
};
