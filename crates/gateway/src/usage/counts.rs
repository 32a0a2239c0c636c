//! The tokens that an answer or a stream reports.

use std::fmt;

use earmark_client::CallUsage;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::TOKENS_MAX;
use crate::api::Endpoint;

/// The longest name of a service tier, in bytes.
const TIER_BYTES_MAX: usize = 64;

/// The tokens that were reported so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    input: Option<u64>,
    output: Option<u64>,
    total: Option<u64>,
    /// Input that was read from a cache.
    cached: Option<u64>,
    /// Input that was written to a cache, for whatever time.
    written: Option<u64>,
    /// Input that was written to a cache for an hour.
    written_1h: Option<u64>,
    reasoning: Option<u64>,
    tier: Option<String>,
}

impl Counts {
    /// Adds what a usage reports: the largest number of each field counts. Returns whether it is an object.
    pub(super) fn merge(&mut self, usage: &[u8]) -> bool {
        let mut all = self.clone();
        let mut json = serde_json::Deserializer::from_slice(usage);
        let read = Part { counts: &mut all, of: "" }.deserialize(&mut json);
        // A usage that is not JSON reports nothing.
        let is_object = read.and_then(|is_object| json.end().map(|()| is_object)).unwrap_or(false);
        if is_object {
            *self = all;
        }
        is_object
    }

    pub(super) fn set_tier(&mut self, tier: Option<Value>) {
        if let Some(Value::String(tier)) = tier
            && (1..=TIER_BYTES_MAX).contains(&tier.len())
        {
            self.tier = Some(tier);
        }
    }

    /// The usage, if enough was reported.
    pub(super) fn usage(&self, endpoint: Endpoint) -> Option<CallUsage> {
        let (input, output) = match endpoint {
            Endpoint::CountTokens => return Some(CallUsage::default()),
            Endpoint::Models | Endpoint::Flat => return None,
            Endpoint::Embeddings => (self.input.max(self.total)?, 0),
            Endpoint::Messages => {
                // Anthropic counts tokens of the cache apart from the others.
                let input = [self.input?, self.cached.unwrap_or(0), self.written_in_all()];
                (input.into_iter().fold(0, u64::saturating_add).min(TOKENS_MAX), self.output?)
            }
            Endpoint::Chat | Endpoint::Completions | Endpoint::Responses => {
                let input = self.input?;
                // Some providers leave reasoning out of the output, but not out of the total.
                (input, self.output.max(self.total.map(|total| total.saturating_sub(input)))?)
            }
        };
        let written_1h = self.written_1h.unwrap_or(0);
        let part = |tokens: Option<u64>, whole: u64| tokens.map(|tokens| tokens.min(whole));
        Some(CallUsage {
            input_tokens: input,
            output_tokens: output,
            cached_input_tokens: part(self.cached, input),
            cache_write_tokens: part(self.written.map(|written| written.saturating_sub(written_1h)), input),
            cache_write_1h_tokens: part(self.written_1h, input),
            reasoning_tokens: part(self.reasoning, output),
            service_tier: self.tier.clone(),
        })
    }

    fn written_in_all(&self) -> u64 {
        self.written.max(self.written_1h).unwrap_or(0)
    }
}

/// A member of a usage.
enum Member {
    Count(fn(&mut Counts) -> &mut Option<u64>),
    /// An object with further counts.
    Details(&'static str),
    Tier,
    Other,
}

impl Member {
    /// The member with this key, in the usage itself or in one of its details.
    fn of(of: &str, key: &str) -> Member {
        match (of, key) {
            ("", "prompt_tokens" | "input_tokens") => Member::Count(|counts| &mut counts.input),
            ("", "completion_tokens" | "output_tokens") => Member::Count(|counts| &mut counts.output),
            ("", "total_tokens") => Member::Count(|counts| &mut counts.total),
            ("", "cache_read_input_tokens") | (PROMPT | INPUT, "cached_tokens") => {
                Member::Count(|counts| &mut counts.cached)
            }
            ("", "cache_creation_input_tokens") | (PROMPT | INPUT, "cache_write_tokens") => {
                Member::Count(|counts| &mut counts.written)
            }
            (CACHE, "ephemeral_1h_input_tokens") => Member::Count(|counts| &mut counts.written_1h),
            (COMPLETION | OUTPUT, "reasoning_tokens") | (OUTPUT, "thinking_tokens") => {
                Member::Count(|counts| &mut counts.reasoning)
            }
            ("", "service_tier") => Member::Tier,
            ("", key) => match DETAILS.iter().find(|name| **name == key) {
                Some(name) => Member::Details(name),
                None => Member::Other,
            },
            _ => Member::Other,
        }
    }
}

const PROMPT: &str = "prompt_tokens_details";
const INPUT: &str = "input_tokens_details";
const COMPLETION: &str = "completion_tokens_details";
const OUTPUT: &str = "output_tokens_details";
const CACHE: &str = "cache_creation";
const DETAILS: [&str; 5] = [PROMPT, INPUT, COMPLETION, OUTPUT, CACHE];

/// Reads a usage, or an object in it. Values of other types are skipped.
struct Part<'a> {
    counts: &'a mut Counts,
    of: &'static str,
}

/// Reads a key.
struct Key(&'static str);

/// Reads a number of tokens. Some servers write it with a fraction.
struct Tokens;

/// The methods of a visitor that skips values of these types.
macro_rules! skips {
    ($($method:ident: $type:ty),*) => {
        $(fn $method<E: Error>(self, _: $type) -> Result<Self::Value, E> {
            Ok(Self::Value::default())
        })*

        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok(Self::Value::default())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            Ok(Self::Value::default())
        }

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("any value")
        }
    };
}

impl<'de> DeserializeSeed<'de> for Part<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Part<'_> {
    /// Whether it is an object.
    type Value = bool;

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let Part { counts, of } = self;
        while let Some(member) = map.next_key_seed(Key(of))? {
            match member {
                Member::Count(count) => {
                    let count = count(counts);
                    *count = (*count).max(map.next_value_seed(Tokens)?);
                }
                Member::Details(of) => drop(map.next_value_seed(Part { counts: &mut *counts, of })?),
                Member::Tier => counts.set_tier(Some(map.next_value()?)),
                Member::Other => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(true)
    }

    skips!(visit_bool: bool, visit_u64: u64, visit_i64: i64, visit_f64: f64, visit_str: &str);
}

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Member;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Member, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Key {
    type Value = Member;

    fn visit_str<E: Error>(self, key: &str) -> Result<Member, E> {
        Ok(Member::of(self.0, key))
    }

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }
}

impl<'de> DeserializeSeed<'de> for Tokens {
    type Value = Option<u64>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<u64>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tokens {
    type Value = Option<u64>;

    fn visit_u64<E: Error>(self, tokens: u64) -> Result<Option<u64>, E> {
        Ok(Some(tokens.min(TOKENS_MAX)))
    }

    fn visit_f64<E: Error>(self, tokens: f64) -> Result<Option<u64>, E> {
        Ok((tokens >= 0.0).then(|| (tokens.ceil() as u64).min(TOKENS_MAX)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<u64>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    // A negative number of tokens says nothing.
    skips!(visit_bool: bool, visit_i64: i64, visit_str: &str);
}
