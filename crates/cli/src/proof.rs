//! `earmark audit export`, `keys` and `verify`: the journal as a signed file, and its check without a server.

use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use earmark_admission::private_file;
use earmark_node::{ChainHead, ExpectedKey, ExportExpected, PublicKey, Verified, verify_export};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::backup::{sync_parent, with_suffix};
use crate::client::{self, Client, ClientArgs};
use crate::failure::{Done, Failure};
use crate::output::{self, thousands};
use crate::request;

const EXPORT_HELP: &str = "\
Writes the whole journal from its first record, each record with the head of the hash chain after it, then the balances
by account and asset and the totals, all signed by the node. The file is verified once it has arrived. Needs the key of an
admin of namespace default. Refused if the credit is in a database (--credits) or the server runs in memory.

Examples:
  earmark audit export earmark.audit
  earmark audit export earmark.audit --json | jq -r '\"\\(.records):\\(.head)\"' >> heads.txt";

const KEYS_HELP: &str = "\
Lists the public keys with which the nodes of the cluster sign exports. A node publishes its key before its first export,
and the key stays when the node is removed, so that its exports can still be verified. Give the list to the auditor when a
key is new, on another way than the exports. Needs the key of an admin of namespace default.

Examples:
  earmark audit keys
  earmark audit keys --json > keys.json
  earmark audit verify earmark.audit --keys keys.json";

const VERIFY_HELP: &str = "\
Needs no server. Recomputes the hash chain, every balance and every total from the records, and checks the signature. Names
the first defect by its record number and log index; the exit code is then 1.

Without --public-key or --keys the signature is checked with the key that the file itself names, which proves no origin. A
key of --keys must also be that of the node and the cluster that the file names. A head that was published earlier (--head) proves that the history before it was not rewritten since, also if another key signed the file.

Examples:
  earmark audit verify earmark.audit
  earmark audit verify earmark.audit --keys keys.json
  earmark audit verify earmark.audit --public-key \"$(cat auditor/node-1.pub)\"
  earmark audit verify earmark.audit --head 1200:8c1f...";

const PATH: &str = "/v1/admin/audit/export";
const KEYS_PATH: &str = "/v1/admin/audit/keys";
/// Records between two updates of the progress line.
const PROGRESS_RECORDS: u64 = 100_000;
/// Bytes between two updates of the progress line.
const PROGRESS_BYTES: u64 = 16 << 20;

