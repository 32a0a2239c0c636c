//! Storage tests: Raft log, vote and data folder.

mod crash;
mod damage;
mod decisions;
mod failure;
mod folder;
mod openraft;
mod reading;
