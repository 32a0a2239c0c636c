//! Policies: which limits a call needs, and what it costs.
//!
//! A policy is a TOML document with rules and prices. [`Policy::parse`] checks it and compiles it. [`Policy::evaluate`]
//! turns the attributes and bounds of a call into requirements, [`Policy::settle`] turns its usage into actual amounts.
//! [`Policy::evaluate_hits`] and [`Policy::settle_hits`] do the same for the hits that a proxy such as Envoy counts.
//! There is no clock, no I/O and no randomness here: the same document and the same call give the same answer.
//!
//! ```
//! use earmark_policy::*;
//!
//! let policy = Policy::parse(
//!     &"default".parse()?,
//!     r#"
//!         [[rules]]
//!         name   = "tenant"
//!         when   = 'provider == "openai"'
//!         limits = [ { key = "tenant:{tenant}:tpd", amount = "tokens" } ]
//!     "#,
//! )?;
//! let attributes = Attributes::new([("tenant", "acme"), ("provider", "openai"), ("model", "gpt-4o")])?;
//! let call = Call { attributes: &attributes, input_tokens_max: 1_200, output_tokens_max: 500 };
//! let requirements = policy.evaluate(&call).map_err(|refusal| refusal.error())?;
//! assert_eq!((requirements[0].key.as_str(), requirements[0].amount), ("tenant:acme:tpd", 1_700));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(test, allow(clippy::arithmetic_side_effects, reason = "a test that overflows fails"))]

mod attributes;
mod condition;
mod document;
pub mod fields;
mod headers;
mod key_pattern;
mod mistake;
mod policy;
mod price;

pub use attributes::{AttributeError, Attributes};
pub use condition::{CONDITION_BYTES_MAX, CONDITION_NESTING_MAX};
pub use document::{
    Amount, DENY_BYTES_MAX, Document, Effect, LimitUse, POLICY_BYTES_MAX, POLICY_LIMITS_MAX, PRICES_MAX, RULES_MAX,
    Rule, Unmatched,
};
pub use earmark_core::{
    ATTRIBUTE_NAME_BYTES_MAX as NAME_BYTES_MAX, ATTRIBUTE_VALUE_BYTES_MAX as VALUE_BYTES_MAX, ATTRIBUTES_MAX,
};
pub use headers::{DecisionHeaders, LimitState, headers};
pub use key_pattern::escaped;
pub use mistake::Mistake;
pub use policy::{
    ATTRIBUTE_NAMES_MAX, Call, CallAmount, Explanation, Hits, HitsUsed, OUTPUT_BOUND_ATTRIBUTE, Policy,
    REQUIREMENTS_MAX, Refusal, Replaced, RuleMatch, Settlement,
};
pub use price::{Import, ImportOptions, Price, RATE_MAX, Rates, SCALE_MAX, Skipped, TIERS_MAX, Tier, Usage, import};
