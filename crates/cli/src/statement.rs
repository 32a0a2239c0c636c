//! `earmark statement`: the sums of an account in a period, and its spending by label.

use clap::{Args, ValueEnum};
use earmark_admission::STATEMENT_GROUPS_MAX;
use earmark_client::http::{Method, encoded};
use earmark_core::{AccountName, UnixMs};
use serde_json::Value;

use crate::client::{self, Client, ClientArgs};
use crate::credit::grouped;
use crate::failure::{Done, Failure};
use crate::moment;
use crate::output;
use crate::vault::VaultArgs;

pub(crate) const HELP: &str = "\
The balances include held credit. Opening, plus issued, received and transferred in, minus spent, transferred out,
expired and retired, is closing. The period goes by the time of the entries, and its end does not belong to it. Amounts
are in minor units of the asset. Completes set the labels; a gateway sets model, provider, key and user.

Examples:
  earmark statement acme --since 2026-11-01 --until 2026-12-01
  earmark statement acme --since 2026-11-01 --until 2026-12-01 --group-by model
  earmark statement acme --vault eu --since 30d --group-by user --format csv > november.csv
  earmark statement acme --group-by model --json | jq -r '.assets[].groups[] | [.value, .spent] | @tsv'";

#[derive(Args, Debug)]
pub(crate) struct StatementArgs {
    /// Account
    #[arg(value_name = "ACCOUNT", required_unless_present = "account")]
    name: Option<AccountName>,
    /// Account, as the other commands about credit name it
    #[arg(long, conflicts_with = "name")]
    account: Option<AccountName>,
    #[command(flatten)]
    vault: VaultArgs,
    /// Start of the period: a date such as 2026-01-31, or a duration back from now such as 30d
    #[arg(long, value_name = "TIME", value_parser = moment::parse)]
    since: Option<u64>,
    /// End of the period, which does not belong to it
    #[arg(long, value_name = "TIME", value_parser = moment::parse)]
    until: Option<u64>,
    /// Label whose values group the spending, such as model
    #[arg(long, value_name = "LABEL")]
    group_by: Option<String>,
    /// Format of the output
    #[arg(long, value_enum, default_value_t = Format::Table, conflicts_with = "json")]
    format: Format,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Tables for people
    Table,
    /// One object, like --json
    Json,
    /// Rows with commas, for spreadsheets
    Csv,
}

/// The lines of a statement: the field of the answer, and the sign with which it counts.
const LINES: [(&str, &str); 9] = [
    ("opening", ""),
    ("issued", "+"),
    ("received", "+"),
    ("transferred_in", "+"),
    ("spent", "-"),
    ("transferred_out", "-"),
    ("expired", "-"),
    ("retired", "-"),
    ("closing", ""),
];

pub(crate) fn run(args: &StatementArgs) -> Result<Done, Failure> {
    match args.format {
        Format::Csv => {
            client::block_on(args.csv())?;
        }
        Format::Table | Format::Json => {
            let answer = client::block_on(args.answer())?;
            output::show(args.client.json || args.format == Format::Json, &answer, text)?;
        }
    }
    Ok(Done::Ok)
}

impl StatementArgs {
    fn path(&self) -> String {
        // The command line has one of them.
        let account = self.name.as_ref().or(self.account.as_ref()).map_or("", AccountName::as_str);
        let format = if self.format == Format::Csv { "csv" } else { "json" };
        let number = |value: Option<u64>| value.map(|value| value.to_string());
        let query = [
            ("format", Some(format.to_owned())),
            ("since", number(self.since)),
            ("until", number(self.until)),
            ("group_by", self.group_by.clone()),
            // Each page reads the whole history, so few large pages are cheapest.
            ("page_size", self.group_by.as_ref().map(|_| STATEMENT_GROUPS_MAX.to_string())),
        ];
        self.vault.account(account, "statement", &query)
    }

    /// The first page, with the groups of all pages.
    async fn answer(&self) -> Result<Value, Failure> {
        let client = Client::new(&self.client.url())?;
        let mut answer: Value = client.call(Method::GET, &self.path(), None).await?;
        while let Some(after) = answer["next"].as_str() {
            let path = format!("{}&after={}", self.path(), encoded(after));
            let page: Value = client.call(Method::GET, &path, None).await?;
            add_page(&mut answer, page);
        }
        Ok(answer)
    }

    /// The rows of all pages, on standard output while they arrive.
    async fn csv(&self) -> Result<(), Failure> {
        let client = Client::new(&self.client.url())?;
        let first = self.path();
        let mut path = first.clone();
        loop {
            let mut bytes = Vec::new();
            let take = |piece: &[u8]| {
                bytes.extend_from_slice(piece);
                Ok(())
            };
            let next = client.download(&path, take).await?;
            output::print_data(&String::from_utf8_lossy(&bytes))?;
            let Some(next) = next else { return Ok(()) };
            path = first.split('?').next().unwrap_or_default().to_owned() + &next;
        }
    }
}

