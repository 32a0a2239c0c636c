//! Leases of the model, and when they are forgotten.

use earmark_core::{
    CallMark, CreditDenial, Denial, JobId, Kind, LeaseClaim, LeaseId, LeaseInfo, LeaseState, LimitId, LimitKey,
    NamespaceId, Reserve, UnixMs,
};

use super::Model;
use super::extend::Extended;

const FORGOTTEN_PER_COMMAND: usize = 16;

/// Keys with amounts. Not ids, which may be given to other limits.
pub type Requirements = Vec<(LimitKey, u64)>;

/// The call behind a lease, and whether a gateway made it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mark {
    pub call: Option<CallMark>,
    pub by_gateway: bool,
}

impl Mark {
    pub fn of(asked: &Reserve<'_>) -> Mark {
        Mark { call: asked.call, by_gateway: asked.by_gateway }
    }

    pub fn is_owned(self, by_gateway: bool) -> bool {
        self.by_gateway && !by_gateway
    }

    pub fn is_other_call(self, claim: LeaseClaim) -> bool {
        claim.attributes.is_some_and(|attributes| self.call.is_none_or(|call| call.attributes != attributes))
    }
}

#[derive(Clone, Debug)]
pub struct Lease {
    pub namespace: NamespaceId,
    pub id: LeaseId,
    pub job: Option<JobId>,
    pub mark: Mark,
    pub fate: Fate,
    /// The order of leases that end in one second.
    pub queued: u64,
    pub extended: Option<Extended>,
    /// The requirements of the reserve, once it was extended.
    pub first: Option<Requirements>,
}

#[derive(Clone, Debug)]
pub enum Fate {
    Held { reserved_at: UnixMs, parts: Vec<Held> },
    Completed { reserved_at: UnixMs, requirements: Requirements, resolved_at: UnixMs },
    Denied { requirements: Requirements, resolved_at: UnixMs, retry_at: UnixMs, denial: Denial },
    NoCredit { requirements: Requirements, resolved_at: UnixMs, denial: CreditDenial },
    Marked { resolved_at: UnixMs },
    Released { requirements: Requirements, resolved_at: UnixMs },
}

/// One requirement of an allowed lease, with the definition at that time.
#[derive(Clone, Debug)]
pub struct Held {
    pub limit: LimitId,
    pub key: LimitKey,
    pub amount: u64,
    pub kind: Kind,
    pub end: UnixMs,
    /// A shadow limit would have denied it.
    pub would_deny: bool,
    /// The sum of its earlier parts; `amount` and `end` are those of the newest.
    pub earlier: u64,
    pub earlier_end: UnixMs,
    /// The highest usage reported.
    pub used: u64,
    /// Credit that another store holds.
    pub is_external: bool,
}

impl Held {
    pub fn total(&self) -> u64 {
        self.earlier.saturating_add(self.amount)
    }
}

impl Model {
    pub fn remembered(&self, namespace: NamespaceId, lease: LeaseId) -> Option<usize> {
        self.leases.iter().position(|l| l.namespace == namespace && l.id == lease)
    }

    pub fn is_due(&self, now: UnixMs, lease: &Lease) -> bool {
        match lease.fate {
            Fate::Held { ref parts, .. } => {
                let end_ms = end_second(lease.id, parts).saturating_mul(1_000);
                end_ms.saturating_add(self.config.retention_ms) <= now.get()
            }
            Fate::Completed { .. }
            | Fate::Denied { .. }
            | Fate::NoCredit { .. }
            | Fate::Marked { .. }
            | Fate::Released { .. } => {
                let from = lease.id.time().max(lease.resolved_at());
                from.get().saturating_add(self.config.retention_ms) <= now.get()
            }
        }
    }

    pub fn forget(&mut self) {
        let now = self.time();
        for _ in 0..FORGOTTEN_PER_COMMAND {
            let due = (0..self.leases.len()).filter_map(|place| {
                let lease = &self.leases[place];
                let Fate::Held { ref parts, .. } = lease.fate else { return None };
                self.is_due(now, lease).then(|| (end_second(lease.id, parts), lease.queued, place))
            });
            let Some((_, _, first)) = due.min() else { break };
            self.forget_at(first);
        }
        for _ in 0..FORGOTTEN_PER_COMMAND {
            let Some(first) = self.leases.iter().position(|l| !l.is_held()) else { break };
            if self.leases[first].resolved_at().get().saturating_add(self.config.retention_ms) > now.get() {
                break;
            }
            if self.is_due(now, &self.leases[first]) {
                self.forget_at(first);
            } else {
                // This lease has a future time; the others do not wait for it.
                let waits = self.leases.remove(first);
                self.leases.push(waits);
            }
        }
    }

