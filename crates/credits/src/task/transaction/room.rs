//! The counters that a transaction adds to, and the room that they have.

use std::collections::BTreeSet;

use earmark_core::{ASSETS_MAX, AssetName, Operation, WriteError};

use super::TransactionTask;
use crate::model::{AssetKey, Growth, UsageKey, UsageKind};
use crate::saga::{Engine, TaskError};
use crate::store::{Survey, Surveyed};

/// The room for a transaction.
pub(super) struct Room {
    /// The growth of the counters that the identity of the write and its new assets add to.
    growth: Vec<Growth>,
    /// The counter of accounts, and its highest value.
    accounts: (UsageKey, u64),
    /// The number of accounts that the transaction may open.
    pub(super) accounts_left: u64,
    /// The assets that the vault does not have yet.
    pub(super) new_assets: BTreeSet<AssetName>,
    /// The number of assets that the transaction may add.
    pub(super) assets_left: u64,
}

impl Room {
    /// The growth of all counters, in order. `opened` is the number of accounts that the transaction opens.
    pub(super) fn growth(self, opened: usize) -> Vec<Growth> {
        let (key, max) = self.accounts;
        let opened = Growth { key, added: opened as u64, max };
        let mut growth: Vec<Growth> = self.growth.into_iter().chain([opened]).filter(|grown| grown.added > 0).collect();
        growth.sort_by(|a, b| a.key.cmp(&b.key));
        growth
    }
}

impl TransactionTask {
    /// Reads the counters. Returns the refusal of a new client or key that has no room, and `None` if another
    /// transaction has added an asset meanwhile.
    pub(super) async fn room(
        &self,
        engine: &Engine,
        asked: &[AssetKey],
        found: &Surveyed,
    ) -> Result<Option<Result<Room, WriteError>>, TaskError> {
        let mut growth = self.identity_growth(engine, found.client.is_none());
        let unknown = asked.iter().zip(&found.assets).filter(|(_, sums)| sums.is_none());
        let new_assets: BTreeSet<AssetName> = unknown.map(|(key, _)| key.asset.clone()).collect();
        let opens = self.request.operations.iter().any(|each| matches!(each, Operation::OpenAccount { .. }));
        let (namespace, vault) = (&self.home.namespace, Some(self.home.vault.clone()));
        let accounts = UsageKey::of(namespace, UsageKind::Accounts);
        let assets = UsageKey { vault, ..UsageKey::of(namespace, UsageKind::Assets) };
        let mut keys: Vec<UsageKey> = growth.iter().map(|growth| growth.key.clone()).collect();
        if opens || !new_assets.is_empty() {
            keys.extend([accounts.clone(), assets.clone()]);
        }
        let used = if keys.is_empty() { Vec::new() } else { engine.call(engine.store.usage(keys)).await? };
        if growth.iter().zip(&used).any(|(growth, used)| used.saturating_add(growth.added) > growth.max) {
            let is_key = self.request.id.key().is_some();
            return Ok(Some(Err(if is_key { WriteError::TooManyKeys } else { WriteError::TooManyClients })));
        }
        let rest = used.get(growth.len()..).unwrap_or_default();
        let (accounts_used, assets_used) = if let [accounts, assets] = rest { (*accounts, *assets) } else { (0, 0) };
        if !new_assets.is_empty() {
            // An asset that another process adds after this read fails the commit, whose condition is the counter.
            let survey = Survey { assets: asked.to_vec(), ..Survey::default() };
            let again = engine.call(engine.store.survey(survey)).await?.assets;
            if !again.iter().map(Option::is_none).eq(found.assets.iter().map(Option::is_none)) {
                return Ok(None);
            }
            let added = new_assets.len() as u64;
            growth.push(Growth { key: assets, added, max: assets_used.saturating_add(added) });
        }
        Ok(Some(Ok(Room {
            growth,
            accounts: (accounts, self.writer.quotas.accounts),
            accounts_left: self.writer.quotas.accounts.saturating_sub(accounts_used),
            new_assets,
            assets_left: (ASSETS_MAX as u64).saturating_sub(assets_used),
        })))
    }

    /// The growth that a new client or a new key brings.
    fn identity_growth(&self, engine: &Engine, is_new_client: bool) -> Vec<Growth> {
        let (quotas, of) = (&self.writer.quotas, |kind| UsageKey::of(&self.home.namespace, kind));
        let one = |key, max| Growth { key, added: 1, max };
        if self.request.id.key().is_some() {
            return vec![one(of(UsageKind::IdempotencyKeys), quotas.idempotency_keys)];
        }
        if !is_new_client {
            return Vec::new();
        }
        let all = UsageKey { namespace: None, vault: None, kind: UsageKind::Clients };
        vec![one(all, engine.options.clients_max), one(of(UsageKind::Clients), quotas.clients)]
    }
}
