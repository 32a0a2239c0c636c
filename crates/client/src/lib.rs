//! The Rust client of Earmark. Its types enforce the retry rules.
//!
//! The rules are simple and easy to break: retry an unknown outcome with the *same* lease, and a denial with a *new* one;
//! store a sequence number on disk *before* it is sent, and increase it by exactly one. Clients in other languages find
//! them in `docs/clients.md`. Here they cannot be broken:
//!
//! - [`Limiter`] admits jobs. [`Limiter::acquire`] waits until all limits have room and returns a [`Guard`]. Completing
//!   the guard consumes it; dropping it frees what it can. [`Guard::keep_alive`] renews the lease of a long call, and
//!   [`Guard::extend`] takes more for it. Callers share requests.
//! - [`Scheduler`] runs tasks once they are admitted: a queue for each model, priorities, cancellation, a drain at the
//!   end.
//! - [`Writer`] writes transactions exactly once, even when its process is killed in between.
//! - [`llm`] computes the requirements of a call to a language model, and reads its usage.
//! - [`Client`] is the connection to the servers, over HTTP or gRPC, with TLS and keys. [`Client::local`] is a Book in
//!   this process instead, without a server.
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
//!     unit: "tokens".into(), description: String::new(), overage: Overage::Debt, shared: false, enforce: true,
//! };
//! client.put_limit(&tokens, within()).await?;
//!
//! let limiter = Limiter::new(&client, LimiterOptions::default())?;
//! let job = Job::new([("gpt-4o:tpm".parse()?, 6_000)])?;
//! let guard = limiter.acquire(&job, within()).await?;
//! // Make the call. It used 1,200 tokens.
//! guard.complete(Actuals::unknown().used("gpt-4o:tpm".parse()?, 1_200)).await?;
//! assert_eq!(client.usage(&tokens.key, within()).await?.available, 8_800);
//! # Ok(())
//! # }
//! ```
//!
//! A guard cannot be completed twice:
//!
//! ```compile_fail
//! # async fn twice(guard: earmark_client::Guard) {
//! guard.complete(earmark_client::Actuals::unknown()).await.ok();
//! guard.complete(earmark_client::Actuals::unknown()).await.ok();
//! # }
//! ```

mod address;
mod answer;
mod backoff;
mod batcher;
mod call;
mod calls;
mod client;
mod connect;
mod deadline;
mod env;
mod failure;
pub mod http;
pub mod in_process;
mod job;
mod key;
mod limiter;
pub mod llm;
#[cfg(feature = "local")]
mod local;
mod options;
mod request;
mod scheduler;
mod stream;
#[cfg(feature = "tls")]
mod tls;
mod wire;
mod writer;

pub use address::{AddressError, ServerAddress};
pub use answer::{
    Completed, Denial, ExtendAnswer, Extended, LeaseView, LimitView, OperationOutcome, Receipt, ReserveAnswer, Scope,
    UsagePage, UsageQuery, WriteCode, WriteRefusal,
};
pub use backoff::BackoffOptions;
pub use batcher::BatchOptions;
pub use call::{
    Call, CallAnswer, CallCompleted, CallDecision, CallExplanation, CallExtension, CallOutcome, CallResult, CallUsage,
    ExplainedLimit, Identity, PolicyRefusal,
};
pub use calls::Calls;
pub use client::Client;
pub use deadline::Deadline;
pub use earmark_core as core;
pub use env::{Env, SystemEnv};
pub use failure::{Certainty, Failure};
pub use job::{Actuals, Job, JobError};
pub use key::{ApiKey, ApiKeyError, ClientKey};
pub use limiter::{AcquireError, ExtendError, Extension, Guard, KeepAlive, Limiter, LimiterOptions, TryAcquire};
#[cfg(feature = "local")]
pub use local::LocalOptions;
pub use options::{ClientOptions, OptionsError, Protocol};
pub use scheduler::{JobHandle, Lane, Priority, Scheduler, SchedulerOptions, SubmitError, Task, TaskError};
pub use stream::{LeaseAnswer, LeaseStream};
#[cfg(feature = "tls")]
pub use tls::{ClientCertificate, Roots};
pub use writer::{
    ContentHash, Fate, SequenceConflict, SequenceFileError, Step, Unfinished, Writer, WriterError, WriterOptions,
};
