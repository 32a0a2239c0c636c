//! Statements: sums of a period, and spending by label.

use std::collections::BTreeMap;

use earmark_core::{AccountName, UnixMs, VaultName};

use super::Harness;
use super::credit_driver::{MAIN, credit, issue, open, path, retire, transfer, usd};
use super::driver::Driver;
use crate::credit_lists::EntryQuery;
use crate::statement::{AssetStatement, Movements, Statement, StatementGroup, StatementQuery, statement};
use crate::writes::{EntryKind, EntryView};

/// Steps of the random case: some of each kind, and several of each label.
const STEPS: u64 = 40;

async fn read(harness: &impl Harness, name: &str, query: &StatementQuery) -> Statement {
    statement(harness.backend(), path(VaultName::MAIN, name), query.clone()).await.expect("a statement")
}

fn by(label: &str) -> StatementQuery {
    StatementQuery { group_by: Some(label.to_owned()), ..StatementQuery::default() }
}

fn group(value: Option<&str>, spent: i128, settlements: u64) -> StatementGroup {
    StatementGroup { value: value.map(str::to_owned), spent, settlements }
}

/// Opening and movements lead to the closing balance, which includes what is held; spending is grouped by label.
pub async fn a_statement_adds_up_and_groups_spending_by_label(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.does(MAIN, vec![open("acme"), open("bob"), issue("acme", 100), issue("bob", 7)]).await;
    driver.try_put(credit("usd", VaultName::MAIN, "acme", 60), None).await.expect("a limit that can be put");
    assert_eq!(read(harness, "revenue", &by("model")).await, Statement::default());
    for (cost, labels) in [(7, &[("model", "a")][..]), (5, &[("model", "b"), ("user", "u")]), (3, &[]), (0, &[])] {
        let lease = driver.admit(&[("usd", 10)]).await;
        driver.complete_labelled(lease, &[("usd", cost)], labels).await;
    }
    driver.does(MAIN, vec![transfer("acme", "bob", 11), transfer("bob", "acme", 1), retire("acme", 2)]).await;
    driver.admit(&[("usd", 10)]).await;
    let moved = Movements {
        issued: 100,
        transferred_in: 1,
        spent: 15,
        transferred_out: 11,
        retired: 2,
        settlements: 3,
        ..Movements::default()
    };
    let groups = vec![group(None, 3, 1), group(Some("a"), 7, 1), group(Some("b"), 5, 1)];
    let whole = AssetStatement { asset: usd(), opening: 0, moved, closing: 73, groups };
    assert_eq!(read(harness, "acme", &by("model")).await.assets, std::slice::from_ref(&whole));
    let first = read(harness, "acme", &StatementQuery { page_size: 2, ..by("model") }).await;
    assert_eq!(first.assets[0].groups, whole.groups[..2]);
    // Later entries belong to no page of this statement.
    let lease = driver.admit(&[("usd", 10)]).await;
    driver.complete_labelled(lease, &[("usd", 4)], &[("model", "c")]).await;
    let second = read(harness, "acme", &StatementQuery { after: first.next, ..by("model") }).await;
    let rest = AssetStatement { groups: whole.groups[2..].to_vec(), ..whole.clone() };
    assert_eq!(second, Statement { assets: vec![rest], next: None });
    driver.does(MAIN, vec![issue("acme", 4)]).await;
    let moved = Movements { issued: 104, spent: 19, settlements: 4, ..moved };
    let groups = [whole.groups, vec![group(Some("c"), 4, 1)]].concat();
    let whole = AssetStatement { moved, groups, ..whole };
    assert_eq!(read(harness, "acme", &by("model")).await.assets, std::slice::from_ref(&whole));
    let plain = AssetStatement { groups: Vec::new(), ..whole.clone() };
    assert_eq!(read(harness, "acme", &StatementQuery::default()).await.assets, [plain]);
    let others = AssetStatement { groups: vec![group(None, 19, 4)], ..whole };
    assert_eq!(read(harness, "acme", &by("tenant")).await.assets, [others]);
    let revenue = &read(harness, AccountName::REVENUE, &by("model")).await.assets[0];
    assert_eq!((revenue.moved.received, revenue.moved.settlements, revenue.closing), (19, 0, 19));
    assert_eq!(revenue.groups, []);
    // Movements of one write that add up to zero are movements.
    driver.does(MAIN, vec![issue("bob", 9), retire("bob", 9)]).await;
    let bob = &read(harness, "bob", &StatementQuery::default()).await.assets[0];
    assert_eq!((bob.moved.issued, bob.moved.retired, bob.closing), (16, 9, 17));
    let after = StatementQuery { since: Some(UnixMs::new(u64::MAX)), ..by("model") };
    let later = &read(harness, "acme", &after).await.assets[0];
    assert_eq!((later.opening, later.moved, later.closing), (73, Movements::default(), 73));
}

