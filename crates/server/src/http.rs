//! The wire format: what clients send and get. Nothing outside this module knows any of it.

mod answer;
mod body;
mod complete;
mod health;
mod leases;
mod limits;
mod openapi;
mod operation;
mod parse;
mod query;
mod reply;
mod request_id;
mod reserve;
mod route;
mod schema;
mod serve;
mod shape;
mod vaults;
mod write;

pub use body::BODY_BYTES_MAX;
pub(crate) use openapi::document;
pub(crate) use reply::Reply;
pub(crate) use request_id::RequestIds;
pub(crate) use route::ROUTES;
pub(crate) use serve::router;
pub(crate) use write::WRITE_CODES;
