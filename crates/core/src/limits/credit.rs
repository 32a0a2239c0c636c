//! Credit requirements of a reserve: planned and held together, or refused together.

use std::collections::BTreeSet;

use super::limit::Payers;
use super::reserve::{ResolvedPart, fingerprint};
use super::slab::NONE;
use super::{Ending, Found, Limits, Tombstone};
use crate::book::{CreditDenial, CreditShortage, LimitId, NamespaceId, Reserve, ReserveOutcome, VaultId};
use crate::credits::{AssetId, Credits, Hold};
use crate::id::{AssetName, LeaseId};
use crate::time::UnixMs;

/// Retry hint after insufficient credit: 10 seconds, since nobody knows when a deposit arrives.
const CREDIT_RETRY_MS: u64 = 10_000;

/// A credit requirement and the balance that pays it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    limit: LimitId,
    amount: u64,
    payers: Payers,
    /// `None` if the account never had the asset.
    balance: Option<u32>,
}

/// The accounts that a limit names, and the asset, which the vault may not know yet.
struct Accounts<'a> {
    vault: VaultId,
    account: u32,
    revenue: u32,
    asset: &'a AssetName,
}

impl Limits {
    /// The refusal by the first credit limit, in key order, whose vault or account does not exist. It leaves no record,
    /// so that the same lease can try again once the account is opened.
    pub(super) fn missing_account(
        &self,
        namespace: NamespaceId,
        resolved: &[ResolvedPart],
        credits: &Credits,
    ) -> Option<ReserveOutcome> {
        let is_missing = |id: &LimitId| {
            let limit = &self.state.limits[*id];
            limit.is_credit && limit.payers.is_none() && self.find_accounts(namespace, *id, credits).is_none()
        };
        let missing = resolved.iter().map(|part| part.limit).filter(is_missing);
        let limit = missing.min_by_key(|id| self.key(*id))?;
        Some(ReserveOutcome::AccountNotFound { limit, retry_after_ms: CREDIT_RETRY_MS })
    }

    /// Checks that every account has the amounts required of it. If not, records the denial. The accounts exist.
    pub(super) fn plan_credit(
        &mut self,
        now: UnixMs,
        command: &Reserve<'_>,
        resolved: &[ResolvedPart],
        credits: &mut Credits,
    ) -> Result<(), ReserveOutcome> {
        let mut new_assets: Vec<VaultId> = Vec::new();
        let mut planned = std::mem::take(&mut self.planned);
        planned.clear();
        let mut shortest: Option<(LimitId, CreditShortage)> = None;
        for part in resolved {
            if !self.state.limits[part.limit].is_credit {
                continue;
            }
            match self.payers(command.namespace, part.limit, credits, &mut new_assets) {
                Some(payers) => {
                    let balance = credits.state.balance(payers.account, payers.asset);
                    planned.push(Planned { limit: part.limit, amount: part.amount, payers, balance });
                }
                // The vault has the maximum number of assets, so no account can have this one.
                None => {
                    shortest.get_or_insert((part.limit, CreditShortage::NotEnough));
                }
            }
        }
        for part in &planned {
            let same = planned.iter().filter(|other| other.payers.is_same_payer(&part.payers));
            let amount = same.fold(0_u128, |sum, other| sum.saturating_add(other.amount.into()));
            if let Err(why) = credits.can_hold(now, part.payers, part.balance, amount)
                && shortest.is_none_or(|(first, _)| self.key(part.limit) < self.key(first))
            {
                shortest = Some((part.limit, why));
            }
        }
        self.planned = planned;
        let Some(short) = shortest else { return Ok(()) };
        let refusal = ReserveOutcome::InsufficientCredit(self.deny_credit(now, command, resolved, short));
        new_assets.into_iter().rev().for_each(|vault| credits.pop_asset(vault));
        Err(refusal)
    }

    /// The accounts of a limit, if they exist.
    fn payers(
        &mut self,
        namespace: NamespaceId,
        id: LimitId,
        credits: &mut Credits,
        new_assets: &mut Vec<VaultId>,
    ) -> Option<Payers> {
        if let Some(payers) = self.state.limits[id].payers {
            return Some(payers);
        }
        let payers = self.find_payers(namespace, id, credits, new_assets)?;
        // The assets added for this plan are removed again if the lease is denied, so do not cache them yet.
        if new_assets.is_empty() {
            self.state.limits[id].payers = Some(payers);
        }
        Some(payers)
    }

    /// The account and asset of a credit limit, if both exist.
    pub(crate) fn paying_balance(&self, id: LimitId, credits: &Credits) -> Option<(u32, AssetId)> {
        let limit = self.state.limits.get(id).filter(|limit| limit.is_credit)?;
        if let Some(payers) = limit.payers {
            return Some((payers.account, payers.asset));
        }
        let found = self.find_accounts(limit.namespace, id, credits)?;
        Some((found.account, credits.state.asset(found.vault, found.asset)?))
    }

