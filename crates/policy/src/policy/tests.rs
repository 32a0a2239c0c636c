use proptest::prelude::*;

use super::*;

const POLICY: &str = r#"
[[rules]]
name   = "provider"
when   = 'provider == "openai"'
limits = [
  { key = "openai:{model}:rpm",   amount = "requests", namespace = "default" },
  { key = "openai:{model}:tpm",   amount = "tokens",   namespace = "default" },
  { key = "openai:{model}:out",   amount = "output_tokens", namespace = "team" },
]

[[rules]]
name = "plan"
when = 'plan == "free" && !model.endsWith("-mini")'
deny = "the plan free has small models only"

[[rules]]
name   = "tenant"
limits = [ { key = "tenant:{tenant}:tpd", amount = "tokens" }, { key = "{tenant}:usd", amount = "cost" } ]

[[rules]]
name     = "user"
optional = true
limits   = [ { key = "user:{user}:in", amount = "input_tokens" }, { key = "tenant:{tenant}:tpd", amount = 1_000 } ]

[[prices]]
model = "gpt-4o*"
asset = "usd"
input = 2_500_000
cached_input = 1_250_000
output = 10_000_000
"#;

fn policy(text: &str) -> Policy {
    Policy::parse(&"team".parse().unwrap(), text).unwrap()
}

fn attributes(text: &str) -> Attributes {
    Attributes::new(text.split_whitespace().map(|pair| pair.split_once('=').unwrap())).unwrap()
}

fn shown(amounts: &[CallAmount]) -> String {
    amounts.iter().map(|it| format!("{}={}", it.key, it.amount)).collect::<Vec<_>>().join(" ")
}

fn evaluate(text: &str, call: &str, input_tokens_max: u32, output_tokens_max: u32) -> Result<String, String> {
    let attributes = attributes(call);
    let call = Call { attributes: &attributes, input_tokens_max, output_tokens_max };
    let (policy, join) = (policy(text), |refusal: Refusal| format!("{}: {}", refusal.error(), refusal.message()));
    let answer = policy.evaluate(&call);
    assert_eq!(policy.explain(&call).requirements, answer, "explain and evaluate agree");
    answer.map(|amounts| shown(&amounts)).map_err(join)
}

#[test]
fn all_matching_rules_apply_and_a_key_takes_its_larger_amount() {
    let call = "provider=openai model=gpt-4o tenant=acme user=u1";
    for (attributes, input, output, expected) in [
        (
            call,
            1_200,
            500,
            "!default:openai:gpt-4o:rpm=1 !default:openai:gpt-4o:tpm=1700 openai:gpt-4o:out=500 tenant:acme:tpd=1700 acme:usd=8000 user:u1:in=1200",
        ),
        (
            call,
            100,
            0,
            "!default:openai:gpt-4o:rpm=1 !default:openai:gpt-4o:tpm=100 tenant:acme:tpd=1000 acme:usd=250 user:u1:in=100",
        ),
        ("provider=azure model=gpt-4o tenant=acme", 1, 0, "tenant:acme:tpd=1 acme:usd=3"),
        ("model=gpt-4o-mini plan=free tenant=a:b", 0, 1, "tenant:a%3Ab:tpd=1 a%3Ab:usd=10"),
        ("model=gpt-4o tenant=acme", 0, 0, ""),
    ] {
        assert_eq!(evaluate(POLICY, attributes, input, output).as_deref(), Ok(expected), "{attributes}");
    }
}

