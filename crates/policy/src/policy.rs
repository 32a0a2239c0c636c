//! A compiled policy: calls into requirements, usage into actual amounts.

mod names;
mod replaced;
#[cfg(test)]
mod tests;

pub use earmark_core::REQUIREMENTS_MAX;
use earmark_core::{AssetName, LimitKey, NameError, NamespaceName};

pub use names::ATTRIBUTE_NAMES_MAX;
pub(crate) use names::{Names, Slot, Values};
pub use replaced::Replaced;

use crate::Attributes;
use crate::condition::{self, Condition};
use crate::document::{Amount, Document, Effect, Unmatched};
use crate::key_pattern::{KeyFault, KeyPattern};
use crate::mistake::Mistake;
use crate::price::{Price, PriceTable, Usage};

/// The maximum number of actual amounts: more than a lease has, because those of 0 count too.
const ACTUALS_MAX: usize = 128;

/// A compiled policy.
#[derive(Clone, Debug)]
pub struct Policy {
    names: Names,
    unmatched: Unmatched,
    rules: Vec<CompiledRule>,
    /// Whether a rule replaces another one.
    has_replacements: bool,
    prices: PriceTable,
    asset: Option<AssetName>,
}

#[derive(Clone, Debug)]
struct CompiledRule {
    name: Box<str>,
    when: Option<Condition>,
    optional: bool,
    replaces: Replaced,
    effect: CompiledEffect,
}

#[derive(Clone, Debug)]
enum CompiledEffect {
    Deny(Box<str>),
    Limits(Vec<(KeyPattern, Amount)>),
}

/// A call before it is made.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Its attributes.
    pub attributes: &'a Attributes,
    /// The most input tokens that it may use.
    pub input_tokens_max: u32,
    /// The most output tokens that it may use.
    pub output_tokens_max: u32,
}

/// The hits of a proxy on the limits of one descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Hits<'a> {
    /// The attributes of the descriptor.
    pub attributes: &'a Attributes,
    /// The amount of `requests`. Without bounds it is the amount of tokens too.
    pub count: u32,
    /// The most input and output tokens, if the descriptor states them.
    pub tokens_max: Option<(u32, u32)>,
    /// The rules that the descriptors of its request replace.
    pub replaced: Replaced,
}

/// The usage behind the hits of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitsUsed {
    /// The tokens by their kinds.
    Tokens(Usage),
    /// One number, which is the amount of every kind of tokens.
    Count(u32),
}

/// The attribute that a refusal names when a rule takes cost and a descriptor states no bounds.
pub const OUTPUT_BOUND_ATTRIBUTE: &str = "earmark_output_tokens_max";

/// A limit and an amount. Limits of other namespaces are named as leases name them: `!default:rpm`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallAmount {
    /// The key of the limit.
    pub key: LimitKey,
    /// The amount.
    pub amount: u64,
    /// Whether the amount is a cost, in the asset of the prices.
    pub is_cost: bool,
}

/// The actual amounts of a call that was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settlement {
    /// The amounts, which may be 0, by the limits that the policy names for the call.
    pub actuals: Vec<CallAmount>,
    /// The cost, if the model has a price.
    pub cost: Option<u64>,
}

/// Why a policy refuses a call. The first rule in the document that refuses decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A rule denies the call.
    DeniedByRule {
        /// The name of the rule.
        rule: Box<str>,
        /// Its message.
        message: Box<str>,
    },
    /// The key of a limit, or a price, needs an attribute that the call lacks.
    MissingAttribute(Box<str>),
    /// A rule takes cost, and the model has no price.
    NoPrice(Box<str>),
    /// The attributes give a text that cannot be a key.
    InvalidKey(NameError),
    /// The call needs more than [`REQUIREMENTS_MAX`] limits.
    TooManyLimits,
    /// No rule matches.
    NoRule,
    /// The namespace has no policy.
    NoPolicy,
    /// A limit that takes cost is credit of another asset than the prices.
    OtherAsset {
        /// The key of the limit.
        key: LimitKey,
        /// Its asset.
        found: AssetName,
        /// The asset of the prices.
        of_prices: AssetName,
    },
}

