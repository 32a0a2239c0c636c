use std::path::PathBuf;

use super::super::document::{Format, Source};
use super::*;

const FILE: &str = "
limits:
  - {key: new, kind: rolling, capacity: 60000, window_seconds: 60, unit: tokens}
  - {key: same, kind: rolling, capacity: 5, window_seconds: 60}
  - {key: other, kind: rolling, capacity: 9, window_seconds: 60, description: a b}
  - {key: leaving, kind: rolling, capacity: 1, window_seconds: 60}
";

fn files(text: &str) -> Document {
    let folder = tempfile::TempDir::new().unwrap();
    let path: PathBuf = folder.path().join("a.yaml");
    std::fs::write(&path, text).unwrap();
    let namespace = "default".parse().unwrap();
    Source { files: &[path], format: Format::Yaml, namespace: &namespace }.read().unwrap()
}

fn existing(key: &str, capacity: u64, revision: u64, is_deleting: bool) -> (Name, Existing) {
    let definition = json!({"key": key, "kind": "rolling", "capacity": capacity, "window_seconds": 60});
    let fields = Section::Limits.canonical(definition).unwrap();
    let name = Name { namespace: "default".parse().unwrap(), section: Section::Limits, key: key.into() };
    (name, Existing { fields, revision, is_deleting })
}

fn server() -> BTreeMap<Name, Existing> {
    let limits = [
        existing("same", 5, 1, false),
        existing("other", 60_000, 7, false),
        existing("leaving", 1, 4, true),
        existing("extra", 1, 3, false),
        existing("gone", 1, 8, true),
    ];
    BTreeMap::from(limits)
}

#[test]
fn a_plan_has_what_differs_field_by_field_in_a_stable_order() {
    let plan = Plan::of(files(FILE), server(), false).unwrap();
    assert_eq!(
        show(&plan.changes),
        "default\n\
         \x20 + leaving\n\
         \x20     kind: rolling\n\
         \x20     capacity: 1\n\
         \x20     window_seconds: 60\n\
         \x20     overage: debt\n\
         \x20 + new\n\
         \x20     kind: rolling\n\
         \x20     capacity: 60,000\n\
         \x20     window_seconds: 60\n\
         \x20     unit: tokens\n\
         \x20     overage: debt\n\
         \x20 ~ other\n\
         \x20     capacity: 60,000 -> 9\n\
         \x20     description: \"\" -> \"a b\"\n"
    );
    assert_eq!((plan.unchanged, plan.kept, plan.deletions()), (1, 1, String::new()));
    let revisions: Vec<u64> = plan.changes.iter().map(|change| change.expected_revision).collect();
    assert_eq!(revisions, [4, 0, 7], "a limit that is being deleted is put back on its revision");
}

#[test]
fn pruning_deletes_what_no_file_has_and_says_so() {
    let plan = Plan::of(files(FILE), server(), true).unwrap();
    assert_eq!(plan.deletions(), "1 limit in default");
    assert_eq!(plan.counts(), Counts { created: 2, changed: 1, deleted: 1 });
    let last = plan.changes.last().unwrap();
    assert_eq!((last.text().as_str(), last.expected_revision), ("  - extra\n", 3));
    assert_eq!(plan.kept, 0);
}

#[test]
fn another_kind_is_refused_before_anything_is_changed() {
    let text = "limits:\n- {key: same, kind: concurrency, capacity: 1, timeout_seconds: 9}\n";
    let refused = Plan::of(files(text), server(), false).unwrap_err().to_string();
    assert!(refused.contains("a.yaml:2: kind: found concurrency, but same is rolling on the server"), "{refused}");
}

#[test]
fn a_template_with_other_placeholders_than_on_the_server_is_refused_before_anything_is_changed() {
    let template = |key: &str| {
        let definition = json!({"key": key, "kind": "rolling", "capacity": 1, "window_seconds": 60});
        let fields = Section::Templates.canonical(definition).unwrap();
        let name = Name { namespace: "default".parse().unwrap(), section: Section::Templates, key: key.into() };
        (name, Existing { fields, revision: 3, is_deleting: false })
    };
    let text = "templates:\n- {key: \"user:{id}\", kind: rolling, capacity: 1, window_seconds: 60}\n";
    for prune in [false, true] {
        let refused = Plan::of(files(text), BTreeMap::from([template("user:{user}")]), prune).unwrap_err().to_string();
        assert!(
            refused.ends_with(
                "a.yaml:2: key: user:{id} differs from user:{user} on the server only in the names of its placeholders; use \
                 that key, or delete that template first"
            ),
            "{refused}"
        );
    }
    let plan = Plan::of(files(text), BTreeMap::from([template("user:{id}"), template("team:{user}")]), false).unwrap();
    assert_eq!((plan.changes.len(), plan.unchanged, plan.kept), (0, 1, 1));
}
