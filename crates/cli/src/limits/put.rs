//! `earmark limits put`: a limit definition from flags or from a file.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use earmark_admission::{LimitDocument, TemplateDocument};
use earmark_core::{
    AccountName, AssetName, CreditTerms, Definition, HOLD_SECONDS_MAX, Kind, LimitKey, NameError, OnTimeout, Overage,
    Period, Template, UTC_OFFSET_MINUTES, VaultName,
};
use serde::de::DeserializeOwned;

use super::NamespaceArgs;
use crate::client::ClientArgs;
use crate::failure::Failure;
use crate::output::{seconds, thousands};
use crate::quantity;
use crate::write::read_file;

pub(super) const HELP: &str = "\
Durations are seconds, or a number with s, m, h or d: 90, 60s, 1m, 2h, 7d. Amounts may end in k or m for thousands or
millions: 60k, 1.5m.

Examples:
  earmark limits put --key gpt-4o:rpm --kind rolling --capacity 60 --window 1m --unit requests
  earmark limits put --key gpt-4o:tpm --kind rolling --capacity 60k --window 1m --unit tokens
  earmark limits put --key gpt-4o:concurrency --kind concurrency --capacity 8 --timeout 10m
  earmark limits put --key acme:tpm --kind calendar --capacity 5m --period month --utc-offset-minutes 60
  earmark limits put --key acme:usd --kind credit --vault main --account acme --asset usd --timeout 10m
  echo '{\"key\":\"acme:tpd\",\"kind\":\"rolling\",\"capacity\":2000000,\"window_seconds\":86400}' \\
    | earmark limits put --file -";