#[test]
fn a_refusal_has_its_name() {
    let allow = "unmatched = \"allow\"\n[[rules]]\nname = \"a\"\nwhen = 'model == \"x\"'\ndeny = \"no\"\n";
    let refuse = allow.replace("\"allow\"", "\"refuse\"");
    for (text, call, expected) in [
        (
            POLICY,
            "model=gpt-4o",
            Err("missing_attribute:tenant: the policy needs the attribute tenant; add it to the call"),
        ),
        (
            POLICY,
            "tenant=acme",
            Err("missing_attribute:model: the policy needs the attribute model; add it to the call"),
        ),
        (POLICY, "tenant=acme model=o1", Err("no_price:o1: the policy has no price for the model o1")),
        (POLICY, "tenant=acme model=o1 plan=free", Err("denied_by_rule:plan: the plan free has small models only")),
        (POLICY, "model=gpt-4o plan=free", Err("denied_by_rule:plan: the plan free has small models only")),
        (&refuse, "model=y", Err("no_rule: no rule of the policy matches, and unmatched is \"refuse\"")),
        (&refuse, "model=x", Err("denied_by_rule:a: no")),
        (allow, "model=x", Err("denied_by_rule:a: no")),
        (allow, "model=y", Ok("")),
        ("", "model=y", Err("no_rule: no rule of the policy matches, and unmatched is \"refuse\"")),
    ] {
        assert_eq!(evaluate(text, call, 1, 1).as_deref().map_err(String::as_str), expected, "{call}");
    }
}

#[test]
fn an_optional_rule_that_lacks_an_attribute_does_not_count_as_matched() {
    let text = "[[rules]]\nname = \"a\"\noptional = true\nlimits = [ { key = \"b\", amount = 9 }, { key = \"{user}\", amount = 1 } ]\n";
    assert!(evaluate(text, "model=x", 1, 1).unwrap_err().starts_with("no_rule"));
    assert_eq!(evaluate(text, "user=u", 1, 1).as_deref(), Ok("b=9 u=1"));
    // A skipped rule raises no amount.
    let both = format!("[[rules]]\nname = \"b\"\nlimits = [ {{ key = \"b\", amount = 2 }} ]\n{text}");
    assert_eq!(evaluate(&both, "model=x", 1, 1).as_deref(), Ok("b=2"));
    assert_eq!(evaluate(&both, "user=u", 1, 1).as_deref(), Ok("b=9 u=1"));
}

#[test]
fn a_call_has_at_most_32_limits_and_those_of_amount_0_do_not_count() {
    let rules = |count: usize, amount: &str| {
        let rule = |n| format!("[[rules]]\nname = \"r{n}\"\nlimits = [ {{ key = \"k{n}\", amount = {amount} }} ]\n");
        (0..count).map(rule).collect::<String>()
    };
    assert_eq!(policy(&rules(32, "1")).evaluate(&call(&Attributes::default())).map(|it| it.len()), Ok(32));
    assert_eq!(policy(&rules(33, "1")).evaluate(&call(&Attributes::default())), Err(Refusal::TooManyLimits));
    assert_eq!(policy(&rules(33, "0")).evaluate(&call(&Attributes::default())), Ok(Vec::new()));
    assert_eq!(policy(&rules(33, "0")).settle(&Attributes::default(), &Usage::default()).actuals.len(), 33);
}

fn call(attributes: &Attributes) -> Call<'_> {
    Call { attributes, input_tokens_max: 1, output_tokens_max: 1 }
}

#[test]
fn explain_lists_every_rule_even_after_a_refusal() {
    let matched = |text: &str| {
        let attributes = attributes(text);
        let explained =
            policy(POLICY).explain(&Call { attributes: &attributes, input_tokens_max: 10, output_tokens_max: 1 });
        (explained.rules.iter().map(|rule| rule.matched).collect::<Vec<_>>(), explained.cost)
    };
    assert_eq!(matched("provider=openai model=gpt-4o tenant=a"), (vec![true, false, true, false], Some(35)));
    assert_eq!(matched("model=o1 plan=free tenant=a user=u"), (vec![false, true, true, true], None));
}

#[test]
fn a_usage_becomes_actual_amounts_of_the_same_limits() {
    let usage = Usage { input_tokens: 1_000, cached_input_tokens: 400, output_tokens: 0, ..Usage::default() };
    let settle = |call: &str| {
        let settled = policy(POLICY).settle(&attributes(call), &usage);
        (shown(&settled.actuals), settled.cost)
    };
    let settled = settle("provider=openai model=gpt-4o tenant=acme");
    let amounts = "!default:openai:gpt-4o:rpm=1 !default:openai:gpt-4o:tpm=1000 openai:gpt-4o:out=0 tenant:acme:tpd=1000 acme:usd=2000";
    assert_eq!(settled, (amounts.to_owned(), Some(2_000)));
    // Rules that would refuse are left out, so that what they reserved stays reserved.
    assert_eq!(
        settle("model=o1 tenant=acme user=u plan=free"),
        ("user:u:in=1000 tenant:acme:tpd=1000".to_owned(), None)
    );
}

