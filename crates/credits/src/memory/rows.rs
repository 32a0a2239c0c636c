//! The rows, their indexes, and reads.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use earmark_admission::{AccountQuery, CreditCursor, EntryOrder};
use earmark_core::{AccountName, AccountStatus, AssetName, GrantTerms, UnixMs};

use crate::census::Counted;
use crate::id::{GateId, OwnerId, PostingId, ReservationId};
use crate::model::{
    Account, AccountKey, AssetKey, ClaimKind, Client, ClientKey, EntryBody, LeaseKey, LivePosting, Posting,
    PostingHold, PostingState, StoredEntry, StoredRecord, UsageKey, VaultKey,
};
use crate::store::{
    AsOf, AssetSums, CHANGES_SEEN_MAX, Census, DueQuery, Filter, FindRecord, Funds, GRANT_POSTINGS_MAX, HistoryQuery,
    LoggedTransaction, PostingQuery, PostingSet, RecordCursor, RecordPage, Records, Spendable, StaleOwners, Survey,
    Surveyed, TransactionQuery, Transactions,
};

/// All rows.
#[derive(Default)]
pub(super) struct Rows {
    /// The last entry number of each vault.
    pub(super) vaults: BTreeMap<VaultKey, u64>,
    pub(super) accounts: BTreeMap<AccountKey, Account>,
    pub(super) claimed: BTreeMap<ReservationId, BTreeSet<AccountKey>>,
    pub(super) assets: BTreeMap<AssetKey, AssetSums>,
    pub(super) clients: HashMap<ClientKey, Client>,
    postings: HashMap<PostingId, (Posting, PostingState)>,
    live: BTreeMap<AccountKey, BTreeMap<AssetName, Live>>,
    pending: BTreeMap<ReservationId, BTreeSet<PostingId>>,
    /// Active held postings by the end of their hold.
    ends: BTreeSet<(UnixMs, PostingId)>,
    /// Active grants by their expiry.
    expiring: BTreeSet<(UnixMs, PostingId)>,
    held: HashMap<LeaseKey, BTreeSet<PostingId>>,
    pub(super) records: BTreeMap<GateId, StoredRecord>,
    pub(super) by_rid: HashMap<ReservationId, GateId>,
    pub(super) by_client: HashMap<ClientKey, GateId>,
    pub(super) owners: HashMap<OwnerId, UnixMs>,
    pub(super) entries: HashMap<GateId, Vec<StoredEntry>>,
    pub(super) leases: HashMap<LeaseKey, Vec<GateId>>,
    pub(super) histories: BTreeMap<AccountKey, Vec<StoredEntry>>,
    /// Transactions in commit order.
    pub(super) transactions: Vec<StoredEntry>,
    pub(super) usage: BTreeMap<UsageKey, u64>,
}

/// The unconsumed postings of one account and asset.
#[derive(Default)]
struct Live {
    /// Active plain postings without a hold, by amount.
    free: BTreeSet<(i128, PostingId)>,
    /// Active and pending grants, in spending order.
    grants: BTreeSet<(GrantTerms, PostingId)>,
    /// Pending postings without a hold.
    pending: BTreeSet<PostingId>,
    /// Held postings, active or pending, by the end of their hold.
    held: BTreeSet<(UnixMs, PostingId)>,
}

impl Rows {
    pub(super) fn has_posting(&self, id: PostingId) -> bool {
        self.postings.contains_key(&id)
    }

    pub(super) fn posting_state(&self, id: PostingId) -> Option<PostingState> {
        self.postings.get(&id).map(|(_, state)| *state)
    }

    /// The postings that are pending with a reservation id.
    pub(super) fn pending_of(&self, rid: ReservationId) -> Vec<PostingId> {
        self.pending.get(&rid).into_iter().flatten().copied().collect()
    }

    pub(super) fn insert_posting(&mut self, posting: Posting) {
        let id = posting.id;
        if let Some(hold) = &posting.hold {
            let key = LeaseKey { namespace: posting.account.home.namespace.clone(), lease: hold.lease };
            self.held.entry(key).or_default().insert(id);
        }
        self.index(&posting, PostingState::Active, true);
        self.postings.insert(id, (posting, PostingState::Active));
    }

