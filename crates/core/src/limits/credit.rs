//! Credit requirements of a reserve: planned and held together, or refused together.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::limit::Payers;
use super::reserve::ResolvedPart;
use super::slab::NONE;
use super::{CreditTerms, Ending, Flags, Found, Limit, LimitSlot, Limits, Phase, Tombstone, fingerprint};
use crate::book::{CreditDenial, CreditShortage, LimitRef, NamespaceId, Part, Reserve, ReserveOutcome, VaultId};
use crate::credits::{AssetId, Credits, Hold, Owner};
use crate::id::{AssetName, LeaseId};
use crate::time::UnixMs;

/// Retry hint after insufficient credit: 10 seconds, since nobody knows when a deposit arrives.
pub(super) const CREDIT_RETRY_MS: u64 = 10_000;

/// A credit requirement and the balance that pays it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    limit: LimitSlot,
    pub(super) amount: u64,
    /// The index of the requirement.
    position: usize,
    payers: Payers,
    /// `None` if the account never had the asset.
    balance: Option<u32>,
    /// The hold that grows; none if the lease has no hold of the limit yet.
    pub(super) hold: u32,
}

/// The accounts that a limit names, and the asset, which the vault may not know yet.
struct Accounts {
    vault: VaultId,
    account: u32,
    revenue: u32,
    asset: AssetName,
}

impl Limits {
    /// The refusal by the first credit limit, in key order, whose vault or account does not exist. It leaves no record,
    /// so that the same lease can try again once the account is opened.
    pub(super) fn missing_account(
        &self,
        command: &Reserve<'_>,
        resolved: &[ResolvedPart],
        credits: &Credits,
    ) -> Option<ReserveOutcome> {
        let is_missing = |part: &&ResolvedPart| {
            let limit = &self.state.limits[part.limit];
            let is_unknown = limit.is_credit() && limit.payers().is_none();
            is_unknown && self.find_accounts(command.namespace, part.limit, credits).is_none()
        };
        let missing = resolved.iter().filter(is_missing).map(|part| part.position);
        let requirement =
            missing.min_by_key(|place| self.state.part_name(command.namespace, &command.requirements[*place]))?;
        Some(ReserveOutcome::AccountNotFound { requirement, retry_after_ms: CREDIT_RETRY_MS })
    }

    /// Checks that every account has the amounts required of it; if not, names the first requirement that lacks credit.
    /// The accounts exist. A hold among `holds` of the same limit grows, and pays from its own accounts.
    pub(super) fn plan_credit(
        &mut self,
        now: UnixMs,
        command: &Reserve<'_>,
        resolved: &[ResolvedPart],
        holds: u32,
        credits: &mut Credits,
    ) -> Result<(), (usize, CreditShortage)> {
        let mut new_assets: Vec<VaultId> = Vec::new();
        let mut planned = std::mem::take(&mut self.planned);
        planned.clear();
        let mut shortest: Option<(usize, CreditShortage)> = None;
        for part in resolved {
            if !self.state.limits[part.limit].is_credit() {
                continue;
            }
            let &ResolvedPart { limit, amount, position, .. } = part;
            if let Some(hold) = credits.hold_of(holds, limit) {
                let (payers, balance) = credits.payers_of(hold);
                planned.push(Planned { limit, amount, position, payers, balance: Some(balance), hold });
                continue;
            }
            match self.payers(command.namespace, part.limit, credits, &mut new_assets) {
                Some(payers) => {
                    let balance = credits.state.balance(payers.account, payers.asset);
                    planned.push(Planned { limit, amount, position, payers, balance, hold: NONE });
                }
                // The vault has the maximum number of assets, so no account can have this one.
                None => {
                    shortest.get_or_insert((part.position, CreditShortage::NotEnough));
                }
            }
        }
        for part in &planned {
            if let Some(balance) = part.balance {
                credits.apply_due(now, Owner { account: part.payers.account, balance });
            }
        }
        for part in &planned {
            let same = planned.iter().filter(|other| other.payers.is_same_payer(&part.payers));
            let amount = same.fold(0_u128, |sum, other| sum.saturating_add(other.amount.into()));
            if let Err(why) = credits.can_hold(now, part.payers, part.balance, amount)
                && shortest.is_none_or(|(first, _)| self.is_before(command, part.position, first))
            {
                shortest = Some((part.position, why));
            }
        }
        self.planned = planned;
        let Some(short) = shortest else { return Ok(()) };
        new_assets.into_iter().rev().for_each(|vault| credits.pop_asset(vault));
        Err(short)
    }

