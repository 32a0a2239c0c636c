//! Quotas of what a writer makes in vaults.

use std::collections::BTreeMap;

use earmark_core::{Principal, QuotaKind, SetQuotas, WriteError};

use super::Harness;
use super::credit_driver::{MAIN, issue, open, write_request};
use super::driver::{Driver, namespace};
use super::write_keys::keyed;
use crate::backend::Answer;
use crate::composed::all;
use crate::writes::{WriteAnswer, WriteRequest};

const KINDS: [QuotaKind; 3] = [QuotaKind::Accounts, QuotaKind::Clients, QuotaKind::IdempotencyKeys];

impl<H: Harness> Driver<'_, H> {
    async fn used(&self) -> [u64; 3] {
        let quotas = self.0.backend().quotas(namespace()).await.expect("a backend that answers").expect("a namespace");
        KINDS.map(|kind| quotas.iter().find(|usage| usage.kind == kind).expect("a quota that is enforced").used)
    }

    async fn set_quotas(&self, quotas: [u64; 3]) {
        let quotas: BTreeMap<QuotaKind, u64> = KINDS.into_iter().zip(quotas).collect();
        let command = SetQuotas { namespace: namespace(), quotas };
        self.0.backend().set_quotas(Principal::System, command).await.expect("quotas that can be set");
    }

    async fn sends(&self, request: WriteRequest) -> Result<(), WriteError> {
        match self.0.backend().write(Principal::System, request).await.expect("a backend that answers") {
            WriteAnswer::Committed(_) => Ok(()),
            WriteAnswer::Refused(error) => Err(error),
        }
    }
}

fn full(operation: usize) -> Result<(), WriteError> {
    Err(WriteError::QuotaExceeded { operation: Some(operation), kind: QuotaKind::Accounts })
}

/// Accounts, clients and idempotency keys are counted and refused by name, wherever credit is kept.
pub async fn a_namespace_gets_no_accounts_clients_or_keys_beyond_its_quotas(harness: &impl Harness) {
    if !harness.enforces_credit_quotas() {
        return;
    }
    let driver = Driver(harness);
    driver.commit(MAIN, 1, vec![open("acme"), issue("acme", 9)]).await;
    let [accounts, clients, keys] = driver.used().await;
    assert_eq!((accounts, clients, keys), (2, 1, 0), "`revenue` is an account");
    driver.set_quotas([accounts + 1, clients + 1, keys + 1]).await;
    let by = |client: &str, sequence, operations| driver.sends(write_request(MAIN, client, sequence, operations));
    assert_eq!(by("billing", 2, vec![open("bob"), open("carl")]).await, full(1));
    assert_eq!(by("billing", 2, vec![open("bob")]).await, Ok(()));
    assert_eq!(by("billing", 3, vec![issue("acme", 1), open("carl")]).await, full(1));
    assert_eq!(by("billing", 3, vec![open("bob")]).await, Err(WriteError::Conflict { operation: 0 }));
    assert_eq!(by("second", 1, vec![]).await, Ok(()));
    assert_eq!(by("third", 1, vec![issue("acme", 1)]).await, Err(WriteError::TooManyClients));
    assert_eq!(driver.sends(keyed(MAIN, "evt_1", vec![issue("acme", 1)])).await, Ok(()));
    assert_eq!(driver.sends(keyed(MAIN, "evt_2", vec![issue("acme", 1)])).await, Err(WriteError::TooManyKeys));
    assert_eq!(driver.used().await, [accounts + 1, clients + 1, keys + 1]);
    // Existing clients and keys still work.
    assert_eq!(driver.sends(keyed(MAIN, "evt_1", vec![issue("acme", 1)])).await, Ok(()), "a repeat");
    assert_eq!(by("second", 2, vec![issue("acme", 1)]).await, Ok(()));
    assert_eq!(driver.usd_of("main", "acme").await, 11);
    // A refused write left its sequence or key free.
    driver.set_quotas([accounts + 2, clients + 2, keys + 2]).await;
    assert_eq!(by("billing", 3, vec![issue("acme", 1), open("carl")]).await, Ok(()));
    assert_eq!(by("third", 1, vec![issue("acme", 1)]).await, Ok(()));
    assert_eq!(driver.sends(keyed(MAIN, "evt_2", vec![issue("acme", 1)])).await, Ok(()));
    assert_eq!(driver.used().await, [accounts + 2, clients + 2, keys + 2]);
}

/// Concurrent writes use up a quota exactly.
pub async fn of_many_writes_at_once_as_many_commit_as_quotas_allow(harness: &impl Harness) {
    if !harness.enforces_credit_quotas() {
        return;
    }
    let driver = &Driver(harness);
    driver.commit(MAIN, 1, vec![open("acme")]).await;
    let [accounts, clients, keys] = driver.used().await;
    driver.set_quotas([accounts + 3, clients + 4, keys + 5]).await;
    let send = |number| -> Answer<'_, Result<(), WriteError>> {
        let name = format!("n-{number}");
        let request = match number % 3 {
            0 => keyed(MAIN, &name, vec![open(&name)]),
            1 => keyed(MAIN, &name, vec![]),
            _ => write_request(MAIN, &name, 1, vec![]),
        };
        Box::pin(driver.sends(request))
    };
    let answers = all((0..24).map(send).collect()).await;
    let of = |kind: usize| answers.iter().skip(kind).step_by(3).filter(|answer| answer.is_ok()).count() as u64;
    let (opened, keyed_only, by_clients) = (of(0), of(1), of(2));
    assert!(opened <= 3, "{answers:?}");
    assert_eq!((opened + keyed_only, by_clients), (5, 4), "{answers:?}");
    assert_eq!(driver.used().await, [accounts + opened, clients + 4, keys + 5]);
}
