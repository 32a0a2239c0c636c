//! The Rust client against real server processes: with a faulty proxy, killed during a write, and with a cluster whose
//! leader is killed, frozen or partitioned.
//!
//! `EARMARK_SEED=7` replays one seed of the random tests. `EARMARK_SOAK_SECONDS=600` runs new seeds for 600 s with 10,000
//! operations each. `EARMARK_SDK_OPERATIONS` sets another number of operations.

#![allow(unreachable_pub, dead_code, reason = "this binary shares modules with others")]
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test that fails panics")]

#[path = "../cli/ask.rs"]
mod ask;
mod callers;
mod dies;
mod faults;
mod history;
mod keyed;
mod killed;
#[path = "../cli/failover/links.rs"]
mod links;
#[path = "../cli/failover/nodes.rs"]
mod nodes;
#[path = "../cli/support.rs"]
mod served;
#[path = "../../../core/tests/support/soak.rs"]
mod soak;
#[path = "../../../client/tests/support/mod.rs"]
mod support;
mod writers;

/// Shared modules expect `random` at the crate root.
use support::random;

use dies::Trouble;
use earmark_client::Protocol;
use soak::{each_seed, number};

/// Operations per seed, enough for some faults of each kind.
const OPERATIONS_SHORT: u64 = 300;
const OPERATIONS_LONG: u64 = 10_000;

fn operations() -> u64 {
    let by_default = match number("EARMARK_SOAK_SECONDS") {
        Some(_) => OPERATIONS_LONG,
        None => OPERATIONS_SHORT,
    };
    number("EARMARK_SDK_OPERATIONS").unwrap_or(by_default)
}

#[test]
fn nothing_is_reserved_twice_leaked_lost_or_repeated_over_http_that_loses_requests_and_answers() {
    each_seed("faults over http", 2, |seed| faults::run(seed, operations(), Protocol::Http));
}

#[test]
fn nothing_is_reserved_twice_leaked_lost_or_repeated_over_grpc_whose_connections_are_cut() {
    each_seed("faults over grpc", 2, |seed| faults::run(seed, operations(), Protocol::Grpc));
}

#[test]
fn a_caller_with_a_key_is_served_over_tls_by_http_and_by_grpc() {
    for protocol in [Protocol::Http, Protocol::Grpc] {
        keyed::run(protocol);
    }
}

#[test]
fn a_writer_killed_between_any_two_steps_goes_on_where_it_was() {
    match std::env::var(killed::CHILD) {
        Ok(orders) => killed::child(&orders),
        Err(_) => killed::parent(),
    }
}

#[test]
fn callers_see_delay_and_no_errors_when_the_leader_dies() {
    dies::run(Protocol::Http, Trouble::Dies);
}

#[test]
fn callers_over_grpc_see_delay_and_no_errors_when_the_leader_dies() {
    dies::run(Protocol::Grpc, Trouble::Dies);
}

#[test]
fn callers_see_delay_and_no_errors_when_the_leader_stands_still() {
    dies::run(Protocol::Http, Trouble::Freezes);
}

/// A leader without a majority answers a batch with a failure per item, and a write with a refusal. The client once did
/// not count that as a failed request, so a writer stayed with that node until its deadline.
#[test]
fn callers_see_delay_and_no_errors_when_the_leader_is_cut_off() {
    dies::run(Protocol::Http, Trouble::IsCutOff);
}
