//! Pages of limits, of their usage, of vaults and of accounts, read in pieces; reads of one account.

use earmark_core::{AccountId, AccountName, Book, NamespaceName, UnixMs, VaultId, VaultName};

use super::{BookBackend, BookHost, vault};
use crate::backend::{AccountPath, BackendError, LimitPage, LimitQuery};
use crate::credit_lists::{AccountPage, AccountQuery, AccountView, NameCollector, VaultPage, VaultQuery};
use crate::usage::{UsageCollector, UsageError, UsagePage, UsageQuery};
use crate::writes::{CreditReadError, PAGE_MAX};

/// Limits that a page reads while it holds the Book: about a tenth of a millisecond.
const LIMITS_PIECE: usize = 100;
/// Accounts whose names are compared while the Book is held: about a tenth of a millisecond.
const ACCOUNTS_PIECE: usize = 2_048;
/// Accounts whose balances are read while the Book is held.
const BALANCES_PIECE: usize = 100;

impl<H: BookHost> BookBackend<H> {
    /// Reads an account after a read barrier.
    pub(super) async fn read_account<T>(
        &self,
        path: &AccountPath,
        read: impl FnOnce(&Book, UnixMs, AccountId) -> T + Send,
    ) -> Result<T, CreditReadError> {
        self.check_placement().map_err(BackendError::from)?;
        self.read(|book, now| {
            let vault = vault(book, &path.namespace, &path.vault)?;
            let account = book.account(vault, &path.account).ok_or(CreditReadError::AccountNotFound)?;
            Ok(read(book, now, account.id))
        })
        .await?
    }

    /// Reads a page of limits in pieces, so that neither the Book nor a thread of the runtime is held for long.
    pub(super) async fn limit_page(
        &self,
        namespace: NamespaceName,
        query: LimitQuery,
    ) -> Result<LimitPage, BackendError> {
        let now = self.0.host.read_barrier().await?;
        let LimitQuery { prefix, after, page_size, defined } = query;
        let page_size = page_size.clamp(1, PAGE_MAX);
        let mut page = LimitPage { limits: Vec::new(), next: after };
        loop {
            let most = LIMITS_PIECE.min(page_size - page.limits.len());
            let (limits, next) = self.0.host.with_book(|book| match book.namespace(&namespace) {
                Some(id) if defined => book.defined_page(now, id, (prefix.as_ref(), page.next.as_ref()), most),
                Some(id) => book.limit_page(now, id, (prefix.as_ref(), page.next.as_ref()), most),
                None => (Vec::new(), None),
            });
            page.limits.extend(limits);
            page.next = next;
            if page.next.is_none() || page.limits.len() >= page_size {
                return Ok(page);
            }
            tokio::task::yield_now().await;
        }
    }

    /// Reads limits with their usage in pieces, like [`limit_page`](BookBackend::limit_page). Other orders than by key read
    /// all limits, and keep one page of them.
    pub(super) async fn usage_in_pieces(
        &self,
        namespace: NamespaceName,
        query: UsageQuery,
    ) -> Result<UsagePage, UsageError> {
        query.check()?;
        self.check_placement().map_err(BackendError::from)?;
        let now = self.0.host.read_barrier().await?;
        let mut collector = UsageCollector::new(&query);
        let UsageQuery { prefix, after: mut next, .. } = query;
        loop {
            let most = collector.piece(LIMITS_PIECE);
            let (piece, after) = self.0.host.with_book(|book| match book.namespace(&namespace) {
                Some(namespace) => book.usage_page(now, namespace, (prefix.as_ref(), next.as_ref()), most),
                None => (Vec::new(), None),
            });
            collector.add(piece);
            next = after;
            if let Some(page) = collector.finish(next.as_ref()) {
                return Ok(page);
            }
            tokio::task::yield_now().await;
        }
    }

    /// Reads a page of vaults. A namespace that does not exist has none.
    pub(super) async fn vault_page(
        &self,
        namespace: NamespaceName,
        query: VaultQuery,
    ) -> Result<VaultPage, BackendError> {
        self.0.host.read_barrier().await?;
        let page_size = query.page_size.clamp(1, PAGE_MAX);
        self.0.host.with_book(|book| {
            let Some(id) = book.namespace(&namespace) else { return Ok(VaultPage::default()) };
            let mut names = book.vault_names(id, query.after.as_ref());
            let vaults: Vec<VaultName> = names.by_ref().take(page_size).cloned().collect();
            let next = names.next().and_then(|_| vaults.last().cloned());
            Ok(VaultPage { vaults, next })
        })
    }

    /// Reads a page of accounts. The Book has no index of names in order, so all accounts are compared, in pieces.
    pub(super) async fn account_page(
        &self,
        namespace: NamespaceName,
        name: VaultName,
        query: AccountQuery,
    ) -> Result<AccountPage, CreditReadError> {
        let now = self.0.host.read_barrier().await?;
        let query = AccountQuery { page_size: query.page_size.clamp(1, PAGE_MAX), ..query };
        let home = self.0.host.with_book(|book| vault(book, &namespace, &name))?;
        let mut collector = NameCollector::new(&query);
        let mut first = 0_u32;
        loop {
            let has_more = self.0.host.with_book(|book| {
                let mut accounts = book.accounts(AccountId(first));
                for id in accounts.by_ref().take(ACCOUNTS_PIECE) {
                    first = id.0.saturating_add(1);
                    if let Some((_, name)) = book.account_name(id).filter(|(vault, _)| *vault == home) {
                        collector.add(name);
                    }
                }
                accounts.next().is_some()
            });
            if !has_more {
                break;
            }
            tokio::task::yield_now().await;
        }
        let (names, has_more) = collector.finish();
        let next = names.last().filter(|_| has_more).cloned();
        let mut accounts = Vec::with_capacity(names.len());
        for piece in names.chunks(BALANCES_PIECE) {
            accounts.extend(self.account_views(now, home, piece));
            tokio::task::yield_now().await;
        }
        Ok(AccountPage { accounts, next })
    }

    fn account_views(&self, now: UnixMs, vault: VaultId, names: &[AccountName]) -> Vec<AccountView> {
        self.0.host.with_book(|book| {
            let view = |name: &AccountName| {
                let info = book.account(vault, name)?;
                let balances = book.balances(now, info.id);
                Some(AccountView { account: name.clone(), status: info.standing, balances, plan: info.plan })
            };
            names.iter().filter_map(view).collect()
        })
    }
}