#[derive(Args, Debug)]
pub(crate) struct PutArgs {
    #[command(flatten)]
    pub(crate) scope: NamespaceArgs,
    /// Key of the limit, which callers name in reserve: letters, digits and :._@+-/|=~%
    #[arg(long, required_unless_present = "file", value_parser = key)]
    key: Option<LimitKey>,
    /// Kind of limit. rolling: usage per time window; concurrency: calls at the same time; calendar: usage per hour, day,
    /// week or month; credit: prepaid credit of an account
    #[arg(long, value_enum, required_unless_present = "file")]
    kind: Option<KindArg>,
    /// Largest amount reserved at the same time, or in any one window of a rolling limit; not for credit limits
    #[arg(long, value_name = "AMOUNT", value_parser = |text: &str| quantity::amount(text, 1))]
    capacity: Option<u64>,
    /// Window of a rolling limit, such as 60, 1m or 1d
    #[arg(long, value_name = "DURATION", value_parser = quantity::seconds(HOLD_SECONDS_MAX))]
    window: Option<u32>,
    /// How long a call that is never completed holds a concurrency or credit limit, such as 600 or 10m
    #[arg(long, value_name = "DURATION", value_parser = quantity::seconds(HOLD_SECONDS_MAX))]
    timeout: Option<u32>,
    /// Period of a calendar limit; weeks begin on Monday
    #[arg(long, value_enum)]
    period: Option<PeriodArg>,
    /// Minutes by which the local time of a calendar limit is ahead of UTC, -720 to 840, without daylight saving
    /// [default: 0]
    #[arg(long, value_name = "MINUTES", allow_negative_numbers = true, value_parser = utc_offset_minutes)]
    utc_offset_minutes: Option<i16>,
    /// Vault of a credit limit's account [default: main]
    #[arg(long)]
    vault: Option<VaultName>,
    /// Account that pays, for a credit limit
    #[arg(long, value_parser = account)]
    account: Option<AccountName>,
    /// Asset that is paid, for a credit limit, such as usd
    #[arg(long)]
    asset: Option<AssetName>,
    /// Account that receives the payments of a credit limit [default: revenue]
    #[arg(long, value_name = "ACCOUNT")]
    revenue: Option<AccountName>,
    /// The rule for a credit hold whose lease times out. release: charge the reported usage, return the rest; charge:
    /// charge all of it [default: release]
    #[arg(long, value_enum)]
    on_timeout: Option<OnTimeoutArg>,
    /// Display name of the counted unit, such as requests or tokens
    #[arg(long, value_name = "TEXT")]
    unit: Option<String>,
    /// Free text that describes the limit
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// How to treat usage above the reservation that exceeds the capacity. debt: record it as debt; deny: only count it in
    /// the metrics [default: debt]
    #[arg(long, value_enum)]
    overage: Option<OverageArg>,
    /// Let other namespaces reserve the limit; not for credit limits
    #[arg(long)]
    shared: bool,
    /// Whether the limit denies. With false it only counts, and answers name it in would_deny; not for credit limits
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    enforce: bool,
    /// JSON file with one definition, instead of the flags; - reads standard input
    #[arg(long, value_name = "FILE")]
    #[arg(conflicts_with_all = ["key", "kind", "capacity", "window", "timeout", "vault", "account", "asset"])]
    #[arg(conflicts_with_all = ["revenue", "unit", "description", "overage", "on_timeout", "period", "utc_offset_minutes", "shared", "enforce"])]
    file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum KindArg {
    Rolling,
    Concurrency,
    Calendar,
    Credit,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PeriodArg {
    Hour,
    Day,
    Week,
    Month,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OnTimeoutArg {
    Release,
    Charge,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OverageArg {
    Debt,
    Deny,
}

impl PutArgs {
    /// The validated definition.
    pub(super) fn document(&self) -> Result<LimitDocument, Failure> {
        if let Some(path) = &self.file {
            return parse(&path.display().to_string(), &read_file(path)?);
        }
        let definition = self.definition()?;
        definition.validate().map_err(|error| Failure::Usage(error.to_string()))?;
        Ok(LimitDocument::of(&definition))
    }

    /// The validated template.
    pub(crate) fn template(&self) -> Result<TemplateDocument, Failure> {
        if let Some(path) = &self.file {
            return parse(&path.display().to_string(), &read_file(path)?);
        }
        let template = Template::new(self.definition()?).map_err(|error| Failure::Usage(error.to_string()))?;
        Ok(TemplateDocument::of(&template))
    }

    fn definition(&self) -> Result<Definition, Failure> {
        match (&self.key, self.kind) {
            (Some(key), Some(kind)) => self.with_flags(key, kind),
            _ => Err(Failure::Usage("give --key and --kind, or --file".into())),
        }
    }

    /// The kind with its terms. Fails if a required flag is missing or a flag of another kind is given.
    fn kind(&self, kind: KindArg) -> Result<Kind, Failure> {
        let of_credit = [
            ("--vault", self.vault.is_some()),
            ("--account", self.account.is_some()),
            ("--asset", self.asset.is_some()),
            ("--revenue", self.revenue.is_some()),
            ("--on-timeout", self.on_timeout.is_some()),
        ];
        let window = ("--window", self.window.is_some());
        let timeout = ("--timeout", self.timeout.is_some());
        let of_calendar =
            [("--period", self.period.is_some()), ("--utc-offset-minutes", self.utc_offset_minutes.is_some())];
        match kind {
            KindArg::Rolling => {
                absent("rolling", of_credit.into_iter().chain([timeout]).chain(of_calendar))?;
                let window_seconds = needed("rolling", "--window 1m", self.window)?;
                Ok(Kind::Rolling { window_seconds })
            }
            KindArg::Concurrency => {
                absent("concurrency", of_credit.into_iter().chain([window]).chain(of_calendar))?;
                let timeout_seconds = needed("concurrency", "--timeout 10m", self.timeout)?;
                Ok(Kind::Concurrency { timeout_seconds })
            }
            KindArg::Calendar => {
                absent("calendar", of_credit.into_iter().chain([window, timeout]))?;
                let period = match needed("calendar", "--period day", self.period)? {
                    PeriodArg::Hour => Period::Hour,
                    PeriodArg::Day => Period::Day,
                    PeriodArg::Week => Period::Week,
                    PeriodArg::Month => Period::Month,
                };
                Ok(Kind::Calendar { period, utc_offset_minutes: self.utc_offset_minutes.unwrap_or(0) })
            }
            KindArg::Credit => {
                absent("credit", [window, ("--capacity", self.capacity.is_some())].into_iter().chain(of_calendar))?;
                let vault = named(self.vault.as_ref(), VaultName::MAIN, VaultName::new)?;
                let revenue = named(self.revenue.as_ref(), AccountName::REVENUE, AccountName::new)?;
                Ok(Kind::Credit(CreditTerms {
                    timeout_seconds: needed("credit", "--timeout 10m", self.timeout)?,
                    vault,
                    account: needed("credit", "--account acme", self.account.clone())?,
                    asset: needed("credit", "--asset usd", self.asset.clone())?,
                    revenue,
                    on_timeout: match self.on_timeout {
                        Some(OnTimeoutArg::Release) | None => OnTimeout::Release,
                        Some(OnTimeoutArg::Charge) => OnTimeout::Charge,
                    },
                }))
            }
        }
    }

    fn with_flags(&self, key: &LimitKey, kind: KindArg) -> Result<Definition, Failure> {
        let kind = self.kind(kind)?;
        let capacity = match &kind {
            Kind::Rolling { .. } => needed("rolling", "--capacity 60", self.capacity)?,
            Kind::Concurrency { .. } => needed("concurrency", "--capacity 8", self.capacity)?,
            Kind::Calendar { .. } => needed("calendar", "--capacity 5m", self.capacity)?,
            Kind::Credit(_) => 0,
        };
        Ok(Definition {
            key: key.clone(),
            kind,
            capacity,
            unit: self.unit.clone().unwrap_or_default(),
            description: self.description.clone().unwrap_or_default(),
            overage: match self.overage {
                Some(OverageArg::Debt) | None => Overage::Debt,
                Some(OverageArg::Deny) => Overage::Deny,
            },
            shared: self.shared,
            enforce: self.enforce,
        })
    }
}

fn utc_offset_minutes(text: &str) -> Result<i16, String> {
    text.parse().ok().filter(|minutes| UTC_OFFSET_MINUTES.contains(minutes)).ok_or_else(|| {
        let (min, max) = (UTC_OFFSET_MINUTES.start(), UTC_OFFSET_MINUTES.end());
        format!("found {text:?}, allowed are whole minutes from {min} to {max}")
    })
}

/// A key of a limit, or of a template, whose placeholders have braces.
fn key(text: &str) -> Result<LimitKey, NameError> {
    if text.contains('{') { LimitKey::pattern(text) } else { LimitKey::new(text) }
}

fn account(text: &str) -> Result<AccountName, NameError> {
    if text.contains('{') { AccountName::pattern(text) } else { AccountName::new(text) }
}

/// The value of a required flag; `example` starts with the flag.
fn needed<T>(kind: &str, example: &str, value: Option<T>) -> Result<T, Failure> {
    let flag = example.split(' ').next().unwrap_or_default();
    value.ok_or_else(|| Failure::Usage(format!("{flag} is required for a {kind} limit, for example {example}")))
}

fn absent<'a>(kind: &str, flags: impl IntoIterator<Item = (&'a str, bool)>) -> Result<(), Failure> {
    match flags.into_iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) => Err(Failure::Usage(format!("{flag} is not allowed for a {kind} limit"))),
        None => Ok(()),
    }
}

