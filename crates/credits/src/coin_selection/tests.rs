use earmark_core::{AccountName, NamespaceName, VaultName};

use super::*;
use crate::local_locks::SlotTable;
use crate::model::AssetKey;

fn account() -> AccountKey {
    let home = VaultKey { namespace: NamespaceName::new("default").unwrap(), vault: VaultName::new("main").unwrap() };
    AccountKey { home, account: AccountName::new("acme").unwrap() }
}

fn usd() -> AssetName {
    AssetName::new("usd").unwrap()
}

fn live(amounts: &[i128]) -> Vec<LivePosting> {
    let posting = |(place, amount): (usize, &i128)| LivePosting {
        id: PostingId(place as u128 + 1),
        amount: *amount,
        terms: GrantTerms::PLAIN,
        reserved_by: None,
    };
    amounts.iter().enumerate().map(posting).collect()
}

fn change(change: i128, overdraft: Overdraft) -> BalanceChange {
    BalanceChange { is_deposit: true, ..BalanceChange::plain(&account(), &usd(), change, overdraft) }
}

fn inputs(chosen: &Chosen) -> Vec<i128> {
    chosen.inputs.iter().map(|input| input.amount).collect()
}

#[test]
fn an_amount_is_split_without_tiny_parts_and_without_a_rest() {
    for (amount, pieces, expected) in [
        (0, 16, vec![]),
        (-5, 16, vec![-5]),
        (127, 16, vec![127]),
        (128, 16, vec![64, 64]),
        (1_000, 4, vec![250; 4]),
        (1_003, 4, vec![253, 250, 250, 250]),
        (1_003, 1, vec![1_003]),
        (i128::MIN, 3, vec![i128::MIN]),
    ] {
        assert_eq!(split(amount, pieces).collect::<Vec<_>>(), expected, "{amount} in {pieces}");
    }
    let most: Vec<i128> = split(i128::MAX, 16).collect();
    assert_eq!((most.len(), most.iter().sum()), (16, i128::MAX));
}

#[test]
fn a_payment_takes_one_posting_that_is_enough_and_sweeps_only_where_there_are_many() {
    let slots = SlotTable::default().of(&account());
    let large = live(&[90, 80, 70, 5]);
    let posting_set = PostingSet { small: live(&[1, 2, 3]), large, active: 4, ..PostingSet::default() };
    let few = choose(&change(-60, Overdraft::Deny), &posting_set, &slots, ReservationId(4)).unwrap();
    assert_eq!((inputs(&few), few.output), (vec![80], 20));
    let posting_set = PostingSet { active: SPLIT + 3, ..posting_set };
    let many = choose(&change(-60, Overdraft::Deny), &posting_set, &slots, ReservationId(3)).unwrap();
    assert_eq!(many.inputs.len(), 1 + 2, "one of them is what pays: {:?}", inputs(&many));
    let all = choose(&change(-200, Overdraft::Deny), &posting_set, &slots, ReservationId(3)).unwrap();
    assert_eq!((inputs(&all), all.output), (vec![90, 80, 70, 5], 45));
}

/// With one small posting beside those that calls pay from, each payment swept up two of the latter, and merging took
/// more than it should. Few postings were left, and of sixty-four calls most waited for each other.
#[test]
fn as_many_postings_as_a_deposit_is_split_into_are_left_to_pay_from() {
    let slots = SlotTable::default().of(&account());
    let postings = live(&[1, 500, 501, 502]);
    let small = postings[..3].to_vec();
    let posting_set = PostingSet { small, large: postings, active: SPLIT + 1, ..PostingSet::default() };
    let pays = choose(&change(-60, Overdraft::Deny), &posting_set, &slots, ReservationId(3)).unwrap();
    assert_eq!(pays.inputs.len(), 2, "{:?}", inputs(&pays));
    assert!(inputs(&pays).contains(&1));
    let many: Vec<i128> = (1..=100).collect();
    let posting_set = PostingSet { small: live(&many), active: MERGE_AT, ..PostingSet::default() };
    let gathers = choose(&change(10, Overdraft::Deny), &posting_set, &slots, ReservationId(1)).unwrap();
    assert_eq!(gathers.inputs.len(), MERGE_AT - SPLIT);
}

/// A payer waits for the calls before it if there is enough, and reads the balance if not.
#[test]
fn what_others_are_at_work_on_counts_as_there() {
    let posting_set = PostingSet { owed: live(&[-30]), large: live(&[90, 5]), active: 2, ..PostingSet::default() };
    for (amount, expected) in [(65, true), (66, false)] {
        assert_eq!(has_enough(&change(-amount, Overdraft::Deny), &posting_set), expected, "{amount}");
    }
    let more = PostingSet { active: 3, ..posting_set };
    assert!(!has_enough(&change(-1, Overdraft::Deny), &more), "a further look may find what is free");
}

