//! The HTTP API. Its wire format is known only in this module.

mod archive;
mod audit;
mod calls;
mod cluster;
mod complete;
mod decisions;
mod extend;
mod health;
mod keys;
mod leases;
mod limits;
mod openapi;
mod operation;
mod parse;
mod policies;
mod query;
mod quotas;
mod reply;
mod request_id;
mod reserve;
mod route;
mod schema;
mod serve;
mod shape;
mod templates;
mod top;
mod usage;
mod vaults;
mod whoami;
mod write;

pub(crate) use openapi::document;
pub(crate) use reply::Reply;
pub(crate) use request_id::{REQUEST_ID, RequestId, RequestIds};
pub(crate) use route::ROUTES;
pub(crate) use serve::Routes;
