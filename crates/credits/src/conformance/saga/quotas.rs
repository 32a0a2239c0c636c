//! Quotas of accounts, clients and idempotency keys.

use std::sync::Arc;

use earmark_admission::{CreditCounts, Credits, WriteAnswer, describe_write_error};
use earmark_core::{ASSETS_MAX, AssetName, ClientId, IdempotencyKey, Operation, WriteError, WriteId};
use futures_util::future::join_all;

use super::process::{Fixture, TestProcess, account, issue, open, options};
use crate::saga::Options;
use crate::store::Store;

const QUOTAS: CreditCounts = CreditCounts { accounts: 5, clients: 4, idempotency_keys: 6 };

fn by_key(name: &str) -> WriteId {
    WriteId::Key(IdempotencyKey::new(name).expect("a valid key"))
}

fn by_client(name: &str) -> WriteId {
    WriteId::Sequence { client: ClientId::new(name).expect("a valid client"), sequence: 1 }
}

impl TestProcess {
    async fn within(&self, id: WriteId, operations: Vec<Operation>) -> Result<(), WriteError> {
        match self.write_within(QUOTAS, id, operations).await.expect("a store that answers") {
            WriteAnswer::Committed(_) => Ok(()),
            WriteAnswer::Refused(error) => Err(error),
        }
    }
}

/// Many writes at two processes use up each quota exactly, and every refusal names the quota.
pub async fn two_processes_use_up_a_quota_and_no_more(stores: [Arc<dyn Store>; 2]) {
    let fixture = Fixture::new(&stores[0]);
    let [one, other] = stores;
    let processes = [fixture.process_on(one, options()).await, fixture.process_on(other, options()).await];
    let opened = join_all((0..16).map(async |number: usize| {
        let name = format!("c-{number}");
        let id = if number.is_multiple_of(4) { by_client(&name) } else { by_key(&name) };
        (number % 4, processes[number % 2].within(id, vec![open(&name)]).await)
    }));
    let opened = opened.await;
    let of = |is_key: bool| {
        let meant = opened.iter().filter(|(kind, answer)| (*kind != 0) == is_key && answer.is_ok());
        meant.count() as u64
    };
    let (by_clients, by_keys) = (of(false), of(true));
    assert_eq!(by_clients + by_keys, QUOTAS.accounts, "{opened:?}");
    for (_, answer) in &opened {
        let is_named = matches!(answer.as_ref().map_err(WriteError::code), Ok(()) | Err("QUOTA_EXCEEDED"));
        assert!(is_named, "{answer:?}");
    }
    let more = join_all((0..16).map(async |number: usize| {
        let name = format!("d-{number}");
        let id = if number < 8 { by_client(&name) } else { by_key(&name) };
        processes[number % 2].within(id, vec![]).await
    }));
    let more = more.await;
    for (answers, before, quota, refusal) in [
        (&more[..8], by_clients, QUOTAS.clients, WriteError::TooManyClients),
        (&more[8..], by_keys, QUOTAS.idempotency_keys, WriteError::TooManyKeys),
    ] {
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count() as u64, quota - before, "{more:?}");
        assert!(answers.iter().all(|answer| answer.is_ok() || *answer == Err(refusal.clone())), "{more:?}");
    }
    let counts = processes[0].credits.counts(vec![fixture.namespace.clone()]).await;
    assert_eq!(counts, Ok(vec![QUOTAS]));
}

/// Regression: accounts, clients of vaults and keys in a database were not counted.
pub async fn a_refusal_by_a_quota_leaves_no_trace(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let process = fixture.process().await;
    let all = (0..QUOTAS.accounts).map(|number| open(&format!("a-{number}"))).collect();
    assert_eq!(process.within(by_client("c-0"), all).await, Ok(()));
    for number in 1..QUOTAS.clients {
        assert_eq!(process.within(by_client(&format!("c-{number}")), vec![]).await, Ok(()));
    }
    for number in 0..QUOTAS.idempotency_keys {
        assert_eq!(process.within(by_key(&format!("k-{number}")), vec![]).await, Ok(()));
    }
    let next = WriteId::Sequence { client: ClientId::new("c-0").expect("a valid client"), sequence: 2 };
    for _ in 0..2 {
        let beyond =
            process.within(next.clone(), vec![issue("a-0", 1), open("one")]).await.map_err(|error| error.code());
        assert_eq!(beyond, Err("QUOTA_EXCEEDED"));
        assert_eq!(process.within(by_client("c-9"), vec![]).await, Err(WriteError::TooManyClients));
        assert_eq!(process.within(by_key("k-9"), vec![]).await, Err(WriteError::TooManyKeys));
    }
    // Existing accounts and clients still work, and a repeat gets its answer.
    assert_eq!(process.within(by_key("k-0"), vec![]).await, Ok(()));
    assert_eq!(process.within(next, vec![issue("a-0", 1)]).await, Ok(()));
    let answer = process.try_write_as("c-9", 1, vec![open("one")]).await;
    assert!(matches!(answer, Ok(WriteAnswer::Committed(_))), "{answer:?}");
    let counts = CreditCounts { accounts: QUOTAS.accounts + 1, clients: QUOTAS.clients + 1, ..QUOTAS };
    assert_eq!(process.credits.counts(vec![fixture.namespace.clone()]).await, Ok(vec![counts]));
    process.assert_balanced("main").await;
}

/// The maximum of all namespaces together.
pub async fn new_clients_beyond_the_maximum_are_refused(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let process = fixture.process_on(Arc::clone(&store), Options { clients_max: 1, ..options() }).await;
    process.write_next(vec![open("acme"), issue("acme", 1)]).await;
    for client in ["b", "c"] {
        let reply = process.try_write_as(client, 1, vec![]).await.expect("a store that answers");
        assert_eq!(reply, WriteAnswer::Refused(WriteError::TooManyClients));
    }
    process.commit(2, vec![issue("acme", 1)]).await;
}

/// An account has a balance for each asset of its vault at most, so the number of assets bounds them.
pub async fn a_vault_gets_no_more_assets_than_in_a_book(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let process = fixture.process().await;
    let of = |number: usize| {
        let asset = AssetName::new(&format!("asset_{number}")).expect("a valid asset");
        let (memo, terms) = (String::new(), earmark_core::GrantTerms::PLAIN);
        Operation::Issue { account: account("acme"), asset, amount: 1, memo, terms }
    };
    process.write_next(vec![open("acme")]).await;
    process.write_next((0..ASSETS_MAX - 2).map(of).collect()).await;
    // Copies of a new asset count once.
    let last = process.last().await;
    let id = |number| by_key(&format!("k-{number}"));
    let copies = (0..4).map(async |number| process.try_write_by(id(number), vec![of(1_000)]).await);
    for copy in join_all(copies).await {
        assert!(matches!(copy, Ok(WriteAnswer::Committed(_))), "{copy:?}");
    }
    let why = process.refuse(last + 1, vec![of(0), of(1_001), of(1_001), of(1_002)]).await;
    assert!(describe_write_error(&why, "").contains("operations[3]"), "{why:?}");
    process.write_next(vec![of(0), of(1_001)]).await;
    assert_eq!(process.refuse(last + 2, vec![of(1_002)]).await.code(), "INVALID");
}
