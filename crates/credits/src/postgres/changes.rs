//! Lists of changes as the arguments of the function `write_changes`.

use std::collections::{BTreeMap, BTreeSet};

use earmark_core::AccountName;
use serde_json::{Map, Value as Json, json};
use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;

use crate::document;
use crate::model::{AccountKey, Plan, Posting, Record, SagaToken, UsageKey, VaultKey};
use crate::sql::{claim_word, overdraft_text, plan_text, shares_text, signed, terms_values};
use crate::store::{Change, Renewal};

const WRITE: &str = "select write_changes($1::jsonb, $2, $3::jsonb, $4::jsonb, $5)";

/// The changes of several lists in order.
#[derive(Default)]
pub(super) struct ChangeList {
    changes: Vec<Json>,
    /// Plans and entries as separate JSON texts, because `jsonb` does not accept every text that they may contain.
    texts: Vec<String>,
    vaults: BTreeSet<VaultKey>,
    /// The counters that a decision adds to.
    usage: BTreeSet<UsageKey>,
    /// Whether a caller relies on one of the changes, so that the commit must wait for the disk.
    pub(super) is_durable: bool,
}

impl ChangeList {
    pub(super) fn of(lists: &[Vec<Change>]) -> ChangeList {
        let mut list = ChangeList::default();
        for change in lists.iter().flatten() {
            let json = list.change(change);
            list.changes.push(json);
        }
        list
    }

