//! Whole plans as the arguments of the function `commit_plans`: an array for each column.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;

use crate::document;
use crate::model::{Entry, Posting, Record, UsageKey, VaultKey};
use crate::sql::{plan_text, shares_text, signed, terms_values};

const COMMIT: &str =
    "select commit_plans($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18,
    $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, $39, $40, $41, $42, $43,
    $44, $45, $46, $47, $48, $49, $50, $51, $52, $53, $54, $55, $56, $57, $58, $59, $60)";

/// The vaults of all plans, in order, and their indexes from 1.
type Homes<'a> = BTreeMap<&'a VaultKey, i32>;

/// The arguments. `plan`, `home` and `entry` are indexes from 1. The first letter says what a row is about, as in
/// `commit_plans`.
#[derive(Default)]
pub(super) struct Columns<'a> {
    v_namespace: Vec<&'a str>,
    v_vault: Vec<&'a str>,
    p_gate: Vec<String>,
    p_rid: Vec<String>,
    p_inputs: Vec<i32>,
    p_needs: Vec<i32>,
    p_home: Vec<Option<i32>>,
    p_client: Vec<Option<&'a str>>,
    p_sequence: Vec<Option<i64>>,
    p_owner: Vec<Option<String>>,
    i_plan: Vec<i32>,
    i_id: Vec<String>,
    i_extension: Vec<i32>,
    n_plan: Vec<i32>,
    n_home: Vec<i32>,
    n_account: Vec<&'a str>,
    n_spends: Vec<bool>,
    o_plan: Vec<i32>,
    o_id: Vec<String>,
    o_home: Vec<i32>,
    o_account: Vec<&'a str>,
    o_asset: Vec<&'a str>,
    o_amount: Vec<String>,
    o_lease: Vec<Option<String>>,
    o_limit: Vec<Option<&'a str>>,
    o_ends: Vec<Option<i64>>,
    o_used: Vec<String>,
    o_kept: Vec<String>,
    o_extension: Vec<i32>,
    o_priority: Vec<Option<i64>>,
    o_expires: Vec<Option<i64>>,
    o_shares: Vec<Option<String>>,
    o_mark: Vec<Option<String>>,
    e_plan: Vec<i32>,
    e_home: Vec<i32>,
    e_place: Vec<i32>,
    e_at: Vec<i64>,
    e_wall: Vec<i64>,
    e_kind: Vec<&'static str>,
    e_lease: Vec<Option<String>>,
    e_actor: Vec<Option<&'a str>>,
    e_body: Vec<String>,
    c_entry: Vec<i32>,
    c_account: Vec<&'a str>,
    c_asset: Vec<&'a str>,
    c_amount: Vec<String>,
    c_held: Vec<String>,
    t_plan: Vec<i32>,
    t_home: Vec<i32>,
    t_asset: Vec<&'a str>,
    t_issued: Vec<String>,
    t_retired: Vec<String>,
    t_expired: Vec<String>,
    k_namespace: Vec<&'a str>,
    k_vault: Vec<&'a str>,
    k_kind: Vec<&'a str>,
    g_plan: Vec<i32>,
    g_counter: Vec<i32>,
    g_added: Vec<i64>,
    g_max: Vec<i64>,
}