    fn forget_at(&mut self, place: usize) {
        let lease = self.leases.remove(place);
        if let Fate::Held { parts, .. } = &lease.fate {
            self.look_at_all(parts);
        }
        self.time_out_all((lease.namespace, lease.id));
        self.holds.retain(|hold| hold.lease != (lease.namespace, lease.id));
        self.forgotten_before = self.forgotten_before.max(lease.id.time().plus_ms(1));
    }
}

impl Lease {
    fn resolved_at(&self) -> UnixMs {
        match self.fate {
            Fate::Held { .. } => UnixMs::MAX,
            Fate::Completed { resolved_at, .. }
            | Fate::Denied { resolved_at, .. }
            | Fate::NoCredit { resolved_at, .. }
            | Fate::Released { resolved_at, .. }
            | Fate::Marked { resolved_at } => resolved_at,
        }
    }

    pub fn is_held(&self) -> bool {
        matches!(self.fate, Fate::Held { .. })
    }

    /// Its requirements; `None` if it was completed before a reserve.
    pub fn requirements(&self) -> Option<Requirements> {
        match self.fate {
            Fate::Held { .. } if self.first.is_some() => self.first.clone(),
            Fate::Held { .. } if self.extended.is_some() => self.extended.as_ref().map(|it| it.original.clone()),
            Fate::Held { ref parts, .. } => Some(requirements(parts)),
            Fate::Completed { ref requirements, .. }
            | Fate::Denied { ref requirements, .. }
            | Fate::Released { ref requirements, .. }
            | Fate::NoCredit { ref requirements, .. } => Some(requirements.clone()),
            Fate::Marked { .. } => None,
        }
    }
}

/// The second after the end of an incomplete lease, which is forgotten one retention later.
pub fn end_second(lease: LeaseId, parts: &[Held]) -> u64 {
    let last_end = last_end(parts);
    lease.time().max(last_end).get().div_ceil(1_000)
}

fn last_end(parts: &[Held]) -> UnixMs {
    parts.iter().map(|p| p.end.max(p.earlier_end)).max().unwrap()
}

/// Whether a lease can be extended.
pub fn is_alive(now: UnixMs, lease: &Lease) -> bool {
    let Fate::Held { ref parts, .. } = lease.fate else { return false };
    now < bound_end(parts).unwrap_or_else(|| last_end(parts))
}

pub fn requirements(parts: &[Held]) -> Requirements {
    parts.iter().map(|p| (p.key.clone(), p.amount)).collect()
}

/// A lease is live while all its reservations are; one with an extension that was made while it can be extended.
pub fn is_live(now: UnixMs, lease: &Lease) -> bool {
    let Fate::Held { ref parts, .. } = lease.fate else { return false };
    let is_made = lease.extended.as_ref().is_some_and(|extended| extended.is_made);
    if is_made { is_alive(now, lease) } else { parts.iter().all(|p| now < p.end) }
}

pub fn closed(reserved_at: Option<UnixMs>, state: LeaseState, lease: &Lease) -> LeaseInfo {
    LeaseInfo {
        reserved_at,
        requirements: Vec::new(),
        state,
        job: lease.job.clone(),
        extensions: 0,
        used: Vec::new(),
        ends_at: None,
        call: lease.mark.call,
        by_gateway: lease.mark.by_gateway,
        has_credit: false,
    }
}

pub fn hold_ms(kind: &Kind) -> u64 {
    u64::from(kind.hold_seconds()) * 1_000
}

/// The first end of a concurrency or credit reservation.
pub fn bound_end(parts: &[Held]) -> Option<UnixMs> {
    let is_bound = |part: &&Held| matches!(part.kind, Kind::Concurrency { .. } | Kind::Credit(_));
    parts.iter().filter(is_bound).map(|part| part.end).min()
}
