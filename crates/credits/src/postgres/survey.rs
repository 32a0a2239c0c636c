//! Sums, and what a plan is made from.

use earmark_core::{AccountName, AssetName, UnixMs};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Connection, Postgres};

use super::Inner;
use super::error::unread;
use super::read::get;
use crate::document;
use crate::model::{AccountKey, LivePosting, VaultKey};
use crate::sql::census::Counted;
use crate::sql::{AccountRow, limit, parse, signed};
use crate::store::{AssetSums, Census, Funds, PostingSet, Spendable, StoreError, Survey, Surveyed};

const ACCOUNTS: &str =
    "select 'account' as part, k.place, a.standing as a, a.overdraft as b, a.claimed_by as c, a.claim as d
     from unnest(?1::text[], ?2::text[], ?3::text[]) with ordinality k (namespace, vault, account, place)
     join accounts a using (namespace, vault, account)";

const PURSES: &str = "select p.part, q.place, p.a, p.b, p.c, null
     from unnest(?1::text[], ?2::text[], ?3::text[], ?4::text[], ?5::bigint[], ?6::bigint[], ?7::bigint[])
         with ordinality q (namespace, vault, account, asset, largest, smallest, count_max, place)
     cross join lateral (
         select 'owed' as part, o.id as a, o.amount::text as b, null as c from postings o
         where o.namespace = q.namespace and o.vault = q.vault and o.account = q.account and o.asset = q.asset
         and o.amount < 0 and o.state = 'active' and o.lease is null
         union all
         select 'owed', o.id, o.amount::text, o.reservation_id from postings o
         where o.namespace = q.namespace and o.vault = q.vault and o.account = q.account and o.asset = q.asset
         and o.amount < 0 and o.state = 'pending' and o.lease is null
         union all
         (select 'large', o.id, o.amount::text, null from postings o
         where o.namespace = q.namespace and o.vault = q.vault and o.account = q.account and o.asset = q.asset
         and o.amount > 0 and o.state = 'active' and o.lease is null
         order by o.amount desc, o.id desc limit q.largest)
         union all
         (select 'small', o.id, o.amount::text, null from postings o
         where o.namespace = q.namespace and o.vault = q.vault and o.account = q.account and o.asset = q.asset
         and o.amount > 0 and o.state = 'active' and o.lease is null
         order by o.amount, o.id limit q.smallest)
         union all
         select 'active', count(*)::text, null, null from (
             select from postings o
             where o.namespace = q.namespace and o.vault = q.vault and o.account = q.account and o.asset = q.asset
             and o.amount > 0 and o.state = 'active' and o.lease is null limit q.count_max) found) p";

const CLIENT: &str = "select 'client', 1, l.last_sequence::text, null, null, null
     from clients l where l.namespace = ?1 and l.vault = ?2 and l.client = ?3";

const ASSETS: &str = "select 'asset', k.place, a.issued::text, a.retired::text, null, null
     from unnest(?1::text[], ?2::text[], ?3::text[]) with ordinality k (namespace, vault, asset, place)
     join assets a using (namespace, vault, asset)";

/// What is asked for, as one statement. Surveys of the same shape have the same text, so that it is prepared once.
#[derive(Default)]
struct Question {
    sql: String,
    values: usize,
}

impl Question {
    /// Adds a part with its own values, `?1` up to `?9` at most.
    fn push(&mut self, part: &str, values: usize) {
        let mut part = part.to_owned();
        for value in 1..=values {
            let place = self.values.saturating_add(value);
            part = part.replace(&format!("?{value}"), &format!("${place}"));
        }
        if !self.sql.is_empty() {
            self.sql.push_str("\nunion all\n");
        }
        self.sql.push_str(&part);
        self.values = self.values.saturating_add(values);
    }
}

pub(super) fn question(survey: &Survey) -> String {
    let mut question = Question::default();
    // The first part names the columns, so it is always there.
    question.push(ACCOUNTS, 3);
    if !survey.posting_sets.is_empty() {
        question.push(PURSES, 7);
    }
    if survey.client.is_some() {
        question.push(CLIENT, 3);
    }
    if !survey.assets.is_empty() {
        question.push(ASSETS, 3);
    }
    question.sql
}

