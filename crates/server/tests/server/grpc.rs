//! The gRPC API, through tonic's client.

mod bounds;
mod callers;
mod calls;
mod equal;
mod failures;
mod fair_queue;
mod ledger;
mod limits;
mod sessions;
mod standard;
