//! Accounts that are known to exist.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use crate::backend::AccountPath;

/// The maximum number of cached accounts: about 20 MB. Beyond it the cache starts anew, which only costs lookups.
const ACCOUNTS_MAX: usize = 100_000;

/// A cache of accounts that exist. Accounts are never removed, so an entry stays valid.
#[derive(Default)]
pub(super) struct KnownAccounts(Mutex<HashSet<AccountPath>>);

impl KnownAccounts {
    pub(super) fn add(&self, path: AccountPath) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= ACCOUNTS_MAX {
            known.clear();
        }
        known.insert(path);
    }

    pub(super) fn has(&self, path: &AccountPath) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(path)
    }
}
