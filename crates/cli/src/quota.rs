//! `earmark quota`: show and set the quotas of a namespace.

use clap::{Args, Subcommand};
use earmark_client::http::{Method, encoded};
use earmark_core::{NamespaceName, QuotaKind};
use serde_json::{Map, Value, json};

use crate::client::ClientArgs;
use crate::failure::{Done, Failure};
use crate::output::{self, table};
use crate::quantity;
use crate::request;

pub(crate) const HELP: &str = "\
A quota bounds what one namespace may use of a table that all namespaces share. A namespace other than default gets a
tenth of each table unless an admin of default sets another quota. A quota below the current use refuses new records and
removes none.

Examples:
  earmark quota get team-a
  earmark quota set team-a --quota limits=5000 --quota leases=1m";

const GET_HELP: &str = "\
Examples:
  earmark quota get team-a
  earmark quota get team-a --json | jq .quotas.limits";

const SET_HELP: &str = "\
Quotas: limits, derived_limits, templates, vaults, accounts, clients, keys, leases, idempotency_keys,
journal_bytes_per_day, policy_bytes. Quotas that are not named stay as they are.

Examples:
  earmark quota set team-a --quota limits=5000
  earmark quota set team-a --quota vaults=100 --quota accounts=1m";

#[derive(Debug, Subcommand)]
pub(crate) enum QuotaCommand {
    /// Show the quotas of a namespace and their use
    #[command(after_help = GET_HELP)]
    Get(GetArgs),
    /// Set quotas of a namespace
    #[command(after_help = SET_HELP)]
    Set(SetArgs),
}

#[derive(Args, Debug)]
pub(crate) struct GetArgs {
    /// The namespace
    #[arg(value_name = "NAMESPACE")]
    namespace: NamespaceName,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Args, Debug)]
pub(crate) struct SetArgs {
    /// The namespace. It is created if it does not exist
    #[arg(value_name = "NAMESPACE")]
    namespace: NamespaceName,
    /// A quota and its value, such as limits=5000 or leases=1m. May be repeated
    #[arg(long = "quota", value_name = "NAME=COUNT", required = true, value_parser = quota)]
    quotas: Vec<(QuotaKind, u64)>,
    #[command(flatten)]
    client: ClientArgs,
}

fn quota(text: &str) -> Result<(QuotaKind, u64), String> {
    let (name, count) = text.split_once('=').ok_or_else(|| format!("found {text:?}, allowed is NAME=COUNT"))?;
    let names = || QuotaKind::ALL.map(QuotaKind::as_str).join(", ");
    let kind = QuotaKind::ALL.into_iter().find(|kind| kind.as_str() == name);
    let kind = kind.ok_or_else(|| format!("found {name:?}, allowed are {}", names()))?;
    Ok((kind, quantity::amount(count, 0)?))
}

impl QuotaCommand {
    pub(crate) fn client(&self) -> &ClientArgs {
        match self {
            QuotaCommand::Get(args) => &args.client,
            QuotaCommand::Set(args) => &args.client,
        }
    }
}

pub(crate) fn run(command: &QuotaCommand) -> Result<Done, Failure> {
    let args = command.client();
    let path = |namespace: &NamespaceName| format!("/v1/admin/quotas/{}", encoded(namespace.as_str()));
    match command {
        QuotaCommand::Get(get) => {
            let answer: Value = request::get(args, &path(&get.namespace))?;
            output::show(args.json, &answer, shown)
        }
        QuotaCommand::Set(set) => {
            let body = body(&set.quotas)?;
            let answer: Value = request::send(args, Method::PUT, &path(&set.namespace), &body)?;
            output::show(args.json, &answer, |_| format!("the quotas of {} are set\n", set.namespace))
        }
    }?;
    Ok(Done::Ok)
}

fn body(quotas: &[(QuotaKind, u64)]) -> Result<Map<String, Value>, Failure> {
    let mut body = Map::new();
    for (kind, count) in quotas {
        if body.insert(kind.to_string(), json!(count)).is_some() {
            return Err(Failure::Usage(format!("--quota {kind} is given twice; give each quota once")));
        }
    }
    Ok(body)
}

fn shown(answer: &Value) -> String {
    let number = |value: &Value| output::thousands(value.as_u64().unwrap_or(0).into());
    let mut rows = vec![["QUOTA", "USED", "OF"].map(str::to_owned)];
    // A quota that nothing enforces is not in the answer.
    rows.extend(QuotaKind::ALL.iter().filter_map(|kind| {
        let usage = answer["quotas"].get(kind.as_str())?;
        Some([kind.to_string(), number(&usage["used"]), number(&usage["quota"])])
    }));
    table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_a_known_name_and_a_count() {
        assert_eq!(quota("limits=5k"), Ok((QuotaKind::Limits, 5_000)));
        assert_eq!(quota("leases=0"), Ok((QuotaKind::Leases, 0)));
        assert!(quota("leases").unwrap_err().contains("NAME=COUNT"));
        assert!(quota("vault=1").unwrap_err().contains("vaults"));
        assert!(quota("vaults=many").is_err());
    }

    /// The last one was set, without a word about the others.
    #[test]
    fn a_quota_is_given_once() {
        assert_eq!(body(&[(QuotaKind::Limits, 1), (QuotaKind::Leases, 1)]).unwrap().len(), 2);
        let twice = body(&[(QuotaKind::Limits, 1), (QuotaKind::Limits, 2)]).unwrap_err();
        assert_eq!(twice.to_string(), "--quota limits is given twice; give each quota once");
    }
}
