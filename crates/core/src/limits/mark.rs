//! Marks of leases: the call behind a lease, and whether a gateway made it.

use super::{Found, LeaseFlags, Limits};
use crate::book::{CallMark, LeaseClaim, NamespaceId, Reserve};
use crate::id::{JobId, LeaseId};

/// The mark of a lease. Few leases have one, so marks have a table of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaseMark {
    pub(crate) call: Option<CallMark>,
    pub(crate) by_gateway: bool,
}

/// Why a claim on a lease is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimRefusal {
    OwnedByGateway,
    OtherCall,
}

impl LeaseMark {
    fn of(command: &Reserve<'_>) -> Option<LeaseMark> {
        let mark = LeaseMark { call: command.call, by_gateway: command.by_gateway };
        (mark != LeaseMark::default()).then_some(mark)
    }

    pub(crate) fn policy_revision(self) -> Option<u64> {
        self.call.map(|call| call.policy_revision)
    }

    /// Whether a repeated reserve is for the same call. `None` if neither is for a call, so that their requirements tell.
    pub(super) fn is_same_call(self, command: &Reserve<'_>) -> Option<bool> {
        match (self.call, command.call) {
            (None, None) => None,
            (Some(first), Some(second)) => Some(first.fingerprint() == second.fingerprint()),
            (Some(_), None) | (None, Some(_)) => Some(false),
        }
    }

    pub(super) fn check(self, claim: LeaseClaim) -> Result<(), ClaimRefusal> {
        if self.by_gateway && !claim.by_gateway {
            return Err(ClaimRefusal::OwnedByGateway);
        }
        match claim.attributes {
            Some(attributes) if self.call.is_none_or(|call| call.attributes != attributes) => {
                Err(ClaimRefusal::OtherCall)
            }
            Some(_) | None => Ok(()),
        }
    }
}

impl Limits {
    /// Keeps the job and the mark of a lease. Returns the flags that say which it has.
    #[inline]
    pub(super) fn keep_extras(&mut self, command: &Reserve<'_>) -> LeaseFlags {
        let mut flags = LeaseFlags::default();
        if let Some(job) = command.job {
            self.state.jobs.insert(command.namespace, command.lease, job.clone());
            flags = flags.with(LeaseFlags::JOB);
        }
        if let Some(mark) = LeaseMark::of(command) {
            self.state.marks.insert(command.namespace, command.lease, mark);
            flags = flags.with(LeaseFlags::MARK);
        }
        flags
    }

    /// The mark of a lease with these flags.
    #[inline]
    pub(super) fn mark_of(&self, namespace: NamespaceId, lease: LeaseId, flags: LeaseFlags) -> LeaseMark {
        if !flags.has(LeaseFlags::MARK) {
            return LeaseMark::default();
        }
        self.state.marks.get(namespace, lease).copied().unwrap_or_default()
    }

    /// The mark of a remembered lease.
    #[inline]
    pub(super) fn mark_of_found(&self, namespace: NamespaceId, lease: LeaseId, found: &Found) -> LeaseMark {
        let flags = match found {
            Found::Record(slot) => self.state.leases.get(*slot).flags,
            Found::Tombstone(number) => self.state.tombstones.get(*number).flags,
        };
        self.mark_of(namespace, lease, flags)
    }

    /// Forgets the job and the mark of a lease with these flags.
    pub(super) fn forget_extras(&mut self, namespace: NamespaceId, lease: LeaseId, flags: LeaseFlags) {
        if flags.has(LeaseFlags::JOB) {
            self.state.jobs.remove(namespace, lease);
        }
        if flags.has(LeaseFlags::MARK) {
            self.state.marks.remove(namespace, lease);
        }
    }

    /// Restores the job of a remembered lease. Returns false if there is no such lease.
    pub(crate) fn restore_job(&mut self, namespace: NamespaceId, lease: LeaseId, job: JobId) -> bool {
        let is_known = self.add_flag(namespace, lease, LeaseFlags::JOB);
        if is_known {
            self.state.jobs.insert(namespace, lease, job);
        }
        is_known
    }

    /// Restores the mark of a remembered lease. Returns false if there is no such lease.
    pub(crate) fn restore_mark(&mut self, namespace: NamespaceId, lease: LeaseId, mark: LeaseMark) -> bool {
        let is_known = self.add_flag(namespace, lease, LeaseFlags::MARK);
        if is_known {
            self.state.marks.insert(namespace, lease, mark);
        }
        is_known
    }

    fn add_flag(&mut self, namespace: NamespaceId, lease: LeaseId, flag: LeaseFlags) -> bool {
        match self.find(self.hash(namespace, lease), namespace, lease) {
            Some((_, Found::Record(slot))) => self.state.leases.add_flags(slot, flag),
            Some((_, Found::Tombstone(number))) => self.state.tombstones.add_flags(number, flag),
            None => return false,
        }
        true
    }
}
