//! Whole plans: one read of the conditions of all plans, then the rows of those that can commit, table by table. The
//! write lock keeps the conditions true in between.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use earmark_core::GrantTerms;
use serde_json::{Value as Json, json};
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::error::refused;
use super::order::order;
use super::script::Script;
use crate::document;
use crate::model::{AccountChange, AssetKey, Entry, Growth, Plan, Posting, Record, SagaToken, UsageKey, VaultKey};
use crate::sql::database::values;
use crate::sql::{parse, plan_text, shares_text, signed, terms_values};
use crate::store::{AssetSums, StoreError};

/// The indexes of the plans that can commit.
const FIT: &str = "select 0, s.key, null, null, null from json_each(?) s
    where not exists (select 1 from entries where gate = s.value->>'gate')
    and not exists (select 1 from sagas where gate = s.value->>'gate')
    and (select count(distinct p.id) from json_each(s.value, '$.inputs') i cross join postings p
        where p.id = i.value->>0 and p.state = 'active' and p.extension = i.value->>1) = json_array_length(s.value, '$.inputs')
    and not exists (
        select 1 from json_each(s.value, '$.needs') n left join accounts a
        on a.namespace = n.value->>0 and a.vault = n.value->>1 and a.account = n.value->>2
        where case
            when a.account is null then 1
            when a.claim in ('opening', 'closing') then 1
            when a.standing = 'open' then 0
            when a.standing = 'frozen' then n.value->>3
            else 1 end)
    and (s.value->>'client' is null or coalesce((select last_sequence from clients
            where namespace = s.value->>'namespace' and vault = s.value->>'vault' and client = s.value->>'client'), 0)
            = s.value->>'last_sequence'
        and not exists (select 1 from sagas where client_namespace = s.value->>'namespace'
            and client_vault = s.value->>'vault' and client = s.value->>'client'))";

const LAST_NUMBERS: &str = "select 1, k.key, v.last_number, null, null from json_each(?) k
    cross join vaults v where v.namespace = k.value->>0 and v.vault = k.value->>1";

const USAGE: &str = "select 3, k.key, u.used, null, null from json_each(?) k
    cross join quota_usage u where u.namespace = k.value->>0 and u.vault = k.value->>1 and u.kind = k.value->>2";

const TOTALS: &str = "select 2, k.key, a.issued, a.retired, a.expired from json_each(?) k
    cross join assets a where a.namespace = k.value->>0 and a.vault = k.value->>1 and a.asset = k.value->>2";

/// Commits the plans that can commit; returns which. No two share a gate, a client or an input.
pub(super) async fn commit(
    connection: &mut SqliteConnection,
    records: &[Arc<Record>],
) -> Result<Vec<bool>, StoreError> {
    let mut found = Found::before(records.iter().map(|record| &*record.plan));
    for row in found.look(records).run(connection).await.map_err(refused)? {
        found.note(&row)?;
    }
    let mut rows = Rows::default();
    for (record, place) in records.iter().zip(0..) {
        if found.fit.contains(&place) && !found.grow(&record.plan) {
            found.fit.remove(&place);
        }
        if found.fit.contains(&place) {
            rows.add(record, &mut found);
        }
    }
    if !found.fit.is_empty() {
        rows.script(&found).run(connection).await.map_err(refused)?;
    }
    Ok((0..records.len()).map(|place| found.fit.contains(&place)).collect())
}

/// Writes the entries of a saga in phase `finalizing` unless they are written; returns their number.
pub(super) async fn record_entries(
    connection: &mut SqliteConnection,
    token: SagaToken,
    plan: &Plan,
) -> Result<u64, StoreError> {
    let mut script = Script::default();
    script.push("select 1 from sagas where gate = ? and not is_recorded", values![token.gate.to_string()]);
    if script.run(connection).await.map_err(refused)?.is_empty() {
        return Ok(0);
    }
    let mut found = Found::before(std::iter::once(plan));
    for row in found.look_at_sums(Script::default()).run(connection).await.map_err(refused)? {
        found.note(&row)?;
    }
    let mut rows = Rows::default();
    rows.add_entries(token, plan, &mut found);
    let mut script = rows.script(&found);
    script.push("update sagas set is_recorded = 1 where gate = ?", values![token.gate.to_string()]);
    script.run(connection).await.map_err(refused)?;
    Ok(plan.entries.len() as u64)
}

/// The scripts of a commit in which all plans can commit.
#[cfg(test)]
pub(super) fn scripts(records: &[Arc<Record>]) -> [Script; 2] {
    let mut found = Found::before(records.iter().map(|record| &*record.plan));
    let mut rows = Rows::default();
    let look = found.look(records);
    records.iter().for_each(|record| rows.add(record, &mut found));
    [look, rows.script(&found)]
}

