//! `earmark explain`: what the answer to a call would be, and why.

use clap::Args;
use earmark_client::http::{Method, encoded};
use earmark_core::NamespaceName;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::client::ClientArgs;
use crate::failure::{Done, Failure};
use crate::output::{self, fitted, thousands};
use crate::quantity;
use crate::request;

pub(crate) const HELP: &str = "\
Takes nothing. Exit code 3 if the call would not be allowed. Needs the role reader.

Examples:
  earmark explain --attribute tenant=acme --attribute model=gpt-4o --input 1200 --output 500
  earmark explain --attribute tenant=acme --attribute model=gpt-4o --input 8k --json | jq -r '.rules[] | select(.matched) | .name'";

#[derive(Args, Debug)]
pub(crate) struct ExplainArgs {
    /// Attribute of the call, such as tenant=acme; may be repeated
    #[arg(long = "attribute", value_name = "NAME=VALUE", value_parser = attribute)]
    attributes: Vec<(String, String)>,
    /// The most input tokens that the call may use
    #[arg(long, value_name = "TOKENS", default_value = "0", value_parser = tokens)]
    input: u32,
    /// The most output tokens that the call may use
    #[arg(long, value_name = "TOKENS", default_value = "0", value_parser = tokens)]
    output: u32,
    /// Namespace of the call; an admin of `default` may name any [default: that of the key]
    #[arg(long, value_name = "NAME")]
    namespace: Option<NamespaceName>,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

/// A clap value parser for a name and a value.
pub(crate) fn attribute(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("allowed is NAME=VALUE, such as tenant=acme")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn tokens(text: &str) -> Result<u32, String> {
    let tokens = quantity::amount(text, 0)?;
    u32::try_from(tokens).map_err(|_| format!("found {text:?}, allowed are up to {}", u32::MAX))
}

#[derive(Deserialize, Serialize)]
struct Explanation {
    allowed: bool,
    error: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    rules: Vec<Rule>,
    limits: Vec<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy_revision: Option<u64>,
}

#[derive(Deserialize, Serialize)]
struct Rule {
    name: String,
    matched: bool,
}

#[derive(Deserialize, Serialize)]
struct Limit {
    key: String,
    amount: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    available: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fits: Option<bool>,
}

pub(crate) fn run(args: &ExplainArgs) -> Result<Done, Failure> {
    let mut attributes = Map::new();
    for (name, value) in &args.attributes {
        if attributes.insert(name.clone(), Value::from(value.as_str())).is_some() {
            return Err(Failure::Usage(format!("--attribute: found {name} twice, allowed is each name once")));
        }
    }
    let body = json!({"attributes": attributes, "input_tokens_max": args.input, "output_tokens_max": args.output});
    let query = args.namespace.as_ref().map(|namespace| format!("?namespace={}", encoded(namespace.as_str())));
    let path = format!("/v1/calls/explain{}", query.unwrap_or_default());
    let answer: Explanation = request::send(&args.client, Method::POST, &path, &body)?;
    output::show(args.client.json, &answer, text)?;
    Ok(if answer.allowed { Done::Ok } else { Done::Denied })
}

fn text(answer: &Explanation) -> String {
    let verdict = match (answer.allowed, answer.error.as_str()) {
        (true, _) => "allowed".to_owned(),
        (false, "") => "denied: a limit has no room now".to_owned(),
        (false, error) => format!("not allowed: {error}"),
    };
    let message = answer.message.as_ref().map(|message| format!(" ({message})"));
    let mut text = format!("{verdict}{}\n", message.unwrap_or_default());
    let matched: Vec<&str> = answer.rules.iter().filter(|rule| rule.matched).map(|rule| rule.name.as_str()).collect();
    if let Some(revision) = answer.policy_revision {
        let names = if matched.is_empty() { "none".to_owned() } else { matched.join(", ") };
        text += &format!("rules that match, of {} (revision {revision}): {names}\n", answer.rules.len());
    }
    if let Some(cost) = &answer.cost {
        text += &format!("costs at most: {}\n", cost.parse().map_or_else(|_| cost.clone(), thousands));
    }
    if answer.limits.is_empty() {
        return text;
    }
    let header = ["KEY", "AMOUNT", "AVAILABLE", "CAPACITY", "FITS"].map(str::to_owned);
    let rows = answer.limits.iter().map(|limit| {
        let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| thousands(number.into()));
        let fits = limit.fits.map_or("-", |fits| if fits { "yes" } else { "no" });
        let amount = thousands(limit.amount.into());
        [limit.key.clone(), amount, number(limit.available), number(limit.capacity), fits.to_owned()]
    });
    text + "\n" + &fitted(&std::iter::once(header).chain(rows).collect::<Vec<_>>(), output::width())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explanation_names_the_rules_and_how_full_each_limit_is() {
        let limit =
            |key: &str, available, fits| Limit { key: key.into(), amount: 1_700, capacity: available, available, fits };
        let rule = |name: &str, matched| Rule { name: name.into(), matched };
        let answer = Explanation {
            allowed: false,
            error: String::new(),
            message: None,
            rules: vec![rule("tenant", true), rule("plan", false)],
            limits: vec![limit("acme:tpm", Some(1_000), Some(false)), limit("!default:all", None, None)],
            cost: Some("8000".into()),
            policy_revision: Some(7),
        };
        assert_eq!(
            text(&answer),
            "denied: a limit has no room now\n\
             rules that match, of 2 (revision 7): tenant\n\
             costs at most: 8,000\n\
             \n\
             KEY           AMOUNT  AVAILABLE  CAPACITY  FITS\n\
             acme:tpm      1,700   1,000      1,000     no\n\
             !default:all  1,700   -          -         -\n"
        );
        let none = Explanation {
            error: "no_rule".into(),
            message: Some("why".into()),
            rules: Vec::new(),
            limits: Vec::new(),
            cost: None,
            policy_revision: None,
            ..answer
        };
        assert_eq!(text(&none), "not allowed: no_rule (why)\n");
    }
}
