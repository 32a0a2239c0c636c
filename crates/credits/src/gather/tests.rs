use earmark_core::{AccountName, NamespaceName, VaultName};

use super::*;
use crate::lanes::Lanes;
use crate::model::AssetKey;

fn account() -> AccountKey {
    let home = VaultKey {
        namespace: NamespaceName::new("default").unwrap(),
        vault: VaultName::new("main").unwrap(),
    };
    AccountKey { home, account: AccountName::new("acme").unwrap() }
}

fn usd() -> AssetName {
    AssetName::new("usd").unwrap()
}

fn live(amounts: &[i128]) -> Vec<LivePosting> {
    let posting = |(place, amount): (usize, &i128)| LivePosting {
        id: PostingId(place as u128 + 1),
        amount: *amount,
        reserved_by: None,
    };
    amounts.iter().enumerate().map(posting).collect()
}

fn change(change: i128, overdraft: Overdraft) -> Move {
    Move { account: account(), asset: usd(), change, overdraft, is_deposit: true }
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
    let lane = Lanes::default().of(&account());
    let large = live(&[90, 80, 70, 5]);
    let purse = Purse { owed: vec![], small: live(&[1, 2, 3]), large, active: 4 };
    let few = choose(&change(-60, Overdraft::Deny), &purse, &lane, ReservationId(4)).unwrap();
    assert_eq!((inputs(&few), few.output), (vec![80], 20));
    let purse = Purse { active: SPLIT + 3, ..purse };
    let many = choose(&change(-60, Overdraft::Deny), &purse, &lane, ReservationId(3)).unwrap();
    assert_eq!(many.inputs.len(), 1 + 2, "one of them is what pays: {:?}", inputs(&many));
    let all = choose(&change(-200, Overdraft::Deny), &purse, &lane, ReservationId(3)).unwrap();
    assert_eq!((inputs(&all), all.output), (vec![90, 80, 70, 5], 45));
}

/// Of an account with one small posting beside those that calls pay from, each payment swept up two of the latter, and gathering
/// small ones took more than there were: soon few were left, and of sixty-four calls most waited for each other.
#[test]
fn as_many_postings_as_a_deposit_is_split_into_are_left_to_pay_from() {
    let lane = Lanes::default().of(&account());
    let postings = live(&[1, 500, 501, 502]);
    let purse = Purse { owed: vec![], small: postings[..3].to_vec(), large: postings, active: SPLIT + 1 };
    let pays = choose(&change(-60, Overdraft::Deny), &purse, &lane, ReservationId(3)).unwrap();
    assert_eq!(pays.inputs.len(), 2, "{:?}", inputs(&pays));
    assert!(inputs(&pays).contains(&1));
    let many: Vec<i128> = (1..=100).collect();
    let purse = Purse { small: live(&many), active: MERGE_AT, ..Purse::default() };
    let gathers = choose(&change(10, Overdraft::Deny), &purse, &lane, ReservationId(1)).unwrap();
    assert_eq!(gathers.inputs.len(), MERGE_AT - SPLIT);
}

/// Whoever pays waits for the calls before it where there is enough, and asks what there is where there is not.
#[test]
fn what_others_are_at_work_on_counts_as_there() {
    let purse = Purse { owed: live(&[-30]), large: live(&[90, 5]), active: 2, ..Purse::default() };
    for (amount, expected) in [(65, true), (66, false)] {
        assert_eq!(has_enough(&change(-amount, Overdraft::Deny), &purse), expected, "{amount}");
    }
    let more = Purse { active: 3, ..purse };
    assert!(!has_enough(&change(-1, Overdraft::Deny), &more), "a further look may find what is free");
}

#[test]
fn what_is_owed_is_always_taken_and_a_deposit_covers_it_first() {
    let lane = Lanes::default().of(&account());
    let purse = Purse { owed: live(&[-30]), ..Purse::default() };
    let deposit = choose(&change(50, Overdraft::Deny), &purse, &lane, ReservationId(1)).unwrap();
    assert_eq!((inputs(&deposit), deposit.output), (vec![-30], 20));
    let short = choose(&change(-1, Overdraft::Deny), &purse, &lane, ReservationId(1));
    assert_eq!(short.err(), Some(PlanError::Insufficient { missing: 31 }));
    let deeper = choose(&change(-1, Overdraft::Allow), &purse, &lane, ReservationId(1)).unwrap();
    assert_eq!((inputs(&deeper), deeper.output), (vec![-30], -31));
}

