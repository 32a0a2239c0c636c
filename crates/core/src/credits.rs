//! Credit: vaults, and what is in them.

mod vault;

use std::collections::BTreeMap;

pub use vault::VAULTS_MAX;
pub(crate) use vault::Vault;

use crate::book::{NamespaceId, VaultId};
use crate::id::VaultName;

/// All vaults, and the table that finds them.
pub(crate) struct Credits {
    pub(crate) state: State,
    names: BTreeMap<(NamespaceId, VaultName), VaultId>,
}

/// What is replicated.
#[derive(Clone, Default)]
pub(crate) struct State {
    pub(crate) vaults: Vec<Vault>,
}

impl Credits {
    /// No credit, in the one vault that exists from the start.
    pub(crate) fn new() -> Credits {
        let mut credits = Credits::empty();
        if let Ok(main) = VaultName::new(VaultName::MAIN) {
            credits.open_vault(NamespaceId::DEFAULT, &main);
        }
        credits
    }

    pub(crate) fn empty() -> Credits {
        Credits { state: State::default(), names: BTreeMap::new() }
    }

    /// The state as it is now, for a snapshot. Vaults are copied: there are few.
    pub(crate) fn share(&mut self) -> State {
        self.state.clone()
    }
}
