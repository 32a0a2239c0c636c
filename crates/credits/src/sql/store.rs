//! [`SqlStore`]: the store on a database. Its reads and queues are the same for all databases.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use earmark_admission::{AccountQuery, Answer, EntryOrder};
use earmark_core::{AccountName, AccountStatus, AssetName, NamespaceName, UnixMs};
use tokio::task::JoinHandle;

use super::database::{Database, Row, values};
use super::queue::Queue;
use super::rows;
use super::surveys::{self, SURVEYORS, Surveys};
use super::worker::{Changes, Commits, work};
use super::{limit, parse, signed};
use crate::census::Counted;
use crate::document;
use crate::id::{GateId, OwnerId, ReservationId};
use crate::model::{
    AccountKey, LeaseKey, Plan, Posting, PostingState, Record, StoredEntry, StoredRecord, UsageKey, VaultKey,
};
use crate::store::{
    AsOf, CHANGES_MAX, CHANGES_SEEN_MAX, Census, Change, DueQuery, Filter, FindRecord, Funds, HistoryQuery, PostingSet,
    RecordPage, Records, Spendable, StaleOwners, Store, StoreError, Survey, Surveyed, TransactionQuery, Transactions,
};

/// Larger than every commit number. SQLite adds 1 to it.
const NEWEST_COMMIT: u64 = i64::MAX as u64 - 1;

macro_rules! entry_sql {
    ($rest:literal) => {
        concat!(
            "select e.namespace, e.vault, e.number, e.gate, e.at_ms, e.wall_ms, cast(e.body as text) as body, c.account, c.asset,
                cast(c.amount as text) as amount, cast(c.held as text) as held ",
            $rest
        )
    };
}
pub(crate) use entry_sql;

macro_rules! posting_sql {
    ($rest:literal) => {
        concat!(
            "select id, namespace, vault, account, asset, cast(amount as text) as amount, priority, expires_at_ms, lease,
                limit_key, ends_at_ms, cast(used as text) as used, cast(kept as text) as kept, extension, shares, plan,
                state, reservation_id from postings ",
            $rest
        )
    };
}

macro_rules! record_sql {
    ($rest:literal) => {
        concat!(
            "select gate, reservation_id, owner, phase, lease_namespace, lease, begun_at_ms, cast(plan as text) as plan
             from sagas ",
            $rest
        )
    };
}

pub(crate) const ENTRIES: &str = entry_sql!(
    "from entries e left join changes c using (namespace, vault, number)
     where e.gate = $1 order by e.place, c.account, c.asset"
);
// In order of number, SQLite would read all entries of the namespace.
pub(crate) const LEASE: &str = entry_sql!(
    "from entries e left join changes c using (namespace, vault, number)
     where e.namespace = $1 and e.lease = $2 order by e.gate, e.place, c.account, c.asset"
);
pub(crate) const ASSETS_OF: &str = "select distinct asset from (
    select * from (select asset from changes where namespace = $1 and vault = $2 and account = $3
        order by number limit $4) oldest
    union all
    select * from (select asset from changes where namespace = $1 and vault = $2 and account = $3
        order by number desc limit $4) newest) ends order by asset";
pub(crate) const HELD: &str =
    posting_sql!("where namespace = $1 and lease = $2 and lease is not null and state <> 'inactive'");
