//! Accounts and their balances.

use super::plan::Overdraft;
use super::pot::Pot;
use super::{Credits, State};
use crate::book::{NamespaceId, VaultId};
use crate::id::AccountName;
use crate::limits::index::{Found, Hash, Reference};
use crate::limits::slab::{NONE, Record};

/// The maximum number of accounts in all vaults, with the balances beyond the first of each: 2^24, which take 8 GiB at
/// 500 bytes each.
pub const ACCOUNTS_MAX: u32 = 1 << 24;

/// The id of an account. Reused only if nothing was ever recorded of the account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountId(pub u32);

/// The id of an asset within its vault. Never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AssetId(pub u16);

/// The status of an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum AccountStatus {
    /// Deposits and withdrawals are allowed.
    #[default]
    Open = 1,
    /// Deposits and the cost of leases are allowed, withdrawals are not.
    Frozen = 2,
    /// Empty for ever.
    Closed = 3,
}

impl AccountStatus {
    /// All statuses by name.
    pub const NAMES: [&'static str; 3] = ["open", "frozen", "closed"];

    /// The name in lists.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            AccountStatus::Open => "open",
            AccountStatus::Frozen => "frozen",
            AccountStatus::Closed => "closed",
        }
    }
}

/// An account of a vault. Its balances are a linked list, one per asset.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    pub(crate) vault: VaultId,
    pub(crate) name: Option<AccountName>,
    pub(crate) standing: AccountStatus,
    pub(crate) overdraft: Overdraft,
    /// The slot of its first balance.
    pub(crate) balances: u32,
    /// The slot of its plan.
    pub(crate) plan: u32,
}

impl Default for Account {
    fn default() -> Account {
        Account {
            vault: VaultId::default(),
            name: None,
            standing: AccountStatus::Open,
            overdraft: Overdraft::Deny,
            balances: NONE,
            plan: NONE,
        }
    }
}

impl Record for Account {
    fn link(&self) -> u32 {
        self.balances
    }
    fn set_link(&mut self, link: u32) {
        self.balances = link;
    }
}

/// The balance of an account in one asset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Balance {
    /// Plain credit: of default priority, without expiry.
    pub(crate) pot: Pot,
    /// The slot of the first of its grants, which are all other credit.
    pub(crate) grants: u32,
    pub(crate) asset: AssetId,
    /// The next balance of the same account.
    pub(crate) next: u32,
}

impl Default for Balance {
    fn default() -> Balance {
        Balance { pot: Pot::default(), grants: NONE, asset: AssetId::default(), next: NONE }
    }
}

impl Record for Balance {
    fn link(&self) -> u32 {
        self.next
    }
    fn set_link(&mut self, link: u32) {
        self.next = link;
    }
}

impl Credits {
    pub(super) fn account_hash(&self, vault: VaultId, name: &AccountName) -> Hash {
        self.index.hash_name(u64::from(vault.0), name.as_str())
    }

    /// The slot of an account, whatever its status.
    pub(crate) fn account(&self, vault: VaultId, name: &AccountName) -> Option<u32> {
        let is_meant = |reference: Reference| match reference.found() {
            Found::Record(slot) => {
                let account = self.state.accounts.get(slot);
                account.vault == vault && account.name.as_ref() == Some(name)
            }
            Found::Tombstone(_) => false,
        };
        match self.index.find(self.account_hash(vault, name), is_meant)?.1.found() {
            Found::Record(slot) => Some(slot),
            Found::Tombstone(_) => None,
        }
    }

    /// Adds a new account; `None` if the maximum is reached.
    pub(crate) fn add_account(&mut self, account: Account) -> Option<u32> {
        let name = account.name.clone()?;
        if self.account_count() >= ACCOUNTS_MAX {
            return None;
        }
        let hash = self.account_hash(account.vault, &name);
        self.count_accounts(account.vault, |count| count.saturating_add(1));
        let slot = match self.free_accounts.pop_first() {
            Some(slot) => {
                *self.state.accounts.get_mut(slot) = account;
                slot
            }
            None => self.state.accounts.insert(account),
        };
        self.index.insert(hash, Reference::record(slot));
        Some(slot)
    }

    /// Restores an account in the next record; `None` if the maximum is reached.
    pub(crate) fn restore_account(&mut self, account: Account) -> Option<u32> {
        let free = std::mem::take(&mut self.free_accounts);
        let slot = self.add_account(account);
        self.free_accounts = free;
        slot
    }

