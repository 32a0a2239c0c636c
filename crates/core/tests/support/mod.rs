//! Shared test support: the model, random scripts, and a test Book.

#![allow(dead_code, unreachable_pub, reason = "every test binary compiles all of this and uses a part")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::arithmetic_side_effects, reason = "a test may")]

pub mod balance_model;
pub mod bank;
pub mod dense_script;
pub mod forge;
pub mod journal;
pub mod model;
pub mod pair;
pub mod random;
pub mod random_writer;
pub mod script;
pub mod snapshot;
pub mod soak;
pub mod step;
pub mod tally;
pub mod test_book;
pub mod wire;
pub mod writer;
