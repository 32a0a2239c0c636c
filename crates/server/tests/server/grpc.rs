//! The gRPC API, through tonic's client.

mod bounds;
pub(crate) mod callers;
pub(crate) mod calls;
mod cluster;
mod equal;
mod failures;
mod fair_queue;
mod leases;
mod ledger;
mod limits;
mod rate_limit;
mod sessions;
mod standard;
