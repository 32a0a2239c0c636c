use super::*;

fn postings(amounts: &[i128]) -> Vec<Posting<usize>> {
    amounts.iter().enumerate().map(|(id, &amount)| Posting { id, amount }).collect()
}

fn check(amounts: &[i128], change: i128, inputs: &[usize], output: Option<i128>) {
    let choice = choose(&postings(amounts), change, Overdraft::Deny).unwrap();
    assert_eq!((choice.inputs.as_slice(), choice.output), (inputs, output), "{amounts:?} {change}");
}

#[test]
fn inputs_are_what_is_owed_then_the_largest_then_a_few_small_ones() {
    check(&[100], -30, &[0], Some(70));
    check(&[100], -100, &[0], None);
    check(&[100, -30], -70, &[1, 0], None);
    check(&[5, 90, 1, 2, 3, 4], -50, &[1, 2, 3, 4], Some(46));
    check(&[10, 20, 30], -45, &[2, 1, 0], Some(15));
    check(&[], 40, &[], Some(40));
    check(&[10], 40, &[], Some(40));
    check(&[10, -30, -5], 40, &[1, 2], Some(5));
    check(&[-30], 30, &[0], None);
    check(&[-30], 10, &[0], Some(-20));
}

#[test]
fn an_owner_with_100_and_minus_30_has_70_to_spend() {
    let refused = choose(&postings(&[100, -30]), -71, Overdraft::Deny);
    assert_eq!(refused, Err(PlanError::Insufficient { missing: 1 }));
    let allowed = choose(&postings(&[100, -30]), -71, Overdraft::Allow).unwrap();
    assert_eq!((allowed.inputs, allowed.output), (vec![1, 0], Some(-1)));
    assert_eq!(after(70, -71, Overdraft::Deny), Err(PlanError::Insufficient { missing: 1 }));
    assert_eq!(after(70, -71, Overdraft::Allow), Ok(-1));
    assert_eq!(after(-30, 10, Overdraft::Deny), Ok(-20));
}

#[test]
fn sums_at_the_ends_of_the_range_are_refused_and_never_wrap() {
    assert_eq!(after(i128::MAX, 1, Overdraft::Allow), Err(PlanError::OutOfRange));
    assert_eq!(after(i128::MIN, -1, Overdraft::Allow), Err(PlanError::OutOfRange));
    let all = postings(&[i128::MIN, -1]);
    assert_eq!(choose(&all, -1, Overdraft::Allow), Err(PlanError::OutOfRange));
    let mut net = Net::default();
    net.add(1, i128::MAX).unwrap();
    assert_eq!(net.add(1, 1), Err(PlanError::OutOfRange));
}

#[test]
fn what_is_consumed_and_what_is_changed_is_what_is_created() {
    let mut random = 7_u64;
    let mut below = |end: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        i128::from((random >> 33) % end)
    };
    for _ in 0..20_000 {
        let amounts: Vec<i128> = (0..below(6)).map(|_| below(40) - 10).filter(|amount| *amount != 0).collect();
        let change = below(81) - 40;
        let overdraft = if below(2) == 0 { Overdraft::Deny } else { Overdraft::Allow };
        let balance: i128 = amounts.iter().sum();
        let choice = choose(&postings(&amounts), change, overdraft);
        match after(balance, change, overdraft) {
            Ok(_) => {
                let choice = choice.unwrap();
                let consumed: i128 = choice.inputs.iter().map(|&input| amounts[input]).sum();
                assert_eq!(consumed + change, choice.output.unwrap_or(0), "{amounts:?} {change}");
                let owed = (0..amounts.len()).filter(|&id| amounts[id] < 0);
                assert!(owed.into_iter().all(|id| choice.inputs.contains(&id)), "{amounts:?} {change}");
            }
            Err(error) => assert_eq!(choice.unwrap_err(), error, "{amounts:?} {change}"),
        }
    }
}
