//! Calls to language models: the requirements before a call, and the actual usage after it.
//!
//! The number of tokens is known only after a call. Before it an upper bound is reserved: a token is at least one byte, so
//! a prompt has at most as many tokens as bytes, and the output has at most the maximum of the call.
//!
//! ```
//! use earmark_client::llm::{Bytes, Model, Price, Usage};
//! use serde_json::json;
//!
//! let call = Model::new("openai", "gpt-4o")?
//!     .call(&Bytes, "Say hello.", 100)
//!     .for_tenant("acme")?
//!     .paid_from("acme:usd".parse()?, Price { input_per_million: 2_500_000, output_per_million: 10_000_000 });
//! let job = call.job()?;
//! assert_eq!(job.requirements()[1], ("global:llm:openai:gpt-4o:tpm".parse()?, 110));
//! assert_eq!(job.requirements()[4], ("acme:usd".parse()?, 1_025));
//!
//! // Later, from the response of the provider:
//! let usage = Usage::in_answer(&json!({"usage": {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}}));
//! let actuals = call.actuals(usage);
//! assert_eq!(actuals.amounts()[0], ("global:llm:openai:gpt-4o:tpm".parse()?, 6));
//! assert_eq!(actuals.amounts()[2], ("acme:usd".parse()?, 30));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod usage;

use earmark_core::{LimitKey, NameError};

use crate::job::{Actuals, Job, JobError};
use crate::scheduler::Lane;

pub use usage::{Usage, UsageMeter};

/// Computes an upper bound for the tokens of a text. Tokens beyond it become debt.
pub trait Tokenizer {
    /// An upper bound for the tokens of `text`.
    fn tokens_max(&self, text: &str) -> u64;
}

/// Counts bytes: a token is at least one byte.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bytes;

impl Tokenizer for Bytes {
    fn tokens_max(&self, text: &str) -> u64 {
        text.len() as u64
    }
}

impl<F: Fn(&str) -> u64> Tokenizer for F {
    fn tokens_max(&self, text: &str) -> u64 {
        self(text)
    }
}

/// The price of a million tokens, in minor units. A cost is rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price {
    /// The price of input tokens.
    pub input_per_million: u64,
    /// The price of output tokens.
    pub output_per_million: u64,
}

const MILLION: u128 = 1_000_000;

impl Price {
    /// The cost of these numbers of tokens.
    #[must_use]
    pub fn of(self, input: u64, output: u64) -> u64 {
        let input = u128::from(input).saturating_mul(self.input_per_million.into());
        let output = u128::from(output).saturating_mul(self.output_per_million.into());
        u64::try_from(input.saturating_add(output).div_ceil(MILLION)).unwrap_or(u64::MAX)
    }
}

/// A model of a provider, with the limits that all its callers share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    lane: Lane,
    rpm: LimitKey,
    tpm: LimitKey,
    concurrency: LimitKey,
    has_concurrency: bool,
}

impl Model {
    /// A model. Its limits are `global:llm:<provider>:<model>:rpm`, `:tpm` and `:concurrency`.
    ///
    /// # Errors
    /// When a name has characters that a limit key cannot have, such as a space.
    pub fn new(provider: &str, model: &str) -> Result<Model, NameError> {
        let key = |what: &str| format!("global:llm:{provider}:{model}:{what}").parse();
        Ok(Model {
            lane: Lane::of(provider, model),
            rpm: key("rpm")?,
            tpm: key("tpm")?,
            concurrency: key("concurrency")?,
            has_concurrency: true,
        })
    }

    /// The same model without a limit on concurrent calls.
    pub fn without_concurrency(self) -> Model {
        Model { has_concurrency: false, ..self }
    }

    /// The lane of the model.
    pub const fn lane(&self) -> &Lane {
        &self.lane
    }

    /// The limit on requests per minute.
    pub const fn rpm(&self) -> &LimitKey {
        &self.rpm
    }

    /// The limit on tokens per minute.
    pub const fn tpm(&self) -> &LimitKey {
        &self.tpm
    }

    /// The limit on concurrent calls.
    pub const fn concurrency(&self) -> &LimitKey {
        &self.concurrency
    }

    /// A call with this complete prompt and at most `output_max` output tokens.
    #[must_use]
    pub fn call(&self, tokenizer: &(impl Tokenizer + ?Sized), prompt: &str, output_max: u64) -> Call {
        let input_max = tokenizer.tokens_max(prompt);
        Call { model: self.clone(), input_max, output_max, tenant: None, credit: None }
    }
}

/// A call to a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    model: Model,
    input_max: u64,
    output_max: u64,
    tenant: Option<LimitKey>,
    credit: Option<(LimitKey, Price)>,
}

impl Call {
    /// The same call for a tenant, with the limit `tenant:<id>:llm:daily_tokens`.
    ///
    /// # Errors
    /// When the id has characters that a limit key cannot have.
    pub fn for_tenant(self, id: &str) -> Result<Call, NameError> {
        let tenant = Some(format!("tenant:{id}:llm:daily_tokens").parse()?);
        Ok(Call { tenant, ..self })
    }

    /// The same call, paid from the account of this credit limit.
    #[must_use]
    pub fn paid_from(self, key: LimitKey, price: Price) -> Call {
        Call { credit: Some((key, price)), ..self }
    }

    /// The upper bound of its tokens.
    pub const fn tokens_max(&self) -> u64 {
        self.input_max.saturating_add(self.output_max)
    }

