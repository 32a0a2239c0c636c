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
    /// The first vault with this number or a higher one.
    #[must_use]
    pub fn vault_from(&self, vault: VaultId) -> Option<(VaultId, FrozenVault<'_>)> {
        let (&id, found) = self.credits.vaults.range(vault..).next()?;
        let namespace_name = self.state.namespaces.get(usize::from(found.namespace.0))?;
        Some((id, FrozenVault { namespace: found.namespace, namespace_name, name: &found.name }))
    }

    /// The assets of a vault, ordered by their ids.
    pub fn assets(&self, vault: VaultId) -> impl Iterator<Item = FrozenAsset<'_>> {
        let assets = self.credits.vaults.get(&vault).map_or(&[][..], |found| &found.assets);
        assets.iter().map(|asset| FrozenAsset {
            name: &asset.name,
            issued: asset.issued,
            retired: asset.retired,
            expired: asset.expired,
        })
    }

    /// The first account with this number or a higher one.
    #[must_use]
    pub fn account_from(&self, account: AccountId) -> Option<(AccountId, FrozenAccount<'_>)> {
        let named = |slot: u32| Some((slot, self.credits.accounts.get(slot).name.as_ref()?));
        let (slot, name) = (account.0..self.credits.accounts.used()).find_map(named)?;
        let vault = self.credits.accounts.get(slot).vault;
        let slots = self.credits.balance_slots(slot).map(|slot| self.credits.balances.get(slot));
        let mut amounts: Vec<_> = slots.map(|balance| (balance.asset, self.credits.whole(balance))).collect();
        amounts.sort_unstable_by_key(|(asset, _)| *asset);
        Some((AccountId(slot), FrozenAccount { vault, name, amounts }))
    }

    /// Which parts of the state other systems keep.
    #[must_use]
    pub fn external_parts(&self) -> ExternalParts {
        self.state.external.parts
    }
}
