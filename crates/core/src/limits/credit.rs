//! Requirements of credit: planned together, taken together, or refused together.

use super::limit::Payers;
use super::reserve::{Wanted, fingerprint};
use super::slab::NONE;
use super::{Ending, Limits, Tombstone};
use crate::book::{CreditDenial, CreditShortage, LimitId, NamespaceId, Reserve};
use crate::credits::{AssetId, Credits, Hold, Standing};
use crate::time::UnixMs;

/// When to come back after there was no credit: nobody knows when an account is filled.
const CREDIT_RETRY_MS: u64 = 10_000;

/// One requirement of credit, and the balance it is taken from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    limit: LimitId,
    amount: u64,
    payers: Payers,
    balance: u32,
}

impl Limits {
    /// Finds out whether all accounts have what is wanted of them; if not, remembers the denial.
    pub(super) fn plan_credit(
        &mut self,
        now: UnixMs,
        command: &Reserve<'_>,
        wanted: &[Wanted],
        credits: &Credits,
    ) -> Result<(), CreditDenial> {
        let mut planned = std::mem::take(&mut self.planned);
        planned.clear();
        let mut shortest: Option<(LimitId, CreditShortage)> = None;
        let mut blame = |limits: &Limits, limit: LimitId, why: CreditShortage| {
            if shortest.is_none_or(|(first, _)| limits.key(limit) < limits.key(first)) {
                shortest = Some((limit, why));
            }
        };
        for part in wanted {
            if !self.state.limits[part.limit].is_credit {
                continue;
            }
            match self.payers(command.namespace, part.limit, credits) {
                Ok((payers, balance)) => {
                    planned.push(Planned { limit: part.limit, amount: part.amount, payers, balance });
                }
                Err(why) => blame(self, part.limit, why),
            }
        }
        for part in &planned {
            let same = planned.iter().filter(|other| other.balance == part.balance);
            let amount = same.fold(0_u128, |sum, other| sum.saturating_add(other.amount.into()));
            let payee = credits.state.accounts.get(part.payers.revenue);
            match credits.can_hold(now, (part.payers.account, part.balance), amount) {
                Err(why) => blame(self, part.limit, why),
                Ok(()) if payee.standing == Standing::Closed => {
                    blame(self, part.limit, CreditShortage::Closed);
                }
                Ok(()) => {}
            }
        }
        self.planned = planned;
        match shortest {
            None => Ok(()),
            Some(short) => Err(self.deny_credit(now, command, wanted, short)),
        }
    }

    /// The accounts that a limit means and the balance that pays, if they are there.
    fn payers(
        &mut self,
        namespace: NamespaceId,
        id: LimitId,
        credits: &Credits,
    ) -> Result<(Payers, u32), CreditShortage> {
        let payers = match self.state.limits[id].payers {
            Some(payers) => payers,
            None => self.find_payers(namespace, id, credits).ok_or(CreditShortage::UnknownAccount)?,
        };
        self.state.limits[id].payers = Some(payers);
        match credits.state.balance(payers.account, payers.asset) {
            Some(balance) => Ok((payers, balance)),
            // It never had any of this asset.
            None => Err(match credits.state.accounts.get(payers.account).standing {
                Standing::Open => CreditShortage::NotEnough,
                Standing::Frozen => CreditShortage::Frozen,
                Standing::Closed => CreditShortage::Closed,
            }),
        }
    }

    /// The account that a limit of kind `credit` takes from, and what it takes, if both are there.
    pub(crate) fn purse(&self, id: LimitId, credits: &Credits) -> Option<(u32, AssetId)> {
        let limit = self.state.limits.get(id).filter(|limit| limit.is_credit)?;
        let payers = match limit.payers {
            Some(payers) => payers,
            None => self.find_payers(limit.namespace, id, credits)?,
        };
        Some((payers.account, payers.asset))
    }

    fn find_payers(&self, namespace: NamespaceId, id: LimitId, credits: &Credits) -> Option<Payers> {
        let terms = self.state.texts.get(id.0 as usize)?.credit.as_ref()?;
        let vault = credits.vault(namespace, &terms.vault)?;
        Some(Payers {
            account: credits.account(vault, &terms.account)?,
            revenue: credits.account(vault, &terms.revenue)?,
            asset: credits.state.asset(vault, &terms.asset)?,
        })
    }

    fn deny_credit(
        &mut self,
        now: UnixMs,
        command: &Reserve<'_>,
        wanted: &[Wanted],
        (limit, why): (LimitId, CreditShortage),
    ) -> CreditDenial {
        let ending = match why {
            CreditShortage::UnknownAccount => Ending::NoAccount,
            CreditShortage::Frozen => Ending::AccountFrozen,
            CreditShortage::Closed => Ending::AccountClosed,
            CreditShortage::NotEnough => Ending::NoCredit,
        };
        self.add_tombstone(Tombstone {
            fingerprint: fingerprint(wanted.iter().map(|part| (part.limit, part.amount))),
            at: now.plus_ms(CREDIT_RETRY_MS),
            limited_by: limit,
            ..Tombstone::new(command.namespace, command.lease, ending, now)
        });
        CreditDenial { limit, retry_after_ms: CREDIT_RETRY_MS, why }
    }

    /// Sets aside what was planned, for the lease in `slot`.
    pub(super) fn take_credit(
        &mut self,
        now: UnixMs,
        command: &Reserve<'_>,
        slot: u32,
        credits: &mut Credits,
    ) {
        let (mut first, mut last) = (NONE, None);
        for part in &self.planned {
            let limit = &self.state.limits[part.limit];
            let hold = Hold {
                lease: command.lease,
                amount: part.amount,
                ends_at: now.plus_ms(limit.hold_ms()),
                limit: part.limit,
                account: part.payers.account,
                balance: part.balance,
                revenue: part.payers.revenue,
                namespace: command.namespace,
                asset: part.payers.asset,
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
    /// The denial that this is of.
    pub(super) fn credit_denial(&self, now: UnixMs) -> CreditDenial {
        let why = match self.ending {
            Ending::NoAccount => CreditShortage::UnknownAccount,
            Ending::AccountFrozen => CreditShortage::Frozen,
            Ending::AccountClosed => CreditShortage::Closed,
            Ending::NoCredit | Ending::Denied | Ending::DeniedNever | Ending::Completed | Ending::Marked => {
                CreditShortage::NotEnough
            }
        };
        CreditDenial { limit: self.limited_by, retry_after_ms: self.at.ms_since(now), why }
    }
}
