//! The statements of a survey.

use serde_json::{Value as Json, json};

use super::script::Script;
use crate::sql::database::values;
use crate::sql::limit;
use crate::store::{GRANT_POSTINGS_MAX, PostingQuery, Survey};

impl Script {
    /// Reads one posting set; nothing without a query.
    fn posting_set(&mut self, place: i64, query: Option<&PostingQuery>) {
        let home = query.map(|query| &query.account.home);
        let of = || {
            values![
                place,
                home.map(|home| home.namespace.as_str()),
                home.map(|home| home.vault.as_str()),
                query.map(|query| query.account.account.as_str()),
                query.map(|query| query.asset.as_str()),
            ]
        };
        let ends = |max: fn(&PostingQuery) -> usize| {
            let [place, namespace, vault, account, asset] = of();
            values![place, namespace, vault, account, asset, limit(query.map_or(0, max))]
        };
        self.push(
            "select 'owed' as part, ? as place, id as a, amount as b, null as c from postings
             where namespace = ? and vault = ? and account = ? and asset = ? and amount_order <= 0
             and state = 'active' and lease is null and priority is null",
            of(),
        );
        self.push(
            "select 'owed' as part, ? as place, id as a, amount as b, reservation_id as c from postings
             where namespace = ? and vault = ? and account = ? and asset = ? and amount_order <= 0
             and state = 'pending' and lease is null and priority is null",
            of(),
        );
        self.push(
            "select 'grant' as part, ? as place, id as a, amount as b, reservation_id as c,
                 priority || ' ' || coalesce(expires_at_ms, '') as d from postings
             where namespace = ? and vault = ? and account = ? and asset = ? and priority is not null
             and state <> 'inactive' order by priority, expires_at_ms is null, expires_at_ms, id limit ?",
            ends(|_| GRANT_POSTINGS_MAX),
        );
        self.push(
            "select 'large' as part, ? as place, id as a, amount as b, null as c from postings
             where namespace = ? and vault = ? and account = ? and asset = ? and amount_order > 0
             and state = 'active' and lease is null and priority is null order by amount_order desc, id desc limit ?",
            ends(|query| query.largest),
        );
        self.push(
            "select 'small' as part, ? as place, id as a, amount as b, null as c from postings
             where namespace = ? and vault = ? and account = ? and asset = ? and amount_order > 0
             and state = 'active' and lease is null and priority is null order by amount_order, id limit ?",
            ends(|query| query.smallest),
        );
        self.push(
            "select 'active' as part, ? as place, cast(count(*) as text) as a from (
                 select 1 from postings where namespace = ? and vault = ? and account = ? and asset = ?
                 and amount_order > 0 and state = 'active' and lease is null and priority is null limit ?)",
            ends(|query| query.count_max),
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
        script.push(
            "select 'account' as part, k.key as place, standing as a, overdraft as b, claimed_by as c, claim as d
             from json_each(?) k cross join accounts a
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
        script.push(
            "select 'client' as part, 0 as place, cast(last_sequence as text) as a, owner as b from clients
             where namespace = ? and vault = ? and client = ?",
            values![home.namespace.as_str(), home.vault.as_str(), key.client.as_str()],
        );
    }
    for (key, place) in survey.assets.iter().zip(0_i64..) {
        let home = &key.home;
        script.push(
            "select 'asset' as part, ? as place, issued as a, retired as b, expired as c from assets
             where namespace = ? and vault = ? and asset = ?",
            values![place, home.namespace.as_str(), home.vault.as_str(), key.asset.as_str()],
        );
    }
    script
}
