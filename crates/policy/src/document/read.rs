//! Reading a document from TOML.

use std::collections::BTreeMap;

use earmark_core::{AssetName, LOOKS_LIKE_API_KEY, NameRule, NamespaceName, contains_api_key};
use toml::de::DeTable;

use super::{
    Amount, DENY_BYTES_MAX, Document, Effect, LimitUse, POLICY_BYTES_MAX, POLICY_LIMITS_MAX, PRICES_MAX, RULES_MAX,
    Rule, Unmatched,
};
use crate::fields::{Fields, Lines};
use crate::key_pattern;
use crate::mistake::{Mistake, quoted};
use crate::policy::REQUIREMENTS_MAX;
use crate::price::{MODEL_BYTES_MAX, Price, RATE_MAX, Rates, TIERS_MAX, Tier, check_model};

/// The rule of the name of a rule, which stands in answers.
const RULE_NAME: NameRule = NameRule {
    kind: "name",
    bytes_max: 64,
    alphabet: "letters, digits and ._@+-",
    allows: |_, character| character.is_ascii_alphanumeric() || "._@+-".contains(character),
};

pub(super) fn document(text: &str) -> Result<(Document, Vec<usize>), Mistake> {
    if text.len() > POLICY_BYTES_MAX {
        return Err(Mistake::new(1, "", format_args!("found {} bytes, allowed are {POLICY_BYTES_MAX}", text.len())));
    }
    let lines = Lines::of(text);
    let table = DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| lines.at(span.start));
        Mistake::new(line, "", format_args!("not valid TOML: {}", error.message().trim_end()))
    })?;
    let fields = Fields { lines: &lines, path: String::new(), line: 1, table: table.get_ref() };
    fields.allow(&["unmatched", "rules", "prices"])?;
    let unmatched = match fields.text("unmatched")? {
        None | Some("refuse") => Unmatched::Refuse,
        Some("allow") => Unmatched::Allow,
        Some(other) => {
            let what = format!("found {}, allowed are \"refuse\" and \"allow\"", quoted(other));
            return Err(fields.wrong("unmatched", what));
        }
    };
    let rule_tables = fields.tables("rules", RULES_MAX)?.unwrap_or_default();
    let rules = rules(&rule_tables)?;
    let prices = prices(&fields.tables("prices", PRICES_MAX)?.unwrap_or_default())?;
    let takes_cost = |rule: &Rule| match &rule.effect {
        Effect::Limits(limits) => limits.iter().any(|limit| limit.amount == Amount::Cost),
        Effect::Deny(_) => false,
    };
    if let Some((place, _)) = rules.iter().enumerate().find(|(_, rule)| prices.is_empty() && takes_cost(rule)) {
        let line = rule_tables.get(place).map_or(1, |table| table.line_of("limits"));
        let what = "found the amount \"cost\" in a document without prices; add [[prices]]";
        return Err(Mistake::new(line, format_args!("rules[{place}].limits"), what));
    }
    // Deny messages, conditions, models and comments. Everyone who reads the policy would see the key.
    if let Some((line, _)) = (1..).zip(text.lines()).find(|(_, line)| contains_api_key(line)) {
        return Err(Mistake::new(line, "", LOOKS_LIKE_API_KEY));
    }
    let condition_lines = rule_tables.iter().map(|table| table.line_of("when")).collect();
    Ok((Document { unmatched, rules, prices }, condition_lines))
}

