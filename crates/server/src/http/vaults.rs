//! `/v1/vaults`: lists of vaults and accounts, balances, grants, entries and audits.

use std::collections::BTreeMap;

use earmark_admission::{
    AccountPage, AccountPath, AccountQuery, AccountView, Audit, CreditReadError, EntryChange, EntryKind, EntryOrder,
    EntryPage, EntryQuery, EntryView, HoldView, PAGE_MAX, VaultPage, VaultQuery,
};
use earmark_core::{
    AccountName, Actor, AssetTotals, BalanceInfo, CarryOver, GrantInfo, GrantTerms, PlanInfo, UnixMs, VaultName,
};
use serde::Serialize;

use super::limits;
use super::reply::{Handled, Reply};
use super::serve::{Call, off_runtime};
use super::shape::{ACCOUNT, VAULT};
use super::write_id::WriteIdWire;
use crate::app::App;
use crate::execute::{self, PAGE_SIZE_DEFAULT};

pub(super) async fn balances(app: &App, call: Call) -> Handled {
    let account = path(&call)?;
    let balances = execute::read(app, &call.context, app.backend.balances(account)).await?;
    Ok(Reply::ok(&Balances { balances: balances.iter().map(BalanceWire::of).collect() }))
}

/// The page size in the query, which is already validated.
fn page_size(call: &Call) -> usize {
    call.query("page_size").and_then(|text| text.parse().ok()).unwrap_or(PAGE_SIZE_DEFAULT)
}

pub(super) async fn list(app: &App, call: Call) -> Handled {
    let after = call.query("after").and_then(|text| VaultName::new(text).ok());
    let query = VaultQuery { after, page_size: page_size(&call) };
    let namespace = call.credit_namespace()?;
    let _permit = call.context.admit(app, query.page_size).await?;
    let page = execute::read(app, &call.context, app.backend.vaults(namespace, query)).await?;
    Ok(Reply::ok(&Vaults::of(&page)))
}

pub(super) async fn accounts(app: &App, call: Call) -> Handled {
    let (namespace, vault) = (call.credit_namespace()?, vault(&call)?);
    let name = |name: &str| call.query(name).and_then(|text| AccountName::new(text).ok());
    let query = AccountQuery { prefix: name("prefix"), after: name("after"), page_size: page_size(&call) };
    // A page compares all accounts of the Book, whatever its size.
    let _permit = call.context.admit(app, PAGE_MAX).await?;
    let page = execute::read(app, &call.context, app.backend.accounts(namespace, vault, query)).await?;
    Ok(off_runtime(move || Reply::ok(&Accounts::of(&page))).await)
}

pub(super) async fn grants(app: &App, call: Call) -> Handled {
    let account = path(&call)?;
    let grants = execute::read(app, &call.context, app.backend.grants(account)).await?;
    Ok(Reply::ok(&Grants { grants: grants.iter().map(GrantWire::of).collect() }))
}

pub(super) async fn entries(app: &App, call: Call) -> Handled {
    let account = path(&call)?;
    let number = |name: &str| call.query(name).and_then(|text| text.parse().ok());
    let query = EntryQuery {
        after: number("after").unwrap_or(0),
        since: number("since").map(UnixMs::new),
        until: number("until").map(UnixMs::new),
        order: call.query("order").and_then(EntryOrder::from_name).unwrap_or_default(),
        page_size: page_size(&call),
    };
    let _permit = call.context.admit(app, execute::entries_cost(&query)).await?;
    let page = execute::read(app, &call.context, app.backend.entries(account, query)).await?;
    Ok(Reply::ok(&Entries::of(&page)))
}

pub(super) async fn audit(app: &App, call: Call) -> Handled {
    let (namespace, vault) = (call.credit_namespace()?, vault(&call)?);
    let _permit = call.context.admit_audit(app).await?;
    let audit = execute::read(app, &call.context, app.backend.audit(namespace, vault)).await?;
    Ok(Reply::ok(&AuditWire::of(&audit)))
}

fn vault(call: &Call) -> Result<VaultName, Reply> {
    let name = call.name();
    VaultName::new(name).map_err(|_| Reply::invalid(&VAULT.explain(&"vault", name).unwrap_or_default()))
}

pub(super) fn path(call: &Call) -> Result<AccountPath, Reply> {
    let (vault, name) = (vault(call)?, call.nth_name(1));
    let wrong = |_| Reply::invalid(&ACCOUNT.explain(&"account", name).unwrap_or_default());
    let account = AccountName::new(name).map_err(wrong)?;
    Ok(AccountPath { namespace: call.credit_namespace()?, vault, account })
}

