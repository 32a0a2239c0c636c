//! Credit: vaults, their accounts and balances.
//!
//! Value is postings: signed amounts of one asset, owned by one account. An entry consumes postings and creates
//! others with the same sum. Only issue, retire and expiry change the total, and all are counted. In the Book an account
//! has one balance per asset: plain credit, and a list of grants with a priority or an expiry.

mod account;
mod amount;
mod draft;
mod grant;
mod hold;
mod hold_parts;
pub mod plan;
mod pot;
mod prefetch;
mod read;
mod recurring;
mod settle_labels;
mod vault;
pub mod wallet;

use std::collections::{BTreeMap, BTreeSet};

pub use account::{ACCOUNTS_MAX, AccountId, AccountStatus, AssetId};
pub(crate) use account::{Account, Balance};
pub use amount::parse_credit;
pub(crate) use draft::{CreditRefusal, Culprit, Draft, Shortfall};
pub use grant::{EXPIRY_SKEW_MS_MAX, GRANTS_MAX, GrantTerms, PRIORITY_DEFAULT};
pub(crate) use grant::{ExpiryClock, Grant, GrantQueue, Owner};
pub(crate) use hold::{Hold, second};
pub(crate) use hold_parts::HoldPart;
pub use plan::Overdraft;
pub use read::{AccountInfo, AssetTotals, BalanceInfo, GrantInfo};
pub use recurring::{CarryOver, Plan, PlanInfo, PlanPeriod};
pub(crate) use recurring::{PlanQueue, PlanState, PlanTerms};
pub use settle_labels::{SETTLE_LABEL_NAME_BYTES_MAX, SETTLE_LABEL_VALUE_BYTES_MAX, SETTLE_LABELS_MAX, SettleLabels};
pub use vault::{ASSETS_MAX, VAULTS_MAX};
pub(crate) use vault::{Asset, Vault};

use crate::book::{JournalRecord, NamespaceId, VaultId};
use crate::id::{Actor, VaultName};
use crate::limits::buckets::Buckets;
use crate::limits::index::Index;
use crate::limits::slab::Slab;
use crate::limits::timeline::Nodes;
use crate::time::{Moment, UnixMs};

/// All vaults, with the tables that look up vaults and accounts by name.
pub(crate) struct Credits {
    pub(crate) state: State,
    /// By namespace.
    names: Vec<BTreeMap<VaultName, VaultId>>,
    index: Index,
    /// The use of the quota of accounts by namespace: accounts, and the balances beyond the first of each.
    account_use: Vec<u32>,
    /// The sum of it.
    account_use_total: u32,
    /// The empty account records. The lowest is used first, so that every replica chooses the same.
    free_accounts: BTreeSet<u32>,
    /// Journal records that [`Book::drain_journal`](crate::Book::drain_journal) has not taken yet.
    pub(crate) journal: Vec<JournalRecord>,
    /// The actor of the command being applied; `None` for Earmark's own commands.
    pub(crate) actor: Option<Actor>,
    /// The wall time of the command being applied.
    pub(crate) wall: UnixMs,
    /// Grants whose expiry is not recorded yet.
    pub(crate) grant_queue: GrantQueue,
    pub(crate) plan_queue: PlanQueue,
}

/// The replicated state, in tables that a snapshot can share.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) vaults: BTreeMap<VaultId, Vault>,
    /// The number of vaults ever opened, which is the number of the next one.
    pub(crate) vaults_created: u32,
    /// The revenue account of a deleted vault leaves an empty record, which the next account takes. No other account is
    /// ever removed.
    pub(crate) accounts: Slab<Account>,
    pub(crate) balances: Slab<Balance>,
    pub(crate) grants: Slab<Grant>,
    pub(crate) plans: Slab<PlanState>,
    pub(crate) holds: Slab<Hold>,
    pub(crate) parts: Slab<HoldPart>,
    pub(crate) expiry: ExpiryClock,
    /// Holds whose release is not in the journal yet, by the second in which it may be written.
    queue: Buckets,
    /// Holds that expired, are released in the journal, and whose lease is still recorded.
    pub(crate) released: u32,
    pub(crate) nodes: Nodes,
}

impl Credits {
    /// Log time `now` with the wall time of the command being applied, for journal records.
    fn moment(&self, now: UnixMs) -> Moment {
        Moment { log: now, wall: self.wall }
    }

    /// An empty state with the vault `main`.
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
            account_use: Vec::new(),
            account_use_total: 0,
            free_accounts: BTreeSet::new(),
            journal: Vec::new(),
            actor: None,
            wall: UnixMs::default(),
            grant_queue: GrantQueue::new(),
            plan_queue: PlanQueue::new(),
        }
    }

    /// A copy for a snapshot. Vaults are cloned, since there are few.
    pub(crate) fn share(&mut self) -> State {
        State {
            vaults: self.state.vaults.clone(),
            vaults_created: self.state.vaults_created,
            accounts: self.state.accounts.share(),
            balances: self.state.balances.share(),
            grants: self.state.grants.share(),
            plans: self.state.plans.share(),
            holds: self.state.holds.share(),
            parts: self.state.parts.share(),
            expiry: self.state.expiry,
            queue: self.state.queue.clone(),
            released: self.state.released,
            nodes: self.state.nodes.share(),
        }
    }
}
