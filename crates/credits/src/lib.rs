//! Credit on a store: accounts, postings and holds in memory, in SQLite or in PostgreSQL.
//!
//! A plan takes effect in one of two ways. [`Store::commit`] applies most plans in one transaction. A plan that opens,
//! changes or closes an account is a saga of single conditional changes ([`Change`]), which another process can finish
//! or undo after a crash.

mod census;
mod coin_selection;
#[cfg(feature = "conformance")]
#[allow(clippy::expect_used, clippy::panic, reason = "these are tests")]
pub mod conformance;
pub mod document;
mod id;
mod local_locks;
mod maintenance;
mod memory;
mod model;
#[cfg(feature = "postgres")]
mod postgres;
mod saga;
mod saga_credits;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod sql;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;
mod task;
mod time;

pub use id::{GateId, IdError, OwnerId, PostingId, ReservationId};
pub use memory::MemoryStore;
pub use model::*;
#[cfg(feature = "postgres")]
pub use postgres::{PostgresDatabase, PostgresOptions, PostgresStore};
pub use saga::Options;
pub use saga_credits::{OpenStore, SagaCredits};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use sql::store::SqlStore;
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteDatabase, SqliteOptions, SqliteStore};
pub use store::*;