    /// Changes the state of an existing posting.
    pub(super) fn set_posting(&mut self, id: PostingId, state: PostingState) {
        let Some((posting, before)) = self.postings.get(&id).cloned() else { return };
        self.index(&posting, before, false);
        self.index(&posting, state, true);
        if let (PostingState::Inactive(_), Some(hold)) = (state, &posting.hold) {
            let key = LeaseKey { namespace: posting.account.home.namespace.clone(), lease: hold.lease };
            if let Some(held) = self.held.get_mut(&key) {
                held.remove(&id);
                if held.is_empty() {
                    self.held.remove(&key);
                }
            }
        }
        self.postings.insert(id, (posting, state));
    }

    /// The last extension of the hold on a posting; 0 without one.
    pub(super) fn extension(&self, id: PostingId) -> u32 {
        self.postings.get(&id).map_or(0, |(posting, _)| posting.extension())
    }

    /// Changes the end and usage of the hold on a posting.
    pub(super) fn set_hold(&mut self, id: PostingId, new: &PostingHold) {
        let Some((mut posting, state)) = self.postings.get(&id).cloned() else { return };
        self.index(&posting, state, false);
        if let Some(hold) = &mut posting.hold {
            (hold.ends_at, hold.used, hold.kept, hold.extension) = (new.ends_at, new.used, new.kept, new.extension);
        }
        self.index(&posting, state, true);
        self.postings.insert(id, (posting, state));
    }

    /// Adds an unconsumed posting to the indexes, or removes it.
    fn index(&mut self, posting: &Posting, state: PostingState, is_added: bool) {
        fn put<T: Ord>(set: &mut BTreeSet<T>, item: T, is_added: bool) {
            let _ = if is_added { set.insert(item) } else { set.remove(&item) };
        }
        let id = posting.id;
        if let PostingState::Pending(rid) = state {
            let pending = self.pending.entry(rid).or_default();
            put(pending, id, is_added);
            if pending.is_empty() {
                self.pending.remove(&rid);
            }
        }
        if let (PostingState::Active, Some(hold)) = (state, &posting.hold) {
            put(&mut self.ends, (hold.ends_at, id), is_added);
        }
        if let (PostingState::Active, Some(expires_at)) = (state, posting.terms.expires_at()) {
            put(&mut self.expiring, (expires_at, id), is_added);
        }
        if matches!(state, PostingState::Inactive(_)) {
            return;
        }
        let live = self.live_mut(posting);
        if posting.terms != GrantTerms::PLAIN {
            put(&mut live.grants, (posting.terms, id), is_added);
        }
        match (&posting.hold, state) {
            (Some(hold), _) => put(&mut live.held, (hold.ends_at, id), is_added),
            (None, PostingState::Active) if posting.terms != GrantTerms::PLAIN => {}
            (None, PostingState::Active) => put(&mut live.free, (posting.amount, id), is_added),
            (None, _) => put(&mut live.pending, id, is_added),
        }
    }

    fn live_mut(&mut self, posting: &Posting) -> &mut Live {
        self.live.entry(posting.account.clone()).or_default().entry(posting.asset.clone()).or_default()
    }

    pub(super) fn survey(&self, survey: &Survey) -> Surveyed {
        Surveyed {
            accounts: survey.accounts.iter().map(|key| self.accounts.get(key).copied()).collect(),
            posting_sets: survey.posting_sets.iter().map(|query| self.posting_set(query)).collect(),
            client: survey.client.as_ref().and_then(|key| self.clients.get(key).cloned()),
            assets: survey.assets.iter().map(|key| self.assets.get(key).copied()).collect(),
        }
    }

    fn posting_set(&self, query: &PostingQuery) -> PostingSet {
        let live = self.live.get(&query.account).and_then(|assets| assets.get(&query.asset));
        let Some(live) = live else { return PostingSet::default() };
        let terms = GrantTerms::PLAIN;
        let active = |&(amount, id): &(i128, PostingId)| LivePosting { id, amount, terms, reserved_by: None };
        let live_posting = |id: &PostingId| {
            let (posting, state) = self.postings.get(id)?;
            let reserved_by = if let PostingState::Pending(rid) = state { Some(*rid) } else { None };
            Some(LivePosting { id: *id, amount: posting.amount, terms: posting.terms, reserved_by })
        };
        let pending = live.pending.iter().filter_map(live_posting).filter(|posting| posting.terms == terms);
        let first_owned = (1, PostingId::default());
        let owed = live.free.range(..first_owned).map(active).chain(pending.filter(|each| each.amount <= 0));
        let owned = || live.free.range(first_owned..);
        let mut posting_set = PostingSet {
            large: owned().rev().take(query.largest).map(active).collect(),
            small: owned().take(query.smallest).map(active).collect(),
            active: owned().take(query.count_max).count(),
            ..PostingSet::default()
        };
        owed.for_each(|posting| posting_set.add_owed(posting));
        let grants = live.grants.iter().take(GRANT_POSTINGS_MAX).filter_map(|(_, id)| live_posting(id));
        grants.for_each(|posting| posting_set.add_grant(posting));
        posting_set
    }