/// The rows before the commit.
struct Found<'a> {
    fit: HashSet<usize>,
    last_numbers: BTreeMap<&'a VaultKey, u64>,
    totals: BTreeMap<&'a AssetKey, AssetSums>,
    /// The counters that the plans of a commit add to. The decision of a saga has added its growth already.
    usage: BTreeMap<&'a UsageKey, u64>,
}

impl<'a> Found<'a> {
    fn before(plans: impl Iterator<Item = &'a Plan> + Clone) -> Found<'a> {
        let plans = || plans.clone();
        let homes = plans().flat_map(|plan| &plan.entries).map(|entry| (&entry.home, 0));
        let assets = plans().flat_map(|plan| &plan.totals).map(|change| (&change.asset, AssetSums::default()));
        let (last_numbers, totals) = (homes.collect(), assets.collect());
        Found { fit: HashSet::new(), last_numbers, totals, usage: BTreeMap::new() }
    }

    /// Reads which plans can commit, and the rows that they add to.
    fn look(&mut self, records: &'a [Arc<Record>]) -> Script {
        let mut script = Script::default();
        let plans: Vec<Json> = records.iter().map(|record| conditions(record)).collect();
        script.push(FIT, values![Json::from(plans).to_string()]);
        self.usage = records.iter().flat_map(|record| &record.plan.growth).map(|growth| (&growth.key, 0)).collect();
        if !self.usage.is_empty() {
            let usage: Vec<Json> = self.usage.keys().map(|key| Json::from(key.columns().to_vec())).collect();
            script.push(USAGE, values![Json::from(usage).to_string()]);
        }
        self.look_at_sums(script)
    }

    /// Reads the last numbers and totals.
    fn look_at_sums(&self, mut script: Script) -> Script {
        let homes: Vec<Json> = self.last_numbers.keys().map(|home| home_of(home)).collect();
        script.push(LAST_NUMBERS, values![Json::from(homes).to_string()]);
        let assets = self
            .totals
            .keys()
            .map(|key| json!([key.home.namespace.as_str(), key.home.vault.as_str(), key.asset.as_str()]));
        script.push(TOTALS, values![Json::from(assets.collect::<Vec<_>>()).to_string()]);
        script
    }

    fn note(&mut self, row: &SqliteRow) -> Result<(), StoreError> {
        let (what, place): (i64, i64) = (row.try_get(0).map_err(refused)?, row.try_get(1).map_err(refused)?);
        let place = usize::try_from(place).unwrap_or(usize::MAX);
        match what {
            0 => drop(self.fit.insert(place)),
            1 => {
                let last: i64 = row.try_get(2).map_err(refused)?;
                if let Some(number) = self.last_numbers.values_mut().nth(place) {
                    *number = crate::sql::count("last_number", last)?;
                }
            }
            3 => {
                let used: i64 = row.try_get(2).map_err(refused)?;
                if let Some(found) = self.usage.values_mut().nth(place) {
                    *found = crate::sql::count("used", used)?;
                }
            }
            _ => {
                let total = |place: usize, name: &'static str| {
                    let total: String = row.try_get(place).map_err(refused)?;
                    parse(name, &total)
                };
                if let Some(sums) = self.totals.values_mut().nth(place) {
                    let (issued, retired, expired) = (total(2, "issued")?, total(3, "retired")?, total(4, "expired")?);
                    *sums = AssetSums { issued, retired, expired };
                }
            }
        }
        Ok(())
    }
}

impl Found<'_> {
    /// Writes the counters.
    fn push_usage(&self, script: &mut Script) {
        if self.usage.is_empty() {
            return;
        }
        let usage = self.usage.iter().map(|(key, used)| {
            let [namespace, vault, kind] = key.columns();
            json!([namespace, vault, kind, signed(*used)])
        });
        script.push(
            "insert into quota_usage (namespace, vault, kind, used)
             select value->>0, value->>1, value->>2, value->>3 from json_each(?) where true
             on conflict (namespace, vault, kind) do update set used = excluded.used",
            values![Json::from_iter(usage).to_string()],
        );
    }

    /// Adds the growth of a plan, if all its counters have room.
    fn grow(&mut self, plan: &Plan) -> bool {
        let used = |growth: &Growth| self.usage.get(&growth.key).copied().unwrap_or(0).saturating_add(growth.added);
        if plan.growth.iter().any(|growth| used(growth) > growth.max) {
            return false;
        }
        for growth in &plan.growth {
            if let Some(used) = self.usage.get_mut(&growth.key) {
                *used = used.saturating_add(growth.added);
            }
        }
        true
    }
}

fn home_of(home: &VaultKey) -> Json {
    json!([home.namespace.as_str(), home.vault.as_str()])
}

