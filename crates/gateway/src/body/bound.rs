//! The most tokens that a call may use.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::scan::zero_generates_nothing;
use super::tokens::{Encoding, TOKENIZED_BYTES_MAX, tokens_max};
use super::{BodyRefusal, CallBody};
use crate::api::Endpoint;

/// Input tokens that a provider adds to a call, by default: prompts for tools, and templates.
pub const INPUT_OVERHEAD_TOKENS: u32 = 512;

/// The rules of a model at a target, from the configuration.
#[derive(Clone, Debug)]
pub struct ModelRules {
    /// The model's context. The input bound is at most this.
    pub max_input_tokens: Option<u32>,
    /// The cap for calls that have none.
    pub max_output_tokens: Option<u32>,
    /// The input tokens of each image or file. `None` refuses them.
    pub max_media_tokens: Option<u32>,
    /// Input tokens on top of the body.
    pub input_overhead_tokens: u32,
    /// The way to estimate the input.
    pub estimate: Estimate,
    /// The cap that the upstream understands in chat completions.
    pub cap_field: CapField,
    /// Fields, tools and contents that are allowed by name, such as `previous_response_id` or `tools.web_search`.
    pub allow: BTreeMap<String, Allowance>,
}

impl Default for ModelRules {
    fn default() -> ModelRules {
        ModelRules {
            max_input_tokens: None,
            max_output_tokens: None,
            max_media_tokens: None,
            input_overhead_tokens: INPUT_OVERHEAD_TOKENS,
            estimate: Estimate::Bytes,
            cap_field: CapField::MaxCompletionTokens,
            allow: BTreeMap::new(),
        }
    }
}

/// The bound and the fee of something that is refused by default. Each use adds them to the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Input tokens that one use may cause.
    pub max_input_tokens: u32,
    /// Output tokens that one use may cause.
    pub max_output_tokens: u32,
    /// Output tokens that one use is charged, on top of the usage.
    pub fee_output_tokens: u32,
}

/// The way to estimate the input of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Estimate {
    /// The bytes of the body. A token has at least one.
    #[default]
    Bytes,
    /// The tokens of the body's texts, if the model's encoding is known; otherwise its bytes.
    Tokenizer(Option<Encoding>),
}

impl Estimate {
    /// Whether this build has the tokenizers.
    pub const HAS_TOKENIZER: bool = cfg!(feature = "tokenizer");

    /// The estimate for a model of an upstream.
    #[must_use]
    pub fn for_model(self, upstream_model: &str) -> Estimate {
        match self {
            Estimate::Bytes => Estimate::Bytes,
            Estimate::Tokenizer(_) => Estimate::Tokenizer(Encoding::of(upstream_model)),
        }
    }
}

impl FromStr for Estimate {
    type Err = String;

    fn from_str(text: &str) -> Result<Estimate, String> {
        match text {
            "bytes" => Ok(Estimate::Bytes),
            "tokenizer" if Estimate::HAS_TOKENIZER => Ok(Estimate::Tokenizer(None)),
            "tokenizer" => Err("found \"tokenizer\", which needs a build with --features tokenizer; allowed is \
                 \"bytes\""
                .to_owned()),
            other => Err(format!("found {other:?}, allowed are \"bytes\" and \"tokenizer\"")),
        }
    }
}

/// The cap on the output that an upstream of OpenAI's API understands in chat completions. Other endpoints have one cap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CapField {
    /// `max_tokens` only, as older model servers do. A call that has another cap gets this one too.
    MaxTokens,
    /// `max_completion_tokens`, and `max_tokens` as its older name.
    #[default]
    MaxCompletionTokens,
}

impl CapField {
    /// The name of the field.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            CapField::MaxTokens => "max_tokens",
            CapField::MaxCompletionTokens => "max_completion_tokens",
        }
    }

    /// The caps that an upstream obeys at an endpoint. The first is inserted where a call has none of them.
    const fn obeyed(self, endpoint: Endpoint) -> &'static [&'static str] {
        match (endpoint, self) {
            (Endpoint::Chat, CapField::MaxCompletionTokens) => &["max_completion_tokens", "max_tokens"],
            (Endpoint::Responses, _) => &["max_output_tokens"],
            _ => &["max_tokens"],
        }
    }
}

impl fmt::Display for CapField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CapField {
    type Err = String;

    fn from_str(text: &str) -> Result<CapField, String> {
        [CapField::MaxTokens, CapField::MaxCompletionTokens]
            .into_iter()
            .find(|field| field.name() == text)
            .ok_or_else(|| format!("found {text:?}, allowed are \"max_tokens\" and \"max_completion_tokens\""))
    }
}

/// The bounds of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The most input tokens.
    pub input_tokens_max: u32,
    /// The most output tokens, of all answers together.
    pub output_tokens_max: u32,
    /// Output tokens to add to the usage when the call is settled: fees of what the configuration allows.
    pub fee_output_tokens: u32,
    /// The cap to insert into the body.
    pub inserted_cap: Option<InsertedCap>,
}

/// A cap that the call lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InsertedCap {
    /// The field.
    pub field: &'static str,
    /// Its value.
    pub tokens: u32,
}

