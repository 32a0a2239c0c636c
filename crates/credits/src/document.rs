//! Plans and entries as JSON, as stores keep them: read by people, and by later versions of this crate.
//!
//! These types are what is stored, and nothing else is. A field that is added must be one that older rows can do
//! without; anything else is a new version and a migration.

mod operation;

use earmark_core::{
    AccountName, AccountStatus, Actor, AssetName, CreditShortage, NamespaceName, Overdraft, TxId, UnixMs,
    VaultName,
};
use serde::{Deserialize, Serialize};

use crate::id::PostingId;
use crate::model::{
    AccountChange, AccountKey, AssetKey, Claim, ClaimKind, ClientKey, Entry, EntryBody, HoldTerms, Need,
    Plan, Posting, PostingHold, SequenceClaim, Settlement, TotalsChange, Transaction, VaultKey,
};
use crate::store::StoreError;
use operation::OperationDocument;

/// The version that is written.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    version: u32,
    #[serde(flatten)]
    what: T,
}

/// A plan as JSON.
#[must_use]
pub fn plan_to_json(plan: &Plan) -> String {
    to_json(PlanDocument::from(plan))
}

/// The plan that JSON tells of.
///
/// # Errors
/// When it tells of none, or of a later version.
pub fn plan_from_json(json: &str) -> Result<Plan, StoreError> {
    from_json::<PlanDocument>(json)?.plan().ok_or_else(|| corrupt(json))
}

/// What an entry is, as JSON. Its vault, its time and its changes are columns.
#[must_use]
pub fn body_to_json(body: &EntryBody) -> String {
    to_json(BodyDocument::from(body))
}

/// What an entry is.
///
/// # Errors
/// When the JSON tells of nothing that an entry can be, or of a later version.
pub fn body_from_json(json: &str) -> Result<EntryBody, StoreError> {
    from_json::<BodyDocument>(json)?.body().ok_or_else(|| corrupt(json))
}

/// The word for what an entry is, for a column that people look for.
#[must_use]
pub const fn body_kind(body: &EntryBody) -> &'static str {
    match body {
        EntryBody::Transaction(_) => "transaction",
        EntryBody::Hold { .. } => "hold",
        EntryBody::Settle(_) => "settle",
        EntryBody::Release { .. } => "release",
        EntryBody::Refused { .. } => "refused",
        EntryBody::Ended { .. } => "ended",
    }
}

fn to_json<T: Serialize>(what: T) -> String {
    serde_json::to_string(&Versioned { version: VERSION, what }).unwrap_or_default()
}

fn from_json<T: for<'a> Deserialize<'a>>(json: &str) -> Result<T, StoreError> {
    let found: Versioned<T> = serde_json::from_str(json).map_err(|_| corrupt(json))?;
    if found.version != VERSION {
        let message = format!("found version {}, this Earmark reads {VERSION}", found.version);
        return Err(StoreError::Corrupt(message));
    }
    Ok(found.what)
}

fn corrupt(json: &str) -> StoreError {
    let start: String = json.chars().take(200).collect();
    StoreError::Corrupt(format!("this is no plan and no entry: {start}"))
}

fn digits(amount: i128) -> String {
    amount.to_string()
}

/// An i128 that is written as such.
fn amount(text: &str) -> Option<i128> {
    text.parse().ok().filter(|amount: &i128| amount.to_string() == text)
}

#[derive(Serialize, Deserialize)]
struct AccountDocument {
    namespace: String,
    vault: String,
    account: String,
}

impl AccountDocument {
    fn of(key: &AccountKey) -> AccountDocument {
        AccountDocument {
            namespace: key.home.namespace.to_string(),
            vault: key.home.vault.to_string(),
            account: key.account.to_string(),
        }
    }

    fn key(&self) -> Option<AccountKey> {
        let home = home(&self.namespace, &self.vault)?;
        Some(AccountKey { home, account: AccountName::new(&self.account).ok()? })
    }
}

fn home(namespace: &str, vault: &str) -> Option<VaultKey> {
    Some(VaultKey { namespace: NamespaceName::new(namespace).ok()?, vault: VaultName::new(vault).ok()? })
}

#[derive(Serialize, Deserialize)]
struct PostingDocument {
    id: String,
    #[serde(flatten)]
    account: AccountDocument,
    asset: String,
    amount: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hold: Option<PostingHoldDocument>,
}

#[derive(Serialize, Deserialize)]
struct PostingHoldDocument {
    lease: String,
    limit: String,
    ends_at_unix_ms: u64,
}