pub(crate) const DUE: &str = posting_sql!(
    "where lease is not null and state = 'active' and ends_at_ms <= $1 and (ends_at_ms, id) > ($2, $3)
     order by ends_at_ms, id limit $4"
);
pub(crate) const DUE_OF: &str = posting_sql!(
    "where namespace = $5 and vault = $6 and account = $7 and lease is not null and state <> 'inactive'
     and state = 'active' and ends_at_ms <= $1 and (ends_at_ms, id) > ($2, $3) order by ends_at_ms, id limit $4"
);
// A union of two indexes. Each part names the columns of its own.
pub(crate) const GRANTS: &str = concat!(
    posting_sql!(
        "where namespace = $1 and vault = $2 and account = $3 and priority is not null and state <> 'inactive'"
    ),
    " union all ",
    posting_sql!("where namespace = $1 and vault = $2 and account = $3 and lease is not null and state <> 'inactive'")
);
pub(crate) const EXPIRING: &str = posting_sql!(
    "where expires_at_ms is not null and state = 'active' and expires_at_ms <= $1 and (expires_at_ms, id) > ($2, $3)
     order by expires_at_ms, id limit $4"
);
pub(crate) const EXPIRING_OF: &str = posting_sql!(
    "where namespace = $2 and vault = $3 and account = $4 and priority is not null and state <> 'inactive'
     and state = 'active' and expires_at_ms <= $1 limit $5"
);
pub(crate) const PLAN_MARK: &str = posting_sql!(
    "where namespace = $1 and vault = $2 and account = $3 and plan is not null and state <> 'inactive' limit 1"
);
pub(crate) const ORPHANS: &str = "with taken (rid) as (
    select reservation_id from postings where state = 'pending'
    union select claimed_by from accounts where claimed_by is not null)
    select rid from taken where not exists (select 1 from sagas where reservation_id = rid) order by rid limit $1";
const RECORD_OF_GATE: &str = record_sql!("where gate = $1");
const RECORD_OF_CLIENT: &str = record_sql!("where client_namespace = $1 and client_vault = $2 and client = $3");
const RECORDS_OWNED_BY: &str = record_sql!(
    "where owner = $1 and (begun_at_ms, reservation_id) > ($2, $3) order by begun_at_ms, reservation_id limit $4"
);
const RECORDS_EXPIRED: &str = record_sql!(
    "where owner <> $1 and not exists (
         select 1 from owners o where o.owner = sagas.owner and o.heartbeat_at_ms >= $5)
     and (begun_at_ms, reservation_id) > ($2, $3) order by begun_at_ms, reservation_id limit $4"
);
// Finds every plan with the name in its JSON. The plans that do not touch the account are removed afterwards.
const RECORDS_TOUCHING: &str = record_sql!("where cast(plan as text) like $1 order by begun_at_ms, reservation_id");
const STALE_OWNERS: &str = "select owner from owners where heartbeat_at_ms > $1
    or (heartbeat_at_ms < $2 and not exists (select 1 from sagas where sagas.owner = owners.owner))
    order by owner limit $3";
pub(crate) const ACCOUNTS: &str = "select account, standing from accounts
    where namespace = $1 and vault = $2 and account > $3 and account >= $4 and account < $5
    and (claim is null or claim <> 'opening') order by account limit $6";

/// A store on a SQL database. Commits and changes that wait are made together, in one transaction each.
pub struct SqlStore<D> {
    commits: Queue<Arc<Record>, bool>,
    changes: Queue<Vec<Change>, Vec<u64>>,
    surveys: Surveys,
    workers: Mutex<Vec<JoinHandle<()>>>,
    pub(crate) database: Arc<D>,
}

/// Starts a store with its workers, of which `committers` commit plans.
pub(crate) fn start<D: Database>(database: D, committers: u32) -> SqlStore<D> {
    let database = Arc::new(database);
    let (commits, reader) = Queue::new();
    let commit = |_| earmark_admission::spawn(work(reader.clone(), Commits(Arc::clone(&database))));
    let mut workers: Vec<_> = (0..committers).map(commit).collect();
    let (changes, reader) = Queue::new();
    workers.push(earmark_admission::spawn(work(reader, Changes(Arc::clone(&database)))));
    let (surveys, reader) = Surveys::new();
    for _ in 0..SURVEYORS {
        let database = Arc::clone(&database);
        let survey = move |survey: Survey| {
            let database = Arc::clone(&database);
            async move { surveyed(&*database, &survey).await }
        };
        workers.push(earmark_admission::spawn(surveys::work(reader.clone(), survey)));
    }
    SqlStore { commits, changes, surveys, workers: Mutex::new(workers), database }
}

