//! A limit from flags, or from a file.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::builder::RangedI64ValueParser;
use clap::{Args, ValueEnum};
use earmark_admission::LimitDocument;
use earmark_core::{
    AccountName, AssetName, CreditTerms, Definition, HOLD_SECONDS_MAX, Kind, LimitKey, NameError, Overage,
    VaultName,
};

use crate::client::ClientArgs;
use crate::failure::Failure;
use crate::output::{seconds, thousands};

pub(super) const HELP: &str = "\
Examples:
  earmark limits put --key gpt-4o:rpm --kind rolling --capacity 60 --window 60 --unit requests
  earmark limits put --key gpt-4o:concurrency --kind concurrency --capacity 8 --timeout 600
  earmark limits put --key acme:usd --kind credit --vault main --account acme --asset usd --timeout 600
  echo '{\"key\":\"acme:tpd\",\"kind\":\"rolling\",\"capacity\":2000000,\"window_seconds\":86400}' \\
    | earmark limits put --file -";

/// More than any definition needs.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[derive(Args, Debug)]
pub(crate) struct PutArgs {
    /// The key of the limit, by which callers name it: letters, digits and :._@+-
    #[arg(long, required_unless_present = "file")]
    key: Option<LimitKey>,
    /// When what was reserved becomes free again. rolling: one window later; concurrency: when the call is completed;
    /// credit: when the call is completed, and what it cost is paid
    #[arg(long, value_enum, required_unless_present = "file")]
    kind: Option<KindArg>,
    /// How much may be reserved at a time, in any one window for a rolling limit; a credit limit has no capacity
    #[arg(long, value_name = "AMOUNT", value_parser = clap::value_parser!(u64).range(1..))]
    capacity: Option<u64>,
    /// The window of a rolling limit, in seconds; needed for that kind
    #[arg(long, value_name = "SECONDS", value_parser = hold_seconds())]
    window: Option<u32>,
    /// How long a call that never completes holds a concurrency or credit limit, in seconds; needed for these kinds
    #[arg(long, value_name = "SECONDS", value_parser = hold_seconds())]
    timeout: Option<u32>,
    /// The vault in which the account of a credit limit is [default: main]
    #[arg(long)]
    vault: Option<VaultName>,
    /// The account that a credit limit takes from
    #[arg(long)]
    account: Option<AccountName>,
    /// The asset that a credit limit takes, such as usd
    #[arg(long)]
    asset: Option<AssetName>,
    /// The account that is paid what calls cost, for a credit limit [default: revenue]
    #[arg(long, value_name = "ACCOUNT")]
    revenue: Option<AccountName>,
    /// What is counted, to show to people: requests, tokens
    #[arg(long, value_name = "TEXT")]
    unit: Option<String>,
    /// What the limit is for, to show to people
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// What becomes of usage beyond what was reserved that no longer fits: recorded as debt, or only counted in the
    /// metrics
    /// [default: debt]
    #[arg(long, value_enum)]
    overage: Option<OverageArg>,
    /// A file with one definition as JSON, instead of the flags; - is the standard input
    #[arg(long, value_name = "FILE")]
    #[arg(conflicts_with_all = ["key", "kind", "capacity", "window", "timeout", "vault", "account", "asset"])]
    #[arg(conflicts_with_all = ["revenue", "unit", "description", "overage"])]
    file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) client: ClientArgs,
}

