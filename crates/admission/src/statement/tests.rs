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
    StatementQuery { since: Some(UnixMs::new(since)), group_by: Some("user".into()), ..StatementQuery::default() }
}

/// The values and sums of a page.
fn page(sums: StatementSums) -> (Vec<(String, i128)>, Option<StatementCursor>) {
    let Statement { assets, next } = sums.finish().unwrap();
    let groups = assets.into_iter().flat_map(|asset| asset.groups);
    (groups.map(|group| (group.value.unwrap_or_default(), group.spent)).collect(), next)
}

/// A label of unbounded values would otherwise take unbounded memory. Values before the period do not count.
#[test]
fn a_page_keeps_as_many_groups_as_it_has_and_names_the_next_one() {
    let mut sums = StatementSums::new(by_user(10));
    for number in 0..=STATEMENT_GROUPS_DEFAULT {
        sums.add(&settle(9, &format!("a{number}"))).unwrap();
    }
    // In descending order, so that each value pushes out another.
    for number in (0..STATEMENT_GROUPS_DEFAULT * 2).rev() {
        sums.add(&settle(10, &format!("u{number:06}"))).unwrap();
        sums.add(&settle(10, "u000000")).unwrap();
        assert!(sums.count <= STATEMENT_GROUPS_DEFAULT && sums.groups.len() <= STATEMENT_GROUPS_DEFAULT);
    }
    let (groups, next) = page(sums);
    assert_eq!(groups.len(), STATEMENT_GROUPS_DEFAULT);
    assert_eq!(groups[0], ("u000000".to_owned(), STATEMENT_GROUPS_DEFAULT as i128 * 2 + 1));
    assert!(groups[1..].iter().enumerate().all(|(at, group)| *group == (format!("u{:06}", at + 1), 1)));
    let last = groups.last().unwrap().0.clone();
    assert_eq!(next, Some(StatementCursor { through: 1, value: last }));
}

/// For all page sizes, the pages have every group once, whatever the order of the entries.
#[test]
fn the_pages_of_a_statement_have_every_group_once() {
    let users = ["", "b", "a", "d", "b", "c", "a", "e", "", "b"];
    let entry = |user: &&str| match *user {
        "" => {
            let mut entry = settle(1, "x");
            let EntryKind::Settle { labels, .. } = &mut entry.what else { unreachable!() };
            *labels = SettleLabels::new([("model", "m")]).unwrap();
            entry
        }
        user => settle(1, user),
    };
    let expected = [("", 2), ("a", 2), ("b", 3), ("c", 1), ("d", 1), ("e", 1)];
    for page_size in 1..=7 {
        let (mut found, mut after, mut pages) = (Vec::new(), None, 0);
        loop {
            let mut sums = StatementSums::new(StatementQuery { after, page_size, ..by_user(0) });
            users.iter().for_each(|user| sums.add(&entry(user)).unwrap());
            let (groups, next) = page(sums);
            assert!((1..=page_size).contains(&groups.len()), "{groups:?}");
            found.extend(groups);
            pages += 1;
            let Some(next) = next else { break };
            after = Some(next.to_string().parse().unwrap());
        }
        assert_eq!(found, expected.map(|(user, sum)| (user.to_owned(), sum)), "pages of {page_size}");
        assert_eq!(pages, expected.len().div_ceil(page_size));
    }
}

/// A value of several assets is not cut, and a page makes progress.
#[test]
fn the_groups_of_a_value_stay_on_one_page() {
    let mut entry = settle(1, "u");
    let second = EntryChange { asset: AssetName::new("eur").unwrap(), ..entry.changes[0].clone() };
    entry.changes.push(second);
    let mut sums = StatementSums::new(StatementQuery { page_size: 1, ..by_user(0) });
    sums.add(&entry).unwrap();
    sums.add(&settle(1, "v")).unwrap();
    let (groups, next) = page(sums);
    assert_eq!(groups, [("u".to_owned(), 1), ("u".to_owned(), 1)]);
    assert_eq!(next.map(|next| next.value), Some("u".to_owned()));
}

#[test]
fn a_wrong_page_is_named() {
    let of = |after, page_size| by_user(0).page(after, page_size).map(drop);
    assert_eq!(of(None, Some(0)), Err("page_size: found 0, allowed are integers from 1 to 50000".into()));
    assert!(of(None, Some(50_001)).is_err() && of(None, Some(50_000)).is_ok() && of(Some("7-"), Some(1)).is_ok());
    for wrong in ["", "7", "-", "x-61", "7-6", "7-zz", "7-ff", "07-61", "7-6A"] {
        assert_eq!(of(Some(wrong), None), Err(format!("after: found {wrong:?}, allowed is next of the previous page")));
    }
    let ungrouped = StatementQuery::default().page(Some("7-61"), None);
    assert_eq!(ungrouped, Err("after: pages have groups only, so group_by is required".into()));
}

#[test]
fn a_wrong_period_or_label_is_named() {
    let (since, until) = (Some(UnixMs::new(6)), Some(UnixMs::new(5)));
    let query = StatementQuery { since, until, ..StatementQuery::default() };
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
