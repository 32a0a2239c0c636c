//! `earmark entries`: the history of an account.

use clap::{Args, ValueEnum};
use earmark_client::http::Method;
use earmark_core::AccountName;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::client::{self, Client, ClientArgs};
use crate::credit::grouped;
use crate::failure::{Done, Failure};
use crate::moment;
use crate::output;
use crate::vault::VaultArgs;

pub(crate) const HELP: &str = "\
Every entry changes the available or the held credit of the account. Amounts are in minor units of the asset.

Examples:
  earmark entries --account acme
  earmark entries --account acme --since 2026-01-01 --until 2026-02-01 --order asc
  earmark entries --account acme --since 1h --count 1000
  earmark entries --account acme --json | jq -r '.entries[] | select(.kind == \"settle\") | .paid'";

/// Entries that are shown by default: some screens.
const COUNT_DEFAULT: u32 = 100;
const COUNT_MAX: i64 = 1_000_000;

#[derive(Args, Debug)]
pub(crate) struct EntriesArgs {
    #[command(flatten)]
    vault: VaultArgs,
    /// Account
    #[arg(long)]
    account: AccountName,
    /// Only entries at this time or later: a date such as 2026-01-31, or a duration back from now such as 2h
    #[arg(long, value_name = "TIME", value_parser = moment::parse)]
    since: Option<u64>,
    /// Only entries before this time
    #[arg(long, value_name = "TIME", value_parser = moment::parse)]
    until: Option<u64>,
    /// Order of the list
    #[arg(long, value_enum, default_value_t = Order::Desc)]
    order: Order,
    /// Entries to show
    #[arg(long, value_name = "N", default_value_t = COUNT_DEFAULT)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=COUNT_MAX))]
    count: u32,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Order {
    /// Oldest first
    Asc,
    /// Newest first
    Desc,
}

#[derive(Debug, Deserialize, Serialize)]
struct Entry {
    number: u64,
    committed_at_unix_ms: u64,
    kind: String,
    changes: Vec<Change>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Change {
    asset: String,
    amount: String,
    held: String,
    /// The operations behind it, such as `issued`.
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
struct Page {
    entries: Vec<Entry>,
    next: Option<u64>,
}

#[derive(Serialize)]
struct Document {
    entries: Vec<Entry>,
}

pub(crate) fn run(args: &EntriesArgs) -> Result<Done, Failure> {
    let entries = client::block_on(args.read())?;
    output::show(args.client.json, &Document { entries }, |document| text(&document.entries))?;
    Ok(Done::Ok)
}

impl EntriesArgs {
    /// The entries, page by page.
    async fn read(&self) -> Result<Vec<Entry>, Failure> {
        let client = Client::new(&self.client.url())?;
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let missing = (self.count as usize).saturating_sub(all.len());
            let page: Page = client.call(Method::GET, &self.path(missing, after), None).await?;
            all.extend(page.entries);
            match page.next {
                Some(next) if all.len() < self.count as usize => after = Some(next),
                Some(_) | None => return Ok(all),
            }
        }
    }

    fn path(&self, missing: usize, after: Option<u64>) -> String {
        let order = if self.order == Order::Asc { "asc" } else { "desc" };
        let page_size = missing.min(earmark_admission::PAGE_MAX);
        let number = |value: Option<u64>| value.map(|value| value.to_string());
        let query = [
            ("order", Some(order.to_owned())),
            ("page_size", Some(page_size.to_string())),
            ("since", number(self.since)),
            ("until", number(self.until)),
            ("after", number(after)),
        ];
        self.vault.account(self.account.as_str(), "entries", &query)
    }
}

/// A table with a row for each change.
fn text(entries: &[Entry]) -> String {
    if entries.is_empty() {
        return "no entries\n".to_owned();
    }
    let mut rows = vec![["NUMBER", "TIME", "KIND", "ASSET", "AMOUNT", "HELD", "ABOUT"].map(str::to_owned)];
    for entry in entries {
        let time = earmark_admission::utc(earmark_core::UnixMs::new(entry.committed_at_unix_ms));
        for change in &entry.changes {
            let [amount, held] = [&change.amount, &change.held].map(|amount| grouped(amount));
            let (number, about) = (entry.number.to_string(), about(entry));
            rows.push([number, time.clone(), entry.kind.clone(), change.asset.clone(), amount, held, about]);
        }
    }
    output::table(&rows)
}

/// The memos of a transaction, or the limit, the lease and the labels of a hold or settlement.
fn about(entry: &Entry) -> String {
    let text = |name: &str| entry.rest.get(name).and_then(Value::as_str).unwrap_or_default();
    match entry.rest.get("memos").and_then(Value::as_array) {
        Some(memos) => memos.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("; "),
        None => {
            let labels = entry.rest.get("labels").and_then(Value::as_object).into_iter().flatten();
            let labels = labels.map(|(name, value)| format!(" {name}={}", value.as_str().unwrap_or_default()));
            let about = format!("{} {}{}", text("limit"), text("lease_id"), labels.collect::<String>());
            about.trim().to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Wrapper {
        #[command(flatten)]
        entries: EntriesArgs,
    }

    #[test]
    fn the_query_has_the_period_and_the_order() {
        let path = |line: &str, after| {
            let words = std::iter::once("entries").chain(line.split_whitespace());
            Wrapper::try_parse_from(words).unwrap().entries.path(5_000, after)
        };
        assert_eq!(path("--account a/b", None), "/v1/vaults/main/accounts/a%2Fb/entries?order=desc&page_size=1000");
        assert_eq!(
            path("--account a --vault eu --namespace a+b --order asc --since 1970-01-02 --until 1970-01-03", Some(7)),
            "/v1/vaults/eu/accounts/a/entries?namespace=a%2Bb&order=asc&page_size=1000&since=86400000&until=172800000&after=7"
        );
    }

    #[test]
    fn an_entry_has_a_row_for_each_change_and_says_what_it_is_about() {
        let entry = |value: Value| serde_json::from_value::<Entry>(value).unwrap();
        let change = json!([{"asset": "usd", "amount": "-1500", "held": "1500"}]);
        let hold = entry(json!({
            "number": 7, "committed_at_unix_ms": 0, "kind": "hold", "changes": change, "limit": "acme:usd",
            "lease_id": "L", "hold": "1500", "actor": null,
        }));
        let settle = entry(json!({
            "number": 9, "committed_at_unix_ms": 0, "kind": "settle", "changes": change, "limit": "acme:usd",
            "lease_id": "L", "labels": {"model": "gpt-4o", "user": "u1"},
        }));
        let write = entry(json!({
            "number": 8, "committed_at_unix_ms": 0, "kind": "transaction", "changes": change, "memos": ["a", "b"],
        }));
        assert_eq!(
            text(&[hold, write, settle]),
            "NUMBER  TIME                  KIND         ASSET  AMOUNT  HELD   ABOUT\n\
             7       1970-01-01T00:00:00Z  hold         usd    -1,500  1,500  acme:usd L\n\
             8       1970-01-01T00:00:00Z  transaction  usd    -1,500  1,500  a; b\n\
             9       1970-01-01T00:00:00Z  settle       usd    -1,500  1,500  acme:usd L model=gpt-4o user=u1\n"
        );
        assert_eq!(text(&[]), "no entries\n");
    }

    #[test]
    fn json_has_every_field_of_the_answer() {
        let answer = json!({
            "number": 8, "committed_at_unix_ms": 0, "kind": "transaction", "memos": [], "tx_id": "T",
            "changes": [{"asset": "usd", "amount": "3", "held": "0", "issued": "5", "transferred_out": "2"}],
        });
        let entry = serde_json::from_value::<Entry>(answer.clone()).unwrap();
        assert_eq!(serde_json::to_value(&entry).unwrap(), answer);
    }
}
