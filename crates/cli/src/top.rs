//! `earmark top`: the limits of which the most was taken, denied or owed.

use clap::{Args, ValueEnum};
use earmark_client::http::encoded;
use earmark_core::NamespaceName;
use serde::{Deserialize, Serialize};

use crate::client::ClientArgs;
use crate::failure::{Done, Failure};
use crate::output::{self, Colour, fitted, thousands};
use crate::request;
use crate::watch::{Listing, WatchArgs};

pub(crate) const HELP: &str = "\
Counts the requests that this node served. An amount is never too low, and too high by at most its error.

Examples:
  earmark top
  earmark top --of denied --within 1h
  earmark top --prefix gpt-4o: --watch 5
  earmark top --of debt --json | jq -r '.top[0].key'";

#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// Measure to count. taken: amounts reserved; denied: denials; debt: usage beyond the reservation that became debt
    #[arg(long, value_enum, default_value_t = Of::Taken)]
    of: Of,
    /// The window until now
    #[arg(long, value_enum, default_value_t = Within::FiveMinutes)]
    within: Within,
    /// Only limits whose key begins like this, such as gpt-4o:
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,
    #[command(flatten)]
    watch: WatchArgs,
    /// Namespace of the leases; an admin of `default` may name any [default: that of the key]
    #[arg(long)]
    namespace: Option<NamespaceName>,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Of {
    Taken,
    Denied,
    Debt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Within {
    #[value(name = "1m")]
    Minute,
    #[value(name = "5m")]
    FiveMinutes,
    #[value(name = "1h")]
    Hour,
}

#[derive(Deserialize, Serialize)]
struct Page {
    top: Vec<Limit>,
}

#[derive(Deserialize, Serialize)]
struct Limit {
    key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    amount: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<u64>,
}

pub(crate) fn run(args: &TopArgs) -> Result<Done, Failure> {
    let read = || request::get::<Page>(&args.client, &args.path());
    let list = |page: &Page| Listing { text: text(args.of, &page.top), colours: vec![Some(Colour::Bold)] };
    args.watch.run(&args.client, read, list)
}

impl TopArgs {
    fn path(&self) -> String {
        let of = match self.of {
            Of::Taken => "taken",
            Of::Denied => "denied",
            Of::Debt => "debt",
        };
        let within = match self.within {
            Within::Minute => "1m",
            Within::FiveMinutes => "5m",
            Within::Hour => "1h",
        };
        let named =
            [("prefix", self.prefix.as_deref()), ("namespace", self.namespace.as_ref().map(NamespaceName::as_str))];
        let named = named.into_iter().filter_map(|(name, value)| Some(format!("&{name}={}", encoded(value?))));
        named.fold(format!("/v1/top?of={of}&within={within}"), |path, part| path + &part)
    }
}

/// A table of the heaviest limits.
fn text(of: Of, top: &[Limit]) -> String {
    let heading = match of {
        Of::Taken => "TAKEN",
        Of::Denied => "DENIALS",
        Of::Debt => "DEBT",
    };
    if top.is_empty() {
        return "nothing counted\n".to_owned();
    }
    let header = ["KEY", heading, "ERROR"].map(str::to_owned);
    let number = |amount: Option<u64>| amount.map_or_else(|| "-".to_owned(), |amount| thousands(amount.into()));
    let rows = top.iter().map(|limit| [limit.key.clone(), number(limit.amount), number(limit.error)]);
    fitted(&std::iter::once(header).chain(rows).collect::<Vec<_>>(), output::width())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Wrapper {
        #[command(flatten)]
        top: TopArgs,
    }

    #[test]
    fn the_query_has_what_was_asked_for() {
        let path = |line: &str| {
            let words = std::iter::once("top").chain(line.split_whitespace());
            Wrapper::try_parse_from(words).unwrap().top.path()
        };
        assert_eq!(path(""), "/v1/top?of=taken&within=5m");
        assert_eq!(
            path("--of debt --within 1h --prefix a: --namespace team"),
            "/v1/top?of=debt&within=1h&prefix=a:&namespace=team"
        );
    }

    #[test]
    fn a_list_is_a_table() {
        let limit = |key: &str, amount, error| Limit { key: key.into(), amount, error };
        assert_eq!(
            text(Of::Taken, &[limit("a:tpm", Some(60_000), Some(0)), limit("!default:b", None, None)]),
            "KEY         TAKEN   ERROR\na:tpm       60,000  0\n!default:b  -       -\n"
        );
        assert_eq!(text(Of::Debt, &[]), "nothing counted\n");
    }
}
