//! The credit of a frozen Book, by vault and account.

use super::Frozen;
use crate::book::{ExternalParts, NamespaceId, VaultId};
use crate::credits::{AccountId, AssetId};
use crate::id::{AccountName, AssetName, NamespaceName, VaultName};

/// A vault of a frozen Book.
#[derive(Clone, Copy, Debug)]
pub struct FrozenVault<'a> {
    /// Its namespace.
    pub namespace: NamespaceId,
    /// The name of its namespace.
    pub namespace_name: &'a NamespaceName,
    /// Its name.
    pub name: &'a VaultName,
}

/// The counters of an asset in a vault.
#[derive(Clone, Copy, Debug)]
pub struct FrozenAsset<'a> {
    /// The asset.
    pub name: &'a AssetName,
    /// The amount ever issued.
    pub issued: i128,
    /// The amount ever retired.
    pub retired: i128,
    /// The amount that ever expired.
    pub expired: i128,
}

/// An account of a frozen Book.
#[derive(Clone, Debug)]
pub struct FrozenAccount<'a> {
    /// Its vault.
    pub vault: VaultId,
    /// Its name.
    pub name: &'a AccountName,
    /// Its whole amount per asset, held amounts included, ordered by asset.
    pub amounts: Vec<(AssetId, i128)>,
}

impl Frozen {
    /// A vault; `None` after the last one.
    #[must_use]
    pub fn vault(&self, vault: VaultId) -> Option<FrozenVault<'_>> {
        let found = self.credits.vaults.get(vault.0 as usize)?;
        let namespace_name = self.state.namespaces.get(usize::from(found.namespace.0))?;
        Some(FrozenVault { namespace: found.namespace, namespace_name, name: &found.name })
    }

    /// The assets of a vault, ordered by their ids.
    pub fn assets(&self, vault: VaultId) -> impl Iterator<Item = FrozenAsset<'_>> {
        let assets = self.credits.vaults.get(vault.0 as usize).map_or(&[][..], |found| &found.assets);
        assets.iter().map(|asset| FrozenAsset {
            name: &asset.name,
            issued: asset.issued,
            retired: asset.retired,
            expired: asset.expired,
        })
    }

    /// An account; `None` after the last one.
    #[must_use]
    pub fn account(&self, account: AccountId) -> Option<FrozenAccount<'_>> {
        if account.0 >= self.credits.accounts.used() {
            return None;
        }
        let found = self.credits.accounts.get(account.0);
        let slots = self.credits.balance_slots(account.0).map(|slot| self.credits.balances.get(slot));
        let mut amounts: Vec<_> = slots.map(|balance| (balance.asset, self.credits.whole(balance))).collect();
        amounts.sort_unstable_by_key(|(asset, _)| *asset);
        Some(FrozenAccount { vault: found.vault, name: found.name.as_ref()?, amounts })
    }

    /// Which parts of the state other systems keep.
    #[must_use]
    pub fn external_parts(&self) -> ExternalParts {
        self.state.external.parts
    }
}