/// The reply to a failed read.
pub(super) fn failed(error: &CreditReadError) -> Reply {
    match error {
        CreditReadError::Backend(error) => limits::failed(error),
        other => Reply::not_found(&other.to_string()),
    }
}

#[derive(Serialize)]
struct Balances<'a> {
    balances: Vec<BalanceWire<'a>>,
}

/// Credit amounts are strings, so that no client rounds them.
#[derive(Serialize)]
struct BalanceWire<'a> {
    asset: &'a str,
    available: String,
    held: String,
    pending: String,
}

impl<'a> BalanceWire<'a> {
    fn of(balance: &'a BalanceInfo) -> BalanceWire<'a> {
        BalanceWire {
            asset: balance.asset.as_str(),
            available: balance.available.to_string(),
            held: balance.held.to_string(),
            pending: balance.pending.to_string(),
        }
    }
}

#[derive(Serialize)]
struct Vaults<'a> {
    vaults: Vec<&'a str>,
    next: Option<&'a str>,
}

impl<'a> Vaults<'a> {
    fn of(page: &'a VaultPage) -> Vaults<'a> {
        let vaults = page.vaults.iter().map(VaultName::as_str).collect();
        Vaults { vaults, next: page.next.as_ref().map(VaultName::as_str) }
    }
}

#[derive(Serialize)]
struct Accounts<'a> {
    accounts: Vec<AccountWire<'a>>,
    next: Option<&'a str>,
}

#[derive(Serialize)]
struct AccountWire<'a> {
    account: &'a str,
    status: &'static str,
    balances: Vec<BalanceWire<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<PlanWire<'a>>,
}

#[derive(Serialize)]
struct PlanWire<'a> {
    asset: &'a str,
    amount: String,
    period: &'static str,
    utc_offset_minutes: i16,
    carry_over: CarryOverWire,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_at_unix_ms: Option<u64>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum CarryOverWire {
    None(&'static str),
    Cap { max: String },
}

impl<'a> PlanWire<'a> {
    fn of(info: &'a PlanInfo) -> PlanWire<'a> {
        let plan = &info.plan;
        PlanWire {
            asset: plan.asset.as_str(),
            amount: plan.amount.to_string(),
            period: plan.period.as_str(),
            utc_offset_minutes: plan.utc_offset_minutes,
            carry_over: match plan.carry_over {
                CarryOver::None => CarryOverWire::None("none"),
                CarryOver::Max(max) => CarryOverWire::Cap { max: max.to_string() },
            },
            next_at_unix_ms: info.next_at.map(UnixMs::get),
        }
    }
}

impl<'a> Accounts<'a> {
    fn of(page: &'a AccountPage) -> Accounts<'a> {
        let account = |view: &'a AccountView| AccountWire {
            account: view.account.as_str(),
            status: view.status.name(),
            balances: view.balances.iter().map(BalanceWire::of).collect(),
            plan: view.plan.as_ref().map(PlanWire::of),
        };
        let accounts = page.accounts.iter().map(account).collect();
        Accounts { accounts, next: page.next.as_ref().map(AccountName::as_str) }
    }
}

#[derive(Serialize)]
struct Grants<'a> {
    grants: Vec<GrantWire<'a>>,
}

#[derive(Serialize)]
struct GrantWire<'a> {
    asset: &'a str,
    remaining: String,
    held: String,
    #[serde(flatten)]
    terms: TermsWire,
}

impl<'a> GrantWire<'a> {
    fn of(grant: &'a GrantInfo) -> GrantWire<'a> {
        GrantWire {
            asset: grant.asset.as_str(),
            remaining: grant.remaining.to_string(),
            held: grant.held.to_string(),
            terms: grant.terms.into(),
        }
    }
}

#[derive(Serialize)]
struct Entries<'a> {
    entries: Vec<EntryWire<'a>>,
    next: Option<u64>,
}