/// Adds the groups of the next page. The sums are those of the first one.
fn add_page(answer: &mut Value, mut page: Value) {
    for asset in answer["assets"].as_array_mut().into_iter().flatten() {
        let mut others = page["assets"].as_array_mut().into_iter().flatten();
        let same = others.find(|other| other["asset"] == asset["asset"]);
        let more = same.and_then(|same| same["groups"].as_array_mut()).map(std::mem::take);
        if let Some(groups) = asset["groups"].as_array_mut() {
            groups.extend(more.unwrap_or_default());
        }
    }
    answer["next"] = page["next"].take();
}

/// A table for each asset, and one of its groups.
fn text(answer: &Value) -> String {
    let time = |value: &Value| value.as_u64().map(|ms| earmark_admission::utc(UnixMs::new(ms)));
    let text_of = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (since, until) = (time(&answer["since"]), time(&answer["until"]));
    let since = since.map_or("the first entry".to_owned(), |since| since);
    let until = until.map_or("now".to_owned(), |until| until);
    let mut text = format!("{} from {since} to {until}\n", output::visible(&text_of(&answer["account"])));
    let assets = answer["assets"].as_array().map(Vec::as_slice).unwrap_or_default();
    if assets.is_empty() {
        text += "no entries\n";
    }
    for asset in assets {
        let name = text_of(&asset["asset"]);
        let line = |(field, sign): (&str, &str)| {
            let amount = grouped(&text_of(&asset[field]));
            let is_shown = amount != "0" || sign.is_empty();
            is_shown.then(|| [field.replace('_', " "), format!("{sign}{amount}"), name.clone()])
        };
        text += "\n";
        text += &output::table(&LINES.into_iter().filter_map(line).collect::<Vec<_>>());
        let groups = asset["groups"].as_array().map(Vec::as_slice).unwrap_or_default();
        if groups.is_empty() {
            continue;
        }
        let label = text_of(&answer["group_by"]).to_uppercase();
        let mut rows = vec![[label, "SPENT".to_owned(), "SETTLEMENTS".to_owned()]];
        rows.extend(groups.iter().map(|group| {
            let value = group["value"].as_str().unwrap_or("(none)").to_owned();
            let count = output::thousands(group["settlements"].as_u64().unwrap_or(0).into());
            [value, grouped(&text_of(&group["spent"])), count]
        }));
        text += "\n";
        text += &output::table(&rows);
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Wrapper {
        #[command(flatten)]
        statement: StatementArgs,
    }

    fn parsed(line: &str) -> Result<StatementArgs, clap::Error> {
        let words = std::iter::once("statement").chain(line.split_whitespace());
        Wrapper::try_parse_from(words).map(|wrapper| wrapper.statement)
    }

    #[test]
    fn the_query_has_the_period_the_label_and_the_format() {
        let path = |line: &str| parsed(line).unwrap().path();
        assert_eq!(path("a/b"), "/v1/vaults/main/accounts/a%2Fb/statement?format=json");
        assert_eq!(
            path("acme --vault eu --since 1970-01-02 --until 1970-01-03 --group-by model --format csv"),
            "/v1/vaults/eu/accounts/acme/statement?format=csv&since=86400000&until=172800000&group_by=model&page_size=50000"
        );
        assert_eq!(path("--account a/b"), path("a/b"));
        assert!(parsed("acme --account acme").is_err());
        assert!(parsed("acme --format xml").is_err());
        assert!(parsed("acme --format csv --json").is_err());
        assert!(parsed("").is_err());
    }

    #[test]
    fn the_groups_of_later_pages_are_added_to_those_of_the_first() {
        let page = |next: Option<&str>, usd: &[&str], eur: &[&str]| {
            let asset = |name: &str, groups: &[&str]| json!({"asset": name, "closing": "5", "groups": groups});
            json!({"assets": [asset("eur", eur), asset("usd", usd)], "next": next})
        };
        let mut answer = page(Some("7-61"), &["a"], &["a"]);
        add_page(&mut answer, page(Some("7-62"), &["b"], &[]));
        add_page(&mut answer, page(None, &[], &["c"]));
        assert_eq!(answer, page(None, &["a", "b"], &["a", "c"]));
    }

    #[test]
    fn a_statement_is_a_list_of_lines_and_a_table_of_groups() {
        let asset = json!({
            "asset": "usd", "opening": "1500", "issued": "0", "received": "0", "transferred_in": "20", "spent": "1015",
            "transferred_out": "0", "expired": "0", "retired": "0", "closing": "505", "settlements": 3,
            "groups": [
                {"value": null, "spent": "15", "settlements": 1},
                {"value": "gpt-4o", "spent": "1000", "settlements": 2},
            ],
        });
        let answer = json!({
            "account": "acme", "since": 0, "until": null, "group_by": "model", "assets": [asset],
        });
        assert_eq!(
            text(&answer),
            "acme from 1970-01-01T00:00:00Z to now\n\
             \n\
             opening         1,500   usd\n\
             transferred in  +20     usd\n\
             spent           -1,015  usd\n\
             closing         505     usd\n\
             \n\
             MODEL   SPENT  SETTLEMENTS\n\
             (none)  15     1\n\
             gpt-4o  1,000  2\n"
        );
        let none = json!({"account": "acme", "since": null, "until": null, "group_by": null, "assets": []});
        assert_eq!(text(&none), "acme from the first entry to now\nno entries\n");
    }
}