/// The entries of an account, in small pages.
async fn entries(harness: &impl Harness, name: &str) -> Vec<EntryView> {
    let (mut entries, mut after) = (Vec::new(), 0);
    loop {
        let page = harness.backend().entries(path(VaultName::MAIN, name), EntryQuery::oldest_first(after, 7)).await;
        let page = page.expect("an account that exists");
        entries.extend(page.entries);
        match page.next {
            Some(next) => after = next,
            None => return entries,
        }
    }
}

/// The statement that a reader makes of all entries.
fn summed(entries: &[EntryView], query: &StatementQuery) -> Vec<AssetStatement> {
    let (mut opening, mut closing, mut moved) = (0, 0, Movements::default());
    let mut groups: BTreeMap<Option<String>, (i128, u64)> = BTreeMap::new();
    let until = |entry: &&EntryView| query.until.is_none_or(|until| entry.at < until);
    let mut is_any = false;
    for entry in entries.iter().filter(until) {
        let Some(change) = entry.changes.first() else { continue };
        is_any = true;
        let net = change.amount + change.held;
        closing += net;
        if query.since.is_some_and(|since| entry.at < since) {
            opening += net;
            continue;
        }
        moved.issued += i128::try_from(change.flows.issued).expect("a small amount");
        moved.retired += i128::try_from(change.flows.retired).expect("a small amount");
        moved.transferred_in += i128::try_from(change.flows.transferred_in).expect("a small amount");
        moved.transferred_out += i128::try_from(change.flows.transferred_out).expect("a small amount");
        match &entry.what {
            EntryKind::Settle { paid, labels, .. } if net < 0 => {
                moved.spent += i128::from(*paid);
                moved.settlements += 1;
                let (spent, count) = groups.entry(labels.get("model").map(str::to_owned)).or_default();
                (*spent, *count) = (*spent + i128::from(*paid), *count + 1);
            }
            EntryKind::Settle { paid, .. } => moved.received += i128::from(*paid),
            _ => {}
        }
    }
    let groups = groups.into_iter().map(|(value, (spent, settlements))| StatementGroup { value, spent, settlements });
    let asset = AssetStatement { asset: usd(), opening, moved, closing, groups: groups.collect() };
    if is_any { vec![asset] } else { Vec::new() }
}

/// For random histories and all periods between their entries, a statement is what a reader sums up.
pub async fn a_statement_is_what_a_reader_sums_up_from_all_entries(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.does(MAIN, vec![open("acme"), open("bob"), issue("acme", 1_000), issue("bob", 1_000)]).await;
    driver.try_put(credit("usd", VaultName::MAIN, "acme", 60), None).await.expect("a limit that can be put");
    let mut random = harness.now_ms() | 1;
    let mut below = |end: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % end
    };
    for _ in 0..STEPS {
        harness.advance_ms(below(3)).await;
        let amount = below(5) + 1;
        match below(6) {
            0 => drop(driver.does(MAIN, vec![issue("acme", amount.into())]).await),
            1 => drop(driver.does(MAIN, vec![transfer("acme", "bob", amount.into()), retire("acme", 1)]).await),
            2 => drop(driver.does(MAIN, vec![transfer("bob", "acme", amount.into())]).await),
            3 => drop(driver.admit(&[("usd", amount)]).await),
            kind => {
                let lease = driver.admit(&[("usd", 5)]).await;
                let labels = [("model", ["a", "b", "c"][below(3) as usize])];
                let labels = if kind == 4 { &labels[..] } else { &[] };
                driver.complete_labelled(lease, &[("usd", below(8))], labels).await;
            }
        }
    }
    for name in ["acme", "bob", AccountName::REVENUE] {
        let all = entries(harness, name).await;
        let mut times: Vec<Option<UnixMs>> = all.iter().map(|entry| Some(entry.at)).collect();
        times.dedup();
        times.push(None);
        for (place, since) in times.iter().enumerate().step_by(5) {
            for until in times.iter().skip(place).step_by(7) {
                let query = StatementQuery { since: *since, until: *until, ..by("model") };
                assert_eq!(read(harness, name, &query).await.assets, summed(&all, &query), "{name} {query:?}");
            }
        }
        let whole = read(harness, name, &StatementQuery::default()).await;
        let (available, held) = driver.purse(VaultName::MAIN, name).await;
        assert_eq!(whole.assets[0].closing, available + held, "{name}");
    }
}