/// Whether a rule applies to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleMatch {
    /// The name of the rule.
    pub name: Box<str>,
    /// Whether it applies. An optional rule that lacks an attribute does not, nor one that another rule replaces.
    pub matched: bool,
}

/// The rules behind the answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// All rules, in order.
    pub rules: Vec<RuleMatch>,
    /// The requirements, or the refusal.
    pub requirements: Result<Vec<CallAmount>, Refusal>,
    /// The most that the call can cost, if its model has a price.
    pub cost: Option<u64>,
}

impl Refusal {
    /// The `error` of the answer.
    #[must_use]
    pub fn error(&self) -> String {
        match self {
            Refusal::DeniedByRule { rule, .. } => format!("denied_by_rule:{rule}"),
            Refusal::MissingAttribute(name) => format!("missing_attribute:{name}"),
            Refusal::NoPrice(model) => format!("no_price:{model}"),
            Refusal::InvalidKey(_) | Refusal::TooManyLimits | Refusal::OtherAsset { .. } => {
                "invalid_request".to_owned()
            }
            Refusal::NoRule | Refusal::NoPolicy => "no_rule".to_owned(),
        }
    }

    /// The `message` of the answer.
    #[must_use]
    pub fn message(&self) -> String {
        match self {
            Refusal::DeniedByRule { message, .. } => message.to_string(),
            Refusal::MissingAttribute(name) => format!("the policy needs the attribute {name}; add it to the call"),
            Refusal::NoPrice(model) => format!("the policy has no price for the model {model}"),
            Refusal::InvalidKey(error) => format!("the attributes give no valid key: {error}"),
            Refusal::TooManyLimits => format!("the policy needs more than {REQUIREMENTS_MAX} limits for this call"),
            Refusal::NoRule => "no rule of the policy matches, and unmatched is \"refuse\"".to_owned(),
            Refusal::NoPolicy => "the namespace has no policy; put one with `earmark policy put`".to_owned(),
            Refusal::OtherAsset { key, found, of_prices } => {
                format!("{key}: found credit in {found}, allowed is {of_prices}, the asset of the prices")
            }
        }
    }
}

/// Why a rule gives no amounts for a call.
enum RuleFault {
    Denied,
    Missing(Box<str>),
    NoPrice(Box<str>),
    /// The rule takes cost, and the hits of a proxy have no bounds.
    NoBound,
    InvalidKey(NameError),
    TooMany,
}

impl Policy {
    /// Reads, checks and compiles the policy of a namespace.
    ///
    /// # Errors
    /// The first mistake, with field and line.
    pub fn parse(namespace: &NamespaceName, text: &str) -> Result<Policy, Mistake> {
        let (document, lines) = Document::parse_with_lines(text)?;
        let line = |place: usize| lines.get(place).copied().unwrap_or(1);
        let mut names = Names::default();
        let conditioned: Vec<(usize, &str)> = document
            .rules
            .iter()
            .enumerate()
            .filter_map(|(place, rule)| Some((place, rule.when.as_deref()?)))
            .collect();
        let texts: Vec<&str> = conditioned.iter().map(|(_, when)| *when).collect();
        let conditions = condition::compile_all(&texts, &mut names).map_err(|(index, what)| {
            let place = conditioned.get(index).map_or(0, |(place, _)| *place);
            Mistake::new(line(place), format_args!("rules[{place}].when"), what)
        })?;
        let mut conditions = conditions.into_iter();
        let mut rules = Vec::with_capacity(document.rules.len());
        for (place, rule) in document.rules.iter().enumerate() {
            let effect = compile_effect(&rule.effect, namespace, &mut names).map_err(|(limit, what)| {
                Mistake::new(line(place), format_args!("rules[{place}].limits[{limit}].key"), what)
            })?;
            let when = rule.when.as_ref().and_then(|_| conditions.next());
            let replaces = Replaced::by(rule, &document.rules);
            let (name, optional) = (rule.name.as_str().into(), rule.optional);
            rules.push(CompiledRule { name, when, optional, replaces, effect });
        }
        let asset = document.prices.first().map(|price| price.asset.clone());
        let (unmatched, prices) = (document.unmatched, PriceTable::new(&document.prices));
        let has_replacements = rules.iter().any(|rule| !rule.replaces.is_empty());
        Ok(Policy { names, unmatched, rules, has_replacements, prices, asset })
    }

