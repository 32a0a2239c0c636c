//! Single changes as conditional statements. They run in one transaction, so that a change of several statements is
//! atomic.

use earmark_core::AccountName;
use serde_json::{Value as Json, json};
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::commit::{created, input, record_entries};
use super::error::refused;
use super::script::Script;
use crate::document;
use crate::id::ReservationId;
use crate::model::{ClaimKind, Growth, Phase, Plan, Posting, Record, SagaToken, VaultKey};
use crate::sql::database::{Value, values};
use crate::sql::{claim_word, overdraft_text, signed};
use crate::store::{Change, Renewal, StoreError};

/// Returns the index of a change and the number of rows that the statement before changed.
const COUNT: &str = "select ?, changes()";

/// Makes a list of changes and returns the rows that each changed.
pub(super) async fn write(connection: &mut SqliteConnection, list: &[Change]) -> Result<Vec<u64>, StoreError> {
    let mut counts = vec![0_u64; list.len()];
    for (place, change) in list.iter().enumerate() {
        if let Some((token, phase)) = change.required_phase()
            && !is_in(connection, token, phase).await?
        {
            continue;
        }
        if let Change::Record(token, plan) = change {
            counts[place] = record_entries(connection, *token, plan).await?;
        } else {
            let mut script = Script::default();
            script.change(place, change);
            add(&mut counts, script.run(connection).await.map_err(refused)?)?;
        }
    }
    Ok(counts)
}

async fn is_in(connection: &mut SqliteConnection, token: &SagaToken, phase: Phase) -> Result<bool, StoreError> {
    let [gate, rid, owner] = of(token);
    let phase = if phase == Phase::Reserving { "reserving" } else { "finalizing" };
    let mut script = Script::default();
    script.push(
        "select 1 from sagas where gate = ? and reservation_id = ? and owner = ? and phase = ?",
        values![gate, rid, owner, phase],
    );
    Ok(!script.run(connection).await.map_err(refused)?.is_empty())
}

/// Adds the row counts to those of their changes.
fn add(counts: &mut [u64], rows: Vec<SqliteRow>) -> Result<(), StoreError> {
    for row in rows {
        let (place, changed): (i64, i64) = (row.try_get(0).map_err(refused)?, row.try_get(1).map_err(refused)?);
        if let Some(count) = usize::try_from(place).ok().and_then(|place| counts.get_mut(place)) {
            *count = count.saturating_add(changed.unsigned_abs());
        }
    }
    Ok(())
}

fn of(token: &SagaToken) -> [Value; 3] {
    values![token.gate.to_string(), token.rid.to_string(), token.owner.to_string()]
}

impl Script {
    pub(super) fn counted<const N: usize>(&mut self, place: usize, sql: &'static str, values: [Value; N]) {
        self.push(sql, values);
        self.push(COUNT, values![signed(place as u64)]);
    }

