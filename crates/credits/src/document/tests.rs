use super::*;
use crate::conformance::sample_plan;
use crate::model::Plan;

#[test]
fn a_plan_is_read_back_from_its_json_and_is_readable() {
    let plan = sample_plan();
    let json = to_json(&plan);
    assert_eq!(from_json(&json), Ok(plan.clone()));
    for words in ["\"version\":1", "\"account\":\"acme\"", "\"kind\":\"settle\"", "\"why\":\"not_enough\""] {
        assert!(json.contains(words), "{words} in {json}");
    }
    for entry in &plan.entries {
        assert_eq!(from_json(&to_json(&entry.body)).as_ref(), Ok(&entry.body));
    }
}

#[test]
fn a_later_version_and_what_is_no_plan_are_refused() {
    let json = to_json(&sample_plan());
    let later = json.replacen("\"version\":1", "\"version\":2", 1);
    let error = from_json::<Plan>(&later).unwrap_err().to_string();
    assert!(error.contains("found version 2"), "{error}");
    for (from, to) in [("\"usd\"", "\"USD\""), ("\"amount\":\"1\"", "\"amount\":\"01\""), ("}", "")] {
        assert!(matches!(from_json::<Plan>(&json.replacen(from, to, 1)), Err(StoreError::Corrupt(_))), "{from}");
    }
}

#[test]
fn entries_without_an_actor_are_read() {
    let hold = r#""lease":"01HF7YAT00000000000000000A","limit":"usd","account":"acme","asset":"usd","amount":40,
        "revenue":"revenue","keeps_debt":true,"ends_at_unix_ms":1700000060000"#;
    let nobody = |body: &EntryBody| match body {
        EntryBody::Hold { actor, .. } | EntryBody::Release { actor, .. } => actor.is_none(),
        EntryBody::Settle(settlement) => settlement.actor.is_none() && settlement.paid == 25,
        other => panic!("{other:?}"),
    };
    for json in [
        format!(r#"{{"version":1,"kind":"hold",{hold}}}"#),
        format!(
            r#"{{"version":1,"kind":"settle","hold":{{{hold}}},"held":40,"revenue":"revenue","paid":25,"debt":0,
            "uncollected":0}}"#
        ),
        format!(r#"{{"version":1,"kind":"release",{hold}}}"#),
    ] {
        let body = from_json::<EntryBody>(&json).unwrap();
        assert!(nobody(&body), "{body:?}");
        assert!(!to_json(&body).contains("actor"), "{body:?}");
        let wrong = json.replacen(r#""version":1,"#, r#""version":1,"actor":"nobody","#, 1);
        assert!(matches!(from_json::<EntryBody>(&wrong), Err(StoreError::Corrupt(_))), "{wrong}");
    }
}
