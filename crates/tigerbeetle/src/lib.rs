//! Rolling and concurrency limits on a TigerBeetle cluster, through its official client.
//!
//! Each limit is an account that cannot owe anything, funded from the operator with the capacity in force. A reserve
//! is one linked chain of pending transfers that ends by itself after the window or the timeout; a complete is one
//! linked chain that voids, takes again what was used, and records what did not fit. Both begin with a transfer that
//! exists once, so that a lease has one body and one end. The ledger is the record: what is kept in here is a cache.
//!
//! What is decided without a server is pure and in modules of its own: `reserve`, `settle`, `lease` and `capacity`
//! make chains and read what is said to them; `batch` puts chains into requests. The rest sends and waits.

mod answer;
mod backend;
mod bare;
mod batch;
mod capacity;
mod chart;
mod clock;
mod completing;
mod drive;
mod lease;
mod leases;
mod limits;
mod options;
mod requests;
mod reserve;
mod reserving;
mod session;
mod settle;
mod status;
mod table;

pub use backend::{OpenError, TigerBeetleLimits};
pub use bare::measure_bare_client;
pub use options::{LedgerUrl, LedgerUrlError, TigerBeetleOptions};
