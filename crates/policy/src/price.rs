//! Prices: rates in minor units for a million tokens, in exact integers.

mod decimal;
mod import;
mod table;
#[cfg(test)]
pub(crate) mod tests;

pub use import::{Import, ImportOptions, SCALE_MAX, Skipped, import};
pub(crate) use table::PriceTable;

use earmark_core::AssetName;

use crate::mistake::quoted;

/// The maximum rate: minor units for a million tokens, or for a request. With at most 2^32 - 1 tokens each way no cost
/// overflows 64 bits.
pub const RATE_MAX: u64 = 1_000_000_000_000;
/// The maximum number of tiers of a price.
pub const TIERS_MAX: usize = 8;
/// The maximum length of the name of a model or provider in bytes: that of an attribute.
pub(crate) const MODEL_BYTES_MAX: usize = earmark_core::ATTRIBUTE_VALUE_BYTES_MAX;
/// The tokens that a rate is for.
const TOKENS_PER_RATE: u128 = 1_000_000;

/// The price of a model, or of all models whose names begin alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Price {
    /// The name of the model. A `*` at its end stands for any text.
    pub model: String,
    /// The provider. `None` applies to every provider.
    pub provider: Option<String>,
    /// The asset that the cost is in.
    pub asset: AssetName,
    /// The rates of ordinary calls. Input and output are required.
    pub rates: Rates,
    /// The rates of calls with more input, by rising input.
    pub above: Vec<Tier>,
}

/// Rates in minor units for a million tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Input tokens.
    pub input: Option<u64>,
    /// Input tokens that were read from a cache; `None` costs as much as input.
    pub cached_input: Option<u64>,
    /// Input tokens that were written to a cache; `None` costs as much as input.
    pub cache_write: Option<u64>,
    /// Input tokens that were written to a cache for an hour; `None` costs as much as `cache_write`.
    pub cache_write_1h: Option<u64>,
    /// Output tokens.
    pub output: Option<u64>,
    /// Output tokens of reasoning; `None` costs as much as output.
    pub reasoning: Option<u64>,
    /// Minor units for the request itself; `None` is 0.
    pub per_request: Option<u64>,
}

/// The rates of calls with much input. They apply to the whole call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tier {
    /// Calls with more input tokens than this are in the tier.
    pub input_tokens: u32,
    /// The rates. Those that are `None` are the rates of the tier before.
    pub rates: Rates,
}

/// The usage of a call. Cached and written tokens are part of the input, reasoning tokens part of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All input tokens.
    pub input_tokens: u32,
    /// All output tokens.
    pub output_tokens: u32,
    /// Input tokens that were read from a cache.
    pub cached_input_tokens: u32,
    /// Input tokens that were written to a cache.
    pub cache_write_tokens: u32,
    /// Input tokens that were written to a cache for an hour.
    pub cache_write_1h_tokens: u32,
    /// Output tokens of reasoning.
    pub reasoning_tokens: u32,
}

/// Rates without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Filled {
    input: u64,
    cached_input: u64,
    cache_write: u64,
    cache_write_1h: u64,
    output: u64,
    reasoning: u64,
    per_request: u64,
}

impl Rates {
    /// These rates, with those of `below` where they have none.
    fn or(self, below: Rates) -> Rates {
        Rates {
            input: self.input.or(below.input),
            cached_input: self.cached_input.or(below.cached_input),
            cache_write: self.cache_write.or(below.cache_write),
            // Written for an hour is never cheaper than written for less.
            cache_write_1h: self.cache_write_1h.or(below.cache_write_1h.max(self.cache_write)),
            output: self.output.or(below.output),
            reasoning: self.reasoning.or(below.reasoning),
            per_request: self.per_request.or(below.per_request),
        }
    }

    fn filled(self) -> Filled {
        let (input, output) = (self.input.unwrap_or(0), self.output.unwrap_or(0));
        let cache_write = self.cache_write.unwrap_or(input);
        Filled {
            input,
            cached_input: self.cached_input.unwrap_or(input),
            cache_write,
            cache_write_1h: self.cache_write_1h.unwrap_or(cache_write),
            output,
            reasoning: self.reasoning.unwrap_or(output),
            per_request: self.per_request.unwrap_or(0),
        }
    }
}

