//! Writes with idempotency keys: each key once, from any caller that repeats it.

use std::sync::Arc;

use earmark_core::{Actor, IdempotencyKey, KEY_RESULTS_MS, Operation, Principal, Receipt, WriteError, WriteId};

use super::Harness;
use super::credit_driver::{MAIN, issue, open, open_vault, path, write_request};
use super::driver::Driver;
use crate::credit_lists::EntryQuery;
use crate::writes::{EntryKind, WriteAnswer, WriteRequest};

pub(super) fn keyed(scope: Option<&str>, key: &str, operations: Vec<Operation>) -> WriteRequest {
    let key = IdempotencyKey::new(key).expect("a case uses valid keys");
    WriteRequest { id: WriteId::Key(key), ..write_request(scope, "unused", 1, operations) }
}

impl<H: Harness> Driver<'_, H> {
    async fn send_keyed(&self, request: WriteRequest) -> Result<Arc<Receipt>, WriteError> {
        match self.0.backend().write(Principal::System, request).await.expect("a backend that answers") {
            WriteAnswer::Committed(receipt) => Ok(receipt),
            WriteAnswer::Refused(error) => Err(error),
        }
    }
}

/// A webhook that is delivered again has one effect: for a day with the same answer, then with a refusal.
pub async fn a_write_with_a_key_is_applied_once(harness: &impl Harness) {
    let driver = Driver(harness);
    let paid = || keyed(MAIN, "evt_1", vec![open("acme"), issue("acme", 100)]);
    let first = driver.send_keyed(paid()).await.expect("a new key");
    assert_eq!((first.sequence, first.results.len(), first.actor.as_str()), (None, 2, "system:test"));
    let (a, b) = tokio::join!(driver.send_keyed(paid()), driver.send_keyed(paid()));
    assert_eq!((a.as_ref(), b.as_ref()), (Ok(&first), Ok(&first)));
    harness.advance_ms(KEY_RESULTS_MS - 60_000).await;
    assert_eq!(driver.send_keyed(paid()).await, Ok(first));
    harness.advance_ms(60_000).await;
    for _ in 0..2 {
        assert_eq!(driver.send_keyed(paid()).await, Err(WriteError::KeyCommitted));
        harness.advance_ms(60 * 60 * 1_000).await;
    }
    assert_eq!(driver.usd_of("main", "acme").await, 100);
}

/// Copies that arrive together are one write.
pub async fn copies_of_a_write_with_a_key_at_once_are_one_write(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.commit(MAIN, 1, vec![open("acme")]).await;
    let copy = || driver.send_keyed(keyed(MAIN, "evt_1", vec![issue("acme", 7)]));
    let (a, b, c) = tokio::join!(copy(), copy(), copy());
    assert!(a.is_ok());
    assert_eq!((&a, &b), (&b, &c));
    assert_eq!(driver.usd_of("main", "acme").await, 7);
}

/// A key stands for one content and one actor; other scopes have keys of their own.
pub async fn a_key_with_other_content_or_another_actor_is_refused(harness: &impl Harness) {
    let driver = Driver(harness);
    let opened = keyed(MAIN, "evt_1", vec![open("acme")]);
    driver.send_keyed(opened.clone()).await.expect("a new key");
    assert_eq!(driver.send_keyed(keyed(MAIN, "evt_1", vec![open("bob")])).await, Err(WriteError::KeyReused));
    let thief = WriteRequest { actor: Actor::new("client:thief").expect("a valid actor"), ..opened };
    assert_eq!(driver.send_keyed(thief).await, Err(WriteError::KeyReused));
    driver.send_keyed(keyed(None, "evt_1", vec![open_vault("eu")])).await.expect("another scope");
    driver.send_keyed(keyed(Some("eu"), "evt_1", vec![open("acme")])).await.expect("another scope");
}

/// A refused write leaves its key free.
pub async fn a_refused_write_leaves_its_key_free(harness: &impl Harness) {
    let driver = Driver(harness);
    let paid = || keyed(MAIN, "evt_1", vec![issue("acme", 5)]);
    assert_eq!(driver.send_keyed(paid()).await, Err(WriteError::AccountNotFound { operation: 0 }));
    driver.send_keyed(keyed(MAIN, "evt_0", vec![open("acme")])).await.expect("a new key");
    driver.send_keyed(paid()).await.expect("a key that is free");
    let page = driver.0.backend().entries(path("main", "acme"), EntryQuery::oldest_first(0, 10)).await;
    let page = page.expect("an account that exists");
    let key = page.entries.iter().find_map(|entry| match &entry.what {
        EntryKind::Transaction { id, .. } => id.key().map(ToString::to_string),
        _ => None,
    });
    assert_eq!(key.as_deref(), Some("evt_1"));
}
