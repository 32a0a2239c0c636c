//! `earmark limits`: put, get, list and delete limits.

pub(crate) mod put;
pub(crate) mod show;

use clap::{Args, Subcommand};
use earmark_client::http::{Method, encoded};
use earmark_core::{LimitKey, NamespaceName};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::client::ClientArgs;
use crate::failure::{Done, Failure};
use crate::output;
use crate::quantity;
use crate::request;
use put::PutArgs;
use show::{Limit, Usage};

pub(crate) const HELP: &str = "\
Examples:
  earmark limits put --key gpt-4o:tpm --kind rolling --capacity 60k --window 1m --unit tokens
  earmark limits list";

const GET_HELP: &str = "\
Examples:
  earmark limits get gpt-4o:rpm
  earmark limits get gpt-4o:rpm --json | jq .usage.available";

const LIST_HELP: &str = "\
Examples:
  earmark limits list
  earmark limits list --prefix gpt-4o:
  earmark limits list --json | jq -r '.limits[].definition.key'";

const DELETE_HELP: &str = "\
A limit with open reservations accepts no more reserves, and is deleted once they have ended. A limit that a template
derives loses its debt, if nothing is reserved; its key still follows the template.

Examples:
  earmark limits delete gpt-4o:rpm
  earmark limits delete gpt-4o:rpm --namespace acme";

const PAUSE_HELP: &str = "\
Reserves that were allowed before stay allowed. A second pause replaces the first.

Examples:
  earmark limits pause gpt-4o:rpm --for 30s --reason 'the provider answers 429'
  earmark limits pause gpt-4o:rpm --for 1h";

const RESUME_HELP: &str = "\
Examples:
  earmark limits resume gpt-4o:rpm";

const PATH: &str = "/v1/admin/limits";

#[derive(Debug, Subcommand)]
pub(crate) enum LimitsCommand {
    /// Create or change a limit
    #[command(after_help = put::HELP)]
    Put(PutArgs),
    /// Show a limit and its usage
    #[command(after_help = GET_HELP)]
    Get(KeyArgs),
    /// List all limits
    #[command(after_help = LIST_HELP)]
    List(ListArgs),
    /// Delete a limit once it has no open reservations
    #[command(after_help = DELETE_HELP)]
    Delete(KeyArgs),
    /// Refuse new reserves of a limit for a time
    #[command(after_help = PAUSE_HELP)]
    Pause(PauseArgs),
    /// End the pause of a limit
    #[command(after_help = RESUME_HELP)]
    Resume(KeyArgs),
}

#[derive(Args, Debug)]
pub(crate) struct KeyArgs {
    /// Key of the limit, such as gpt-4o:rpm
    key: LimitKey,
    #[command(flatten)]
    scope: NamespaceArgs,
    #[command(flatten)]
    client: ClientArgs,
}

/// The namespace of a limit or template.
#[derive(Args, Debug)]
pub(crate) struct NamespaceArgs {
    /// Namespace of the limit or template; an admin of `default` may name any [default: that of the key]
    #[arg(long)]
    pub(crate) namespace: Option<NamespaceName>,
}

impl NamespaceArgs {
    /// A path with the namespace in its query.
    fn query(&self, path: &str) -> String {
        match &self.namespace {
            Some(namespace) => format!("{path}?namespace={}", encoded(namespace.as_str())),
            None => path.to_owned(),
        }
    }
}

impl KeyArgs {
    /// The path of the limit, or of something of it.
    fn path(&self, rest: &str) -> String {
        self.scope.query(&format!("{PATH}/{}{rest}", encoded(self.key.as_str())))
    }
}

#[derive(Args, Debug)]
pub(crate) struct PauseArgs {
    #[command(flatten)]
    limit: KeyArgs,
    /// How long, such as 30, 30s or 10m; at most 1h
    #[arg(long = "for", value_name = "DURATION", value_parser = quantity::seconds(PAUSE_SECONDS_MAX))]
    seconds: u32,
    /// Reason for people, kept in the change log
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
}

/// The longest pause, in seconds.
const PAUSE_SECONDS_MAX: u32 = 60 * 60;

#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Only limits whose key begins like this, such as gpt-4o:
    #[arg(long, value_name = "TEXT")]
    prefix: Option<LimitKey>,
    /// Namespace of the limits; an admin of `default` may name any [default: that of the key]
    #[arg(long)]
    namespace: Option<NamespaceName>,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Deserialize, Serialize)]
