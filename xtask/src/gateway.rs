//! `cargo xtask gateway`: the official SDKs of OpenAI and Anthropic make calls through a gateway.

use std::time::Duration;

use crate::python;
use crate::run::{self, Failure};
use crate::served::{self, run_for};
use crate::typescript;

/// The client, from the repository root. It starts a server, a gateway and an upstream.
const CLIENT: &str = "xtask/gateway_sdk.py";
/// A script that checks how the SDKs treat the headers of a decision. It needs no server.
const HEADERS: &str = "xtask/sdk_headers.py";
/// Seconds after which the client is killed. It takes about 20.
const SECONDS_MAX: u64 = 240;

pub(crate) fn check() -> Result<(), Failure> {
    run::run(python::program("python").args(["-B", HEADERS]).current_dir(run::root()))?;
    let binary = served::build()?;
    let mut client = python::program("python");
    // -B: write no bytecode into the repository.
    client.args(["-B", CLIENT]).arg(binary).arg(typescript::packages()?).current_dir(run::root());
    let checked = run_for(&mut client, Duration::from_secs(SECONDS_MAX))?;
    if checked.success() {
        return Ok(());
    }
    Err(Failure::Ended { line: run::line(&client), status: checked })
}
