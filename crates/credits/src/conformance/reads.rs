//! Reads.

use earmark_admission::{AccountQuery, EntryOrder};
use earmark_core::{AccountName, AccountStatus, GrantTerms, UnixMs};

use super::driver::{
    NOW, StoreDriver, account, amounts, change, entry, held, home, lease, posting, taking, token, usd, vault,
};
use crate::model::{AccountKey, GrantShare, Plan, Posting, PostingState};
use crate::store::{
    AsOf, AssetSums, Census, DueCursor, DueQuery, Funds, HistoryQuery, Spendable, Store, UnevenAccount,
};

impl StoreDriver<'_> {
    /// Creates postings without issuing them, which the audit reports.
    async fn create_postings(&self, outputs: Vec<Posting>) {
        let entries = vec![entry(vec![])];
        self.execute(Plan { outputs, entries, ..Plan::default() }).await;
    }
}

/// A survey returns every debt, but only the largest and the smallest of the other postings. A plan selects its inputs
/// from these.
pub async fn a_survey_shows_debts_and_the_ends_of_the_rest(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    assert_eq!(driver.posting_set("acme").await, crate::store::PostingSet::default());
    driver.issue("acme", &[5, 2, 8, 1, 9, 7, 3]).await;
    let naming = token();
    let debts = vec![posting(naming, 0, "acme", -4), posting(naming, 1, "acme", -6)];
    driver.create_postings(debts.clone()).await;
    driver.create_postings(vec![held(posting(token(), 0, "acme", 100), &lease(), NOW)]).await;
    driver.create_postings(vec![posting(token(), 0, "bob", 50)]).await;
    let (saga, _) = driver.prepare(Plan::clone(&taking(&debts[1..]))).await;
    // The driver asks for the three largest and two smallest, and counts to ten.
    let posting_set = driver.posting_set("acme").await;
    assert_eq!(
        (amounts(&posting_set.large), amounts(&posting_set.small), posting_set.active),
        (vec![9, 8, 7], vec![1, 2], 7)
    );
    let mut owed: Vec<_> = posting_set.owed.iter().map(|each| (each.amount, each.reserved_by)).collect();
    owed.sort_unstable();
    assert_eq!(owed, [(-6, Some(saga.rid)), (-4, None)]);
    driver.abort(saga).await;
    driver.issue("acme", &[10; 9]).await;
    assert_eq!(driver.posting_set("acme").await.active, 10);
}

/// Neither text nor a float orders them correctly.
pub async fn amounts_are_ordered_as_numbers_up_to_the_bounds_of_128_bits(store: &dyn Store) {
    let driver = StoreDriver(store);
    let most = i128::MAX;
    let naming = token();
    let all = [10, 9, most, i128::from(i64::MAX), i128::from(u64::MAX) + 1, i128::MIN, -1, most];
    let outputs = all.iter().zip(0_u16..).map(|(amount, place)| posting(naming, place, "acme", *amount));
    driver.create_postings(outputs.collect()).await;
    let posting_set = driver.posting_set("acme").await;
    // Above 63 bits the order may be approximate.
    assert!(posting_set.large.iter().all(|each| each.amount > i128::from(i64::MAX)), "{posting_set:?}");
    let mut large = amounts(&posting_set.large);
    large.sort_unstable();
    assert_eq!((large, amounts(&posting_set.small)), (vec![i128::from(u64::MAX) + 1, most, most], vec![9, 10]));
    let mut owed = amounts(&posting_set.owed);
    owed.sort_unstable();
    assert_eq!(owed, [i128::MIN, -1]);
}