impl PostingDocument {
    fn of(posting: &Posting) -> PostingDocument {
        PostingDocument {
            id: posting.id.to_string(),
            account: AccountDocument::of(&posting.account),
            asset: posting.asset.to_string(),
            amount: digits(posting.amount),
            hold: posting.hold.as_ref().map(|hold| PostingHoldDocument {
                lease: hold.lease.to_string(),
                limit: hold.limit.to_string(),
                ends_at_unix_ms: hold.ends_at.get(),
            }),
        }
    }

    fn posting(&self) -> Option<Posting> {
        let hold = match &self.hold {
            Some(hold) => Some(PostingHold {
                lease: hold.lease.parse().ok()?,
                limit: hold.limit.parse().ok()?,
                ends_at: UnixMs::new(hold.ends_at_unix_ms),
            }),
            None => None,
        };
        let id: PostingId = self.id.parse().ok()?;
        let asset = AssetName::new(&self.asset).ok()?;
        Some(Posting { id, account: self.account.key()?, asset, amount: amount(&self.amount)?, hold })
    }
}

#[derive(Serialize, Deserialize)]
struct EntryDocument {
    namespace: String,
    vault: String,
    at_unix_ms: u64,
    #[serde(flatten)]
    body: BodyDocument,
    changes: Vec<ChangeDocument>,
}

#[derive(Serialize, Deserialize)]
struct ChangeDocument {
    account: String,
    asset: String,
    amount: String,
    held: String,
}

impl EntryDocument {
    fn of(entry: &Entry) -> EntryDocument {
        let changes = entry.changes.iter().map(|change| ChangeDocument {
            account: change.account.to_string(),
            asset: change.asset.to_string(),
            amount: digits(change.amount),
            held: digits(change.held),
        });
        EntryDocument {
            namespace: entry.home.namespace.to_string(),
            vault: entry.home.vault.to_string(),
            at_unix_ms: entry.at.get(),
            body: BodyDocument::from(&entry.body),
            changes: changes.collect(),
        }
    }

