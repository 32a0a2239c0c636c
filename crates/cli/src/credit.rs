//! `earmark balance`, `earmark grants` and `earmark audit`.

use clap::Args;
use earmark_core::{AccountName, VaultName};
use serde::{Deserialize, Serialize};

use crate::changes::{self, ChangesArgs};
use crate::client::ClientArgs;
use crate::failure::{Done, Failure};
use crate::output;
use crate::proof::{self, ProofCommand};
use crate::request;
use crate::vault::VaultArgs;

pub(crate) const BALANCE_HELP: &str = "\
Amounts are in minor units of the asset, such as cents or millionths of a dollar. HELD is reserved by open leases.

Examples:
  earmark balance --vault main --account acme
  earmark balance --namespace team --account acme
  earmark balance --vault main --account acme --json | jq -r '.balances[].available'";

pub(crate) const GRANTS_HELP: &str = "\
Grants are spent from the lowest priority number to the highest, and within one priority from the earliest expiry to the
latest. Credit that was issued without a priority and an expiry is one grant of priority 128. EXPIRES is in UTC.

Examples:
  earmark grants --vault main --account acme
  earmark grants --account acme --json | jq '.grants[] | select(.expires_at_unix_ms)'";

pub(crate) const AUDIT_HELP: &str = "\
Adds up all accounts of the vault and compares the totals with the issued, retired and expired amounts and with the
history. The exit code is 1 if they differ. With --changes it lists the change log instead, newest first: transactions, limit changes
with the old and the new definition, and key changes, each with its actor. The change log needs role admin.

Examples:
  earmark audit --vault main
  earmark audit --changes
  earmark audit --changes --key openai:rpm --actor user:7
  earmark audit --changes --after 120-345.2 --json | jq '.entries[].actor'
  earmark audit --vault main --json | jq .balanced
  earmark audit export earmark.audit
  earmark audit keys --json > keys.json
  earmark audit verify earmark.audit --keys keys.json";

#[derive(Args, Debug)]
pub(crate) struct BalanceArgs {
    #[command(flatten)]
    vault: VaultArgs,
    /// Account to show
    #[arg(long)]
    account: AccountName,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct AuditArgs {
    #[command(subcommand)]
    proof: Option<ProofCommand>,
    #[command(flatten)]
    vault: VaultArgs,
    /// List the change log, newest first, instead of checking a vault
    #[arg(long, conflicts_with_all = ["vault", "namespace"])]
    changes: bool,
    #[command(flatten)]
    log: ChangesArgs,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Deserialize, Serialize)]
struct Balances {
    balances: Vec<Balance>,
}

#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Balance {
    pub(crate) asset: String,
    pub(crate) available: String,
    pub(crate) held: String,
    pub(crate) pending: String,
}

#[derive(Deserialize, Serialize)]
struct Grants {
    grants: Vec<Grant>,
}

#[derive(Deserialize, Serialize)]
struct Grant {
    asset: String,
    remaining: String,
    held: String,
    priority: u8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_at_unix_ms: Option<u64>,
}

#[derive(Deserialize, Serialize)]
struct Audit {
    balanced: bool,
    assets: Vec<Totals>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

#[derive(Deserialize, Serialize)]
struct Totals {
    asset: String,
    issued: String,
    retired: String,
    /// Absent while nothing has expired.
    #[serde(skip_serializing_if = "Option::is_none")]
    expired: Option<String>,
    live: String,
}

pub(crate) fn balance(args: &BalanceArgs) -> Result<Done, Failure> {
    let found: Balances = request::get(&args.client, &args.vault.account(args.account.as_str(), "balances", &[]))?;
    output::show(args.client.json, &found, |found| {
        if found.balances.is_empty() {
            return format!("{} has no credit\n", args.account);
        }
        let mut rows = vec![["ASSET", "AVAILABLE", "HELD"].map(str::to_owned)];
        rows.extend(
            found
                .balances
                .iter()
                .map(|balance| [balance.asset.clone(), grouped(&balance.available), grouped(&balance.held)]),
        );
        output::table(&rows)
    })?;
    Ok(Done::Ok)
}

pub(crate) fn grants(args: &BalanceArgs) -> Result<Done, Failure> {
    let found: Grants = request::get(&args.client, &args.vault.account(args.account.as_str(), "grants", &[]))?;
    output::show(args.client.json, &found, |found| {
        if found.grants.is_empty() {
            return format!("{} has no credit\n", args.account);
        }
        let mut rows = vec![["ASSET", "REMAINING", "HELD", "PRIORITY", "EXPIRES"].map(str::to_owned)];
        rows.extend(found.grants.iter().map(|grant| {
            let expires = grant.expires_at_unix_ms.map_or_else(|| "never".to_owned(), output::date);
            let (remaining, held) = (grouped(&grant.remaining), grouped(&grant.held));
            [grant.asset.clone(), remaining, held, grant.priority.to_string(), expires]
        }));
        output::table(&rows)
    })?;
    Ok(Done::Ok)
}

impl AuditArgs {
    pub(crate) fn is_json(&self) -> bool {
        self.proof.as_ref().map_or(self.client.json, ProofCommand::is_json)
    }
}

pub(crate) fn audit(args: &AuditArgs) -> Result<Done, Failure> {
    if let Some(command) = &args.proof {
        return proof::run(command);
    }
    if args.changes {
        return changes::show(&args.client, &args.log);
    }
    let audit: Audit = request::get(&args.client, &args.vault.path("audit", &[]))?;
    output::show(args.client.json, &audit, |audit| audit.text(&args.vault.vault))?;
    Ok(if audit.balanced { Done::Ok } else { Done::Failed })
}

impl Audit {
    fn text(&self, vault: &VaultName) -> String {
        let verdict = if self.balanced { "is balanced" } else { "is NOT balanced" };
        let mut text = format!("{vault} {verdict}\n");
        if let Some(message) = &self.message {
            text += &format!("{}\n", output::visible(message));
        }
        if !self.assets.is_empty() {
            let mut rows = vec![["ASSET", "ISSUED", "RETIRED", "EXPIRED", "LIVE"].map(str::to_owned)];
            rows.extend(self.assets.iter().map(|totals| {
                let Totals { issued, retired, expired, live, .. } = totals;
                let expired = expired.as_deref().unwrap_or("0");
                let [issued, retired, expired, live] = [issued.as_str(), retired, expired, live].map(grouped);
                [totals.asset.clone(), issued, retired, expired, live]
            }));
            text += &output::table(&rows);
        }
        text
    }
}

/// Formats an amount with thousands separators; returns other text unchanged.
pub(crate) fn grouped(amount: &str) -> String {
    match amount.parse::<i128>() {
        Ok(number) => {
            let sign = if number < 0 { "-" } else { "" };
            format!("{sign}{}", output::thousands(number.unsigned_abs()))
        }
        Err(_) => amount.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_grouped_whatever_their_sign() {
        for (amount, text) in [("0", "0"), ("-5000000", "-5,000,000"), ("1234", "1,234"), ("x", "x")] {
            assert_eq!(grouped(amount), text);
        }
    }

    #[test]
    fn an_audit_that_finds_something_says_so_first() {
        let audit = Audit { balanced: false, assets: vec![], message: Some("acme: 5 are missing".into()) };
        let vault = VaultName::new("main").unwrap();
        assert_eq!(audit.text(&vault), "main is NOT balanced\nacme: 5 are missing\n");
    }
}
