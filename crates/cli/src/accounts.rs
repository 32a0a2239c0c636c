//! `earmark accounts`: the accounts of a vault with their balances, or the vaults.

use clap::Args;
use earmark_client::http::Method;
use earmark_core::{AccountName, UnixMs};
use serde::{Deserialize, Serialize};

use crate::client::{self, Client, ClientArgs};
use crate::credit::{Balance, grouped};
use crate::failure::{Done, Failure};
use crate::output::{self, fitted};
use crate::vault::{Parameter, VaultArgs};

pub(crate) const HELP: &str = "\
Amounts are in minor units of the asset. An account without credit has no amounts.

Examples:
  earmark accounts
  earmark accounts --vault eu --prefix team: --count 20
  earmark accounts --vaults
  earmark accounts --json | jq -r '.accounts[] | select(.status == \"frozen\") | .account'";

/// Accounts per page: the server's largest page.
const PAGE_MAX: usize = earmark_admission::PAGE_MAX;

#[derive(Args, Debug)]
pub(crate) struct AccountsArgs {
    #[command(flatten)]
    vault: VaultArgs,
    /// Only accounts whose name begins like this, such as team:
    #[arg(long, value_name = "TEXT")]
    prefix: Option<AccountName>,
    /// List the vaults instead
    #[arg(long, conflicts_with_all = ["vault", "prefix"])]
    vaults: bool,
    /// Accounts or vaults to show [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Debug, Deserialize, Serialize)]
struct Account {
    account: String,
    status: String,
    balances: Vec<Balance>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    plan: Option<Plan>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Plan {
    asset: String,
    amount: String,
    period: String,
    utc_offset_minutes: i16,
    carry_over: serde_json::Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next_at_unix_ms: Option<u64>,
}

#[derive(Deserialize)]
struct AccountPage {
    accounts: Vec<Account>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct VaultPage {
    vaults: Vec<String>,
    next: Option<String>,
}

#[derive(Serialize)]
struct Accounts {
    accounts: Vec<Account>,
}

#[derive(Serialize)]
struct Vaults {
    vaults: Vec<String>,
}

pub(crate) fn run(args: &AccountsArgs) -> Result<Done, Failure> {
    if args.vaults {
        let path = |query: &[Parameter]| args.vault.vaults(query);
        let vaults = client::block_on(args.read(path, |page: VaultPage| (page.vaults, page.next)))?;
        output::show(args.client.json, &Vaults { vaults }, |found| {
            found.vaults.iter().map(|name| format!("{name}\n")).collect()
        })?;
        return Ok(Done::Ok);
    }
    let path = |query: &[Parameter]| args.vault.path("accounts", query);
    let accounts = client::block_on(args.read(path, |page: AccountPage| (page.accounts, page.next)))?;
    output::show(args.client.json, &Accounts { accounts }, |found| text(&found.accounts))?;
    Ok(Done::Ok)
}

impl AccountsArgs {
    /// The list, page by page.
    async fn read<P: for<'a> Deserialize<'a>, T>(
        &self,
        path: impl Fn(&[Parameter]) -> String,
        open: impl Fn(P) -> (Vec<T>, Option<String>),
    ) -> Result<Vec<T>, Failure> {
        let client = Client::new(&self.client.url())?;
        let count = self.count.map_or(usize::MAX, |count| count as usize);
        let (mut all, mut after) = (Vec::new(), None::<String>);
        loop {
            let page_size = PAGE_MAX.min(count - all.len());
            let path = path(&[
                ("page_size", Some(page_size.to_string())),
                ("prefix", self.prefix.as_ref().map(ToString::to_string)),
                ("after", after),
            ]);
            let (page, next) = open(client.call(Method::GET, &path, None).await?);
            all.extend(page);
            match next {
                Some(next) if all.len() < count => after = Some(next),
                Some(_) | None => return Ok(all),
            }
        }
    }
}

impl Plan {
    /// The amount, the period and the next issue.
    fn text(&self) -> String {
        let terms = format!("{} a {}", grouped(&self.amount), self.period);
        self.next_at_unix_ms.map_or_else(
            || terms.clone(),
            |next| format!("{terms}, next {}", earmark_admission::utc(UnixMs::new(next))),
        )
    }
}

/// A table with a row for each balance.
fn text(accounts: &[Account]) -> String {
    if accounts.is_empty() {
        return "no accounts\n".to_owned();
    }
    let mut rows = vec![["ACCOUNT", "STATUS", "ASSET", "AVAILABLE", "HELD", "PLAN"].map(str::to_owned)];
    for account in accounts {
        let row = |asset: &str, available: String, held: String| {
            let plan = account.plan.as_ref().filter(|plan| plan.asset == asset);
            let plan = plan.map_or_else(|| "-".to_owned(), Plan::text);
            [account.account.clone(), account.status.clone(), asset.to_owned(), available, held, plan]
        };
        if account.balances.is_empty() {
            rows.push(row("-", "-".into(), "-".into()));
        }
        let of = |balance: &Balance| row(&balance.asset, grouped(&balance.available), grouped(&balance.held));
        rows.extend(account.balances.iter().map(of));
    }
    fitted(&rows, output::width())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_has_a_row_for_each_balance() {
        let balance = |asset: &str, available: &str| Balance {
            asset: asset.into(),
            available: available.into(),
            held: "0".into(),
            pending: "0".into(),
        };
        let account =
            |account: &str, balances| Account { account: account.into(), status: "open".into(), balances, plan: None };
        assert_eq!(
            text(&[account("acme", vec![balance("eur", "-5"), balance("usd", "12000")]), account("bob", vec![])]),
            "ACCOUNT  STATUS  ASSET  AVAILABLE  HELD  PLAN\n\
             acme     open    eur    -5         0     -\n\
             acme     open    usd    12,000     0     -\n\
             bob      open    -      -          -     -\n"
        );
        assert_eq!(text(&[]), "no accounts\n");
    }
}