#[derive(Debug, Subcommand)]
pub(crate) enum ProofCommand {
    /// Write the journal, its hash chain and all balances into a signed file
    #[command(after_help = EXPORT_HELP)]
    Export(ExportArgs),
    /// List the public keys with which nodes sign exports
    #[command(after_help = KEYS_HELP)]
    Keys(ClientArgs),
    /// Check a file of `earmark audit export` without a server
    #[command(after_help = VERIFY_HELP)]
    Verify(VerifyArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    /// New file for the export
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Args, Debug)]
pub(crate) struct VerifyArgs {
    /// The file of `earmark audit export`
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Public key that must have signed it, as 64 hexadecimal digits [default: the key that the file names]
    #[arg(long, value_name = "KEY")]
    public_key: Option<PublicKey>,
    /// File of `earmark audit keys --json`: the keys of which one must have signed it
    #[arg(long, value_name = "FILE", conflicts_with = "public_key")]
    keys: Option<PathBuf>,
    /// Head that the chain must have after a record, as RECORD:HASH
    #[arg(long, value_name = "HEAD", value_parser = head)]
    head: Option<(u64, ChainHead)>,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

fn head(text: &str) -> Result<(u64, ChainHead), String> {
    let wrong = || "a head is RECORD:HASH, a record number and 64 hexadecimal digits".to_owned();
    let (record, hash) = text.split_once(':').ok_or_else(wrong)?;
    let record = record.parse().map_err(|_| wrong())?;
    Ok((record, hash.parse().map_err(|_| wrong())?))
}

impl ProofCommand {
    pub(crate) fn is_json(&self) -> bool {
        match self {
            ProofCommand::Export(args) => args.client.json,
            ProofCommand::Keys(args) => args.json,
            ProofCommand::Verify(args) => args.json,
        }
    }
}

pub(crate) fn run(command: &ProofCommand) -> Result<Done, Failure> {
    match command {
        ProofCommand::Export(args) => export(args),
        ProofCommand::Keys(args) => keys(args),
        ProofCommand::Verify(args) => verify(args),
    }
}

fn export(args: &ExportArgs) -> Result<Done, Failure> {
    let path = &*args.file;
    if path.exists() {
        return Err(Failure::Usage(format!("{}: the file exists; choose another name", path.display())));
    }
    let partial = with_suffix(path, ".partial");
    if let Err(failure) = download(&args.client, &partial) {
        // The failure is reported; a leftover only takes space.
        _ = fs::remove_file(&partial);
        return Err(failure);
    }
    let verified = check(&partial, ExportExpected::default(), args.client.json).inspect_err(|_| {
        output::complain(&format!(
            "{} is kept; compare it with `earmark audit` and with the export of another node",
            partial.display()
        ));
    })?;
    let renamed = fs::rename(&partial, path).and_then(|()| sync_parent(path));
    renamed.map_err(|source| Failure::System { what: "writing the export", source })?;
    output::show(args.client.json, &document(path, &verified), |_| {
        format!(
            "{}: {} records up to log index {}\nhead {}:{}\nsigned by node {} with {}\n",
            path.display(),
            thousands(verified.header.journal.records.into()),
            verified.header.log_index,
            verified.header.journal.records,
            verified.header.journal.head,
            verified.header.node,
            verified.header.public_key
        )
    })?;
    Ok(Done::Ok)
}

fn download(args: &ClientArgs, path: &Path) -> Result<(), Failure> {
    let failed = |source| Failure::System { what: "writing the export", source };
    let mut file = private_file().write(true).create(true).truncate(true).open(path).map_err(failed)?;
    let (mut bytes, mut progress) = (0_u64, Progress::new(args.json, PROGRESS_BYTES));
    client::block_on(async {
        let take = |piece: &[u8]| {
            bytes = bytes.saturating_add(piece.len() as u64);
            progress.show(bytes, |bytes| format!("{} MiB received", bytes >> 20));
            file.write_all(piece).map_err(failed)
        };
        Client::new(&args.url())?.download(PATH, take).await.map(drop)
    })?;
    progress.end();
    file.sync_all().map_err(failed)
}

/// The answer of the server, and the file for `verify`.
#[derive(Deserialize, Serialize)]
struct SigningKeys {
    keys: Vec<SigningKey>,
}

#[derive(Deserialize, Serialize)]
struct SigningKey {
    public_key: String,
    cluster_id: String,
    node_id: u64,
    published_at_unix_ms: u64,
    is_member: bool,
}

fn keys(args: &ClientArgs) -> Result<Done, Failure> {
    let found: SigningKeys = request::get(args, KEYS_PATH)?;
    output::show(args.json, &found, |found| {
        if found.keys.is_empty() {
            return "no keys; a node publishes its key before its first export\n".to_owned();
        }
        let mut rows = vec![["NODE", "MEMBER", "PUBLISHED", "CLUSTER", "PUBLIC KEY"].map(str::to_owned)];
        rows.extend(found.keys.iter().map(|key| {
            let is_member = if key.is_member { "yes" } else { "no" };
            let published = output::date(key.published_at_unix_ms);
            [key.node_id.to_string(), is_member.into(), published, key.cluster_id.clone(), key.public_key.clone()]
        }));
        output::table(&rows)
    })?;
    Ok(Done::Ok)
}

impl SigningKey {
    fn expected(&self) -> Result<ExpectedKey, String> {
        let wrong = |_| format!("cluster_id: found {:?}, allowed are 32 hexadecimal digits", self.cluster_id);
        let cluster = u128::from_str_radix(&self.cluster_id, 16).map_err(wrong)?;
        let key = self.public_key.parse().map_err(|rule| format!("public_key: found {:?}, {rule}", self.public_key))?;
        Ok(ExpectedKey { key, origin: Some((cluster, self.node_id)) })
    }
}

impl VerifyArgs {
    /// The keys of the options; `None` without one.
    fn expected_keys(&self) -> Result<Option<Vec<ExpectedKey>>, Failure> {
        let Some(path) = &self.keys else {
            return Ok(self.public_key.map(|key| vec![ExpectedKey { key, origin: None }]));
        };
        let wrong = |what: &dyn std::fmt::Display| {
            Failure::Usage(format!("{}: {what}; write it with earmark audit keys --json", path.display()))
        };
        let file = File::open(path).map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))?;
        let found: SigningKeys = serde_json::from_reader(io::BufReader::new(file)).map_err(|error| wrong(&error))?;
        let keys = found.keys.iter().map(SigningKey::expected).collect::<Result<_, _>>();
        keys.map(Some).map_err(|error| wrong(&error))
    }
}

fn verify(args: &VerifyArgs) -> Result<Done, Failure> {
    let keys = args.expected_keys()?;
    let expected = ExportExpected { keys: keys.as_deref(), head: args.head };
    let verified = check(&args.file, expected, args.json)?;
    let mut document = document(&args.file, &verified);
    document["valid"] = true.into();
    document["key_is_given"] = keys.is_some().into();
    output::show(args.json, &document, |_| text(args, &verified))?;
    Ok(Done::Ok)
}

