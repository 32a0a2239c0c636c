//! `earmark write`: one transaction, applied exactly once.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use earmark_core::{ClientId, IdempotencyKey, NamespaceName, VaultName};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::client::{self, Client, ClientArgs};
use crate::failure::{Done, Failure};
use crate::output;
use crate::quantity;

pub(crate) const HELP: &str = "\
Applies all operations or none. Each client numbers its writes in each vault from 1. Repeating a command returns the
first answer and changes nothing. A failed write does not use up its number. With --idempotency-key a write has a key
of your choice instead: several programs may send it, and it happens once.

Operations with --vault:
  open_account, freeze_account, unfreeze_account, close_account, set_plan, issue, transfer, retire
Operations without --vault:
  put_limit, delete_limit, open_vault, delete_vault (of a vault that was never used)
Operations in both, for role admin:
  retire_client

Examples:
  earmark write --client billing --sequence 1 --vault main \\
    --op '{\"open_account\":{\"account\":\"acme\",\"overdraft\":\"deny\"}}' \\
    --op '{\"issue\":{\"account\":\"acme\",\"asset\":\"usd\",\"amount\":\"5000000\"}}'
  earmark write --client billing --sequence 2 --vault main --file operations.json
  earmark write --idempotency-key evt_7Qx --vault main \\
    --op '{\"issue\":{\"account\":\"acme\",\"asset\":\"usd\",\"amount\":\"5000000\"}}'
  earmark write --client ops --sequence 1 --op '{\"open_vault\":{\"vault\":\"eu\"}}'";

/// Largest operations file, in bytes: the server's limit for a request body.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The only error code after which the outcome of a write is unknown.
const UNAVAILABLE: &str = "UNAVAILABLE";
const OUTCOME_UNKNOWN: &str =
    "earmark: the outcome is unknown; run the same command again, the server applies it at most once";

#[derive(Args, Debug)]
pub(crate) struct WriteArgs {
    /// Id of the client that writes; two programs must not share one
    #[arg(long, value_name = "ID", requires = "sequence", required_unless_present = "idempotency_key")]
    client: Option<ClientId>,
    /// Number of this write: one more than the client's last write in the same vault, or without --vault in the namespace
    #[arg(long, value_name = "N", value_parser = quantity::positive, requires = "client")]
    sequence: Option<u64>,
    /// Identity of the write instead of --client and --sequence, such as the id of a webhook event
    #[arg(long, value_name = "KEY", conflicts_with_all = ["client", "sequence"])]
    idempotency_key: Option<IdempotencyKey>,
    /// Namespace of the write
    #[arg(long, default_value = NamespaceName::DEFAULT)]
    namespace: NamespaceName,
    /// Vault of the operations; leave it out for operations on limits and vaults
    #[arg(long)]
    vault: Option<VaultName>,
    /// An operation as JSON; may be repeated. A write without operations only uses up its number or key
    #[arg(long = "op", value_name = "JSON", conflicts_with = "file")]
    operations: Vec<String>,
    /// JSON file with a list of operations, instead of --op; - reads standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) connection: ClientArgs,
}

#[derive(Serialize)]
struct Body<'a> {
    namespace: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    vault: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<&'a str>,
    operations: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Answer {
    success: Option<Success>,
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Success {
    tx_id: String,
    sequence: Option<u64>,
    results: Vec<Value>,
}

#[derive(Deserialize)]
struct Refusal {
    code: String,
    message: String,
}

pub(crate) fn run(args: &WriteArgs) -> Result<Done, Failure> {
    let body = Body {
        namespace: args.namespace.as_str(),
        vault: args.vault.as_ref().map(VaultName::as_str),
        client_id: args.client.as_ref().map(ClientId::as_str),
        sequence: args.sequence,
        idempotency_key: args.idempotency_key.as_ref().map(IdempotencyKey::as_str),
        operations: args.operations()?,
    };
    let document: Value = client::block_on(async {
        let client = Client::new(&args.connection.url())?;
        client.post_any("/v1/write", &body).await
    })
    .inspect_err(|failure| {
        if matches!(failure, Failure::NoAnswer { .. } | Failure::UnexpectedAnswer { .. }) {
            output::complain(OUTCOME_UNKNOWN);
        }
    })?;
    let answer = Answer::deserialize(&document).map_err(|error| Failure::UnexpectedAnswer {
        url: args.connection.server.to_string(),
        what: error.to_string(),
    })?;
    if args.connection.json {
        output::print_json(&document)?;
    } else if let Some(success) = &answer.success {
        output::print(&success.text())?;
    }
    match answer {
        Answer { error: Some(Refusal { code, message }), .. } => {
            let [code, message] = [&code, &message].map(|text| output::visible(text));
            if code == UNAVAILABLE {
                output::complain(&format!("{OUTCOME_UNKNOWN}\nearmark: no result from the server ({code}): {message}"));
            } else {
                output::complain(&format!("earmark: nothing was written ({code}): {message}"));
            }
            Ok(Done::Failed)
        }
        Answer { success: Some(_), .. } => Ok(Done::Ok),
        Answer { .. } => Ok(Done::Failed),
    }
}

impl WriteArgs {
    fn operations(&self) -> Result<Vec<Box<RawValue>>, Failure> {
        if let Some(path) = &self.file {
            let text = read_file(path)?;
            return serde_json::from_str(&text)
                .map_err(|error| Failure::Usage(format!("--file: expected a JSON list of operations: {error}")));
        }
        let parse = |text: &String| {
            serde_json::from_str(text)
                .map_err(|error| Failure::Usage(format!("--op: {text:?} is not valid JSON: {error}")))
        };
        self.operations.iter().map(parse).collect()
    }
}

/// The text of `--file`; `-` is standard input.
pub(crate) fn read_file(path: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let read = match path == Path::new("-") {
        true => std::io::stdin().take(FILE_BYTES_MAX).read_to_string(&mut text),
        false => File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text)),
    };
    read.map_err(|error| Failure::Usage(format!("--file: cannot read {}: {error}", path.display())))?;
    Ok(text)
}

impl Success {
    fn text(&self) -> String {
        let count = self.results.len();
        let sequence = self.sequence.map_or(String::new(), |sequence| format!(", sequence {sequence}"));
        let operations = if count == 1 { "operation" } else { "operations" };
        format!("committed, {count} {operations}{sequence}, transaction {}\n", output::visible(&self.tx_id))
    }
}
