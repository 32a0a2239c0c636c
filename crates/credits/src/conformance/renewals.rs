//! Holds whose end moves, and usage that is kept from being spent.

use super::concurrent::concurrently;
use super::driver::{NOW, StoreDriver, account, entry, held, lease, posting, record, taking, token, usd};
use crate::model::{Plan, Posting, PostingHold, PostingState};
use crate::store::{AsOf, Change, DueCursor, DueQuery, Renewal, Spendable, Store};

/// A held posting of each amount that ends at `NOW`, of one lease.
async fn holds(driver: &StoreDriver<'_>, amounts: &[i128]) -> Vec<Posting> {
    let (naming, lease) = (token(), lease());
    let places = amounts.iter().zip(0_u16..);
    let holds: Vec<Posting> =
        places.map(|(amount, place)| held(posting(naming, place, "acme", *amount), &lease, NOW)).collect();
    driver.execute(Plan { outputs: holds.clone(), entries: vec![entry(vec![])], ..Plan::default() }).await;
    holds
}

fn hold_of(posting: &Posting) -> PostingHold {
    posting.hold.clone().expect("a hold")
}

/// The renewal of a posting as it was read, by extension `number`.
fn renewal(posting: &Posting, number: u32, used: u64) -> Renewal {
    let amount = u64::try_from(posting.amount).expect("a held amount");
    let hold = PostingHold {
        ends_at: NOW.plus_ms(1_000 * u64::from(number)),
        extension: number,
        ..hold_of(posting).with(amount, false, used)
    };
    Renewal { id: posting.id, read: posting.extension(), hold }
}

fn renewed(posting: &Posting, renewal: &Renewal) -> Posting {
    Posting { hold: Some(renewal.hold.clone()), ..posting.clone() }
}

async fn found(store: &dyn Store, of: &Posting) -> Vec<Posting> {
    let key = crate::model::LeaseKey { namespace: of.account.home.namespace.clone(), lease: hold_of(of).lease };
    let mut found = store.held(key).await.expect("a store that answers");
    found.sort_by_key(|(posting, _)| posting.id);
    found.into_iter().map(|(posting, _)| posting).collect()
}

/// All holds of a lease are renewed, or none.
pub async fn holds_are_renewed_together_or_not_at_all(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    let holds = holds(&driver, &[5, i128::from(u64::MAX)]).await;
    let first: Vec<Renewal> = vec![renewal(&holds[0], 1, 9), renewal(&holds[1], 1, u64::MAX - 1)];
    assert_eq!(driver.write_one(Change::Renew(first.clone())).await, 2);
    let after: Vec<Posting> = holds.iter().zip(&first).map(|(posting, renewal)| renewed(posting, renewal)).collect();
    assert_eq!(found(store, &holds[0]).await, after);
    assert_eq!((hold_of(&after[0]).kept, hold_of(&after[1]).kept), (5, u64::MAX - 1), "at most the amount is kept");
    assert_eq!(driver.write_one(Change::Renew(first)).await, 0, "the postings were read before");
    let mixed = vec![renewal(&after[0], 2, 0), renewal(&holds[1], 2, 0)];
    assert_eq!(driver.write_one(Change::Renew(mixed)).await, 0, "one of them was");
    let unknown = Renewal { id: token().rid.posting(0), ..renewal(&after[0], 2, 0) };
    assert_eq!(driver.write_one(Change::Renew(vec![renewal(&after[0], 2, 0), unknown])).await, 0, "one is not there");
    let (saga, _) = driver.prepare(Plan::clone(&taking(&after[..1]))).await;
    let both = || vec![renewal(&after[0], 2, 0), renewal(&after[1], 2, 0)];
    assert_eq!(driver.write_one(Change::Renew(both())).await, 0, "a saga is about to consume one");
    assert_eq!(found(store, &holds[0]).await, after, "nothing changed");
    driver.abort(saga).await;
    assert_eq!(driver.write_one(Change::Renew(both())).await, 2);
    let due = async |after_ms| {
        let due = DueQuery { now: NOW.plus_ms(after_ms), account: None, after: DueCursor::default() };
        store.due(due, 9).await.expect("a store that answers").len()
    };
    assert_eq!((due(0).await, due(1_999).await, due(2_000).await), (0, 0, 2), "the ends have moved");
}

/// A sweep read a hold that was due. Until it committed, the end of the hold moved and usage was reported.
pub async fn a_renewed_hold_is_consumed_only_as_it_was_read(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    let holds = holds(&driver, &[5]).await;
    let (begun, plan) = (token(), taking(&holds));
    driver.begin(begun, &plan).await;
    let renewal = renewal(&holds[0], 1, 3);
    assert_eq!(driver.write_one(Change::Renew(vec![renewal.clone()])).await, 1);
    let fresh = vec![renewed(&holds[0], &renewal)];
    assert!(!driver.commit(token(), &taking(&holds)).await, "as a whole");
    assert_eq!(driver.write_one(Change::Reserve(begun, plan)).await, 0, "by steps");
    driver.abort(begun).await;
    assert_eq!(found(store, &holds[0]).await, fresh);
    let (saga, plan) = driver.prepare(Plan::clone(&taking(&fresh))).await;
    assert_eq!(driver.decide(saga, &plan).await, 1);
    driver.finish(saga, &plan).await;
    assert_eq!(found(store, &holds[0]).await, []);
}

/// The part of a hold that its timeout will charge is never spendable.
pub async fn what_a_timeout_will_charge_stays_held(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    driver.issue("acme", &[100]).await;
    let holds = holds(&driver, &[50, 7]).await;
    let used = |posting: &Posting, used| {
        let mut renewal = renewal(posting, 1, used);
        renewal.hold.ends_at = NOW;
        renewal
    };
    assert_eq!(driver.write_one(Change::Renew(vec![used(&holds[0], 20), used(&holds[1], 99)])).await, 2);
    let sums = async |now| {
        let funds = store.funds(account("acme"), AsOf::at(now)).await.expect("a store that answers").remove(0);
        (funds.active, funds.held, funds.due)
    };
    assert_eq!(sums(NOW.minus_ms(1)).await, (100, 57, 0));
    assert_eq!(sums(NOW).await, (100, 27, 30));
    let spendable = store.spendable(account("acme"), usd(), AsOf::at(NOW)).await;
    assert_eq!(spendable, Ok(Spendable { active: 100, pending: 0, due: 30 }));
}

/// Two processes that extend a lease at once do not overwrite each other.
pub async fn of_many_renewals_at_once_one_happens(store: &dyn Store) {
    let driver = &StoreDriver(store);
    let holds = &holds(driver, &[5, 6]).await;
    let counts = concurrently(|place| async move {
        match place % 2 {
            0 => driver.write_one(Change::Renew(vec![renewal(&holds[0], 1, 1), renewal(&holds[1], 1, 1)])).await,
            _ => {
                let saga = token();
                u64::from(store.commit(record(saga, &taking(holds))).await.expect("a store that answers"))
            }
        }
    })
    .await;
    let (renewed, consumed) = (counts.iter().filter(|count| **count == 2), counts.iter().filter(|count| **count == 1));
    let (renewed, consumed) = (renewed.count(), consumed.count());
    assert_eq!((renewed + consumed, counts.iter().filter(|count| **count > 2).count()), (1, 0), "{counts:?}");
    let key = crate::model::LeaseKey { namespace: super::driver::home().namespace, lease: hold_of(&holds[0]).lease };
    let left = store.held(key).await.expect("a store that answers");
    assert!(left.iter().all(|(_, state)| *state == PostingState::Active));
    assert_eq!(left.len(), 2 * renewed);
}