fn check(path: &Path, expected: ExportExpected<'_>, is_json: bool) -> Result<Verified, Failure> {
    let file = File::open(path).map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))?;
    let mut progress = Progress::new(is_json, PROGRESS_RECORDS);
    let verified = verify_export(file, expected, |record, header| {
        let of = header.journal.records;
        progress.show(record, |record| {
            format!("{} of {} records verified", thousands(record.into()), thousands(of.into()))
        });
    });
    progress.end();
    verified.map_err(|defect| Failure::Conflict(format!("{}: {defect}", path.display())))
}

fn document(path: &Path, verified: &Verified) -> Value {
    let header = &verified.header;
    let asset = |asset: &earmark_node::VerifiedAsset| {
        json!({
            "namespace": asset.namespace,
            "vault": asset.vault,
            "asset": asset.asset,
            "issued": asset.issued.to_string(),
            "retired": asset.retired.to_string(),
            "expired": asset.expired.to_string(),
            "live": asset.live.to_string(),
        })
    };
    json!({
        "path": path.display().to_string(),
        "cluster_id": format!("{:032x}", header.cluster),
        "node_id": header.node,
        "at_unix_ms": header.at_unix_ms,
        "log_index": header.log_index,
        "records": header.journal.records,
        "head": header.journal.head.to_string(),
        "public_key": header.public_key.to_string(),
        "accounts": verified.accounts,
        "assets": verified.assets.iter().map(asset).collect::<Vec<_>>(),
    })
}

fn text(args: &VerifyArgs, verified: &Verified) -> String {
    let header = &verified.header;
    let mut text = format!(
        "{} is intact: {} records, {} accounts, no gap, every balance and total adds up\n",
        args.file.display(),
        thousands(header.journal.records.into()),
        thousands(verified.accounts.into())
    );
    if !verified.assets.is_empty() {
        let mut rows = vec![["VAULT", "ASSET", "ISSUED", "RETIRED", "EXPIRED", "LIVE"].map(str::to_owned)];
        rows.extend(verified.assets.iter().map(|asset| {
            let vault = format!("{}/{}", asset.namespace, asset.vault);
            let [issued, retired, expired, live] =
                [asset.issued, asset.retired, asset.expired, asset.live].map(|amount| amount.to_string());
            [vault, asset.asset.clone(), issued, retired, expired, live]
        }));
        text += &output::table(&rows);
    }
    let (date, node) = (output::date(header.at_unix_ms), header.node);
    text +=
        &format!("head {}:{}, log index {}, {date}\n", header.journal.records, header.journal.head, header.log_index);
    text += &match args.head {
        _ if args.public_key.is_some() || args.keys.is_some() => {
            format!("signed by node {node} of cluster {:032x} with a given key\n", header.cluster)
        }
        Some((record, _)) => format!(
            "has the given head after record {record}; signed with the file's own key {}, so give --keys or --public-key to \
             prove the names of accounts and the origin\n",
            header.public_key
        ),
        None => format!(
            "signed with {}; this is the file's own key, so give --keys or --public-key to prove its origin, or \
             --head to prove its records\n",
            header.public_key
        ),
    };
    text
}

/// A line on the terminal that says how far a long command is. Nothing is shown elsewhere, or with `--json`.
struct Progress {
    is_shown: bool,
    every: u64,
    next: u64,
}

impl Progress {
    fn new(is_json: bool, every: u64) -> Progress {
        Progress { is_shown: !is_json && io::stderr().is_terminal(), every, next: every }
    }

    fn show(&mut self, done: u64, line: impl FnOnce(u64) -> String) {
        if self.is_shown && done >= self.next {
            self.next = done.saturating_add(self.every);
            // Progress is not worth a failure.
            _ = write!(io::stderr(), "\r{}", line(done));
        }
    }

    fn end(&self) {
        if self.is_shown && self.next > self.every {
            _ = writeln!(io::stderr());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_has_a_record_number_and_a_hash() {
        let hash = "0123456789abcdef".repeat(4);
        assert_eq!(head(&format!("7:{hash}")).map(|(record, head)| (record, head.to_string())), Ok((7, hash.clone())));
        assert!(head(&format!("0:{}", "0".repeat(64))).is_ok(), "an empty journal has a head");
        for wrong in ["", "7", "7:", &hash, &format!("7:{hash}0"), &format!("x:{hash}")] {
            assert!(head(wrong).is_err(), "{wrong:?}");
        }
    }
}
