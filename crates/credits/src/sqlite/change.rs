//! Each change as conditional statements. They run inside the one transaction of the writer, so that a change of several
//! statements is whole.

use earmark_core::AccountName;
use serde_json::{Value as Json, json};

use super::commit::created;
use super::record::ids;
use super::script::{Script, Value, values};
use crate::document;
use crate::id::ReservationId;
use crate::model::{AssetKey, ClaimKind, Plan, Record, SagaToken, VaultKey};
use crate::sql::{claim_word, entries_by_vault, overdraft_word, signed, standing_word};
use crate::store::{AssetSums, Change};

/// What was ever issued and retired of the assets that a list of changes counts.
pub(super) type Totals = Vec<(AssetKey, AssetSums)>;

/// Where what a script finds belongs: how many rows were changed goes to the change of this place.
const COUNT: &str = "select ?, changes()";

fn of(token: &SagaToken) -> [Value; 3] {
    values![token.gate.to_string(), token.rid.to_string(), token.owner.to_string()]
}

impl Script {
    pub(super) fn counted<const N: usize>(&mut self, place: usize, sql: &'static str, values: [Value; N]) {
        self.push(sql, values);
        self.push(COUNT, values![signed(place as u64)]);
    }

    /// Adds a change. The totals are those before it, of all assets that it counts.
    pub(super) fn change(&mut self, place: usize, change: &Change, totals: &Totals) {
        match change {
            Change::OpenVault(home) => self.open_vault(place, home),
            Change::Begin(record) => self.begin(place, record),
            Change::Claim(token, plan) => self.claim(place, token, plan),
            Change::Reserve(token, plan) => self.reserve(place, token, plan),
            Change::Decide(token, plan) => self.decide(place, token, plan),
            Change::Finalize(token, plan) => self.finalize(place, token, plan),
            Change::Create(token, plan) => self.create(place, token, plan),
            Change::Apply(token, plan) => self.apply(place, token, plan),
            Change::Record(token, plan) => self.record(place, token, plan, totals),
            Change::Abort(token) => self.counted(
                place,
                "update sagas set phase = 'releasing'
                 where gate = ? and reservation_id = ? and owner = ? and phase = 'reserving'",
                of(token),
            ),
            Change::Release(rid) => self.release(place, *rid),
            Change::Unclaim(rid) => self.unclaim(place, *rid),
            Change::End(token) => self.counted(
                place,
                "delete from sagas where gate = ? and reservation_id = ? and owner = ?
                 and (phase = 'releasing' or (phase = 'finalizing' and is_recorded))",
                of(token),
            ),
            Change::TakeOver { token, to, expired_since } => {
                let [gate, rid, owner] = of(token);
                self.counted(
                    place,
                    "update sagas set owner = ? where gate = ? and reservation_id = ? and owner = ?
                     and not exists (select 1 from owners where owner = sagas.owner and heard_at_ms >= ?)",
                    values![to.to_string(), gate, rid, owner, signed(expired_since.get())],
                );
            }
            Change::Heartbeat(owner, at) => self.counted(
                place,
                "insert into owners (owner, heard_at_ms) values (?, ?)
                 on conflict (owner) do update set heard_at_ms = excluded.heard_at_ms",
                values![owner.to_string(), signed(at.get())],
            ),
            Change::Leave(owner) => {
                self.counted(place, "delete from owners where owner = ?", values![owner.to_string()]);
            }
        }
    }

    fn open_vault(&mut self, place: usize, home: &VaultKey) {
        let (namespace, vault) = (home.namespace.as_str(), home.vault.as_str());
        self.counted(
            place,
            "insert into vaults (namespace, vault) values (?, ?) on conflict do nothing",
            values![namespace, vault],
        );
        self.counted(
            place,
            "insert into accounts (namespace, vault, account, standing, overdraft)
             values (?, ?, ?, 'open', 'deny') on conflict do nothing",
            values![namespace, vault, AccountName::REVENUE],
        );
    }

