use proptest::prelude::*;

use super::*;
use crate::Policy;

/// The document of the README.
const EXAMPLE: &str = r#"
unmatched = "refuse"

[[rules]]
name   = "provider"
when   = 'provider == "openai"'
limits = [
  { key = "openai:{model}:rpm", amount = "requests", namespace = "default" },
  { key = "openai:{model}:tpm", amount = "tokens" },
]

[[rules]]
name = "plan"
when = 'plan == "free"'
deny = "the plan free has no models"

[[rules]]
name     = "user"
optional = true
limits   = [ { key = "{user}:usd", amount = "cost" }, { key = "{user}:n", amount = 3 } ]

[[prices]]
model = "gpt-4o*"
asset = "usd"
input = 2_500_000
cached_input = 1_250_000
output = 10_000_000
above = [ { input_tokens = 200_000, input = 5_000_000, output = 10_000_000 } ]
"#;

#[test]
fn a_document_is_read_whole() {
    let document = Document::parse(EXAMPLE).unwrap();
    assert_eq!((document.unmatched, document.rules.len(), document.prices.len()), (Unmatched::Refuse, 3, 1));
    assert_eq!(document.rules[1].effect, Effect::Deny("the plan free has no models".into()));
    let Effect::Limits(limits) = &document.rules[2].effect else { panic!("limits") };
    assert_eq!(
        (document.rules[2].optional, limits[0].amount, limits[1].amount),
        (true, Amount::Cost, Amount::Fixed(3))
    );
    assert_eq!(document.prices[0].above[0].rates.input, Some(5_000_000));
    assert_eq!(Document::parse(&document.to_string()), Ok(document));
    assert_eq!(Document::parse(""), Ok(Document::default()));
}

/// A document with one line of the example replaced.
fn with(line: &str, replacement: &str) -> String {
    assert!(EXAMPLE.contains(line), "{line}");
    EXAMPLE.replacen(line, replacement, 1)
}

fn check(text: &str, message: &str) {
    let error = Policy::parse(&"default".parse().unwrap(), text).map(drop).unwrap_err().to_string();
    assert!(error.starts_with(message), "{message}\nbut {error}");
}

#[test]
fn a_mistake_is_named_with_its_field_and_line() {
    let long = format!("key = \"{}\"", "k".repeat(300));
    for (text, message) in [
        (with("\"refuse\"", "\"deny\""), "line 2: unmatched: found \"deny\", allowed are \"refuse\" and \"allow\""),
        (
            with("unmatched", "unmatch"),
            "line 2: found the unknown field \"unmatch\", allowed are unmatched, rules, prices",
        ),
        (
            with("name = \"plan\"", "name = \"provider\""),
            "line 13: rules[1].name: provider is also the name of the rule on line 5",
        ),
        (
            with("name = \"plan\"", "nam = \"plan\""),
            "line 13: rules[1]: found the unknown field \"nam\", allowed are name",
        ),
        (with("name = \"plan\"", ""), "line 12: rules[1].name: is required"),
        (
            with("name = \"plan\"", "name = \"a b\""),
            "line 13: rules[1].name: found ' ' at byte 1, allowed are 1 to 64 bytes",
        ),
        (
            with("deny = \"the plan free has no models\"", ""),
            "line 12: rules[1].limits: is required, unless the rule has deny",
        ),
        (
            with("deny = \"the plan free has no models\"", "limits = []"),
            "line 15: rules[1].limits: found none, allowed are 1 to 32",
        ),
        (with("deny = \"the plan free has no models\"", "deny = \"\""), "line 15: rules[1].deny: found 0 bytes"),
        (
            with("deny = ", "limits = [{ key = \"a\", amount = 1 }]\ndeny = "),
            "line 16: rules[1].deny: found limits too",
        ),
        (with("deny = ", "optional = true\ndeny = "), "line 15: rules[1].optional: found deny too"),
        (
            with("deny = ", "replaces = [\"other\"]\ndeny = "),
            "line 15: rules[1].replaces: found \"other\", allowed are",
        ),
        (with("deny = ", "replaces = [\"plan\"]\ndeny = "), "line 15: rules[1].replaces: found \"plan\", allowed are"),
        (with("deny = ", "replaces = \"plan\"\ndeny = "), "line 15: rules[1].replaces: found"),
        (
            with("optional = true\n", "optional = true\nreplaces = [\"plan\"]\n"),
            "line 20: rules[2].replaces: found optional",
        ),
        (
            with("\"tokens\"", "\"token\""),
            "line 9: rules[0].limits[1].amount: found \"token\", allowed are requests, input_tokens",
        ),
        (with("\"tokens\"", "-1"), "line 9: rules[0].limits[1].amount: found -1, allowed are whole numbers from 0 to"),
        (with("\"tokens\"", "1.5"), "line 9: rules[0].limits[1].amount: found 1.5, allowed are whole numbers"),
        (with(", amount = \"tokens\"", ""), "line 9: rules[0].limits[1].amount: is required"),
        (with("\"default\"", "\"a:b\""), "line 8: rules[0].limits[0].namespace: found ':' at byte 1"),
        (with("{model}", "{Model}"), "line 8: rules[0].limits[0].key: found the name \"Model\", allowed are"),
        (
            with("key = \"openai:{model}:tpm\"", &long),
            "line 9: rules[0].limits[1].key: found 300 bytes, allowed are 1 to 256",
        ),
        (with("'provider == \"openai\"'", "'provider =='"), "line 6: rules[0].when: at 1:12: Syntax error"),
        (with("'plan == \"free\"'", "'plan'"), "line 14: rules[1].when: at 1:1: found a text, allowed is a condition"),
        (with("'plan == \"free\"'", "7"), "line 14: rules[1].when: found 7, allowed is a text in quotes"),
    ] {
        check(&text, message);
    }
}