fn rules(tables: &[Fields<'_>]) -> Result<Vec<Rule>, Mistake> {
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    let mut limits: usize = 0;
    let mut rules = Vec::with_capacity(tables.len());
    for table in tables {
        let rule = rule(table)?;
        if let Some(line) = names.insert(rule.name.clone(), table.line_of("name")) {
            return Err(table.wrong("name", format_args!("{} is also the name of the rule on line {line}", rule.name)));
        }
        if let Effect::Limits(used) = &rule.effect {
            limits = limits.saturating_add(used.len());
        }
        if limits > POLICY_LIMITS_MAX {
            let what =
                format!("found more than {POLICY_LIMITS_MAX} limits in all rules, allowed are {POLICY_LIMITS_MAX}");
            return Err(table.wrong("limits", what));
        }
        rules.push(rule);
    }
    for (rule, table) in rules.iter().zip(tables) {
        let is_other = |name: &&String| names.contains_key(*name) && **name != rule.name;
        if let Some(name) = rule.replaces.iter().find(|name| !is_other(name)) {
            let what = format!("found {}, allowed are the names of other rules", quoted(name));
            return Err(table.wrong("replaces", what));
        }
    }
    Ok(rules)
}

fn rule(table: &Fields<'_>) -> Result<Rule, Mistake> {
    table.allow(&["name", "when", "optional", "replaces", "limits", "deny"])?;
    let name = table.required_text("name")?;
    RULE_NAME.check(name).map_err(|error| table.wrong("name", error.mistake))?;
    let replaces = table.texts("replaces", RULES_MAX)?.unwrap_or_default();
    let effect = match (table.tables("limits", REQUIREMENTS_MAX)?, table.text("deny")?) {
        (Some(_), Some(_)) => return Err(table.wrong("deny", "found limits too, allowed is one of limits and deny")),
        (None, None) => return Err(table.wrong("limits", "is required, unless the rule has deny")),
        (None, Some(message)) => Effect::Deny(deny(table, message)?),
        (Some(limits), None) if limits.is_empty() && replaces.is_empty() => {
            return Err(table.wrong("limits", format_args!("found none, allowed are 1 to {REQUIREMENTS_MAX}")));
        }
        (Some(limits), None) => Effect::Limits(limits.iter().map(limit).collect::<Result<_, _>>()?),
    };
    let optional = table.boolean("optional")?.unwrap_or(false);
    if optional && matches!(effect, Effect::Deny(_)) {
        return Err(table.wrong("optional", "found deny too, allowed is optional for rules with limits"));
    }
    if optional && !replaces.is_empty() {
        return Err(table.wrong("replaces", "found optional too, allowed is one of optional and replaces"));
    }
    let when = table.text("when")?.map(str::to_owned);
    Ok(Rule {
        name: name.to_owned(),
        when,
        optional,
        replaces: replaces.into_iter().map(str::to_owned).collect(),
        effect,
    })
}

fn deny(table: &Fields<'_>, message: &str) -> Result<String, Mistake> {
    if message.is_empty() || message.len() > DENY_BYTES_MAX || message.contains(char::is_control) {
        let what = format!("allowed are 1 to {DENY_BYTES_MAX} bytes without control characters");
        return Err(table.wrong("deny", format_args!("found {} bytes, {what}", message.len())));
    }
    Ok(message.to_owned())
}

fn limit(table: &Fields<'_>) -> Result<LimitUse, Mistake> {
    table.allow(&["key", "amount", "namespace"])?;
    let key = table.required_text("key")?;
    key_pattern::check(key).map_err(|what| table.wrong("key", what))?;
    let amount = if table.is_text("amount") {
        let text = table.required_text("amount")?;
        let named = Amount::NAMED.into_iter().find(|(name, _)| *name == text);
        let unknown = || {
            let names = Amount::NAMED.map(|(name, _)| name).join(", ");
            table.wrong("amount", format_args!("found {}, allowed are {names} and whole numbers", quoted(text)))
        };
        named.ok_or_else(unknown)?.1
    } else {
        let fixed = table.integer("amount", i64::MAX.unsigned_abs())?;
        Amount::Fixed(fixed.ok_or_else(|| table.wrong("amount", "is required"))?)
    };
    let namespace = table.text("namespace")?.map(NamespaceName::new).transpose();
    let namespace = namespace.map_err(|error| table.wrong("namespace", error.mistake))?;
    Ok(LimitUse { key: key.to_owned(), amount, namespace })
}

fn prices(tables: &[Fields<'_>]) -> Result<Vec<Price>, Mistake> {
    let mut seen: BTreeMap<(String, Option<String>), usize> = BTreeMap::new();
    let mut prices: Vec<Price> = Vec::with_capacity(tables.len());
    for table in tables {
        let price = price(table)?;
        if let Some(first) = prices.first().filter(|first| first.asset != price.asset) {
            let what = format!("found {}, allowed is {}, the asset of the first price", price.asset, first.asset);
            return Err(table.wrong("asset", what));
        }
        if let Some(line) = seen.insert((price.model.clone(), price.provider.clone()), table.line) {
            return Err(table.wrong("model", format_args!("{} has a price on line {line} already", price.model)));
        }
        prices.push(price);
    }
    Ok(prices)
}

const RATES: [&str; 7] =
    ["input", "cached_input", "cache_write", "cache_write_1h", "output", "reasoning", "per_request"];

fn price(table: &Fields<'_>) -> Result<Price, Mistake> {
    table.allow(&[["model", "provider", "asset", "above"].as_slice(), &RATES].concat())?;
    let model = table.required_text("model")?;
    check_model(model).map_err(|what| table.wrong("model", what))?;
    let provider = table.text("provider")?;
    if let Some(provider) = provider.filter(|name| name.is_empty() || name.len() > MODEL_BYTES_MAX) {
        let what = format!("found {} bytes, allowed are 1 to {MODEL_BYTES_MAX}", provider.len());
        return Err(table.wrong("provider", what));
    }
    let asset = table.required_text("asset")?;
    let asset = AssetName::new(asset).map_err(|error| table.wrong("asset", error.mistake))?;
    for name in ["input", "output"] {
        table.integer(name, RATE_MAX)?.ok_or_else(|| table.wrong(name, "is required"))?;
    }
    let mut above = Vec::new();
    let tiers = table.tables("above", TIERS_MAX)?.unwrap_or_default();
    for tier in &tiers {
        tier.allow(&[["input_tokens"].as_slice(), &RATES].concat())?;
        let tokens = tier.integer("input_tokens", u64::from(u32::MAX))?;
        let tokens = tokens.ok_or_else(|| tier.wrong("input_tokens", "is required"))?;
        let input_tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        above.push(Tier { input_tokens, rates: rates(tier)? });
    }
    let (model, provider) = (model.to_owned(), provider.map(str::to_owned));
    let price = Price { model, provider, asset, rates: rates(table)?, above };
    match price.check() {
        Ok(()) => Ok(price),
        Err((None, field, what)) => Err(table.wrong(field, what)),
        Err((Some(place), field, what)) => Err(tiers.get(place).unwrap_or(table).wrong(field, what)),
    }
}

fn rates(table: &Fields<'_>) -> Result<Rates, Mistake> {
    let rate = |name| table.integer(name, RATE_MAX);
    Ok(Rates {
        input: rate("input")?,
        cached_input: rate("cached_input")?,
        cache_write: rate("cache_write")?,
        cache_write_1h: rate("cache_write_1h")?,
        output: rate("output")?,
        reasoning: rate("reasoning")?,
        per_request: rate("per_request")?,
    })
}