async fn surveyed<D: Database>(database: &D, survey: &Survey) -> Result<Surveyed, StoreError> {
    let mut found = Surveyed {
        accounts: vec![None; survey.accounts.len()],
        posting_sets: vec![PostingSet::default(); survey.posting_sets.len()],
        client: None,
        assets: vec![None; survey.assets.len()],
    };
    for row in database.survey(survey).await? {
        rows::add_surveyed(&mut found, &row)?;
    }
    Ok(found)
}

impl<D: Database> Store for SqlStore<D> {
    fn commit(&self, record: Arc<Record>) -> Answer<'_, Result<bool, StoreError>> {
        debug_assert!(record.plan.claims.is_empty(), "a plan that claims accounts is a saga");
        Box::pin(self.commits.call(record))
    }

    fn write(&self, changes: Vec<Change>) -> Answer<'_, Result<Vec<u64>, StoreError>> {
        debug_assert!(changes.len() <= CHANGES_MAX, "a list of changes is bounded");
        // A process counts as dead unless its heartbeat is written in time.
        let is_urgent = |change: &Change| matches!(change, Change::Heartbeat(..) | Change::Leave(_));
        let is_urgent = changes.iter().all(is_urgent);
        Box::pin(self.changes.call_as(changes, is_urgent))
    }

    fn survey(&self, survey: Survey) -> Answer<'_, Result<Surveyed, StoreError>> {
        Box::pin(async move {
            match surveys::is_shared(&survey) {
                true => self.surveys.call(survey).await,
                false => surveyed(&*self.database, &survey).await,
            }
        })
    }

    fn entries(&self, gate: GateId) -> Answer<'_, Result<Vec<StoredEntry>, StoreError>> {
        Box::pin(async move { rows::entries(&self.database.read(ENTRIES, values![gate.to_string()]).await?) })
    }

    fn lease(&self, lease: LeaseKey) -> Answer<'_, Result<Vec<StoredEntry>, StoreError>> {
        Box::pin(async move {
            let values = values![lease.namespace.as_str(), lease.lease.to_string()];
            rows::entries(&self.database.read(LEASE, values).await?)
        })
    }

    fn held(&self, lease: LeaseKey) -> Answer<'_, Result<Vec<(Posting, PostingState)>, StoreError>> {
        Box::pin(async move {
            let values = values![lease.namespace.as_str(), lease.lease.to_string()];
            self.database.read(HELD, values).await?.iter().map(rows::posting).collect()
        })
    }

    fn record(&self, find: FindRecord) -> Answer<'_, Result<Option<StoredRecord>, StoreError>> {
        Box::pin(async move {
            let found = match find {
                FindRecord::Gate(gate) => self.database.read(RECORD_OF_GATE, values![gate.to_string()]).await?,
                FindRecord::Client(key) => {
                    let (namespace, vault) = (key.home.namespace.as_str(), key.home.vault.as_str());
                    let values = values![namespace, vault, key.client.as_str()];
                    self.database.read(RECORD_OF_CLIENT, values).await?
                }
            };
            found.first().map(rows::record).transpose()
        })
    }

    fn records(&self, filter: Filter, page: RecordPage) -> Answer<'_, Result<Records, StoreError>> {
        Box::pin(async move {
            let RecordPage { after, max } = page;
            match filter {
                Filter::OwnedBy(owner) => {
                    let values = values![owner.to_string(), after.begun_at_ms, after.rid, limit(max)];
                    rows::records(&self.database.read(RECORDS_OWNED_BY, values).await?, max)
                }
                Filter::Expired { except, since } => {
                    let (except, since) = (except.to_string(), signed(since.get()));
                    let values = values![except, after.begun_at_ms, after.rid, limit(max), since];
                    rows::records(&self.database.read(RECORDS_EXPIRED, values).await?, max)
                }
                Filter::Touching(account) => {
                    let name = format!("%\"{}\"%", account.account);
                    let found = self.database.read(RECORDS_TOUCHING, values![name]).await?;
                    let Records { mut found, unread, .. } = rows::records(&found, usize::MAX)?;
                    found.retain(|stored| stored.record.plan.accounts().contains(&&account));
                    found.truncate(max);
                    Ok(Records { found, unread, next: None })
                }
            }
        })
    }

    fn stale_owners(&self, stale: StaleOwners, max: usize) -> Answer<'_, Result<Vec<OwnerId>, StoreError>> {
        Box::pin(async move {
            let (ahead_of, expired_since) = (signed(stale.ahead_of.get()), signed(stale.expired_since.get()));
            let found = self.database.read(STALE_OWNERS, values![ahead_of, expired_since, limit(max)]).await?;
            found.iter().map(|row| row.parse("owner")).collect()
        })
    }

    fn orphans(&self, max: usize) -> Answer<'_, Result<Vec<ReservationId>, StoreError>> {
        Box::pin(async move {
            let found = self.database.read(ORPHANS, values![limit(max)]).await?;
            found.iter().map(|row| row.parse("rid")).collect()
        })
    }

    fn due(&self, due: DueQuery, max: usize) -> Answer<'_, Result<Vec<Posting>, StoreError>> {
        Box::pin(async move {
            let (now, ends_at) = (signed(due.now.get()), signed(due.after.ends_at.get()));
            let (id, max) = (due.after.id.to_string(), limit(max));
            let found = match &due.account {
                None => self.database.read(DUE, values![now, ends_at, id, max]).await?,
                Some(key) => {
                    let (namespace, vault) = (key.home.namespace.as_str(), key.home.vault.as_str());
                    let values = values![now, ends_at, id, max, namespace, vault, key.account.as_str()];
                    self.database.read(DUE_OF, values).await?
                }
            };
            found.iter().map(|row| rows::posting(row).map(|(posting, _)| posting)).collect()
        })
    }

    fn grants(&self, account: AccountKey) -> Answer<'_, Result<Vec<(Posting, PostingState)>, StoreError>> {
        Box::pin(async move {
            let (namespace, vault) = (account.home.namespace.as_str(), account.home.vault.as_str());
            let values = values![namespace, vault, account.account.as_str()];
            self.database.read(GRANTS, values).await?.iter().map(rows::posting).collect()
        })
    }

    fn plan_mark(&self, account: AccountKey) -> Answer<'_, Result<Option<(Posting, PostingState)>, StoreError>> {
        Box::pin(async move {
            let (namespace, vault) = (account.home.namespace.as_str(), account.home.vault.as_str());
            let values = values![namespace, vault, account.account.as_str()];
            self.database.read(PLAN_MARK, values).await?.first().map(rows::posting).transpose()
        })
    }

    fn expiring(&self, due: DueQuery, max: usize) -> Answer<'_, Result<Vec<Posting>, StoreError>> {
        Box::pin(async move {
            let (now, max) = (signed(due.now.get()), limit(max));
            let found = match &due.account {
                None => {
                    let values = values![now, signed(due.after.ends_at.get()), due.after.id.to_string(), max];
                    self.database.read(EXPIRING, values).await?
                }
                Some(key) => {
                    let (namespace, vault) = (key.home.namespace.as_str(), key.home.vault.as_str());
                    let values = values![now, namespace, vault, key.account.as_str(), max];
                    self.database.read(EXPIRING_OF, values).await?
                }
            };
            found.iter().map(|row| rows::posting(row).map(|(posting, _)| posting)).collect()
        })
    }

    fn funds(&self, account: AccountKey, as_of: AsOf) -> Answer<'_, Result<Vec<Funds>, StoreError>> {
        Box::pin(async move {
            let (namespace, vault) = (account.home.namespace.as_str(), account.home.vault.as_str());
            let (now, expiry) = (signed(as_of.now.get()), signed(as_of.expiry.get()));
            let values = values![namespace, vault, account.account.as_str(), now, expiry];
            let mut sums: BTreeMap<AssetName, Funds> = BTreeMap::new();
            for row in self.database.read(D::FUNDS, values).await? {
                let asset: AssetName = row.parse("asset")?;
                let none = || Funds { asset: asset.clone(), active: 0, expired: 0, pending: 0, held: 0, due: 0 };
                let funds = sums.entry(asset.clone()).or_insert_with(none);
                let amount = rows::saturated(&row.text("amount")?);
                let sum = match row.text("part")?.as_str() {
                    "active" => &mut funds.active,
                    "expired" => &mut funds.expired,
                    "pending" => &mut funds.pending,
                    "held" => &mut funds.held,
                    "due" => &mut funds.due,
                    _ => {
                        funds.due = funds.due.saturating_sub(amount);
                        &mut funds.held
                    }
                };
                *sum = sum.saturating_add(amount);
            }
            Ok(sums.into_values().collect())
        })
    }

    fn spendable(
        &self,
        account: AccountKey,
        asset: AssetName,
        as_of: AsOf,
    ) -> Answer<'_, Result<Spendable, StoreError>> {
        Box::pin(async move {
            let (namespace, vault) = (account.home.namespace.as_str(), account.home.vault.as_str());
            let (now, expiry) = (signed(as_of.now.get()), signed(as_of.expiry.get()));
            let values = values![namespace, vault, account.account.as_str(), now, asset.as_str(), expiry];
            let mut spendable = Spendable::default();
            for row in self.database.read(D::SPENDABLE, values).await? {
                let amount = rows::saturated(&row.text("amount")?);
                match row.text("part")?.as_str() {
                    "active" => spendable.active = spendable.active.saturating_add(amount),
                    "pending" => spendable.pending = spendable.pending.saturating_add(amount),
                    "due" => spendable.due = spendable.due.saturating_add(amount),
                    _ => spendable.due = spendable.due.saturating_sub(amount),
                }
            }
            Ok(spendable)
        })
    }

    fn assets_of(&self, account: AccountKey) -> Answer<'_, Result<Vec<AssetName>, StoreError>> {
        Box::pin(async move {
            let (namespace, vault) = (account.home.namespace.as_str(), account.home.vault.as_str());
            let values = values![namespace, vault, account.account.as_str(), limit(CHANGES_SEEN_MAX)];
            let found = self.database.read(ASSETS_OF, values).await?;
            found.iter().map(|row| row.parse("asset")).collect()
        })
    }

    fn accounts(
        &self,
        home: VaultKey,
        query: AccountQuery,
    ) -> Answer<'_, Result<Vec<(AccountName, AccountStatus)>, StoreError>> {
        Box::pin(async move {
            let (namespace, vault) = (home.namespace.as_str(), home.vault.as_str());
            let AccountQuery { prefix, after, page_size } = &query;
            let prefix = prefix.as_ref().map(AccountName::as_str).unwrap_or_default();
            let after = after.as_ref().map(AccountName::as_str).unwrap_or_default();
            // All characters of a name are smaller than this one.
            let end = format!("{prefix}\u{7f}");
            let values = values![namespace, vault, after, prefix, end, limit(page_size.saturating_add(1))];
            let found = self.database.read(ACCOUNTS, values).await?;
            found.iter().map(|row| Ok((row.parse("account")?, rows::standing(&row.text("standing")?)?))).collect()
        })
    }

    fn history(&self, account: AccountKey, query: HistoryQuery) -> Answer<'_, Result<Vec<StoredEntry>, StoreError>> {
        Box::pin(async move {
            let HistoryQuery { order, after, max } = query;
            let (sql, after) = match (order, after) {
                (EntryOrder::Ascending, after) => (D::HISTORY, signed(after)),
                (EntryOrder::Descending, 0) => (D::HISTORY_NEWEST, i64::MAX),
                (EntryOrder::Descending, before) => (D::HISTORY_NEWEST, signed(before)),
            };
            let (namespace, vault) = (account.home.namespace.as_str(), account.home.vault.as_str());
            let values = values![namespace, vault, account.account.as_str(), after, limit(max)];
            rows::entries(&self.database.read(sql, values).await?)
        })
    }

    fn transactions(&self, query: TransactionQuery) -> Answer<'_, Result<Transactions, StoreError>> {
        Box::pin(async move {
            let TransactionQuery { namespace, actor, after, max } = query;
            let commit = if after.is_start() { NEWEST_COMMIT } else { after.commit };
            let name = namespace.as_ref().map(NamespaceName::as_str);
            let [commit, given, max_rows, name] = values![commit.to_string(), signed(after.given), limit(max), name];
            let rows = match actor {
                None => self.database.read(D::TRANSACTIONS, [commit, given, max_rows, name]).await?,
                Some(actor) => {
                    let [actor] = values![actor.as_str()];
                    self.database.read(D::TRANSACTIONS_BY, [commit, given, max_rows, name, actor]).await?
                }
            };
            rows::transactions(&rows, after, max)
        })
    }

    fn census(&self, home: VaultKey) -> Answer<'_, Result<Census, StoreError>> {
        Box::pin(async move {
            let mut counted = Counted::default();
            let values = values![home.namespace.as_str(), home.vault.as_str()];
            for row in self.database.census(values).await? {
                let amount = row.text("amount")?;
                match row.text("part")?.as_str() {
                    "plan" => {
                        let plan = document::from_json::<Plan>(&amount).ok();
                        // An unreadable plan may touch any vault.
                        let touches =
                            plan.is_none_or(|plan| plan.accounts().iter().any(|account| account.home == home));
                        counted.records = counted.records.saturating_add(u64::from(touches));
                    }
                    "issued" => counted.sums(row.parse("asset")?).issued = parse("issued", &amount)?,
                    "expired" => counted.sums(row.parse("asset")?).expired = parse("expired", &amount)?,
                    "retired" => counted.sums(row.parse("asset")?).retired = parse("retired", &amount)?,
                    part => {
                        let amount = match row.int_or_null("low")? {
                            Some(low) => (rows::saturated(&amount) << 32).wrapping_add(low.into()),
                            // Rows added by hand may have sums beyond 128 bits.
                            None => rows::saturated(&amount),
                        };
                        counted.add(part == "live", row.parse("asset")?, row.parse("account")?, amount);
                    }
                }
            }
            Ok(counted.census())
        })
    }

    fn usage(&self, keys: Vec<UsageKey>) -> Answer<'_, Result<Vec<u64>, StoreError>> {
        Box::pin(async move {
            let columns: Vec<[&str; 3]> = keys.iter().map(UsageKey::columns).collect();
            let asked = serde_json::to_string(&columns).unwrap_or_default();
            let mut used = vec![0; keys.len()];
            for row in self.database.read(D::USAGE, values![asked]).await? {
                let place = usize::try_from(row.count("place")?).unwrap_or(usize::MAX);
                if let Some(used) = used.get_mut(place) {
                    *used = row.count("used")?;
                }
            }
            Ok(used)
        })
    }

    fn time(&self) -> Answer<'_, Result<Option<UnixMs>, StoreError>> {
        Box::pin(self.database.time())
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            self.commits.close();
            self.changes.close();
            self.surveys.close();
            let workers = std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner));
            for worker in workers {
                let _ = worker.await;
            }
            self.database.close().await;
        })
    }
}
