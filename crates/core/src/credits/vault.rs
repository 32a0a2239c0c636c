//! Vaults: the scopes of credit.

use std::ops::Bound;

use super::account::{Account, AssetId};
use super::{Credits, State};
use crate::book::{NamespaceId, VaultId};
use crate::id::{AccountName, AssetName, VaultName};

/// The maximum number of vaults.
pub const VAULTS_MAX: usize = 1 << 16;
/// The maximum number of assets in a vault.
pub const ASSETS_MAX: usize = 256;

/// A vault and its assets. Its accounts are in one table with those of all vaults.
#[derive(Clone, Debug)]
pub(crate) struct Vault {
    pub(crate) namespace: NamespaceId,
    pub(crate) name: VaultName,
    /// The number of its accounts, the revenue account included.
    pub(crate) accounts: u32,
    /// In the order in which they were added.
    pub(crate) assets: Vec<Asset>,
}

/// An asset with its totals. Issued minus retired and expired equals the sum of all balances.
#[derive(Clone, Debug)]
pub(crate) struct Asset {
    pub(crate) name: AssetName,
    pub(crate) issued: i128,
    pub(crate) retired: i128,
    pub(crate) expired: i128,
}

impl State {
    pub(crate) fn asset(&self, vault: VaultId, name: &AssetName) -> Option<AssetId> {
        let position = self.vaults.get(&vault)?.assets.iter().position(|asset| asset.name == *name)?;
        u16::try_from(position).ok().map(AssetId)
    }

    /// The number of the next vault; `None` if all numbers are used up.
    fn next_vault(&self) -> Option<VaultId> {
        (self.vaults_created < u32::MAX).then_some(VaultId(self.vaults_created))
    }
}

impl Credits {
    pub(crate) fn vault(&self, namespace: NamespaceId, name: &VaultName) -> Option<VaultId> {
        self.names.get(usize::from(namespace.0))?.get(name).copied()
    }

    /// Adds an asset; `None` if the maximum is reached.
    pub(crate) fn add_asset(&mut self, vault: VaultId, name: &AssetName) -> Option<AssetId> {
        let assets = &mut self.state.vaults.get_mut(&vault)?.assets;
        let id = AssetId(assets.len() as u16);
        if assets.len() >= ASSETS_MAX {
            return None;
        }
        assets.push(Asset { name: name.clone(), issued: 0, retired: 0, expired: 0 });
        Some(id)
    }

    /// Removes the asset that was added last. No account has any of it.
    pub(crate) fn pop_asset(&mut self, vault: VaultId) {
        if let Some(vault) = self.state.vaults.get_mut(&vault) {
            vault.assets.pop();
        }
    }

    /// The id of a vault, opened if needed; `None` if the maximum number of vaults or accounts is reached.
    pub(crate) fn open_vault(&mut self, namespace: NamespaceId, name: &VaultName) -> Option<VaultId> {
        if let Some(vault) = self.vault(namespace, name) {
            return Some(vault);
        }
        if self.account_room() == 0 {
            return None;
        }
        let id = self.state.next_vault()?;
        let vault = self.add_vault(id, Vault { namespace, name: name.clone(), accounts: 0, assets: Vec::new() })?;
        let revenue = AccountName::new(AccountName::REVENUE).ok();
        self.add_account(Account { vault, name: revenue, ..Account::default() });
        Some(vault)
    }

    /// Adds a new vault without its revenue account. Its number is higher than that of any vault before; `None` if the
    /// maximum number of vaults is reached.
    pub(crate) fn add_vault(&mut self, id: VaultId, vault: Vault) -> Option<VaultId> {
        if self.state.vaults.len() >= VAULTS_MAX {
            return None;
        }
        self.state.vaults_created = id.0.saturating_add(1);
        let namespace = usize::from(vault.namespace.0);
        if self.names.len() <= namespace {
            self.names.resize_with(namespace.saturating_add(1), Default::default);
        }
        self.names[namespace].insert(vault.name.clone(), id);
        self.state.vaults.insert(id, vault);
        Some(id)
    }

    /// The names of a namespace's vaults after a name, in order.
    pub(crate) fn vault_names(
        &self,
        namespace: NamespaceId,
        after: Option<&VaultName>,
    ) -> impl Iterator<Item = &VaultName> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self.names.get(usize::from(namespace.0)).into_iter();
        names.flat_map(move |names| names.range((from, Bound::Unbounded)).map(|(name, _)| name))
    }

    /// The number of vaults of a namespace.
    pub(crate) fn vaults_of(&self, namespace: NamespaceId) -> u64 {
        self.names.get(usize::from(namespace.0)).map_or(0, |names| names.len() as u64)
    }

    /// Whether a vault was never used: it has its revenue account only, and never had an asset.
    pub(crate) fn is_unused(&self, vault: VaultId) -> bool {
        self.state.vaults.get(&vault).is_some_and(|vault| vault.accounts <= 1 && vault.assets.is_empty())
    }

    /// Removes an unused vault and its revenue account. Its number stays used.
    pub(crate) fn remove_vault(&mut self, vault: VaultId) {
        debug_assert!(self.is_unused(vault), "a vault with accounts or assets is removed");
        let revenue = AccountName::new(AccountName::REVENUE).ok();
        if let Some(slot) = revenue.and_then(|revenue| self.account(vault, &revenue)) {
            self.remove_account(slot);
        }
        let Some(Vault { namespace, name, .. }) = self.state.vaults.remove(&vault) else { return };
        if let Some(names) = self.names.get_mut(usize::from(namespace.0)) {
            names.remove(&name);
        }
    }

    /// Removes the vaults from number `first` on, which were opened last, and frees their numbers.
    pub(crate) fn undo_vaults(&mut self, first: u32) {
        while let Some((&vault, _)) = self.state.vaults.last_key_value().filter(|(vault, _)| vault.0 >= first) {
            self.remove_vault(vault);
        }
        self.state.vaults_created = first;
    }
}
