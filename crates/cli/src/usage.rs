//! `earmark usage`: limits with their usage, by key or the fullest first.

use clap::{Args, ValueEnum};
use earmark_client::http::{Method, encoded};
use earmark_core::{LimitKey, NamespaceName};
use serde::{Deserialize, Serialize};

use crate::client::{self, Client, ClientArgs};
use crate::failure::{Done, Failure};
use crate::output::{self, Colour, fitted, thousands};
use crate::watch::{Listing, WatchArgs};

pub(crate) const HELP: &str = "\
Examples:
  earmark usage
  earmark usage --sort fullness --count 10
  earmark usage --prefix gpt-4o: --sort debt
  earmark usage --sort fullness --watch 5
  earmark usage --json | jq -r '.usage[] | select(.available == 0) | .key'";

/// Limits that a sorted list shows by default: a screen.
const COUNT_DEFAULT: u32 = 20;
/// Characters of the bar that shows a fullness.
const BAR_WIDTH: usize = 10;
/// The percentage from which a limit is shown as nearly full.
const NEARLY_FULL_PERCENT: u128 = 80;
/// Limits that a sorted list shows at most: the server's largest page.
const COUNT_MAX: i64 = 1_000;

#[derive(Args, Debug)]
pub(crate) struct UsageArgs {
    /// Only limits whose key begins like this, such as gpt-4o:
    #[arg(long, value_name = "TEXT")]
    prefix: Option<LimitKey>,
    /// Order of the list. fullness: the largest reserved share of the capacity first; debt: the largest debt first
    #[arg(long, value_enum, default_value_t = Sort::Key)]
    sort: Sort,
    /// Limits to show, 1 to 1000 [default: all by key, else 20]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=COUNT_MAX))]
    count: Option<u32>,
    #[command(flatten)]
    watch: WatchArgs,
    /// Namespace of the limits; an admin of `default` may name any [default: that of the key]
    #[arg(long)]
    namespace: Option<NamespaceName>,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sort {
    Key,
    Fullness,
    Debt,
}

impl Sort {
    fn name(self) -> &'static str {
        match self {
            Sort::Key => "key",
            Sort::Fullness => "fullness",
            Sort::Debt => "debt",
        }
    }
}

#[derive(Debug, Deserialize, Serialize)]
struct LimitUsage {
    key: String,
    kind: String,
    capacity: u64,
    reserved: u64,
    available: u64,
    debt: u128,
    status: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    paused_until_unix_ms: Option<u64>,
}

#[derive(Deserialize)]
struct Page {
    usage: Vec<LimitUsage>,
    next: Option<String>,
}

#[derive(Serialize)]
struct Document {
    usage: Vec<LimitUsage>,
}

pub(crate) fn run(args: &UsageArgs) -> Result<Done, Failure> {
    let read = || Ok(Document { usage: client::block_on(args.read())? });
    let list = |document: &Document| {
        let header = std::iter::once(Some(Colour::Bold));
        Listing {
            text: text(&document.usage, output::width()),
            colours: header.chain(document.usage.iter().map(colour)).collect(),
        }
    };
    args.watch.run(&args.client, read, list)
}

impl UsageArgs {
    /// The limits, page by page.
    async fn read(&self) -> Result<Vec<LimitUsage>, Failure> {
        let client = Client::new(&self.client.url())?;
        let count = self.count.or((self.sort != Sort::Key).then_some(COUNT_DEFAULT));
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let page: Page = client.call(Method::GET, &self.path(count, after.as_deref()), None).await?;
            all.extend(page.usage);
            match page.next {
                Some(next) if count.is_none() => after = Some(next),
                Some(_) | None => return Ok(all),
            }
        }
    }

    fn path(&self, count: Option<u32>, after: Option<&str>) -> String {
        let prefix = self.prefix.as_ref().map(LimitKey::as_str);
        let namespace = self.namespace.as_ref().map(NamespaceName::as_str);
        let named = [("prefix", prefix), ("namespace", namespace), ("after", after)].into_iter();
        let named = named.filter_map(|(name, value)| Some(format!("&{name}={}", encoded(value?))));
        let count = count.map(|count| format!("&page_size={count}"));
        named.chain(count).fold(format!("/v1/usage?sort={}", self.sort.name()), |path, part| path + &part)
    }
}

/// The reserved share of the capacity in percent, rounded down, so that only a full limit has 100.
fn percent(limit: &LimitUsage) -> Option<u128> {
    u128::from(limit.reserved).saturating_mul(100).checked_div(limit.capacity.into())
}