    pub(super) fn entries(&self, gate: GateId) -> Vec<StoredEntry> {
        self.entries.get(&gate).cloned().unwrap_or_default()
    }

    pub(super) fn lease(&self, lease: &LeaseKey) -> Vec<StoredEntry> {
        let gates = self.leases.get(lease).into_iter().flatten();
        gates.flat_map(|gate| self.entries(*gate)).collect()
    }

    pub(super) fn held(&self, lease: &LeaseKey) -> Vec<(Posting, PostingState)> {
        let ids = self.held.get(lease).into_iter().flatten();
        ids.filter_map(|id| self.postings.get(id).cloned()).collect()
    }

    pub(super) fn record(&self, find: &FindRecord) -> Option<StoredRecord> {
        let gate = match find {
            FindRecord::Gate(gate) => *gate,
            FindRecord::Client(client) => *self.by_client.get(client)?,
        };
        self.records.get(&gate).cloned()
    }

    pub(super) fn records(&self, filter: &Filter, page: &RecordPage) -> Records {
        let is_meant = |stored: &&StoredRecord| {
            let owner = stored.record.token.owner;
            match filter {
                Filter::OwnedBy(meant) => owner == *meant,
                Filter::Expired { except, since } => owner != *except && self.is_expired(owner, *since),
                Filter::Touching(account) => stored.record.plan.accounts().contains(&account),
            }
        };
        let place = |stored: &StoredRecord| RecordCursor {
            begun_at_ms: i64::try_from(stored.record.begun_at.get()).unwrap_or(i64::MAX),
            rid: stored.record.token.rid.to_string(),
        };
        let behind = |stored: &&StoredRecord| place(stored) > page.after;
        let meant = self.records.values().filter(is_meant).filter(behind);
        let mut found: Vec<StoredRecord> = meant.cloned().collect();
        found.sort_by_cached_key(place);
        found.truncate(page.max);
        let next = found.last().filter(|_| found.len() >= page.max).map(place);
        Records { found, unread: Vec::new(), next }
    }

    pub(super) fn is_expired(&self, owner: OwnerId, since: UnixMs) -> bool {
        self.owners.get(&owner).is_none_or(|heard_at| *heard_at < since)
    }

    pub(super) fn stale_owners(&self, gone: StaleOwners, max: usize) -> Vec<OwnerId> {
        let has_record = |owner: OwnerId| self.records.values().any(|stored| stored.record.token.owner == owner);
        let is_gone = |owner: OwnerId, heard_at: UnixMs| {
            heard_at > gone.ahead_of || (heard_at < gone.expired_since && !has_record(owner))
        };
        let owners = self.owners.iter().map(|(owner, heard_at)| (*owner, *heard_at));
        let mut found: Vec<OwnerId> =
            owners.filter(|(owner, heard_at)| is_gone(*owner, *heard_at)).map(|(owner, _)| owner).collect();
        found.sort_unstable();
        found.truncate(max);
        found
    }

    pub(super) fn orphans(&self, max: usize) -> Vec<ReservationId> {
        let rids: BTreeSet<ReservationId> = self.pending.keys().chain(self.claimed.keys()).copied().collect();
        rids.into_iter().filter(|rid| !self.by_rid.contains_key(rid)).take(max).collect()
    }

    pub(super) fn due(&self, due: &DueQuery, max: usize) -> Vec<Posting> {
        let behind = (Bound::Excluded((due.after.ends_at, due.after.id)), Bound::Unbounded);
        let ended = self.ends.range(behind).take_while(|(ends_at, _)| *ends_at <= due.now);
        let postings = ended.filter_map(|(_, id)| self.postings.get(id)).map(|(posting, _)| posting);
        let is_meant = |posting: &&Posting| due.account.as_ref().is_none_or(|account| posting.account == *account);
        postings.filter(is_meant).take(max).cloned().collect()
    }

