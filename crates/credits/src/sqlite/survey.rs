//! The statements of a survey.

use serde_json::{Value as Json, json};

use super::script::Script;
use crate::sql::database::values;
use crate::sql::limit;
use crate::store::{GRANT_POSTINGS_MAX, PostingQuery, Survey};

/// A posting set as one row: a row less costs more than a posting less.
const POSTING_SET: &str = "
    select 'set' as part, ?1 as place,
        (select group_concat(id || ' ' || amount || ' ' || coalesce(reservation_id, '')) from (
            select id, amount, reservation_id from postings
            where namespace = ?2 and vault = ?3 and account = ?4 and asset = ?5 and amount_order <= 0
            and state = 'active' and lease is null and priority is null
            union all
            select id, amount, reservation_id from postings
            where namespace = ?2 and vault = ?3 and account = ?4 and asset = ?5 and amount_order <= 0
            and state = 'pending' and lease is null and priority is null)) as a,
        (select group_concat(id || ' ' || amount || ' ' || coalesce(reservation_id, '') || ' ' || priority || ' '
                || coalesce(expires_at_ms, '')) from (
            select id, amount, reservation_id, priority, expires_at_ms from postings
            where namespace = ?2 and vault = ?3 and account = ?4 and asset = ?5 and priority is not null
            and state <> 'inactive' order by priority, expires_at_ms is null, expires_at_ms, id limit ?6)) as b,
        (select group_concat(id || ' ' || amount) from (
            select id, amount from postings
            where namespace = ?2 and vault = ?3 and account = ?4 and asset = ?5 and amount_order > 0
            and state = 'active' and lease is null and priority is null
            order by amount_order desc, id desc limit ?7)) as c,
        (select group_concat(id || ' ' || amount) from (
            select id, amount from postings
            where namespace = ?2 and vault = ?3 and account = ?4 and asset = ?5 and amount_order > 0
            and state = 'active' and lease is null and priority is null
            order by amount_order, id limit ?8)) as d,
        (select cast(count(*) as text) from (
            select 1 from postings
            where namespace = ?2 and vault = ?3 and account = ?4 and asset = ?5 and amount_order > 0
            and state = 'active' and lease is null and priority is null limit ?9)) as e";

impl Script {
    /// Reads one posting set; nothing without a query.
    fn posting_set(&mut self, place: i64, query: Option<&PostingQuery>) {
        let home = query.map(|query| &query.account.home);
        let most = |max: fn(&PostingQuery) -> usize| limit(query.map_or(0, max));
        self.push_numbered(
            POSTING_SET,
            values![
                place,
                home.map(|home| home.namespace.as_str()),
                home.map(|home| home.vault.as_str()),
                query.map(|query| query.account.account.as_str()),
                query.map(|query| query.asset.as_str()),
                most(|_| GRANT_POSTINGS_MAX),
                most(|query| query.largest),
                most(|query| query.smallest),
                most(|query| query.count_max),
            ],
        );
    }
}

pub(super) fn script(survey: &Survey) -> Script {
    let mut script = Script::default();
    if !survey.accounts.is_empty() {
        let accounts = survey
            .accounts
            .iter()
            .map(|key| json!([key.home.namespace.as_str(), key.home.vault.as_str(), key.account.as_str()]));
        script.push_numbered(
            "select 'account' as part, k.key as place, standing as a, overdraft as b, claimed_by as c, claim as d
             from json_each(?1) k cross join accounts a
             on a.namespace = k.value->>0 and a.vault = k.value->>1 and a.account = k.value->>2",
            values![Json::from_iter(accounts).to_string()],
        );
    }
    // Rounding up bounds the number of shapes, each of which is prepared separately.
    let queries = &survey.posting_sets;
    let shape = if queries.is_empty() { 0 } else { queries.len().next_power_of_two() };
    for (query, place) in queries.iter().map(Some).chain(std::iter::repeat(None)).take(shape).zip(0_i64..) {
        script.posting_set(place, query);
    }
    if let Some(key) = &survey.client {
        let home = &key.home;
        script.push_numbered(
            "select 'client' as part, 0 as place, cast(last_sequence as text) as a, owner as b from clients
             where namespace = ?1 and vault = ?2 and client = ?3",
            values![home.namespace.as_str(), home.vault.as_str(), key.client.as_str()],
        );
    }
    for (key, place) in survey.assets.iter().zip(0_i64..) {
        let home = &key.home;
        script.push_numbered(
            "select 'asset' as part, ?1 as place, issued as a, retired as b, expired as c from assets
             where namespace = ?2 and vault = ?3 and asset = ?4",
            values![place, home.namespace.as_str(), home.vault.as_str(), key.asset.as_str()],
        );
    }
    script
}
