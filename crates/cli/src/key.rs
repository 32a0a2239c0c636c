//! `earmark key`: create, list and revoke API keys.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use earmark_admission::Token;
use earmark_client::http::Method;
use earmark_core::{ClientId, KeyId, KeyName, Labels, MaySet, NamespaceName};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::client::ClientArgs;
use crate::failure::{Done, Failure};
use crate::output::{self, table};
use crate::quantity;
use crate::request;

pub(crate) const HELP: &str = "\
A key is shown once, when it is created; the server stores only a hash of it. Commands read their own key from the
environment variable EARMARK_KEY, or from the file named by EARMARK_KEY_FILE.

Examples:
  earmark key create --name billing --role writer --namespace default
  earmark key list
  earmark key revoke 4m8qk2v7d1xz";

const CREATE_HELP: &str = "\
Roles:
  admin    everything in its namespace, including keys; in namespace default also the cluster
  writer   writes credit, changes limits, and reads
  caller   reserves and completes, and nothing else
  reader   reads
  gateway  reserves, extends and completes for the clients of its namespace; in namespace default for all of them
  client   calls through a gateway, and nothing else

A server without keys accepts every caller on its own machine. The first key ends that, so it must have role admin, be
in namespace default and not expire.

Examples:
  earmark key create --name root --role admin
  earmark key create --name app --role caller --label tenant=acme --label plan=pro --may-set user
  earmark key create --name gateway --role gateway --expires-in 90d
  earmark key create --name laptop --role client --namespace team-a --label tenant=acme
  export EARMARK_KEY=$(earmark key create --name billing --role writer --json | jq -r .key)";

const LIST_HELP: &str = "\
Examples:
  earmark key list
  earmark key list --json | jq '.keys[].name'";

const REVOKE_HELP: &str = "\
From then on no node accepts the key. The server refuses to revoke its last usable admin key.

Examples:
  earmark key revoke 4m8qk2v7d1xz
  earmark key revoke 4m8qk2v7d1xz --json";

const PATH: &str = "/v1/admin/keys";
/// Longest validity of a key: ten years.
const EXPIRY_SECONDS_MAX: u32 = 3_660 * 24 * 60 * 60;

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Create a key and show it once
    #[command(after_help = CREATE_HELP)]
    Create(CreateArgs),
    /// List the keys, without their secrets
    #[command(after_help = LIST_HELP)]
    List(ClientArgs),
    /// Revoke a key permanently, on all nodes
    #[command(after_help = REVOKE_HELP)]
    Revoke(RevokeArgs),
}

#[derive(Args, Debug)]
pub(crate) struct CreateArgs {
    /// Display name of the key
    #[arg(long)]
    name: KeyName,
    /// Role of the key, see below
    #[arg(long, value_parser = ["admin", "writer", "caller", "reader", "gateway", "client"])]
    role: String,
    /// The only namespace in which the key is valid [default: the namespace of your own key]
    #[arg(long, value_name = "NAME")]
    namespace: Option<NamespaceName>,
    /// The only client id (earmark write --client) with which the key may write [default: any]
    #[arg(long, value_name = "CLIENT")]
    client_id: Option<ClientId>,
    /// Attribute of each of its calls, such as tenant=acme; repeatable
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Attribute that its calls may set, besides model and provider; repeatable
    #[arg(long, value_name = "NAME", value_parser = may_set)]
    may_set: Vec<String>,
    /// Time until the key expires, such as 12h or 90d [default: never]
    #[arg(long, value_name = "DURATION", value_parser = quantity::seconds(EXPIRY_SECONDS_MAX))]
    expires_in: Option<u32>,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Args, Debug)]
pub(crate) struct RevokeArgs {
    /// Id of the key, as shown by key list. A whole key is accepted too; only its id is sent
    #[arg(value_name = "KEY_ID", value_parser = key_id)]
    key_id: KeyId,
    #[command(flatten)]
    client: ClientArgs,
}

/// Parses a key id, or takes it from a whole key, because a leaked key is found as a whole.
fn key_id(text: &str) -> Result<KeyId, String> {
    match Token::parse(text) {
        Some(token) => Ok(token.id().clone()),
        None => text.parse().map_err(|error: earmark_core::NameError| error.to_string()),
    }
}

