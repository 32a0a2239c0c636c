//! `earmark health`: whether a server is ready, as an exit code.

use clap::Args;
use serde_json::Value;

use crate::client::ClientArgs;
use crate::failure::{Done, Failure};
use crate::output;
use crate::request;

pub(crate) const HELP: &str = "\
Exit code 0 if the server is ready: it has a leader and serves requests. It needs no key.

Examples:
  earmark health
  earmark health --live --server http://127.0.0.1:7879";

#[derive(Args, Debug)]
pub(crate) struct HealthArgs {
    /// Ask only whether the process answers, not whether it is ready
    #[arg(long)]
    live: bool,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

pub(crate) fn run(args: &HealthArgs) -> Result<Done, Failure> {
    let path = if args.live { "/healthz" } else { "/readyz" };
    let health: Value = request::get(&args.client, path)?;
    output::show(args.client.json, &health, |health| {
        let text = |name: &str| health[name].as_str().map(|text| output::visible(text).into_owned());
        let warning = text("message").map(|message| format!("; {message}")).unwrap_or_default();
        format!("{}{warning}\n", text("status").unwrap_or_default())
    })?;
    Ok(Done::Ok)
}
