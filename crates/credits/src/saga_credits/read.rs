//! Reads: balances, history and the audit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use earmark_admission::{
    AccountPage, AccountPath, AccountQuery, AccountView, Audit, BackendError, CreditCounts, CreditReadError,
    CreditRoom, EntryChange, EntryCollector, EntryKind, EntryPage, EntryQuery, EntryView, Flows, HoldView, PAGE_MAX,
};
use earmark_core::{
    AccountName, AccountStatus, Actor, AssetName, AssetTotals, BalanceInfo, ClientId, CreditShortage, CreditTerms,
    Definition, GrantInfo, GrantTerms, LimitStatus, NamespaceName, Operation, PlanInfo, SettleReason, Usage,
};

use super::{SagaCredits, backend_error};
use crate::coin_selection::grants::split_shares;
use crate::model::{
    Account, AccountKey, ClaimKind, ClientKey, EntryBody, EntryReason, GrantShare, HoldTerms, Posting, PostingState,
    StoredEntry, UsageKey, UsageKind, VaultKey,
};
use crate::saga::TaskError;
use crate::store::{AsOf, AssetSums, Census, FindRecord, Funds, HistoryQuery, StoreError, Survey};
use crate::task::receipt;

/// Retries of an audit that does not balance while sagas are in progress.
const AUDITS_MAX: usize = 5;
const PAUSE: Duration = Duration::from_millis(20);

fn failed(error: StoreError) -> CreditReadError {
    CreditReadError::Backend(backend_error(TaskError::Store(error)))
}

fn key_of(path: AccountPath) -> AccountKey {
    let home = VaultKey { namespace: path.namespace, vault: path.vault };
    AccountKey { home, account: path.account }
}

impl SagaCredits {
    /// The last sequence of a client, after its saga in progress has ended.
    pub(super) async fn read_client(&self, home: VaultKey, client: ClientId) -> Result<u64, CreditReadError> {
        let engine = self.engine()?;
        let key = ClientKey { home, client };
        let start = Instant::now();
        loop {
            let find = FindRecord::Client(key.clone());
            let under_way = engine.call(engine.store.record(find)).await.map_err(failed)?;
            let Some(stored) = under_way else { break };
            engine.recover_saga(&stored).await.map_err(failed)?;
            if start.elapsed() > engine.options.deadline {
                return Err(CreditReadError::Backend(backend_error(TaskError::Busy)));
            }
            tokio::time::sleep(PAUSE).await;
        }
        let survey = Survey { client: Some(key), ..Survey::default() };
        let found = engine.call(engine.store.survey(survey)).await.map_err(failed)?;
        Ok(found.client.map_or(0, |client| client.last_sequence))
    }

    /// The use of the quotas of namespaces.
    pub(super) async fn read_counts(&self, namespaces: Vec<NamespaceName>) -> Result<Vec<CreditCounts>, BackendError> {
        const KINDS: [UsageKind; 3] = [UsageKind::Accounts, UsageKind::Clients, UsageKind::IdempotencyKeys];
        let keys = namespaces.iter().flat_map(|namespace| KINDS.map(|kind| UsageKey::of(namespace, kind))).collect();
        let engine = self.engine()?;
        let used = engine.call(engine.store.usage(keys)).await;
        let used = used.map_err(|error| backend_error(TaskError::Store(error)))?;
        let (counts, _) = used.as_chunks();
        let counts = counts.iter().map(|&[accounts, clients, idempotency_keys]| CreditCounts {
            accounts,
            clients,
            idempotency_keys,
        });
        Ok(counts.collect())
    }

    /// Finds an account. A vault's `revenue` may have no row yet.
    async fn find_account(&self, key: &AccountKey) -> Result<Option<Account>, CreditReadError> {
        let engine = self.engine()?;
        let survey = Survey { accounts: vec![key.clone()], ..Survey::default() };
        let found = engine.call(engine.store.survey(survey)).await.map_err(failed)?;
        let is_opening = |account: &Account| matches!(account.claim, Some((_, ClaimKind::Opening)));
        let account = found.accounts.into_iter().next().flatten().filter(|account| !is_opening(account));
        if account.is_none() && key.account.as_str() != AccountName::REVENUE {
            return Err(CreditReadError::AccountNotFound);
        }
        Ok(account)
    }

