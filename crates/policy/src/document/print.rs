//! Writing a document as TOML.

use std::fmt;

use super::{Amount, Document, Effect, LimitUse, Rule, Unmatched};
use crate::price::{Price, Rates};

impl fmt::Display for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.unmatched == Unmatched::Allow {
            writeln!(f, "unmatched = \"allow\"")?;
        }
        self.rules.iter().try_for_each(|rule| writeln!(f, "\n{rule}"))?;
        self.prices.iter().try_for_each(|price| writeln!(f, "\n{price}"))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[[rules]]\nname = {}", Quoted(&self.name))?;
        if let Some(when) = &self.when {
            write!(f, "\nwhen = {}", Quoted(when))?;
        }
        if self.optional {
            write!(f, "\noptional = true")?;
        }
        if !self.replaces.is_empty() {
            write!(f, "\nreplaces = [")?;
            self.replaces.iter().try_for_each(|name| write!(f, "\n  {},", Quoted(name)))?;
            write!(f, "\n]")?;
        }
        match &self.effect {
            Effect::Deny(message) => write!(f, "\ndeny = {}", Quoted(message)),
            Effect::Limits(limits) => {
                write!(f, "\nlimits = [")?;
                limits.iter().try_for_each(|limit| write!(f, "\n  {limit},"))?;
                write!(f, "\n]")
            }
        }
    }
}

impl fmt::Display for LimitUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{ key = {}, amount = {}", Quoted(&self.key), self.amount)?;
        if let Some(namespace) = &self.namespace {
            write!(f, ", namespace = {}", Quoted(namespace.as_str()))?;
        }
        write!(f, " }}")
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, Amount::NAMED.iter().find(|(_, named)| named == self)) {
            (Amount::Fixed(amount), _) => write!(f, "{amount}"),
            (_, named) => write!(f, "{}", Quoted(named.map_or("", |(name, _)| name))),
        }
    }
}

impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[[prices]]\nmodel = {}", Quoted(&self.model))?;
        if let Some(provider) = &self.provider {
            write!(f, "\nprovider = {}", Quoted(provider))?;
        }
        write!(f, "\nasset = {}", Quoted(self.asset.as_str()))?;
        fields(&self.rates).try_for_each(|(name, rate)| write!(f, "\n{name} = {rate}"))?;
        if self.above.is_empty() {
            return Ok(());
        }
        write!(f, "\nabove = [")?;
        for tier in &self.above {
            write!(f, "\n  {{ input_tokens = {}", tier.input_tokens)?;
            fields(&tier.rates).try_for_each(|(name, rate)| write!(f, ", {name} = {rate}"))?;
            write!(f, " }},")?;
        }
        write!(f, "\n]")
    }
}

/// The rates that are set, with their names.
fn fields(rates: &Rates) -> impl Iterator<Item = (&'static str, u64)> {
    let Rates { input, cached_input, cache_write, cache_write_1h, output, reasoning, per_request } = *rates;
    let all = [
        ("input", input),
        ("cached_input", cached_input),
        ("cache_write", cache_write),
        ("cache_write_1h", cache_write_1h),
        ("output", output),
        ("reasoning", reasoning),
        ("per_request", per_request),
    ];
    all.into_iter().filter_map(|(name, rate)| Some((name, rate?)))
}

/// A text as a basic string of TOML.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"")?;
        for character in self.0.chars() {
            match character {
                '"' | '\\' => write!(f, "\\{character}")?,
                _ if character.is_control() => write!(f, "\\u{:04X}", u32::from(character))?,
                _ => write!(f, "{character}")?,
            }
        }
        write!(f, "\"")
    }
}
