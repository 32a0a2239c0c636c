//! Credit: vaults, the accounts in them, and what each account has.
//!
//! Value is postings: signed amounts of one asset, owned by one account. An entry consumes postings and creates
//! others with the same sum; only issuing and retiring change the total, and are counted. In the Book an
//! account has at most one live posting per asset, its balance.

mod account;
mod draft;
pub mod plan;
mod read;
mod vault;

use std::collections::BTreeMap;

pub use account::{ACCOUNTS_MAX, AccountId, AssetId, Standing};
pub(crate) use account::{Account, Balance};
pub(crate) use draft::{CreditRefusal, Draft, Shortfall};
pub use plan::Overdraft;
pub use read::{AccountInfo, AssetTotals, BalanceInfo};
pub use vault::{ASSETS_MAX, VAULTS_MAX};
pub(crate) use vault::{Asset, Vault};

use crate::book::{NamespaceId, VaultId};
use crate::id::VaultName;
use crate::limits::index::Index;
use crate::limits::slab::Slab;

/// All vaults, and the tables that find them and their accounts.
pub(crate) struct Credits {
    pub(crate) state: State,
    /// By namespace.
    names: Vec<BTreeMap<VaultName, VaultId>>,
    index: Index,
}

/// What is replicated, in tables that a snapshot can share.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) vaults: Vec<Vault>,
    /// In the order in which they were opened; none ever goes.
    pub(crate) accounts: Slab<Account>,
    pub(crate) balances: Slab<Balance>,
}

impl Credits {
    /// No credit, in the one vault that exists from the start.
    pub(crate) fn new(table_seed: u64) -> Credits {
        let mut credits = Credits::empty(table_seed);
        if let Ok(main) = VaultName::new(VaultName::MAIN) {
            credits.open_vault(NamespaceId::DEFAULT, &main);
        }
        credits
    }

    pub(crate) fn empty(table_seed: u64) -> Credits {
        Credits { state: State::default(), names: Vec::new(), index: Index::new(table_seed) }
    }

    /// The state as it is now, for a snapshot. Vaults are copied: there are few.
    pub(crate) fn share(&mut self) -> State {
        State {
            vaults: self.state.vaults.clone(),
            accounts: self.state.accounts.share(),
            balances: self.state.balances.share(),
        }
    }
}
