//! Sagas whose steps all came in one list, as what the function `commit_sagas` takes: an array for each column.

use std::collections::BTreeMap;

use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;

use crate::document;
use crate::model::{Entry, Posting, Record, VaultKey};
use crate::sql::signed;
use crate::sql::whole::WholeSagas;
use crate::store::Change;

/// Sagas to be committed together.
#[derive(Default)]
pub(super) struct Commit<'a> {
    sagas: WholeSagas<'a>,
    homes: Homes<'a>,
}

/// The vaults that sagas are about, in order, and the place of each.
type Homes<'a> = BTreeMap<&'a VaultKey, i32>;

impl<'a> Commit<'a> {
    /// Takes a list, if it is one that can be committed with those that were taken before.
    pub(super) fn take(&mut self, list: &'a [Change]) -> bool {
        let Some(record) = self.sagas.take(list) else { return false };
        let plan = &record.plan;
        let homes = plan.entries.iter().map(|entry| &entry.home);
        let homes = homes.chain(plan.outputs.iter().map(|posting| &posting.account.home));
        let homes = homes.chain(plan.needs.iter().map(|need| &need.account.home));
        let homes = homes.chain(plan.totals.iter().map(|change| &change.asset.home));
        let homes =
            homes.chain(plan.sequence_claim.as_ref().map(|sequence_claim| &sequence_claim.client.home));
        self.homes.extend(homes.map(|home| (home, 0)));
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sagas.records.is_empty()
    }

    /// Has the vaults that other lists number locked with its own.
    pub(super) fn lock(&mut self, others: impl Iterator<Item = &'a [Change]>) {
        for change in others.flatten() {
            if let Change::Record(_, plan) = change {
                self.homes.extend(plan.entries.iter().map(|entry| (&entry.home, 0)));
            }
        }
    }

    /// What the function takes.
    pub(super) fn columns(mut self) -> Columns<'a> {
        let mut columns = Columns::default();
        for ((home, place), at) in self.homes.iter_mut().zip(1..) {
            *place = at;
            columns.vaults.namespace.push(home.namespace.as_str());
            columns.vaults.vault.push(home.vault.as_str());
        }
        let (mut inputs, mut needs) = (Vec::new(), Vec::new());
        for (record, saga) in self.sagas.records.iter().zip(1..) {
            columns.add(&self.homes, saga, record);
            inputs.extend(record.plan.inputs.iter().map(|posting| (posting.id.to_string(), saga)));
            needs.extend(record.plan.needs.iter().map(|need| (need, saga)));
        }
        // In the order in which everybody locks them.
        inputs.sort_unstable();
        needs.sort_unstable_by_key(|(need, _)| &need.account);
        (columns.inputs.id, columns.inputs.saga) = inputs.into_iter().unzip();
        for (need, saga) in needs {
            columns.needs.saga.push(saga);
            columns.needs.home.push(self.homes.get(&need.account.home).copied().unwrap_or_default());
            columns.needs.account.push(need.account.account.as_str());
            columns.needs.spends.push(need.spends);
        }
        columns
    }
}

/// The arrays, by what their rows are about. `saga`, `home` and `entry` are places, counted from 1 as PostgreSQL does.
#[derive(Default)]
pub(super) struct Columns<'a> {
    vaults: Vaults<'a>,
    sagas: Sagas<'a>,
    inputs: Inputs,
    needs: Needs<'a>,
    outputs: Outputs<'a>,
    entries: Entries,
    changes: Changes<'a>,
    totals: Totals<'a>,
}

#[derive(Default)]
struct Vaults<'a> {
    namespace: Vec<&'a str>,
    vault: Vec<&'a str>,
}

#[derive(Default)]
struct Sagas<'a> {
    gate: Vec<String>,
    rid: Vec<String>,
    inputs: Vec<i32>,
    needs: Vec<i32>,
    home: Vec<Option<i32>>,
    client: Vec<Option<&'a str>>,
    sequence: Vec<Option<i64>>,
}

#[derive(Default)]
struct Inputs {
    saga: Vec<i32>,
    id: Vec<String>,
}

#[derive(Default)]
struct Needs<'a> {
    saga: Vec<i32>,
    home: Vec<i32>,
    account: Vec<&'a str>,
    spends: Vec<bool>,
}

#[derive(Default)]
struct Outputs<'a> {
    saga: Vec<i32>,
    id: Vec<String>,
    home: Vec<i32>,
    account: Vec<&'a str>,
    asset: Vec<&'a str>,
    amount: Vec<String>,
    lease: Vec<Option<String>>,
    limit: Vec<Option<&'a str>>,
    ends: Vec<Option<i64>>,
}

#[derive(Default)]
struct Entries {
    saga: Vec<i32>,
    home: Vec<i32>,
    place: Vec<i32>,
    at: Vec<i64>,
    kind: Vec<&'static str>,
    lease: Vec<Option<String>>,
    body: Vec<String>,
}

#[derive(Default)]
struct Changes<'a> {
    entry: Vec<i32>,
    account: Vec<&'a str>,
    asset: Vec<&'a str>,
    amount: Vec<String>,
    held: Vec<String>,
}

