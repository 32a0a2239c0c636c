use earmark_admission::{Amount, ReserveAnswer};
use earmark_core::{LimitKey, UnixMs};

use super::*;
use crate::calls::{Called, Decision};

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
