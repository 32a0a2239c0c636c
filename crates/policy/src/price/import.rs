//! The import of the model price list that LiteLLM publishes: a JSON object of models, with decimal prices per token.

use std::collections::{BTreeMap, BTreeSet};

use earmark_core::AssetName;
use serde_json::value::RawValue;

use super::decimal::Decimal;
use super::{Price, RATE_MAX, Rates, TIERS_MAX, Tier, check_model};
use crate::mistake::quoted;

/// The maximum scale: an asset with more digits than this has rates above [`RATE_MAX`] for every model.
pub const SCALE_MAX: u32 = 12;
/// A rate is for a million tokens, a published price for one.
const MILLION_DIGITS: u32 = 6;
/// The example at the head of the list.
const EXAMPLE: &str = "sample_spec";

/// How a list is imported.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// The asset of the prices.
    pub asset: AssetName,
    /// The digits of the asset's minor unit: 6 if a unit of the list's currency is 1,000,000 minor units.
    pub scale: u32,
    /// The models to import: a name, or a prefix and `*`. `None` imports all.
    pub models: Option<String>,
}

/// The result of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Import {
    /// The prices, by the name of the model.
    pub prices: Vec<Price>,
    /// The models that have no price in the result.
    pub skipped: Vec<Skipped>,
    /// The prices of imported models that a policy cannot express, for example per image.
    pub ignored: Vec<Skipped>,
}

/// A part of the list that was not imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The model, by its name in the list.
    pub model: String,
    /// The reason, or the field.
    pub what: String,
}

/// Reads a list. Every model is either imported exactly or skipped by name.
///
/// # Errors
/// The text is not a JSON object of objects, or an option is not allowed.
pub fn import(text: &str, options: &ImportOptions) -> Result<Import, String> {
    if options.scale > SCALE_MAX {
        return Err(format!("scale: found {}, allowed are 0 to {SCALE_MAX}", options.scale));
    }
    if let Some(models) = &options.models {
        check_model(models).map_err(|what| format!("models: {what}"))?;
    }
    let models: BTreeMap<String, Box<RawValue>> =
        serde_json::from_str(text).map_err(|error| format!("not a list of prices: {error}"))?;
    let mut result = Import::default();
    let mut names = BTreeSet::new();
    for (model, fields) in models {
        if !options.wants(&model) {
            continue;
        }
        let entry = Entry::read(&model, fields.get(), options).and_then(|entry| {
            let is_new = names.insert((entry.price.model.clone(), entry.price.provider.clone()));
            if is_new { Ok(entry) } else { Err("another model of the list has the same name and provider".to_owned()) }
        });
        match entry {
            Ok(entry) => {
                result.prices.push(entry.price);
                result.ignored.extend(entry.ignored.into_iter().map(|what| Skipped { model: model.clone(), what }));
            }
            Err(what) => result.skipped.push(Skipped { model, what }),
        }
    }
    Ok(result)
}

impl ImportOptions {
    fn wants(&self, model: &str) -> bool {
        match self.models.as_deref().map(|wanted| (wanted, wanted.strip_suffix('*'))) {
            None => true,
            Some((_, Some(prefix))) => model.starts_with(prefix),
            Some((name, None)) => model == name,
        }
    }
}

/// A model of the list.
struct Entry {
    price: Price,
    ignored: Vec<String>,
}