/// Spendable, pending, held and timed out.
pub async fn funds_are_sums_by_what_becomes_of_the_postings(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    assert_eq!(store.funds(account("acme"), AsOf::at(NOW)).await, Ok(vec![]));
    let postings = driver.issue("acme", &[1, 2, 4]).await;
    let eur = earmark_core::AssetName::new("eur").expect("a valid asset");
    let naming = token();
    let (first, second) = (lease(), lease());
    let holds = vec![
        held(posting(naming, 0, "acme", 8), &first, NOW),
        held(posting(naming, 1, "acme", 16), &second, NOW.plus_ms(1)),
        posting(naming, 2, "acme", -32),
        Posting { asset: eur.clone(), ..posting(naming, 3, "acme", 64) },
    ];
    driver.create_postings(holds.clone()).await;
    driver.prepare(Plan::clone(&taking(&[postings[2].clone(), holds[0].clone(), holds[1].clone()]))).await;
    let of = |asset, active, pending, held, due| Funds { asset, active, expired: 0, pending, held, due };
    let expected = vec![of(eur, 64, 0, 0, 0), of(usd(), -29, 4, 16, 8)];
    assert_eq!(store.funds(account("acme"), AsOf::at(NOW)).await, Ok(expected));
    let before =
        store.funds(account("acme"), AsOf::at(UnixMs::new(NOW.get() - 1))).await.expect("a store that answers");
    assert_eq!((before[1].held, before[1].due), (24, 0));
    let spendable =
        async |now| store.spendable(account("acme"), usd(), AsOf::at(now)).await.expect("a store that answers");
    assert_eq!(spendable(NOW).await, Spendable { active: -29, pending: 4, due: 8 });
    assert_eq!(spendable(NOW.plus_ms(1)).await.due, 24);
    assert_eq!(spendable(UnixMs::new(NOW.get() - 1)).await.due, 0);
    assert_eq!(store.spendable(account("bob"), usd(), AsOf::at(NOW)).await, Ok(Spendable::default()));
}

/// The sweep takes the earliest first.
pub async fn holds_that_ended_are_due_in_order(store: &dyn Store) {
    let driver = StoreDriver(store);
    let naming = token();
    let hold = |place, owner, after_ms| {
        held(posting(naming, place, owner, 1 + i128::from(place)), &lease(), NOW.plus_ms(after_ms))
    };
    let holds = vec![hold(0, "acme", 30), hold(1, "bob", 10), hold(2, "acme", 20), hold(3, "acme", 40)];
    driver.create_postings(holds.clone()).await;
    let due = async |after_ms, account: Option<AccountKey>, max| {
        let due = DueQuery { now: NOW.plus_ms(after_ms), account, after: DueCursor::default() };
        let found = store.due(due, max).await.expect("a store that answers");
        found.iter().map(|posting| posting.amount).collect::<Vec<_>>()
    };
    assert_eq!(due(9, None, 9).await, [0_i128; 0]);
    assert_eq!(due(30, None, 9).await, [2, 3, 1]);
    assert_eq!(due(30, None, 2).await, [2, 3]);
    assert_eq!(due(30, Some(account("acme")), 9).await, [3, 1]);
    let (saga, plan) = driver.prepare(Plan::clone(&taking(&holds[2..3]))).await;
    assert_eq!(due(30, None, 9).await, [2, 1]);
    driver.abort(saga).await;
    assert_eq!(due(30, None, 9).await, [2, 3, 1]);
    let (saga, plan) = driver.prepare(Plan::clone(&plan)).await;
    driver.decide(saga, &plan).await;
    driver.finish(saga, &plan).await;
    assert_eq!(due(30, None, 9).await, [2, 1]);
    let mut due = DueQuery { now: NOW.plus_ms(10), account: None, after: DueCursor::default() };
    assert_eq!(store.due(due.clone(), 9).await, Ok(vec![holds[1].clone()]));
    // A cursor also works among holds that end at the same time.
    let together = vec![hold(4, "acme", 10), hold(5, "bob", 10)];
    driver.create_postings(together.clone()).await;
    due.now = NOW.plus_ms(30);
    let mut found = Vec::new();
    while let Some(next) = store.due(due.clone(), 1).await.expect("a store that answers").pop() {
        due.after = DueCursor { ends_at: next.hold.as_ref().expect("a hold").ends_at, id: next.id };
        found.push(next.amount);
    }
    found[..3].sort_unstable();
    assert_eq!(found, [2, 5, 6, 1]);
    due = DueQuery { account: Some(account("acme")), after: DueCursor::default(), ..due };
    let first = store.due(due.clone(), 1).await.expect("a store that answers").remove(0);
    due.after = DueCursor { ends_at: NOW.plus_ms(10), id: first.id };
    assert_eq!((first.amount, store.due(due, 9).await), (5, Ok(vec![holds[0].clone()])));
}