    async fn read_funds(&self, key: AccountKey) -> Result<Vec<Funds>, CreditReadError> {
        let engine = self.engine()?;
        let as_of = engine.time.as_of();
        let mut funds = engine.call(engine.store.funds(key.clone(), as_of)).await.map_err(failed)?;
        if funds.iter().any(|funds| funds.due != 0) {
            // Credit that a hold returns to an expired grant is not spendable, before its timeout is settled either.
            let found = engine.call(engine.store.grants(key)).await.map_err(failed)?;
            for (posting, _) in &found {
                let returns = returned(posting, as_of).into_iter().filter(|share| share.terms.is_expired(as_of.expiry));
                let lost = returns.fold(0_i128, |sum, share| sum.saturating_add(share.amount.into()));
                if let Some(funds) = funds.iter_mut().find(|funds| funds.asset == posting.asset) {
                    funds.due = funds.due.saturating_sub(lost);
                }
            }
        }
        Ok(funds)
    }

    /// The grants of an account, by asset and in spending order. Plain credit is the rest of its balance.
    pub(super) async fn read_grants(&self, account: AccountPath) -> Result<Vec<GrantInfo>, CreditReadError> {
        let (engine, key) = (self.engine()?, key_of(account));
        self.find_account(&key).await?;
        let as_of = engine.time.as_of();
        let mut sums: BTreeMap<(AssetName, GrantTerms), (i128, i128)> = BTreeMap::new();
        for balance in self.balances_of(key.clone()).await? {
            sums.insert((balance.asset, GrantTerms::PLAIN), (balance.available, balance.held));
        }
        for (posting, state) in engine.call(engine.store.grants(key)).await.map_err(failed)? {
            if posting.hold.is_none() && (posting.terms.is_expired(as_of.expiry) || state != PostingState::Active) {
                continue;
            }
            let free = if posting.hold.is_none() { posting.amount } else { 0 };
            let (kept, returned) = (kept(&posting, as_of), returned(&posting, as_of));
            let mut add = |terms: GrantTerms, (free, held): (i128, i128)| {
                // The rest of the balance is plain credit.
                for (terms, sign) in [(terms, 1), (GrantTerms::PLAIN, -1)] {
                    let sum = sums.entry((posting.asset.clone(), terms)).or_default();
                    sum.0 = sum.0.saturating_add(free.saturating_mul(sign));
                    sum.1 = sum.1.saturating_add(held.saturating_mul(sign));
                }
            };
            add(posting.terms, (free, 0));
            kept.into_iter().for_each(|share| add(share.terms, (0, share.amount.into())));
            let usable = returned.into_iter().filter(|share| !share.terms.is_expired(as_of.expiry));
            usable.for_each(|share| add(share.terms, (share.amount.into(), 0)));
        }
        let infos = sums.into_iter().filter(|(_, sum)| *sum != (0, 0));
        Ok(infos.map(|((asset, terms), (remaining, held))| GrantInfo { asset, remaining, held, terms }).collect())
    }

    pub(super) async fn read_balances(&self, path: AccountPath) -> Result<Vec<BalanceInfo>, CreditReadError> {
        let key = key_of(path);
        self.find_account(&key).await?;
        self.balances_of(key).await
    }

    /// The balances of an account that exists.
    async fn balances_of(&self, key: AccountKey) -> Result<Vec<BalanceInfo>, CreditReadError> {
        let engine = self.engine()?;
        let balance = |funds: Funds| BalanceInfo {
            asset: funds.asset,
            available: funds.active.saturating_add(funds.due),
            held: funds.held,
            pending: funds.pending,
        };
        let had = engine.call(engine.store.assets_of(key.clone())).await.map_err(failed)?;
        let mut balances: Vec<BalanceInfo> = self.read_funds(key).await?.into_iter().map(balance).collect();
        // An asset that was spent completely is shown with balance 0.
        for asset in had {
            if !balances.iter().any(|balance| balance.asset == asset) {
                balances.push(BalanceInfo { asset, available: 0, held: 0, pending: 0 });
            }
        }
        balances.sort_unstable_by(|a, b| a.asset.cmp(&b.asset));
        Ok(balances)
    }