#[derive(Default)]
struct Totals<'a> {
    saga: Vec<i32>,
    home: Vec<i32>,
    asset: Vec<&'a str>,
    issued: Vec<String>,
    retired: Vec<String>,
}

impl<'a> Columns<'a> {
    fn add(&mut self, homes: &Homes<'a>, saga: i32, record: &'a Record) {
        // Every vault was noted when the saga was taken.
        let place = |home: &VaultKey| homes.get(home).copied().unwrap_or_default();
        let plan = &record.plan;
        self.sagas.add(
            record,
            plan.sequence_claim.as_ref().map(|sequence_claim| place(&sequence_claim.client.home)),
        );
        for posting in &plan.outputs {
            self.outputs.add(saga, place(&posting.account.home), posting);
        }
        for (entry, at) in plan.entries.iter().zip(0..) {
            self.entries.add(saga, place(&entry.home), at, entry);
            for change in &entry.changes {
                self.changes.entry.push(small(self.entries.saga.len()));
                self.changes.account.push(change.account.as_str());
                self.changes.asset.push(change.asset.as_str());
                self.changes.amount.push(change.amount.to_string());
                self.changes.held.push(change.held.to_string());
            }
        }
        for change in &plan.totals {
            self.totals.saga.push(saga);
            self.totals.home.push(place(&change.asset.home));
            self.totals.asset.push(change.asset.asset.as_str());
            self.totals.issued.push(change.issued.to_string());
            self.totals.retired.push(change.retired.to_string());
        }
    }

    /// Binds all of them, in the order of the function.
    pub(super) fn bind<'q>(
        &'q self,
        query: Query<'q, Postgres, PgArguments>,
    ) -> Query<'q, Postgres, PgArguments> {
        let Columns { vaults, sagas, inputs, needs, outputs, entries, changes, totals } = self;
        let query = query.bind(&vaults.namespace).bind(&vaults.vault);
        let query = query.bind(&sagas.gate).bind(&sagas.rid).bind(&sagas.inputs).bind(&sagas.needs);
        let query = query.bind(&sagas.home).bind(&sagas.client).bind(&sagas.sequence);
        let query = query.bind(&inputs.saga).bind(&inputs.id);
        let query = query.bind(&needs.saga).bind(&needs.home).bind(&needs.account).bind(&needs.spends);
        let query = query.bind(&outputs.saga).bind(&outputs.id).bind(&outputs.home).bind(&outputs.account);
        let query = query.bind(&outputs.asset).bind(&outputs.amount).bind(&outputs.lease);
        let query = query.bind(&outputs.limit).bind(&outputs.ends);
        let query = query.bind(&entries.saga).bind(&entries.home).bind(&entries.place).bind(&entries.at);
        let query = query.bind(&entries.kind).bind(&entries.lease).bind(&entries.body);
        let query = query.bind(&changes.entry).bind(&changes.account).bind(&changes.asset);
        let query = query.bind(&changes.amount).bind(&changes.held);
        let query = query.bind(&totals.saga).bind(&totals.home).bind(&totals.asset);
        query.bind(&totals.issued).bind(&totals.retired)
    }
}

impl<'a> Sagas<'a> {
    fn add(&mut self, record: &'a Record, home: Option<i32>) {
        let (plan, sequence_claim) = (&record.plan, record.plan.sequence_claim.as_ref());
        self.gate.push(record.token.gate.to_string());
        self.rid.push(record.token.rid.to_string());
        self.inputs.push(small(plan.inputs.len()));
        self.needs.push(small(plan.needs.len()));
        self.home.push(home);
        self.client.push(sequence_claim.map(|sequence_claim| sequence_claim.client.client.as_str()));
        // A number that no column can hold is nobody's turn.
        self.sequence
            .push(sequence_claim.map(|sequence_claim| i64::try_from(sequence_claim.sequence).unwrap_or(-1)));
    }
}

impl<'a> Outputs<'a> {
    fn add(&mut self, saga: i32, home: i32, posting: &'a Posting) {
        let hold = posting.hold.as_ref();
        self.saga.push(saga);
        self.id.push(posting.id.to_string());
        self.home.push(home);
        self.account.push(posting.account.account.as_str());
        self.asset.push(posting.asset.as_str());
        self.amount.push(posting.amount.to_string());
        self.lease.push(hold.map(|hold| hold.lease.to_string()));
        self.limit.push(hold.map(|hold| hold.limit.as_str()));
        self.ends.push(hold.map(|hold| signed(hold.ends_at.get())));
    }
}

impl Entries {
    fn add(&mut self, saga: i32, home: i32, place: i32, entry: &Entry) {
        self.saga.push(saga);
        self.home.push(home);
        self.place.push(place);
        self.at.push(signed(entry.at.get()));
        self.kind.push(document::body_kind(&entry.body));
        self.lease.push(entry.body.lease().map(|lease| lease.to_string()));
        self.body.push(document::body_to_json(&entry.body));
    }
}

/// A count of rows of one call, of which there are some thousand at most.
fn small(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
