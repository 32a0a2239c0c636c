//! What the tests share: the model that the Book is measured against, random scripts, and a desk to try
//! single rules at.

#![allow(dead_code, unreachable_pub, reason = "every test binary compiles all of this and uses a part")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::arithmetic_side_effects, reason = "a test may")]

pub mod bank;
pub mod crowd;
pub mod desk;
pub mod forge;
pub mod journal;
pub mod model;
pub mod pair;
pub mod purse;
pub mod random;
pub mod script;
pub mod snapshot;
pub mod soak;
pub mod step;
pub mod tally;
pub mod teller;
pub mod wire;
pub mod writer;
