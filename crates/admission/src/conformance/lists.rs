//! Lists of vaults, accounts and entries.

use earmark_core::{AccountName, AccountStatus, NamespaceName, Operation, UnixMs, VaultName};

use super::Harness;
use super::credit_driver::{MAIN, account, issue, open, open_vault, path, vault};
use super::driver::{Driver, namespace};
use crate::credit_lists::{AccountPage, AccountQuery, EntryOrder, EntryQuery, VaultPage, VaultQuery};
use crate::writes::CreditReadError;

/// Vaults are ordered by name and come in pages.
pub async fn vaults_are_listed_in_pages(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.does(None, vec![open_vault("eu"), open_vault("asia")]).await;
    let page = async |after: Option<&str>, page_size| {
        let query = VaultQuery { after: after.map(vault), page_size };
        let page = harness.backend().vaults(namespace(), query).await.expect("a namespace that exists");
        let names: Vec<String> = page.vaults.iter().map(ToString::to_string).collect();
        (names.join(" "), page.next.map(|next| next.to_string()))
    };
    assert_eq!(page(None, 9).await, ("asia eu main".into(), None));
    assert_eq!(page(None, 2).await, ("asia eu".into(), Some("eu".into())));
    assert_eq!(page(Some("eu"), 2).await, ("main".into(), None));
    let nowhere = NamespaceName::new("nowhere").expect("a valid name");
    let none = harness.backend().vaults(nowhere, VaultQuery { after: None, page_size: 1 }).await;
    assert_eq!(none, Ok(VaultPage::default()));
}

fn told(page: &AccountPage) -> String {
    let told = page.accounts.iter().map(|view| {
        let amounts = view.balances.iter().map(|balance| format!(" {}", balance.available)).collect::<String>();
        format!("{} {}{amounts}", view.account, view.status.name())
    });
    told.collect::<Vec<_>>().join(", ")
}

/// Accounts have their status and balances; revenue is one of them.
pub async fn accounts_are_listed_with_status_and_balances(harness: &impl Harness) {
    let driver = Driver(harness);
    let (cold, gone) = (account("team:cold"), account("team:gone"));
    driver.does(None, vec![open_vault("eu")]).await;
    driver.does(MAIN, vec![open("team:gone"), open("team:cold"), open("acme"), issue("team:cold", 7)]).await;
    driver.does(MAIN, vec![Operation::FreezeAccount { account: cold }]).await;
    driver.does(MAIN, vec![Operation::CloseAccount { account: gone }]).await;
    let page = async |name: &str, query| harness.backend().accounts(namespace(), vault(name), query).await;
    let all = AccountQuery { prefix: None, after: None, page_size: 100 };
    let found = page(VaultName::MAIN, all.clone()).await.expect("a vault that exists");
    assert_eq!(told(&found), "acme open, revenue open, team:cold frozen 7, team:gone closed");
    assert_eq!(found.next, None);
    assert_eq!(told(&page("eu", all.clone()).await.expect("a vault that exists")), "revenue open");
    let two = AccountQuery { page_size: 2, ..all.clone() };
    let first = page(VaultName::MAIN, two.clone()).await.expect("a vault that exists");
    assert_eq!(first.next.as_ref().map(AccountName::as_str), Some("revenue"));
    let second = page(VaultName::MAIN, AccountQuery { after: first.next, ..two }).await.expect("a vault that exists");
    assert_eq!((told(&second).as_str(), second.next), ("team:cold frozen 7, team:gone closed", None));
    let team = AccountQuery { prefix: Some(account("team:")), page_size: 1, ..all.clone() };
    let first = page(VaultName::MAIN, team).await.expect("a vault that exists");
    assert_eq!(first.next.as_ref().map(AccountName::as_str), Some("team:cold"));
    assert_eq!(first.accounts[0].status, AccountStatus::Frozen);
    assert_eq!(page("nowhere", all).await, Err(CreditReadError::VaultNotFound));
}

/// Entries are filtered by time, `until` not included, and come in both orders.
pub async fn entries_are_filtered_by_time_and_come_in_both_orders(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.does(MAIN, vec![open("acme"), open("bob"), issue("acme", 1)]).await;
    for amount in [2, 3, 4] {
        harness.advance_ms(10).await;
        driver.does(MAIN, vec![issue("bob", 9), issue("acme", amount)]).await;
    }
    let all = EntryQuery::oldest_first(0, 100);
    let page = async |query: &EntryQuery| {
        let page = harness.backend().entries(path(VaultName::MAIN, "acme"), query.clone()).await;
        let page = page.expect("an account that exists");
        let amounts: Vec<i128> = page.entries.iter().map(|entry| entry.changes[0].amount).collect();
        let times: Vec<UnixMs> = page.entries.iter().map(|entry| entry.at).collect();
        (amounts, times, page.next)
    };
    let (amounts, times, next) = page(&all).await;
    assert_eq!((amounts, next), (vec![1, 2, 3, 4], None));
    let newest = EntryQuery { order: EntryOrder::Descending, ..all.clone() };
    assert_eq!(page(&newest).await.0, [4, 3, 2, 1]);
    let (first, _, next) = page(&EntryQuery { page_size: 3, ..newest.clone() }).await;
    assert_eq!(first, [4, 3, 2]);
    assert_eq!(page(&EntryQuery { after: next.expect("a second page"), ..newest.clone() }).await.0, [1]);
    let (since, until) = (Some(times[1]), Some(times[3]));
    for (order, expected) in [(EntryOrder::Ascending, [2, 3]), (EntryOrder::Descending, [3, 2])] {
        let within = EntryQuery { since, until, order, ..all.clone() };
        assert_eq!(page(&within).await.0, expected, "{order:?}");
        let (first, _, next) = page(&EntryQuery { page_size: 1, ..within.clone() }).await;
        assert_eq!(first, expected[..1], "{order:?}");
        let rest = EntryQuery { after: next.expect("a second page"), ..within };
        assert_eq!(page(&rest).await.0, expected[1..], "{order:?}");
    }
    assert_eq!(page(&EntryQuery { since: Some(UnixMs::new(u64::MAX)), ..all }).await.0, Vec::<i128>::new());
}
