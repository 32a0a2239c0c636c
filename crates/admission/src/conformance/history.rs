//! The history of accounts with credit holds.

use earmark_core::{AccountName, Actor, BalanceInfo, Principal, Role, VaultName};

use super::Harness;
use super::credit_driver::{MAIN, credit, issue, open, path, retire, transfer, usd, vault};
use super::driver::{Driver, key, namespace};
use super::keys::make;
use crate::backend::{Amount, CompleteRequest, ReserveAnswer};
use crate::credit_lists::EntryQuery;
use crate::writes::{EntryKind, EntryView};

/// All entries of an account, read in pages of two.
async fn entries(harness: &impl Harness, name: &str) -> Vec<EntryView> {
    let (mut entries, mut after) = (Vec::new(), 0);
    loop {
        let page = harness.backend().entries(path(VaultName::MAIN, name), EntryQuery::oldest_first(after, 2)).await;
        let page = page.expect("an account that exists");
        assert!(page.entries.len() <= 2);
        entries.extend(page.entries);
        match page.next {
            Some(next) => after = next,
            None => return entries,
        }
    }
}

/// SQL used to omit an asset whose balance had become 0, as if the account had never had it.
pub async fn an_account_that_has_spent_everything_shows_nothing_of_it(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.does(MAIN, vec![open("acme"), open("bob"), issue("acme", 100)]).await;
    driver.does(MAIN, vec![transfer("acme", "bob", 60), retire("acme", 40)]).await;
    let balances = async |name| {
        let balances = harness.backend().balances(path(VaultName::MAIN, name)).await;
        balances.expect("an account that exists")
    };
    let of_usd = |available| BalanceInfo { asset: usd(), available, held: 0, pending: 0 };
    assert_eq!(balances("acme").await, [of_usd(0)]);
    assert_eq!(balances("bob").await, [of_usd(60)]);
    driver.try_put(credit("usd", VaultName::MAIN, "bob", 60), None).await.expect("a limit that can be put");
    let lease = driver.admit(&[("usd", 60)]).await;
    assert_eq!(balances("bob").await, [BalanceInfo { held: 60, ..of_usd(0) }]);
    driver.complete(lease, &[("usd", 60)]).await;
    assert_eq!(balances("bob").await, [of_usd(0)]);
    assert_eq!(balances(AccountName::REVENUE).await, [of_usd(60)]);
    driver.does(MAIN, vec![open("carol")]).await;
    assert_eq!(balances("carol").await, []);
}

/// A summary of an entry: its kind and its actor.
fn told(entry: &EntryView) -> String {
    let (what, actor) = match &entry.what {
        EntryKind::Transaction { receipt, .. } => ("transaction", Some(&receipt.actor)),
        EntryKind::Hold(hold) => ("hold", hold.actor.as_ref()),
        EntryKind::Settle { hold, .. } => ("settle", hold.actor.as_ref()),
        EntryKind::Release(hold) => ("release", hold.actor.as_ref()),
        EntryKind::Expire(_) => ("expire", None),
        EntryKind::Plan { .. } => ("plan", None),
    };
    format!("{what} by {}", actor.map_or("nobody", Actor::as_str))
}

/// Holds, settlements and releases had no actor with credit in SQL or limits in TigerBeetle.
pub async fn what_a_lease_holds_and_pays_names_who_had_it_done(harness: &impl Harness) {
    let (backend, driver) = (harness.backend(), Driver(harness));
    driver.does(MAIN, vec![open("acme"), issue("acme", 100)]).await;
    driver.try_put(credit("usd", VaultName::MAIN, "acme", 2), None).await.expect("a limit that can be put");
    let user = |number: u32| Principal::Actor(format!("user:{number}").parse().expect("an actor"));
    let hold = async |by: Principal, lease| {
        let held = backend.reserve(by, vec![driver.request(lease, &[("usd", 10)])]).await;
        assert!(matches!(held[0], Ok(ReserveAnswer::Allowed { .. })), "{held:?}");
    };
    let pay = async |by: Principal, lease, cost| {
        let actuals = vec![Amount { key: key("usd"), amount: cost }];
        let request = CompleteRequest {
            namespace: namespace(),
            lease,
            job: None,
            claim: earmark_core::LeaseClaim::default(),
            actuals,
            labels: earmark_core::SettleLabels::NONE,
        };
        let paid = backend.complete(by, vec![request]).await;
        assert!(matches!(&paid[0], Ok(answer) if answer.reconciled), "{paid:?}");
    };
    let (paid, free, late, open) = (driver.lease(), driver.lease(), driver.lease(), driver.lease());
    // A repeated request gets the answer but is not recorded as the actor.
    hold(user(1), paid).await;
    hold(user(2), paid).await;
    pay(user(3), paid, 7).await;
    pay(user(4), paid, 7).await;
    hold(user(5), free).await;
    pay(Principal::Anonymous, free, 0).await;
    hold(Principal::System, late).await;
    harness.advance_ms(3_000).await;
    hold(user(6), open).await;
    pay(user(7), late, 9).await;
    let mut of_key = Vec::new();
    if let Some(keys) = backend.keys() {
        make(keys, Role::Admin).await;
        let (token, by) = make(keys, Role::Caller).await;
        hold(by, driver.lease()).await;
        of_key.push(format!("hold by client:{}", token.id()));
    }
    let of_acme: Vec<String> = entries(harness, "acme").await.iter().map(told).collect();
    let expected = [
        "transaction by system:test",
        "hold by user:1",
        "settle by user:3",
        "hold by user:5",
        "release by system:local",
        "hold by system:earmark",
        "release by system:earmark",
        "hold by user:6",
        "settle by user:7",
    ];
    assert_eq!(of_acme[..expected.len()], expected);
    assert_eq!(of_acme[expected.len()..], of_key);
}

