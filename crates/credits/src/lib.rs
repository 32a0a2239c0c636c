//! Credit on a plain store: accounts, postings and holds that live in memory, in SQLite or in PostgreSQL.
//!
//! Nothing here takes a transaction around an entry. [`Store`] offers single conditional changes that say how many
//! rows they changed and decide nothing; a saga strings them together so that whoever dies between any two of them
//! leaves either nothing or everything, once somebody has looked after it. Start with [`Change`], which are the steps.

#[cfg(feature = "conformance")]
#[allow(clippy::expect_used, clippy::panic, reason = "these are tests")]
pub mod conformance;
pub mod document;
mod gather;
mod id;
mod lanes;
mod late;
mod ledger;
mod memory;
mod model;
#[cfg(feature = "postgres")]
mod postgres;
mod saga;
mod side_by_side;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod sql;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;
mod task;
mod tend;
mod time;

pub use id::{GateId, IdError, OwnerId, PostingId, ReservationId};
pub use late::{LateCredits, OpenStore};
pub use ledger::SagaCredits;
pub use memory::MemoryStore;
pub use model::*;
#[cfg(feature = "postgres")]
pub use postgres::{PostgresOptions, PostgresStore};
pub use saga::Options;
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteOptions, SqliteStore};
pub use store::*;