/// A name from a flag, or its default.
fn named<T: Clone>(given: Option<&T>, default: &str, new: impl Fn(&str) -> Result<T, NameError>) -> Result<T, Failure> {
    match given {
        Some(name) => Ok(name.clone()),
        None => new(default).map_err(|error| Failure::Usage(error.to_string())),
    }
}

fn parse<T: DeserializeOwned>(name: &str, text: &str) -> Result<T, Failure> {
    serde_json::from_str(text).map_err(|error| Failure::Usage(format!("--file: {name}: {error}")))
}

/// Describes the limit in one sentence.
pub(crate) fn text(definition: &Definition, status: &str) -> String {
    let unit = if definition.unit.is_empty() { String::new() } else { format!(" {}", definition.unit) };
    let capacity = thousands(definition.capacity.into());
    let what = match &definition.kind {
        Kind::Rolling { window_seconds } => format!("in any {}", seconds((*window_seconds).into())),
        Kind::Concurrency { timeout_seconds } => {
            format!("at once, each held for at most {}", seconds((*timeout_seconds).into()))
        }
        Kind::Calendar { period, utc_offset_minutes } => {
            format!("per calendar {period} at {}", utc(*utc_offset_minutes))
        }
        Kind::Credit(terms) => {
            let held = seconds(terms.timeout_seconds.into());
            return format!(
                "{} is {status}: {} of {} in {}, each held for at most {held}, paid to {}\n",
                definition.key, terms.asset, terms.account, terms.vault, terms.revenue
            );
        }
    };
    let shadow = if definition.enforce { "" } else { ", counted but not enforced" };
    let shared = if definition.shared { ", shared with other namespaces" } else { "" };
    format!("{} is {status}: {capacity}{unit} {what}{shadow}{shared}\n", definition.key)
}

