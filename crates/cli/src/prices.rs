//! `earmark prices import`: a published price list as `[[prices]]` of a policy.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use earmark_core::AssetName;
use earmark_policy::{Document, Import, ImportOptions, SCALE_MAX, Skipped, import};
use serde_json::json;

use crate::failure::{Done, Failure};
use crate::output;
use crate::text_file;

/// The maximum size of a price list: 32 MiB, twenty times the list of 2026.
const LIST_BYTES_MAX: usize = 32 << 20;

pub(crate) const HELP: &str = "\
Examples:
  earmark prices import model_prices_and_context_window.json --models 'gpt-4o*' > prices.toml";

const IMPORT_HELP: &str = "\
Reads the model price list that LiteLLM publishes: decimal prices per token. Prices become minor units for a million
tokens, exactly. Models that have no exact price per token are skipped and named on standard error, as are prices that a
policy cannot express, such as those per image. A model named PROVIDER/MODEL in the list applies to calls with this
provider. The whole list is larger than a policy may be, so choose models.

Examples:
  earmark prices import model_prices_and_context_window.json --models 'gpt-4o*' > prices.toml
  earmark prices import prices.json --scale 9 --asset usd_nano --models 'azure/*'";

#[derive(Debug, Subcommand)]
pub(crate) enum PricesCommand {
    /// Print the prices of a list as part of a policy
    #[command(after_help = IMPORT_HELP)]
    Import(ImportArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ImportArgs {
    /// The list, in JSON; - reads standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Digits of the minor unit: with 6, a dollar has 1,000,000 minor units
    #[arg(long, value_name = "DIGITS", default_value_t = 6, value_parser = clap::value_parser!(u32).range(0..=i64::from(SCALE_MAX)))]
    scale: u32,
    /// The asset of the prices
    #[arg(long, value_name = "NAME", default_value = "usd")]
    asset: AssetName,
    /// Import these models only: a name, or the beginning of names and *
    #[arg(long, value_name = "PATTERN")]
    models: Option<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl PricesCommand {
    pub(crate) fn is_json(&self) -> bool {
        let PricesCommand::Import(args) = self;
        args.json
    }
}

pub(crate) fn run(command: &PricesCommand) -> Result<Done, Failure> {
    let PricesCommand::Import(args) = command;
    let text = text_file::read(&args.file, LIST_BYTES_MAX)?;
    let options = ImportOptions { asset: args.asset.clone(), scale: args.scale, models: args.models.clone() };
    let shown = args.file.display();
    let result = import(&text, &options).map_err(|what| Failure::Usage(format!("{shown}: {what}")))?;
    let Import { prices, skipped, ignored } = result;
    if let Some(models) = args.models.as_ref().filter(|_| prices.is_empty() && skipped.is_empty()) {
        return Err(Failure::Usage(format!("{shown}: found no model for --models {models:?}")));
    }
    let count = prices.len();
    let document = Document { prices, ..Document::default() }.to_string();
    let listed = |all: &[Skipped]| all.iter().map(|it| json!({"model": it.model, "what": it.what})).collect::<Vec<_>>();
    if args.json {
        let (skipped, ignored) = (listed(&skipped), listed(&ignored));
        output::print_json(&json!({"prices": document, "count": count, "skipped": skipped, "ignored": ignored}))?;
        return Ok(Done::Ok);
    }
    for Skipped { model, what } in &skipped {
        output::complain(&format!("skipped {model}: {what}"));
    }
    for Skipped { model, what } in &ignored {
        output::complain(&format!("ignored a price of {model}: {what}"));
    }
    output::complain(&format!("{count} imported, {} skipped", skipped.len()));
    output::print(&document)?;
    Ok(Done::Ok)
}
