//! Labels of completes, on the settlements they make.

use earmark_core::{CompleteOutcome, JournalRecord, Overage, SettleLabels, SettleReason};

use crate::support::bank::{Bank, credit, issue, open};
use crate::support::step::Step;
use crate::support::test_book::rolling;

#[test]
fn the_labels_of_a_complete_are_on_the_settlement_of_each_limit_and_stay() {
    let mut bank = Bank::new();
    bank.commit(vec![open("acme"), issue("acme", "usd", 100)]);
    bank.test.put_active(credit("usd", "acme", 60, Overage::Debt));
    bank.test.put_active(credit("fee", "acme", 60, Overage::Debt));
    bank.test.put_active(rolling("rpm", 9, 60));
    let labels = SettleLabels::new([("model", "gpt-4o"), ("user", "u1")]).unwrap();
    let lease = bank.test.take(&[("usd", 40), ("fee", 5), ("rpm", 1)]);
    drop(bank.test.book.drain_journal());
    let settled = |bank: &mut Bank| -> Vec<(String, SettleReason, SettleLabels)> {
        let of = |record| match record {
            JournalRecord::Settle(settle) => (settle.hold.limit.to_string(), settle.reason, settle.labels),
            other => panic!("no settlement: {other:?}"),
        };
        bank.test.book.drain_journal().into_iter().map(of).collect()
    };
    bank.test.complete_labelled(lease, Vec::new(), labels.clone());
    let [fee, usd] = ["fee", "usd"].map(|limit| (limit.to_owned(), SettleReason::Complete, labels.clone()));
    let mut found = settled(&mut bank);
    found.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(found, [fee, usd]);
    let other = SettleLabels::new([("model", "other")]).unwrap();
    assert_eq!(bank.test.complete_labelled(lease, Vec::new(), other), CompleteOutcome::Before);
    assert_eq!(settled(&mut bank), []);
    // A late charge has them too, and a lease without credit ignores them.
    let late = bank.test.take(&[("usd", 10)]);
    let free = bank.test.take(&[("rpm", 1)]);
    drop(bank.test.book.drain_journal());
    bank.test.advance(61_000);
    bank.test.apply(&Step::Tick);
    drop(bank.test.book.drain_journal());
    bank.test.complete_labelled(late, Vec::new(), labels.clone());
    bank.test.complete_labelled(free, Vec::new(), labels.clone());
    assert_eq!(settled(&mut bank), [("usd".to_owned(), SettleReason::Late, labels)]);
}