/// Settling starts from the held postings.
pub async fn the_holds_of_a_lease_are_found(store: &dyn Store) {
    let driver = StoreDriver(store);
    let (first, second) = (lease(), lease());
    let naming = token();
    let holds = vec![
        held(posting(naming, 0, "acme", 1), &first, NOW),
        held(posting(naming, 1, "bob", 2), &first, NOW.plus_ms(1)),
        held(posting(naming, 2, "acme", 3), &second, NOW),
    ];
    driver.create_postings(holds.clone()).await;
    let found = async |lease| {
        let mut found = store.held(lease).await.expect("a store that answers");
        found.sort_by_key(|(posting, _)| posting.id);
        found
    };
    let active = |posting: &Posting| (posting.clone(), PostingState::Active);
    assert_eq!(found(first.clone()).await, [active(&holds[0]), active(&holds[1])]);
    let (saga, plan) = driver.prepare(Plan::clone(&taking(&holds[..1]))).await;
    let pending = (holds[0].clone(), PostingState::Pending(saga.rid));
    assert_eq!(found(first.clone()).await, [pending, active(&holds[1])]);
    driver.decide(saga, &plan).await;
    driver.finish(saga, &plan).await;
    assert_eq!(found(first).await, [active(&holds[1])]);
    assert_eq!(found(lease()).await, []);
}

/// An asset that was spent completely is still listed.
pub async fn the_assets_that_an_account_has_had_are_listed(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme", "bob"]).await;
    assert_eq!(store.assets_of(account("acme")).await, Ok(vec![]));
    let postings = driver.issue("acme", &[5]).await;
    let eur = earmark_core::AssetName::new("eur").expect("a valid asset");
    let changed = crate::model::AccountChange { asset: eur.clone(), ..change("acme", 1, 0) };
    driver.execute(Plan { entries: vec![entry(vec![changed])], ..Plan::default() }).await;
    let spent = Plan { inputs: postings, entries: vec![entry(vec![change("acme", -5, 0)])], ..Plan::default() };
    driver.execute(spent).await;
    assert_eq!(store.assets_of(account("acme")).await, Ok(vec![eur, usd()]));
    assert_eq!(store.assets_of(account("bob")).await, Ok(vec![]));
}

/// Ordered by name. An account that is being opened does not exist yet.
pub async fn the_accounts_of_a_vault_come_in_pages(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["b", "a:2", "a", "a:1", "ab"]).await;
    let page = async |prefix: Option<&str>, after: Option<&str>, page_size| {
        let name = |text: &str| account(text).account;
        let query = AccountQuery { prefix: prefix.map(name), after: after.map(name), page_size };
        let found = store.accounts(home(), query).await.expect("a store that answers");
        assert!(found.iter().all(|(_, standing)| *standing == AccountStatus::Open));
        let names = found.iter().map(|(name, _)| name.to_string()).filter(|name| name != AccountName::REVENUE);
        names.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(page(None, None, 9).await, "a a:1 a:2 ab b");
    assert_eq!(page(None, None, 1).await, "a a:1", "one more than the page");
    assert_eq!(page(None, Some("a:1"), 1).await, "a:2 ab");
    assert_eq!(page(Some("a:"), None, 9).await, "a:1 a:2");
    assert_eq!(page(Some("a"), Some("a:2"), 9).await, "ab");
    assert_eq!(page(Some("c"), None, 9).await, "");
    let query = AccountQuery { prefix: None, after: None, page_size: 9 };
    assert_eq!(store.accounts(vault("eu"), query).await, Ok(vec![]));
}

