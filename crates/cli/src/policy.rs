//! `earmark policy`: put and get the policy of a namespace.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use earmark_client::http::{Method, encoded};
use earmark_core::{NamespaceName, POLICY_BYTES_MAX};
use serde_json::{Value, json};

use crate::client::ClientArgs;
use crate::failure::{Done, Failure};
use crate::output;
use crate::request;
use crate::text_file;

pub(crate) const HELP: &str = "\
A policy says which limits a call needs and what it costs. Each namespace has one. Only an admin of default may put it.

Examples:
  earmark policy put policy.toml
  earmark policy get --namespace team-a > policy.toml";

const PUT_HELP: &str = "\
The server checks the document and names a mistake with its field and line. The last 32 revisions are kept, so that
calls are settled by the revision they were reserved by.

Examples:
  earmark policy put policy.toml
  earmark policy put policy.toml --namespace team-a --expected-revision 12
  cat rules.toml prices.toml | earmark policy put -";

const GET_HELP: &str = "\
Examples:
  earmark policy get > policy.toml
  earmark policy get --namespace team-a --json | jq .revision";

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Replace the policy of a namespace
    #[command(after_help = PUT_HELP)]
    Put(PutArgs),
    /// Print the policy of a namespace
    #[command(after_help = GET_HELP)]
    Get(GetArgs),
}

#[derive(Args, Debug)]
pub(crate) struct PutArgs {
    /// The document, in TOML; - reads standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The namespace; by default that of the key
    #[arg(long, value_name = "NAME")]
    namespace: Option<NamespaceName>,
    /// The revision that the policy must have; 0 if there must be none
    #[arg(long, value_name = "NUMBER")]
    expected_revision: Option<u64>,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Args, Debug)]
pub(crate) struct GetArgs {
    /// The namespace; by default that of the key
    #[arg(long, value_name = "NAME")]
    namespace: Option<NamespaceName>,
    #[command(flatten)]
    client: ClientArgs,
}

impl PolicyCommand {
    pub(crate) fn client(&self) -> &ClientArgs {
        match self {
            PolicyCommand::Put(args) => &args.client,
            PolicyCommand::Get(args) => &args.client,
        }
    }
}

pub(crate) fn run(command: &PolicyCommand) -> Result<Done, Failure> {
    match command {
        PolicyCommand::Put(args) => put(args),
        PolicyCommand::Get(args) => get(args),
    }?;
    Ok(Done::Ok)
}

fn put(args: &PutArgs) -> Result<(), Failure> {
    let text = read(&args.file)?;
    let body = json!({"policy": text, "expected_revision": args.expected_revision});
    let answer: Value = request::send(&args.client, Method::PUT, &path(args.namespace.as_ref()), &body)?;
    output::show(args.client.json, &answer, |answer| format!("the policy has revision {}\n", answer["revision"]))
}

fn get(args: &GetArgs) -> Result<(), Failure> {
    let answer: Value = request::get(&args.client, &path(args.namespace.as_ref()))?;
    // Only line breaks and tabs may be in a TOML document besides visible characters.
    output::show(args.client.json, &answer, |answer| answer["policy"].as_str().unwrap_or_default().to_owned())
}

fn read(path: &Path) -> Result<String, Failure> {
    text_file::read(path, POLICY_BYTES_MAX)
}

fn path(namespace: Option<&NamespaceName>) -> String {
    let query = namespace.map(|namespace| format!("?namespace={}", encoded(namespace.as_str())));
    format!("/v1/admin/policy{}", query.unwrap_or_default())
}