#[tokio::test]
async fn a_deposit_into_an_account_of_many_postings_gathers_the_smallest() {
    let lane = Lanes::default().of(&account());
    let _another = lane.pay().await;
    let purse = Purse { small: live(&[1, 2, 3]), active: MERGE_AT, ..Purse::default() };
    let gathers = choose(&change(10, Overdraft::Deny), &purse, &lane, ReservationId(1)).unwrap();
    assert_eq!((inputs(&gathers), gathers.output, gathers.pieces), (vec![1, 2, 3], 16, 1));
    let taken = lane.take(vec![PostingId(2)]).unwrap();
    let others = choose(&change(10, Overdraft::Deny), &purse, &lane, ReservationId(1)).unwrap();
    assert_eq!(inputs(&others), [1, 3], "what another call uses is left alone");
    taken.spend();
    drop(taken);
    let others = choose(&change(10, Overdraft::Deny), &purse, &lane, ReservationId(1)).unwrap();
    assert_eq!(inputs(&others), [1, 3], "and so is what it has consumed");
}

/// Every sixteenth deposit gathered the same thirty-two, whoever came, so that of deposits that came at once all but the first
/// gathered nothing: at a thousand callers the account that was paid grew by a posting with almost every call. And an account
/// whose deposits came seldom, or to a process that was started again before the sixteenth, was never looked at.
#[test]
fn one_deposit_at_a_time_gathers_and_as_many_as_there_were_the_last_time() {
    let lane = Lanes::default().of(&account());
    let turn = |lane: &Lane| lane.turn_to_merge(MERGE_EVERY);
    let (first, size) = turn(&lane).expect("nobody knows what others left");
    assert_eq!(size, 32);
    let waiting = (0..200).filter(|_| turn(&lane).is_some()).count();
    assert_eq!(waiting, 0, "one is at it");
    let many: Vec<i128> = (1..=32).collect();
    let purse = Purse { small: live(&many), active: 2 * size + SPLIT, ..Purse::default() };
    choose(&change(10, Overdraft::Deny), &purse, &lane, ReservationId(1)).unwrap();
    drop(first);
    let (second, size) = turn(&lane).expect("more than enough have come since");
    assert_eq!(size, 64);
    drop(second);
    assert_eq!((0..16).filter(|_| turn(&lane).is_some()).count(), 1);
    lane.found_small(1_000_000);
    let sizes: Vec<usize> = (0..16).filter_map(|_| turn(&lane)).map(|(_, size)| size).collect();
    assert_eq!(sizes, [4_096]);
}

#[test]
fn a_plan_that_makes_money_from_nothing_is_found_out() {
    let mut namer = Namer::new(ReservationId(1));
    let mut posting = |amount| namer.posting((&account(), &usd()), amount, None);
    let (ten, four, six) = (posting(10), posting(4), posting(6));
    let fine = Plan { inputs: vec![ten.clone()], outputs: vec![four.clone(), six], ..Plan::default() };
    assert!(is_balanced(&fine));
    assert!(!is_balanced(&Plan { outputs: vec![four.clone()], ..fine.clone() }));
    let asset = AssetKey { home: account().home, asset: usd() };
    let issued = TotalsChange { asset: asset.clone(), issued: 10, retired: 0 };
    assert!(is_balanced(&Plan { outputs: vec![ten.clone()], totals: vec![issued], ..Plan::default() }));
    let retired = TotalsChange { asset, issued: 0, retired: 6 };
    let change = Plan { inputs: vec![ten], outputs: vec![four], totals: vec![retired], ..Plan::default() };
    assert!(is_balanced(&change));
    assert!(!is_balanced(&Plan { outputs: vec![posting(0)], ..Plan::default() }), "a posting of nothing");
}
