//! `earmark`: the server, its clients and a benchmark, in one binary.
//!
//! `serve` runs a node, or a server in memory. `restore` and `recover` write a new data folder from a backup or a stopped
//! node.
//! `bench` measures reserves per second. The other commands are HTTP clients, which know only the public API.

mod accounts;
mod amount;
mod backup;
mod bench;
mod changes;
mod client;
mod cluster;
mod code;
mod complete;
mod config;
mod credentials;
mod credit;
mod decisions;
mod entries;
mod explain;
mod extend;
mod failure;
mod gateway;
mod health;
mod key;
mod lease;
mod limits;
mod logging;
mod moment;
mod output;
mod policy;
mod prices;
mod proof;
mod quantity;
mod quota;
mod recover;
mod request;
mod reserve;
mod serve;
mod statement;
mod templates;
mod text_file;
mod top;
mod traces;
mod usage;
mod vault;
mod watch;
mod whoami;
mod write;
#[cfg(test)]
mod wrong_values;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use earmark_admission::Token;
use earmark_core::contains_api_key;

use failure::{Done, Failure};
use serve::config::Settings;

/// mimalloc takes a fraction of the instructions of the system's allocator; see docs/benchmarks.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const HELP: &str = "\
Environment:
  EARMARK_SERVER       URL of the server, if --server is not given [default: http://127.0.0.1:7878]
  EARMARK_KEY          API key or session token
  EARMARK_KEY_FILE     file that holds the key, if EARMARK_KEY is not set
  EARMARK_CREDITS_URL  URL of the credit database of serve, without --credits and --credits-url-file
  EARMARK_*            each flag of serve, such as EARMARK_PEER_LISTEN; a flag wins
  EARMARK_CA_FILE      PEM file with trusted CA certificates for https://, instead of those of the system
  EARMARK_CERT_FILE    PEM file with a client certificate, in place of a key; its private key is in the file that
                       EARMARK_CERT_KEY_FILE names

Exit codes:
  0  success; for reserve: allowed
  1  failure, such as no answer from the server
  2  wrong command line, or a file that it names cannot be used; diff: there is a difference
  3  reserve, extend, explain: denied
  4  complete: the server does not know the lease, so nothing was settled

Examples:
  earmark serve
  earmark limits put --key gpt-4o:tpm --kind rolling --capacity 60k --window 1m --unit tokens
  earmark reserve --key gpt-4o:rpm=1
  earmark balance --vault main --account acme
  earmark cluster status
  earmark backup > earmark.tar
  earmark key create --name billing --role writer
  earmark bench --seconds 5";

/// Admission control and a credit ledger for LLM traffic: reserve requests, tokens, concurrent calls and money, all or nothing.
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
    /// Check the configuration of a server
    #[command(subcommand, after_help = config::HELP)]
    Config(config::ConfigCommand),
    /// Ask a server whether it is ready, for health checks of containers
    #[command(after_help = health::HELP)]
    Health(health::HealthArgs),
    /// Run a gateway between SDKs and providers, which limits and charges every call
    #[command(after_help = gateway::HELP)]
    Gateway(Box<gateway::GatewayArgs>),
    /// Put, get, list and delete limits
    #[command(subcommand, after_help = limits::HELP)]
    Limits(limits::LimitsCommand),
    /// Put, list and delete templates, whose keys have placeholders
    #[command(subcommand, after_help = templates::HELP)]
    Templates(templates::TemplatesCommand),
    /// Make the limits of a server like those of files
    #[command(after_help = code::APPLY_HELP)]
    Apply(code::ApplyArgs),
    /// Show how the limits of a server differ from those of files
    #[command(after_help = code::DIFF_HELP)]
    Diff(code::DiffArgs),
    /// Write the limits of a server as a file
    #[command(after_help = code::EXPORT_HELP)]
    Export(code::ExportArgs),
    /// Print the configuration of another system as a file for apply
    #[command(subcommand, after_help = code::import::HELP)]
    Import(code::import::ImportCommand),
    /// Show limits with their usage, the fullest or the most indebted first if you like
    #[command(after_help = usage::HELP)]
    Usage(usage::UsageArgs),
    /// Show recent denials, refusals, timeouts and overages, the newest first
    #[command(after_help = decisions::HELP)]
    Decisions(decisions::DecisionsArgs),
    /// Show the limits of which the most was taken, denied or owed
    #[command(after_help = top::HELP)]
    Top(top::TopArgs),
    /// Reserve the most that a call may need, from all named limits or from none
    #[command(after_help = reserve::HELP)]
    Reserve(reserve::ReserveArgs),
    /// Take more for a live lease, move its end, and report its usage so far
    #[command(after_help = extend::HELP)]
    Extend(extend::ExtendArgs),
    /// Report what a call used and release the rest of its reservation
    #[command(after_help = complete::HELP)]
    Complete(complete::CompleteArgs),
    /// Show a lease, with its job and reservations
    #[command(after_help = lease::HELP)]
    Lease(lease::LeaseArgs),
    /// Apply one transaction to accounts, credit or limits, exactly once
    #[command(after_help = write::HELP)]
    Write(write::WriteArgs),
    /// Show the available and held credit of an account
    #[command(after_help = credit::BALANCE_HELP)]
    Balance(credit::BalanceArgs),
    /// Show the grants of an account in spending order
    #[command(after_help = credit::GRANTS_HELP)]
    Grants(credit::BalanceArgs),
    /// List the accounts of a vault with their balances, or the vaults
    #[command(after_help = accounts::HELP)]
    Accounts(accounts::AccountsArgs),
    /// List the entries of an account: deposits, transfers, holds and settlements
    #[command(after_help = entries::HELP)]
    Entries(entries::EntriesArgs),
    /// Sum the entries of an account in a period, and its spending by a label
    #[command(after_help = statement::HELP)]
    Statement(statement::StatementArgs),
    /// Check that the credit of a vault adds up, list the change log, or export and verify the journal
    #[command(after_help = credit::AUDIT_HELP)]
    Audit(credit::AuditArgs),
    /// Show, add and remove the nodes of a cluster, and write backups
    #[command(subcommand, after_help = cluster::HELP)]
    Cluster(cluster::ClusterCommand),
    /// Show and set the quotas of a namespace
    #[command(subcommand, after_help = quota::HELP)]
    Quota(quota::QuotaCommand),
    /// Explain what the answer to a call would be, and take nothing
    #[command(after_help = explain::HELP)]
    Explain(explain::ExplainArgs),
    /// Put and get the policy of a namespace
    #[command(subcommand, after_help = policy::HELP)]
    Policy(policy::PolicyCommand),
    /// Import a published price list into a policy
    #[command(subcommand, after_help = prices::HELP)]
    Prices(prices::PricesCommand),
    /// Create, list and revoke API keys
    #[command(subcommand, after_help = key::HELP)]
    Key(key::KeyCommand),
    /// Show who you are to the server, and which attributes your calls have
    #[command(after_help = whoami::HELP)]
    Whoami(client::ClientArgs),
    /// Create the data folder of a new cluster from a backup or a stopped node
    #[command(after_help = recover::HELP)]
    Recover(recover::RecoverArgs),
    /// Write a backup of a running server to a file or to standard output
    #[command(after_help = backup::HELP)]
    Backup(backup::BackupArgs),
    /// Create the data folder of a new cluster from the file of a backup
    #[command(after_help = backup::RESTORE_HELP)]
    Restore(backup::RestoreArgs),
    /// Measure reserves per second of a server or a node
    #[command(after_help = bench::HELP)]
    Bench(bench::BenchArgs),
}