    /// Adds a change whose record is in the required phase, except [`Change::Record`], which is not a script.
    pub(super) fn change(&mut self, place: usize, change: &Change) {
        match change {
            Change::OpenVault(home) => self.open_vault(place, home),
            Change::Begin(record) => self.begin(place, record),
            Change::Claim(token, plan) => self.claim(place, token, plan),
            Change::Reserve(token, plan) => self.reserve(place, token, plan),
            Change::Decide(token, plan) => self.decide(place, token, plan),
            Change::Finalize(token, plan) => self.finalize(place, token, plan),
            Change::Create(_, plan) => self.create(place, &plan.outputs),
            Change::Mark(mark) => self.create(place, std::slice::from_ref(mark)),
            Change::Apply(token, plan) => self.apply(place, token, plan),
            Change::Record(..) => {}
            Change::Abort(token) => self.counted(
                place,
                "update sagas set phase = 'releasing' where gate = ?",
                values![token.gate.to_string()],
            ),
            Change::Release(rid) => self.release(place, *rid),
            Change::Unclaim(rid) => self.unclaim(place, *rid),
            Change::Renew(renewals) => self.renew(place, renewals),
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
                     and not exists (select 1 from owners where owner = sagas.owner and heartbeat_at_ms >= ?)",
                    values![to.to_string(), gate, rid, owner, signed(expired_since.get())],
                );
            }
            Change::Heartbeat(owner, at) => self.counted(
                place,
                "insert into owners (owner, heartbeat_at_ms) values (?, ?)
                 on conflict (owner) do update set heartbeat_at_ms = excluded.heartbeat_at_ms",
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
        let client = record.plan.sequence_claim.as_ref().map(|claim| &claim.client);
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
                document::to_json(&*record.plan),
            ],
        );
    }

    fn claim(&mut self, place: usize, token: &SagaToken, plan: &Plan) {
        let claims = |is_opened: bool| {
            let meant = plan.claims.iter().filter(|claim| (claim.kind == ClaimKind::Opening) == is_opened);
            let claims = meant.map(|claim| {
                let (home, kind) = (&claim.account.home, claim_word(claim.kind));
                let (from, overdraft) = (claim.from.name(), overdraft_text(claim.overdraft));
                let (namespace, vault) = (home.namespace.as_str(), home.vault.as_str());
                json!([namespace, vault, claim.account.account.as_str(), kind, from, overdraft])
            });
            claims.collect::<Vec<Json>>()
        };
        let (opened, changed) = (claims(true), claims(false));
        if !opened.is_empty() {
            self.counted(
                place,
                "insert into accounts (namespace, vault, account, claim, standing, overdraft, claimed_by)
                 select value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, ? from json_each(?)
                 where true on conflict do nothing",
                values![token.rid.to_string(), Json::from(opened).to_string()],
            );
        }
        if !changed.is_empty() {
            self.counted(
                place,
                "update accounts set claimed_by = ?, claim = c.value->>3 from json_each(?) c
                 where accounts.namespace = c.value->>0 and accounts.vault = c.value->>1
                 and accounts.account = c.value->>2 and accounts.standing = c.value->>4
                 and accounts.claimed_by is null",
                values![token.rid.to_string(), Json::from(changed).to_string()],
            );
        }
    }

    fn reserve(&mut self, place: usize, token: &SagaToken, plan: &Plan) {
        self.counted(
            place,
            "update postings set state = 'pending', reservation_id = ? from json_each(?) i
             where postings.id = i.value->>0 and state = 'active' and extension = i.value->>1",
            values![token.rid.to_string(), Json::from(plan.inputs.iter().map(input).collect::<Vec<_>>()).to_string()],
        );
    }

    fn renew(&mut self, place: usize, renewals: &[Renewal]) {
        let holds = renewals.iter().map(|Renewal { id, read, hold }| {
            let (ends_at, used, kept) = (hold.ends_at.get(), hold.used.to_string(), hold.kept.to_string());
            json!([id.to_string(), read, ends_at, used, kept, hold.extension])
        });
        let holds = Json::from(holds.collect::<Vec<_>>()).to_string();
        self.counted(
            place,
            "update postings set ends_at_ms = r.value->>2, used = r.value->>3, kept = r.value->>4,
                 extension = r.value->>5 from json_each(?) r
             where postings.id = r.value->>0 and ? = (
                 select count(*) from json_each(?) h cross join postings p
                 where p.id = h.value->>0 and p.state = 'active' and p.extension = h.value->>1)",
            values![holds.clone(), signed(renewals.len() as u64), holds],
        );
    }

    fn decide(&mut self, place: usize, token: &SagaToken, plan: &Plan) {
        let rid = token.rid.to_string();
        let needs = plan.needs.iter().map(|need| {
            let (home, account) = (&need.account.home, need.account.account.as_str());
            json!([home.namespace.as_str(), home.vault.as_str(), account, i64::from(need.spends)])
        });
        let needs = Json::from(needs.collect::<Vec<_>>()).to_string();
        let growth = Json::from_iter(plan.growth.iter().map(grown)).to_string();
        let sequence_claim = plan.sequence_claim.as_ref();
        // A sequence above 63 bits is never next.
        let before =
            sequence_claim.map(|claim| claim.sequence.checked_sub(1).and_then(|last| i64::try_from(last).ok()));
        self.counted(
            place,
            "update sagas set phase = 'finalizing' where gate = ?
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
             and (select count(*) from accounts where claimed_by = ?) = ?
             and not exists (select 1 from json_each(?) g left join quota_usage u
                 on u.namespace = g.value->>0 and u.vault = g.value->>1 and u.kind = g.value->>2
                 where coalesce(u.used, 0) + (g.value->>3) > g.value->>4)",
            values![
                token.gate.to_string(),
                needs,
                rid.clone(),
                sequence_claim.map(|claim| claim.client.home.namespace.as_str()),
                sequence_claim.map(|claim| claim.client.home.vault.as_str()),
                sequence_claim.map(|claim| claim.client.client.as_str()),
                before.map_or(0, |before| before.unwrap_or(-1)),
                rid.clone(),
                signed(plan.inputs.len() as u64),
                rid,
                signed(plan.claims.len() as u64),
                growth.clone(),
            ],
        );
        if !plan.growth.is_empty() {
            // `changes()` says whether the statement before has decided.
            self.push(
                "insert into quota_usage (namespace, vault, kind, used)
                 select value->>0, value->>1, value->>2, value->>3 from json_each(?) where changes() = 1
                 on conflict (namespace, vault, kind) do update set used = used + excluded.used",
                values![growth],
            );
        }
    }

    fn finalize(&mut self, place: usize, token: &SagaToken, plan: &Plan) {
        self.counted(
            place,
            "update postings set state = 'inactive'
             where id in (select value from json_each(?)) and state = 'pending' and reservation_id = ?",
            values![ids(&plan.inputs), token.rid.to_string()],
        );
    }

    fn create(&mut self, place: usize, outputs: &[Posting]) {
        let outputs: Vec<Json> = outputs.iter().map(created).collect();
        self.counted(
            place,
            "insert into postings (id, namespace, vault, account, asset, amount, amount_order, lease, limit_key,
                 ends_at_ms, used, kept, extension, priority, expires_at_ms, shares, plan, state)
             select value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6, value->>7,
                 value->>8, value->>9, value->>10, value->>11, value->>12, value->>13, value->>14, value->>15,
                 value->>16, 'active'
             from json_each(?) where true on conflict do nothing",
            values![Json::from(outputs).to_string()],
        );
    }

    fn apply(&mut self, place: usize, token: &SagaToken, plan: &Plan) {
        let claims = plan.claims.iter().map(|claim| {
            let (home, account) = (&claim.account.home, claim.account.account.as_str());
            json!([home.namespace.as_str(), home.vault.as_str(), account, claim.to.name()])
        });
        self.counted(
            place,
            "update accounts set standing = c.value->>3, claimed_by = null, claim = null from json_each(?) c
             where accounts.namespace = c.value->>0 and accounts.vault = c.value->>1
             and accounts.account = c.value->>2 and accounts.claimed_by = ?",
            values![Json::from(claims.collect::<Vec<_>>()).to_string(), token.rid.to_string()],
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
}

/// The growth of a counter as a row.
fn grown(growth: &Growth) -> Json {
    let [namespace, vault, kind] = growth.key.columns();
    json!([namespace, vault, kind, signed(growth.added), signed(growth.max)])
}

fn ids(postings: &[Posting]) -> String {
    let ids = postings.iter().map(|posting| Json::from(posting.id.to_string()));
    Json::from(ids.collect::<Vec<_>>()).to_string()
}