/// Holds, settlements and releases are recorded, and add up to the balance.
pub async fn holds_settlements_and_releases_are_in_the_history(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.does(MAIN, vec![open("acme"), issue("acme", 100)]).await;
    driver.try_put(credit("usd", VaultName::MAIN, "acme", 2), None).await.expect("a limit that can be put");
    let paid = driver.admit(&[("usd", 40)]).await;
    driver.complete(paid, &[("usd", 25)]).await;
    let free = driver.admit(&[("usd", 30)]).await;
    driver.complete(free, &[("usd", 0)]).await;
    let silent = driver.admit(&[("usd", 20)]).await;
    harness.advance_ms(3_000).await;
    // A timeout is recorded with the next commands or by the sweep.
    driver.admit(&[("usd", 1)]).await;
    let of_acme = entries(harness, "acme").await;
    let told: Vec<_> = of_acme
        .iter()
        .map(|entry| {
            let (kind, hold) = match &entry.what {
                EntryKind::Transaction { .. } => ("transaction", None),
                EntryKind::Hold(hold) => ("hold", Some(hold)),
                EntryKind::Settle { hold, .. } => ("settle", Some(hold)),
                EntryKind::Release(hold) => ("release", Some(hold)),
                EntryKind::Expire(_) => ("expire", None),
                EntryKind::Plan { .. } => ("plan", None),
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
    assert_eq!(sums, driver.purse(VaultName::MAIN, "acme").await);
    let revenue = entries(harness, AccountName::REVENUE).await;
    assert_eq!(revenue.len(), 1);
    match &revenue[0].what {
        EntryKind::Settle { hold, paid: got, debt, uncollected, .. } => {
            assert_eq!((hold.lease, hold.limit.as_str(), hold.amount), (paid, "usd", 40));
            assert_eq!((*got, *debt, *uncollected), (25, 0, 0));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!((revenue[0].changes[0].amount, revenue[0].changes[0].held), (25, 0));
    let audit = harness.backend().audit(namespace(), vault(VaultName::MAIN)).await;
    assert!(audit.expect("a vault that exists").balanced);
}

/// The labels of the settlements of an account, `-` for none, each with its reason.
async fn labels_of(harness: &impl Harness, name: &str) -> Vec<(String, &'static str)> {
    let told = |entry: EntryView| match entry.what {
        EntryKind::Settle { labels, reason, .. } => Some((labels.to_string(), reason.name())),
        _ => None,
    };
    entries(harness, name).await.into_iter().filter_map(told).collect()
}

/// Each settlement of a lease has the labels of its complete, and keeps them.
pub async fn the_labels_of_a_complete_are_on_its_settlements_and_stay(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.does(MAIN, vec![open("acme"), issue("acme", 100)]).await;
    for name in ["usd", "fee"] {
        driver.try_put(credit(name, VaultName::MAIN, "acme", 2), None).await.expect("a limit that can be put");
    }
    let both = driver.admit(&[("usd", 20), ("fee", 2)]).await;
    driver.complete_labelled(both, &[("usd", 5)], &[("user", "u 1"), ("model", "gpt-4o")]).await;
    driver.complete_labelled(both, &[("usd", 5)], &[("model", "other")]).await;
    let plain = driver.admit(&[("usd", 20)]).await;
    driver.complete(plain, &[]).await;
    let late = driver.admit(&[("usd", 20)]).await;
    harness.advance_ms(3_000).await;
    driver.complete_labelled(late, &[], &[("model", "late")]).await;
    let labelled = ("model=gpt-4o user=u 1".to_owned(), "complete");
    let expected = [labelled.clone(), labelled, (String::new(), "complete"), ("model=late".to_owned(), "late")];
    assert_eq!(labels_of(harness, "acme").await, expected);
    assert_eq!(labels_of(harness, AccountName::REVENUE).await, expected);
}