/// Oldest first or newest first, none twice.
pub async fn the_history_of_an_account_comes_in_pages(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme", "bob"]).await;
    for amount in [1, 2, 3] {
        driver.issue("acme", &[amount]).await;
        driver.issue("bob", &[amount + 10]).await;
    }
    let page = async |name, after, max| {
        let query = HistoryQuery { order: EntryOrder::Ascending, after, max };
        let found = store.history(account(name), query).await.expect("a store that answers");
        found.iter().map(|stored| (stored.number, stored.entry.changes[0].amount)).collect::<Vec<_>>()
    };
    // Number 1 opened the accounts.
    assert_eq!(page("acme", 0, 9).await, [(2, 1), (4, 2), (6, 3)]);
    assert_eq!(page("acme", 2, 1).await, [(4, 2)]);
    assert_eq!(page("bob", 5, 9).await, [(7, 13)]);
    assert_eq!((page("acme", 6, 9).await, page("nobody", 0, 9).await), (vec![], vec![]));
    // An entry that names an account twice appears once.
    let eur = crate::model::AccountChange {
        asset: earmark_core::AssetName::new("eur").expect("a valid asset"),
        ..change("acme", 1, 0)
    };
    let after_six = HistoryQuery { order: EntryOrder::Ascending, after: 6, max: 9 };
    let entries = vec![entry(vec![eur, change("acme", 5, 0)])];
    driver.execute(Plan { entries: entries.clone(), ..Plan::default() }).await;
    for query in [after_six, HistoryQuery { order: EntryOrder::Descending, after: 0, max: 1 }] {
        let found = store.history(account("acme"), query).await.expect("a store that answers");
        assert_eq!(found.len(), 1);
        assert_eq!(*found[0].entry, entries[0]);
    }
    let newest = async |after, max| {
        let query = HistoryQuery { order: EntryOrder::Descending, after, max };
        let found = store.history(account("acme"), query).await.expect("a store that answers");
        found.iter().map(|stored| stored.number).collect::<Vec<_>>()
    };
    assert_eq!((newest(0, 9).await, newest(6, 1).await), (vec![8, 6, 4, 2], vec![4]));
    assert_eq!((newest(4, 9).await, newest(2, 9).await), (vec![2], vec![]));
}

/// The census is taken at one moment.
pub async fn a_vault_is_counted(store: &dyn Store) {
    let driver = StoreDriver(store);
    assert_eq!(store.census(home()).await, Ok(Census::default()));
    driver.open_accounts(&["acme", "bob"]).await;
    driver.issue("acme", &[60, 40]).await;
    let postings = driver.issue("bob", &[i128::MAX - 100]).await;
    let (saga, _) = driver.prepare(Plan::clone(&taking(&postings))).await;
    let census = store.census(home()).await.expect("a store that answers");
    assert_eq!((census.records, &census.uneven), (1, &vec![]));
    let of_usd = census.assets.first().expect("an asset");
    assert_eq!((&of_usd.asset, of_usd.sums), (&usd(), AssetSums { issued: i128::MAX, ..AssetSums::default() }));
    assert_eq!((of_usd.live, of_usd.entered, census.assets.len()), (i128::MAX, i128::MAX, 1));
    driver.abort(saga).await;
    assert_eq!(store.census(home()).await.expect("a store that answers").records, 0);
    assert_eq!(store.census(vault("eu")).await, Ok(Census::default()));
}

/// The audit also checks an asset without a row of totals. While it did not, a posting that was never issued and a
/// matching change looked balanced.
pub async fn what_nobody_has_issued_is_found_out(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    driver.issue("acme", &[5]).await;
    let eur = || earmark_core::AssetName::new("eur").expect("a valid asset");
    let outputs = vec![Posting { asset: eur(), ..posting(token(), 0, "acme", 7) }];
    let change = crate::model::AccountChange { asset: eur(), ..change("acme", 7, 0) };
    driver.execute(Plan { outputs, entries: vec![entry(vec![change])], ..Plan::default() }).await;
    let census = store.census(home()).await.expect("a store that answers");
    assert_eq!(census.uneven, [], "the account is even");
    let of_eur = census.assets.iter().find(|found| found.asset == eur()).expect("an asset that is counted");
    assert_eq!((of_eur.sums, of_eur.live, of_eur.entered), (AssetSums::default(), 7, 7));
    assert_eq!(census.assets.len(), 2);
}