    /// The requirements of the call.
    ///
    /// # Errors
    /// When two of its limits have the same key.
    pub fn job(&self) -> Result<Job, JobError> {
        let tokens = self.tokens_max().max(1);
        let mut needs = vec![(self.model.rpm.clone(), 1), (self.model.tpm.clone(), tokens)];
        if self.model.has_concurrency {
            needs.push((self.model.concurrency.clone(), 1));
        }
        needs.extend(self.tenant.clone().map(|tenant| (tenant, tokens)));
        if let Some((key, price)) = &self.credit {
            let cost_max = price.of(self.input_max, self.output_max);
            // A free call needs no hold.
            needs.extend((cost_max > 0).then(|| (key.clone(), cost_max)));
        }
        Job::new(needs)
    }

    /// The actual usage of the call. Without a usage from the provider everything that was reserved counts as used. A
    /// usage of 0 frees everything.
    #[must_use]
    pub fn actuals(&self, usage: Option<Usage>) -> Actuals {
        let Some(usage) = usage else { return Actuals::unknown() };
        let mut actuals = Actuals::unknown().used(self.model.tpm.clone(), usage.total());
        if let Some(tenant) = &self.tenant {
            actuals = actuals.used(tenant.clone(), usage.total());
        }
        if let Some((key, price)) = &self.credit
            && price.of(self.input_max, self.output_max) > 0
        {
            // Tokens in the total only, such as reasoning, cost as much as output.
            let output = usage.total().saturating_sub(usage.input);
            actuals = actuals.used(key.clone(), price.of(usage.input, output));
        }
        actuals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> LimitKey {
        text.parse().unwrap()
    }

    fn model() -> Model {
        Model::new("openai", "gpt-4o").unwrap()
    }

    #[test]
    fn a_call_needs_the_limits_of_its_model_and_its_tenant() {
        let price = Price { input_per_million: 1, output_per_million: 1 };
        let call = model().call(&Bytes, "grüß", 10).for_tenant("acme").unwrap().paid_from(key("usd"), price);
        let expected = [
            (key("global:llm:openai:gpt-4o:rpm"), 1),
            (key("global:llm:openai:gpt-4o:tpm"), 16),
            (key("global:llm:openai:gpt-4o:concurrency"), 1),
            (key("tenant:acme:llm:daily_tokens"), 16),
            (key("usd"), 1),
        ];
        assert_eq!(call.job().unwrap().requirements(), expected);
        let bare = model().without_concurrency().call(&Bytes, "", 0);
        assert_eq!(bare.job().unwrap().requirements(), [expected[0].clone(), (expected[1].0.clone(), 1)]);
    }

    #[test]
    fn a_tokenizer_can_be_plugged_in() {
        let quarter = |text: &str| (text.len() as u64).div_ceil(4);
        assert_eq!(model().call(&quarter, "12345678", 1).tokens_max(), 3);
    }

    #[test]
    fn a_usage_of_nothing_is_not_a_missing_usage() {
        let price = Price { input_per_million: 5_000_000, output_per_million: 0 };
        let call = model().call(&Bytes, "hello", 10).for_tenant("acme").unwrap().paid_from(key("usd"), price);
        assert_eq!(call.actuals(None), Actuals::unknown());
        let nothing = call.actuals(Some(Usage { input: 0, output: 0, total: 0 }));
        let zeros: Vec<u64> = nothing.amounts().iter().map(|(_, amount)| *amount).collect();
        assert_eq!(zeros, [0, 0, 0]);
    }

    #[test]
    fn a_cost_is_rounded_up_and_never_overflows() {
        let price = Price { input_per_million: 3, output_per_million: 15 };
        assert_eq!(price.of(0, 0), 0);
        assert_eq!(price.of(1, 0), 1);
        assert_eq!(price.of(1_000_000, 1_000_000), 18);
        assert_eq!(price.of(1_000_001, 1_000_000), 19);
        let dear = Price { input_per_million: u64::MAX, output_per_million: u64::MAX };
        assert_eq!(dear.of(u64::MAX, u64::MAX), u64::MAX);
    }

    /// A provider counted reasoning tokens in the total only. They counted for the token limits and cost nothing.
    #[test]
    fn tokens_in_the_total_only_are_paid_as_output() {
        let price = Price { input_per_million: 1_000_000, output_per_million: 10_000_000 };
        let call = model().call(&Bytes, "hello", 100).paid_from(key("usd"), price);
        let cost = |usage: Usage| {
            let actuals = call.actuals(Some(usage));
            actuals.amounts().iter().find(|(name, _)| *name == key("usd")).map(|(_, amount)| *amount)
        };
        assert_eq!(cost(Usage { input: 3, output: 2, total: 9 }), Some(3 + 60));
        assert_eq!(cost(Usage { input: 3, output: 2, total: 0 }), Some(3 + 20));
    }

    #[test]
    fn a_free_call_holds_no_credit() {
        let free = Price { input_per_million: 0, output_per_million: 0 };
        let call = model().call(&Bytes, "hello", 10).paid_from(key("usd"), free);
        assert!(call.job().unwrap().requirements().iter().all(|(name, _)| *name != key("usd")));
        let actuals = call.actuals(Some(Usage { input: 1, output: 1, total: 2 }));
        assert!(actuals.amounts().iter().all(|(name, _)| *name != key("usd")));
    }

    #[test]
    fn names_that_make_no_key_are_refused() {
        assert!(Model::new("openai", "a b").is_err());
        assert!(model().call(&Bytes, "", 1).for_tenant("a b").is_err());
    }
}