/// The sum of the allowances of a call.
#[derive(Default)]
struct Extra {
    input: u64,
    output: u64,
    fee: u64,
}

pub(super) fn bound(call: &CallBody, body: &[u8], rules: &ModelRules) -> Result<Bound, BodyRefusal> {
    let extra = allowed(call, rules)?;
    if call.endpoint == Endpoint::CountTokens {
        return Ok(Bound { input_tokens_max: 0, output_tokens_max: 0, fee_output_tokens: 0, inserted_cap: None });
    }
    let input_tokens_max = input(call, body, rules, extra.input)?;
    let (output, inserted_cap) = if call.endpoint.generates() { output(call, rules)? } else { (0, None) };
    let field = rules.cap_field.obeyed(call.endpoint).first().copied().unwrap_or_default();
    let fee_output_tokens = u32::try_from(extra.fee).map_err(|_| BodyRefusal::TooMuchOutput { field })?;
    let output = output.saturating_add(extra.output).saturating_add(extra.fee);
    let output_tokens_max = u32::try_from(output).map_err(|_| BodyRefusal::TooMuchOutput { field })?;
    Ok(Bound { input_tokens_max, output_tokens_max, fee_output_tokens, inserted_cap })
}

/// Checks that everything found is allowed.
fn allowed(call: &CallBody, rules: &ModelRules) -> Result<Extra, BodyRefusal> {
    let mut extra = Extra::default();
    for finding in &call.findings {
        let Some(allowance) = rules.allow.get(&finding.name) else {
            return Err(BodyRefusal::NotAllowed { field: finding.field.clone(), name: finding.name.clone() });
        };
        let add = |sum: u64, each: u32| sum.saturating_add(u64::from(each).saturating_mul(u64::from(finding.count)));
        extra.input = add(extra.input, allowance.max_input_tokens);
        extra.output = add(extra.output, allowance.max_output_tokens);
        extra.fee = add(extra.fee, allowance.fee_output_tokens);
    }
    Ok(extra)
}

fn input(call: &CallBody, body: &[u8], rules: &ModelRules, extra: u64) -> Result<u32, BodyRefusal> {
    let media = match (call.media, rules.max_media_tokens) {
        (0, _) => 0,
        (_, None) => {
            let field = if call.endpoint == Endpoint::Responses { "input" } else { "messages" };
            return Err(BodyRefusal::Media { field: field.to_owned() });
        }
        (count, Some(each)) => u64::from(count).saturating_mul(u64::from(each)),
    };
    debug_assert_eq!(body.len(), call.body_bytes, "the bound is of the body that was scanned");
    let bytes = call.body_bytes.saturating_sub(call.media_bytes);
    let text = match rules.estimate {
        // Media are no text, and would be tokenized as if they were.
        Estimate::Tokenizer(Some(encoding)) if call.media == 0 && bytes <= TOKENIZED_BYTES_MAX => {
            tokens_max(encoding, body).min(bytes)
        }
        Estimate::Tokenizer(_) | Estimate::Bytes => bytes,
    };
    let tokens = u64::try_from(text)
        .unwrap_or(u64::MAX)
        .saturating_add(u64::from(rules.input_overhead_tokens))
        .saturating_add(media)
        .saturating_add(extra);
    let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
    Ok(rules.max_input_tokens.map_or(tokens, |max| tokens.min(max)))
}

/// The most output of all answers, and the cap to insert.
fn output(call: &CallBody, rules: &ModelRules) -> Result<(u64, Option<InsertedCap>), BodyRefusal> {
    let obeyed = rules.cap_field.obeyed(call.endpoint);
    let field = obeyed.first().copied().unwrap_or_default();
    let present = |cap: &&super::Cap| cap.tokens.is_some();
    let largest = call.caps.iter().filter_map(|cap| cap.tokens).max();
    let has_zero = call.caps.iter().any(|cap| cap.tokens == Some(0)) && !zero_generates_nothing(call.endpoint);
    let is_obeyed = call.caps.iter().filter(present).any(|cap| obeyed.contains(&cap.field));
    // A cap that the upstream may ignore bounds nothing, so the one that it obeys is inserted with the same value.
    let wanted = largest.filter(|_| !has_zero);
    let configured = || rules.max_output_tokens.ok_or(BodyRefusal::NoCap { field });
    let (tokens, inserted_cap) = match (wanted, is_obeyed) {
        (Some(tokens), true) => (tokens, None),
        (Some(tokens), false) => (tokens, Some(InsertedCap { field, tokens })),
        // A 0 that the upstream obeys stays; as some servers read it as "no cap", the configured maximum is the bound.
        (None, true) => (configured()?.max(largest.unwrap_or(0)), None),
        (None, false) => {
            let tokens = configured()?;
            (tokens.max(largest.unwrap_or(0)), Some(InsertedCap { field, tokens }))
        }
    };
    let answers = u64::from(call.choices.max(1)).saturating_mul(u64::try_from(call.prompts.max(1)).unwrap_or(u64::MAX));
    let prediction = u64::try_from(call.prediction_bytes).unwrap_or(u64::MAX);
    let each = u64::from(tokens.max(call.thinking_budget)).saturating_add(prediction);
    Ok((each.saturating_mul(answers), inserted_cap))
}
