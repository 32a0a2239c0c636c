//! `earmark recover`: writes the data folder of a new cluster from a backup or a stopped node.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use earmark_node::{NodeError, RealDisk};
use serde_json::json;

use crate::failure::{Done, Failure};
use crate::output;
use crate::serve::runtime;

pub(crate) const HELP: &str = "\
The result is a new cluster with one node, to which you can add others. The source folder is changed only as a normal
start would change it. See docs/operating.md for when to use this.

Examples:
  earmark recover --from ./n2 --to ./new
  earmark recover --from ./n2 --to ./new --up-to 41
  earmark serve --data ./new";

#[derive(Args, Debug)]
pub(crate) struct RecoverArgs {
    /// Folder to read: a backup, or the data folder of a stopped node
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// New data folder to write; it must be empty or not exist
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Last log entry to include; later ones are lost. For a log with an entry that cannot be applied
    #[arg(long, value_name = "INDEX")]
    up_to: Option<u64>,
    /// Print the result as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &RecoverArgs) -> Result<Done, Failure> {
    if !args.from.is_dir() {
        return Err(Failure::Usage(format!("--from: {} is not a folder", args.from.display())));
    }
    let disk = |path: &Path| {
        let disk = RealDisk::new(path);
        disk.map(Arc::new).map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))
    };
    let recovered = earmark_node::recover(disk(&args.from)?, disk(&args.to)?, args.up_to);
    let made = runtime()?.block_on(recovered).map_err(NodeError::from)?;
    let (cluster, node) = (format!("{:032x}", made.identity.cluster), made.identity.node);
    if args.json {
        output::print_json(&json!({
            "cluster_id": cluster,
            "node_id": node,
            "last_log_index": made.index,
            "journal_records": made.journal.records,
        }))?;
    } else {
        output::print(&format!(
            "{} is node {node} of the new cluster {cluster}, with {} journal records\n\
             start it: earmark serve --data {}\n",
            args.to.display(),
            made.journal.records,
            args.to.display(),
        ))?;
    }
    Ok(Done::Ok)
}