impl Command {
    fn run(&self) -> Result<Done, Failure> {
        match self {
            Command::Serve(args) => serve::run(args),
            Command::Config(command) => config::run(command),
            Command::Health(args) => health::run(args),
            Command::Gateway(args) => gateway::run(args),
            Command::Limits(command) => limits::run(command),
            Command::Templates(command) => templates::run(command),
            Command::Apply(args) => code::apply(args),
            Command::Diff(args) => code::diff(args),
            Command::Export(args) => code::export(args),
            Command::Import(command) => code::import::run(command),
            Command::Usage(args) => usage::run(args),
            Command::Decisions(args) => decisions::run(args),
            Command::Top(args) => top::run(args),
            Command::Reserve(args) => reserve::run(args),
            Command::Extend(args) => extend::run(args),
            Command::Complete(args) => complete::run(args),
            Command::Lease(args) => lease::run(args),
            Command::Write(args) => write::run(args),
            Command::Balance(args) => credit::balance(args),
            Command::Grants(args) => credit::grants(args),
            Command::Accounts(args) => accounts::run(args),
            Command::Entries(args) => entries::run(args),
            Command::Statement(args) => statement::run(args),
            Command::Audit(args) => credit::audit(args),
            Command::Cluster(command) => cluster::run(command),
            Command::Quota(command) => quota::run(command),
            Command::Explain(args) => explain::run(args),
            Command::Policy(command) => policy::run(command),
            Command::Prices(command) => prices::run(command),
            Command::Key(command) => key::run(command),
            Command::Whoami(args) => whoami::run(args),
            Command::Recover(args) => recover::run(args),
            Command::Backup(args) => backup::backup(args),
            Command::Restore(args) => backup::restore(args),
            Command::Bench(args) => bench::run(args),
        }
    }

