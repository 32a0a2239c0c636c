//! Policies on the command line: rules and prices as files, and `explain`.

use tempfile::TempDir;

use crate::as_code::write;
use crate::support::Server;

const RULES: &str = "
limits:
  - {key: gpt-4o:tpm, kind: rolling, capacity: 10000, window_seconds: 60}
rules:
  - name: tenant
    when: 'tenant != \"\"'
    limits: [{key: \"{model}:tpm\", amount: tokens}]
  - name: plan
    when: 'plan == \"free\"'
    deny: \"the plan free is closed: \\\"ü\\\"\"
namespaces:
  - namespace: team
    unmatched: allow
    rules:
      - name: user
        optional: true
        limits: [{key: \"user:{user}\", amount: 3, namespace: default}]
";

const PRICES: &str = "
[[prices]]
model = \"gpt-4o*\"
asset = \"usd\"
input = 2_500_000
output = 10_000_000
above = [ { input_tokens = 200_000, output = 15_000_000 } ]
";

#[test]
fn rules_and_prices_are_applied_once_and_then_there_is_no_difference() {
    let (server, folder) = (Server::start(&[]), TempDir::new().unwrap());
    let (rules, prices) = (write(&folder, "rules.yaml", RULES), write(&folder, "prices.toml", PRICES));
    let diff = server.earmark(&["diff", &rules, &prices]).ends(2);
    assert!(diff.stdout.contains("  + policy\n"), "{diff:?}");
    assert!(diff.stdout.contains("      rules.plan: {\"deny\":"), "{diff:?}");
    assert!(diff.stdout.contains("      prices.gpt-4o*: {\"above\":"), "{diff:?}");
    let applied = server.earmark(&["apply", &rules, &prices]).ends(0);
    assert_eq!(
        applied.stdout,
        "created gpt-4o:tpm\ncreated policy\ncreated policy in team\n3 created, 0 changed, 0 deleted, 0 unchanged\n"
    );
    server.earmark(&["diff", &rules, &prices]).ends(0);
    let again = server.earmark(&["apply", &rules, &prices]).ends(0);
    assert_eq!(again.stdout, "0 created, 0 changed, 0 deleted, 3 unchanged\n");
    // A file without prices leaves those of the server.
    server.earmark(&["diff", "--prune", &rules]).ends(0);

    let policy = server.line("policy get").ends(0).stdout;
    assert!(policy.contains("[[rules]]\nname = \"tenant\"\n") && policy.contains("[[prices]]"), "{policy}");
    for format in ["yaml", "toml", "json"] {
        let exported =
            server.earmark(&["export", "--format", format, "--namespace", "default", "--namespace", "team"]).ends(0);
        let file = write(&folder, &format!("exported.{format}"), &exported.stdout);
        server.earmark(&["diff", "--prune", &file]).ends(0);
    }

    let explained = server.line("explain --attribute tenant=acme --attribute model=gpt-4o --input 1200 --output 500");
    let explained = explained.ends(0);
    assert!(explained.stdout.starts_with("allowed\nrules that match, of 2 (revision "), "{explained:?}");
    assert!(explained.stdout.contains("costs at most: 8,000\n"), "{explained:?}");
    let denied = server.line("explain --attribute tenant=acme --attribute model=gpt-4o --attribute plan=free").ends(3);
    assert!(denied.stdout.starts_with("not allowed: denied_by_rule:plan (the plan free is closed"), "{denied:?}");
    let json =
        server.line("explain --attribute tenant=acme --attribute model=gpt-4o --input 20k --json").ends(3).json();
    assert_eq!(json["error"], "exceeds_capacity:gpt-4o:tpm");
}

#[test]
fn rules_that_no_file_names_stay_until_they_are_pruned() {
    let (server, folder) = (Server::start(&[]), TempDir::new().unwrap());
    let both = write(&folder, "both.yaml", RULES);
    server.earmark(&["apply", &both]).ends(0);
    let one = "rules:\n  - name: new\n    deny: no\n  - name: tenant\n    limits: [{key: a, amount: 1}]\n";
    let one = write(&folder, "one.yaml", one);
    let diff = server.earmark(&["diff", &one]).ends(2);
    assert!(diff.stdout.contains("  ~ policy\n") && diff.stdout.contains("rules.new: none -> "), "{diff:?}");
    assert!(diff.stdout.contains("1 more on the server are in no file (see --prune)"), "{diff:?}");
    server.earmark(&["apply", &one]).ends(0);
    let rules = |text: &str| text.lines().filter_map(|line| line.strip_prefix("name = ")).map(str::to_owned).collect();
    let names: Vec<String> = rules(&server.line("policy get").ends(0).stdout);
    assert_eq!(names, ["\"new\"", "\"tenant\"", "\"plan\""]);
    let refused = server.earmark(&["apply", "--prune", &one]).ends(2);
    assert!(refused.stderr.contains("--prune would delete 1 rule in default"), "{refused:?}");
    server.earmark(&["apply", "--prune", "--yes", &one]).ends(0);
    let names: Vec<String> = rules(&server.line("policy get").ends(0).stdout);
    assert_eq!(names, ["\"new\"", "\"tenant\""]);
}

#[test]
fn a_mistake_in_a_policy_is_named_with_its_file_and_line() {
    let (server, folder) = (Server::start(&[]), TempDir::new().unwrap());
    let good = write(&folder, "good.yaml", "rules:\n  - name: a\n    deny: no\n");
    for (name, text, what) in [
        (
            "a.yaml",
            "rules:\n  - name: b\n    when: 'x =='\n    deny: no\n",
            "a.yaml:3: rules[1].when: at 1:5: Syntax error",
        ),
        ("b.yaml", "rules:\n  - name: b\n", "b.yaml:2: rules[1].limits: is required, unless the rule has deny"),
        ("c.toml", "[[rules]]\nname = \"a\"\ndeny = \"no\"\n", "c.toml:2: rules[1].name: "),
        (
            "d.json",
            "{\"prices\": [\n{\"model\": \"x\", \"asset\": \"usd\", \"input\": 1}]}",
            "d.json:2: prices[0].output",
        ),
        ("e.yaml", "unmatched: maybe\n", "e.yaml:1: unmatched: found \"maybe\""),
    ] {
        let wrong = write(&folder, name, text);
        let refused = server.earmark(&["apply", &good, &wrong]).ends(2);
        assert!(refused.stderr.contains(what), "{what}\nbut {}", refused.stderr);
    }
    assert_eq!(server.line("policy get").ends(1).stdout, "");
}

#[test]
fn an_imported_configuration_of_ratelimit_is_applied_and_its_mistakes_have_lines() {
    let (server, folder) = (Server::start(&[]), TempDir::new().unwrap());
    let config = "domain: team\ndescriptors:\n  - key: user\n    detailed_metric: true\n    rate_limit: { unit: hour, \
                  requests_per_unit: 2 }\n  - key: user\n    value: root\n    rate_limit: { unlimited: true }\n";
    let config = write(&folder, "ratelimit.yaml", config);
    let imported = server.earmark(&["import", "ratelimit", &config]).ends(0);
    assert!(imported.stderr.contains("ratelimit.yaml:4: detailed_metric: left out"), "{imported:?}");
    let limits = write(&folder, "limits.yaml", &imported.stdout);
    server.earmark(&["apply", &limits]).ends(0);
    server.earmark(&["diff", "--prune", &limits]).ends(0);
    let explained = server.line("explain --namespace team --attribute user=u1 --json").ends(0).json();
    assert_eq!(explained["limits"][0]["key"], "user:u1", "{explained}");
    let explained = server.line("explain --namespace team --attribute user=root --json").ends(0).json();
    assert_eq!(explained["limits"], serde_json::json!([]), "{explained}");

    let wrong = "domain: team\ndescriptors:\n  - key: a-b\n  - key: a\n    quota_mode: true\n";
    let refused = server.earmark(&["import", "ratelimit", &write(&folder, "wrong.yaml", wrong)]).ends(2);
    assert!(refused.stderr.contains("wrong.yaml:3: key: found the name \"a-b\""), "{refused:?}");
    assert!(refused.stderr.contains("wrong.yaml:5: quota_mode: cannot be expressed"), "{refused:?}");
    assert_eq!(refused.stdout, "");
}

#[test]
fn imported_prices_are_a_policy_and_what_is_left_out_is_named() {
    let (server, folder) = (Server::start(&[]), TempDir::new().unwrap());
    let list = r#"{
        "gpt-x": { "input_cost_per_token": 2.5e-06, "output_cost_per_token": 1e-05, "input_cost_per_token_batches": 1e-06 },
        "image": { "output_cost_per_image": 0.04 }
    }"#;
    let list = write(&folder, "list.json", list);
    let imported = server.earmark(&["prices", "import", &list]).ends(0);
    for line in [
        "skipped image: no price per input and output token",
        "ignored a price of gpt-x: input_cost_per_token_batches",
        "1 imported, 1 skipped",
    ] {
        assert!(imported.stderr.contains(line), "{imported:?}");
    }
    server.earmark(&["policy", "put", &write(&folder, "prices.toml", &imported.stdout)]).ends(0);
    let explained = server.line("explain --attribute model=gpt-x --input 1k --output 1k --json").ends(3).json();
    assert_eq!(explained["cost"], "12500", "{explained}");
    let refused = server.earmark(&["prices", "import", &list, "--models", "gpt-y*"]).ends(2);
    assert!(refused.stderr.contains("list.json: found no model for --models \"gpt-y*\""), "{refused:?}");
    assert_eq!(refused.stdout, "");
}
