//! The running server against its own `/openapi.json`, by Schemathesis: requests that the document allows,
//! and many that it does not. Each answer must be one that is documented.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::python;
use crate::run::{self, Failure};
use crate::served::{Callers, Server, run_for};

/// How long Schemathesis may go on asking.
const SECONDS: u64 = 40;
/// It is ended after so long, should it not end by itself.
const SECONDS_MAX: u64 = 120;

/// The same requests in every run; a failure names the seed and the request.
const SEED: u64 = 1;

/// Not asked for: that everything the document allows is accepted. It cannot say that no key may come twice,
/// how many bytes a text has, or that 1.0 is no integer here.
const EXCLUDED: &str = "positive_data_acceptance";

/// Starts the server and checks it.
pub(crate) fn check() -> Result<(), Failure> {
    let mut server = Server::build(Callers::WithKey)?;
    let folder = std::env::temp_dir().join(format!("earmark-verify-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|source| Failure::Write { path: folder.clone(), source })?;
    let mut schemathesis = schemathesis(&server);
    // It leaves notes wherever it runs.
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
         --request-timeout 10 --exclude-checks {EXCLUDED}"
    );
    command.args(args.split_whitespace());
    if let Some(key) = &server.key {
        command.args(["--header", &format!("Authorization: Bearer {key}")]);
    }
    command
}
