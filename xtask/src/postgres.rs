//! The PostgreSQL server that the tests of credit run on.

#[path = "../../crates/credits/src/conformance/server.rs"]
#[allow(dead_code, unreachable_pub, reason = "the tests of credit use all of it")]
mod server;

use std::process::Command;

use crate::run::{self, Failure};

/// Makes sure that there is one to start. Where the system has a package for it and this is its administrator, it is installed.
pub(crate) fn prepare() -> Result<(), Failure> {
    if server::programs().is_none() {
        install();
    }
    let programs = server::programs().ok_or_else(missing)?;
    let version = run::output(Command::new(programs.join("initdb")).arg("--version"));
    println!("postgres: {}", version.unwrap_or_default().trim());
    Ok(())
}

/// Runs a command that finds a server of its own by [`server::URL_VARIABLE`]. The server ends with it.
pub(crate) fn with_server(command: &mut Command) -> Result<(), Failure> {
    let server = server::Server::start_hasty()
        .map_err(|source| Failure::Start { line: "a private PostgreSQL".to_owned(), source })?;
    run::run(command.env(server::URL_VARIABLE, server.url()))
}

fn install() {
    let is_root = run::output(&mut run::command("id", "-u")).is_some_and(|id| id.trim() == "0");
    if is_root && run::output(&mut run::command("apt-get", "--version")).is_some() {
        println!("apt-get install -y postgresql");
        // A machine may never have heard of its packages. If this fails, what is missing is said next.
        _ = run::output(&mut run::command("apt-get", "update -q"));
        let mut install = run::command("apt-get", "install -y -q postgresql");
        _ = run::output(install.env("DEBIAN_FRONTEND", "noninteractive"));
    }
}

fn missing() -> Failure {
    Failure::Missing(vec![format!("PostgreSQL, which the tests of credit run on: {}", server::HOW_TO_GET)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_with_how_to_get_it() {
        let words = missing().to_string();
        for part in ["PostgreSQL", "initdb", "apt-get install postgresql"] {
            assert!(words.contains(part), "{words}");
        }
    }
}