    /// Whether `--json` was given.
    fn is_json(&self) -> bool {
        match self {
            Command::Serve(_) | Command::Gateway(_) | Command::Config(_) | Command::Import(_) => false,
            Command::Health(args) => args.client.json,
            Command::Limits(command) => command.is_json(),
            Command::Templates(command) => command.is_json(),
            Command::Apply(args) => args.files.client.json,
            Command::Diff(args) => args.files.client.json,
            Command::Export(args) => args.client.json,
            Command::Usage(args) => args.client.json,
            Command::Decisions(args) => args.client.json,
            Command::Top(args) => args.client.json,
            Command::Reserve(args) => args.client.json,
            Command::Extend(args) => args.client.json,
            Command::Complete(args) => args.client.json,
            Command::Lease(args) => args.client.json,
            Command::Write(args) => args.connection.json,
            Command::Balance(args) | Command::Grants(args) => args.client.json,
            Command::Accounts(args) => args.client.json,
            Command::Entries(args) => args.client.json,
            Command::Statement(args) => args.client.json,
            Command::Audit(args) => args.is_json(),
            Command::Cluster(command) => command.client().json,
            Command::Quota(command) => command.client().json,
            Command::Explain(args) => args.client.json,
            Command::Policy(command) => command.client().json,
            Command::Prices(command) => command.is_json(),
            Command::Key(command) => command.client().json,
            Command::Whoami(args) => args.json,
            Command::Recover(args) => args.json,
            Command::Backup(args) => args.client.json,
            Command::Restore(args) => args.json,
            Command::Bench(args) => args.json,
        }
    }
}

/// Why an argument is refused unread. Other users of the machine see the command line, and a shell keeps it.
const KEY_IN_ARGUMENTS: &str = "an argument looks like an API key; other users see the command line. Set EARMARK_KEY or \
     EARMARK_KEY_FILE instead, and revoke the key if others use this machine";

/// Whether an argument has an API key or an invitation. A path, which may be named like one, must have a whole key.
fn has_key(argument: &OsString) -> bool {
    let text = argument.to_string_lossy();
    if !contains_api_key(&text) {
        return false;
    }
    let value = text.split_once('=').filter(|_| text.starts_with("--")).map_or(&*text, |(_, value)| value);
    let value = value.strip_prefix("sqlite:").unwrap_or(value);
    let is_path = (value.contains('/') && !value.contains("://")) || Path::new(value).exists();
    let is_whole = |part: &str| Token::parse(part).is_some() || (part.len() > 50 && contains_api_key(part));
    !is_path || text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(is_whole)
}

