//! `cargo xtask gateway`: the official SDKs of OpenAI and Anthropic make calls through a gateway, and a gateway is cut off
//! and killed at every step of a call.

use std::path::Path;
use std::time::Duration;

use crate::python;
use crate::run::{self, Failure};
use crate::served::{self, run_for};
use crate::typescript;

/// The client, from the repository root. It starts a server, a gateway and an upstream.
const CLIENT: &str = "xtask/gateway_sdk.py";
/// A script that checks how the SDKs treat the headers of a decision. It needs no server.
const HEADERS: &str = "xtask/sdk_headers.py";
/// A script that cuts every connection of a gateway, and kills it, at every step of a call.
const CUTS: &str = "xtask/gateway_cuts.py";
/// A script that puts a gateway before the server of llama.cpp.
const LLAMA: &str = "xtask/gateway_llama.py";
/// Seconds after which a script is killed. Each takes about a minute.
const SECONDS_MAX: u64 = 300;

pub(crate) fn check() -> Result<(), Failure> {
    run::run(python::program("python").args(["-B", HEADERS]).current_dir(run::root()))?;
    let binary = served::build()?;
    let packages = typescript::packages()?;
    script(CLIENT, &[binary.as_path(), packages.as_path()])?;
    script(CUTS, &[binary.as_path()])
}

/// Checks a gateway before a real upstream. Its installation takes too long for `verify`.
pub(crate) fn check_llama() -> Result<(), Failure> {
    python::LLAMA.prepare()?;
    let binary = served::build()?;
    script(LLAMA, &[binary.as_path(), python::LLAMA.program("python").as_path()])
}

/// Runs a script of Python from the repository root.
fn script(path: &str, args: &[&Path]) -> Result<(), Failure> {
    let mut program = python::program("python");
    // -B: write no bytecode into the repository.
    program.args(["-B", path]).args(args).current_dir(run::root());
    let status = run_for(&mut program, Duration::from_secs(SECONDS_MAX))?;
    if status.success() { Ok(()) } else { Err(Failure::Ended { line: run::line(&program), status }) }
}