#[test]
fn a_mistake_in_a_price_or_in_the_whole_is_named_too() {
    let rule = "[[rules]]\nname = \"a\"\n";
    for (text, message) in [
        (
            with("input = 2_500_000", "input = 1_000_000_000_001"),
            "line 25: prices[0].input: found 1000000000001, allowed are whole numbers from 0 to 1000000000000",
        ),
        (
            with("input = 2_500_000", "input = 99999999999999999999999"),
            "line 25: prices[0].input: found 99999999999999999999999, allowed",
        ),
        (with("input = 2_500_000\n", ""), "line 22: prices[0].input: is required"),
        (
            with("cached_input = 1_250_000", "cached_input = 2_500_001"),
            "line 26: prices[0].cached_input: found 2500001, allowed is at most 2500000",
        ),
        (
            with("input = 5_000_000", "input = 1"),
            "line 28: prices[0].above[0].input: found 1, allowed is at least 2500000",
        ),
        (with("gpt-4o*", "*-mini"), "line 23: prices[0].model: found \"*-mini\", allowed is one * at the end"),
        (with("\"usd\"", "\"USD\""), "line 24: prices[0].asset: found 'U' at byte 0"),
        (
            format!("{EXAMPLE}[[prices]]\nmodel = \"b\"\nasset = \"eur\"\ninput = 1\noutput = 1\n"),
            "line 31: prices[1].asset: found eur, allowed is usd",
        ),
        (
            format!("{EXAMPLE}[[prices]]\nmodel = \"gpt-4o*\"\nasset = \"usd\"\ninput = 1\noutput = 1\n"),
            "line 30: prices[1].model: gpt-4o* has a price on line 22 already",
        ),
        (
            format!("{rule}limits = [ {{ key = \"a\", amount = \"cost\" }} ]"),
            "line 3: rules[0].limits: found the amount \"cost\" in a document without prices",
        ),
        (format!("{rule}limits = [ 1 ]"), "line 3: rules[0].limits[0]: found 1, allowed is a table"),
        ("rules = 1".into(), "line 1: rules: found 1, allowed is a list of tables"),
        ("\n\n[[rules]".into(), "line 3: not valid TOML"),
        (format!("a = {}", "[".repeat(10_000)), "line 1: not valid TOML"),
        ("#".repeat(POLICY_BYTES_MAX + 1), "line 1: found 262145 bytes, allowed are 262144"),
        (format!("{}\n", "[[rules]]\n").repeat(257), "line 1: rules: found 257, allowed are 256"),
    ] {
        check(&text, message);
    }
}

