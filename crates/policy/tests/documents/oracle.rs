//! Checks of a text that may be a policy, and of a call that it judges.

use std::collections::BTreeSet;

use earmark_policy::*;

/// A call with its usage.
#[derive(Clone, Debug)]
pub struct Judged {
    pub attributes: Attributes,
    /// The most input and output tokens.
    pub bounds: (u32, u32),
    /// Further output tokens, taken by an extension.
    pub more: u32,
    /// The usage, which is cut to the bounds.
    pub usage: Usage,
}

/// Reads a text. If it is a policy, judges the call by it. Returns whether it is one.
pub fn judge(text: &str, call: &Judged) -> bool {
    let Ok(policy) = Policy::parse(&"team".parse().expect("a name"), text) else { return false };
    let document = Document::parse(text).expect("a policy is a document");
    assert_eq!(Document::parse(&document.to_string()).as_ref(), Ok(&document), "a printed document reads back");

    let attributes = &call.attributes;
    let (input_tokens_max, output_tokens_max) = call.bounds;
    let asked = Call { attributes, input_tokens_max, output_tokens_max };
    let evaluated = policy.evaluate(&asked);
    let explained = policy.explain(&asked);
    assert_eq!(explained.requirements, evaluated, "explain and evaluate agree");
    assert_eq!(explained.rules.len(), document.rules.len());
    let released = policy.release(attributes);
    assert!(released.iter().all(|it| it.amount == 0));
    let grown = policy.grow(attributes, call.more);
    let Ok(mut reserved) = evaluated else { return true };

    assert!(reserved.len() <= REQUIREMENTS_MAX);
    assert!(reserved.iter().all(|it| it.amount > 0));
    assert!(keys(&released).is_superset(&keys(&reserved)), "what was reserved can be released");
    let grown = grown.expect("the revision that allows a call lets it grow");
    reserved.extend(grown);
    let usage = Usage {
        input_tokens: call.usage.input_tokens.min(input_tokens_max),
        output_tokens: call.usage.output_tokens.min(output_tokens_max.saturating_add(call.more)),
        ..call.usage
    };
    for actual in policy.settle(attributes, &usage).actuals {
        let amounts = reserved.iter().filter(|it| it.key == actual.key).map(|it| it.amount);
        let most = amounts.fold(0, u64::saturating_add);
        assert!(actual.amount <= most, "{}: {} of {most}", actual.key, actual.amount);
    }
    true
}

/// The keys of a list, each once.
fn keys(amounts: &[CallAmount]) -> BTreeSet<&str> {
    let keys: BTreeSet<&str> = amounts.iter().map(|it| it.key.as_str()).collect();
    assert_eq!(keys.len(), amounts.len(), "each key once");
    keys
}
