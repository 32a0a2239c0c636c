//! Prefetching: reads what commands will read, so that the cache misses overlap.

use super::Credits;
use crate::book::{Command, LimitRef, Operation, VaultId, Write};
use crate::id::AccountName;
use crate::limits::index::Found;
use crate::limits::slab::NONE;
use crate::limits::{LimitSlot, Limits};

/// Below this number the accounts fit into the processor's cache.
const ACCOUNTS_COLD: u32 = 4_096;
/// The maximum number of accounts prefetched together.
const SIDE_BY_SIDE: usize = 64;

impl Credits {
    /// Reads the accounts that `commands` name.
    pub(crate) fn prefetch(&self, limits: &Limits, commands: &[Command<'_>]) {
        if self.state.accounts.used() < ACCOUNTS_COLD {
            return;
        }
        let of_writes = commands.iter().filter_map(|command| match command {
            Command::Write(write) => Some(self.named(write)),
            _ => None,
        });
        let of_reserves = commands.iter().filter_map(|command| match command {
            Command::Reserve(reserve) => Some(reserve.requirements),
            _ => None,
        });
        let payers = of_reserves.flatten().filter_map(|part| match &part.limit {
            LimitRef::Id(id) => Some(limits.state.limits.get(LimitSlot(id.slot))?.payers()?.account),
            LimitRef::Key(_) | LimitRef::Foreign(_) => None,
        });
        self.prefetch_accounts(of_writes.flatten().chain(payers));
    }

    /// Reads the accounts of one transaction.
    pub(crate) fn prefetch_write(&self, write: &Write) {
        if self.state.accounts.used() >= ACCOUNTS_COLD {
            self.prefetch_accounts(self.named(write));
        }
    }

    /// The accounts that the operations of a transaction probably name.
    fn named<'a>(&'a self, write: &'a Write) -> impl Iterator<Item = u32> + 'a {
        let vault = write.vault.as_ref().and_then(|name| self.vault(write.namespace, name));
        let names = write.operations.iter().flat_map(|operation| match operation {
            Operation::Transfer { from, to, .. } => [Some(from), Some(to)],
            Operation::Issue { account, .. } | Operation::Retire { account, .. } => [Some(account), None],
            _ => [None, None],
        });
        let known = names.flatten().filter_map(move |name| Some((vault?, name)));
        known.filter_map(|(vault, name)| self.peek(vault, name))
    }

    fn peek(&self, vault: VaultId, name: &AccountName) -> Option<u32> {
        // Unchecked: an account with the same hash is almost always the right one.
        match self.index.find(self.account_hash(vault, name), |_| true)?.1.found() {
            Found::Record(slot) => Some(slot),
            Found::Tombstone(_) => None,
        }
    }

    fn prefetch_accounts(&self, accounts: impl Iterator<Item = u32>) {
        let mut slots = [NONE; SIDE_BY_SIDE];
        let mut count = 0;
        for (slot, account) in slots.iter_mut().zip(accounts) {
            *slot = account;
            count = usize::saturating_add(count, 1);
        }
        let mut touched = 0_u64;
        let slots = &mut slots[..count];
        for slot in slots.iter_mut() {
            let account = self.state.accounts.get(*slot);
            let letter = account.name.as_ref().and_then(|name| name.as_str().as_bytes().first().copied());
            touched ^= u64::from(letter.unwrap_or(0));
            *slot = account.balances;
        }
        for slot in slots.iter().filter(|slot| **slot != NONE) {
            let balance = self.state.balances.get(*slot);
            touched ^= balance.pot.amount as u64 ^ u64::from(balance.next);
        }
        std::hint::black_box(touched);
    }
}