    /// The asset of all prices. `None` without prices.
    #[must_use]
    pub fn asset(&self) -> Option<&AssetName> {
        self.asset.as_ref()
    }

    /// The limits that a call needs, each once, in the order of the document. Empty if it needs none.
    ///
    /// # Errors
    /// The policy refuses the call.
    pub fn evaluate(&self, call: &Call<'_>) -> Result<Vec<CallAmount>, Refusal> {
        self.evaluate_as(call.attributes, Measure::bound(self, call), self.replaced([call.attributes]))
    }

    /// The limits that the hits of a proxy need, as [`Policy::evaluate`].
    ///
    /// # Errors
    /// The policy refuses them.
    pub fn evaluate_hits(&self, hits: &Hits<'_>) -> Result<Vec<CallAmount>, Refusal> {
        self.evaluate_as(hits.attributes, Measure::bound_of_hits(self, hits), hits.replaced)
    }

    fn evaluate_as(
        &self,
        attributes: &Attributes,
        measure: Measure,
        replaced: Replaced,
    ) -> Result<Vec<CallAmount>, Refusal> {
        let values = self.names.values(attributes);
        let mut evaluation = Evaluation::new(self, &values, measure);
        let mut matched = false;
        for (place, rule) in self.rules.iter().enumerate() {
            matched |= match replaced.contains(place) {
                false => evaluation.judge(rule)?,
                true => rule.holds(&values),
            };
        }
        evaluation.finish(matched)
    }