    pub(super) async fn read_accounts(
        &self,
        home: VaultKey,
        query: AccountQuery,
    ) -> Result<AccountPage, CreditReadError> {
        let engine = self.engine()?;
        let page_size = query.page_size.clamp(1, PAGE_MAX);
        let query = AccountQuery { page_size, ..query };
        let read = engine.store.accounts(home.clone(), query.clone());
        let mut found = engine.call(read).await.map_err(failed)?;
        // The account `revenue` exists before it has a row.
        if let Ok(revenue) = AccountName::new(AccountName::REVENUE)
            && query.matches(&revenue)
            && let Err(place) = found.binary_search_by(|(name, _)| name.cmp(&revenue))
        {
            found.insert(place, (revenue, AccountStatus::Open));
        }
        let has_more = found.len() > page_size;
        found.truncate(page_size);
        let mut page = AccountPage::default();
        for (account, status) in found {
            let key = AccountKey { home: home.clone(), account };
            let balances = self.balances_of(key.clone()).await?;
            let plan = self.read_plan(key.clone()).await?;
            page.accounts.push(AccountView { account: key.account, status, balances, plan });
        }
        page.next = page.accounts.last().filter(|_| has_more).map(|last| last.account.clone());
        Ok(page)
    }

    async fn read_plan(&self, key: AccountKey) -> Result<Option<PlanInfo>, CreditReadError> {
        let engine = self.engine()?;
        let mark = engine.call(engine.store.plan_mark(key)).await.map_err(failed)?;
        let found = mark.and_then(|(mark, _)| mark.plan);
        Ok(found.and_then(|found| Some(PlanInfo { plan: found.terms?, next_at: found.issued_until })))
    }

    pub(super) async fn read_usage(
        &self,
        namespace: NamespaceName,
        limit: Arc<Definition>,
    ) -> Result<Usage, BackendError> {
        let status = LimitStatus::Active;
        let nothing = Usage { capacity: 0, reserved: 0, available: 0, debt: 0, status, paused_until: None };
        let Some(terms) = limit.kind.terms() else { return Ok(nothing) };
        let home = VaultKey { namespace, vault: terms.vault.clone() };
        let key = AccountKey { home, account: terms.account.clone() };
        let account = match self.find_account(&key).await {
            Ok(account) => account,
            Err(CreditReadError::Backend(error)) => return Err(error),
            Err(_) => return Ok(nothing),
        };
        let funds = match self.read_funds(key).await {
            Ok(funds) => funds.into_iter().find(|funds| funds.asset == terms.asset),
            Err(CreditReadError::Backend(error)) => return Err(error),
            Err(_) => None,
        };
        let Some(funds) = funds else { return Ok(nothing) };
        let available = funds.active.saturating_add(funds.due).saturating_add(funds.pending);
        let can_spend = account.is_none_or(|account| account.standing == AccountStatus::Open);
        let spendable = if can_spend { available.max(0) } else { 0 };
        let reserved = u64::try_from(funds.held).unwrap_or(u64::MAX);
        let capacity = reserved.saturating_add(u64::try_from(spendable).unwrap_or(u64::MAX));
        let debt = available.min(0).unsigned_abs();
        Ok(Usage { capacity, reserved, available: capacity.saturating_sub(reserved), debt, status, paused_until: None })
    }