/// The reserved share of the capacity. On a terminal it begins with a bar.
fn full(limit: &LimitUsage, has_bar: bool) -> String {
    let Some(percent) = percent(limit) else { return "-".to_owned() };
    if !has_bar {
        return format!("{percent}%");
    }
    let filled = usize::try_from(percent).map_or(BAR_WIDTH, |percent| (percent * BAR_WIDTH).div_ceil(100));
    let filled = filled.min(BAR_WIDTH);
    format!("{}{} {percent:>3}%", "█".repeat(filled), "░".repeat(BAR_WIDTH - filled))
}

/// The colour of a limit: red if it is full, yellow if it is nearly full or paused.
fn colour(limit: &LimitUsage) -> Option<Colour> {
    match percent(limit) {
        Some(100..) | None => Some(Colour::Red),
        Some(NEARLY_FULL_PERCENT..) => Some(Colour::Yellow),
        Some(_) => limit.paused_until_unix_ms.map(|_| Colour::Yellow),
    }
}

/// A table of limits with their usage.
fn text(usage: &[LimitUsage], width: Option<usize>) -> String {
    if usage.is_empty() {
        return "no limits\n".to_owned();
    }
    let header = ["KEY", "KIND", "FULL", "RESERVED", "CAPACITY", "DEBT", "STATUS"].map(str::to_owned);
    let rows = usage.iter().map(|limit| {
        let [reserved, capacity] = [limit.reserved, limit.capacity].map(|amount| thousands(amount.into()));
        let status = match limit.paused_until_unix_ms {
            Some(until) => format!("{}, paused until {}", limit.status, output::date(until)),
            None => limit.status.clone(),
        };
        let full = full(limit, width.is_some());
        [limit.key.clone(), limit.kind.clone(), full, reserved, capacity, thousands(limit.debt), status]
    });
    fitted(&std::iter::once(header).chain(rows).collect::<Vec<_>>(), width)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Wrapper {
        #[command(flatten)]
        usage: UsageArgs,
    }

    #[test]
    fn a_list_is_a_table_with_the_share_that_is_reserved() {
        let limit = |key: &str, reserved, capacity, debt| LimitUsage {
            key: key.into(),
            kind: "rolling".into(),
            capacity,
            reserved,
            available: capacity.saturating_sub(reserved),
            debt,
            status: "active".into(),
            paused_until_unix_ms: None,
        };
        let paused = LimitUsage { paused_until_unix_ms: Some(0), ..limit("a", 0, 1, 0) };
        assert_eq!((colour(&paused), colour(&limit("a", 1, 9, 0))), (Some(Colour::Yellow), None));
        assert_eq!(
            (colour(&limit("a", 8, 10, 0)), colour(&limit("a", 1, 1, 0))),
            (Some(Colour::Yellow), Some(Colour::Red))
        );
        assert_eq!(full(&limit("a", 31, 100, 0), true), "████░░░░░░  31%");
        assert_eq!(full(&limit("a", 11, 10, 0), true), "██████████ 110%");
        assert!(text(&[paused], None).ends_with(&format!("active, paused until {}\n", output::date(0))));
        assert_eq!(
            text(&[limit("a:rpm", 59_999, 60_000, 12), limit("b", u64::MAX, u64::MAX, 0), limit("c", 0, 0, 0)], None),
            "KEY    KIND     FULL  RESERVED                    CAPACITY                    DEBT  STATUS\n\
             a:rpm  rolling  99%   59,999                      60,000                      12    active\n\
             b      rolling  100%  18,446,744,073,709,551,615  18,446,744,073,709,551,615  0     active\n\
             c      rolling  -     0                           0                           0     active\n"
        );
        assert_eq!(text(&[], None), "no limits\n");
    }

    #[test]
    fn the_query_has_what_was_asked_for() {
        let path = |line: &str, after| {
            let words = std::iter::once("usage").chain(line.split_whitespace());
            let args = Wrapper::try_parse_from(words).unwrap().usage;
            args.path(args.count, after)
        };
        assert_eq!(path("", None), "/v1/usage?sort=key");
        assert_eq!(path("--watch --count 3", None), "/v1/usage?sort=key&page_size=3");
        assert_eq!(path("--watch 5", None), "/v1/usage?sort=key");
        assert_eq!(
            path("--prefix a: --namespace team", Some("a%b")),
            "/v1/usage?sort=key&prefix=a:&namespace=team&after=a%25b"
        );
        assert_eq!(path("--sort debt --count 3", None), "/v1/usage?sort=debt&page_size=3");
    }
}