    /// The call of the function. The vaults are locked first, then the counters, both until the commit: locked with the
    /// first entry, a call that holds a vault could wait for a gate or an account of a call that waits for the vault.
    pub(super) fn query(&self) -> Query<'_, Postgres, PgArguments> {
        let vaults: Vec<Json> = self.vaults.iter().map(|home| Json::Array(place(home).to_vec())).collect();
        let usage: Vec<Json> = self.usage.iter().map(|key| Json::from(key.columns().to_vec())).collect();
        sqlx::query(WRITE)
            .bind(serde_json::to_string(&self.changes).unwrap_or_default())
            .bind(&self.texts)
            .bind((!vaults.is_empty()).then(|| Json::Array(vaults).to_string()))
            .bind((!usage.is_empty()).then(|| Json::Array(usage).to_string()))
            .bind(self.is_durable)
    }

    /// Adds a text and returns its index from 1.
    fn text(&mut self, text: String) -> Json {
        self.texts.push(text);
        Json::from(self.texts.len())
    }

    fn change(&mut self, change: &Change) -> Json {
        match change {
            Change::OpenVault(home) => {
                self.is_durable = true;
                let [namespace, vault] = place(home);
                json!({"do": "open_vault", "namespace": namespace, "vault": vault, "account": AccountName::REVENUE})
            }
            Change::Begin(record) => self.begin(record),
            Change::Claim(token, plan) => step("claim", token, [("claims", claims(plan))]),
            Change::Reserve(token, plan) => {
                step("reserve", token, [("ids", ids(&plan.inputs)), ("renewed", renewed(&plan.inputs))])
            }
            Change::Decide(token, plan) => {
                self.usage.extend(plan.growth.iter().map(|growth| growth.key.clone()));
                decide(token, plan)
            }
            Change::Finalize(token, plan) => step("finalize", token, [("ids", ids(&plan.inputs))]),
            Change::Create(token, plan) => {
                let outputs = plan.outputs.iter().map(output).collect();
                step("create", token, [("outputs", outputs)])
            }
            Change::Apply(token, plan) => step("apply", token, [("claims", applied(plan))]),
            Change::Record(token, plan) => self.record(token, plan),
            Change::Abort(token) => step("abort", token, []),
            Change::Release(rid) => json!({"do": "release", "of": rid.to_string()}),
            Change::Unclaim(rid) => json!({"do": "unclaim", "of": rid.to_string()}),
            Change::Mark(mark) => json!({"do": "mark", "outputs": [output(mark)]}),
            Change::Renew(renewals) => {
                self.is_durable = true;
                json!({"do": "renew", "holds": renewals.iter().map(renewal).collect::<Vec<_>>()})
            }
            Change::End(token) => step("end", token, []),
            Change::TakeOver { token, to, expired_since } => {
                step("take_over", token, [("to", to.to_string().into()), ("expired_since", expired_since.get().into())])
            }
            Change::Heartbeat(owner, at) => {
                json!({"do": "heartbeat", "of": owner.to_string(), "at": at.get()})
            }
            Change::Leave(owner) => json!({"do": "leave", "of": owner.to_string()}),
        }
    }

    fn begin(&mut self, record: &Record) -> Json {
        let text = self.text(document::to_json(&*record.plan));
        let mut begun = step_of("begin", &record.token, [("begun_at", record.begun_at.get().into()), ("text", text)]);
        if let Some(lease) = &record.lease {
            begun.insert("lease_namespace".to_owned(), lease.namespace.as_str().into());
            begun.insert("lease".to_owned(), lease.lease.to_string().into());
        }
        name_client(&mut begun, &record.plan);
        Json::Object(begun)
    }

    fn record(&mut self, token: &SagaToken, plan: &Plan) -> Json {
        self.is_durable = true;
        let (mut entries, mut changes) = (Vec::new(), Vec::new());
        for ((entry, behind), at) in plan.entries.iter().zip(entries_behind(plan)).zip(0_u64..) {
            let [namespace, vault] = place(&entry.home);
            self.vaults.insert(entry.home.clone());
            let lease = entry.body.lease().map(|lease| lease.to_string());
            let (kind, text) = (document::body_kind(&entry.body), self.text(document::to_json(&entry.body)));
            let (log_ms, wall_ms) = (entry.at.log.get(), entry.at.wall.get());
            let actor = document::actor(&entry.body);
            entries.push(json!([namespace, vault, behind, at, log_ms, wall_ms, kind, lease, actor, text]));
            for change in &entry.changes {
                let (account, asset) = (change.account.as_str(), change.asset.as_str());
                let (amount, held) = (change.amount.to_string(), change.held.to_string());
                changes.push(json!([namespace, vault, behind, account, asset, amount, held]));
            }
        }
        let vaults = entries_by_vault(plan).into_iter().map(|(home, count)| {
            let [namespace, vault] = place(home);
            json!([namespace, vault, count])
        });
        let vaults = vaults.collect();
        let mut recorded = step_of("record", token, [("vaults", vaults), ("entries", Json::Array(entries))]);
        if !changes.is_empty() {
            recorded.insert("changes".to_owned(), Json::Array(changes));
        }
        if !plan.totals.is_empty() {
            let totals = plan.totals.iter().map(|change| {
                let ([namespace, vault], asset) = (place(&change.asset.home), change.asset.asset.as_str());
                let [issued, retired, expired] =
                    [change.issued, change.retired, change.expired].map(|sum| sum.to_string());
                json!([namespace, vault, asset, issued, retired, expired])
            });
            recorded.insert("totals".to_owned(), totals.collect());
        }
        name_client(&mut recorded, plan);
        if let Some(sequence_claim) = &plan.sequence_claim {
            recorded.insert("sequence".to_owned(), signed(sequence_claim.sequence).into());
            let owner = sequence_claim.owner.as_ref().map(ToString::to_string);
            recorded.insert("client_owner".to_owned(), owner.into());
        }
        Json::Object(recorded)
    }
}

fn step_of<const N: usize>(word: &'static str, token: &SagaToken, parts: [(&str, Json); N]) -> Map<String, Json> {
    let mut step = Map::new();
    step.insert("do".to_owned(), word.into());
    step.insert("gate".to_owned(), token.gate.to_string().into());
    step.insert("rid".to_owned(), token.rid.to_string().into());
    step.insert("owner".to_owned(), token.owner.to_string().into());
    step.extend(parts.map(|(name, part)| (name.to_owned(), part)));
    step
}

fn step<const N: usize>(word: &'static str, token: &SagaToken, parts: [(&str, Json); N]) -> Json {
    Json::Object(step_of(word, token, parts))
}

fn place(home: &VaultKey) -> [Json; 2] {
    [home.namespace.as_str().into(), home.vault.as_str().into()]
}

fn account(key: &AccountKey) -> [Json; 3] {
    let [namespace, vault] = place(&key.home);
    [namespace, vault, key.account.as_str().into()]
}

fn ids(postings: &[Posting]) -> Json {
    postings.iter().map(|posting| Json::from(posting.id.to_string())).collect()
}