    /// The accounts of a limit, if they exist.
    fn payers(
        &mut self,
        namespace: NamespaceId,
        slot: LimitSlot,
        credits: &mut Credits,
        new_assets: &mut Vec<VaultId>,
    ) -> Option<Payers> {
        if let Some(payers) = self.state.limits[slot].payers() {
            return Some(payers);
        }
        let payers = self.find_payers(namespace, slot, credits, new_assets)?;
        // The assets added for this plan are removed again if the lease is denied, so do not cache them yet. A vault with
        // a lasting asset is never deleted, so its accounts keep their slots.
        if new_assets.is_empty() {
            self.state.limits[slot].set_payers(Some(payers));
        }
        Some(payers)
    }

    /// The account and asset of a credit limit, if both exist.
    pub(crate) fn paying_balance(&self, slot: LimitSlot, credits: &Credits) -> Option<(u32, AssetId)> {
        let limit = self.state.limits.get(slot).filter(|limit| limit.is_credit())?;
        // The cached accounts of a stale limit are those of its old template.
        if let Some(payers) = limit.payers().filter(|_| !self.is_stale(limit)) {
            return Some((payers.account, payers.asset));
        }
        let found = self.find_accounts(limit.namespace, slot, credits)?;
        Some((found.account, credits.state.asset(found.vault, &found.asset)?))
    }

    /// The balances that defined credit limits pay from. Limits on one balance share its debt, so each is listed once.
    pub(crate) fn paying_balances(&self, credits: &Credits) -> BTreeSet<(u32, AssetId)> {
        let slots = self.state.credit_limits.iter().copied();
        slots.filter_map(|slot| self.paying_balance(slot, credits)).collect()
    }

    /// Looks up the accounts of a limit. Adds an asset unknown to the vault, since an account with overdraft may owe
    /// it.
    fn find_payers(
        &self,
        namespace: NamespaceId,
        slot: LimitSlot,
        credits: &mut Credits,
        new_assets: &mut Vec<VaultId>,
    ) -> Option<Payers> {
        let Accounts { vault, account, revenue, asset } = self.find_accounts(namespace, slot, credits)?;
        let asset = match credits.state.asset(vault, &asset) {
            Some(asset) => asset,
            None => {
                let asset = credits.add_asset(vault, &asset)?;
                new_assets.push(vault);
                asset
            }
        };
        Some(Payers { account, revenue, asset })
    }

    fn find_accounts(&self, namespace: NamespaceId, slot: LimitSlot, credits: &Credits) -> Option<Accounts> {
        let terms = self.terms(slot)?;
        let vault = credits.vault(namespace, &terms.vault)?;
        let account = credits.account(vault, &terms.account)?;
        let revenue = credits.account(vault, &terms.revenue)?;
        Some(Accounts { vault, account, revenue, asset: terms.asset.clone() })
    }

