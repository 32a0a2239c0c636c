use earmark_admission::{Amount, CompleteAnswer, ReserveAnswer};
use earmark_core::{LimitKey, UnixMs};

use super::super::reply::Results;
use super::plain::{plain, results};
use super::*;
use crate::calls::{Called, CompletedCall, Decision};

fn called(keys: &[&str], would_deny: &[&str], policy_revision: Option<u64>) -> Called {
    let key = |key: &&str| match key.split_once('!') {
        None => key.parse().unwrap(),
        Some((namespace, key)) => {
            LimitKey::in_namespace(&namespace.parse::<NamespaceName>().unwrap(), &key.parse().unwrap())
        }
    };
    let requirements = keys.iter().map(|name| Amount { key: key(name), amount: 18_446_744_073_709_551_615 }).collect();
    let would_deny = would_deny.iter().map(key).collect();
    let reserved_at = UnixMs::new(1_700_000_000_123);
    let answer = ReserveAnswer::Allowed { reserved_at, would_deny, policy_revision };
    Called { decision: Decision::Limits(Ok(answer)), requirements, policy_revision }
}

#[test]
fn a_plain_admission_is_written_as_serde_writes_it() {
    for called in [
        called(&["a/b|c=d~e.f_g@h+i-j%20", "team!rpm", "b:tpm"], &[], Some(7)),
        called(&["a"], &[], None),
        called(&[], &[], Some(u64::MAX)),
    ] {
        let wire = CallWire::of(&called);
        assert_eq!(plain(&wire).unwrap(), serde_json::to_vec(&wire).unwrap());
    }
    let shadow = called(&["a"], &["a"], Some(1));
    assert!(plain(&CallWire::of(&shadow)).is_none(), "serde writes everything else");
}

#[test]
fn a_batch_is_written_as_serde_writes_it() {
    let all = [called(&["a", "b"], &[], Some(7)), called(&["a"], &["a"], None), called(&[], &[], None)];
    for batch in [&all[..1], &all[..], &all[2..]] {
        let wires = || batch.iter().map(CallWire::of).collect::<Vec<_>>();
        let written = serde_json::to_vec(&Results { results: wires() }).unwrap();
        assert_eq!(results(wires()).body, written);
    }
}

#[test]
fn a_plain_settlement_is_written_as_serde_writes_it() {
    let settled = |reconciled, message, cost| CompletedCall {
        answer: Ok(CompleteAnswer { reconciled, message, ..CompleteAnswer::default() }),
        actuals: called(&["a", "team!b"], &[], None).requirements,
        cost,
    };
    for settled in [settled(true, None, Some(u64::MAX)), settled(false, None, None), settled(true, None, Some(0))] {
        let wire = CompleteCallWire::of(&settled);
        assert_eq!(plain(&wire).unwrap(), serde_json::to_vec(&wire).unwrap());
    }
    assert!(plain(&CompleteCallWire::of(&settled(true, Some("m".to_owned()), None))).is_none());
}
