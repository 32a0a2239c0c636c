//! The statement of a survey.

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Postgres};

use crate::sql::limit;
use crate::store::Survey;

const ACCOUNTS: &str =
    "select 'account' as part, k.place - 1 as place, a.standing as a, a.overdraft as b, a.claimed_by as c,
         a.claim as d, null as e
     from unnest(?1::text[], ?2::text[], ?3::text[]) with ordinality k (namespace, vault, account, place)
     join accounts a using (namespace, vault, account)";

/// Each posting set is one row.
const POSTING_SETS: &str = "select 'set', q.place - 1,
         (select string_agg(o.id || ' ' || o.amount || ' ' || coalesce(o.reservation_id, ''), ',') from (
             select o.id, o.amount, o.reservation_id from postings o
             where o.namespace = q.namespace and o.vault = q.vault and o.account = q.account and o.asset = q.asset
             and o.amount <= 0 and o.state = 'active' and o.lease is null and o.priority is null
             union all
             select o.id, o.amount, o.reservation_id from postings o
             where o.namespace = q.namespace and o.vault = q.vault and o.account = q.account and o.asset = q.asset
             and o.amount <= 0 and o.state = 'pending' and o.lease is null and o.priority is null) o),
         (select string_agg(o.id || ' ' || o.amount || ' ' || coalesce(o.reservation_id, '') || ' ' || o.priority || ' '
                 || coalesce(o.expires_at_ms::text, ''), ',') from (
             select o.id, o.amount, o.reservation_id, o.priority, o.expires_at_ms from postings o
             where o.namespace = q.namespace and o.vault = q.vault and o.account = q.account and o.asset = q.asset
             and o.priority is not null and o.state <> 'inactive'
             order by o.priority, o.expires_at_ms, o.id limit 2048) o),
         (select string_agg(o.id || ' ' || o.amount, ',') from (
             select o.id, o.amount from postings o
             where o.namespace = q.namespace and o.vault = q.vault and o.account = q.account and o.asset = q.asset
             and o.amount > 0 and o.state = 'active' and o.lease is null and o.priority is null
             order by o.amount desc, o.id desc limit q.largest) o),
         (select string_agg(o.id || ' ' || o.amount, ',') from (
             select o.id, o.amount from postings o
             where o.namespace = q.namespace and o.vault = q.vault and o.account = q.account and o.asset = q.asset
             and o.amount > 0 and o.state = 'active' and o.lease is null and o.priority is null
             order by o.amount, o.id limit q.smallest) o),
         (select count(*)::text from (
             select from postings o
             where o.namespace = q.namespace and o.vault = q.vault and o.account = q.account and o.asset = q.asset
             and o.amount > 0 and o.state = 'active' and o.lease is null and o.priority is null
             limit q.count_max) o)
     from unnest(?1::text[], ?2::text[], ?3::text[], ?4::text[], ?5::bigint[], ?6::bigint[], ?7::bigint[])
         with ordinality q (namespace, vault, account, asset, largest, smallest, count_max, place)";

const CLIENT: &str = "select 'client', 0, l.last_sequence::text, l.owner, null, null, null
     from clients l where l.namespace = ?1 and l.vault = ?2 and l.client = ?3";

const ASSETS: &str = "select 'asset', k.place - 1, a.issued::text, a.retired::text, a.expired::text, null, null
     from unnest(?1::text[], ?2::text[], ?3::text[]) with ordinality k (namespace, vault, asset, place)
     join assets a using (namespace, vault, asset)";

/// The text of a survey. Surveys of one shape have the same text, so that it is prepared once.
pub(super) fn text(survey: &Survey) -> String {
    // The first part names the columns, so it is always included.
    let mut parts = vec![(ACCOUNTS, 3)];
    parts.extend((!survey.posting_sets.is_empty()).then_some((POSTING_SETS, 7)));
    parts.extend(survey.client.is_some().then_some((CLIENT, 3)));
    parts.extend((!survey.assets.is_empty()).then_some((ASSETS, 3)));
    let (mut sql, mut used) = (Vec::with_capacity(parts.len()), 0_usize);
    for (part, values) in parts {
        let mut part = part.to_owned();
        for value in 1..=values {
            part = part.replace(&format!("?{value}"), &format!("${}", used.saturating_add(value)));
        }
        sql.push(part);
        used = used.saturating_add(values);
    }
    sql.join("\nunion all\n")
}

pub(super) fn query(survey: &Survey) -> Query<'_, Postgres, PgArguments> {
    fn texts<'a, T: 'a>(of: &'a [T], text: impl Fn(&'a T) -> &'a str) -> Vec<&'a str> {
        of.iter().map(text).collect()
    }
    let (accounts, queries, assets) = (&survey.accounts, &survey.posting_sets, &survey.assets);
    let mut query = sqlx::query(AssertSqlSafe(text(survey)))
        .bind(texts(accounts, |key| key.home.namespace.as_str()))
        .bind(texts(accounts, |key| key.home.vault.as_str()))
        .bind(texts(accounts, |key| key.account.as_str()));
    if !queries.is_empty() {
        query = query
            .bind(texts(queries, |each| each.account.home.namespace.as_str()))
            .bind(texts(queries, |each| each.account.home.vault.as_str()))
            .bind(texts(queries, |each| each.account.account.as_str()))
            .bind(texts(queries, |each| each.asset.as_str()))
            .bind(queries.iter().map(|each| limit(each.largest)).collect::<Vec<_>>())
            .bind(queries.iter().map(|each| limit(each.smallest)).collect::<Vec<_>>())
            .bind(queries.iter().map(|each| limit(each.count_max)).collect::<Vec<_>>());
    }
    if let Some(key) = &survey.client {
        query = query.bind(key.home.namespace.as_str()).bind(key.home.vault.as_str()).bind(key.client.as_str());
    }
    if !assets.is_empty() {
        query = query
            .bind(texts(assets, |key| key.home.namespace.as_str()))
            .bind(texts(assets, |key| key.home.vault.as_str()))
            .bind(texts(assets, |key| key.asset.as_str()));
    }
    query
}