    pub(super) fn expiring(&self, due: &DueQuery, max: usize) -> Vec<Posting> {
        let behind = (Bound::Excluded((due.after.ends_at, due.after.id)), Bound::Unbounded);
        let expired = self.expiring.range(behind).take_while(|(expires_at, _)| *expires_at <= due.now);
        let postings = expired.filter_map(|(_, id)| self.postings.get(id)).map(|(posting, _)| posting);
        let is_meant = |posting: &&Posting| due.account.as_ref().is_none_or(|account| posting.account == *account);
        postings.filter(is_meant).take(max).cloned().collect()
    }

    pub(super) fn grants(&self, account: &AccountKey) -> Vec<(Posting, PostingState)> {
        let live = self.live.get(account).into_iter().flatten().map(|(_, live)| live);
        let ids = live.flat_map(|live| {
            let grants = live.grants.iter().map(|(_, id)| id);
            grants.chain(live.held.iter().map(|(_, id)| id))
        });
        ids.filter_map(|id| self.postings.get(id).cloned()).collect()
    }

    pub(super) fn funds(&self, account: &AccountKey, as_of: AsOf) -> Vec<Funds> {
        let assets = self.live.get(account).into_iter().flatten().filter(|(_, live)| !live.is_empty());
        assets.map(|(asset, live)| self.fund(asset, live, as_of)).collect()
    }

    pub(super) fn spendable(&self, account: &AccountKey, asset: &AssetName, as_of: AsOf) -> Spendable {
        let live = self.live.get(account).and_then(|assets| assets.get(asset));
        live.map(|live| self.spendable_of(live, as_of)).unwrap_or_default()
    }

    /// The sum of the active grants that have expired or not.
    fn granted(&self, live: &Live, is_expired: bool, as_of: AsOf) -> i128 {
        let meant = live.grants.iter().filter(|(terms, _)| terms.is_expired(as_of.expiry) == is_expired);
        let is_active = |id: &&PostingId| self.posting_state(**id) == Some(PostingState::Active);
        self.sum(meant.map(|(_, id)| id).filter(is_active))
    }

    fn spendable_of(&self, live: &Live, as_of: AsOf) -> Spendable {
        let due = live.held.range(..=(as_of.now, PostingId(u128::MAX)));
        let plain = live.free.iter().fold(0_i128, |sum, (amount, _)| sum.saturating_add(*amount));
        Spendable {
            active: plain.saturating_add(self.granted(live, false, as_of)),
            pending: self.sum(live.pending.iter()),
            due: self.sum(due.clone().map(|(_, id)| id)).saturating_sub(self.kept(due.map(|(_, id)| id))),
        }
    }