    /// Restores the empty record of a removed account.
    pub(crate) fn restore_empty_account(&mut self) {
        let slot = self.state.accounts.insert(Account::default());
        self.free_accounts.insert(slot);
    }

    /// Removes an account that has no balances. The last record of the table is never an empty one.
    pub(crate) fn remove_account(&mut self, slot: u32) {
        let Account { vault, name, .. } = std::mem::take(self.state.accounts.get_mut(slot));
        let Some(name) = name else { return };
        let hash = self.account_hash(vault, &name);
        if let Some((position, _)) = self.index.find(hash, |found| found == Reference::record(slot)) {
            self.index.remove(position);
        }
        self.count_accounts(vault, |count| count.saturating_sub(1));
        self.free_accounts.insert(slot);
        while self.state.accounts.used().checked_sub(1).is_some_and(|last| self.free_accounts.remove(&last)) {
            self.state.accounts.pop();
        }
    }

    /// The number of accounts of all vaults.
    pub(crate) fn account_count(&self) -> u32 {
        self.state.accounts.used().saturating_sub(u32::try_from(self.free_accounts.len()).unwrap_or(u32::MAX))
    }

    /// The number of accounts of a namespace, closed ones included, and of balances beyond the first of each.
    pub(crate) fn account_use_of(&self, namespace: NamespaceId) -> u32 {
        self.account_use.get(usize::from(namespace.0)).copied().unwrap_or(0)
    }

    /// The number of accounts and further balances that all vaults may still get.
    pub(crate) fn account_room(&self) -> u32 {
        ACCOUNTS_MAX.saturating_sub(self.account_use_total)
    }

    /// Changes the counters of accounts of a vault and of its namespace.
    fn count_accounts(&mut self, vault: VaultId, change: fn(u32) -> u32) {
        let Some(vault) = self.state.vaults.get_mut(&vault) else { return };
        vault.accounts = change(vault.accounts);
        let namespace = vault.namespace;
        self.change_use(namespace, change);
    }

    fn change_use(&mut self, namespace: NamespaceId, change: fn(u32) -> u32) {
        let namespace = usize::from(namespace.0);
        if self.account_use.len() <= namespace {
            self.account_use.resize(namespace.saturating_add(1), 0);
        }
        let count = &mut self.account_use[namespace];
        *count = change(*count);
        self.account_use_total = change(self.account_use_total);
    }

    /// Counts a balance beyond the first of its account.
    fn count_balance(&mut self, account: u32) {
        let vault = self.state.accounts.get(account).vault;
        let Some(namespace) = self.state.vaults.get(&vault).map(|vault| vault.namespace) else { return };
        self.change_use(namespace, |count| count.saturating_add(1));
    }

    /// The balance of an account in an asset, created if needed.
    pub(crate) fn balance_mut(&mut self, account: u32, asset: AssetId) -> &mut Balance {
        let slot = self.balance_slot(account, asset);
        self.state.balances.get_mut(slot)
    }

    /// The slot of the balance of an account in an asset, created if needed.
    pub(crate) fn balance_slot(&mut self, account: u32, asset: AssetId) -> u32 {
        if let Some(slot) = self.state.balance(account, asset) {
            return slot;
        }
        let slot = self.state.balances.insert(Balance { asset, ..Balance::default() });
        match self.state.last_balance(account) {
            Some(last) => {
                self.state.balances.get_mut(last).next = slot;
                self.count_balance(account);
            }
            None => self.state.accounts.get_mut(account).balances = slot,
        }
        slot
    }
}

impl State {
    /// The slots of an account's balances, in order of creation.
    pub(crate) fn balance_slots(&self, account: u32) -> impl Iterator<Item = u32> + '_ {
        let mut slot = self.accounts.get(account).balances;
        std::iter::from_fn(move || {
            let found = (slot != NONE).then_some(slot)?;
            slot = self.balances.get(found).next;
            Some(found)
        })
    }

    pub(crate) fn balance(&self, account: u32, asset: AssetId) -> Option<u32> {
        self.balance_slots(account).find(|slot| self.balances.get(*slot).asset == asset)
    }

    fn last_balance(&self, account: u32) -> Option<u32> {
        self.balance_slots(account).last()
    }
}