    /// The largest hold that would succeed now, as a task that holds judges it.
    pub(super) async fn read_room(
        &self,
        namespace: NamespaceName,
        terms: CreditTerms,
    ) -> Result<CreditRoom, BackendError> {
        let home = VaultKey { namespace, vault: terms.vault };
        let key = |account: &AccountName| AccountKey { home: home.clone(), account: account.clone() };
        let mut found = [None; 2];
        for (account, name) in found.iter_mut().zip([&terms.account, &terms.revenue]) {
            *account = match self.find_account(&key(name)).await {
                Ok(account) => account,
                Err(CreditReadError::Backend(error)) => return Err(error),
                Err(_) => return Ok(Err(CreditShortage::UnknownAccount)),
            };
        }
        let [payer, revenue] = found;
        let standing = |account: Option<Account>| account.map_or(AccountStatus::Open, |account| account.standing);
        match (standing(payer), standing(revenue)) {
            (AccountStatus::Frozen, _) => return Ok(Err(CreditShortage::Frozen)),
            (AccountStatus::Closed, _) | (_, AccountStatus::Closed) => return Ok(Err(CreditShortage::Closed)),
            (AccountStatus::Open, AccountStatus::Open | AccountStatus::Frozen) => {}
        }
        let funds = match self.read_funds(key(&terms.account)).await {
            Ok(funds) => funds.into_iter().find(|funds| funds.asset == terms.asset),
            Err(CreditReadError::Backend(error)) => return Err(error),
            Err(_) => None,
        };
        let available = funds.as_ref().map_or(0, |it| it.active.saturating_add(it.due).saturating_add(it.pending));
        let held = funds.map_or(0, |funds| u64::try_from(funds.held).unwrap_or(u64::MAX));
        let floor = payer.map_or(0, |payer| payer.overdraft.floor());
        let spendable = u64::try_from(available.saturating_sub(floor).max(0)).unwrap_or(u64::MAX);
        Ok(Ok(spendable.min(u64::MAX.saturating_sub(held))))
    }

    pub(super) async fn read_entries(
        &self,
        path: AccountPath,
        query: EntryQuery,
    ) -> Result<EntryPage, CreditReadError> {
        let engine = self.engine()?;
        let key = key_of(path);
        self.find_account(&key).await?;
        let mut page = EntryCollector::new(query);
        while let Some((order, after, most)) = page.next_chunk() {
            let query = HistoryQuery { order, after, max: most.saturating_add(1) };
            let read = engine.store.history(key.clone(), query);
            let found = engine.call(read).await.map_err(failed)?;
            let mut taken = found.iter().take(most);
            let is_read = taken.all(|stored| page.take(stored.number, view(stored, &key.account)));
            if is_read && found.len() <= most {
                return Ok(page.finish(false));
            }
        }
        Ok(page.finish(true))
    }

