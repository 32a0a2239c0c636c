use earmark_core::{LeaseId, LimitKey, SettleLabels, SettleReason};

use super::*;
use crate::writes::{Flows, HoldView};

fn usd() -> AssetName {
    AssetName::new("usd").unwrap()
}

/// A settlement that took one unit.
fn settle(at: u64, user: &str) -> EntryView {
    let hold = HoldView { lease: LeaseId::from_u128(1), limit: LimitKey::new("usd").unwrap(), amount: 5, actor: None };
    let what = EntryKind::Settle {
        hold,
        paid: 1,
        debt: 0,
        uncollected: 0,
        reason: SettleReason::Complete,
        labels: SettleLabels::new([("user", user)]).unwrap(),
    };
    let change = EntryChange { asset: usd(), amount: 4, held: -5, flows: Flows::default() };
    EntryView { number: 1, at: UnixMs::new(at), what, changes: vec![change] }
}

fn by_user(since: u64) -> StatementQuery {
    StatementQuery { since: Some(UnixMs::new(since)), until: None, group_by: Some("user".into()) }
}

/// A label of unbounded values would otherwise take unbounded memory. Values before the period do not count.
#[test]
fn more_groups_than_the_bound_are_refused_by_name() {
    let mut sums = StatementSums::new(by_user(10));
    for number in 0..=STATEMENT_GROUPS_MAX {
        sums.add(&settle(9, &format!("before{number}"))).unwrap();
    }
    for number in 0..STATEMENT_GROUPS_MAX {
        sums.add(&settle(10, &format!("u{number}"))).unwrap();
        sums.add(&settle(10, "u0")).unwrap();
    }
    let refused = sums.add(&settle(10, "one more")).unwrap_err();
    assert_eq!(refused, StatementError::TooManyGroups { name: "user".into() });
    assert!(refused.to_string().starts_with("group_by: the label user has more than 10000 values"), "{refused}");
    let found = sums.finish();
    assert!(found.is_err() || found.unwrap().assets[0].groups.len() == STATEMENT_GROUPS_MAX);
}

#[test]
fn a_wrong_period_or_label_is_named() {
    let (since, until) = (Some(UnixMs::new(6)), Some(UnixMs::new(5)));
    let query = StatementQuery { since, until, group_by: None };
    assert_eq!(query.check(), Err("since: found 6, which is after until, 5".into()));
    assert_eq!(StatementQuery { since: until, ..query.clone() }.check(), Ok(()));
    for name in ["", "Model", "a b", &"x".repeat(65)] {
        let query = StatementQuery { group_by: Some(name.into()), ..StatementQuery::default() };
        assert!(query.check().unwrap_err().starts_with("group_by: found the name"), "{name}");
    }
}

/// An entry whose parts contradict its change must not become a statement that looks right.
#[test]
fn movements_that_do_not_add_up_are_no_statement() {
    let mut sums = StatementSums::new(StatementQuery::default());
    let wrong =
        EntryView { changes: vec![EntryChange { amount: 3, ..settle(1, "u").changes[0].clone() }], ..settle(1, "u") };
    sums.add(&wrong).unwrap();
    assert!(sums.finish().unwrap_err().to_string().contains("do not add up"));
}