/// The audit reports accounts whose postings and entries differ.
pub async fn a_vault_that_does_not_add_up_is_found_out(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme", "bob"]).await;
    driver.issue("acme", &[5]).await;
    driver.create_postings(vec![posting(token(), 0, "bob", 3)]).await;
    driver.create_postings(vec![held(posting(token(), 0, "bob", 4), &lease(), NOW)]).await;
    let census = store.census(home()).await.expect("a store that answers");
    let (account, asset) = (account("bob").account, usd());
    assert_eq!(census.uneven, [UnevenAccount { account, asset, live: 7, entered: 0 }]);
    assert_eq!((census.assets[0].live, census.assets[0].entered), (12, 5));
}

/// Grants are listed apart from plain credit, in spending order, and expire by their own index.
pub async fn grants_are_listed_in_spending_order_and_expire_in_time(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    driver.issue("acme", &[5]).await;
    let terms = |priority, after_ms: Option<u64>| GrantTerms::new(priority, after_ms.map(|ms| NOW.plus_ms(ms)));
    let (late, soon, first, last) = (terms(128, Some(20)), terms(128, Some(10)), terms(0, None), terms(255, Some(5)));
    let naming = token();
    let grant = |place, amount, terms| Posting { terms, ..posting(naming, place, "acme", amount) };
    let mut hold = held(posting(naming, 4, "acme", 9), &lease(), NOW.plus_ms(1));
    if let Some(hold) = &mut hold.hold {
        hold.shares = vec![GrantShare { terms: first, amount: 7 }];
    }
    let grants = vec![grant(0, 1, late), grant(1, 2, soon), grant(2, 4, first), grant(3, 8, last), hold];
    driver.create_postings(grants.clone()).await;
    let (saga, _) = driver.prepare(Plan::clone(&taking(&grants[2..3]))).await;
    let posting_set = driver.posting_set("acme").await;
    let listed: Vec<_> = posting_set.grants.iter().map(|each| (each.terms, each.amount, each.reserved_by)).collect();
    assert_eq!(listed, [(first, 4, Some(saga.rid)), (soon, 2, None), (late, 1, None), (last, 8, None)]);
    assert_eq!((amounts(&posting_set.large), posting_set.active), (vec![5], 1), "plain credit");
    driver.abort(saga).await;
    let sorted = |mut postings: Vec<Posting>| {
        postings.sort_by_key(|posting| posting.id);
        postings
    };
    let found = store.grants(account("acme")).await.expect("a store that answers");
    assert_eq!(sorted(found.into_iter().map(|(posting, _)| posting).collect()), sorted(grants.clone()));
    let as_of = AsOf { now: NOW, expiry: NOW.plus_ms(10) };
    let funds = store.funds(account("acme"), as_of).await.expect("a store that answers").remove(0);
    assert_eq!((funds.active, funds.expired, funds.held), (10, 10, 9));
    let spendable = store.spendable(account("acme"), usd(), as_of).await.expect("a store that answers");
    assert_eq!(spendable.active, 10);
    let due = |after_ms, account| DueQuery { now: NOW.plus_ms(after_ms), account, after: DueCursor::default() };
    assert_eq!(store.expiring(due(4, None), 9).await, Ok(vec![]));
    assert_eq!(store.expiring(due(10, None), 9).await, Ok(vec![grants[3].clone(), grants[1].clone()]));
    assert_eq!(store.expiring(due(10, None), 1).await, Ok(vec![grants[3].clone()]));
    let after = DueCursor { ends_at: NOW.plus_ms(5), id: grants[3].id };
    assert_eq!(store.expiring(DueQuery { after, ..due(20, None) }, 1).await, Ok(vec![grants[1].clone()]));
    let of_account = store.expiring(due(10, Some(account("acme"))), 9).await.expect("a store that answers");
    assert_eq!(sorted(of_account), sorted(vec![grants[1].clone(), grants[3].clone()]));
    assert_eq!(store.expiring(due(10, Some(account("bob"))), 9).await, Ok(vec![]));
}
