//! The chain of an extension, and its results.
//!
//! The chain voids the anchor before it and makes the next one. The end of a lease voids the newest anchor, so of an
//! extension and a complete that race one fails and reads the lease again.

use tigerbeetle::{CreateTransferResult, CreateTransferStatus as Status, Transfer};

use crate::lease_record::{Held, LeaseRecord};
use crate::reserve_chain::Taken;
use crate::retake_chain::seconds_until;
use crate::schema::{Anchor, CommonAccounts, Decision, LeaseName, LimitName, PartVersion, SECOND_NS, link};
use crate::status::{describe, exists, has_ended};

/// The longest life of a renewed lease, in nanoseconds: a day.
const LIFE_NS: u64 = 86_400 * SECOND_NS;

/// An extension of one lease.
#[derive(Clone, Debug)]
pub(crate) struct Extending {
    pub(crate) name: LeaseName,
    pub(crate) anchor: Anchor,
    /// In order of precedence: concurrency reservations that take the place of others come first.
    pub(crate) parts: Vec<ExtendPart>,
    /// The usage to record, by limit.
    pub(crate) used: Vec<(LimitName, u64)>,
}

/// A reservation of an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExtendPart {
    pub(crate) taken: Taken,
    /// The concurrency reservation whose place it takes.
    pub(crate) replaces: Option<Held>,
}

/// Role of a transfer in the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Anchor,
    Void,
    Take(usize),
    Note,
}

/// Outcome of an extension chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExtendResult {
    Done(LeaseRecord),
    /// Another request extended or ended the lease; read it again.
    Changed,
    /// A concurrency reservation has expired.
    Expired,
    /// The limit of the part at this index has too little, now or at the first attempt.
    Denied {
        index: usize,
    },
    /// An unexpected status.
    Failed(String),
}

/// The concurrency reservation that takes the place of `held`: with more, with a later end, or both. `None` if neither
/// changes. `timeout_seconds` is the timeout of the limit if its end moves.
pub(crate) fn replacement(
    held: &Held,
    (add, extension): (u64, u32),
    timeout_seconds: Option<u32>,
    (reserved_at_ns, now_ns): (u64, u64),
) -> Option<ExtendPart> {
    let latest_ns = reserved_at_ns.saturating_add(LIFE_NS);
    let until_ns = |seconds: u32| now_ns.saturating_add(u64::from(seconds).saturating_mul(SECOND_NS));
    let moved = timeout_seconds.filter(|seconds| until_ns(*seconds).min(latest_ns) > held.ends_at_ns);
    let (hold_seconds, ends_at_ns) = match moved {
        Some(seconds) if until_ns(seconds) <= latest_ns => (seconds, None),
        Some(_) => (seconds_until(latest_ns, now_ns), Some(latest_ns)),
        None if add == 0 => return None,
        None => (seconds_until(held.ends_at_ns, now_ns), Some(held.ends_at_ns)),
    };
    let taken = Taken {
        limit: held.name.clone(),
        account: held.account,
        amount: held.amount.saturating_add(add),
        holding: held.holding,
        hold_seconds,
        ends_at_ns,
        would_deny: held.would_deny,
        version: PartVersion { extension, round: 0 },
    };
    Some(ExtendPart { taken, replaces: Some(held.clone()) })
}

impl Extending {
    fn roles_and_transfers(&self, common: &CommonAccounts) -> Vec<(Role, Transfer)> {
        let Anchor { number, fingerprint, .. } = self.anchor;
        let mut chain = vec![(Role::Anchor, self.name.next_anchor(number.saturating_sub(1)))];
        let replaced = self.parts.iter().filter_map(|part| part.replaces.as_ref());
        chain.extend(replaced.map(|held| (Role::Void, held.void(&self.name))));
        chain.push((Role::Anchor, self.name.anchor(common, &self.anchor)));
        let takes = self.parts.iter().enumerate();
        chain.extend(
            takes.map(|(index, part)| (Role::Take(index), part.taken.transfer(&self.name, common, fingerprint))),
        );
        let used = self.used.iter();
        chain.extend(used.map(|(limit, used)| (Role::Note, self.name.used(common, number, limit, *used))));
        chain
    }

    /// The transfers: the void of the anchor before, the voids of reservations that are replaced, the anchor, the
    /// reservations, the reports of usage.
    pub(crate) fn chain(&self, common: &CommonAccounts) -> Vec<Transfer> {
        let mut chain: Vec<Transfer> = self.roles_and_transfers(common).into_iter().map(|(_, each)| each).collect();
        link(&mut chain);
        chain
    }

    /// Interprets the results of [`chain`](Extending::chain). `before` is the lease that the chain was made for.
    pub(crate) fn read(
        &self,
        common: &CommonAccounts,
        results: &[CreateTransferResult],
        before: &LeaseRecord,
    ) -> ExtendResult {
        let roles = self.roles_and_transfers(common);
        if results.len() != roles.len() {
            return ExtendResult::Failed(format!("{} results came for {} transfers", results.len(), roles.len()));
        }
        let decisive = results.iter().zip(&roles).find(|(result, _)| result.status != Status::LinkedEventFailed);
        let Some((result, (role, _))) = decisive else {
            return ExtendResult::Failed("TigerBeetle rejected a chain without a reason".into());
        };
        match (*role, result.status) {
            (_, Status::Created) if results.iter().all(|result| result.status == Status::Created) => {
                let made_at_ns = results.iter().zip(&roles).map(|(result, (role, _))| (*role, result.timestamp));
                ExtendResult::Done(self.record(before, made_at_ns))
            }
            (Role::Void, Status::PendingTransferExpired) => ExtendResult::Expired,
            (Role::Take(index), Status::ExceedsCredits | Status::IdAlreadyFailed) => ExtendResult::Denied { index },
            (_, status) if exists(status) || has_ended(status) => ExtendResult::Changed,
            (Role::Anchor | Role::Void | Role::Take(_) | Role::Note, status) => ExtendResult::Failed(describe(status)),
        }
    }

    /// The lease after the extension.
    fn record(&self, before: &LeaseRecord, made_at_ns: impl Iterator<Item = (Role, u64)>) -> LeaseRecord {
        let is_extended = before.is_extended || self.anchor.decision == Decision::Extended;
        let mut record = LeaseRecord { newest: self.anchor, is_extended, ..before.clone() };
        for (role, made_at_ns) in made_at_ns {
            match role {
                Role::Anchor => record.newest.made_at_ns = made_at_ns,
                Role::Take(index) => {
                    if let Some(part) = self.parts.get(index) {
                        add_part(&mut record.held, part.taken.held(&self.name, made_at_ns), part.replaces.is_some());
                    }
                }
                Role::Void | Role::Note => {}
            }
        }
        for (limit, used) in &self.used {
            let of_limit = record.held.iter_mut().find(|held| held.name.as_ref() == Some(limit));
            if let Some(held) = of_limit {
                held.used = held.used.max(*used);
            }
        }
        record.held.sort_by(|a, b| a.name.cmp(&b.name));
        record
    }
}

fn add_part(all: &mut Vec<Held>, new: Held, is_replacement: bool) {
    match all.iter_mut().find(|held| held.account == new.account) {
        Some(old) => {
            let earlier = if is_replacement { 0 } else { old.total() };
            *old = Held { earlier, used: old.used, ..new };
        }
        None => all.push(new),
    }
}

#[cfg(test)]
mod tests;