    fn sum<'a>(&self, ids: impl Iterator<Item = &'a PostingId>) -> i128 {
        let postings = ids.filter_map(|id| self.postings.get(id));
        postings.fold(0, |sum, (posting, _)| sum.saturating_add(posting.amount))
    }

    /// The part of held postings that will be charged.
    fn kept<'a>(&self, ids: impl Iterator<Item = &'a PostingId>) -> i128 {
        let holds = ids.filter_map(|id| self.postings.get(id)).filter_map(|(posting, _)| posting.hold.as_ref());
        holds.fold(0, |sum, hold| sum.saturating_add(hold.kept.into()))
    }

    fn fund(&self, asset: &AssetName, live: &Live, as_of: AsOf) -> Funds {
        let Spendable { active, pending, due } = self.spendable_of(live, as_of);
        let (expired, now) = (self.granted(live, true, as_of), as_of.now);
        let due_ids = live.held.range(..=(now, PostingId(u128::MAX))).map(|(_, id)| id);
        let held = live.held.iter().filter(|(ends_at, _)| *ends_at > now);
        let held = self.sum(held.map(|(_, id)| id)).saturating_add(self.kept(due_ids));
        Funds { asset: asset.clone(), active, expired, pending, held, due }
    }

    pub(super) fn accounts(&self, home: &VaultKey, query: &AccountQuery) -> Vec<(AccountName, AccountStatus)> {
        let is_opening = |account: &Account| matches!(account.claim, Some((_, ClaimKind::Opening)));
        let found = self
            .accounts
            .iter()
            .filter(|(key, account)| key.home == *home && query.matches(&key.account) && !is_opening(account));
        let found = found.map(|(key, account)| (key.account.clone(), account.standing));
        found.take(query.page_size.saturating_add(1)).collect()
    }

    pub(super) fn history(&self, account: &AccountKey, query: HistoryQuery) -> Vec<StoredEntry> {
        let HistoryQuery { order, after, max } = query;
        let Some(history) = self.histories.get(account) else { return Vec::new() };
        match order {
            EntryOrder::Ascending => {
                let first = history.partition_point(|entry| entry.number <= after);
                history[first..].iter().take(max).cloned().collect()
            }
            EntryOrder::Descending => {
                let end = history.partition_point(|entry| after == 0 || entry.number < after);
                history[..end].iter().rev().take(max).cloned().collect()
            }
        }
    }

    pub(super) fn transactions(&self, query: &TransactionQuery) -> Transactions {
        let TransactionQuery { namespace, actor, after, max } = query;
        // Every transaction is a commit of its own, numbered from 1.
        let before = match after {
            after if after.is_start() => u64::MAX,
            CreditCursor { commit, given: 0 } => *commit,
            CreditCursor { commit, .. } => commit.saturating_sub(1),
        };
        let end = usize::try_from(before).unwrap_or(usize::MAX).min(self.transactions.len());
        let first = end.saturating_sub(*max);
        let numbered = (first as u64).saturating_add(1)..;
        let found = numbered.zip(&self.transactions[first..end]).filter_map(|(commit, stored)| {
            let EntryBody::Transaction(transaction) = &stored.entry.body else { return None };
            let home = stored.entry.home.clone();
            let is_meant = namespace.as_ref().is_none_or(|name| *name == home.namespace)
                && actor.as_ref().is_none_or(|actor| *actor == transaction.actor);
            is_meant.then(|| LoggedTransaction {
                place: CreditCursor { commit, given: 1 },
                home,
                number: stored.number,
                at: stored.entry.at.wall,
                transaction: transaction.clone(),
            })
        });
        let mut found: Vec<LoggedTransaction> = found.collect();
        found.reverse();
        let next = CreditCursor { commit: (first as u64).saturating_add(1), given: 1 };
        Transactions { found, next: (end.saturating_sub(first) >= *max).then_some(next) }
    }

    pub(super) fn assets_of(&self, account: &AccountKey) -> Vec<AssetName> {
        let Some(history) = self.histories.get(account) else { return Vec::new() };
        let ends = history.iter().take(CHANGES_SEEN_MAX).chain(history.iter().rev().take(CHANGES_SEEN_MAX));
        let changes = ends.flat_map(|stored| &stored.entry.changes);
        let ours = changes.filter(|change| change.account == account.account);
        ours.map(|change| change.asset.clone()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    pub(super) fn census(&self, home: &VaultKey) -> Census {
        let mut counted = Counted::default();
        for (key, sums) in self.assets.iter().filter(|(key, _)| key.home == *home) {
            *counted.sums(key.asset.clone()) = *sums;
        }
        for (account, assets) in self.live.iter().filter(|(account, _)| account.home == *home) {
            for (asset, live) in assets {
                let Funds { active, expired, pending, held, due, .. } =
                    self.fund(asset, live, AsOf::at(UnixMs::default()));
                for amount in [active, expired, pending, held, due] {
                    counted.add(true, asset.clone(), account.account.clone(), amount);
                }
            }
        }
        for (account, history) in self.histories.iter().filter(|(account, _)| account.home == *home) {
            let changes = history.iter().flat_map(|stored| &stored.entry.changes);
            for change in changes.filter(|change| change.account == account.account) {
                let amount = change.amount.wrapping_add(change.held);
                counted.add(false, change.asset.clone(), change.account.clone(), amount);
            }
        }
        let touches =
            |stored: &&StoredRecord| stored.record.plan.accounts().iter().any(|account| account.home == *home);
        counted.records = self.records.values().filter(touches).count() as u64;
        counted.census()
    }

    pub(super) fn used(&self, key: &UsageKey) -> u64 {
        self.usage.get(key).copied().unwrap_or(0)
    }
}

impl Live {
    fn is_empty(&self) -> bool {
        self.free.is_empty() && self.grants.is_empty() && self.pending.is_empty() && self.held.is_empty()
    }
}
