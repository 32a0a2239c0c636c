//! `cargo xtask api`: Schemathesis checks a running server against its `/openapi.json` with valid and invalid requests.
//! Every answer must be documented.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::python;
use crate::run::{self, Failure};
use crate::served::{Callers, Server, run_for};

/// Seconds for which Schemathesis sends requests.
const SECONDS: u64 = 40;
/// Seconds after which Schemathesis is killed.
const SECONDS_MAX: u64 = 120;

/// Fixed seed, so that every run sends the same requests.
const SEED: u64 = 1;

/// Excluded check: that every documented request is accepted. OpenAPI cannot express unique keys, lengths in bytes, or
/// that 1.0 is not an integer.
const EXCLUDED: &str = "positive_data_acceptance";

/// Excluded path: its response does not end. `crates/server/tests/server/http/events.rs` reads it.
const ENDLESS: &str = "/v1/events";

pub(crate) fn check() -> Result<(), Failure> {
    let mut server = Server::build(Callers::WithKey)?;
    let folder = std::env::temp_dir().join(format!("earmark-verify-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|source| Failure::Write { path: folder.clone(), source })?;
    let mut schemathesis = schemathesis(&server);
    // Schemathesis writes files to its working directory.
    let checked = run_for(schemathesis.current_dir(&folder), Duration::from_secs(SECONDS_MAX));
    _ = fs::remove_dir_all(&folder);
    let checked = checked?;
    server.must_be_running()?;
    if checked.success() {
        return Ok(());
    }
    Err(Failure::Ended { line: run::line(&schemathesis), status: checked })
}

fn schemathesis(server: &Server) -> Command {
    let url = &server.url;
    let mut command = python::program("schemathesis");
    let args = format!(
        "run {url}/openapi.json --no-color --generation-database none --seed {SEED} --max-time {SECONDS} \
         --request-timeout 10 --exclude-checks {EXCLUDED} --exclude-path {ENDLESS}"
    );
    command.args(args.split_whitespace());
    if let Some(key) = &server.key {
        command.args(["--header", &format!("Authorization: Bearer {key}")]);
    }
    command
}