/// Parses a label.
fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("found no =, allowed is NAME=VALUE")?;
    Labels::new([(name, value)]).map_err(|error| error.to_string())?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Parses the name of an attribute that calls may set.
fn may_set(text: &str) -> Result<String, String> {
    MaySet::new([text]).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

#[derive(Serialize)]
struct NewKey<'a> {
    name: &'a str,
    role: &'a str,
    namespace: Option<&'a str>,
    client_id: Option<&'a str>,
    labels: BTreeMap<&'a str, &'a str>,
    may_set: &'a [String],
    expires_in_seconds: Option<u32>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Keys {
    keys: Vec<Key>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Key {
    key_id: String,
    name: String,
    role: String,
    namespace: String,
    client_id: Option<String>,
    labels: BTreeMap<String, String>,
    may_set: Vec<String>,
    created_at_unix_ms: u64,
    created_by: String,
    expires_at_unix_ms: Option<u64>,
    revoked_at_unix_ms: Option<u64>,
}

impl KeyCommand {
    pub(crate) fn client(&self) -> &ClientArgs {
        match self {
            KeyCommand::Create(args) => &args.client,
            KeyCommand::List(client) => client,
            KeyCommand::Revoke(args) => &args.client,
        }
    }
}

pub(crate) fn run(command: &KeyCommand) -> Result<Done, Failure> {
    let args = command.client();
    match command {
        KeyCommand::Create(create) => {
            let answer: Value = request::send(args, Method::POST, PATH, &create.body()?)?;
            output::show(args.json, &answer, created)
        }
        KeyCommand::List(_) => {
            let keys: Keys = request::get(args, PATH)?;
            output::show(args.json, &keys, Keys::text)
        }
        KeyCommand::Revoke(RevokeArgs { key_id, .. }) => {
            let answer: Value = request::delete(args, &format!("{PATH}/{key_id}"))?;
            output::show(args.json, &answer, |_| format!("key {key_id} is revoked\n"))
        }
    }?;
    Ok(Done::Ok)
}

fn created(answer: &Value) -> String {
    let text = |value: &Value| output::visible(value.as_str().unwrap_or_default()).into_owned();
    let info = &answer["info"];
    format!(
        "{}\nkey {} ({}, role {}, namespace {}) is not shown again; store it with your secrets\n",
        text(&answer["key"]),
        text(&info["key_id"]),
        text(&info["name"]),
        text(&info["role"]),
        text(&info["namespace"])
    )
}

impl CreateArgs {
    fn body(&self) -> Result<NewKey<'_>, Failure> {
        let labels = self.labels.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        Labels::new(labels.clone()).map_err(|error| Failure::Usage(format!("--label: {error}")))?;
        Ok(NewKey {
            name: self.name.as_str(),
            role: &self.role,
            namespace: self.namespace.as_ref().map(NamespaceName::as_str),
            client_id: self.client_id.as_ref().map(ClientId::as_str),
            labels: labels.collect(),
            may_set: &self.may_set,
            expires_in_seconds: self.expires_in,
        })
    }
}

/// Labels in a table.
pub(crate) fn label_text(labels: &BTreeMap<String, String>) -> String {
    names_text(&labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>())
}

/// Names in a table.
pub(crate) fn names_text(names: &[String]) -> String {
    if names.is_empty() { "-".into() } else { names.join(" ") }
}

impl Keys {
    fn text(&self) -> String {
        if self.keys.is_empty() {
            return "no keys: the server accepts every caller on its own machine\n".into();
        }
        let mut rows =
            vec![["ID", "NAME", "ROLE", "NAMESPACE", "CLIENT", "LABELS", "MAY SET", "BY", "STATE"].map(str::to_owned)];
        rows.extend(self.keys.iter().map(|key| {
            let state = match (key.revoked_at_unix_ms, key.expires_at_unix_ms) {
                (Some(_), _) => "revoked".to_owned(),
                (None, Some(end)) => format!("until {}", output::date(end)),
                (None, None) => "valid".to_owned(),
            };
            let client = key.client_id.clone().unwrap_or_else(|| "-".into());
            let Key { key_id, name, role, namespace, created_by, .. } = key;
            let [id, name, role, namespace, by] = [key_id, name, role, namespace, created_by].map(String::clone);
            [id, name, role, namespace, client, label_text(&key.labels), names_text(&key.may_set), by, state]
        }));
        table(&rows)
    }
}
