//! A limit from flags, or from a file.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::builder::RangedI64ValueParser;
use clap::{Args, ValueEnum};
use earmark_admission::LimitDocument;
use earmark_core::{Definition, HOLD_SECONDS_MAX, Kind, LimitKey, Overage};

use crate::client::ClientArgs;
use crate::failure::Failure;
use crate::output::{seconds, thousands};

pub(super) const HELP: &str = "\
Examples:
  earmark limits put --key gpt-4o:rpm --kind rolling --capacity 60 --window 60 --unit requests
  earmark limits put --key gpt-4o:concurrency --kind concurrency --capacity 8 --timeout 600
  echo '{\"key\":\"acme:tpd\",\"kind\":\"rolling\",\"capacity\":2000000,\"window_seconds\":86400}' \\
    | earmark limits put --file -";

/// More than any definition needs.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[derive(Args, Debug)]
pub(crate) struct PutArgs {
    /// Its name: letters, digits and :._@+-
    #[arg(long, required_unless_present = "file")]
    key: Option<LimitKey>,
    /// How what is taken becomes free again: a window after it was taken, or when its lease completes
    #[arg(long, value_enum, required_unless_present = "file")]
    kind: Option<KindArg>,
    /// How much may be held at once
    #[arg(long, value_name = "AMOUNT", required_unless_present = "file")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    capacity: Option<u64>,
    /// The window of a rolling limit, in seconds
    #[arg(long, value_name = "SECONDS", value_parser = hold_seconds())]
    window: Option<u32>,
    /// How long a concurrency limit is held by a lease that never completes, in seconds
    #[arg(long, value_name = "SECONDS", value_parser = hold_seconds())]
    timeout: Option<u32>,
    /// What is counted, for people: requests, tokens
    #[arg(long, value_name = "TEXT")]
    unit: Option<String>,
    /// What it is for, for people
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// What becomes of usage that no longer fits: recorded as debt, or only counted in the metrics
    /// [default: debt]
    #[arg(long, value_enum)]
    overage: Option<OverageArg>,
    /// A file with one definition as JSON, instead of the flags; - is the standard input
    #[arg(long, value_name = "FILE")]
    #[arg(conflicts_with_all = ["key", "kind", "capacity", "window", "timeout", "unit", "description", "overage"])]
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
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OverageArg {
    Debt,
    Deny,
}

impl PutArgs {
    /// The limit, checked.
    pub(super) fn document(&self) -> Result<LimitDocument, Failure> {
        match (&self.file, &self.key, self.kind, self.capacity) {
            (Some(path), ..) => read(path),
            (None, Some(key), Some(kind), Some(capacity)) => self.with_flags(key, kind, capacity),
            (None, ..) => Err(Failure::Usage("--key, --kind and --capacity are needed, or --file".into())),
        }
    }

    fn with_flags(&self, key: &LimitKey, kind: KindArg, capacity: u64) -> Result<LimitDocument, Failure> {
        let usage = |message: &str| Failure::Usage(message.to_owned());
        let kind = match (kind, self.window, self.timeout) {
            (KindArg::Rolling, Some(window_seconds), None) => Kind::Rolling { window_seconds },
            (KindArg::Concurrency, None, Some(timeout_seconds)) => Kind::Concurrency { timeout_seconds },
            (KindArg::Rolling, None, _) => {
                return Err(usage("--window: found none, a rolling limit needs it, such as --window 60"));
            }
            (KindArg::Concurrency, _, None) => {
                return Err(usage(
                    "--timeout: found none, a concurrency limit needs it, such as --timeout 600",
                ));
            }
            (KindArg::Rolling, _, Some(_)) => {
                return Err(usage(
                    "--timeout: only concurrency limits have one, a rolling limit has --window",
                ));
            }
            (KindArg::Concurrency, Some(_), _) => {
                return Err(usage(
                    "--window: only rolling limits have one, a concurrency limit has --timeout",
                ));
            }
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
                "{} is {status}: {} of {}, each held for at most {held}\n",
                definition.key, terms.asset, terms.account
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
    }

    #[test]
    fn wrong_flags_are_refused_with_what_is_allowed() {
        for (line, message) in [
            ("--key a --kind rolling --capacity 1", "--window: found none"),
            ("--key a --kind rolling --capacity 1 --window 1 --timeout 1", "--timeout: only concurrency"),
            ("--key a --kind concurrency --capacity 1", "--timeout: found none"),
            ("--key a --kind concurrency --capacity 1 --window 1 --timeout 1", "--window: only rolling"),
            ("--key a --kind rolling --capacity 1 --window 0", "0 is not in 1..=31622400"),
            ("--key a --kind rolling --capacity 1 --window 31622401", "31622401 is not in 1..=31622400"),
            ("--key a --kind rolling --capacity 0 --window 1", "0 is not in 1..18446744073709551615"),
            ("--key a/b --kind rolling --capacity 1 --window 1", "limit key: found '/' at byte 1"),
            ("--key a --kind leaky --capacity 1", "[possible values: rolling, concurrency]"),
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
