use std::path::PathBuf;

use earmark_policy::{Attributes, Hits};

use super::super::super::document::{Format, Source};
use super::super::super::export::Exporter;
use super::super::super::yaml;
use super::*;

const CONFIG: &str = r#"
domain: rl
descriptors:
  - key: remote_address
    rate_limit: { unit: second, requests_per_unit: 10, name: by address }
  - key: remote_address
    value: 10.0.0.1
    rate_limit: { unlimited: true }
  - key: message_type
    value: marketing
    rate_limit: { unit: day, requests_per_unit: 5 }
    descriptors:
      - key: to_number
        detailed_metric: true
        rate_limit: { unit: Minute, requests_per_unit: 1 }
        shadow_mode: true
      - key: to_number
        value: 2061111111
        rate_limit: { unit: month, requests_per_unit: 0 }
  - key: path1
    value: /api/*
    rate_limit: { unit: hour, requests_per_unit: 7 }
  - key: path
    value: /all*
    share_threshold: true
    rate_limit: { unit: year, requests_per_unit: 8 }
"#;

fn converted(text: &str) -> Converted {
    convert(&yaml::parse(text).unwrap()).unwrap()
}

fn shown(items: &[Item]) -> Vec<String> {
    let field = |(name, value): &(&str, Value)| format!("{name}={}", value.to_string().replace('"', "'"));
    items.iter().map(|item| item.iter().map(field).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn limits_templates_and_rules_follow_the_tree() {
    let all = converted(CONFIG);
    assert_eq!(all.namespace.as_str(), "rl");
    assert_eq!(
        shown(&all.limits),
        [
            "key='message_type:marketing' kind='rolling' capacity=5 window_seconds=86400",
            "key='path:/all%2A' kind='rolling' capacity=8 window_seconds=31536000",
        ]
    );
    assert_eq!(
        shown(&all.templates),
        [
            "key='remote_address:{remote_address}' kind='rolling' capacity=10 window_seconds=1 description='by address'",
            "key='message_type:marketing:to_number:{to_number}' kind='rolling' capacity=1 window_seconds=60 enforce=false",
            "key='path1:/api/%2A:{a}' kind='rolling' capacity=7 window_seconds=3600",
        ]
    );
    let notes: Vec<_> = all.notes.iter().map(|note| (note.line, note.what.as_str())).collect();
    assert_eq!(notes, [(14, "detailed_metric: left out, Earmark counts denials by limit and template")]);
}

/// The amounts that each descriptor of a request takes.
fn judged(text: &str, descriptors: &[&[(&str, &str)]]) -> Vec<Result<Vec<String>, String>> {
    let all = converted(text);
    let mut document = String::from("unmatched = \"allow\"\n");
    for rule in &all.rules {
        document.push_str("[[rules]]\n");
        for (name, value) in rule {
            document.push_str(&format!("{name} = {}\n", crate::code::policy::inline(value)));
        }
    }
    let policy = earmark_policy::Policy::parse(&all.namespace, &document).unwrap_or_else(|error| panic!("{error}"));
    let attributes = |entries: &&[(&str, &str)]| Attributes::new(entries.iter().copied()).unwrap();
    let descriptors: Vec<Attributes> = descriptors.iter().map(attributes).collect();
    let replaced = policy.replaced(&descriptors);
    let take = |attributes| {
        let amounts = policy.evaluate_hits(&Hits { attributes, count: 3, tokens_max: None, replaced });
        let amounts = amounts.map_err(|refusal| refusal.error())?;
        Ok(amounts.iter().map(|amount| format!("{}={}", amount.key, amount.amount)).collect())
    };
    descriptors.iter().map(take).collect()
}

#[test]
fn a_descriptor_takes_the_limit_of_exactly_its_path() {
    for (entries, expected) in [
        (&[("remote_address", "1.2.3.4")][..], Ok(vec!["remote_address:1.2.3.4=3"])),
        (&[("remote_address", "10.0.0.1")], Ok(vec![])),
        (&[("message_type", "marketing")], Ok(vec!["message_type:marketing=3"])),
        (&[("message_type", "other")], Ok(vec![])),
        (&[("message_type", "marketing"), ("to_number", "1")], Ok(vec!["message_type:marketing:to_number:1=3"])),
        (&[("message_type", "marketing"), ("to_number", "2061111111")], Err("denied_by_rule:to_number.17")),
        (&[("to_number", "1")], Ok(vec![])),
        (&[("message_type", "marketing"), ("remote_address", "1.2.3.4")], Ok(vec![])),
        (&[("path1", "/api/a:b")], Ok(vec!["path1:/api/%2A:/api/a%3Ab=3"])),
        (&[("path", "/all/x")], Ok(vec!["path:/all%2A=3"])),
        (&[("path", "/other")], Ok(vec![])),
    ] {
        let expected = expected.map(|keys: Vec<&str>| keys.into_iter().map(str::to_owned).collect::<Vec<String>>());
        assert_eq!(judged(CONFIG, &[entries]), [expected.map_err(str::to_owned)], "{entries:?}");
    }
}

/// The seventh example of ratelimit's own documentation, and its corner cases.
#[test]
fn a_limit_replaces_those_of_its_names_in_the_whole_request() {
    const CONFIG: &str = r#"
domain: rl
descriptors:
  - key: key_1
    value: value_1
    descriptors:
      - key: user
        value: bkthomps
        rate_limit: { name: specific_limit, requests_per_unit: 5, unit: second }
  - key: key_2
    value: value_2
    descriptors:
      - key: user
        value: bkthomps
        rate_limit: { replaces: [{ name: specific_limit }], requests_per_unit: 10, unit: second }
  - key: source
    rate_limit: { name: specific_limit, requests_per_unit: 7, unit: day }
  - key: closed
    value: yes
    rate_limit: { name: closed, requests_per_unit: 0, unit: day }
  - key: open
    rate_limit: { unlimited: true, name: open, replaces: [{ name: closed }, { name: nobody }, { name: third }] }
  - key: third
    rate_limit: { name: third, replaces: [{ name: specific_limit }, { name: open }], requests_per_unit: 1, unit: day }
  - key: nothing
    rate_limit: { unlimited: true, replaces: [{ name: nobody }] }
"#;
    let (first, second): (&[_], &[_]) =
        (&[("key_1", "value_1"), ("user", "bkthomps")], &[("key_2", "value_2"), ("user", "bkthomps")]);
    let (source, closed, open, third): (&[_], &[_], &[_], &[_]) =
        (&[("source", "10.0.0.1")], &[("closed", "yes")], &[("open", "x")], &[("third", "x")]);
    let took = |key: &str| Ok(vec![format!("{key}=3")]);
    let (none, denied) = (|| Ok(Vec::new()), || Err("denied_by_rule:closed.18".to_owned()));
    let (of_first, of_second) = (|| took("key_1:value_1:user:bkthomps"), || took("key_2:value_2:user:bkthomps"));
    let of_source = || took("source:10.0.0.1");
    for (request, expected) in [
        (&[first][..], vec![of_first()]),
        (&[second], vec![of_second()]),
        (&[first, second], vec![none(), of_second()]),
        (&[second, first, source], vec![of_second(), none(), none()]),
        (&[source], vec![of_source()]),
        (&[closed, source], vec![denied(), of_source()]),
        // A limit that is no limit replaces too, and has nothing that could be replaced.
        (&[closed, open], vec![none(), none()]),
        (&[third, open, closed], vec![none(), none(), none()]),
        // A replaced limit still replaces.
        (&[open, third, first], vec![none(), none(), none()]),
        (&[third, first], vec![took("third:x"), none()]),
    ] {
        assert_eq!(judged(CONFIG, request), expected, "{request:?}");
    }
    let rules = shown(&converted(CONFIG).rules);
    assert!(!rules.iter().any(|rule| rule.contains("nothing.")), "{rules:?}");
}

#[test]
fn what_cannot_be_expressed_is_refused_by_name_and_line() {
    for (descriptor, line, what) in [
        ("key: a-b", 3, "key: found the name \"a-b\""),
        (
            "key: a\n    rate_limit:\n      unit: minute\n      requests_per_unit: 1\n      replaces: b",
            7,
            "replaces: found \"b\", allowed is a list",
        ),
        (
            "key: a\n    rate_limit: { unit: day, requests_per_unit: 1, replaces: [{}] }",
            4,
            "replaces: name is required",
        ),
        (
            "key: a\n    rate_limit: { unit: day, requests_per_unit: 1, name: b, replaces: [{ name: b }] }",
            4,
            "replaces: found the limit's own name",
        ),
        ("key: a\n    value: b*c", 3, "value: found * before its end"),
        ("key: a\n    value: b*c*", 3, "value: found * before its end"),
        ("key: a\n    quota_mode: true", 4, "quota_mode: cannot be expressed"),
        ("key: a\n    rate_limit: { unit: fortnight, requests_per_unit: 1 }", 4, "unit: found \"fortnight\""),
        ("key: a\n    rate_limit: { unit: day, requests_per_unit: -1 }", 4, "requests_per_unit: found -1"),
        ("key: a\n    rate_limit: { unit: day }", 4, "requests_per_unit is required"),
        ("key: a\n    descriptors:\n      - key: a", 5, "key: found a twice in a path"),
        ("key: a\n    valeu: x", 4, "found \"valeu\", allowed are key, value"),
        ("value: x", 3, "key is required"),
        ("key: a\n    share_threshold: true", 3, "share_threshold: allowed only with"),
    ] {
        let text = format!("domain: rl\ndescriptors:\n  - {descriptor}\n");
        let mistakes = convert(&yaml::parse(&text).unwrap()).unwrap_err();
        let found = &mistakes[0];
        assert_eq!(found.line, line, "{text}{found:?}");
        assert!(found.what.starts_with(what), "{found:?}");
        let is_missing = |mistake: &Mistake| mistake.what.ends_with("is required");
        assert!(mistakes[1..].iter().all(|mistake| !is_missing(mistake)), "a wrong value is not missing: {mistakes:?}");
    }
    let mut five = "rate_limit: { unit: day, requests_per_unit: 1 }".to_owned();
    for key in ["e", "d", "c", "b"] {
        five = format!("descriptors: [{{ key: {key}, {five} }}]");
    }
    let five = format!("domain: rl\ndescriptors: [{{ key: a, {five} }}]\n");
    let found = &convert(&yaml::parse(&five).unwrap()).unwrap_err()[0];
    assert_eq!(found.what, "found 5 free values in its path, a template has 4");
    let swapped = "domain: rl\ndescriptors:\n  - key: a\n    descriptors:\n      - { key: b, rate_limit: { unit: day, requests_per_unit: 1 } }\n  - key: b\n    descriptors:\n      - { key: a, rate_limit: { unit: day, requests_per_unit: 2 } }\n";
    let found = &convert(&yaml::parse(swapped).unwrap()).unwrap_err()[0];
    assert_eq!(
        (found.line, found.what.as_str()),
        (8, "the same entries as on line 5 in another order, which attributes do not have")
    );
    let missing = convert(&yaml::parse("descriptors: []").unwrap()).unwrap_err();
    assert_eq!(missing[0].what, "domain is required");
    let name = convert(&yaml::parse("domain: a/b").unwrap()).unwrap_err();
    assert!(name[0].what.starts_with("domain: "), "{name:?}");
}

#[test]
fn apply_reads_what_import_prints_in_every_format() {
    let folder = tempfile::tempdir().unwrap();
    let all = converted(CONFIG);
    for (format, name) in [(Format::Yaml, "a.yaml"), (Format::Toml, "a.toml"), (Format::Json, "a.json")] {
        let mut text = Vec::new();
        super::super::print(&all, Exporter::new(&mut text, format)).unwrap();
        let path: PathBuf = folder.path().join(name);
        std::fs::write(&path, &text).unwrap();
        let namespace = NamespaceName::new("default").unwrap();
        let read = Source { files: &[path], format, namespace: &namespace }.read();
        let read = read.unwrap_or_else(|error| panic!("{error}\n{}", String::from_utf8_lossy(&text)));
        assert_eq!(read.lists.len(), 3, "{:?}", read.lists);
    }
}