impl<'a> Entries<'a> {
    fn of(page: &'a EntryPage) -> Entries<'a> {
        Entries { entries: page.entries.iter().map(EntryWire::of).collect(), next: page.next }
    }
}

#[derive(Serialize)]
struct EntryWire<'a> {
    number: u64,
    committed_at_unix_ms: u64,
    changes: Vec<ChangeWire<'a>>,
    #[serde(flatten)]
    what: WhatWire<'a>,
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum WhatWire<'a> {
    Transaction {
        tx_id: String,
        log_index: u64,
        actor: &'a str,
        #[serde(flatten)]
        id: WriteIdWire<'a>,
        memos: &'a [String],
    },
    Hold(HoldWire<'a>),
    Settle {
        #[serde(flatten)]
        hold: HoldWire<'a>,
        paid: String,
        debt: String,
        uncollected: String,
        reason: &'static str,
        labels: BTreeMap<&'a str, &'a str>,
    },
    Release(HoldWire<'a>),
    Expire(TermsWire),
    Plan {
        carried: String,
        actor: &'static str,
        #[serde(flatten)]
        terms: TermsWire,
    },
}

/// The priority and expiry of credit.
#[derive(Serialize)]
struct TermsWire {
    priority: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at_unix_ms: Option<u64>,
}

impl From<GrantTerms> for TermsWire {
    fn from(terms: GrantTerms) -> TermsWire {
        TermsWire { priority: terms.priority(), expires_at_unix_ms: terms.expires_at().map(UnixMs::get) }
    }
}

#[derive(Serialize)]
struct HoldWire<'a> {
    lease_id: String,
    limit: &'a str,
    hold: String,
    actor: Option<&'a str>,
}

#[derive(Serialize)]
struct ChangeWire<'a> {
    asset: &'a str,
    amount: String,
    held: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    issued: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retired: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transferred_in: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transferred_out: Option<String>,
}

impl<'a> EntryWire<'a> {
    fn of(entry: &'a EntryView) -> EntryWire<'a> {
        let unless_zero = |amount: u128| (amount != 0).then(|| amount.to_string());
        let change = |change: &'a EntryChange| ChangeWire {
            asset: change.asset.as_str(),
            amount: change.amount.to_string(),
            held: change.held.to_string(),
            issued: unless_zero(change.flows.issued),
            retired: unless_zero(change.flows.retired),
            transferred_in: unless_zero(change.flows.transferred_in),
            transferred_out: unless_zero(change.flows.transferred_out),
        };
        EntryWire {
            number: entry.number,
            committed_at_unix_ms: entry.at.get(),
            changes: entry.changes.iter().map(change).collect(),
            what: WhatWire::of(&entry.what),
        }
    }
}

impl<'a> WhatWire<'a> {
    fn of(what: &'a EntryKind) -> WhatWire<'a> {
        match what {
            EntryKind::Transaction { id, receipt, memos } => WhatWire::Transaction {
                tx_id: receipt.tx_id.to_string(),
                log_index: receipt.log_index,
                actor: receipt.actor.as_str(),
                id: WriteIdWire::of(id),
                memos,
            },
            EntryKind::Hold(hold) => WhatWire::Hold(HoldWire::of(hold)),
            EntryKind::Settle { hold, paid, debt, uncollected, reason, labels } => WhatWire::Settle {
                hold: HoldWire::of(hold),
                paid: paid.to_string(),
                debt: debt.to_string(),
                uncollected: uncollected.to_string(),
                reason: reason.name(),
                labels: labels.iter().collect(),
            },
            EntryKind::Release(hold) => WhatWire::Release(HoldWire::of(hold)),
            EntryKind::Expire(terms) => WhatWire::Expire((*terms).into()),
            EntryKind::Plan { carried, terms } => {
                WhatWire::Plan { carried: carried.to_string(), actor: Actor::ITSELF, terms: (*terms).into() }
            }
        }
    }
}

impl<'a> HoldWire<'a> {
    fn of(hold: &'a HoldView) -> HoldWire<'a> {
        HoldWire {
            lease_id: hold.lease.to_string(),
            limit: hold.limit.as_str(),
            hold: hold.amount.to_string(),
            actor: hold.actor.as_ref().map(Actor::as_str),
        }
    }
}

#[derive(Serialize)]
struct AuditWire<'a> {
    balanced: bool,
    assets: Vec<TotalsWire<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
}

#[derive(Serialize)]
struct TotalsWire<'a> {
    asset: &'a str,
    issued: String,
    retired: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    expired: Option<String>,
    live: String,
}

impl<'a> AuditWire<'a> {
    fn of(audit: &'a Audit) -> AuditWire<'a> {
        let totals = |totals: &'a AssetTotals| TotalsWire {
            asset: totals.asset.as_str(),
            issued: totals.issued.to_string(),
            retired: totals.retired.to_string(),
            expired: (totals.expired != 0).then(|| totals.expired.to_string()),
            live: totals.live.to_string(),
        };
        AuditWire {
            balanced: audit.balanced,
            assets: audit.assets.iter().map(totals).collect(),
            message: audit.message.as_deref(),
        }
    }
}
