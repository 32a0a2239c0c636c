//! Rolling and concurrency limits on a TigerBeetle cluster, through its official client.
//!
//! Each limit is an account that cannot be overdrawn. The operator account funds it with the capacity in force. A
//! reserve is one linked chain of pending transfers, which expire after the window or the timeout. A complete is one
//! linked chain that voids reservations, reserves the actual usage again and records overage. Each chain begins with a
//! transfer whose id exists once, so a lease has one body and one end. The transfers are the record; everything in
//! memory is a cache.
//!
//! Pure modules build chains and interpret results: `reserve_chain`, `extend_chain`, `settle_chain`, `lease_record`,
//! `capacity` and `batch`. The other modules send requests and wait; `ledger_client` has the requests.

mod answer;
mod backend;
mod baseline;
mod batch;
mod capacity;
mod clock;
mod complete;
mod extend;
mod extend_chain;
mod lease_cache;
mod lease_record;
mod ledger_client;
mod limit_table;
mod limits;
mod options;
mod reads;
mod reconcile;
mod requests;
mod required;
mod reserve;
mod reserve_chain;
mod retake;
mod retake_chain;
mod schema;
mod session;
mod settle_chain;
mod status;

pub use backend::{OpenError, TigerBeetleLimits};
pub use baseline::measure_bare_client;
pub use ledger_client::{Connect, LedgerClient, Reply};
pub use options::{LedgerUrl, LedgerUrlError, TigerBeetleOptions};