    /// The balances that credit limits pay from. Limits on one balance share its debt, so each is listed once.
    pub(crate) fn paying_balances(&self, credits: &Credits) -> BTreeSet<(u32, AssetId)> {
        self.keys.iter().flatten().filter_map(|(_, id)| self.paying_balance(*id, credits)).collect()
    }

    /// Looks up the accounts of a limit. Adds an asset unknown to the vault, since an account with overdraft may owe
    /// it.
    fn find_payers(
        &self,
        namespace: NamespaceId,
        id: LimitId,
        credits: &mut Credits,
        new_assets: &mut Vec<VaultId>,
    ) -> Option<Payers> {
        let Accounts { vault, account, revenue, asset } = self.find_accounts(namespace, id, credits)?;
        let asset = match credits.state.asset(vault, asset) {
            Some(asset) => asset,
            None => {
                let asset = credits.add_asset(vault, asset)?;
                new_assets.push(vault);
                asset
            }
        };
        Some(Payers { account, revenue, asset })
    }

    fn find_accounts(&self, namespace: NamespaceId, id: LimitId, credits: &Credits) -> Option<Accounts<'_>> {
        let terms = self.state.texts.get(id.0 as usize)?.credit.as_ref()?;
        let vault = credits.vault(namespace, &terms.vault)?;
        let account = credits.account(vault, &terms.account)?;
        let revenue = credits.account(vault, &terms.revenue)?;
        Some(Accounts { vault, account, revenue, asset: &terms.asset })
    }

    fn deny_credit(
        &mut self,
        now: UnixMs,
        command: &Reserve<'_>,
        resolved: &[ResolvedPart],
        (limit, why): (LimitId, CreditShortage),
    ) -> CreditDenial {
        let ending = match why {
            CreditShortage::Frozen => Ending::AccountFrozen,
            CreditShortage::Closed => Ending::AccountClosed,
            CreditShortage::UnknownAccount | CreditShortage::NotEnough => Ending::NoCredit,
        };
        let has_job = self.keep_job(command);
        self.add_tombstone(Tombstone {
            fingerprint: fingerprint(resolved.iter().map(|part| (part.limit, part.amount))),
            at: now.plus_ms(CREDIT_RETRY_MS),
            limited_by: limit,
            has_job,
            ..Tombstone::new(command.namespace, command.lease, ending, now)
        });
        CreditDenial { limit, retry_after_ms: CREDIT_RETRY_MS, why }
    }

    /// The recorded credit denial of a lease.
    pub(crate) fn credit_denial(&self, now: UnixMs, namespace: NamespaceId, lease: LeaseId) -> Option<CreditDenial> {
        let now = self.at(now);
        let (_, Found::Tombstone(number)) = self.find(self.hash(namespace, lease), namespace, lease)? else {
            return None;
        };
        let tombstone = self.state.tombstones.get(number);
        let is_for_credit = match tombstone.ending {
            Ending::NoCredit | Ending::AccountFrozen | Ending::AccountClosed => true,
            Ending::Denied | Ending::DeniedNever | Ending::Completed | Ending::Marked | Ending::Released => false,
        };
        let is_forgotten = tombstone.is_forgotten(self.state.config.retention_ms, now);
        (is_for_credit && !is_forgotten).then(|| tombstone.credit_denial(now))
    }

    /// Holds the planned amounts for the lease in `slot`.
    pub(super) fn take_credit(&mut self, now: UnixMs, command: &Reserve<'_>, slot: u32, credits: &mut Credits) {
        let (mut first, mut last) = (NONE, None);
        for part in &self.planned {
            let limit = &self.state.limits[part.limit];
            let Payers { account, revenue, asset } = part.payers;
            let balance = part.balance.unwrap_or_else(|| credits.balance_slot(account, asset));
            let hold = Hold {
                lease: command.lease,
                amount: part.amount,
                ends_at: now.plus_ms(limit.hold_ms()),
                limit: part.limit,
                account,
                balance,
                revenue,
                namespace: command.namespace,
                asset,
                keeps_debt: limit.keeps_debt,
                ..Hold::default()
            };
            let hold = credits.hold(now, hold, last);
            first = if last.is_none() { hold } else { first };
            last = Some(hold);
        }
        self.state.leases.set_holds(slot, first);
    }
}

impl Tombstone {
    /// The denial that this tombstone records.
    pub(super) fn credit_denial(&self, now: UnixMs) -> CreditDenial {
        let why = match self.ending {
            Ending::AccountFrozen => CreditShortage::Frozen,
            Ending::AccountClosed => CreditShortage::Closed,
            Ending::NoCredit
            | Ending::Denied
            | Ending::DeniedNever
            | Ending::Completed
            | Ending::Marked
            | Ending::Released => CreditShortage::NotEnough,
        };
        CreditDenial { limit: self.limited_by, retry_after_ms: self.at.ms_since(now), why }
    }
}