fn hold_seconds() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(HOLD_SECONDS_MAX))
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum KindArg {
    Rolling,
    Concurrency,
    Credit,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OverageArg {
    Debt,
    Deny,
}

impl PutArgs {
    /// The limit, checked.
    pub(super) fn document(&self) -> Result<LimitDocument, Failure> {
        match (&self.file, &self.key, self.kind) {
            (Some(path), ..) => read(path),
            (None, Some(key), Some(kind)) => self.with_flags(key, kind),
            (None, ..) => Err(Failure::Usage("--key and --kind are needed, or --file".into())),
        }
    }

    /// The kind of limit, with the flags that it needs and without those that others have.
    fn kind(&self, kind: KindArg) -> Result<Kind, Failure> {
        let of_credit = [
            ("--vault", self.vault.is_some()),
            ("--account", self.account.is_some()),
            ("--asset", self.asset.is_some()),
            ("--revenue", self.revenue.is_some()),
        ];
        let window = ("--window", self.window.is_some());
        let timeout = ("--timeout", self.timeout.is_some());
        match kind {
            KindArg::Rolling => {
                absent("rolling", of_credit.into_iter().chain([timeout]))?;
                let window_seconds = needed("rolling", "--window 60", self.window)?;
                Ok(Kind::Rolling { window_seconds })
            }
            KindArg::Concurrency => {
                absent("concurrency", of_credit.into_iter().chain([window]))?;
                let timeout_seconds = needed("concurrency", "--timeout 600", self.timeout)?;
                Ok(Kind::Concurrency { timeout_seconds })
            }
            KindArg::Credit => {
                absent("credit", [window, ("--capacity", self.capacity.is_some())])?;
                let vault = named(self.vault.as_ref(), VaultName::MAIN, VaultName::new)?;
                let revenue = named(self.revenue.as_ref(), AccountName::REVENUE, AccountName::new)?;
                Ok(Kind::Credit(CreditTerms {
                    timeout_seconds: needed("credit", "--timeout 600", self.timeout)?,
                    vault,
                    account: needed("credit", "--account acme", self.account.clone())?,
                    asset: needed("credit", "--asset usd", self.asset.clone())?,
                    revenue,
                }))
            }
        }
    }

    fn with_flags(&self, key: &LimitKey, kind: KindArg) -> Result<LimitDocument, Failure> {
        let kind = self.kind(kind)?;
        let capacity = match &kind {
            Kind::Rolling { .. } => needed("rolling", "--capacity 60", self.capacity)?,
            Kind::Concurrency { .. } => needed("concurrency", "--capacity 8", self.capacity)?,
            Kind::Credit(_) => 0,
        };
        let definition = Definition {
            key: key.clone(),
            kind,
            capacity,
            unit: self.unit.clone().unwrap_or_default(),
            description: self.description.clone().unwrap_or_default(),
            overage: match self.overage {
                Some(OverageArg::Debt) | None => Overage::Debt,
                Some(OverageArg::Deny) => Overage::Deny,
            },
        };
        definition.validate().map_err(|error| Failure::Usage(error.to_string()))?;
        Ok(LimitDocument::of(&definition))
    }
}

/// The value of a flag that a kind of limit needs; `example` starts with the flag.
fn needed<T>(kind: &str, example: &str, value: Option<T>) -> Result<T, Failure> {
    let flag = example.split(' ').next().unwrap_or_default();
    value.ok_or_else(|| {
        Failure::Usage(format!("{flag}: found none, a {kind} limit needs it, such as {example}"))
    })
}

fn absent<'a>(kind: &str, flags: impl IntoIterator<Item = (&'a str, bool)>) -> Result<(), Failure> {
    match flags.into_iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) => Err(Failure::Usage(format!("{flag}: a {kind} limit has none"))),
        None => Ok(()),
    }
}

/// A name from a flag, or its default.
fn named<T: Clone>(
    given: Option<&T>,
    default: &str,
    new: impl Fn(&str) -> Result<T, NameError>,
) -> Result<T, Failure> {
    match given {
        Some(name) => Ok(name.clone()),
        None => new(default).map_err(|error| Failure::Usage(error.to_string())),
    }
}

fn read(path: &Path) -> Result<LimitDocument, Failure> {
    let is_stdin = path == Path::new("-");
    let name = if is_stdin { "standard input".to_owned() } else { path.display().to_string() };
    let unreadable = |error| Failure::Usage(format!("--file: cannot read {name}: {error}"));
    let mut text = String::new();
    if is_stdin {
        std::io::stdin().take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
    } else {
        let file = std::fs::File::open(path).map_err(unreadable)?;
        file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
    }
    parse(&name, &text)
}

fn parse(name: &str, text: &str) -> Result<LimitDocument, Failure> {
    serde_json::from_str(text).map_err(|error| Failure::Usage(format!("--file: {name}: {error}")))
}

