//! The policy document: rules and prices, as an admin writes them.
//!
//! [`Document::parse`] reads TOML and names each mistake with field and line. Its `Display` writes TOML that reads back
//! as the same document.

mod print;
mod read;
#[cfg(test)]
mod tests;

use earmark_core::NamespaceName;
pub use earmark_core::POLICY_BYTES_MAX;

use crate::mistake::Mistake;
use crate::price::Price;

/// The maximum number of rules.
pub const RULES_MAX: usize = 256;
/// The maximum number of limits in all rules together: the work of one evaluation.
pub const POLICY_LIMITS_MAX: usize = 1_024;
/// The maximum number of prices.
pub const PRICES_MAX: usize = 4_096;
/// The maximum length of the message of a `deny` rule in bytes.
pub const DENY_BYTES_MAX: usize = 256;

/// A policy document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// The answer to a call that no rule matches.
    pub unmatched: Unmatched,
    /// The rules, in order. All that match apply.
    pub rules: Vec<Rule>,
    /// The prices. Their order does not matter.
    pub prices: Vec<Price>,
}

/// The answer to a call that no rule matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unmatched {
    /// The call is refused.
    #[default]
    Refuse,
    /// The call needs no limits.
    Allow,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The name, unique in the document.
    pub name: String,
    /// The condition in CEL. A rule without one matches every call.
    pub when: Option<String>,
    /// Whether the rule is skipped when the call lacks an attribute of its keys. Otherwise the call is refused.
    pub optional: bool,
    /// The names of rules that do not apply to a call that this rule matches.
    pub replaces: Vec<String>,
    /// The effect on calls that the rule matches.
    pub effect: Effect,
}

/// The effect of a rule on the calls that it matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The call needs these limits.
    Limits(Vec<LimitUse>),
    /// The call is refused with this message.
    Deny(String),
}

/// A limit that a rule takes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitUse {
    /// The key, with attributes in braces.
    pub key: String,
    /// How much it takes.
    pub amount: Amount,
    /// The namespace of a shared limit. `None` for the namespace of the policy.
    pub namespace: Option<NamespaceName>,
}

/// How much of a limit a call takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// 1.
    Requests,
    /// The input tokens.
    InputTokens,
    /// The output tokens.
    OutputTokens,
    /// Input and output tokens together.
    Tokens,
    /// The cost, by the price of the model.
    Cost,
    /// Always this amount.
    Fixed(u64),
}

impl Amount {
    /// The amounts with a name.
    const NAMED: [(&'static str, Amount); 5] = [
        ("requests", Amount::Requests),
        ("input_tokens", Amount::InputTokens),
        ("output_tokens", Amount::OutputTokens),
        ("tokens", Amount::Tokens),
        ("cost", Amount::Cost),
    ];
}

impl Document {
    /// Reads a document and checks all of it but its conditions, which [`Policy::parse`](crate::Policy::parse) compiles.
    ///
    /// # Errors
    /// The first mistake, with field and line.
    pub fn parse(text: &str) -> Result<Document, Mistake> {
        read::document(text).map(|(document, _)| document)
    }

    /// Reads a document, and the line of the condition of each rule.
    pub(crate) fn parse_with_lines(text: &str) -> Result<(Document, Vec<usize>), Mistake> {
        read::document(text)
    }
}
