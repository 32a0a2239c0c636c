//! Vaults: the scopes of credit.

use super::Credits;
use crate::book::{NamespaceId, VaultId};
use crate::id::VaultName;

/// The most vaults.
pub const VAULTS_MAX: usize = 1 << 16;

#[derive(Clone, Debug)]
pub(crate) struct Vault {
    pub(crate) namespace: NamespaceId,
    pub(crate) name: VaultName,
}

impl Credits {
    pub(crate) fn vault(&self, namespace: NamespaceId, name: &VaultName) -> Option<VaultId> {
        self.names.get(&(namespace, name.clone())).copied()
    }

    /// The vault of this name, opened if it was not; `None` if there are as many as there may be.
    pub(crate) fn open_vault(&mut self, namespace: NamespaceId, name: &VaultName) -> Option<VaultId> {
        if let Some(vault) = self.vault(namespace, name) {
            return Some(vault);
        }
        if self.state.vaults.len() >= VAULTS_MAX {
            return None;
        }
        let vault = VaultId(self.state.vaults.len() as u32);
        self.state.vaults.push(Vault { namespace, name: name.clone() });
        self.names.insert((namespace, name.clone()), vault);
        Some(vault)
    }

    /// How many vaults there are.
    pub(crate) fn vaults(&self) -> usize {
        self.state.vaults.len()
    }

    /// Takes back the vaults that were opened since there were `len`.
    pub(crate) fn truncate_vaults(&mut self, len: usize) {
        while self.state.vaults.len() > len
            && let Some(Vault { namespace, name }) = self.state.vaults.pop()
        {
            self.names.remove(&(namespace, name));
        }
    }
}
