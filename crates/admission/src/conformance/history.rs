//! The history of accounts whose credit leases hold.

use earmark_core::{AccountName, BalanceInfo, VaultName};

use super::Harness;
use super::desk::{Desk, namespace};
use super::teller::{MAIN, credit, issue, open, path, retire, transfer, usd, vault};
use crate::ledger::{EntryKind, EntryView};

/// Every entry of an account, read in pages of two.
async fn entries(harness: &impl Harness, name: &str) -> Vec<EntryView> {
    let (mut entries, mut after) = (Vec::new(), 0);
    loop {
        let page = harness.backend().entries(path(VaultName::MAIN, name), after, 2).await;
        let page = page.expect("an account that exists");
        assert!(page.entries.len() <= 2);
        entries.extend(page.entries);
        match page.next {
            Some(next) => after = next,
            None => return entries,
        }
    }
}

/// In a database an asset of which an account had nothing left was not among its balances, as if it had never had any.
pub async fn an_account_that_has_spent_everything_shows_nothing_of_it(harness: &impl Harness) {
    let desk = Desk(harness);
    desk.does(MAIN, vec![open("acme"), open("bob"), issue("acme", 100)]).await;
    desk.does(MAIN, vec![transfer("acme", "bob", 60), retire("acme", 40)]).await;
    let balances = async |name| {
        let balances = harness.backend().balances(path(VaultName::MAIN, name)).await;
        balances.expect("an account that exists")
    };
    let of_usd = |available| BalanceInfo { asset: usd(), available, held: 0, pending: 0 };
    assert_eq!(balances("acme").await, [of_usd(0)]);
    assert_eq!(balances("bob").await, [of_usd(60)]);
    desk.try_put(credit("usd", VaultName::MAIN, "bob", 60), None).await.expect("a limit that can be put");
    let lease = desk.admit(&[("usd", 60)]).await;
    assert_eq!(balances("bob").await, [BalanceInfo { held: 60, ..of_usd(0) }]);
    desk.complete(lease, &[("usd", 60)]).await;
    assert_eq!(balances("bob").await, [of_usd(0)]);
    assert_eq!(balances(AccountName::REVENUE).await, [of_usd(60)]);
    desk.does(MAIN, vec![open("carol")]).await;
    assert_eq!(balances("carol").await, []);
}

/// What was held, paid and given back is written down where it happened, and adds up to what is there.
pub async fn holds_settlements_and_releases_are_in_the_history(harness: &impl Harness) {
    let desk = Desk(harness);
    desk.does(MAIN, vec![open("acme"), issue("acme", 100)]).await;
    desk.try_put(credit("usd", VaultName::MAIN, "acme", 2), None).await.expect("a limit that can be put");
    let paid = desk.admit(&[("usd", 40)]).await;
    desk.complete(paid, &[("usd", 25)]).await;
    let free = desk.admit(&[("usd", 30)]).await;
    desk.complete(free, &[("usd", 0)]).await;
    let silent = desk.admit(&[("usd", 20)]).await;
    harness.advance_ms(3_000).await;
    // What ran out is written down along with the next commands, or soon after.
    desk.admit(&[("usd", 1)]).await;
    let of_acme = entries(harness, "acme").await;
    let told: Vec<_> = of_acme
        .iter()
        .map(|entry| {
            let (kind, hold) = match &entry.what {
                EntryKind::Transaction { .. } => ("transaction", None),
                EntryKind::Hold(hold) => ("hold", Some(hold)),
                EntryKind::Settle { hold, .. } => ("settle", Some(hold)),
                EntryKind::Release(hold) => ("release", Some(hold)),
            };
            (kind, hold.map(|hold| (hold.lease, hold.amount)), entry.changes[0].amount, entry.changes[0].held)
        })
        .collect();
    assert_eq!(
        told[..7],
        [
            ("transaction", None, 100, 0),
            ("hold", Some((paid, 40)), -40, 40),
            ("settle", Some((paid, 40)), 15, -40),
            ("hold", Some((free, 30)), -30, 30),
            ("release", Some((free, 30)), 30, -30),
            ("hold", Some((silent, 20)), -20, 20),
            ("release", Some((silent, 20)), 20, -20),
        ]
    );
    let numbers: Vec<u64> = of_acme.iter().map(|entry| entry.number).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    let sums = of_acme.iter().flat_map(|entry| &entry.changes).fold((0, 0), |(amount, held), change| {
        assert_eq!(change.asset.as_str(), "usd");
        (amount + change.amount, held + change.held)
    });
    assert_eq!(sums, desk.purse(VaultName::MAIN, "acme").await);
    let revenue = entries(harness, AccountName::REVENUE).await;
    assert_eq!(revenue.len(), 1);
    match &revenue[0].what {
        EntryKind::Settle { hold, paid: got, debt, uncollected } => {
            assert_eq!((hold.lease, hold.limit.as_str(), hold.amount), (paid, "usd", 40));
            assert_eq!((*got, *debt, *uncollected), (25, 0, 0));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!((revenue[0].changes[0].amount, revenue[0].changes[0].held), (25, 0));
    let audit = harness.backend().audit(namespace(), vault(VaultName::MAIN)).await;
    assert!(audit.expect("a vault that exists").balanced);
}