/// The conditions of a plan.
fn conditions(record: &Record) -> Json {
    let plan = &record.plan;
    let needs = plan.needs.iter().map(|need| {
        let (home, account) = (&need.account.home, need.account.account.as_str());
        json!([home.namespace.as_str(), home.vault.as_str(), account, i64::from(need.spends)])
    });
    let inputs: Vec<Json> = plan.inputs.iter().map(input).collect();
    let sequence_claim = plan.sequence_claim.as_ref();
    // A sequence above 63 bits is never next.
    let before = sequence_claim.map(|claim| claim.sequence.checked_sub(1).and_then(|last| i64::try_from(last).ok()));
    json!({
        "gate": record.token.gate.to_string(),
        "inputs": inputs,
        "needs": needs.collect::<Vec<_>>(),
        "namespace": sequence_claim.map(|claim| claim.client.home.namespace.as_str()),
        "vault": sequence_claim.map(|claim| claim.client.home.vault.as_str()),
        "client": sequence_claim.map(|claim| claim.client.client.as_str()),
        "last_sequence": before.map(|before| before.unwrap_or(-1)),
    })
}

/// The rows to write, by table.
#[derive(Default)]
struct Rows<'a> {
    consumed: Vec<Json>,
    /// Postings of plain credit. Most are: a column that has no value costs as much as one that has.
    created: Vec<Json>,
    /// Postings of grants, holds of grants, and plan marks.
    created_with_terms: Vec<Json>,
    entries: Vec<Json>,
    changes: Vec<Json>,
    clients: Vec<Json>,
    assets: BTreeSet<&'a AssetKey>,
}

impl<'a> Rows<'a> {
    fn add(&mut self, record: &'a Record, found: &mut Found<'_>) {
        let (plan, rid): (&Plan, String) = (&record.plan, record.token.rid.to_string());
        self.consumed.extend(plan.inputs.iter().map(|posting| json!([posting.id.to_string(), rid])));
        for posting in &plan.outputs {
            match has_terms(posting) {
                true => self.created_with_terms.push(created(posting)),
                false => self.created.push(Json::from(plain(posting))),
            }
        }
        self.add_entries(record.token, plan, found);
    }

    /// Adds the entries of a plan with their numbers, totals and the client's sequence.
    fn add_entries(&mut self, token: SagaToken, plan: &'a Plan, found: &mut Found<'_>) {
        for (entry, place) in plan.entries.iter().zip(0_u64..) {
            let number = found.last_numbers.get_mut(&entry.home).map_or(0, |last| {
                *last = last.saturating_add(1);
                *last
            });
            self.entry(token, entry, place, number);
        }
        for change in &plan.totals {
            if let Some(sums) = found.totals.get_mut(&change.asset) {
                sums.issued = sums.issued.saturating_add(change.issued);
                sums.retired = sums.retired.saturating_add(change.retired);
                sums.expired = sums.expired.saturating_add(change.expired);
            }
            self.assets.insert(&change.asset);
        }
        self.clients.extend(plan.sequence_claim.as_ref().map(|sequence_claim| {
            let home = &sequence_claim.client.home;
            let (namespace, vault) = (home.namespace.as_str(), home.vault.as_str());
            let (client, owner) = (sequence_claim.client.client.as_str(), sequence_claim.owner.as_ref());
            json!([namespace, vault, client, signed(sequence_claim.sequence), owner.map(ToString::to_string)])
        }));
    }

    fn entry(&mut self, token: SagaToken, entry: &Entry, place: u64, number: u64) {
        let (namespace, vault) = (entry.home.namespace.as_str(), entry.home.vault.as_str());
        self.entries.push(json!([
            namespace,
            vault,
            number,
            token.gate.to_string(),
            place,
            entry.at.log.get(),
            entry.at.wall.get(),
            document::body_kind(&entry.body),
            entry.body.lease().map(|lease| lease.to_string()),
            document::to_json(&entry.body),
        ]));
        self.changes.extend(entry.changes.iter().map(|change| changed(&entry.home, number, change)));
    }