fn bound(survey: &Survey) -> Query<'_, Postgres, PgArguments> {
    fn texts<'a, T: 'a>(of: &'a [T], text: impl Fn(&'a T) -> &'a str) -> Vec<&'a str> {
        of.iter().map(text).collect()
    }
    let (accounts, posting_sets, assets) = (&survey.accounts, &survey.posting_sets, &survey.assets);
    let mut query = sqlx::query(AssertSqlSafe(question(survey)))
        .bind(texts(accounts, |key| key.home.namespace.as_str()))
        .bind(texts(accounts, |key| key.home.vault.as_str()))
        .bind(texts(accounts, |key| key.account.as_str()));
    if !posting_sets.is_empty() {
        query = query
            .bind(texts(posting_sets, |posting_set| posting_set.account.home.namespace.as_str()))
            .bind(texts(posting_sets, |posting_set| posting_set.account.home.vault.as_str()))
            .bind(texts(posting_sets, |posting_set| posting_set.account.account.as_str()))
            .bind(texts(posting_sets, |posting_set| posting_set.asset.as_str()))
            .bind(posting_sets.iter().map(|posting_set| limit(posting_set.largest)).collect::<Vec<_>>())
            .bind(posting_sets.iter().map(|posting_set| limit(posting_set.smallest)).collect::<Vec<_>>())
            .bind(posting_sets.iter().map(|posting_set| limit(posting_set.count_max)).collect::<Vec<_>>());
    }
    if let Some(key) = &survey.client {
        query =
            query.bind(key.home.namespace.as_str()).bind(key.home.vault.as_str()).bind(key.client.as_str());
    }
    if !assets.is_empty() {
        query = query
            .bind(texts(assets, |key| key.home.namespace.as_str()))
            .bind(texts(assets, |key| key.home.vault.as_str()))
            .bind(texts(assets, |key| key.asset.as_str()));
    }
    query
}

/// Puts a row where it belongs.
fn sort(found: &mut Surveyed, row: &PgRow) -> Result<(), StoreError> {
    let part: String = get(row, "part")?;
    // PostgreSQL counts from 1.
    let place = usize::try_from(get::<i64>(row, "place")?.saturating_sub(1)).unwrap_or(usize::MAX);
    let first: String = get(row, "a")?;
    let second = || get::<Option<String>>(row, "b").map(Option::unwrap_or_default);
    match part.as_str() {
        "account" => {
            let (claimed_by, claim) = (get(row, "c")?, get(row, "d")?);
            let account = AccountRow { standing: first, overdraft: second()?, claimed_by, claim };
            if let Some(slot) = found.accounts.get_mut(place) {
                *slot = Some(account.account()?);
            }
        }
        "client" => found.last_sequence = Some(parse("last_sequence", &first)?),
        "asset" => {
            let sums = AssetSums { issued: parse("issued", &first)?, retired: parse("retired", &second()?)? };
            if let Some(slot) = found.assets.get_mut(place) {
                *slot = Some(sums);
            }
        }
        which => {
            let Some(posting_set) = found.posting_sets.get_mut(place) else { return Ok(()) };
            if which == "active" {
                posting_set.active = parse("active", &first)?;
                return Ok(());
            }
            let rid: Option<String> = get(row, "c")?;
            let reserved_by = rid.map(|rid| parse("reservation_id", &rid)).transpose()?;
            let (id, amount) = (parse("id", &first)?, parse("amount", &second()?)?);
            let posting = LivePosting { id, amount, reserved_by };
            match which {
                "large" => posting_set.large.push(posting),
                "small" => posting_set.small.push(posting),
                _ => posting_set.owed.push(posting),
            }
        }
    }
    Ok(())
}

/// Sums by what becomes of the postings, cut to 128 bits.
pub(super) const FUNDS: &str = "
    select asset, sum(case when part = 'active' then amount else 0 end)::text as active,
        sum(case when part = 'pending' then amount else 0 end)::text as pending,
        sum(case when part = 'held' then amount else 0 end)::text as held,
        sum(case when part = 'due' then amount else 0 end)::text as due
    from (
        select asset, amount, 'active' as part from postings
        where namespace = $1 and vault = $2 and account = $3 and state = 'active' and lease is null
        union all
        select asset, amount, 'pending' from postings
        where state = 'pending' and lease is null and namespace = $1 and vault = $2 and account = $3
        union all
        select asset, amount, case when ends_at <= 'epoch'::timestamptz + $4 * interval '1 millisecond'
            then 'due' else 'held' end from postings
        where namespace = $1 and vault = $2 and account = $3 and lease is not null and state <> 'inactive') parts
    group by asset order by asset";

pub(super) const SPENDABLE: &str = "
    select coalesce(sum(case when part = 'active' then amount end), 0)::text as active,
        coalesce(sum(case when part = 'pending' then amount end), 0)::text as pending,
        coalesce(sum(case when part = 'due' then amount end), 0)::text as due
    from (
        select amount, 'active' as part from postings
        where namespace = $1 and vault = $2 and account = $3 and asset = $5
        and state = 'active' and lease is null
        union all
        select amount, 'pending' from postings
        where state = 'pending' and lease is null
        and namespace = $1 and vault = $2 and account = $3 and asset = $5
        union all
        select amount, 'due' from postings
        where namespace = $1 and vault = $2 and account = $3 and asset = $5
        and ends_at <= 'epoch'::timestamptz + $4 * interval '1 millisecond'
        and lease is not null and state <> 'inactive') parts";

impl Inner {
    pub(super) async fn survey(&self, survey: &Survey) -> Result<Surveyed, StoreError> {
        let mut found = Surveyed {
            accounts: vec![None; survey.accounts.len()],
            posting_sets: vec![PostingSet::default(); survey.posting_sets.len()],
            last_sequence: None,
            assets: vec![None; survey.assets.len()],
        };
        for row in self.rows(bound(survey)).await? {
            sort(&mut found, &row)?;
        }
        Ok(found)
    }

