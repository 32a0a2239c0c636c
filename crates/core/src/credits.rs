//! Credit: vaults, the accounts in them, and what each account has.
//!
//! Value is postings: signed amounts of one asset, owned by one account. An entry consumes postings and creates
//! others with the same sum; only issuing and retiring change the total, and are counted. In the Book an
//! account has at most one live posting per asset, its balance.

mod account;
mod amount;
mod draft;
mod hold;
pub mod plan;
mod read;
mod vault;
mod warm;

use std::collections::BTreeMap;

pub use account::{ACCOUNTS_MAX, AccountId, AssetId, Standing};
pub(crate) use account::{Account, Balance};
pub use amount::parse_credit;
pub(crate) use draft::{CreditRefusal, Culprit, Draft, Shortfall};
pub(crate) use hold::{Hold, second};
pub use plan::Overdraft;
pub use read::{AccountInfo, AssetTotals, BalanceInfo};
pub use vault::{ASSETS_MAX, VAULTS_MAX};
pub(crate) use vault::{Asset, Vault};

use crate::book::{JournalRecord, NamespaceId, VaultId};
use crate::id::{Actor, VaultName};
use crate::limits::buckets::Buckets;
use crate::limits::index::Index;
use crate::limits::slab::Slab;
use crate::limits::timeline::Nodes;

/// All vaults, and the tables that find them and their accounts.
pub(crate) struct Credits {
    pub(crate) state: State,
    /// By namespace.
    names: Vec<BTreeMap<VaultName, VaultId>>,
    index: Index,
    /// What happened and was not handed out yet.
    pub(crate) journal: Vec<JournalRecord>,
    /// Who is behind the command that is being applied; nobody if it is Earmark's own.
    pub(crate) actor: Option<Actor>,
}

/// What is replicated, in tables that a snapshot can share.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) vaults: Vec<Vault>,
    /// In the order in which they were opened; none ever goes.
    pub(crate) accounts: Slab<Account>,
    pub(crate) balances: Slab<Balance>,
    pub(crate) holds: Slab<Hold>,
    /// The holds that were not released yet, by the second at whose end they can be.
    queue: Buckets,
    /// How many holds were released and still belong to a lease.
    pub(crate) released: u32,
    pub(crate) nodes: Nodes,
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
        Credits {
            state: State::default(),
            names: Vec::new(),
            index: Index::new(table_seed),
            journal: Vec::new(),
            actor: None,
        }
    }

    /// The state as it is now, for a snapshot. Vaults are copied: there are few.
    pub(crate) fn share(&mut self) -> State {
        State {
            vaults: self.state.vaults.clone(),
            accounts: self.state.accounts.share(),
            balances: self.state.balances.share(),
            holds: self.state.holds.share(),
            queue: self.state.queue.clone(),
            released: self.state.released,
            nodes: self.state.nodes.share(),
        }
    }
}
