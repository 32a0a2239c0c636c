//! `earmark import`: the configurations of other systems as a file for `earmark apply`.

mod ratelimit;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::document::Format;
use super::export::Exporter;
use super::{Section, closed, yaml};
use crate::failure::{Done, Failure};
use crate::output;
use crate::text_file;
use ratelimit::Converted;

/// The maximum size of a configuration: 4 MiB. A policy has room for 256 rules, which take far less.
const FILE_BYTES_MAX: usize = 4 << 20;

pub(crate) const HELP: &str = "\
Examples:
  earmark import ratelimit config.yaml > limits.yaml";

const RATELIMIT_HELP: &str = "\
Reads a configuration of envoyproxy/ratelimit and prints limits, templates and rules for `earmark apply`. The domain
becomes the namespace. A limit per unit becomes a rolling limit, which admits no more in any window of this length.

Every mistake, and everything that Earmark cannot express, is named with its line, and nothing is printed then:
`quota_mode`, keys that are no attribute names, the same entries in another order, a `*` before the end of a value.
`detailed_metric`, `value_to_metric` and `metadata` change no decision, and are left out with a note.

Examples:
  earmark import ratelimit config.yaml > limits.yaml
  earmark import ratelimit config.yaml | earmark diff -
  earmark import ratelimit --format toml config.yaml > limits.toml";

#[derive(Debug, Subcommand)]
pub(crate) enum ImportCommand {
    /// Print a configuration of envoyproxy/ratelimit as limits, templates and rules
    #[command(after_help = RATELIMIT_HELP)]
    Ratelimit(RatelimitArgs),
}

#[derive(Args, Debug)]
pub(crate) struct RatelimitArgs {
    /// The configuration, in YAML; - reads standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Format of the output
    #[arg(long, value_enum, default_value_t = Format::Yaml)]
    format: Format,
}

pub(crate) fn run(command: &ImportCommand) -> Result<Done, Failure> {
    let ImportCommand::Ratelimit(args) = command;
    let text = text_file::read(&args.file, FILE_BYTES_MAX)?;
    let named = |line: usize, what: &str| format!("{}:{line}: {what}", args.file.display());
    let converted = yaml::parse(&text).map_err(|mistake| vec![mistake]).and_then(|node| ratelimit::convert(&node));
    let converted = converted.map_err(|mistakes| {
        let lines: Vec<String> = mistakes.iter().map(|mistake| named(mistake.line, &mistake.what)).collect();
        Failure::Usage(lines.join("\n"))
    })?;
    for note in &converted.notes {
        output::complain(&named(note.line, &note.what));
    }
    let mut printed = Vec::new();
    print(&converted, Exporter::new(&mut printed, args.format)).map_err(closed)?;
    output::print(&String::from_utf8_lossy(&printed))?;
    Ok(Done::Ok)
}

fn print(converted: &Converted, mut exporter: Exporter<&mut Vec<u8>>) -> std::io::Result<()> {
    exporter.namespace(&converted.namespace)?;
    exporter.field("unmatched", &"allow".into())?;
    let lists = [
        (Section::Limits.name(), &converted.limits),
        (Section::Templates.name(), &converted.templates),
        ("rules", &converted.rules),
    ];
    for (name, items) in lists {
        exporter.list(name)?;
        for item in items {
            exporter.item(name, item.iter().map(|(name, value)| (*name, value)).collect())?;
        }
        exporter.end_list(name)?;
    }
    exporter.end()
}