    fn entry(&self) -> Option<Entry> {
        let changes = self.changes.iter().map(|change| {
            let (account, asset) = (change.account.parse().ok()?, change.asset.parse().ok()?);
            let (amount, held) = (amount(&change.amount)?, amount(&change.held)?);
            Some(AccountChange { account, asset, amount, held })
        });
        Some(Entry {
            home: home(&self.namespace, &self.vault)?,
            at: UnixMs::new(self.at_unix_ms),
            body: self.body.body()?,
            changes: changes.collect::<Option<_>>()?,
        })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum BodyDocument {
    Transaction {
        tx_id: String,
        client: String,
        sequence: u64,
        actor: String,
        operations: Vec<OperationDocument>,
    },
    Hold {
        #[serde(flatten)]
        hold: HoldDocument,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        actor: Option<String>,
    },
    Settle {
        hold: HoldDocument,
        held: u64,
        revenue: String,
        paid: u64,
        debt: u64,
        uncollected: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        actor: Option<String>,
    },
    Release {
        #[serde(flatten)]
        hold: HoldDocument,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        actor: Option<String>,
    },
    Refused {
        lease: String,
        limit: String,
        why: Shortage,
    },
    Ended {
        lease: String,
    },
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Shortage {
    UnknownAccount,
    Frozen,
    Closed,
    NotEnough,
}

#[derive(Serialize, Deserialize)]
struct HoldDocument {
    lease: String,
    limit: String,
    account: String,
    asset: String,
    amount: u64,
    revenue: String,
    keeps_debt: bool,
    ends_at_unix_ms: u64,
}

impl HoldDocument {
    fn of(hold: &HoldTerms) -> HoldDocument {
        HoldDocument {
            lease: hold.lease.to_string(),
            limit: hold.limit.to_string(),
            account: hold.account.to_string(),
            asset: hold.asset.to_string(),
            amount: hold.amount,
            revenue: hold.revenue.to_string(),
            keeps_debt: hold.keeps_debt,
            ends_at_unix_ms: hold.ends_at.get(),
        }
    }

    fn terms(&self) -> Option<HoldTerms> {
        Some(HoldTerms {
            lease: self.lease.parse().ok()?,
            limit: self.limit.parse().ok()?,
            account: self.account.parse().ok()?,
            asset: self.asset.parse().ok()?,
            amount: self.amount,
            revenue: self.revenue.parse().ok()?,
            keeps_debt: self.keeps_debt,
            ends_at: UnixMs::new(self.ends_at_unix_ms),
        })
    }
}

fn name_of(actor: Option<&Actor>) -> Option<String> {
    actor.map(Actor::to_string)
}

/// Nobody, which older rows have, or somebody; none at all if it is neither.
fn named(actor: Option<&str>) -> Option<Option<Actor>> {
    actor.map(|name| name.parse().ok()).map_or(Some(None), |actor| actor.map(Some))
}

impl From<&EntryBody> for BodyDocument {
    fn from(body: &EntryBody) -> BodyDocument {
        match body {
            EntryBody::Transaction(transaction) => BodyDocument::Transaction {
                tx_id: transaction.tx_id.to_string(),
                client: transaction.client.to_string(),
                sequence: transaction.sequence,
                actor: transaction.actor.to_string(),
                operations: transaction.operations.iter().filter_map(OperationDocument::of).collect(),
            },
            EntryBody::Hold { terms, actor } => {
                BodyDocument::Hold { hold: HoldDocument::of(terms), actor: name_of(actor.as_ref()) }
            }
            EntryBody::Settle(settlement) => BodyDocument::Settle {
                hold: HoldDocument::of(&settlement.hold),
                held: settlement.held,
                revenue: settlement.revenue.to_string(),
                paid: settlement.paid,
                debt: settlement.debt,
                uncollected: settlement.uncollected,
                actor: name_of(settlement.actor.as_ref()),
            },
            EntryBody::Release { terms, actor } => {
                BodyDocument::Release { hold: HoldDocument::of(terms), actor: name_of(actor.as_ref()) }
            }
            EntryBody::Refused { lease, limit, why } => {
                let why = match why {
                    CreditShortage::UnknownAccount => Shortage::UnknownAccount,
                    CreditShortage::Frozen => Shortage::Frozen,
                    CreditShortage::Closed => Shortage::Closed,
                    CreditShortage::NotEnough => Shortage::NotEnough,
                };
                BodyDocument::Refused { lease: lease.to_string(), limit: limit.to_string(), why }
            }
            EntryBody::Ended { lease } => BodyDocument::Ended { lease: lease.to_string() },
        }
    }
}

impl BodyDocument {
    fn body(&self) -> Option<EntryBody> {
        Some(match self {
            BodyDocument::Transaction { tx_id, client, sequence, actor, operations } => {
                let tx_id: PostingId = tx_id.parse().ok()?;
                EntryBody::Transaction(Transaction {
                    tx_id: TxId(tx_id.0),
                    client: client.parse().ok()?,
                    sequence: *sequence,
                    actor: actor.parse().ok()?,
                    operations: operations.iter().map(OperationDocument::operation).collect::<Option<_>>()?,
                })
            }
            BodyDocument::Hold { hold, actor } => {
                EntryBody::Hold { terms: hold.terms()?, actor: named(actor.as_deref())? }
            }
            &BodyDocument::Settle { ref hold, held, ref revenue, paid, debt, uncollected, ref actor } => {
                let (hold, revenue) = (hold.terms()?, revenue.parse().ok()?);
                let actor = named(actor.as_deref())?;
                EntryBody::Settle(Settlement { hold, held, revenue, paid, debt, uncollected, actor })
            }
            BodyDocument::Release { hold, actor } => {
                EntryBody::Release { terms: hold.terms()?, actor: named(actor.as_deref())? }
            }
            BodyDocument::Refused { lease, limit, why } => {
                let why = match why {
                    Shortage::UnknownAccount => CreditShortage::UnknownAccount,
                    Shortage::Frozen => CreditShortage::Frozen,
                    Shortage::Closed => CreditShortage::Closed,
                    Shortage::NotEnough => CreditShortage::NotEnough,
                };
                EntryBody::Refused { lease: lease.parse().ok()?, limit: limit.parse().ok()?, why }
            }
            BodyDocument::Ended { lease } => EntryBody::Ended { lease: lease.parse().ok()? },
        })
    }
}

#[derive(Serialize, Deserialize)]
struct PlanDocument {
    inputs: Vec<PostingDocument>,
    outputs: Vec<PostingDocument>,
    entries: Vec<EntryDocument>,
    needs: Vec<NeedDocument>,
    claims: Vec<ClaimDocument>,
    totals: Vec<TotalsDocument>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence_claim: Option<SequenceClaimDocument>,
}

#[derive(Serialize, Deserialize)]
struct NeedDocument {
    #[serde(flatten)]
    account: AccountDocument,
    spends: bool,
}

#[derive(Serialize, Deserialize)]
struct ClaimDocument {
    #[serde(flatten)]
    account: AccountDocument,
    kind: ClaimWord,
    from: StandingWord,
    to: StandingWord,
    overdraft: OverdraftWord,
}

#[derive(Serialize, Deserialize)]
struct TotalsDocument {
    namespace: String,
    vault: String,
    asset: String,
    issued: String,
    retired: String,
}

#[derive(Serialize, Deserialize)]
struct SequenceClaimDocument {
    namespace: String,
    vault: String,
    client: String,
    sequence: u64,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ClaimWord {
    Opening,
    Changing,
    Closing,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StandingWord {
    Open,
    Frozen,
    Closed,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OverdraftWord {
    Deny,
    Allow,
}

impl StandingWord {
    const fn of(standing: AccountStatus) -> StandingWord {
        match standing {
            AccountStatus::Open => StandingWord::Open,
            AccountStatus::Frozen => StandingWord::Frozen,
            AccountStatus::Closed => StandingWord::Closed,
        }
    }

    const fn standing(self) -> AccountStatus {
        match self {
            StandingWord::Open => AccountStatus::Open,
            StandingWord::Frozen => AccountStatus::Frozen,
            StandingWord::Closed => AccountStatus::Closed,
        }
    }
}

impl OverdraftWord {
    const fn of(overdraft: Overdraft) -> OverdraftWord {
        match overdraft {
            Overdraft::Deny => OverdraftWord::Deny,
            Overdraft::Allow => OverdraftWord::Allow,
        }
    }

    const fn overdraft(self) -> Overdraft {
        match self {
            OverdraftWord::Deny => Overdraft::Deny,
            OverdraftWord::Allow => Overdraft::Allow,
        }
    }
}

impl ClaimDocument {
    fn of(claim: &Claim) -> ClaimDocument {
        ClaimDocument {
            account: AccountDocument::of(&claim.account),
            kind: match claim.kind {
                ClaimKind::Opening => ClaimWord::Opening,
                ClaimKind::Changing => ClaimWord::Changing,
                ClaimKind::Closing => ClaimWord::Closing,
            },
            from: StandingWord::of(claim.from),
            to: StandingWord::of(claim.to),
            overdraft: OverdraftWord::of(claim.overdraft),
        }
    }

    fn claim(&self) -> Option<Claim> {
        Some(Claim {
            account: self.account.key()?,
            kind: match self.kind {
                ClaimWord::Opening => ClaimKind::Opening,
                ClaimWord::Changing => ClaimKind::Changing,
                ClaimWord::Closing => ClaimKind::Closing,
            },
            from: self.from.standing(),
            to: self.to.standing(),
            overdraft: self.overdraft.overdraft(),
        })
    }
}

impl From<&Plan> for PlanDocument {
    fn from(plan: &Plan) -> PlanDocument {
        PlanDocument {
            inputs: plan.inputs.iter().map(PostingDocument::of).collect(),
            outputs: plan.outputs.iter().map(PostingDocument::of).collect(),
            entries: plan.entries.iter().map(EntryDocument::of).collect(),
            needs: (plan.needs.iter())
                .map(|need| NeedDocument { account: AccountDocument::of(&need.account), spends: need.spends })
                .collect(),
            claims: plan.claims.iter().map(ClaimDocument::of).collect(),
            totals: (plan.totals.iter())
                .map(|totals| TotalsDocument {
                    namespace: totals.asset.home.namespace.to_string(),
                    vault: totals.asset.home.vault.to_string(),
                    asset: totals.asset.asset.to_string(),
                    issued: digits(totals.issued),
                    retired: digits(totals.retired),
                })
                .collect(),
            sequence_claim: plan.sequence_claim.as_ref().map(|sequence_claim| SequenceClaimDocument {
                namespace: sequence_claim.client.home.namespace.to_string(),
                vault: sequence_claim.client.home.vault.to_string(),
                client: sequence_claim.client.client.to_string(),
                sequence: sequence_claim.sequence,
            }),
        }
    }
}

impl PlanDocument {
    fn plan(&self) -> Option<Plan> {
        let needs =
            (self.needs.iter()).map(|need| Some(Need { account: need.account.key()?, spends: need.spends }));
        let totals = self.totals.iter().map(|totals| {
            let home = home(&totals.namespace, &totals.vault)?;
            let asset = AssetKey { home, asset: totals.asset.parse().ok()? };
            let (issued, retired) = (amount(&totals.issued)?, amount(&totals.retired)?);
            Some(TotalsChange { asset, issued, retired })
        });
        let sequence_claim = match &self.sequence_claim {
            Some(sequence_claim) => {
                let home = home(&sequence_claim.namespace, &sequence_claim.vault)?;
                let client = ClientKey { home, client: sequence_claim.client.parse().ok()? };
                Some(SequenceClaim { client, sequence: sequence_claim.sequence })
            }
            None => None,
        };
        Some(Plan {
            inputs: self.inputs.iter().map(PostingDocument::posting).collect::<Option<_>>()?,
            outputs: self.outputs.iter().map(PostingDocument::posting).collect::<Option<_>>()?,
            entries: self.entries.iter().map(EntryDocument::entry).collect::<Option<_>>()?,
            needs: needs.collect::<Option<_>>()?,
            claims: self.claims.iter().map(ClaimDocument::claim).collect::<Option<_>>()?,
            totals: totals.collect::<Option<_>>()?,
            sequence_claim,
        })
    }
}

#[cfg(test)]
mod tests;
