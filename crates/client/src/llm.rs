//! Calls of language models: what to reserve before, and what to say after.
//!
//! How many tokens a call takes is known only after it. Before, an upper bound is reserved: no token is shorter than a
//! byte, so a prompt has at most as many tokens as bytes, and the output has at most as many as the call allows.
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
//! // Later, from the answer of the provider:
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

/// Says how many tokens a text has at most. It must not say too few: what goes beyond is debt.
pub trait Tokenizer {
    /// The most tokens that `text` may have.
    fn tokens_max(&self, text: &str) -> u64;
}

/// Counts bytes: no token is shorter than one.
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

/// What tokens cost, in minor units for a million of them. A cost is rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price {
    /// Of the prompt.
    pub input_per_million: u64,
    /// Of the answer.
    pub output_per_million: u64,
}

const MILLION: u128 = 1_000_000;

impl Price {
    /// What so many tokens cost.
    #[must_use]
    pub fn of(self, input: u64, output: u64) -> u64 {
        let input = u128::from(input).saturating_mul(self.input_per_million.into());
        let output = u128::from(output).saturating_mul(self.output_per_million.into());
        u64::try_from(input.saturating_add(output).div_ceil(MILLION)).unwrap_or(u64::MAX)
    }
}

/// A model of a provider, and the limits that all its callers share.
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
    /// When the names have characters that a key has not. A `/` in the name of a model must be replaced, by `:` say.
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

    /// The same model where nobody limits how many calls there are at once.
    #[must_use]
    pub fn without_concurrency(self) -> Model {
        Model { has_concurrency: false, ..self }
    }

    /// Its queue.
    #[must_use]
    pub const fn lane(&self) -> &Lane {
        &self.lane
    }

    /// The limit of requests a minute.
    #[must_use]
    pub const fn rpm(&self) -> &LimitKey {
        &self.rpm
    }

    /// The limit of tokens a minute.
    #[must_use]
    pub const fn tpm(&self) -> &LimitKey {
        &self.tpm
    }

    /// The limit of calls at once.
    #[must_use]
    pub const fn concurrency(&self) -> &LimitKey {
        &self.concurrency
    }

    /// A call with this prompt, all of it that is sent, whose answer has at most so many tokens.
    #[must_use]
    pub fn call(&self, tokenizer: &(impl Tokenizer + ?Sized), prompt: &str, output_max: u64) -> Call {
        let input_max = tokenizer.tokens_max(prompt);
        Call { model: self.clone(), input_max, output_max, tenant: None, credit: None }
    }
}

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    model: Model,
    input_max: u64,
    output_max: u64,
    tenant: Option<LimitKey>,
    credit: Option<(LimitKey, Price)>,
}

impl Call {
    /// The same for a tenant, whose limit is `tenant:<id>:llm:daily_tokens`.
    ///
    /// # Errors
    /// When the id has characters that a key has not.
    pub fn for_tenant(self, id: &str) -> Result<Call, NameError> {
        let tenant = Some(format!("tenant:{id}:llm:daily_tokens").parse()?);
        Ok(Call { tenant, ..self })
    }

    /// The same, paid by the account behind this limit of kind credit.
    #[must_use]
    pub fn paid_from(self, key: LimitKey, price: Price) -> Call {
        Call { credit: Some((key, price)), ..self }
    }

    /// The most tokens that it may take.
    #[must_use]
    pub const fn tokens_max(&self) -> u64 {
        self.input_max.saturating_add(self.output_max)
    }

    /// What it needs.
    ///
    /// # Errors
    /// When its limits are not all different.
    pub fn job(&self) -> Result<Job, JobError> {
        let tokens = self.tokens_max().max(1);
        let mut needs = vec![(self.model.rpm.clone(), 1), (self.model.tpm.clone(), tokens)];
        if self.model.has_concurrency {
            needs.push((self.model.concurrency.clone(), 1));
        }
        needs.extend(self.tenant.clone().map(|tenant| (tenant, tokens)));
        if let Some((key, price)) = &self.credit {
            let cost_max = price.of(self.input_max, self.output_max);
            // What is free holds nothing.
            needs.extend((cost_max > 0).then(|| (key.clone(), cost_max)));
        }
        Job::new(needs)
    }

    /// What it used, as the provider says; if the provider did not say, everything that was reserved counts. A usage
    /// of 0 was said, and gives everything back.
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
            // What a provider counts beside the two, thoughts for the most part, costs as much as output.
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

    /// A provider counted thoughts in the total alone. The limits on tokens were told of them, and the bill was not.
    #[test]
    fn what_a_total_has_beside_input_and_output_is_paid_as_output() {
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
    fn what_is_free_holds_no_credit() {
        let free = Price { input_per_million: 0, output_per_million: 0 };
        let call = model().call(&Bytes, "hello", 10).paid_from(key("usd"), free);
        assert!(call.job().unwrap().requirements().iter().all(|(name, _)| *name != key("usd")));
        let actuals = call.actuals(Some(Usage { input: 1, output: 1, total: 2 }));
        assert!(actuals.amounts().iter().all(|(name, _)| *name != key("usd")));
    }

    #[test]
    fn names_that_make_no_key_are_refused() {
        assert!(Model::new("openai", "a/b").is_err());
        assert!(model().call(&Bytes, "", 1).for_tenant("a b").is_err());
    }
}
