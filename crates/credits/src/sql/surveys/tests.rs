use std::sync::{Arc, Mutex};

use earmark_core::{AccountName, AssetName, NamespaceName, VaultName};

use super::*;
use crate::model::{Account, AccountKey, VaultKey};
use crate::store::{PostingQuery, PostingSet};

fn account(name: &str) -> AccountKey {
    let namespace = NamespaceName::new("default").expect("a valid name");
    let home = VaultKey { namespace, vault: VaultName::new("main").expect("a valid vault") };
    AccountKey { home, account: AccountName::new(name).expect("a valid account") }
}

fn survey(name: &str, largest: usize) -> Survey {
    let asset = AssetName::new("usd").expect("a valid asset");
    let posting_set = PostingQuery { account: account(name), asset, largest, smallest: 0, count_max: 0 };
    Survey { accounts: vec![account(name), account("revenue")], posting_sets: vec![posting_set], ..Survey::default() }
}

/// An answer that identifies its question.
fn answer(survey: &Survey) -> Surveyed {
    let standing = |key: &AccountKey| match key.account.as_str() {
        "revenue" => earmark_core::AccountStatus::Frozen,
        _ => earmark_core::AccountStatus::Open,
    };
    let found = |key: &AccountKey| {
        let overdraft = earmark_core::Overdraft::Deny;
        Some(Account { standing: standing(key), overdraft, claim: None })
    };
    let posting_set = |query: &PostingQuery| PostingSet {
        active: query.largest + 1_000 * query.account.account.as_str().len(),
        ..PostingSet::default()
    };
    Surveyed {
        accounts: survey.accounts.iter().map(found).collect(),
        posting_sets: survey.posting_sets.iter().map(posting_set).collect(),
        ..Surveyed::default()
    }
}

#[tokio::test]
async fn callers_who_wait_share_one_survey_and_each_gets_its_own_part() {
    let (queue, waiting) = Surveys::new();
    let queue = Arc::new(queue);
    let asked = [("acme", 1), ("acme", 1), ("bob", 1), ("acme", 2)];
    let callers = asked.map(|(name, largest)| {
        let (queue, asked) = (Arc::clone(&queue), survey(name, largest));
        let expected = answer(&asked);
        tokio::spawn(async move { assert_eq!(queue.call(asked).await, Ok(expected)) })
    });
    tokio::task::yield_now().await;
    let looks = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&looks);
    let worker = tokio::spawn(work(waiting, move |shared: Survey| {
        seen.lock().expect("no panic").push((shared.accounts.len(), shared.posting_sets.len()));
        std::future::ready(Ok(answer(&shared)))
    }));
    for caller in callers {
        caller.await.expect("an answer that is its own");
    }
    assert_eq!(*looks.lock().expect("no panic"), [(3, 3)]);
    queue.close();
    worker.await.expect("an end");
}

#[tokio::test]
async fn a_survey_that_fails_fails_for_all_who_share_it() {
    let (queue, waiting) = Surveys::new();
    let worker =
        tokio::spawn(work(waiting, |_| std::future::ready(Err(StoreError::Unavailable("it is gone".to_owned())))));
    let (first, second) = tokio::join!(queue.call(survey("acme", 1)), queue.call(survey("bob", 1)));
    assert_eq!((&first, first.is_err()), (&second, true));
    queue.close();
    worker.await.expect("an end");
}

/// The rows of one tenant's account were damaged, and no other tenant could pay.
#[tokio::test]
async fn what_cannot_be_read_fails_for_who_asks_about_it_alone() {
    let (queue, waiting) = Surveys::new();
    let worker = tokio::spawn(work(waiting, |shared: Survey| {
        let is_damaged = shared.accounts.contains(&account("bob"));
        let damaged = || StoreError::Corrupt("column amount has \"x\"".to_owned());
        std::future::ready(if is_damaged { Err(damaged()) } else { Ok(answer(&shared)) })
    }));
    let (acme, bob) = (survey("acme", 1), survey("bob", 1));
    let (fine, damaged) = tokio::join!(queue.call(acme.clone()), queue.call(bob));
    assert_eq!(fine, Ok(answer(&acme)));
    assert!(matches!(damaged, Err(StoreError::Corrupt(_))), "{damaged:?}");
    queue.close();
    worker.await.expect("an end");
}

#[tokio::test]
async fn a_shared_look_is_bounded_and_the_rest_have_the_next() {
    let (queue, waiting) = Surveys::new();
    let queue = Arc::new(queue);
    let callers: Vec<_> = (0..100)
        .map(|caller| {
            let (queue, asked) = (Arc::clone(&queue), survey(&format!("a{caller}"), 1));
            let expected = answer(&asked);
            tokio::spawn(async move { assert_eq!(queue.call(asked).await, Ok(expected)) })
        })
        .collect();
    tokio::task::yield_now().await;
    let looks = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&looks);
    let worker = tokio::spawn(work(waiting, move |shared: Survey| {
        seen.lock().expect("no panic").push(shared.posting_sets.len());
        std::future::ready(Ok(answer(&shared)))
    }));
    for caller in callers {
        caller.await.expect("an answer that is its own");
    }
    assert_eq!(*looks.lock().expect("no panic"), [QUERIES_MAX, 100 - QUERIES_MAX]);
    queue.close();
    worker.await.expect("an end");
}

#[test]
fn large_surveys_and_those_of_clients_run_alone() {
    assert!(is_shared(&survey("acme", POSTINGS_MAX)));
    assert!(!is_shared(&survey("acme", POSTINGS_MAX + 1)));
    let client = earmark_core::ClientId::new("billing").expect("a valid client");
    let client = Some(crate::model::ClientKey { home: account("acme").home, client });
    assert!(!is_shared(&Survey { client, ..survey("acme", 1) }));
}