    fn begin(&mut self, place: usize, record: &Record) {
        let [gate, rid, owner] = of(&record.token);
        let lease = record.lease.as_ref();
        let client = record.plan.sequence_claim.as_ref().map(|sequence_claim| &sequence_claim.client);
        self.counted(
            place,
            "insert into sagas (gate, reservation_id, owner, phase, lease_namespace, lease, begun_at_ms,
                 client_namespace, client_vault, client, plan)
             values (?, ?, ?, 'reserving', ?, ?, ?, ?, ?, ?, ?) on conflict do nothing",
            values![
                gate,
                rid,
                owner,
                lease.map(|lease| lease.namespace.as_str()),
                lease.map(|lease| lease.lease.to_string()),
                signed(record.begun_at.get()),
                client.map(|client| client.home.namespace.as_str()),
                client.map(|client| client.home.vault.as_str()),
                client.map(|client| client.client.as_str()),
                document::plan_to_json(&record.plan),
            ],
        );
    }

    fn claim(&mut self, place: usize, token: &SagaToken, plan: &Plan) {
        let claims = |is_opened: bool| {
            let meant = plan.claims.iter().filter(|claim| (claim.kind == ClaimKind::Opening) == is_opened);
            let claims = meant.map(|claim| {
                let (home, kind) = (&claim.account.home, claim_word(claim.kind));
                let (from, overdraft) = (standing_word(claim.from), overdraft_word(claim.overdraft));
                let (namespace, vault) = (home.namespace.as_str(), home.vault.as_str());
                json!([namespace, vault, claim.account.account.as_str(), kind, from, overdraft])
            });
            claims.collect::<Vec<Json>>()
        };
        let [gate, rid, owner] = of(token);
        let (opened, changed) = (claims(true), claims(false));
        if !opened.is_empty() {
            self.counted(
                place,
                "insert into accounts (namespace, vault, account, claim, standing, overdraft, claimed_by)
                 select value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, ? from json_each(?)
                 where exists (select 1 from sagas
                     where gate = ? and reservation_id = ? and owner = ? and phase = 'reserving')
                 on conflict do nothing",
                values![
                    rid.clone(),
                    Json::from(opened).to_string(),
                    gate.clone(),
                    rid.clone(),
                    owner.clone()
                ],
            );
        }
        if !changed.is_empty() {
            self.counted(
                place,
                "update accounts set claimed_by = ?, claim = c.value->>3 from json_each(?) c
                 where accounts.namespace = c.value->>0 and accounts.vault = c.value->>1
                 and accounts.account = c.value->>2 and accounts.standing = c.value->>4
                 and accounts.claimed_by is null
                 and exists (select 1 from sagas
                     where gate = ? and reservation_id = ? and owner = ? and phase = 'reserving')",
                values![rid.clone(), Json::from(changed).to_string(), gate, rid, owner],
            );
        }
    }

    fn reserve(&mut self, place: usize, token: &SagaToken, plan: &Plan) {
        if plan.inputs.is_empty() {
            return;
        }
        let [gate, rid, owner] = of(token);
        self.counted(
            place,
            "update postings set state = 'pending', reservation_id = ?
             where id in (select value from json_each(?)) and state = 'active'
             and exists (select 1 from sagas
                 where gate = ? and reservation_id = ? and owner = ? and phase = 'reserving')",
            values![rid.clone(), ids(&plan.inputs), gate, rid, owner],
        );
    }

    fn decide(&mut self, place: usize, token: &SagaToken, plan: &Plan) {
        let [gate, rid, owner] = of(token);
        let needs = plan.needs.iter().map(|need| {
            let (home, account) = (&need.account.home, need.account.account.as_str());
            json!([home.namespace.as_str(), home.vault.as_str(), account, i64::from(need.spends)])
        });
        let needs = Json::from(needs.collect::<Vec<_>>()).to_string();
        let sequence_claim = plan.sequence_claim.as_ref();
        // A number that no column can hold is nobody's turn.
        let before = sequence_claim.map(|sequence_claim| {
            sequence_claim.sequence.checked_sub(1).and_then(|last| i64::try_from(last).ok())
        });
        self.counted(
            place,
            "update sagas set phase = 'finalizing'
             where gate = ? and reservation_id = ? and owner = ? and phase = 'reserving'
             and not exists (select 1 from entries where entries.gate = sagas.gate)
             and not exists (
                 select 1 from json_each(?) n left join accounts a
                 on a.namespace = n.value->>0 and a.vault = n.value->>1 and a.account = n.value->>2
                 where case
                     when a.account is null then 1
                     when a.claimed_by = ? then 0
                     when a.claim in ('opening', 'closing') then 1
                     when a.standing = 'open' then 0
                     when a.standing = 'frozen' then n.value->>3
                     else 1 end)
             and coalesce((select last_sequence from clients
                 where namespace = ? and vault = ? and client = ?), 0) = ?
             and (select count(*) from postings where state = 'pending' and reservation_id = ?) = ?
             and (select count(*) from accounts where claimed_by = ?) = ?",
            values![
                gate,
                rid.clone(),
                owner,
                needs,
                rid.clone(),
                sequence_claim.map(|sequence_claim| sequence_claim.client.home.namespace.as_str()),
                sequence_claim.map(|sequence_claim| sequence_claim.client.home.vault.as_str()),
                sequence_claim.map(|sequence_claim| sequence_claim.client.client.as_str()),
                before.map_or(0, |before| before.unwrap_or(-1)),
                rid.clone(),
                signed(plan.inputs.len() as u64),
                rid,
                signed(plan.claims.len() as u64),
            ],
        );
    }

    fn finalize(&mut self, place: usize, token: &SagaToken, plan: &Plan) {
        if plan.inputs.is_empty() {
            return;
        }
        let [gate, rid, owner] = of(token);
        self.counted(
            place,
            "update postings set state = 'inactive'
             where id in (select value from json_each(?)) and state = 'pending' and reservation_id = ?
             and exists (select 1 from sagas
                 where gate = ? and reservation_id = ? and owner = ? and phase = 'finalizing')",
            values![ids(&plan.inputs), rid.clone(), gate, rid, owner],
        );
    }

    fn create(&mut self, place: usize, token: &SagaToken, plan: &Plan) {
        if plan.outputs.is_empty() {
            return;
        }
        let outputs = plan.outputs.iter().map(created);
        let outputs = Json::from(outputs.collect::<Vec<_>>()).to_string();
        let [gate, rid, owner] = of(token);
        self.counted(
            place,
            "insert into postings (id, namespace, vault, account, asset, amount, amount_order, lease, limit_key,
                 ends_at_ms, state)
             select value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6, value->>7,
                 value->>8, value->>9, 'active'
             from json_each(?)
             where exists (select 1 from sagas
                 where gate = ? and reservation_id = ? and owner = ? and phase = 'finalizing')
             on conflict do nothing",
            values![outputs, gate, rid, owner],
        );
    }

    fn apply(&mut self, place: usize, token: &SagaToken, plan: &Plan) {
        if plan.claims.is_empty() {
            return;
        }
        let claims = plan.claims.iter().map(|claim| {
            let (home, account) = (&claim.account.home, claim.account.account.as_str());
            json!([home.namespace.as_str(), home.vault.as_str(), account, standing_word(claim.to)])
        });
        let claims = Json::from(claims.collect::<Vec<_>>()).to_string();
        let [gate, rid, owner] = of(token);
        self.counted(
            place,
            "update accounts set standing = c.value->>3, claimed_by = null, claim = null from json_each(?) c
             where accounts.namespace = c.value->>0 and accounts.vault = c.value->>1
             and accounts.account = c.value->>2 and accounts.claimed_by = ?
             and exists (select 1 from sagas
                 where gate = ? and reservation_id = ? and owner = ? and phase = 'finalizing')",
            values![claims, rid.clone(), gate, rid, owner],
        );
    }

    fn release(&mut self, place: usize, rid: ReservationId) {
        self.counted(
            place,
            "update postings set state = 'active', reservation_id = null
             where state = 'pending' and reservation_id = ?
             and not exists (select 1 from sagas where reservation_id = ? and phase <> 'releasing')",
            values![rid.to_string(), rid.to_string()],
        );
    }

    fn unclaim(&mut self, place: usize, rid: ReservationId) {
        self.counted(
            place,
            "delete from accounts where claimed_by = ? and claim = 'opening'
             and not exists (select 1 from sagas where reservation_id = ? and phase <> 'releasing')",
            values![rid.to_string(), rid.to_string()],
        );
        self.counted(
            place,
            "update accounts set claimed_by = null, claim = null where claimed_by = ?
             and not exists (select 1 from sagas where reservation_id = ? and phase <> 'releasing')",
            values![rid.to_string(), rid.to_string()],
        );
    }

    /// Every statement has the same condition, that the record is not marked yet; the last one marks it.
    fn record(&mut self, place: usize, token: &SagaToken, plan: &Plan, totals: &Totals) {
        let [gate, rid, owner] = of(token);
        let of = || values![gate.clone(), rid.clone(), owner.clone()];
        for (home, count) in entries_by_vault(plan) {
            let [gate, rid, owner] = of();
            self.push(
                "insert into vaults (namespace, vault, last_number) select ?, ?, ?
                 where exists (select 1 from sagas where gate = ? and reservation_id = ? and owner = ?
                     and phase = 'finalizing' and not is_recorded)
                 on conflict (namespace, vault) do update set last_number = last_number + excluded.last_number",
                values![home.namespace.as_str(), home.vault.as_str(), signed(count), gate, rid, owner],
            );
        }
        self.insert_entries(place, token, plan);
        self.count_totals(token, plan, totals);
        if let Some(sequence_claim) = &plan.sequence_claim {
            let [gate, rid, owner] = of();
            let home = &sequence_claim.client.home;
            self.push(
                "insert into clients (namespace, vault, client, last_sequence) select ?, ?, ?, ?
                 where exists (select 1 from sagas where gate = ? and reservation_id = ? and owner = ?
                     and phase = 'finalizing' and not is_recorded)
                 on conflict (namespace, vault, client) do update set last_sequence = excluded.last_sequence",
                values![
                    home.namespace.as_str(),
                    home.vault.as_str(),
                    sequence_claim.client.client.as_str(),
                    signed(sequence_claim.sequence),
                    gate,
                    rid,
                    owner,
                ],
            );
        }
        self.push(
            "update sagas set is_recorded = 1
             where gate = ? and reservation_id = ? and owner = ? and phase = 'finalizing'",
            values![gate, rid, owner],
        );
    }
}