struct Changed {
    ok: bool,
    status: String,
}

impl LimitsCommand {
    /// Whether `--json` was given.
    pub(crate) fn is_json(&self) -> bool {
        match self {
            LimitsCommand::Put(args) => args.client.json,
            LimitsCommand::Get(args) | LimitsCommand::Delete(args) | LimitsCommand::Resume(args) => args.client.json,
            LimitsCommand::Pause(args) => args.limit.client.json,
            LimitsCommand::List(args) => args.client.json,
        }
    }
}

pub(crate) fn run(command: &LimitsCommand) -> Result<Done, Failure> {
    match command {
        LimitsCommand::Put(args) => put(args),
        LimitsCommand::Get(args) => get(args),
        LimitsCommand::List(args) => list(args),
        LimitsCommand::Delete(args) => delete(args),
        LimitsCommand::Pause(args) => pause(&args.limit, u64::from(args.seconds).saturating_mul(1_000), &args.reason),
        LimitsCommand::Resume(args) => pause(args, 0, ""),
    }?;
    Ok(Done::Ok)
}

fn put(args: &PutArgs) -> Result<(), Failure> {
    let document = args.document()?;
    let changed: Changed = request::send(&args.client, Method::PUT, &args.scope.query(PATH), &document)?;
    output::show(args.client.json, &changed, |changed| {
        put::text(&document.into_definition(), &output::visible(&changed.status))
    })
}

fn pause(args: &KeyArgs, for_ms: u64, reason: &str) -> Result<(), Failure> {
    #[derive(Debug, Deserialize, Serialize)]
    struct Paused {
        ok: bool,
        paused_until_unix_ms: u64,
    }
    let mut body = json!({"for_ms": for_ms});
    if !reason.is_empty() {
        body["reason"] = json!(reason);
    }
    let paused: Paused = request::send(&args.client, Method::POST, &args.path("/pause"), &body)?;
    output::show(args.client.json, &paused, |paused| match paused.paused_until_unix_ms {
        0 => format!("{} is not paused\n", args.key),
        until => format!("{} is paused until {}\n", args.key, output::date(until)),
    })
}

fn get(args: &KeyArgs) -> Result<(), Failure> {
    #[derive(Deserialize)]
    struct Answer {
        limit: Limit,
    }
    #[derive(Serialize)]
    struct Document {
        limit: Limit,
        usage: Usage,
    }
    let answer: Answer = request::get(&args.client, &args.path(""))?;
    let usage = request::get(&args.client, &args.path("/usage"))?;
    let document = Document { limit: answer.limit, usage };
    output::show(args.client.json, &document, |document| show::one(&document.limit, &document.usage))
}

/// Lists all limits, page by page.
fn list(args: &ListArgs) -> Result<(), Failure> {
    #[derive(Deserialize)]
    struct Page {
        limits: Vec<Limit>,
        next: Option<String>,
    }
    #[derive(Serialize)]
    struct Document {
        limits: Vec<Limit>,
    }
    let prefix = args.prefix.as_ref().map(|prefix| format!("prefix={}", encoded(prefix.as_str())));
    let namespace = args.namespace.as_ref().map(|namespace| format!("namespace={}", encoded(namespace.as_str())));
    let (mut document, mut after) = (Document { limits: Vec::new() }, None);
    loop {
        let from = after.map(|key: String| format!("after={}", encoded(&key)));
        let query: Vec<String> = prefix.iter().chain(&namespace).cloned().chain(from).collect();
        let mark = if query.is_empty() { "" } else { "?" };
        let page: Page = request::get(&args.client, &format!("{PATH}{mark}{}", query.join("&")))?;
        document.limits.extend(page.limits);
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    output::show(args.client.json, &document, |document| show::list(&document.limits))
}

fn delete(args: &KeyArgs) -> Result<(), Failure> {
    let changed: Changed = request::delete(&args.client, &args.path(""))?;
    output::show(args.client.json, &changed, |changed| match changed.status.as_str() {
        "deleted" => format!("{} is deleted\n", args.key),
        "decreasing" => {
            format!("{} accepts no more reserves, and is deleted once its open reservations have ended\n", args.key)
        }
        status => format!("{} is {}\n", args.key, output::visible(status)),
    })
}
