use super::*;

fn read(files: &[(&str, &str)]) -> Result<Document, String> {
    let folder = tempfile::TempDir::new().unwrap();
    let path = |(name, text): &(&str, &str)| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let paths: Vec<PathBuf> = files.iter().map(path).collect();
    let namespace = "default".parse().unwrap();
    let read = Source { files: &paths, format: Format::Yaml, namespace: &namespace }.read();
    let folder = format!("{}/", folder.path().display());
    read.map_err(|failure| failure.to_string().replace(&folder, ""))
}

fn names(document: &Document) -> Vec<String> {
    document.definitions.keys().map(|name| format!("{} {}", name.namespace, name.key)).collect()
}

const YAML: &str = "
# Comments are allowed.
version: 1
limits:
  - key: gpt-4o:rpm
    kind: rolling
    capacity: 600
    window_seconds: 60
    unit: requests
  - {key: \"calls\", kind: concurrency, capacity: 8, timeout_seconds: 90}
templates:
  - {key: \"user:{user}:rpm\", kind: rolling, capacity: 60, window_seconds: 60}
namespaces:
  - namespace: team
    limits:
    - key: gpt-4o:rpm
      kind: rolling
      capacity: 5
      window_seconds: 60
";

const TOML: &str = r#"
version = 1

[[limits]]
key = "gpt-4o:rpm" # a comment
kind = "rolling"
capacity = 600
window_seconds = 60
unit = "requests"

[[limits]]
key = "calls"
kind = "concurrency"
capacity = 0x8
timeout_seconds = 90

[[templates]]
key = "user:{user}:rpm"
kind = "rolling"
capacity = 60
window_seconds = 60

[[namespaces]]
namespace = "team"

[[namespaces.limits]]
key = "gpt-4o:rpm"
kind = "rolling"
capacity = 5
window_seconds = 60
"#;

const JSON: &str = r#"{
  "version": 1,
  "limits": [
    {"key": "gpt-4o:rpm", "kind": "rolling", "capacity": 600, "window_seconds": 60, "unit": "requests"},
    {"key": "calls", "kind": "concurrency", "capacity": 8, "timeout_seconds": 90}
  ],
  "templates": [{"key": "user:{user}:rpm", "kind": "rolling", "capacity": 60, "window_seconds": 60}],
  "namespaces": [
    {"namespace": "team", "limits": [{"key": "gpt-4o:rpm", "kind": "rolling", "capacity": 5, "window_seconds": 60}]}
  ]
}"#;

#[test]
fn a_document_means_the_same_in_every_format() {
    let [yaml, toml, json] = [("a.yaml", YAML), ("a.toml", TOML), ("a.json", JSON)].map(|file| read(&[file]).unwrap());
    assert_eq!(names(&yaml), ["default calls", "default gpt-4o:rpm", "default user:{user}:rpm", "team gpt-4o:rpm"]);
    for other in [&toml, &json] {
        assert_eq!(names(other), names(&yaml));
        assert_eq!(other.lists, yaml.lists);
        for (name, wanted) in &yaml.definitions {
            assert_eq!(other.definitions[name].fields, wanted.fields, "{name:?}");
        }
    }
    let lines = |document: &Document| -> Vec<usize> {
        document.definitions.values().map(|wanted| wanted.origin.line).collect()
    };
    assert_eq!(
        (lines(&yaml), lines(&toml), lines(&json)),
        (vec![10, 5, 12, 16], vec![11, 4, 17, 26], vec![5, 4, 7, 9])
    );
}

#[test]
fn a_mistake_is_named_with_file_line_and_field() {
    let yaml = |rest: &str| format!("limits:\n  - key: a\n    kind: rolling\n{rest}");
    for (name, text, message) in [
        ("a.yaml", yaml("    capacity: -5\n    window_seconds: 60\n"), "a.yaml:4: capacity: found -5, allowed are"),
        ("a.yaml", yaml("    window_seconds: 60\n    capacity: 60k\n"), "a.yaml:5: capacity: found \"60k\", allowed"),
        ("a.yaml", yaml("    capacity: 1\n"), "a.yaml:2: window_seconds is required for a rolling limit"),
        ("a.yaml", yaml("    capacity: 1\n    burst: 1\n"), "a.yaml:5: unknown field `burst`"),
        ("a.yaml", yaml("    capacity: 1\n    capacity: 1\n"), "a.yaml:5: capacity: found it twice, first on line 4"),
        ("a.yaml", yaml("    capacity: *x\n"), "a.yaml:4: "),
        ("a.yaml", yaml("    capacity: !!int 5\n"), "a.yaml:4: found the tag"),
        ("a.yaml", "templates:\n- {key: a, kind: rolling, capacity: 1, window_seconds: 1}\n".into(), "a.yaml:2: key: "),
        ("a.yaml", "limits:\n- {key: \"a:{b}\", kind: rolling}\n".into(), "a.yaml:2: key: found '{' at byte 2"),
        ("a.yaml", "limits: 5\n".into(), "a.yaml:1: limits: found 5, allowed is a list"),
        ("a.yaml", "limit:\n  - key: a\n".into(), "a.yaml:1: limit: unknown field, allowed are"),
        ("a.yaml", "- key: a\n".into(), "a.yaml:1: found [{\"key\":\"a\"}], allowed are limits, "),
        ("a.yaml", "version: 2\n".into(), "a.yaml:1: version: found 2, allowed is 1"),
        ("a.yaml", "limits: []\n---\nlimits: []\n".into(), "a.yaml:2: found a second document"),
        ("a.yaml", "limits:\n\t- key: a\n".into(), "a.yaml:2: not valid YAML: "),
        ("a.yaml", "limits: [".repeat(50), "a.yaml:1: "),
        ("a.yaml", "namespaces:\n  - limits: []\n".into(), "a.yaml:2: namespace is required"),
        ("a.yaml", "namespaces:\n  - namespace: a b\n".into(), "a.yaml:2: namespace: found ' ' at byte 1"),
        ("a.yaml", "namespaces:\n  - namespace: t\n    limit: []\n".into(), "a.yaml:3: limit: unknown field"),
        ("a.toml", "[[limits]]\nkey = \"a\"\nkind = \"rolling\"\ncapacity = 0\n".into(), "a.toml:1: window_seconds is"),
        ("a.toml", "[[limits]]\nkey = \"a\"\nkind = \"bursty\"\n".into(), "a.toml:3: kind: found \"bursty\", allowed"),
        ("a.toml", "limits = [\n".into(), "a.toml:"),
        ("a.json", "{\"limits\": [\n{\"key\": \"a\",\n\"kind\": 5}]}".into(), "a.json:3: kind: found 5, allowed"),
        ("a.json", "{\n\"limits\": [\n}".into(), "a.json:3: not valid JSON: "),
        ("a.json", "{\"version\": 1, \"version\": 1}".into(), "a.json:1: version: found it twice"),
        ("a.txt", String::new(), "a.txt: unknown format, allowed are names that end in .yaml, .yml, .toml or .json"),
    ] {
        let found = read(&[(name, &text)]).unwrap_err();
        assert!(found.starts_with(message), "{text}: {found}");
        assert_eq!(found.lines().count(), 1, "{found}");
    }
}

#[test]
fn a_definition_in_two_files_is_named_with_both_places() {
    let twice = read(&[("a.yaml", YAML), ("b.toml", TOML)]).unwrap_err();
    assert_eq!(
        twice.lines().collect::<Vec<_>>(),
        [
            "b.toml:4: key: gpt-4o:rpm is also defined in a.yaml:5; remove one of them",
            "b.toml:11: key: calls is also defined in a.yaml:10; remove one of them",
            "b.toml:17: key: user:{user}:rpm is also defined in a.yaml:12; remove one of them",
            "b.toml:26: key: gpt-4o:rpm is also defined in a.yaml:16; remove one of them",
        ]
    );
}

/// Only the server refused the second, so the first was already applied.
#[test]
fn templates_that_differ_in_names_of_placeholders_only_are_a_mistake() {
    let template = |key: &str| format!("- {{key: \"{key}\", kind: rolling, capacity: 1, window_seconds: 1}}\n");
    let templates = |keys: &[&str]| format!("templates:\n{}", keys.iter().map(|key| template(key)).collect::<String>());
    let found =
        read(&[("a.yaml", &templates(&["u:{a}:{b}", "u:{a}", "u:{c}:{a}"])), ("b.yaml", &templates(&["u:{z}"]))]);
    assert_eq!(
        found.unwrap_err().lines().collect::<Vec<_>>(),
        [
            "a.yaml:4: key: u:{c}:{a} differs from u:{a}:{b} in a.yaml:2 only in the names of its placeholders; remove one \
             of them",
            "b.yaml:2: key: u:{z} differs from u:{a} in a.yaml:3 only in the names of its placeholders; remove one of them",
        ]
    );
    read(&[("a.yaml", &templates(&["u:{a}:b", "u:a:{b}", "{a}:{b}", "u:{a}", "v:{a}"]))]).unwrap();
    let elsewhere = format!("namespaces:\n- namespace: t\n  {}", templates(&["u:{z}"]).replace('\n', "\n  "));
    read(&[("a.yaml", &templates(&["u:{a}"])), ("b.yaml", &elsewhere)]).unwrap();
}

#[test]
fn many_mistakes_are_listed_up_to_a_bound() {
    let limits: String = (0..50).map(|number| format!("  - key: k{number}\n    kind: rolling\n")).collect();
    let found = read(&[("a.yaml", &format!("limits:\n{limits}"))]).unwrap_err();
    assert_eq!(found.lines().count(), 21, "{found}");
    assert!(found.ends_with("and 30 more mistakes"), "{found}");
}

#[test]
fn an_empty_file_is_an_empty_document() {
    for file in [("a.yaml", ""), ("a.yaml", "# nothing\n"), ("a.toml", ""), ("a.json", "{}")] {
        let document = read(&[file]).unwrap();
        assert!(document.definitions.is_empty() && document.lists.is_empty(), "{file:?}");
    }
    assert_eq!(read(&[("a.yaml", "limits:\n")]).unwrap().lists.len(), 1);
}
