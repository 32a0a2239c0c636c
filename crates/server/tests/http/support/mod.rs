//! A server to ask, and ways to ask it.

mod client;
mod crowded;
mod desk;
mod doubles;
mod keyed;
mod schema;
#[allow(dead_code, reason = "the other test binaries use it")]
pub(crate) mod session;

pub(crate) use client::{Answer, Wire, request};
pub(crate) use crowded::Crowded;
pub(crate) use desk::{Desk, START_MS, complete, reserve};
pub(crate) use doubles::{Broken, Gate, Nodes};
pub(crate) use keyed::Keyed;
pub(crate) use schema::Schemas;