#[test]
fn the_limits_of_all_rules_and_the_attributes_are_bounded() {
    let parse =
        |text: &str| Policy::parse(&"default".parse().unwrap(), text).map(drop).map_err(|error| error.to_string());
    let limits = "{ key = \"a\", amount = 1 },".repeat(32);
    let rules =
        |count| (0..count).map(|n| format!("[[rules]]\nname = \"r{n}\"\nlimits = [ {limits} ]\n")).collect::<String>();
    assert_eq!(parse(&rules(32)), Ok(()));
    let error = parse(&rules(33)).unwrap_err();
    assert!(error.starts_with("line 99: rules[32].limits: found more than 1024 limits in all rules"), "{error}");

    let rules = |count| {
        let rule = |n| {
            format!("[[rules]]\nname = \"r{n}\"\nwhen = 'a{n} == \"\"'\nlimits = [ {{ key = \"a\", amount = 1 }} ]\n")
        };
        (0..count).map(rule).collect::<String>()
    };
    assert_eq!(parse(&rules(64)), Ok(()));
    let error = parse(&rules(65)).unwrap_err();
    assert!(error.starts_with("line 259: rules[64].when: at 1:1: found more than 64 different attributes"), "{error}");
}

fn text() -> impl Strategy<Value = String> {
    "[ -~üß日\u{1}\n\"\\\\]{1,12}"
}

fn any_limit() -> impl Strategy<Value = LimitUse> {
    let amount = prop_oneof![
        prop::sample::select(Amount::NAMED.map(|(_, amount)| amount).to_vec()),
        (0..=i64::MAX.unsigned_abs()).prop_map(Amount::Fixed),
    ];
    ("([a-z]:|\\{[a-z][a-z0-9_]{0,5}\\}){1,4}", amount, prop::option::of("[a-z]{1,5}")).prop_map(
        |(key, amount, namespace)| LimitUse { key, amount, namespace: namespace.map(|name| name.parse().unwrap()) },
    )
}

fn any_rule() -> impl Strategy<Value = (Option<String>, bool, Vec<usize>, Effect)> {
    let limits = prop::collection::vec(any_limit(), 1..4).prop_map(Effect::Limits);
    let deny = "[ -~ü\"\\\\]{1,20}".prop_map(Effect::Deny);
    let effect = prop_oneof![limits, deny];
    let replaces = prop::collection::vec(0..5_usize, 0..3);
    (prop::option::of(text()), any::<bool>(), replaces, effect).prop_map(|(when, optional, replaces, effect)| {
        let optional = optional && replaces.is_empty() && matches!(effect, Effect::Limits(_));
        (when, optional, replaces, effect)
    })
}

proptest! {
    #[test]
    fn a_printed_document_reads_back(
        allow in any::<bool>(),
        rules in prop::collection::vec(any_rule(), 0..5),
        prices in prop::collection::vec((crate::price::tests::any_price(), prop::option::of("[a-z\"ü]{1,4}")), 1..4),
    ) {
        let unmatched = if allow { Unmatched::Allow } else { Unmatched::Refuse };
        let count = rules.len();
        let rules = rules.into_iter().enumerate().map(|(n, (when, optional, replaces, effect))| {
            let others = replaces.into_iter().filter(|other| *other != n && *other < count);
            let replaces = others.map(|other| format!("r{other}")).collect();
            Rule { name: format!("r{n}"), when, optional, replaces, effect }
        });
        let prices = prices.into_iter().enumerate().map(|(n, (price, provider))| {
            Price { model: format!("m{n}*"), provider, ..price }
        });
        let document = Document { unmatched, rules: rules.collect(), prices: prices.collect() };
        prop_assert_eq!(Document::parse(&document.to_string()), Ok(document));
    }
}