fn output(posting: &Posting) -> Json {
    let [namespace, vault, account] = account(&posting.account);
    let hold = posting.hold.as_ref();
    let (priority, expires_at_ms) = terms_values(posting.terms);
    json!([
        posting.id.to_string(),
        namespace,
        vault,
        account,
        posting.asset.as_str(),
        posting.amount.to_string(),
        hold.map(|hold| hold.lease.to_string()),
        hold.map(|hold| hold.limit.as_str()),
        hold.map(|hold| hold.ends_at.get()),
        hold.map_or(0, |hold| hold.used).to_string(),
        hold.map_or(0, |hold| hold.kept).to_string(),
        posting.extension(),
        priority,
        expires_at_ms,
        shares_text(hold),
        plan_text(posting.plan.as_deref()),
    ])
}

/// The last extension of each posting that has one.
fn renewed(postings: &[Posting]) -> Json {
    let renewed = postings.iter().filter(|posting| posting.extension() > 0);
    Json::Object(renewed.map(|posting| (posting.id.to_string(), posting.extension().into())).collect())
}

fn renewal(Renewal { id, read, hold }: &Renewal) -> Json {
    let (ends_at, used, kept) = (hold.ends_at.get(), hold.used.to_string(), hold.kept.to_string());
    json!([id.to_string(), read, ends_at, used, kept, hold.extension])
}

fn claims(plan: &Plan) -> Json {
    let claims = plan.claims.iter().map(|claim| {
        let [namespace, vault, account] = account(&claim.account);
        let (kind, from) = (claim_word(claim.kind), claim.from.name());
        json!([namespace, vault, account, kind, from, overdraft_text(claim.overdraft)])
    });
    claims.collect()
}

fn applied(plan: &Plan) -> Json {
    let claims = plan.claims.iter().map(|claim| {
        let [namespace, vault, account] = account(&claim.account);
        json!([namespace, vault, account, claim.to.name()])
    });
    claims.collect()
}

fn decide(token: &SagaToken, plan: &Plan) -> Json {
    let needs = plan.needs.iter().map(|need| {
        let [namespace, vault, account] = account(&need.account);
        json!([namespace, vault, account, need.spends])
    });
    let (inputs, claims) = (plan.inputs.len().into(), plan.claims.len().into());
    let parts = [("needs", needs.collect()), ("inputs", inputs), ("claims", claims)];
    let mut decided = step_of("decide", token, parts);
    if !plan.growth.is_empty() {
        let growth = plan.growth.iter().map(|growth| {
            let [namespace, vault, kind] = growth.key.columns();
            json!([namespace, vault, kind, signed(growth.added), signed(growth.max)])
        });
        decided.insert("growth".to_owned(), growth.collect());
    }
    name_client(&mut decided, plan);
    if let Some(sequence_claim) = &plan.sequence_claim {
        // A sequence above 63 bits is never next.
        let before = sequence_claim.sequence.checked_sub(1).and_then(|last| i64::try_from(last).ok());
        decided.insert("last_sequence".to_owned(), before.unwrap_or(-1).into());
    }
    Json::Object(decided)
}

fn name_client(step: &mut Map<String, Json>, plan: &Plan) {
    if let Some(sequence_claim) = &plan.sequence_claim {
        let [namespace, vault] = place(&sequence_claim.client.home);
        step.insert("client_namespace".to_owned(), namespace);
        step.insert("client_vault".to_owned(), vault);
        step.insert("client".to_owned(), sequence_claim.client.client.as_str().into());
    }
}

/// For each entry of a plan, the number of later entries in the same vault.
fn entries_behind(plan: &Plan) -> Vec<u64> {
    let later = |place: usize| {
        let home = &plan.entries.get(place)?.home;
        Some(plan.entries.iter().skip(place.saturating_add(1)).filter(|entry| entry.home == *home).count())
    };
    (0..plan.entries.len()).map(|place| later(place).unwrap_or(0) as u64).collect()
}

/// The vaults of a plan's entries, each once, with the number of entries.
fn entries_by_vault(plan: &Plan) -> Vec<(&VaultKey, u64)> {
    let mut vaults: BTreeMap<&VaultKey, u64> = BTreeMap::new();
    for entry in &plan.entries {
        let count = vaults.entry(&entry.home).or_default();
        *count = count.saturating_add(1);
    }
    vaults.into_iter().collect()
}
