//! The rules of the Book, one test each, named after the user-visible problem they prevent.

#![allow(clippy::unwrap_used, clippy::panic, clippy::arithmetic_side_effects, reason = "a test may")]

#[path = "../support/mod.rs"]
mod support;

mod bounds;
mod calendar;
mod calls;
mod capacity;
mod complete;
mod credit;
mod derived;
mod elsewhere;
mod extend;
mod extend_plain;
mod extend_steps;
mod first_credit;
mod grants;
mod hints;
mod holds;
mod idempotency;
mod ids;
mod keys;
mod labels;
mod leases;
mod memory;
mod pause;
mod plans;
mod policies;
mod quotas;
mod reserve;
mod scopes;
mod settings;
mod shadow;
mod shared;
mod templates;
mod timeouts;
mod vaults;
mod writes;
