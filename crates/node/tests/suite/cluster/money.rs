//! Credit over time: idempotency keys, plans and expiry through crashes, failovers, snapshots and wrong wall clocks.

use std::collections::BTreeSet;
use std::time::Duration;

use earmark_admission::{Backend as _, EntryKind, EntryQuery, TimeSource as _, WriteAnswer, WriteRequest};
use earmark_core::{
    CarryOver, EXPIRY_SKEW_MS_MAX, GrantTerms, IdempotencyKey, Kind, Operation, Period, Plan, UnixMs, WriteError,
    WriteId,
};

use crate::support::client::{
    START_MS, TestClient, account, definition, issue, namespace, open, path, usd, vault, write_request,
};
use crate::support::sim_cluster::{Settings, SimCluster};

const HOUR_MS: u64 = 3_600_000;
const YEARS_MS: u64 = 10 * 366 * 24 * HOUR_MS;
const DAY: Kind = Kind::Rolling { window_seconds: 86_400 };

fn keyed(key: &str, operations: Vec<Operation>) -> WriteRequest {
    let id = WriteId::Key(IdempotencyKey::new(key).unwrap());
    WriteRequest { id, ..write_request("unused", 1, operations) }
}

fn hourly() -> Operation {
    let plan =
        Plan { asset: usd(), amount: 100, period: Period::Hour, utc_offset_minutes: 0, carry_over: CarryOver::Max(50) };
    Operation::SetPlan { account: account("acme"), plan: Some(plan) }
}

/// The issued amounts of the plan, of which no two are of one period, and the expired amounts.
async fn movements(client: &TestClient) -> (Vec<i128>, Vec<i128>) {
    let page = client.0.entries(path("acme"), EntryQuery::oldest_first(0, 1_000)).await.unwrap();
    let (mut issued, mut expired, mut periods) = (Vec::new(), Vec::new(), BTreeSet::new());
    for entry in page.entries {
        match entry.what {
            EntryKind::Plan { terms, .. } => {
                assert!(periods.insert(terms.expires_at()), "a period was issued twice: {issued:?}");
                issued.push(entry.changes[0].amount);
            }
            EntryKind::Expire(_) => expired.push(-entry.changes[0].amount),
            _ => {}
        }
    }
    let audit = client.0.audit(namespace(), vault()).await.unwrap();
    assert!(audit.balanced, "{audit:?}");
    (issued, expired)
}

/// The leader loses its power around the end of each period, before or after it has issued.
#[tokio::test(start_paused = true)]
async fn a_plan_issues_each_period_once_through_crashes_and_failovers() {
    let mut cluster = SimCluster::of(3, Settings::default()).await;
    let leader = cluster.leader().await;
    cluster.client(leader).write("billing", 1, vec![open("acme"), hourly()]).await;
    for round in 0..8_u64 {
        let leader = cluster.leader().await;
        cluster.advance_ms(HOUR_MS);
        tokio::time::sleep(Duration::from_millis(round * 200)).await;
        cluster.crash(leader, round);
        let next = cluster.leader().await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        if round % 3 == 0 {
            cluster.node(next).snapshot().await.unwrap();
        }
        cluster.start(leader).await;
        let next = cluster.leader().await;
        let (issued, _) = movements(&cluster.client(next)).await;
        assert_eq!(issued.len() as u64, round + 2, "{issued:?}");
    }
    for id in cluster.running() {
        let client = cluster.client(id);
        let (issued, expired) = movements(&client).await;
        assert_eq!((issued, expired.iter().sum::<i128>()), (vec![100; 9], 900 - 150), "node {id}");
        assert_eq!(client.balance_of("acme").await, (150, 0), "node {id}");
    }
    cluster.agree().await;
}

/// A provider repeats its events for days.
#[tokio::test(start_paused = true)]
async fn a_webhook_that_is_delivered_again_after_25_hours_and_a_restart_has_one_effect() {
    let mut cluster = SimCluster::of(3, Settings::default()).await;
    cluster.client(1).write("billing", 1, vec![open("acme")]).await;
    let paid = || keyed("evt_1", vec![issue("acme", 100)]);
    let first = cluster.client(1).try_write(paid()).await.unwrap();
    assert!(matches!(first, WriteAnswer::Committed(_)), "{first:?}");
    for hours in [23, 2, 24] {
        cluster.advance_ms(hours * HOUR_MS);
        for id in cluster.running() {
            cluster.node(id).snapshot().await.unwrap();
            cluster.crash(id, hours);
            cluster.leader().await;
            cluster.start(id).await;
            cluster.leader().await;
        }
        for id in cluster.running() {
            let again = cluster.client(id).try_write(paid()).await.unwrap();
            let is_right =
                if hours == 23 { again == first } else { again == WriteAnswer::Refused(WriteError::KeyCommitted) };
            assert!(is_right, "node {id}: {again:?}");
        }
    }
    assert_eq!(cluster.client(2).balance_of("acme").await, (100, 0));
    cluster.agree().await;
}

/// All wall clocks are ten years ahead: nothing expires and nothing is issued, until they are right again.
#[tokio::test(start_paused = true)]
async fn wall_clocks_ten_years_ahead_expire_and_issue_nothing() {
    let cluster = SimCluster::of(3, Settings::default()).await;
    let leader = cluster.leader().await;
    let client = cluster.client(leader);
    let terms = GrantTerms::new(1, Some(UnixMs::new(START_MS + 2 * HOUR_MS)));
    let grant = Operation::Issue { account: account("acme"), asset: usd(), amount: 7, memo: String::new(), terms };
    client.write("billing", 1, vec![open("acme"), hourly(), grant]).await;
    // Log time does not follow the wall clocks while something is reserved.
    client.put(definition("calls", DAY, 10)).await;
    client.admit(&[("calls", 1)]).await;
    let shift = |ahead: i64| {
        for host in cluster.hosts.values() {
            let wall = host.clock.wall_us() / 1_000;
            host.clock.set_wall(wall.checked_add_signed(ahead).unwrap());
        }
    };
    shift(i64::try_from(YEARS_MS).unwrap());
    for hour in 1..=3 {
        cluster.advance_ms(HOUR_MS);
        tokio::time::sleep(Duration::from_secs(3)).await;
        client.write("billing", 1 + hour, vec![issue("acme", 1)]).await;
        assert_eq!(movements(&client).await, (vec![100], vec![]), "hour {hour}");
        assert!(client.0.stats().is_expiry_waiting, "the alert needs its gauge");
    }
    assert_eq!(client.balance_of("acme").await, (110, 0));
    shift(-i64::try_from(YEARS_MS - EXPIRY_SKEW_MS_MAX + 1_000).unwrap());
    client.write("billing", 5, vec![]).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!client.0.stats().is_expiry_waiting);
    let (issued, expired) = movements(&client).await;
    assert_eq!((issued.len(), expired.iter().sum::<i128>()), (2, 7 + 50), "{issued:?} {expired:?}");
    cluster.agree().await;
}
