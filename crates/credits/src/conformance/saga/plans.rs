//! Plans at several processes.

use std::sync::Arc;

use earmark_admission::{Clock, Credits, EntryKind, EntryQuery, WriteAnswer};
use earmark_core::{CarryOver, GrantTerms, Operation, Plan, VaultName};

use super::process::{Fixture, TestProcess, account, grant, hold_of, hourly, open_with, options, retire};
use crate::store::Store;

const ACCOUNTS: [&str; 3] = ["a", "b", "c"];
const HOUR_MS: u64 = 3_600_000;

/// The amounts that the plan of an account issued, with what each carried over, and the amounts that expired.
async fn moved(process: &TestProcess, name: &str) -> (Vec<(i128, i128)>, Vec<i128>) {
    let page = process.credits.entries(process.path(VaultName::MAIN, name), EntryQuery::oldest_first(0, 1_000)).await;
    let (mut issued, mut expired) = (Vec::new(), Vec::new());
    for entry in page.expect("a store that answers").entries {
        match entry.what {
            EntryKind::Plan { carried, .. } => issued.push((entry.changes[0].amount, carried)),
            EntryKind::Expire(_) => expired.push(-entry.changes[0].amount),
            _ => {}
        }
    }
    (issued, expired)
}

/// Two processes that sweep and spend at each end of a period issue and expire it once.
pub async fn two_processes_issue_and_expire_each_period_once(stores: [Arc<dyn Store>; 2]) {
    let fixture = Fixture::new(&stores[0]);
    let [one, other] = stores;
    let processes = [fixture.process_on(one, options()).await, fixture.process_on(other, options()).await];
    let plans =
        [CarryOver::None, CarryOver::Max(30), CarryOver::Max(1_000)].map(|carry_over| Plan { carry_over, ..hourly() });
    let open = ACCOUNTS.iter().zip(&plans).map(|(name, plan)| open_with(name, plan.clone()));
    processes[0].write_next(open.collect()).await;
    fixture.clock.advance_ms(40_000);
    for period in 1..=6_u64 {
        let act = async |process: &TestProcess, client: &str| {
            for name in ACCOUNTS {
                let written = process.try_write_as(&format!("{client}-{name}"), period, vec![retire(name, 20)]).await;
                assert!(matches!(written, Ok(WriteAnswer::Committed(_))), "{written:?}");
            }
        };
        tokio::join!(
            processes[0].maintain(),
            processes[1].maintain(),
            act(&processes[0], "one"),
            act(&processes[1], "other"),
        );
        // The credit carried into the first period of the loop is all that it has.
        let unused = |cap: i128| (0..period).fold(100, |left: i128, _| left.min(cap) + 100 - 40);
        let periods = usize::try_from(period).expect("a few");
        for (name, cap) in ACCOUNTS.iter().zip([0, 30, 1_000]) {
            let (issued, expired) = moved(&processes[0], name).await;
            assert_eq!(issued.len(), periods + 1, "{name} in period {period}: {issued:?}");
            assert!(issued.iter().all(|(amount, _)| *amount == 100), "{name}: {issued:?}");
            assert_eq!(expired.len(), if cap == 1_000 { 0 } else { periods }, "{name} in {period}: {expired:?}");
            assert_eq!(processes[1].balance(name).await, (unused(cap), 0), "{name} in period {period}");
        }
        fixture.clock.advance_ms(HOUR_MS);
    }
    processes[1].assert_balanced("main").await;
}

/// A plan of an account with 64 grants waits for room, and keeps what it will carry over. Nobody can spend that
/// meanwhile.
pub async fn a_plan_without_room_waits_and_keeps_what_it_carries_over(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let process = fixture.process().await;
    process.write_next(vec![open_with("acme", hourly())]).await;
    let lease = process.holds(&[hold_of("acme", 40)]).await;
    let far = fixture.clock.now().log.plus_ms(100 * HOUR_MS);
    let more = |number| grant("acme", 1, GrantTerms::new(1, Some(far.plus_ms(number))));
    process.write_next((1..64).map(more).collect()).await;
    fixture.clock.advance_ms(40_000);
    process.maintain().await;
    assert_eq!(moved(&process, "acme").await, (vec![(100, 0)], vec![]), "it waits");
    assert_eq!(process.refuse(3, vec![retire("acme", 64)]).await.code(), "INSUFFICIENT_CREDIT");
    assert_eq!(process.refuse(3, vec![more(99)]).await.code(), "INVALID");
    process.settle(lease, &[("acme", 15)]).await;
    assert_eq!(moved(&process, "acme").await, (vec![(100, 0), (100, 85)], vec![]), "the settlement makes room");
    assert_eq!(process.balance("acme").await, (63 + 185, 0));
    // Without its plan the credit expires.
    process.holds(&[hold_of("acme", 100)]).await;
    fixture.clock.advance_ms(HOUR_MS);
    let last = process.last().await;
    process.commit(last + 1, vec![Operation::SetPlan { account: account("acme"), plan: None }]).await;
    process.maintain().await;
    process.assert_balanced("main").await;
}