    /// The rules that these calls replace, which are judged together: the descriptors of one request, or one call.
    #[must_use]
    pub fn replaced<'a>(&self, calls: impl IntoIterator<Item = &'a Attributes>) -> Replaced {
        let mut replaced = Replaced::default();
        if self.has_replacements {
            for attributes in calls {
                let values = self.names.values(attributes);
                let replacing = self.rules.iter().filter(|rule| !rule.replaces.is_empty() && rule.holds(&values));
                replacing.for_each(|rule| replaced.add_all(&rule.replaces));
            }
        }
        replaced
    }

    /// The rules that apply to a call, in order.
    fn applying<'a>(&'a self, values: &'a Values<'_>, replaced: Replaced) -> impl Iterator<Item = &'a CompiledRule> {
        let rules = self.rules.iter().enumerate();
        rules.filter(move |(place, rule)| !replaced.contains(*place) && rule.holds(values)).map(|(_, rule)| rule)
    }

    /// The actual amounts of a call by its usage. A rule that would refuse the call is left out: what was reserved for it
    /// stays as it is.
    #[must_use]
    pub fn settle(&self, attributes: &Attributes, usage: &Usage) -> Settlement {
        self.settle_as(attributes, Measure::actual(self, attributes, usage), self.replaced([attributes]))
    }

    /// The actual amounts of the hits of a proxy, as [`Policy::settle`]. `requests` stay as they were taken.
    #[must_use]
    pub fn settle_hits(&self, hits: &Hits<'_>, used: &HitsUsed) -> Settlement {
        self.settle_as(hits.attributes, Measure::actual_of_hits(self, hits, used), hits.replaced)
    }

    fn settle_as(&self, attributes: &Attributes, measure: Measure, replaced: Replaced) -> Settlement {
        let values = self.names.values(attributes);
        let mut evaluation = Evaluation::new(self, &values, measure);
        for rule in self.applying(&values, replaced) {
            // A rule that fails has added nothing, so there is nothing to undo.
            let _refused = evaluation.add(rule);
        }
        Settlement { cost: evaluation.measure.cost, actuals: evaluation.amounts }
    }

    /// The further amounts of a call that may use this many more output tokens. The cost is that of the dearest rate that
    /// may apply.
    ///
    /// # Errors
    /// The policy refuses the call. The revision that allowed it does not.
    pub fn grow(&self, attributes: &Attributes, output_tokens: u32) -> Result<Vec<CallAmount>, Refusal> {
        let values = self.names.values(attributes);
        let mut evaluation = Evaluation::new(self, &values, Measure::growth(self, attributes, output_tokens));
        for rule in self.applying(&values, self.replaced([attributes])) {
            evaluation.judge(rule)?;
        }
        Ok(evaluation.amounts)
    }

    /// The limits of a call that was not made, each with the amount 0.
    #[must_use]
    pub fn release(&self, attributes: &Attributes) -> Vec<CallAmount> {
        let values = self.names.values(attributes);
        let mut evaluation = Evaluation::new(self, &values, Measure::NOTHING);
        for rule in self.applying(&values, Replaced::default()) {
            // A rule that fails has added nothing, so there is nothing to undo.
            let _refused = evaluation.add(rule);
        }
        evaluation.amounts
    }

    /// The rules that a call matches, and what follows from them.
    #[must_use]
    pub fn explain(&self, call: &Call<'_>) -> Explanation {
        let values = self.names.values(call.attributes);
        let mut evaluation = Evaluation::new(self, &values, Measure::bound(self, call));
        let replaced = self.replaced([call.attributes]);
        let (mut first_refusal, mut any) = (None, false);
        let mut rules = Vec::with_capacity(self.rules.len());
        for (place, rule) in self.rules.iter().enumerate() {
            if replaced.contains(place) {
                any |= rule.holds(&values);
                rules.push(RuleMatch { name: rule.name.clone(), matched: false });
                continue;
            }
            let matched = evaluation.judge(rule).unwrap_or_else(|refusal| {
                first_refusal.get_or_insert(refusal);
                true
            });
            any |= matched;
            rules.push(RuleMatch { name: rule.name.clone(), matched });
        }
        let cost = evaluation.measure.cost;
        let requirements = first_refusal.map_or_else(|| evaluation.finish(any), Err);
        Explanation { rules, requirements, cost }
    }
}

fn compile_effect(effect: &Effect, own: &NamespaceName, names: &mut Names) -> Result<CompiledEffect, (usize, String)> {
    match effect {
        Effect::Deny(message) => Ok(CompiledEffect::Deny(message.as_str().into())),
        Effect::Limits(limits) => {
            let compiled = limits.iter().enumerate().map(|(place, limit)| {
                let namespace = limit.namespace.clone().filter(|namespace| namespace != own);
                let pattern = KeyPattern::compile(&limit.key, namespace, names).map_err(|what| (place, what))?;
                Ok((pattern, limit.amount))
            });
            compiled.collect::<Result<_, _>>().map(CompiledEffect::Limits)
        }
    }
}

impl CompiledRule {
    fn holds(&self, values: &Values<'_>) -> bool {
        self.when.as_ref().is_none_or(|condition| condition.holds(values))
    }
}

/// The amounts of a call: bounds before it, actual ones after it.
struct Measure {
    kind: MeasureKind,
    requests: u32,
    /// The amount of every kind of tokens, if a proxy states hits instead of tokens.
    any_tokens: Option<u32>,
    input_tokens: u32,
    output_tokens: u32,
    cost: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MeasureKind {
    /// The most that a call may use.
    Bound,
    /// More output than the bound.
    Growth,
    /// The actual usage.
    Actual,
    /// No usage: every amount is 0.
    Nothing,
}

impl MeasureKind {
    /// Whether amounts of 0 stay: an actual amount may be 0, a requirement may not.
    fn keeps_zero(self) -> bool {
        matches!(self, MeasureKind::Actual | MeasureKind::Nothing)
    }