impl Entry {
    fn read(name: &str, fields: &str, options: &ImportOptions) -> Result<Entry, String> {
        if name == EXAMPLE {
            return Err("an example, not a model".to_owned());
        }
        if name.contains('*') {
            return Err("its name has a *, which would be a pattern".to_owned());
        }
        let fields: BTreeMap<String, Box<RawValue>> =
            serde_json::from_str(fields).map_err(|_| "not an object".to_owned())?;
        let text = |field: &str| fields.get(field).and_then(|value| serde_json::from_str::<String>(value.get()).ok());
        let provider = text("litellm_provider").filter(|provider| !provider.is_empty());
        let prefix = provider.as_ref().map(|provider| format!("{provider}/"));
        let (model, provider) = match prefix.and_then(|prefix| name.strip_prefix(&prefix)) {
            Some(model) => (model, provider),
            None => (name, None),
        };
        check_model(model)?;
        let mut found = Found { scale: options.scale, ..Found::default() };
        for (field, value) in &fields {
            found.take(field, value.get())?;
        }
        if found.rates.output.is_none() && text("mode").as_deref() == Some("embedding") {
            found.rates.output = Some(0);
        }
        if found.rates.input.is_none() || found.rates.output.is_none() {
            return Err("no price per input and output token".to_owned());
        }
        if found.rates.input == Some(0) && found.rates.output == Some(0) {
            return Err("the price is 0; add it by hand if the model is free".to_owned());
        }
        if found.tiers.len() > TIERS_MAX {
            return Err(format!("found {} tiers, allowed are {TIERS_MAX}", found.tiers.len()));
        }
        let above = found.tiers.into_iter().map(|(input_tokens, rates)| Tier { input_tokens, rates }).collect();
        let asset = options.asset.clone();
        let price = Price { model: model.to_owned(), provider, asset, rates: found.rates, above };
        let mut entry = Entry { price, ignored: found.ignored };
        entry.drop_lower_cache_writes();
        match entry.price.check() {
            Ok(()) => Ok(entry),
            Err((_, field, what)) => Err(format!("{field}: {what}")),
        }
    }

    /// Drops prices of cache writes that are lower in a tier than below it, as some models have them. Such tokens then
    /// cost as much as input.
    fn drop_lower_cache_writes(&mut self) {
        while let Err((Some(place), field @ ("cache_write" | "cache_write_1h"), _)) = self.price.check() {
            let Some(tier) = self.price.above.get_mut(place) else { return };
            let rate =
                if field == "cache_write" { &mut tier.rates.cache_write } else { &mut tier.rates.cache_write_1h };
            if rate.take().is_none() {
                return;
            }
            self.ignored.push(format!("{field} above {} input tokens", tier.input_tokens));
        }
    }
}

/// The prices of a model that were found so far.
#[derive(Default)]
struct Found {
    scale: u32,
    rates: Rates,
    tiers: BTreeMap<u32, Rates>,
    ignored: Vec<String>,
}

impl Found {
    fn take(&mut self, field: &str, value: &str) -> Result<(), String> {
        let (name, tier) = tier(field);
        let power = match name {
            "input_cost_per_request" => self.scale,
            _ => self.scale.saturating_add(MILLION_DIGITS),
        };
        let mut unknown = Rates::default();
        let rates = match tier {
            None => &mut self.rates,
            Some(_) if target(&mut unknown, name).is_none() => &mut unknown,
            Some(tokens) => self.tiers.entry(tokens).or_default(),
        };
        let Some(rate) = target(rates, name) else {
            let is_price =
                field.contains("cost") && Decimal::parse(value).is_none_or(|price| price.scaled(0) != Some(0));
            if is_price && value != "null" {
                self.ignored.push(field.to_owned());
            }
            return Ok(());
        };
        if value == "null" {
            return Ok(());
        }
        let price = Decimal::parse(value).ok_or_else(|| format!("{field}: found {}, not a price", quoted(value)))?;
        let scaled = price.scaled(power).filter(|rate| *rate <= RATE_MAX);
        *rate = Some(scaled.ok_or_else(|| format!("{field}: {value} is not exact at scale {}", self.scale))?);
        Ok(())
    }
}

/// The rate that a field of the list is for.
fn target<'a>(rates: &'a mut Rates, field: &str) -> Option<&'a mut Option<u64>> {
    match field {
        "input_cost_per_token" => Some(&mut rates.input),
        "cache_read_input_token_cost" => Some(&mut rates.cached_input),
        "cache_creation_input_token_cost" => Some(&mut rates.cache_write),
        "cache_creation_input_token_cost_above_1hr" => Some(&mut rates.cache_write_1h),
        "output_cost_per_token" => Some(&mut rates.output),
        "output_cost_per_reasoning_token" => Some(&mut rates.reasoning),
        "input_cost_per_request" => Some(&mut rates.per_request),
        _ => None,
    }
}

/// A field without its tier, and the tier: `input_cost_per_token_above_200k_tokens` is above 200,000 input tokens.
fn tier(field: &str) -> (&str, Option<u32>) {
    let split = || {
        let (name, tier) = field.rsplit_once("_above_")?;
        let thousands: u32 = tier.strip_suffix("k_tokens")?.parse().ok()?;
        Some((name, thousands.checked_mul(1_000)?))
    };
    split().map_or((field, None), |(name, tokens)| (name, Some(tokens)))
}
