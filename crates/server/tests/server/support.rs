//! Test servers, test backends and clients.

mod client;
mod crowded;
mod doubles;
mod keyed;
mod schema;
pub(crate) mod session;
mod test_server;

pub(crate) use client::{Answer, Wire, new_address, request};
pub(crate) use crowded::Crowded;
pub(crate) use doubles::{Broken, Gate, Lagging, Nodes};
pub(crate) use keyed::KeyedServer;
pub(crate) use schema::Schemas;
pub(crate) use test_server::{START_MS, TestServer, complete, reserve};