impl Filled {
    /// The rates with their names.
    fn fields(&self) -> [(&'static str, u64); 7] {
        [
            ("input", self.input),
            ("cached_input", self.cached_input),
            ("cache_write", self.cache_write),
            ("cache_write_1h", self.cache_write_1h),
            ("output", self.output),
            ("reasoning", self.reasoning),
            ("per_request", self.per_request),
        ]
    }

    /// The exact cost of a usage, rounded up once.
    fn cost(&self, usage: &Usage) -> u64 {
        // Tokens that are counted as two parts are counted as the first of these, so that more cached tokens never cost
        // more.
        let hour = usage.cache_write_1h_tokens.min(usage.input_tokens);
        let rest = usage.input_tokens.saturating_sub(hour);
        let written = usage.cache_write_tokens.min(rest);
        let rest = rest.saturating_sub(written);
        let cached = usage.cached_input_tokens.min(rest);
        let fresh = rest.saturating_sub(cached);
        let reasoning = usage.reasoning_tokens.min(usage.output_tokens);
        let spoken = usage.output_tokens.saturating_sub(reasoning);
        self.sum([
            (fresh, self.input),
            (cached, self.cached_input),
            (written, self.cache_write),
            (hour, self.cache_write_1h),
            (spoken, self.output),
            (reasoning, self.reasoning),
        ])
    }

    /// The cost if every token has the dearest rate that it may have.
    fn bound(&self, input_tokens: u32, output_tokens: u32) -> u64 {
        let input = self.input.max(self.cached_input).max(self.cache_write).max(self.cache_write_1h);
        self.sum([(input_tokens, input), (output_tokens, self.output.max(self.reasoning))])
    }

    /// The cost of output alone if every token has the dearest rate that it may have.
    fn output_bound(&self, output_tokens: u32) -> u64 {
        Filled { per_request: 0, ..*self }.sum([(output_tokens, self.output.max(self.reasoning))])
    }

    fn sum<const N: usize>(&self, parts: [(u32, u64); N]) -> u64 {
        let product = |(tokens, rate): (u32, u64)| u128::from(tokens).saturating_mul(u128::from(rate));
        let tokens = parts.into_iter().map(product).fold(0_u128, u128::saturating_add);
        let cost = tokens.div_ceil(TOKENS_PER_RATE).saturating_add(u128::from(self.per_request));
        u64::try_from(cost).unwrap_or(u64::MAX)
    }
}

impl Price {
    /// The cost of a call, by the rates of its tier.
    #[must_use]
    pub fn cost(&self, usage: &Usage) -> u64 {
        let mut rates = self.rates;
        for tier in self.above.iter().take_while(|tier| usage.input_tokens > tier.input_tokens) {
            rates = tier.rates.or(rates);
        }
        rates.filled().cost(usage)
    }

    /// The most that a call within these bounds can cost.
    #[must_use]
    pub fn bound(&self, input_tokens_max: u32, output_tokens_max: u32) -> u64 {
        let mut rates = self.rates;
        let mut bound = rates.filled().bound(input_tokens_max, output_tokens_max);
        for tier in self.above.iter().take_while(|tier| input_tokens_max > tier.input_tokens) {
            rates = tier.rates.or(rates);
            bound = bound.max(rates.filled().bound(input_tokens_max, output_tokens_max));
        }
        bound
    }

    /// The most that further output tokens of a call can cost, whatever its tier.
    #[must_use]
    pub fn output_bound(&self, output_tokens: u32) -> u64 {
        let mut rates = self.rates;
        let mut bound = rates.filled().output_bound(output_tokens);
        for tier in &self.above {
            rates = tier.rates.or(rates);
            bound = bound.max(rates.filled().output_bound(output_tokens));
        }
        bound
    }

    /// Checks the rates: cached input is not dearer than input, and tiers rise in input and in every rate. Without that a
    /// call could cost less by using more. Returns the tier and the field of the mistake.
    pub(crate) fn check(&self) -> Result<(), (Option<usize>, &'static str, String)> {
        let mut rates = self.rates;
        let mut filled = rates.filled();
        let mut tokens: Option<u32> = None;
        check_cached(&filled).map_err(|what| (None, "cached_input", what))?;
        for (place, tier) in self.above.iter().enumerate() {
            if let Some(before) = tokens.filter(|before| tier.input_tokens <= *before) {
                let what = format!("found {}, allowed is more than {before}, the tier before", tier.input_tokens);
                return Err((Some(place), "input_tokens", what));
            }
            rates = tier.rates.or(rates);
            let next = rates.filled();
            let lower = next.fields().into_iter().zip(filled.fields()).find(|((_, rate), (_, below))| rate < below);
            if let Some(((name, rate), (_, below))) = lower {
                let what = format!("found {rate}, allowed is at least {below}, the rate of calls with less input");
                return Err((Some(place), name, what));
            }
            check_cached(&next).map_err(|what| (Some(place), "cached_input", what))?;
            (filled, tokens) = (next, Some(tier.input_tokens));
        }
        Ok(())
    }
}

fn check_cached(rates: &Filled) -> Result<(), String> {
    let Filled { input, cached_input, .. } = rates;
    if cached_input > input {
        return Err(format!("found {cached_input}, allowed is at most {input}, the rate of input"));
    }
    Ok(())
}

/// Checks the name of a model in a price: a `*` only at its end.
pub(crate) fn check_model(model: &str) -> Result<(), String> {
    if model.is_empty() || model.len() > MODEL_BYTES_MAX || model.contains(char::is_control) {
        let what = format!("allowed are 1 to {MODEL_BYTES_MAX} bytes without control characters");
        return Err(format!("found {} bytes, {what}", model.len()));
    }
    let literal = model.strip_suffix('*').unwrap_or(model);
    if literal.contains('*') {
        return Err(format!("found {}, allowed is one * at the end", quoted(model)));
    }
    Ok(())
}