/// Parses the arguments. A message about them contains no API key.
fn parse(arguments: &[OsString]) -> Result<Command, ExitCode> {
    let is_revoke =
        arguments.get(1).is_some_and(|word| word == "key") && arguments.get(2).is_some_and(|word| word == "revoke");
    // The first argument is the path of this program.
    if !is_revoke && arguments.iter().skip(1).any(has_key) {
        output::complain(&format!("earmark: {KEY_IN_ARGUMENTS}"));
        return Err(ExitCode::from(2));
    }
    if arguments.get(1).is_some_and(|word| word == "serve") {
        return parse_serve(arguments);
    }
    match Cli::try_parse_from(arguments) {
        Ok(cli) => Ok(cli.command),
        Err(error) if is_revoke && error.use_stderr() => {
            output::complain(&error.render().to_string());
            Err(ExitCode::from(2))
        }
        Err(error) => error.exit(),
    }
}

/// Parses the arguments of `serve`, together with its file and its variables.
fn parse_serve(arguments: &[OsString]) -> Result<Command, ExitCode> {
    let (name, words) = arguments.split_at(arguments.len().min(2));
    let read = || Settings::read(&serve::config::command(), words, &serve::config::variables()?);
    let settings = match read() {
        _ if words.iter().any(|word| word == "--help" || word == "-h") => Settings::default(),
        Ok(settings) => settings,
        Err(failure) => {
            output::complain(&format!("earmark: {failure}"));
            return Err(failure.exit_code());
        }
    };
    let line = name.iter().cloned().chain(settings.words()).chain(words.iter().cloned());
    match Cli::try_parse_from(line) {
        Ok(Cli { command: Command::Serve(mut args) }) => {
            args.configured_by(settings);
            Ok(Command::Serve(args))
        }
        Ok(cli) => Ok(cli.command),
        Err(error) => {
            if let (true, Some(note)) = (error.use_stderr(), settings.note()) {
                output::complain(&format!("earmark: {note}"));
            }
            error.exit()
        }
    }
}

fn main() -> ExitCode {
    let command = match parse(&std::env::args_os().collect::<Vec<_>>()) {
        Ok(command) => command,
        Err(code) => return code,
    };
    match command.run() {
        Ok(done) => done.into(),
        Err(failure) => {
            output::complain(&format!("earmark: {failure}"));
            if command.is_json() {
                // The message is already on standard error, so a failure to print JSON is ignored.
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
            "templates put --file -",
            "templates list --namespace team",
            "templates delete a:{b}",
            "usage",
            "decisions --follow",
            "top --of denied",
            "apply a.yaml",
            "diff a.yaml",
            "export",
            "reserve --key a=1",
            "extend --lease 01ARZ3NDEKTSV4RRFFQ69G5FAV --number 1",
            "complete --lease 01ARZ3NDEKTSV4RRFFQ69G5FAV",
            "lease 01ARZ3NDEKTSV4RRFFQ69G5FAV",
            "write --client a --sequence 1",
            "balance --account a",
            "grants --account a",
            "accounts --prefix team:",
            "entries --account a --since 1h",
            "audit",
            "audit export a.audit",
            "cluster status",
            "cluster add --node-id 2 --address 127.0.0.1:7102",
            "cluster remove --node-id 2",
            "key create --name a --role reader",
            "quota get team",
            "policy put a.toml --namespace team",
            "policy get",
            "explain --attribute tenant=acme --input 8k",
            "quota set team --quota limits=1",
            "key list",
            "key revoke abc",
        ] {
            let words = ["earmark"].into_iter().chain(line.split_whitespace());
            let words = words.chain(["--server", "http://a:1", "--insecure-plaintext", "--json"]);
            assert!(Cli::try_parse_from(words).unwrap().command.is_json(), "{line}");
        }
    }
}
