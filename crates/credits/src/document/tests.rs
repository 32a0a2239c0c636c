use super::*;
use crate::conformance::sample_plan;

#[test]
fn a_plan_is_read_back_from_its_json_and_is_readable() {
    let plan = sample_plan();
    let json = plan_to_json(&plan);
    assert_eq!(plan_from_json(&json), Ok(plan.clone()));
    for words in ["\"version\":1", "\"account\":\"acme\"", "\"kind\":\"settle\"", "\"why\":\"not_enough\""] {
        assert!(json.contains(words), "{words} in {json}");
    }
    for entry in &plan.entries {
        assert_eq!(body_from_json(&body_to_json(&entry.body)).as_ref(), Ok(&entry.body));
    }
}

#[test]
fn a_later_version_and_what_is_no_plan_are_refused() {
    let json = plan_to_json(&sample_plan());
    let later = json.replacen("\"version\":1", "\"version\":2", 1);
    let error = plan_from_json(&later).unwrap_err().to_string();
    assert!(error.contains("found version 2"), "{error}");
    for (from, to) in [("\"usd\"", "\"USD\""), ("\"amount\":\"1\"", "\"amount\":\"01\""), ("}", "")] {
        assert!(matches!(plan_from_json(&json.replacen(from, to, 1)), Err(StoreError::Corrupt(_))), "{from}");
    }
}
