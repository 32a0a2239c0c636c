//! `earmark`: the server, its clients and a benchmark, in one binary.
//!
//! `serve` puts a Book behind the HTTP server: that of a node, which keeps it on disk, or one in memory. `recover` makes
//! a folder from that of a lost node. The other commands are clients of the server and know nothing but the contract.
//! `bench` measures the same job in process and over HTTP.

mod amount;
mod bench;
mod changes;
mod client;
mod cluster;
mod complete;
mod credentials;
mod credit;
mod failure;
mod key;
mod limits;
mod logs;
mod output;
mod recover;
mod reserve;
mod serve;
mod write;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use failure::{Done, Failure};

const HELP: &str = "\
Commands talk to the server that --server or EARMARK_SERVER names, by default http://127.0.0.1:7878. They send the
key in EARMARK_KEY, or in the file that EARMARK_KEY_FILE names. For https:// they trust the root certificates
of the system, or instead those of the PEM file that EARMARK_CA_FILE names.

Exit codes:
  0  it worked; for reserve: allowed
  1  failure
  2  wrong command line, or a file that it names cannot be used
  3  reserve: denied

Examples:
  earmark serve
  earmark limits put --key gpt-4o:rpm --kind rolling --capacity 60 --window 60 --unit requests
  earmark reserve --key gpt-4o:rpm=1
  earmark balance --vault main --account acme
  earmark cluster status
  earmark key create --name billing --role writer
  earmark bench --seconds 5";

/// Admission control and a credit ledger for LLM traffic: requests, tokens, concurrent calls and money, all or nothing.
#[derive(Debug, Parser)]
#[command(name = "earmark", version, after_help = HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a server, alone or as a node of a cluster
    #[command(after_help = serve::HELP)]
    Serve(Box<serve::ServeArgs>),
    /// Put, get, list and delete limits
    #[command(subcommand, after_help = limits::HELP)]
    Limits(limits::LimitsCommand),
    /// Reserve the most that a call may need: all of the limits named, or none of them
    #[command(after_help = reserve::HELP)]
    Reserve(reserve::ReserveArgs),
    /// Say what a call really used, and give the rest back
    #[command(after_help = complete::HELP)]
    Complete(complete::CompleteArgs),
    /// Change accounts, credit and limits in one transaction, exactly once
    #[command(after_help = write::HELP)]
    Write(write::WriteArgs),
    /// Show the credit of an account: what it can spend, and what leases hold
    #[command(after_help = credit::BALANCE_HELP)]
    Balance(credit::BalanceArgs),
    /// Check that the credit of a vault adds up, or list who changed what
    #[command(after_help = credit::AUDIT_HELP)]
    Audit(credit::AuditArgs),
    /// Show the nodes of a cluster, add and remove nodes, and make backups
    #[command(subcommand, after_help = cluster::HELP)]
    Cluster(cluster::ClusterCommand),
    /// Make, list and revoke the keys of callers
    #[command(subcommand, after_help = key::HELP)]
    Key(key::KeyCommand),
    /// Make the data folder of a new cluster from a backup, or from the folder of a stopped node
    #[command(after_help = recover::HELP)]
    Recover(recover::RecoverArgs),
    /// Measure how many reserves a second a server, a node or a Book in memory can do
    #[command(after_help = bench::HELP)]
    Bench(bench::BenchArgs),
}

impl Command {
    fn run(&self) -> Result<Done, Failure> {
        match self {
            Command::Serve(args) => serve::run(args),
            Command::Limits(command) => limits::run(command),
            Command::Reserve(args) => reserve::run(args),
            Command::Complete(args) => complete::run(args),
            Command::Write(args) => write::run(args),
            Command::Balance(args) => credit::balance(args),
            Command::Audit(args) => credit::audit(args),
            Command::Cluster(command) => cluster::run(command),
            Command::Key(command) => key::run(command),
            Command::Recover(args) => recover::run(args),
            Command::Bench(args) => bench::run(args),
        }
    }

    /// Whether the standard output is for a program.
    fn is_json(&self) -> bool {
        match self {
            Command::Serve(_) => false,
            Command::Limits(command) => command.is_json(),
            Command::Reserve(args) => args.client.json,
            Command::Complete(args) => args.client.json,
            Command::Write(args) => args.connection.json,
            Command::Balance(args) => args.client.json,
            Command::Audit(args) => args.client.json,
            Command::Cluster(command) => command.client().json,
            Command::Key(command) => command.client().json,
            Command::Recover(args) => args.json,
            Command::Bench(args) => args.json,
        }
    }
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    match command.run() {
        Ok(done) => done.into(),
        Err(failure) => {
            eprintln!("earmark: {failure}");
            if command.is_json() {
                // The sentence above is all there is to say if this fails too.
                _ = output::print_json(&failure.document());
            }
            failure.exit_code()
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_help_with_an_example() {
        fn check(command: &clap::Command, path: &str) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:\n  "), "{path}");
            assert!(help.contains("earmark"), "{path}");
            for subcommand in command.get_subcommands() {
                check(subcommand, &format!("{path} {}", subcommand.get_name()));
            }
        }
        check(&Cli::command(), "earmark");
    }

    #[test]
    fn every_client_command_takes_a_server_and_json() {
        for line in [
            "limits put --file -",
            "limits get a",
            "limits list",
            "limits delete a",
            "reserve --key a=1",
            "complete --lease 01ARZ3NDEKTSV4RRFFQ69G5FAV",
            "write --client a --sequence 1",
            "balance --account a",
            "audit",
            "cluster status",
            "cluster add --node-id 2 --address 127.0.0.1:7102",
            "cluster remove --node-id 2",
            "key create --name a --role reader",
            "key list",
            "key revoke abc",
        ] {
            let words = ["earmark"].into_iter().chain(line.split_whitespace());
            let words = words.chain(["--server", "http://a:1", "--insecure-plaintext", "--json"]);
            assert!(Cli::try_parse_from(words).unwrap().command.is_json(), "{line}");
        }
    }
}
