//! The price list that LiteLLM publishes, against the prices that the providers publish.
//!
//! The table below was typed from the pages of the providers. Without more the tests read a list that is made from it.
//! `EARMARK_PRICE_LIST=model_prices_and_context_window.json cargo test -p earmark-policy --test published` reads the real
//! list whole.

#![allow(clippy::unwrap_used, clippy::panic, clippy::arithmetic_side_effects, reason = "a test may")]

use std::collections::BTreeSet;
use std::fmt::Write as _;

use earmark_policy::{Import, ImportOptions, Rates, import};

/// Dollars for a million tokens: input, cached input, output, and, of Anthropic, writes to a cache for five minutes and
/// for an hour. From platform.claude.com/docs/en/about-claude/pricing and developers.openai.com/api/docs/models, read in
/// November 2026; the last seven as OpenAI published them in 2025.
const PUBLISHED: [(&str, &str, &[&str]); 22] = [
    ("claude-fable-5", "anthropic", &["10", "1", "50", "12.5", "20"]),
    ("claude-opus-5", "anthropic", &["5", "0.5", "25", "6.25", "10"]),
    ("claude-opus-4-8", "anthropic", &["5", "0.5", "25", "6.25", "10"]),
    ("claude-opus-4-7", "anthropic", &["5", "0.5", "25", "6.25", "10"]),
    ("claude-opus-4-6", "anthropic", &["5", "0.5", "25", "6.25", "10"]),
    ("claude-opus-4-5", "anthropic", &["5", "0.5", "25", "6.25", "10"]),
    ("claude-sonnet-4-6", "anthropic", &["3", "0.3", "15", "3.75", "6"]),
    ("claude-sonnet-4-5", "anthropic", &["3", "0.3", "15", "3.75", "6"]),
    ("claude-haiku-4-5", "anthropic", &["1", "0.1", "5", "1.25", "2"]),
    ("gpt-5-mini", "openai", &["0.25", "0.025", "2"]),
    ("gpt-5-nano", "openai", &["0.05", "0.005", "0.4"]),
    ("gpt-4.1-nano", "openai", &["0.1", "0.025", "0.4"]),
    ("gpt-4-turbo", "openai", &["10", "", "30"]),
    ("gpt-4", "openai", &["30", "", "60"]),
    ("gpt-3.5-turbo", "openai", &["0.5", "", "1.5"]),
    ("gpt-5", "openai", &["1.25", "0.125", "10"]),
    ("gpt-4.1", "openai", &["2", "0.5", "8"]),
    ("gpt-4.1-mini", "openai", &["0.4", "0.1", "1.6"]),
    ("gpt-4o", "openai", &["2.5", "1.25", "10"]),
    ("gpt-4o-mini", "openai", &["0.15", "0.075", "0.6"]),
    ("o3", "openai", &["2", "0.5", "8"]),
    ("o4-mini", "openai", &["1.1", "0.275", "4.4"]),
];

/// The fields of the list, in the order of the table.
const FIELDS: [&str; 5] = [
    "input_cost_per_token",
    "cache_read_input_token_cost",
    "output_cost_per_token",
    "cache_creation_input_token_cost",
    "cache_creation_input_token_cost_above_1hr",
];

/// A list in the form of the published one: the models of the table, and some that cannot be imported.
fn sample() -> String {
    let mut list = String::from("{\"sample_spec\": {\"litellm_provider\": \"one of the providers\"},\n");
    for (model, provider, dollars) in PUBLISHED {
        _ = write!(list, "\"{model}\": {{");
        for (field, dollars) in FIELDS.iter().zip(dollars).filter(|(_, dollars)| !dollars.is_empty()) {
            _ = write!(list, "\"{field}\": {dollars}e-06, ");
        }
        _ = writeln!(list, "\"litellm_provider\": \"{provider}\"}},");
    }
    list.push_str("\"image\": {\"output_cost_per_image\": 0.04, \"mode\": \"image_generation\"}}");
    list
}

fn list() -> String {
    match std::env::var_os("EARMARK_PRICE_LIST") {
        Some(path) => std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}")),
        None => sample(),
    }
}

fn imported(text: &str) -> Import {
    import(text, &ImportOptions { asset: "usd".parse().unwrap(), scale: 6, models: None }).unwrap()
}

/// Millionths of a dollar in a decimal number of dollars.
fn micros(dollars: &str) -> u64 {
    let (whole, fraction) = dollars.split_once('.').unwrap_or((dollars, ""));
    format!("{whole}{fraction:0<6}").parse().unwrap()
}

#[test]
fn every_model_of_the_list_is_imported_or_skipped_by_name() {
    let text = list();
    let models: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).unwrap();
    let Import { prices, skipped, ignored } = imported(&text);
    println!(
        "{} models, {} imported, {} skipped, {} prices left out",
        models.len(),
        prices.len(),
        skipped.len(),
        ignored.len()
    );
    assert_eq!(prices.len() + skipped.len(), models.len());
    let names: BTreeSet<&str> = skipped.iter().map(|it| it.model.as_str()).collect();
    assert_eq!(names.len(), skipped.len(), "each once");
    assert!(skipped.iter().all(|it| models.contains_key(&it.model) && !it.what.is_empty()));
}

#[test]
fn models_have_the_prices_that_their_providers_publish() {
    let result = imported(&list());
    for (model, provider, dollars) in PUBLISHED {
        let found = result
            .prices
            .iter()
            .find(|price| price.model == model && price.provider.as_deref().is_none_or(|of| of == provider));
        let Rates { input, cached_input, output, cache_write, cache_write_1h, .. } =
            found.unwrap_or_else(|| panic!("{model} was not imported")).rates;
        let rates = [input, cached_input, output, cache_write, cache_write_1h];
        for ((field, rate), dollars) in FIELDS.iter().zip(rates).zip(dollars).filter(|(_, dollars)| !dollars.is_empty())
        {
            assert_eq!(rate, Some(micros(dollars)), "{model}: {field}");
        }
    }
}
