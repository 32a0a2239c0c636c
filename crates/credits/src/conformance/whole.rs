//! Sagas whose steps all come in one list, which a store may make at once.

use std::sync::Arc;

use earmark_core::Standing;

use super::clerk::{
    Clerk, NOW, account, again, amounts, change, client, entry, held, lease, moving, opening, posting,
    record, taking, ticket, usd_key, vault,
};
use super::sample::bodies;
use super::together::at_once;
use crate::model::{ClaimKind, Entry, Need, Plan, PostingState, Ticket, TotalsChange, Turn};
use crate::store::{AssetSums, Change, FindRecord, Store, Survey};

impl Clerk<'_> {
    /// Sends all steps of a saga that claims nothing, and says whether it happened. Whichever way it ended, nothing is left
    /// under way.
    async fn happens(&self, saga: Ticket, plan: &Arc<Plan>) -> bool {
        let of = || Arc::clone(plan);
        let (takes, makes) = (!plan.inputs.is_empty(), !plan.outputs.is_empty());
        let mut steps = vec![(Change::Begin(record(saga, plan)), 1)];
        steps.extend(takes.then(|| (Change::Reserve(saga, of()), plan.inputs.len())));
        let decision = steps.len();
        steps.push((Change::Decide(saga, of()), 1));
        steps.extend(takes.then(|| (Change::Finalize(saga, of()), plan.inputs.len())));
        steps.extend(makes.then(|| (Change::Create(saga, of()), plan.outputs.len())));
        steps.extend([(Change::Record(saga, of()), plan.entries.len()), (Change::End(saga), 1)]);
        let (steps, expected): (Vec<Change>, Vec<usize>) = steps.into_iter().unzip();
        let counts = self.all(steps).await;
        let happened = counts[decision] == 1;
        if happened {
            assert!(counts.iter().zip(expected).all(|(count, all)| *count == all as u64), "{counts:?}");
        } else {
            assert!(counts[decision..].iter().all(|count| *count == 0), "{counts:?}");
            if counts[0] == 1 {
                self.give_up(saga).await;
            }
        }
        let stored = self.0.record(FindRecord::Gate(saga.gate)).await.expect("a store that answers");
        assert!(stored.is_none_or(|stored| stored.record.ticket.rid != saga.rid), "its record is gone");
        happened
    }
}

/// What is written by one list is what single steps write.
pub async fn a_saga_in_one_list_is_written_as_by_steps(store: &dyn Store) {
    let clerk = Clerk(store);
    clerk.opens(&["acme", "bob"]).await;
    let inputs = clerk.issues("acme", &[5, 6]).await;
    let (saga, of_lease) = (ticket(), lease());
    let here = bodies().into_iter().map(|body| Entry { body, ..entry(vec![change("acme", -7, 4)]) });
    let elsewhere = Entry { home: vault("eu"), ..entry(vec![change("zoe", i128::MIN, i128::MAX)]) };
    let entries: Vec<Entry> = here.chain([elsewhere, entry(vec![])]).collect();
    let hold = held(posting(saga, 1, "acme", 4), &of_lease, NOW.plus_ms(60_000));
    let plan = Arc::new(Plan {
        inputs: inputs.clone(),
        outputs: vec![posting(saga, 0, "bob", 7), hold.clone()],
        entries: entries.clone(),
        needs: vec![
            Need { account: account("acme"), spends: true },
            Need { account: account("bob"), spends: false },
        ],
        totals: vec![TotalsChange { asset: usd_key(), issued: i128::MAX, retired: 3 }],
        turn: Some(Turn { client: client("billing"), sequence: 1 }),
        ..Plan::default()
    });
    assert!(clerk.happens(saga, &plan).await);
    let stored = store.entries(saga.gate).await.expect("a store that answers");
    assert_eq!(stored.iter().map(|stored| Entry::clone(&stored.entry)).collect::<Vec<_>>(), entries);
    let numbers: Vec<u64> = stored.iter().map(|stored| stored.number).collect();
    let (last, first) = (numbers[numbers.len() - 1], numbers[0]);
    assert_eq!((numbers[numbers.len() - 2], last - first), (1, entries.len() as u64 - 2), "{numbers:?}");
    assert_eq!((clerk.large("acme").await, clerk.large("bob").await), (vec![], vec![7]));
    assert_eq!(store.held(of_lease).await, Ok(vec![(hold, PostingState::Active)]));
    let survey = Survey { assets: vec![usd_key()], client: Some(client("billing")), ..Survey::default() };
    let found = store.survey(survey).await.expect("a store that answers");
    // What was issued before is counted up to the most that there can be.
    let sums = AssetSums { issued: i128::MAX, retired: 3 };
    assert_eq!((found.assets, found.last_sequence), (vec![Some(sums)], Some(1)));
    let next = clerk.does(Plan::clone(&taking(&[]))).await;
    assert_eq!(store.entries(next.gate).await.expect("a store that answers")[0].number, last + 1);
    assert!(!clerk.happens(again(saga), &plan).await, "it happened");
    assert_eq!(store.entries(saga.gate).await, Ok(stored));
}

