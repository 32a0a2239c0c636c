//! The PostgreSQL server for the tests of credit.

#[path = "../../crates/credits/src/conformance/server.rs"]
#[allow(dead_code, unreachable_pub, reason = "the tests of credit use all of it")]
mod server;

use std::process::Command;

use crate::run::{self, Failure};

/// Checks that PostgreSQL is installed. As root on Debian, installs it.
pub(crate) fn prepare() -> Result<(), Failure> {
    if server::programs().is_none() {
        run::apt_install("postgresql");
    }
    let programs = server::programs().ok_or_else(missing)?;
    let version = run::output(Command::new(programs.join("initdb")).arg("--version"));
    println!("postgres: {}", version.unwrap_or_default().trim());
    Ok(())
}

/// Runs a command with a private server, whose URL is in [`server::URL_VARIABLE`].
pub(crate) fn with_server(command: &mut Command) -> Result<(), Failure> {
    let server = server::Server::start_without_fsync()
        .map_err(|source| Failure::Start { line: "a private PostgreSQL".to_owned(), source })?;
    run::run(command.env(server::URL_VARIABLE, server.url()))
}

fn missing() -> Failure {
    Failure::Missing(vec![format!("PostgreSQL, for the tests of credit: {}", server::HOW_TO_GET)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_says_how_to_install_postgresql() {
        let words = missing().to_string();
        for part in ["PostgreSQL", "initdb", "apt-get install postgresql"] {
            assert!(words.contains(part), "{words}");
        }
    }
}