/// What was put, in a sentence.
pub(super) fn text(definition: &Definition, status: &str) -> String {
    let unit = if definition.unit.is_empty() { String::new() } else { format!(" {}", definition.unit) };
    let capacity = thousands(definition.capacity.into());
    let what = match &definition.kind {
        Kind::Rolling { window_seconds } => format!("in any {}", seconds((*window_seconds).into())),
        Kind::Concurrency { timeout_seconds } => {
            format!("at once, each held for at most {}", seconds((*timeout_seconds).into()))
        }
        Kind::Credit(terms) => {
            let held = seconds(terms.timeout_seconds.into());
            return format!(
                "{} is {status}: {} of {} in {}, each held for at most {held}, paid to {}\n",
                definition.key, terms.asset, terms.account, terms.vault, terms.revenue
            );
        }
    };
    format!("{} is {status}: {capacity}{unit} {what}\n", definition.key)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Wrapper {
        #[command(flatten)]
        put: PutArgs,
    }

    fn document(line: &str) -> Result<LimitDocument, String> {
        let words = std::iter::once("put").chain(line.split_whitespace());
        let wrapper = Wrapper::try_parse_from(words).map_err(|error| error.to_string())?;
        wrapper.put.document().map_err(|failure| failure.to_string())
    }

    #[test]
    fn flags_make_a_definition() {
        let rpm = "--key rpm --kind rolling --capacity 60 --window 60 --unit requests --overage deny";
        let definition = document(rpm).unwrap().into_definition();
        assert_eq!(definition.kind, Kind::Rolling { window_seconds: 60 });
        assert_eq!((definition.capacity, definition.unit.as_str()), (60, "requests"));
        assert_eq!(definition.overage, Overage::Deny);
        assert_eq!(text(&definition, "active"), "rpm is active: 60 requests in any 1 min\n");

        let slots = document("--key c --kind concurrency --capacity 8000 --timeout 90").unwrap();
        let definition = slots.into_definition();
        assert_eq!(definition.overage, Overage::Debt);
        assert_eq!(text(&definition, "active"), "c is active: 8,000 at once, each held for at most 90 s\n");

        let credit = document("--key u --kind credit --account acme --asset usd --timeout 90").unwrap();
        let definition = credit.into_definition();
        let terms = definition.kind.terms().unwrap();
        assert_eq!((terms.vault.as_str(), terms.revenue.as_str()), ("main", "revenue"));
        assert_eq!(
            text(&definition, "active"),
            "u is active: usd of acme in main, each held for at most 90 s, paid to revenue\n"
        );
        let elsewhere =
            "--key u --kind credit --account acme --asset usd --timeout 90 --vault eu --revenue shop";
        let definition = document(elsewhere).unwrap().into_definition();
        let terms = definition.kind.terms().unwrap();
        assert_eq!((terms.vault.as_str(), terms.revenue.as_str()), ("eu", "shop"));
    }

    #[test]
    fn wrong_flags_are_refused_with_what_is_allowed() {
        for (line, message) in [
            ("--key a --kind rolling --capacity 1", "--window: found none"),
            (
                "--key a --kind rolling --capacity 1 --window 1 --timeout 1",
                "--timeout: a rolling limit has none",
            ),
            ("--key a --kind concurrency --capacity 1", "--timeout: found none"),
            (
                "--key a --kind concurrency --capacity 1 --window 1 --timeout 1",
                "--window: a concurrency limit has none",
            ),
            ("--key a --kind rolling --capacity 1 --window 0", "0 is not in 1..=31622400"),
            ("--key a --kind rolling --capacity 1 --window 31622401", "31622401 is not in 1..=31622400"),
            ("--key a --kind rolling --capacity 0 --window 1", "0 is not in 1..18446744073709551615"),
            ("--key a/b --kind rolling --capacity 1 --window 1", "limit key: found '/' at byte 1"),
            ("--key a --kind leaky --capacity 1", "[possible values: rolling, concurrency, credit]"),
            ("--key a --kind rolling --window 1", "--capacity: found none, a rolling limit needs it"),
            ("--key a --kind rolling --window 1 --asset usd", "--asset: a rolling limit has none"),
            ("--key a --kind credit --timeout 1 --asset usd", "--account: found none, a credit limit"),
            ("--key a --kind credit --timeout 1 --account b", "--asset: found none, a credit limit"),
            ("--key a --kind credit --account b --asset usd", "--timeout: found none, a credit limit"),
            ("--key a --kind credit --capacity 1", "--capacity: a credit limit has none"),
            ("--key a --kind credit --asset USD", "asset: found 'U' at byte 0"),
            ("--key a", "--kind <KIND>"),
            ("--file a.json --key a", "cannot be used with"),
        ] {
            let error = document(line).unwrap_err();
            assert!(error.contains(message), "{line}: {error}");
        }
    }

    #[test]
    fn a_damaged_file_is_refused_with_its_name_line_and_field() {
        let error = parse("a.json", "{\"key\":\"a\",\n\"kind\":\"leaky\"}").unwrap_err().to_string();
        assert!(error.starts_with("--file: a.json: "), "{error}");
        assert!(error.contains("kind: found \"leaky\""), "{error}");
        let good = r#"{"key":"a","kind":"rolling","capacity":1,"window_seconds":1}"#;
        assert!(parse("a.json", good).is_ok());
    }
}