    /// The terms of a credit limit; those of a derived one come from its template.
    fn terms(&self, slot: LimitSlot) -> Option<Cow<'_, CreditTerms>> {
        if self.state.limits.get(slot)?.template().is_some() {
            let definition = self.followed_by(slot)?.definition;
            return definition.kind.terms().cloned().map(Cow::Owned);
        }
        self.state.text(slot)?.credit.as_ref().map(Cow::Borrowed)
    }

    /// Records that a lease was denied credit.
    pub(super) fn deny_credit(
        &mut self,
        now: UnixMs,
        command: &Reserve<'_>,
        resolved: &[ResolvedPart],
        (requirement, why): (usize, CreditShortage),
    ) -> CreditDenial {
        self.note_decision(now, resolved);
        let ending = match why {
            CreditShortage::Frozen => Ending::AccountFrozen,
            CreditShortage::Closed => Ending::AccountClosed,
            CreditShortage::UnknownAccount | CreditShortage::NotEnough => Ending::NoCredit,
        };
        let flags = self.keep_extras(command);
        self.add_tombstone(Tombstone {
            fingerprint: self.state.fingerprint_of_new(command, resolved),
            at: now.plus_ms(CREDIT_RETRY_MS),
            limited_by: self.state.rank(command, requirement),
            flags,
            ..Tombstone::new(command.namespace, command.lease, ending, now)
        });
        CreditDenial { requirement, retry_after_ms: CREDIT_RETRY_MS, why }
    }

    fn is_before(&self, command: &Reserve<'_>, first: usize, second: usize) -> bool {
        let name_of = |place: usize| self.state.part_name(command.namespace, &command.requirements[place]);
        name_of(first) < name_of(second)
    }

    /// The recorded credit denial of a lease. `requirements` are those of its reserve; others may be among them.
    pub(crate) fn credit_denial(
        &self,
        now: UnixMs,
        (namespace, lease): (NamespaceId, LeaseId),
        requirements: &[Part],
    ) -> Option<CreditDenial> {
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
        let requirement = || self.denied_requirement(namespace, tombstone, requirements);
        (is_for_credit && !is_forgotten).then(|| tombstone.credit_denial(now, requirement()))
    }

    /// The requirement that a tombstone names. If a limit of the lease was deleted since, the fingerprint tells which of
    /// the requirements the lease had: all, those of credit, or those that are of no other kind.
    fn denied_requirement(&self, namespace: NamespaceId, tombstone: &Tombstone, requirements: &[Part]) -> usize {
        let kind_of = |part: &Part| {
            let slot = match &part.limit {
                LimitRef::Key(key) => self.resolve(namespace, key),
                LimitRef::Foreign(limit) => self.resolve_foreign(limit),
                LimitRef::Id(id) => self.state.limits.slot(*id),
            };
            let limit = slot.and_then(|slot| self.state.limits.get(slot)).filter(|limit| limit.phase != Phase::Deleted);
            // A derived limit may not be live: a denial derives nothing.
            let template = || match &part.limit {
                LimitRef::Key(key) => self.template_of(namespace, key),
                LimitRef::Foreign(_) | LimitRef::Id(_) => None,
            };
            let of_template = || template().map(|found| found.template.definition().kind.terms().is_some());
            limit.map(Limit::is_credit).or_else(of_template)
        };
        let has_kind = |allowed: &[Option<bool>]| -> Vec<usize> {
            let places = 0..requirements.len();
            places.filter(|place| allowed.contains(&kind_of(&requirements[*place]))).collect()
        };
        let candidates =
            [has_kind(&[Some(true), None, Some(false)]), has_kind(&[Some(true)]), has_kind(&[Some(true), None])];
        // The fingerprint of a call tells nothing about its requirements.
        let is_call = self.mark_of(namespace, tombstone.id, tombstone.flags).call.is_some();
        let is_meant = |places: &&Vec<usize>| {
            let parts = places
                .iter()
                .map(|place| (self.hash_of(namespace, &requirements[*place]), requirements[*place].amount));
            is_call || fingerprint(parts) == tombstone.fingerprint
        };
        let meant = candidates.iter().find(is_meant).unwrap_or(&candidates[2]);
        let mut sorted = meant.clone();
        sorted.sort_unstable_by_key(|place| self.state.part_name(namespace, &requirements[*place]));
        sorted.get(usize::from(tombstone.limited_by)).or(sorted.first()).copied().unwrap_or_default()
    }

    /// Holds the planned amounts for the lease in `slot`.
    pub(super) fn take_credit(&mut self, now: UnixMs, command: &Reserve<'_>, slot: u32, credits: &mut Credits) {
        let (mut first, mut last) = (NONE, None);
        for part in &self.planned {
            let hold = self.new_hold(now, (command.namespace, command.lease), part, credits);
            let hold = credits.hold(now, hold, &self.state, last);
            first = if last.is_none() { hold } else { first };
            last = Some(hold);
        }
        self.state.leases.set_holds(slot, first);
    }

    /// The hold of a planned amount.
    pub(super) fn new_hold(
        &self,
        now: UnixMs,
        (namespace, lease): (NamespaceId, LeaseId),
        part: &Planned,
        credits: &mut Credits,
    ) -> Hold {
        let limit = &self.state.limits[part.limit];
        let Payers { account, revenue, asset } = part.payers;
        Hold {
            lease,
            amount: part.amount,
            ends_at: now.plus_ms(limit.hold_ms()),
            limit: part.limit,
            account,
            balance: part.balance.unwrap_or_else(|| credits.balance_slot(account, asset)),
            revenue,
            namespace,
            asset,
            keeps_debt: limit.flags.has(Flags::KEEPS_DEBT),
            charges_timeout: limit.flags.has(Flags::CHARGES_TIMEOUT),
            ..Hold::default()
        }
    }
}

impl Tombstone {
    /// The denial that this tombstone records.
    pub(super) fn credit_denial(&self, now: UnixMs, requirement: usize) -> CreditDenial {
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
        CreditDenial { requirement, retry_after_ms: self.at.ms_since(now), why }
    }
}