impl<'a> Columns<'a> {
    pub(super) fn of(records: &'a [Arc<Record>]) -> Columns<'a> {
        let (mut columns, mut homes) = (Columns::default(), homes(records));
        for ((home, place), at) in homes.iter_mut().zip(1..) {
            *place = at;
            columns.v_namespace.push(home.namespace.as_str());
            columns.v_vault.push(home.vault.as_str());
        }
        columns.add_growth(records);
        let (mut inputs, mut needs) = (Vec::new(), Vec::new());
        for (record, plan) in records.iter().zip(1..) {
            columns.add(&homes, plan, record);
            inputs.extend(record.plan.inputs.iter().map(|posting| (posting.id.to_string(), plan, extension(posting))));
            needs.extend(record.plan.needs.iter().map(|need| (need, plan)));
        }
        // All calls lock postings and accounts in this order.
        inputs.sort_unstable();
        needs.sort_unstable_by_key(|(need, _)| &need.account);
        for (id, plan, extension) in inputs {
            columns.i_id.push(id);
            columns.i_plan.push(plan);
            columns.i_extension.push(extension);
        }
        for (need, plan) in needs {
            columns.n_plan.push(plan);
            columns.n_home.push(place(&homes, &need.account.home));
            columns.n_account.push(need.account.account.as_str());
            columns.n_spends.push(need.spends);
        }
        columns
    }

    fn add(&mut self, homes: &Homes<'a>, plan: i32, record: &'a Record) {
        let claim = record.plan.sequence_claim.as_ref();
        self.p_gate.push(record.token.gate.to_string());
        self.p_rid.push(record.token.rid.to_string());
        self.p_inputs.push(small(record.plan.inputs.len()));
        self.p_needs.push(small(record.plan.needs.len()));
        self.p_home.push(claim.map(|claim| place(homes, &claim.client.home)));
        self.p_client.push(claim.map(|claim| claim.client.client.as_str()));
        // A sequence above 63 bits is never next.
        self.p_sequence.push(claim.map(|claim| i64::try_from(claim.sequence).unwrap_or(-1)));
        self.p_owner.push(claim.and_then(|claim| claim.owner.as_ref()).map(ToString::to_string));
        for posting in &record.plan.outputs {
            self.add_output(plan, place(homes, &posting.account.home), posting);
        }
        for (entry, at) in record.plan.entries.iter().zip(0..) {
            self.add_entry(plan, place(homes, &entry.home), at, entry);
        }
        for change in &record.plan.totals {
            self.t_plan.push(plan);
            self.t_home.push(place(homes, &change.asset.home));
            self.t_asset.push(change.asset.asset.as_str());
            self.t_issued.push(change.issued.to_string());
            self.t_retired.push(change.retired.to_string());
            self.t_expired.push(change.expired.to_string());
        }
    }

    /// The growth of all plans, and its counters in order.
    fn add_growth(&mut self, records: &'a [Arc<Record>]) {
        let growth =
            || records.iter().zip(1..).flat_map(|(record, plan)| record.plan.growth.iter().map(move |g| (g, plan)));
        let counters: BTreeSet<&UsageKey> = growth().map(|(growth, _)| &growth.key).collect();
        for [namespace, vault, kind] in counters.iter().map(|key| key.columns()) {
            self.k_namespace.push(namespace);
            self.k_vault.push(vault);
            self.k_kind.push(kind);
        }
        let counters: BTreeMap<&UsageKey, i32> = counters.into_iter().zip(1..).collect();
        for (growth, plan) in growth() {
            self.g_plan.push(plan);
            self.g_counter.push(counters.get(&growth.key).copied().unwrap_or_default());
            self.g_added.push(signed(growth.added));
            self.g_max.push(signed(growth.max));
        }
    }

    fn add_output(&mut self, plan: i32, home: i32, posting: &'a Posting) {
        let hold = posting.hold.as_ref();
        self.o_plan.push(plan);
        self.o_id.push(posting.id.to_string());
        self.o_home.push(home);
        self.o_account.push(posting.account.account.as_str());
        self.o_asset.push(posting.asset.as_str());
        self.o_amount.push(posting.amount.to_string());
        self.o_lease.push(hold.map(|hold| hold.lease.to_string()));
        self.o_limit.push(hold.map(|hold| hold.limit.as_str()));
        self.o_ends.push(hold.map(|hold| signed(hold.ends_at.get())));
        self.o_used.push(hold.map_or(0, |hold| hold.used).to_string());
        self.o_kept.push(hold.map_or(0, |hold| hold.kept).to_string());
        self.o_extension.push(extension(posting));
        let (priority, expires_at_ms) = terms_values(posting.terms);
        self.o_priority.push(priority.map(i64::from));
        self.o_expires.push(expires_at_ms);
        self.o_shares.push(shares_text(hold));
        self.o_mark.push(plan_text(posting.plan.as_deref()));
    }

    fn add_entry(&mut self, plan: i32, home: i32, place: i32, entry: &'a Entry) {
        self.e_plan.push(plan);
        self.e_home.push(home);
        self.e_place.push(place);
        self.e_at.push(signed(entry.at.log.get()));
        self.e_wall.push(signed(entry.at.wall.get()));
        self.e_kind.push(document::body_kind(&entry.body));
        self.e_lease.push(entry.body.lease().map(|lease| lease.to_string()));
        self.e_actor.push(document::actor(&entry.body));
        self.e_body.push(document::to_json(&entry.body));
        for change in &entry.changes {
            self.c_entry.push(small(self.e_plan.len()));
            self.c_account.push(change.account.as_str());
            self.c_asset.push(change.asset.as_str());
            self.c_amount.push(change.amount.to_string());
            self.c_held.push(change.held.to_string());
        }
    }

    /// The call of the function.
    pub(super) fn query(&self) -> Query<'_, Postgres, PgArguments> {
        let query = sqlx::query(COMMIT).bind(&self.v_namespace).bind(&self.v_vault);
        let query = query.bind(&self.p_gate).bind(&self.p_rid).bind(&self.p_inputs).bind(&self.p_needs);
        let query = query.bind(&self.p_home).bind(&self.p_client).bind(&self.p_sequence).bind(&self.p_owner);
        let query = query.bind(&self.i_plan).bind(&self.i_id).bind(&self.i_extension);
        let query = query.bind(&self.n_plan).bind(&self.n_home).bind(&self.n_account).bind(&self.n_spends);
        let query = query.bind(&self.o_plan).bind(&self.o_id).bind(&self.o_home).bind(&self.o_account);
        let query = query.bind(&self.o_asset).bind(&self.o_amount).bind(&self.o_lease);
        let query = query.bind(&self.o_limit).bind(&self.o_ends);
        let query = query.bind(&self.o_used).bind(&self.o_kept).bind(&self.o_extension);
        let query = query.bind(&self.o_priority).bind(&self.o_expires).bind(&self.o_shares).bind(&self.o_mark);
        let query = query.bind(&self.e_plan).bind(&self.e_home).bind(&self.e_place).bind(&self.e_at).bind(&self.e_wall);
        let query = query.bind(&self.e_kind).bind(&self.e_lease).bind(&self.e_actor).bind(&self.e_body);
        let query = query.bind(&self.c_entry).bind(&self.c_account).bind(&self.c_asset);
        let query = query.bind(&self.c_amount).bind(&self.c_held);
        let query = query.bind(&self.t_plan).bind(&self.t_home).bind(&self.t_asset);
        let query = query.bind(&self.t_issued).bind(&self.t_retired).bind(&self.t_expired);
        let query = query.bind(&self.k_namespace).bind(&self.k_vault).bind(&self.k_kind);
        query.bind(&self.g_plan).bind(&self.g_counter).bind(&self.g_added).bind(&self.g_max)
    }
}

fn homes<'a>(records: &'a [Arc<Record>]) -> Homes<'a> {
    let mut homes = Homes::new();
    for plan in records.iter().map(|record| &*record.plan) {
        let entries = plan.entries.iter().map(|entry| &entry.home);
        let outputs = plan.outputs.iter().map(|posting| &posting.account.home);
        let needs = plan.needs.iter().map(|need| &need.account.home);
        let totals = plan.totals.iter().map(|change| &change.asset.home);
        let client = plan.sequence_claim.as_ref().map(|claim| &claim.client.home);
        let all = entries.chain(outputs).chain(needs).chain(totals).chain(client);
        homes.extend(all.map(|home| (home, 0)));
    }
    homes
}

/// The index of a vault, which `homes` always contains.
fn place(homes: &Homes<'_>, home: &VaultKey) -> i32 {
    homes.get(home).copied().unwrap_or_default()
}

/// The last extension of the hold on a posting, which has at most 10,000.
fn extension(posting: &Posting) -> i32 {
    i32::try_from(posting.extension()).unwrap_or(i32::MAX)
}

/// A number of rows. A call has a few thousand.
fn small(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