    /// The statements that write the rows.
    fn script(self, found: &Found<'_>) -> Script {
        let mut script = Script::default();
        push_postings(&mut script, [self.consumed, self.created, self.created_with_terms]);
        let mut push = |sql: &'static str, rows: Vec<Json>| script.push(sql, values![Json::from(rows).to_string()]);
        push(
            "insert into entries (namespace, vault, number, gate, place, at_ms, wall_ms, kind, lease, body)
             select value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6, value->>7, value->>8,
                 value->>9
             from json_each(?)",
            self.entries,
        );
        push(
            "insert into changes (namespace, vault, number, account, asset, amount, amount_order, held, held_order)
             select value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6, value->>7, value->>8
             from json_each(?)",
            self.changes,
        );
        let last_numbers = found
            .last_numbers
            .iter()
            .map(|(home, number)| json!([home.namespace.as_str(), home.vault.as_str(), number]));
        push(
            "insert into vaults (namespace, vault, last_number)
             select value->>0, value->>1, value->>2 from json_each(?) where true
             on conflict (namespace, vault) do update set last_number = excluded.last_number",
            last_numbers.collect(),
        );
        let assets = found.totals.iter().filter(|(key, _)| self.assets.contains(*key));
        let totals = assets.map(|(key, sums)| {
            let (namespace, vault) = (key.home.namespace.as_str(), key.home.vault.as_str());
            let [issued, retired, expired] = [sums.issued, sums.retired, sums.expired].map(|sum| sum.to_string());
            json!([namespace, vault, key.asset.as_str(), issued, retired, expired])
        });
        push(
            "insert into assets (namespace, vault, asset, issued, retired, expired)
             select value->>0, value->>1, value->>2, value->>3, value->>4, value->>5 from json_each(?) where true
             on conflict (namespace, vault, asset) do update set issued = excluded.issued, retired = excluded.retired,
                 expired = excluded.expired",
            totals.collect(),
        );
        push(
            "insert into clients (namespace, vault, client, last_sequence, owner)
             select value->>0, value->>1, value->>2, value->>3, value->>4 from json_each(?) where true
             on conflict (namespace, vault, client) do update set last_sequence = excluded.last_sequence,
                 owner = coalesce(excluded.owner, clients.owner)",
            self.clients,
        );
        found.push_usage(&mut script);
        script
    }
}

/// Adds the statements that consume and create postings.
fn push_postings(script: &mut Script, [consumed, created, created_with_terms]: [Vec<Json>; 3]) {
    let mut push = |sql: &'static str, rows: Vec<Json>| script.push(sql, values![Json::from(rows).to_string()]);
    push(
        "update postings set state = 'inactive', reservation_id = c.value->>1 from json_each(?) c
         where postings.id = c.value->>0",
        consumed,
    );
    push(
        "insert into postings (id, namespace, vault, account, asset, amount, amount_order, lease, limit_key,
             ends_at_ms, used, kept, extension, state)
         select value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6, value->>7,
             value->>8, value->>9, value->>10, value->>11, value->>12, 'active'
         from json_each(?)",
        created,
    );
    if !created_with_terms.is_empty() {
        push(
            "insert into postings (id, namespace, vault, account, asset, amount, amount_order, lease, limit_key,
                 ends_at_ms, used, kept, extension, priority, expires_at_ms, shares, plan, state)
             select value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6, value->>7,
                 value->>8, value->>9, value->>10, value->>11, value->>12, value->>13, value->>14, value->>15,
                 value->>16, 'active'
             from json_each(?)",
            created_with_terms,
        );
    }
}

/// A posting to consume, as it was read.
pub(super) fn input(posting: &Posting) -> Json {
    json!([posting.id.to_string(), posting.extension()])
}

/// Whether a posting has values in the columns of grants, holds of grants, or plans.
fn has_terms(posting: &Posting) -> bool {
    let has_shares = posting.hold.as_ref().is_some_and(|hold| !hold.shares.is_empty());
    posting.terms != GrantTerms::PLAIN || has_shares || posting.plan.is_some()
}

/// A posting as a row, without the columns of grants.
fn plain(posting: &Posting) -> Vec<Json> {
    let (key, hold) = (&posting.account, posting.hold.as_ref());
    vec![
        posting.id.to_string().into(),
        key.home.namespace.as_str().into(),
        key.home.vault.as_str().into(),
        key.account.as_str().into(),
        posting.asset.as_str().into(),
        posting.amount.to_string().into(),
        order(posting.amount).into(),
        hold.map(|hold| hold.lease.to_string()).into(),
        hold.map(|hold| hold.limit.as_str()).into(),
        hold.map(|hold| hold.ends_at.get()).into(),
        hold.map_or(0, |hold| hold.used).to_string().into(),
        hold.map_or(0, |hold| hold.kept).to_string().into(),
        posting.extension().into(),
    ]
}

/// A posting as a row.
pub(super) fn created(posting: &Posting) -> Json {
    let (priority, expires_at_ms) = terms_values(posting.terms);
    let mut row = plain(posting);
    row.extend([priority.into(), expires_at_ms.into()]);
    row.extend([shares_text(posting.hold.as_ref()).into(), plan_text(posting.plan.as_deref()).into()]);
    Json::from(row)
}

/// The effect of an entry as a row.
fn changed(home: &VaultKey, number: u64, change: &AccountChange) -> Json {
    json!([
        home.namespace.as_str(),
        home.vault.as_str(),
        number,
        change.account.as_str(),
        change.asset.as_str(),
        change.amount.to_string(),
        order(change.amount),
        change.held.to_string(),
        order(change.held),
    ])
}