#[test]
fn more_output_takes_more_of_the_limits_that_count_it() {
    let grown = |call: &str, tokens| policy(POLICY).grow(&attributes(call), tokens).map(|amounts| shown(&amounts));
    let call = "provider=openai model=gpt-4o tenant=acme user=u1";
    let amounts = "!default:openai:gpt-4o:tpm=500 openai:gpt-4o:out=500 tenant:acme:tpd=500 acme:usd=5000";
    assert_eq!(grown(call, 500).as_deref(), Ok(amounts));
    assert_eq!(grown(call, 0).as_deref(), Ok(""));
    assert_eq!(grown("model=gpt-4o", 1), Err(Refusal::MissingAttribute("tenant".into())));
}

#[test]
fn a_call_that_was_not_made_releases_all_its_limits() {
    let call = "provider=openai model=gpt-4o tenant=acme user=u1";
    let reserved = evaluate(POLICY, call, 1_200, 500).unwrap();
    let keys = |text: &str| text.split(' ').map(|it| it.split_once('=').unwrap().0.to_owned()).collect::<Vec<_>>();
    let released = policy(POLICY).release(&attributes(call));
    assert!(released.iter().all(|it| it.amount == 0));
    assert_eq!(keys(&shown(&released)), keys(&reserved));
    assert_eq!(released.iter().filter(|it| it.is_cost).map(|it| it.key.as_str()).collect::<Vec<_>>(), ["acme:usd"]);
}

/// Every piece of a document that is likely to be wrong.
fn any_document() -> impl Strategy<Value = String> {
    let pieces = vec![
        "[[rules]]\n",
        "[[prices]]\n",
        "name = \"a\"\n",
        "name = \"b\"\n",
        "when = 'model == \"x\"'\n",
        "when = '!'\n",
        "limits = [ { key = \"{model}\", amount = \"tokens\" } ]\n",
        "limits = [ { key = \"{a}{b}\", amount = \"cost\" } ]\n",
        "limits = [ { key = \"emk_{a}\", amount = 7 } ]\n",
        "deny = \"no\"\n",
        "optional = true\n",
        "unmatched = \"allow\"\n",
        "model = \"*\"\n",
        "asset = \"usd\"\n",
        "input = 1000000000000\n",
        "output = 3\n",
        "above = [ { input_tokens = 0, input = 1000000000000 } ]\n",
        "}",
        "\"",
        "'",
        "\u{0}",
        "ü = 1\n",
    ];
    prop::collection::vec(prop::sample::select(pieces), 0..14).prop_map(|pieces| pieces.concat())
}

