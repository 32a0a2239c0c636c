use serde_json::{Map, json};

use super::super::document::{Name, Section, Source};
use super::super::fields::needed;
use super::*;

/// Definitions with texts that look like something else.
fn definitions() -> Vec<(NamespaceName, Vec<Map<String, Value>>)> {
    let rolling = |key: &str, unit: &str, description: &str| {
        let definition = json!({
            "key": key, "kind": "rolling", "capacity": u64::MAX, "window_seconds": 60, "unit": unit,
            "description": description,
        });
        Section::Limits.canonical(definition).unwrap()
    };
    let credit = json!({
        "key": "usd", "kind": "credit", "vault": "main", "account": "123", "asset": "usd", "timeout_seconds": 60,
        "overage": "deny",
    });
    let first = vec![
        rolling("1", "true", "a: b # c\n\u{7f}\"'\\ \u{1F600}\t- x"),
        rolling("null", "~", " "),
        rolling("a:b:", "0x10", "{x}"),
        rolling("gpt-4o:rpm", "", ""),
        Section::Limits.canonical(credit).unwrap(),
    ];
    let team = vec![rolling("gpt-4o:rpm", "1e3", "-")];
    [("default", first), ("empty", vec![]), ("team", team)].map(|(name, all)| (name.parse().unwrap(), all)).into()
}

fn exported(format: Format) -> String {
    let mut text = Vec::new();
    let mut exporter = Exporter::new(&mut text, format);
    for (namespace, fields) in definitions() {
        exporter.namespace(&namespace).unwrap();
        exporter.list("limits").unwrap();
        fields.iter().for_each(|fields| exporter.item("limits", needed(Section::Limits, fields)).unwrap());
        exporter.end_list("limits").unwrap();
    }
    exporter.end().unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn an_export_is_read_back_as_it_was_in_every_format() {
    let folder = tempfile::TempDir::new().unwrap();
    let namespace = "default".parse().unwrap();
    for (format, name) in [(Format::Yaml, "a.yaml"), (Format::Toml, "a.toml"), (Format::Json, "a.json")] {
        let (text, path) = (exported(format), folder.path().join(name));
        std::fs::write(&path, &text).unwrap();
        let read = Source { files: &[path], format, namespace: &namespace }.read();
        let document = read.unwrap_or_else(|failure| panic!("{failure}\n{text}"));
        let found: Vec<_> = document.definitions.into_iter().map(|(name, wanted)| (name, wanted.fields)).collect();
        let mut expected = Vec::new();
        for (namespace, all) in definitions() {
            for fields in all {
                let key = fields["key"].as_str().unwrap().to_owned();
                expected.push((Name { namespace: namespace.clone(), section: Section::Limits, key }, fields));
            }
        }
        expected.sort_by(|(a, _), (b, _)| a.cmp(b));
        assert_eq!(found, expected, "{text}");
        assert_eq!(document.lists.len(), 3, "{text}");
    }
}

#[test]
fn an_export_has_no_defaults() {
    let text = exported(Format::Yaml);
    let rpm = "  - key: gpt-4o:rpm\n    kind: rolling\n    capacity: 18446744073709551615\n    window_seconds: 60\n";
    assert!(text.contains(&format!("{rpm}  - key: usd\n")), "{text}");
    assert!(text.contains("    account: \"123\"\n    asset: usd\n    overage: deny\n"), "{text}");
    assert!(!text.contains("revenue"), "{text}");
}
