//! The running server asked by a client of another language: Python's, with stubs made from the protobuf files.

use std::time::Duration;

use crate::python;
use crate::run::{self, Failure};
use crate::served::{Callers, Server, run_for};

/// The client, and where the protobuf files are, from the root of the repository.
const CLIENT: &str = "xtask/grpc_client.py";
const PROTO: &str = "crates/proto/proto";
/// It is ended after so long, should it not end by itself.
const SECONDS_MAX: u64 = 120;

/// Starts the server and checks it.
pub(crate) fn check() -> Result<(), Failure> {
    let mut server = Server::build(Callers::Anyone)?;
    let address = server.url.strip_prefix("http://").unwrap_or(&server.url).to_owned();
    let mut client = python::program("python");
    // Nothing is to be left beside the script.
    client.args(["-B", CLIENT, &address, PROTO]).current_dir(run::root());
    let checked = run_for(&mut client, Duration::from_secs(SECONDS_MAX))?;
    server.must_be_running()?;
    if checked.success() {
        return Ok(());
    }
    Err(Failure::Ended { line: run::line(&client), status: checked })
}
