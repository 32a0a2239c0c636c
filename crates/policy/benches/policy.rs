//! The time of one evaluation: 20 rules, 6 of which match, with 8 limits. `cargo bench -p earmark-policy`.

#![allow(clippy::expect_used, clippy::arithmetic_side_effects, reason = "a benchmark may")]
#![allow(missing_docs, reason = "a benchmark is not read from outside")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use earmark_policy::{Attributes, Call, Policy, Usage};

const MATCHING: &str = r#"
[[rules]]
name   = "provider"
when   = 'provider == "openai" && model.startsWith("gpt-")'
limits = [
  { key = "openai:{model}:rpm", amount = "requests", namespace = "default" },
  { key = "openai:{model}:tpm", amount = "tokens", namespace = "default" },
  { key = "openai:{model}:calls", amount = "requests", namespace = "default" },
]
[[rules]]
name   = "tenant"
limits = [ { key = "tenant:{tenant}:tpd", amount = "tokens" } ]
[[rules]]
name   = "credit"
limits = [ { key = "{tenant}:usd", amount = "cost" } ]
[[rules]]
name   = "plan"
when   = 'plan in ["pro", "team"]'
limits = [ { key = "plan:{plan}:rpm", amount = "requests" } ]
[[rules]]
name   = "user"
when   = 'user != ""'
limits = [ { key = "user:{user}:out", amount = "output_tokens" } ]
[[rules]]
name   = "feature"
optional = true
limits = [ { key = "feature:{feature}:in", amount = "input_tokens" } ]
[[prices]]
model = "gpt-4o*"
asset = "usd"
input = 2_500_000
cached_input = 1_250_000
output = 10_000_000
"#;

fn policy() -> Policy {
    let other = |number: usize| {
        let when =
            format!("provider == \"p{number}\" || (plan == \"free\" && model in [\"a{number}\", \"b{number}\"])");
        format!("[[rules]]\nname = \"other-{number}\"\nwhen = '{when}'\nlimits = [ {{ key = \"o\", amount = 1 }} ]\n")
    };
    let text = format!("{MATCHING}{}", (0..14).map(other).collect::<String>());
    Policy::parse(&"team".parse().expect("a name"), &text).expect("a policy")
}

fn evaluation(criterion: &mut Criterion) {
    let policy = policy();
    let attributes = Attributes::new([
        ("tenant", "acme"),
        ("plan", "pro"),
        ("user", "user-12345"),
        ("feature", "chat"),
        ("model", "gpt-4o-mini"),
        ("provider", "openai"),
    ]);
    let attributes = attributes.expect("attributes");
    let call = Call { attributes: &attributes, input_tokens_max: 1_200, output_tokens_max: 500 };
    let explained = policy.explain(&call);
    assert_eq!((explained.rules.len(), explained.rules.iter().filter(|rule| rule.matched).count()), (20, 6));
    assert_eq!(explained.requirements.expect("requirements").len(), 8);
    criterion.bench_function("evaluate: 20 rules, 6 match, 8 limits", |bencher| {
        bencher.iter(|| policy.evaluate(black_box(&call)));
    });
    let usage = Usage { input_tokens: 1_100, output_tokens: 300, ..Usage::default() };
    criterion.bench_function("settle: 20 rules, 6 match, 8 limits", |bencher| {
        bencher.iter(|| policy.settle(black_box(&attributes), black_box(&usage)));
    });
}

criterion_group!(benches, evaluation);
criterion_main!(benches);
