//! Database faults: outages, refusals, locks and missing answers.

mod grants;
mod helpers;
mod postgres;
mod proxy;
mod sqlite;
mod tls;