fn any_attributes() -> impl Strategy<Value = Attributes> {
    let name = prop::sample::select(vec!["model", "provider", "a", "b", "tenant", "user", "plan"]);
    let value =
        prop_oneof![Just("x".to_owned()), Just("gpt-4o".to_owned()), Just("openai".to_owned()), "[ -~ü日]{1,80}"];
    let value = value.prop_filter("no API keys", |value| !earmark_core::contains_api_key(value));
    prop::collection::btree_map(name, value, 0..7).prop_map(|pairs| Attributes::new(pairs).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_document_makes_the_evaluation_panic_or_exceed_its_bound(
        text in any_document(), attributes in any_attributes(), bounds in any::<(u32, u32)>()
    ) {
        if let Ok(policy) = Policy::parse(&"team".parse().unwrap(), &text) {
            let call = Call { attributes: &attributes, input_tokens_max: bounds.0, output_tokens_max: bounds.1 };
            let explained = policy.explain(&call);
            prop_assert_eq!(&explained.requirements, &policy.evaluate(&call));
            prop_assert!(explained.requirements.map_or(0, |amounts| amounts.len()) <= REQUIREMENTS_MAX);
        }
    }

    #[test]
    fn settling_within_the_bounds_never_takes_more_than_was_reserved(
        attributes in any_attributes(),
        bounds in (0..5_000_u32, 0..5_000_u32),
        parts in prop::array::uniform6(0..5_000_u32),
    ) {
        let policy = policy(POLICY);
        let call = Call { attributes: &attributes, input_tokens_max: bounds.0, output_tokens_max: bounds.1 };
        let usage = Usage {
            input_tokens: parts[0].min(bounds.0),
            output_tokens: parts[1].min(bounds.1),
            cached_input_tokens: parts[2],
            cache_write_tokens: parts[3],
            cache_write_1h_tokens: parts[4],
            reasoning_tokens: parts[5],
        };
        if let Ok(reserved) = policy.evaluate(&call) {
            for actual in policy.settle(&attributes, &usage).actuals {
                let bound = reserved.iter().find(|it| it.key == actual.key).map_or(0, |it| it.amount);
                prop_assert!(actual.amount <= bound, "{}: {} of {}", actual.key, actual.amount, bound);
            }
        }
    }

    #[test]
    fn settling_within_the_grown_bounds_never_takes_more_than_was_reserved(
        attributes in any_attributes(),
        bounds in (0..5_000_u32, 0..5_000_u32),
        more in prop::collection::vec(0..5_000_u32, 0..4),
        parts in prop::array::uniform6(0..20_000_u32),
    ) {
        let policy = policy(&format!("{POLICY}reasoning = 12_000_000\nabove = [ {{ input_tokens = 100, output = 15_000_001 }} ]\n"));
        let call = Call { attributes: &attributes, input_tokens_max: bounds.0, output_tokens_max: bounds.1 };
        let usage = Usage {
            input_tokens: parts[0].min(bounds.0),
            output_tokens: parts[1].min(bounds.1 + more.iter().sum::<u32>()),
            cached_input_tokens: parts[2],
            cache_write_tokens: parts[3],
            cache_write_1h_tokens: parts[4],
            reasoning_tokens: parts[5],
        };
        if let Ok(mut reserved) = policy.evaluate(&call) {
            reserved.extend(more.iter().flat_map(|tokens| policy.grow(&attributes, *tokens).unwrap()));
            for actual in policy.settle(&attributes, &usage).actuals {
                let bound: u64 = reserved.iter().filter(|it| it.key == actual.key).map(|it| it.amount).sum();
                prop_assert!(actual.amount <= bound, "{}: {} of {}", actual.key, actual.amount, bound);
            }
        }
    }
}

fn hits(text: &str, attributes: &Attributes, count: u32, tokens_max: Option<(u32, u32)>) -> Result<String, String> {
    let hits = Hits { attributes, count, tokens_max, replaced: Replaced::default() };
    let shown = |amounts: Vec<CallAmount>| shown(&amounts);
    policy(text).evaluate_hits(&hits).map(shown).map_err(|refusal| refusal.error())
}

#[test]
fn the_hits_of_a_proxy_are_the_amount_unless_they_state_tokens() {
    let text = r#"
        [[rules]]
        name   = "all"
        limits = [ { key = "rpm", amount = "requests" }, { key = "tpm", amount = "tokens" },
                   { key = "in", amount = "input_tokens" }, { key = "out", amount = "output_tokens" },
                   { key = "flat", amount = 7 } ]
    "#;
    let call = attributes("model=gpt-4o tenant=acme");
    assert_eq!(hits(text, &call, 5, None).unwrap(), "rpm=5 tpm=5 in=5 out=5 flat=7");
    assert_eq!(hits(text, &call, 1, Some((1_200, 500))).unwrap(), "rpm=1 tpm=1700 in=1200 out=500 flat=7");
    let settle = |used| {
        let hits = Hits { attributes: &call, count: 2, tokens_max: None, replaced: Replaced::default() };
        shown(&policy(text).settle_hits(&hits, &used).actuals)
    };
    assert_eq!(settle(HitsUsed::Count(0)), "rpm=2 tpm=0 in=0 out=0 flat=7");
    let usage = Usage { input_tokens: 10, output_tokens: 3, ..Usage::default() };
    assert_eq!(settle(HitsUsed::Tokens(usage)), "rpm=2 tpm=13 in=10 out=3 flat=7");
}

#[test]
fn hits_without_bounds_have_no_cost_and_an_optional_rule_does_not_make_them_free() {
    let prices = "\n[[prices]]\nmodel = \"gpt-4o\"\nasset = \"usd\"\ninput = 1_000_000\noutput = 1_000_000\n";
    let call = attributes("model=gpt-4o tenant=acme");
    for optional in [false, true] {
        let rule = "[[rules]]\nname = \"cost\"\nlimits = [ { key = \"{tenant}:usd\", amount = \"cost\" } ]\n";
        let text = format!("{rule}optional = {optional}\n{prices}");
        assert_eq!(hits(&text, &call, 5, None).unwrap_err(), "missing_attribute:earmark_output_tokens_max");
        assert_eq!(hits(&text, &call, 5, Some((10, 20))).unwrap(), "acme:usd=30");
        // A usage that is one number has no cost, so that the hold stays as it is.
        let replaced = Replaced::default();
        let taken = Hits { attributes: &call, count: 5, tokens_max: Some((10, 20)), replaced };
        assert_eq!(shown(&policy(&text).settle_hits(&taken, &HitsUsed::Count(3)).actuals), "");
    }
}

/// A rule that replaced another one only for its own call would let a proxy take both limits of one request.
#[test]
fn a_rule_that_matches_one_descriptor_replaces_others_in_all_of_them() {
    let text = r#"
        unmatched = "refuse"
        [[rules]]
        name   = "each"
        when   = 'tenant != ""'
        limits = [ { key = "{tenant}:rpm", amount = "requests" } ]
        [[rules]]
        name     = "vip"
        when     = 'plan == "vip"'
        replaces = [ "each", "closed" ]
        limits   = [ { key = "vip:rpm", amount = "requests" } ]
        [[rules]]
        name = "closed"
        when = 'plan == "vip"'
        deny = "closed"
        [[rules]]
        name     = "free"
        when     = 'plan == "free"'
        replaces = [ "vip", "each" ]
        limits   = []
    "#;
    let policy = policy(text);
    let judge = |all: &[&str]| -> Vec<Result<String, String>> {
        let all: Vec<Attributes> = all.iter().map(|one| attributes(one)).collect();
        let replaced = policy.replaced(&all);
        let hits = |attributes| Hits { attributes, count: 2, tokens_max: None, replaced };
        let one = |attributes| policy.evaluate_hits(&hits(attributes)).map(|amounts| shown(&amounts));
        all.iter().map(|attributes| one(attributes).map_err(|refusal| refusal.error())).collect()
    };
    let ok = |text: &str| Ok(text.to_owned());
    assert_eq!(judge(&["tenant=a"]), [ok("a:rpm=2")]);
    assert_eq!(judge(&["tenant=a", "plan=vip"]), [ok(""), ok("vip:rpm=2")]);
    assert_eq!(judge(&["plan=vip", "tenant=a"]), [ok("vip:rpm=2"), ok("")]);
    // A replaced rule still replaces.
    assert_eq!(judge(&["tenant=a", "plan=vip", "plan=free"]), [ok(""), ok(""), ok("")]);
    assert_eq!(judge(&["tenant=a", "model=m"]), [ok("a:rpm=2"), Err("no_rule".to_owned())]);
    // One call is judged alone, before and after it.
    let call = attributes("tenant=a plan=vip");
    let bound = policy.evaluate(&Call { attributes: &call, input_tokens_max: 1, output_tokens_max: 1 }).unwrap();
    assert_eq!(shown(&bound), "vip:rpm=1");
    assert_eq!(shown(&policy.settle(&call, &Usage::default()).actuals), "vip:rpm=1");
    assert_eq!(policy.grow(&call, 1).unwrap(), []);
    let explained = policy.explain(&Call { attributes: &call, input_tokens_max: 1, output_tokens_max: 1 });
    let applied: Vec<&str> = explained.rules.iter().filter(|rule| rule.matched).map(|rule| &*rule.name).collect();
    assert_eq!(applied, ["vip"]);
    assert_eq!(explained.requirements, Ok(bound));
}
