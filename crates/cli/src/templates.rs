//! `earmark templates`: put, list and delete templates of limits.

use clap::{Args, Subcommand};
use earmark_client::http::{Method, encoded};
use earmark_core::{LimitKey, NamespaceName};
use serde::{Deserialize, Serialize};

use crate::client::ClientArgs;
use crate::failure::{Done, Failure};
use crate::limits::put::{self, PutArgs};
use crate::limits::show::{self, Template};
use crate::output;
use crate::request;

pub(crate) const HELP: &str = "\
A template is a definition whose key has placeholders. Each key that matches it is a limit of its own, which exists from
its first allowed reserve on. A limit with the same key overrides the template.

Examples:
  earmark templates put --key 'user:{user}:rpm' --kind rolling --capacity 60 --window 1m
  earmark templates list";

const PUT_HELP: &str = "\
A placeholder such as {user} is a whole segment between colons. A key has 1 to 4 of them, each once. The account of a
credit template may use them too.

Examples:
  earmark templates put --key 'user:{user}:rpm' --kind rolling --capacity 60 --window 1m --unit requests
  earmark templates put --key '{tenant}:usd' --kind credit --account '{tenant}' --asset usd --timeout 10m
  earmark templates put --file template.json --namespace team-a";

const LIST_HELP: &str = "\
Examples:
  earmark templates list
  earmark templates list --namespace team-a
  earmark templates list --json | jq -r '.templates[].definition.key'";

const DELETE_HELP: &str = "\
The keys of a deleted template are unknown at once. Amounts that are reserved settle as usual.

Examples:
  earmark templates delete 'user:{user}:rpm'
  earmark templates delete 'user:{user}:rpm' --namespace team-a --json";

const PATH: &str = "/v1/admin/templates";

#[derive(Debug, Subcommand)]
pub(crate) enum TemplatesCommand {
    /// Create or change a template
    #[command(after_help = PUT_HELP)]
    Put(Box<PutArgs>),
    /// List all templates
    #[command(after_help = LIST_HELP)]
    List(ListArgs),
    /// Delete a template
    #[command(after_help = DELETE_HELP)]
    Delete(DeleteArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Namespace of the templates [default: that of the caller]
    #[arg(long)]
    namespace: Option<NamespaceName>,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Args, Debug)]
pub(crate) struct DeleteArgs {
    /// Key of the template, such as 'user:{user}:rpm'
    #[arg(value_parser = LimitKey::pattern)]
    key: LimitKey,
    /// Namespace of the template [default: that of the caller]
    #[arg(long)]
    namespace: Option<NamespaceName>,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Deserialize, Serialize)]
struct Changed {
    ok: bool,
    revision: u64,
}

#[derive(Debug, Deserialize, Serialize)]
struct Deleted {
    ok: bool,
}

#[derive(Debug, Deserialize, Serialize)]
struct Templates {
    templates: Vec<Template>,
}

impl TemplatesCommand {
    /// Whether `--json` was given.
    pub(crate) fn is_json(&self) -> bool {
        match self {
            TemplatesCommand::Put(args) => args.client.json,
            TemplatesCommand::List(args) => args.client.json,
            TemplatesCommand::Delete(args) => args.client.json,
        }
    }
}

pub(crate) fn run(command: &TemplatesCommand) -> Result<Done, Failure> {
    match command {
        TemplatesCommand::Put(args) => put(args),
        TemplatesCommand::List(args) => list(args),
        TemplatesCommand::Delete(args) => delete(args),
    }?;
    Ok(Done::Ok)
}

fn put(args: &PutArgs) -> Result<(), Failure> {
    let document = args.template()?;
    let client = &args.client;
    let changed: Changed = request::send(client, Method::PUT, &path(&[], args.scope.namespace.as_ref()), &document)?;
    output::show(client.json, &changed, |_| put::text(&document.into_template().into_definition(), "a template"))
}

fn list(args: &ListArgs) -> Result<(), Failure> {
    let document: Templates = request::get(&args.client, &path(&[], args.namespace.as_ref()))?;
    output::show(args.client.json, &document, |document| show::templates(&document.templates))
}

fn delete(args: &DeleteArgs) -> Result<(), Failure> {
    let key = ("key", encoded(args.key.as_str()).to_string());
    let deleted: Deleted = request::delete(&args.client, &path(&[key], args.namespace.as_ref()))?;
    output::show(args.client.json, &deleted, |_| format!("{} is deleted\n", args.key))
}

/// The path with its query.
fn path(parameters: &[(&str, String)], namespace: Option<&NamespaceName>) -> String {
    let namespace = namespace.map(|namespace| format!("namespace={namespace}"));
    let parameters = parameters.iter().map(|(name, value)| format!("{name}={value}"));
    let query: Vec<String> = parameters.chain(namespace).collect();
    let mark = if query.is_empty() { "" } else { "?" };
    format!("{PATH}{mark}{}", query.join("&"))
}