#[test]
fn what_is_owed_is_always_taken_and_a_deposit_covers_it_first() {
    let slots = SlotTable::default().of(&account());
    let posting_set = PostingSet { owed: live(&[-30]), ..PostingSet::default() };
    let deposit = choose(&change(50, Overdraft::Deny), &posting_set, &slots, ReservationId(1)).unwrap();
    assert_eq!((inputs(&deposit), deposit.output), (vec![-30], 20));
    let short = choose(&change(-1, Overdraft::Deny), &posting_set, &slots, ReservationId(1));
    assert_eq!(short.err(), Some(PlanError::Insufficient { missing: 31 }));
    let deeper = choose(&change(-1, Overdraft::Allow), &posting_set, &slots, ReservationId(1)).unwrap();
    assert_eq!((inputs(&deeper), deeper.output), (vec![-30], -31));
}

#[test]
fn a_cap_bounds_what_a_payment_leaves() {
    let slots = SlotTable::default().of(&account());
    let posting_set = PostingSet { owed: live(&[-30]), ..PostingSet::default() };
    let deeper = choose(&change(-70, Overdraft::Limit(100)), &posting_set, &slots, ReservationId(1)).unwrap();
    assert_eq!((inputs(&deeper), deeper.output), (vec![-30], -100));
    let short = choose(&change(-71, Overdraft::Limit(100)), &posting_set, &slots, ReservationId(1));
    assert_eq!(short.err(), Some(PlanError::Insufficient { missing: 1 }));
}

#[tokio::test]
async fn a_deposit_into_an_account_of_many_postings_gathers_the_smallest() {
    let slots = SlotTable::default().of(&account());
    let _another = slots.pay().await;
    let posting_set = PostingSet { small: live(&[1, 2, 3]), active: MERGE_AT, ..PostingSet::default() };
    let gathers = choose(&change(10, Overdraft::Deny), &posting_set, &slots, ReservationId(1)).unwrap();
    assert_eq!((inputs(&gathers), gathers.output, gathers.pieces), (vec![1, 2, 3], 16, 1));
    let taken = slots.take(vec![PostingId(2)]).unwrap();
    let others = choose(&change(10, Overdraft::Deny), &posting_set, &slots, ReservationId(1)).unwrap();
    assert_eq!(inputs(&others), [1, 3], "what another call uses is left alone");
    taken.spend();
    drop(taken);
    let others = choose(&change(10, Overdraft::Deny), &posting_set, &slots, ReservationId(1)).unwrap();
    assert_eq!(inputs(&others), [1, 3], "and so is what it has consumed");
}

/// Every sixteenth deposit merged the same thirty-two postings. With a thousand callers all but the first merged
/// nothing, and the account grew by a posting with almost every call. An account with rare deposits, or on a process
/// that restarted before the sixteenth, was never merged.
#[test]
fn one_deposit_at_a_time_gathers_and_as_many_as_there_were_the_last_time() {
    let slots = SlotTable::default().of(&account());
    let permit = |slots: &AccountSlots| slots.merge_permit(MERGE_EVERY);
    let (first, size) = permit(&slots).expect("the first deposit merges");
    assert_eq!(size, 32);
    let waiting = (0..200).filter(|_| permit(&slots).is_some()).count();
    assert_eq!(waiting, 0, "one is at it");
    let many: Vec<i128> = (1..=32).collect();
    let posting_set = PostingSet { small: live(&many), active: 2 * size + SPLIT, ..PostingSet::default() };
    choose(&change(10, Overdraft::Deny), &posting_set, &slots, ReservationId(1)).unwrap();
    drop(first);
    let (second, size) = permit(&slots).expect("more than enough have come since");
    assert_eq!(size, 64);
    drop(second);
    assert_eq!((0..16).filter(|_| permit(&slots).is_some()).count(), 1);
    slots.found_small(1_000_000);
    let sizes: Vec<usize> = (0..16).filter_map(|_| permit(&slots)).map(|(_, size)| size).collect();
    assert_eq!(sizes, [4_096]);
}

#[test]
fn a_plan_that_makes_money_from_nothing_is_found_out() {
    let mut ids = PostingIds::new(ReservationId(1));
    let mut posting = |amount| ids.posting((&account(), &usd()), amount, None);
    let (ten, four, six) = (posting(10), posting(4), posting(6));
    let fine = Plan { inputs: vec![ten.clone()], outputs: vec![four.clone(), six], ..Plan::default() };
    assert!(is_balanced(&fine));
    assert!(!is_balanced(&Plan { outputs: vec![four.clone()], ..fine.clone() }));
    let asset = AssetKey { home: account().home, asset: usd() };
    let issued = TotalsChange { asset: asset.clone(), issued: 10, retired: 0, expired: 0 };
    assert!(is_balanced(&Plan { outputs: vec![ten.clone()], totals: vec![issued], ..Plan::default() }));
    let retired = TotalsChange { asset, issued: 0, retired: 6, expired: 0 };
    let change = Plan { inputs: vec![ten], outputs: vec![four], totals: vec![retired], ..Plan::default() };
    assert!(is_balanced(&change));
    let mut nothing = || vec![posting(0)];
    assert!(!is_balanced(&Plan { outputs: nothing(), ..Plan::default() }), "a posting of nothing");
    assert!(is_balanced(&Plan { inputs: nothing(), outputs: nothing(), ..Plan::default() }), "a mark is replaced");
}
