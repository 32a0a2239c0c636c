//! The Rust client of Earmark.
//!
//! The rules of retrying are simple to state and easy to break: an unknown outcome is retried with the *same* lease, a
//! denial with a *new* one; a sequence is on disk *before* it is sent, and goes up by exactly one.

mod address;
mod ask;
mod backoff;
mod batcher;
mod client;
mod deadline;
mod failure;
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