    /// The maximum number of amounts.
    fn amounts_max(self) -> usize {
        if self.keeps_zero() { ACTUALS_MAX } else { REQUIREMENTS_MAX }
    }
}

impl Measure {
    const NOTHING: Measure = Measure {
        kind: MeasureKind::Nothing,
        requests: 1,
        any_tokens: None,
        input_tokens: 0,
        output_tokens: 0,
        cost: Some(0),
    };

    fn growth(policy: &Policy, attributes: &Attributes, output_tokens: u32) -> Measure {
        let cost = policy.price(attributes).map(|price| price.output_bound(output_tokens));
        Measure { kind: MeasureKind::Growth, output_tokens, cost, ..Measure::NOTHING }
    }

    fn bound_of_hits(policy: &Policy, hits: &Hits<'_>) -> Measure {
        let (input_tokens_max, output_tokens_max) = hits.tokens_max.unwrap_or_default();
        let call = Call { attributes: hits.attributes, input_tokens_max, output_tokens_max };
        let any_tokens = hits.tokens_max.is_none().then_some(hits.count);
        Measure { requests: hits.count, any_tokens, ..Measure::bound(policy, &call) }
    }

    fn actual_of_hits(policy: &Policy, hits: &Hits<'_>, used: &HitsUsed) -> Measure {
        let (usage, any_tokens) = match used {
            HitsUsed::Tokens(usage) => (*usage, None),
            HitsUsed::Count(count) => (Usage::default(), Some(*count)),
        };
        Measure { requests: hits.count, any_tokens, ..Measure::actual(policy, hits.attributes, &usage) }
    }

    fn bound(policy: &Policy, call: &Call<'_>) -> Measure {
        let (input_tokens, output_tokens) = (call.input_tokens_max, call.output_tokens_max);
        let cost = policy.price(call.attributes).map(|price| price.bound(input_tokens, output_tokens));
        Measure { kind: MeasureKind::Bound, input_tokens, output_tokens, cost, ..Measure::NOTHING }
    }

    fn actual(policy: &Policy, attributes: &Attributes, usage: &Usage) -> Measure {
        let cost = policy.price(attributes).map(|price| price.cost(usage));
        let Usage { input_tokens, output_tokens, .. } = *usage;
        Measure { kind: MeasureKind::Actual, input_tokens, output_tokens, cost, ..Measure::NOTHING }
    }
}

impl Policy {
    fn price(&self, attributes: &Attributes) -> Option<&Price> {
        self.prices.find(attributes.get("model")?, attributes.get("provider"))
    }
}

/// The evaluation of one call.
struct Evaluation<'a> {
    policy: &'a Policy,
    values: &'a Values<'a>,
    measure: Measure,
    amounts: Vec<CallAmount>,
    /// Memory for keys.
    buffer: String,
}

