//! `cargo xtask grpc`: a Python client checks a running server, with stubs generated from the protobuf files.

use std::time::Duration;

use crate::python;
use crate::run::{self, Failure};
use crate::served::{Callers, Server, run_for};

/// Paths of the client and of the protobuf files, from the repository root.
const CLIENT: &str = "xtask/grpc_client.py";
const PROTO: &str = "crates/proto/proto";
/// Seconds after which the client is killed.
const SECONDS_MAX: u64 = 120;

pub(crate) fn check() -> Result<(), Failure> {
    let mut server = Server::build(Callers::Anyone)?;
    let address = server.url.strip_prefix("http://").unwrap_or(&server.url).to_owned();
    let mut client = python::program("python");
    // -B: write no bytecode into the repository.
    client.args(["-B", CLIENT, &address, PROTO]).current_dir(run::root());
    let checked = run_for(&mut client, Duration::from_secs(SECONDS_MAX))?;
    server.must_be_running()?;
    if checked.success() {
        return Ok(());
    }
    Err(Failure::Ended { line: run::line(&client), status: checked })
}
