//! The HTTP API.

mod bad_input;
mod callers;
mod clocks;
mod cluster;
mod complete;
mod connections;
mod credit;
mod drift;
mod fair_queue;
mod heads;
mod http_2;
mod limits;
mod metrics;
mod misplaced_keys;
mod overload;
mod pause;
mod quotas;
mod reserve;
mod shared_limits;
mod shutdown;
mod templates;
mod tls;
mod usage;
mod wide_keys;
mod writes;