impl<'a> Evaluation<'a> {
    fn new(policy: &'a Policy, values: &'a Values<'a>, measure: Measure) -> Evaluation<'a> {
        Evaluation { policy, values, measure, amounts: Vec::with_capacity(8), buffer: String::with_capacity(64) }
    }

    /// Adds the limits of a rule if it matches. Returns whether it does.
    fn judge(&mut self, rule: &CompiledRule) -> Result<bool, Refusal> {
        if !rule.holds(self.values) {
            return Ok(false);
        }
        match self.add(rule) {
            Ok(()) => Ok(true),
            Err(RuleFault::Missing(_)) if rule.optional => Ok(false),
            Err(RuleFault::Missing(name)) => Err(Refusal::MissingAttribute(name)),
            Err(RuleFault::NoPrice(model)) => Err(Refusal::NoPrice(model)),
            Err(RuleFault::NoBound) => Err(Refusal::MissingAttribute(OUTPUT_BOUND_ATTRIBUTE.into())),
            Err(RuleFault::InvalidKey(error)) => Err(Refusal::InvalidKey(error)),
            Err(RuleFault::TooMany) => Err(Refusal::TooManyLimits),
            Err(RuleFault::Denied) => {
                let message = match &rule.effect {
                    CompiledEffect::Deny(message) => message.clone(),
                    CompiledEffect::Limits(_) => Box::default(),
                };
                Err(Refusal::DeniedByRule { rule: rule.name.clone(), message })
            }
        }
    }

    /// Adds all limits of a rule, or none.
    fn add(&mut self, rule: &CompiledRule) -> Result<(), RuleFault> {
        let CompiledEffect::Limits(limits) = &rule.effect else { return Err(RuleFault::Denied) };
        let before = self.amounts.len();
        let mut raised: Vec<(usize, (u64, bool))> = Vec::new();
        let added = limits.iter().try_for_each(|(pattern, amount)| {
            let is_cost = *amount == Amount::Cost;
            let amount = self.amount(*amount)?;
            let key = pattern.key(self.values, &mut self.buffer).map_err(|fault| match fault {
                KeyFault::Missing(slot) => RuleFault::Missing(self.policy.names.name(slot).into()),
                KeyFault::Invalid(error) => RuleFault::InvalidKey(error),
            })?;
            match self.amounts.iter().position(|other| other.key == key) {
                Some(place) => raised.extend(self.raise(place, amount, is_cost)),
                None if amount == 0 && !self.measure.kind.keeps_zero() => {}
                None if self.amounts.len() == self.measure.kind.amounts_max() => return Err(RuleFault::TooMany),
                None => self.amounts.push(CallAmount { key, amount, is_cost }),
            }
            Ok(())
        });
        if added.is_err() {
            for (place, (amount, is_cost)) in raised.into_iter().rev() {
                if let Some(other) = self.amounts.get_mut(place) {
                    (other.amount, other.is_cost) = (amount, is_cost);
                }
            }
            self.amounts.truncate(before);
        }
        added
    }

    /// Raises an amount that a rule before named too. Returns its place and what it was.
    fn raise(&mut self, place: usize, amount: u64, is_cost: bool) -> Option<(usize, (u64, bool))> {
        let other = self.amounts.get_mut(place)?;
        let before = (other.amount, other.is_cost);
        (other.amount, other.is_cost) = (other.amount.max(amount), other.is_cost || is_cost);
        Some((place, before))
    }

    fn amount(&self, amount: Amount) -> Result<u64, RuleFault> {
        let (input, output) = (u64::from(self.measure.input_tokens), u64::from(self.measure.output_tokens));
        match (self.measure.kind, amount) {
            (MeasureKind::Nothing, _) => return Ok(0),
            (MeasureKind::Growth, Amount::Requests | Amount::Fixed(_)) => return Ok(0),
            (MeasureKind::Bound | MeasureKind::Growth | MeasureKind::Actual, _) => {}
        }
        match (amount, self.measure.any_tokens) {
            (Amount::Requests, _) => Ok(u64::from(self.measure.requests)),
            (Amount::Fixed(amount), _) => Ok(amount),
            (Amount::InputTokens | Amount::OutputTokens | Amount::Tokens, Some(tokens)) => Ok(u64::from(tokens)),
            (Amount::InputTokens, None) => Ok(input),
            (Amount::OutputTokens, None) => Ok(output),
            (Amount::Tokens, None) => Ok(input.saturating_add(output)),
            (Amount::Cost, Some(_)) => Err(RuleFault::NoBound),
            (Amount::Cost, None) => self.measure.cost.ok_or_else(|| match self.values.model() {
                Some(model) => RuleFault::NoPrice(model.into()),
                None => RuleFault::Missing("model".into()),
            }),
        }
    }

    fn finish(self, matched: bool) -> Result<Vec<CallAmount>, Refusal> {
        if !matched && self.policy.unmatched == Unmatched::Refuse {
            return Err(Refusal::NoRule);
        }
        Ok(self.amounts)
    }
}