    pub(super) async fn read_audit(&self, home: VaultKey) -> Result<Audit, CreditReadError> {
        let engine = self.engine()?;
        let _alone = self.audits.lock().await;
        let mut looks = 0_usize;
        loop {
            // The census reads the whole history, so it has no timeout.
            let census = engine.store.census(home.clone()).await.map_err(failed)?;
            let message = difference(&census);
            looks = looks.saturating_add(1);
            // A saga between two steps has consumed postings and not yet created the new ones.
            if message.is_some() && census.records > 0 && looks < AUDITS_MAX {
                engine.recover().await.map_err(failed)?;
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            let message = match (message, census.records) {
                (Some(message), 0) => Some(message),
                (Some(message), under_way) => Some(format!("{message}; {under_way} sagas are in progress, try again")),
                (None, _) => None,
            };
            let assets = census.assets.iter().map(|found| AssetTotals {
                asset: found.asset.clone(),
                issued: found.sums.issued,
                retired: found.sums.retired,
                expired: found.sums.expired,
                live: found.live,
            });
            let balanced = message.is_none();
            let at = engine.time.moment().wall;
            return Ok(Audit { balanced, assets: assets.collect(), message, at });
        }
    }
}

/// The shares of a held posting that are held at a time: all of them, or what its timeout will charge.
fn kept(posting: &Posting, as_of: AsOf) -> Vec<GrantShare> {
    match &posting.hold {
        None => Vec::new(),
        Some(hold) if hold.ends_at > as_of.now => posting.shares(),
        Some(hold) => split_shares(&posting.shares(), hold.kept).0,
    }
}

/// The shares of a held posting that have returned at a time, because it timed out.
fn returned(posting: &Posting, as_of: AsOf) -> Vec<GrantShare> {
    match posting.hold.as_ref().filter(|hold| hold.ends_at <= as_of.now) {
        None => Vec::new(),
        Some(hold) => split_shares(&posting.shares(), hold.kept).1,
    }
}

/// The first difference between totals, postings and entries of a vault.
fn difference(census: &Census) -> Option<String> {
    for found in &census.assets {
        let AssetSums { issued, retired, expired } = found.sums;
        let expected = issued.checked_sub(retired).and_then(|left| left.checked_sub(expired));
        if expected != Some(found.live) {
            return Some(format!(
                "{}: {issued} issued, {retired} retired and {expired} expired, but the accounts have {}",
                found.asset, found.live
            ));
        }
    }
    census.uneven.first().map(|uneven| {
        let (account, asset) = (&uneven.account, &uneven.asset);
        format!("{account}: its entries sum to {} {asset}, its postings to {}", uneven.entered, uneven.live)
    })
}

/// The reason of a settlement. A growth is returned by an entry of its own, and never settled.
const fn settle_reason(reason: EntryReason) -> SettleReason {
    match reason {
        EntryReason::Complete | EntryReason::Returned => SettleReason::Complete,
        EntryReason::Timeout => SettleReason::Timeout,
        EntryReason::Late => SettleReason::Late,
    }
}

/// An entry as one account sees it; `None` if the account is not affected.
fn view(stored: &StoredEntry, account: &AccountName) -> Option<EntryView> {
    let entry = &stored.entry;
    let hold = |terms: &HoldTerms, actor: &Option<Actor>| HoldView {
        lease: terms.lease,
        limit: terms.limit.clone(),
        amount: terms.amount,
        actor: actor.clone(),
    };
    let what = match &entry.body {
        EntryBody::Transaction(transaction) => EntryKind::Transaction {
            id: transaction.id.clone(),
            receipt: receipt(stored)?,
            memos: memos(&transaction.operations, account),
        },
        EntryBody::Hold { terms, actor } => EntryKind::Hold(hold(terms, actor)),
        EntryBody::Settle(settlement) => EntryKind::Settle {
            hold: hold(&settlement.hold, &settlement.actor),
            paid: settlement.paid,
            debt: settlement.debt,
            uncollected: settlement.uncollected,
            reason: settle_reason(settlement.reason),
            labels: settlement.labels.clone(),
        },
        EntryBody::Release { terms, actor, .. } => EntryKind::Release(hold(terms, actor)),
        EntryBody::Expire(expiry) => EntryKind::Expire(expiry.terms),
        EntryBody::Plan(issue) => EntryKind::Plan { carried: issue.carried, terms: issue.terms },
        EntryBody::Refused { .. } | EntryBody::Ended { .. } => return None,
    };
    let operations = match &entry.body {
        EntryBody::Transaction(transaction) => transaction.operations.as_slice(),
        _ => &[],
    };
    let of_account = entry.changes.iter().filter(|change| change.account == *account);
    let mut changes: Vec<EntryChange> = of_account
        .map(|change| EntryChange {
            asset: change.asset.clone(),
            amount: change.amount,
            held: change.held,
            flows: Flows::of(operations, account, &change.asset),
        })
        .collect();
    changes.sort_unstable_by(|a, b| a.asset.cmp(&b.asset));
    Some(EntryView { number: stored.number, at: entry.at.wall, what, changes })
}

/// The memos of the operations that name an account.
fn memos(operations: &[Operation], account: &AccountName) -> Vec<String> {
    let memo = |operation: &Operation| match operation {
        Operation::Issue { account: owner, memo, .. } | Operation::Retire { account: owner, memo, .. } => {
            (owner == account).then(|| memo.clone())
        }
        Operation::Transfer { from, to, memo, .. } => (from == account || to == account).then(|| memo.clone()),
        _ => None,
    };
    operations.iter().filter_map(memo).filter(|memo| !memo.is_empty()).collect()
}