    pub(super) async fn funds(&self, account: &AccountKey, now: UnixMs) -> Result<Vec<Funds>, StoreError> {
        let query = sqlx::query(FUNDS)
            .bind(account.home.namespace.as_str())
            .bind(account.home.vault.as_str())
            .bind(account.account.as_str())
            .bind(signed(now.get()));
        let found = self.rows(query).await?;
        let funds = found.iter().map(|row| {
            let asset: AssetName = parse("asset", &get::<String>(row, "asset")?)?;
            let part = |column| get::<String>(row, column).map(|text| saturated(&text));
            let (active, pending) = (part("active")?, part("pending")?);
            Ok(Funds { asset, active, pending, held: part("held")?, due: part("due")? })
        });
        funds.collect()
    }

    pub(super) async fn spendable(
        &self,
        account: &AccountKey,
        asset: &AssetName,
        now: UnixMs,
    ) -> Result<Spendable, StoreError> {
        let query = sqlx::query(SPENDABLE)
            .bind(account.home.namespace.as_str())
            .bind(account.home.vault.as_str())
            .bind(account.account.as_str())
            .bind(signed(now.get()))
            .bind(asset.as_str());
        let found = self.rows(query).await?;
        let Some(row) = found.first() else { return Ok(Spendable::default()) };
        let part = |column| get::<String>(row, column).map(|text| saturated(&text));
        Ok(Spendable { active: part("active")?, pending: part("pending")?, due: part("due")? })
    }

    pub(super) async fn census(&self, home: &VaultKey) -> Result<Census, StoreError> {
        let mut pooled = self.pool.acquire().await?;
        // At this isolation all reads see the same moment.
        let begin = "begin isolation level repeatable read, read only";
        let mut transaction = pooled.connection.begin_with(begin).await.map_err(unread)?;
        // The audit reads whole tables, in their own order and for as long as that takes.
        let whole = "set local enable_seqscan to on; set local statement_timeout to 0";
        sqlx::raw_sql(whole).execute(&mut *transaction).await.map_err(unread)?;
        let mut counted = Counted::default();
        let (namespace, vault) = (home.namespace.as_str(), home.vault.as_str());
        for (part, sql) in CENSUS {
            let query = sqlx::query(sql).bind(namespace).bind(vault);
            for row in query.fetch_all(&mut *transaction).await.map_err(unread)? {
                counted.add(part, &row, home)?;
            }
        }
        transaction.rollback().await.map_err(unread)?;
        pooled.release();
        Ok(counted.census())
    }
}

#[derive(Clone, Copy)]
enum Part {
    Assets,
    Live,
    GateGuard,
    Records,
}

const CENSUS: [(Part, &str); 4] = [
    (
        Part::Assets,
        "select asset, issued::text as issued, retired::text as retired from assets
         where namespace = $1 and vault = $2",
    ),
    (
        Part::Live,
        "select asset, account, sum(amount)::text as amount from postings
         where namespace = $1 and vault = $2 and state <> 'inactive' group by asset, account",
    ),
    (
        Part::GateGuard,
        "select asset, account, (sum(amount) + sum(held))::text as amount from changes
         where namespace = $1 and vault = $2 group by asset, account",
    ),
    (
        Part::Records,
        "select plan::text as plan from sagas
         where strpos(plan::text, '\"' || $1 || '\"') > 0 and strpos(plan::text, '\"' || $2 || '\"') > 0",
    ),
];

impl Counted {
    fn add(&mut self, part: Part, row: &PgRow, home: &VaultKey) -> Result<(), StoreError> {
        if let Part::Records = part {
            let plan = document::plan_from_json(&get::<String>(row, "plan")?).ok();
            // One that cannot be read may touch anything.
            let touches = plan.is_none_or(|plan| plan.accounts().iter().any(|account| account.home == *home));
            self.records = self.records.saturating_add(u64::from(touches));
            return Ok(());
        }
        let asset: AssetName = parse("asset", &get::<String>(row, "asset")?)?;
        if let Part::Assets = part {
            let (issued, retired): (String, String) = (get(row, "issued")?, get(row, "retired")?);
            let sums = AssetSums { issued: parse("issued", &issued)?, retired: parse("retired", &retired)? };
            self.assets.insert(asset, sums);
            return Ok(());
        }
        let account: AccountName = parse("account", &get::<String>(row, "account")?)?;
        let text: String = get(row, "amount")?;
        // Rows that were made by hand may add up to more than an account can have.
        let amount = saturated(&text);
        match part {
            Part::Live => self.add_live(asset, account, amount),
            _ => self.add_entered(asset, account, amount),
        }
        Ok(())
    }
}

/// The number that a sum is, cut to 128 bits.
fn saturated(text: &str) -> i128 {
    let most = if text.starts_with('-') { i128::MIN } else { i128::MAX };
    text.parse().unwrap_or(most)
}