/// A fixed offset as people write it: `UTC`, `UTC+05:30`.
pub(super) fn utc(offset_minutes: i16) -> String {
    let (sign, minutes) = (if offset_minutes < 0 { '-' } else { '+' }, offset_minutes.unsigned_abs());
    match minutes {
        0 => "UTC".to_owned(),
        _ => format!("UTC{sign}{:02}:{:02}", minutes / 60, minutes % 60),
    }
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
        let rpm = "--key rpm --kind rolling --capacity 60k --window 1m --unit requests --overage deny";
        let definition = document(rpm).unwrap().into_definition();
        assert_eq!(definition.kind, Kind::Rolling { window_seconds: 60 });
        assert_eq!((definition.capacity, definition.unit.as_str()), (60_000, "requests"));
        assert_eq!(definition.overage, Overage::Deny);
        assert_eq!(text(&definition, "active"), "rpm is active: 60,000 requests in any 1 min\n");

        let slots = document("--key c --kind concurrency --capacity 8000 --timeout 90").unwrap();
        let definition = slots.into_definition();
        assert_eq!(definition.overage, Overage::Debt);
        assert_eq!(text(&definition, "active"), "c is active: 8,000 at once, each held for at most 90 s\n");

        let month =
            "--key m --kind calendar --capacity 5m --period month --utc-offset-minutes -570 --shared --enforce false";
        let definition = document(month).unwrap().into_definition();
        assert_eq!(definition.kind, Kind::Calendar { period: Period::Month, utc_offset_minutes: -570 });
        assert_eq!(
            text(&definition, "active"),
            "m is active: 5,000,000 per calendar month at UTC-09:30, counted but not enforced, shared with other namespaces\n"
        );
        let day = document("--key d --kind calendar --capacity 1 --period day").unwrap().into_definition();
        assert_eq!(text(&day, "active"), "d is active: 1 per calendar day at UTC\n");

        let credit = document("--key u --kind credit --account acme --asset usd --timeout 90").unwrap();
        let definition = credit.into_definition();
        let terms = definition.kind.terms().unwrap();
        assert_eq!((terms.vault.as_str(), terms.revenue.as_str()), ("main", "revenue"));
        assert_eq!(
            text(&definition, "active"),
            "u is active: usd of acme in main, each held for at most 90 s, paid to revenue\n"
        );
        let elsewhere = "--key u --kind credit --account acme --asset usd --timeout 90 --vault eu --revenue shop";
        let definition = document(elsewhere).unwrap().into_definition();
        let terms = definition.kind.terms().unwrap();
        assert_eq!((terms.vault.as_str(), terms.revenue.as_str()), ("eu", "shop"));
    }

    #[test]
    fn wrong_flags_are_refused_with_what_is_allowed() {
        for (line, message) in [
            ("--key a --kind rolling --capacity 1", "--window is required for a rolling limit, for example --window"),
            (
                "--key a --kind rolling --capacity 1 --window 1 --timeout 1",
                "--timeout is not allowed for a rolling limit",
            ),
            ("--key a --kind concurrency --capacity 1", "--timeout is required for a concurrency limit"),
            (
                "--key a --kind concurrency --capacity 1 --window 1 --timeout 1",
                "--window is not allowed for a concurrency limit",
            ),
            ("--key a --kind rolling --capacity 1 --window 0", "found \"0\", allowed are 1 s to 366 d"),
            ("--key a --kind rolling --capacity 1 --window 31622401", "found \"31622401\", allowed are 1 s to 366 d"),
            ("--key a --kind rolling --capacity 0 --window 1", "found \"0\", allowed are whole numbers from 1"),
            ("--key a!b --kind rolling --capacity 1 --window 1", "limit key: found '!' at byte 1"),
            ("--key a --kind leaky --capacity 1", "[possible values: rolling, concurrency, calendar, credit]"),
            ("--key a --kind rolling --window 1", "--capacity is required for a rolling limit"),
            ("--key a --kind rolling --window 1 --asset usd", "--asset is not allowed for a rolling limit"),
            ("--key a --kind credit --timeout 1 --asset usd", "--account is required for a credit limit"),
            ("--key a --kind credit --timeout 1 --account b", "--asset is required for a credit limit"),
            ("--key a --kind credit --account b --asset usd", "--timeout is required for a credit limit"),
            ("--key a --kind credit --capacity 1", "--capacity is not allowed for a credit limit"),
            ("--key a --kind credit --asset USD", "asset: found 'U' at byte 0"),
            ("--key a --kind calendar --capacity 1", "--period is required for a calendar limit, for example --period"),
            ("--key a --kind calendar --period year", "[possible values: hour, day, week, month]"),
            ("--key a --kind calendar --period day --window 1", "--window is not allowed for a calendar limit"),
            (
                "--key a --kind calendar --period day --utc-offset-minutes 841",
                "allowed are whole minutes from -720 to 840",
            ),
            ("--key a --kind rolling --window 1 --period day", "--period is not allowed for a rolling limit"),
            (
                "--key a --kind credit --timeout 1 --account b --asset usd --shared",
                "shared: found true, allowed is false for a limit of kind credit",
            ),
            (
                "--key a --kind credit --timeout 1 --account b --asset usd --enforce false",
                "enforce: found false, allowed is true for a limit of kind credit",
            ),
            ("--key a", "--kind <KIND>"),
            ("--file a.json --key a", "cannot be used with"),
        ] {
            let error = document(line).unwrap_err();
            assert!(error.contains(message), "{line}: {error}");
        }
    }

    #[test]
    fn a_damaged_file_is_refused_with_its_name_line_and_field() {
        let error = parse::<LimitDocument>("a.json", "{\"key\":\"a\",\n\"kind\":\"leaky\"}").unwrap_err().to_string();
        assert!(error.starts_with("--file: a.json: "), "{error}");
        assert!(error.contains("kind: found \"leaky\""), "{error}");
        let good = r#"{"key":"a","kind":"rolling","capacity":1,"window_seconds":1}"#;
        assert!(parse::<LimitDocument>("a.json", good).is_ok());
    }
}