/// Each condition of each step, by itself: what is in the way of one is in the way of all, and nothing is changed.
pub async fn a_saga_in_one_list_happens_only_as_by_steps(store: &dyn Store) {
    let clerk = Clerk(store);
    clerk.opens(&["open", "cold", "gone", "busy", "going"]).await;
    let claim = |claims| Plan { claims, ..Plan::clone(&taking(&[])) };
    let freeze = |name| moving(name, ClaimKind::Changing, Standing::Open, Standing::Frozen);
    let close = |name| moving(name, ClaimKind::Closing, Standing::Open, Standing::Closed);
    clerk.does(claim(vec![freeze("cold"), close("gone")])).await;
    clerk.ready(claim(vec![freeze("busy"), close("going"), opening("coming")])).await;
    let needing = |name, spends| {
        let needs =
            vec![Need { account: account("open"), spends: true }, Need { account: account(name), spends }];
        Arc::new(Plan { needs, ..Plan::clone(&taking(&[])) })
    };
    for (name, pays, spends) in [
        ("cold", true, false),
        ("busy", true, true),
        ("gone", false, false),
        ("going", false, false),
        ("coming", false, false),
        ("nobody", false, false),
    ] {
        assert_eq!(clerk.happens(ticket(), &needing(name, false)).await, pays, "{name}");
        assert_eq!(clerk.happens(ticket(), &needing(name, true)).await, spends, "{name}");
    }
    let turn = |sequence| {
        let turn = Some(Turn { client: client("billing"), sequence });
        Arc::new(Plan { turn, ..Plan::clone(&taking(&[])) })
    };
    for (sequence, expected) in
        [(0, false), (2, false), (u64::MAX, false), (1, true), (1, false), (3, false), (2, true)]
    {
        assert_eq!(clerk.happens(ticket(), &turn(sequence)).await, expected, "{sequence}");
    }
    let (under_way, _) = clerk.ready(Plan::clone(&turn(3))).await;
    assert!(!clerk.happens(ticket(), &turn(3)).await, "its client has a saga under way");
    assert!(!clerk.happens(again(under_way), &taking(&[])).await, "its gate has a saga under way");
    clerk.give_up(under_way).await;
    assert!(clerk.happens(again(under_way), &turn(3)).await);

    let free = clerk.issues("open", &[1, 2]).await;
    let (taken, _) = clerk.ready(Plan::clone(&taking(&free[..1]))).await;
    assert!(!clerk.happens(ticket(), &taking(&free)).await, "one is reserved");
    clerk.give_up(taken).await;
    let unknown = [free.clone(), vec![posting(ticket(), 0, "open", 9)]].concat();
    assert!(!clerk.happens(ticket(), &taking(&unknown)).await, "one is not there");
    assert_eq!(amounts(&clerk.purse("open").await.large), [2, 1], "what was refused took nothing");
    assert!(clerk.happens(ticket(), &taking(&free)).await);
    assert!(!clerk.happens(ticket(), &taking(&free)).await, "both are consumed");
}

/// Those that can happen do, whatever else comes in the same moment; those that want the same are not all refused.
pub async fn of_many_sagas_in_one_list_each_happens_or_not(store: &dyn Store) {
    let clerk = &Clerk(store);
    clerk.opens(&["acme"]).await;
    let postings = &clerk.issues("acme", &[1; 8]).await;
    let first = store.entries(clerk.does(Plan::clone(&taking(&[]))).await.gate).await;
    let first = first.expect("a store that answers")[0].number + 1;
    let gate = &ticket();
    let happened = at_once(|place| async move {
        let (saga, inputs) = match place % 3 {
            // Two want each posting, one of them with what is not there; others want the same gate.
            0 => (ticket(), vec![postings[place / 3].clone()]),
            1 => (ticket(), vec![postings[place / 3].clone(), posting(ticket(), 0, "acme", 1)]),
            _ => (again(*gate), vec![]),
        };
        let outputs = vec![posting(saga, 0, "acme", 10)];
        let plan = Arc::new(Plan { outputs, ..Plan::clone(&taking(&inputs)) });
        (place % 3, saga, clerk.happens(saga, &plan).await)
    })
    .await;
    let count = |kind| happened.iter().filter(|(of, _, happened)| *of == kind && *happened).count();
    assert_eq!((count(0), count(1), count(2)), (8, 0, 1), "{happened:?}");
    let mut numbers = Vec::new();
    for (_, saga, _) in happened.iter().filter(|(.., happened)| *happened) {
        let stored = store.entries(saga.gate).await.expect("a store that answers");
        numbers.extend(stored.iter().map(|stored| stored.number));
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (first..first + 9).collect::<Vec<_>>());
    assert_eq!(clerk.purse("acme").await.active, 9);
}
