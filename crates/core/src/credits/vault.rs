//! Vaults: the scopes of credit.

use std::ops::Bound;

use super::account::{ACCOUNTS_MAX, Account, AssetId};
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
        let position = self.vaults.get(vault.0 as usize)?.assets.iter().position(|asset| asset.name == *name)?;
        u16::try_from(position).ok().map(AssetId)
    }
}

impl Credits {
    pub(crate) fn vault(&self, namespace: NamespaceId, name: &VaultName) -> Option<VaultId> {
        self.names.get(usize::from(namespace.0))?.get(name).copied()
    }

    /// Adds an asset; `None` if the maximum is reached.
    pub(crate) fn add_asset(&mut self, vault: VaultId, name: &AssetName) -> Option<AssetId> {
        let assets = &mut self.state.vaults.get_mut(vault.0 as usize)?.assets;
        let id = AssetId(assets.len() as u16);
        if assets.len() >= ASSETS_MAX {
            return None;
        }
        assets.push(Asset { name: name.clone(), issued: 0, retired: 0, expired: 0 });
        Some(id)
    }

    /// Removes the asset that was added last. No account has any of it.
    pub(crate) fn pop_asset(&mut self, vault: VaultId) {
        if let Some(vault) = self.state.vaults.get_mut(vault.0 as usize) {
            vault.assets.pop();
        }
    }

    /// The id of a vault, opened if needed; `None` if the maximum number of vaults or accounts is reached.
    pub(crate) fn open_vault(&mut self, namespace: NamespaceId, name: &VaultName) -> Option<VaultId> {
        if let Some(vault) = self.vault(namespace, name) {
            return Some(vault);
        }
        if self.state.accounts.used() >= ACCOUNTS_MAX {
            return None;
        }
        let vault = self.add_vault(Vault { namespace, name: name.clone(), assets: Vec::new() })?;
        let revenue = AccountName::new(AccountName::REVENUE).ok();
        self.add_account(Account { vault, name: revenue, ..Account::default() });
        Some(vault)
    }

    /// Adds a new vault without its revenue account.
    pub(crate) fn add_vault(&mut self, vault: Vault) -> Option<VaultId> {
        if self.state.vaults.len() >= VAULTS_MAX {
            return None;
        }
        let id = VaultId(self.state.vaults.len() as u32);
        let namespace = usize::from(vault.namespace.0);
        if self.names.len() <= namespace {
            self.names.resize_with(namespace.saturating_add(1), Default::default);
        }
        self.names[namespace].insert(vault.name.clone(), id);
        self.state.vaults.push(vault);
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

    /// The number of vaults.
    pub(crate) fn vaults(&self) -> usize {
        self.state.vaults.len()
    }

    /// Removes the vaults beyond the first `len`, each with its revenue account.
    pub(crate) fn truncate_vaults(&mut self, len: usize) {
        while self.state.vaults.len() > len {
            self.pop_account();
            let Some(Vault { namespace, name, .. }) = self.state.vaults.pop() else { return };
            if let Some(names) = self.names.get_mut(usize::from(namespace.0)) {
                names.remove(&name);
            }
        }
    }
}
