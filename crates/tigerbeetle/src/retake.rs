//! Calendar reservations that reached the ledger in a later period than they were sent for.

use earmark_admission::{BackendError, Direction};
use earmark_core::UnixMs;

use crate::backend::Inner;
use crate::lease_record::{Held, LeaseRecord};
use crate::retake_chain::{RetakeResult, Retaking};
use crate::schema::{LeaseName, LimitName};

/// Chains for one lease: one per late reservation that has expired, and one per round.
const CHAINS_MAX: usize = 40;
const MS_NS: u64 = 1_000_000;

/// Whether late reservations were taken again.
pub(crate) enum Retaken {
    /// None is late, or none can be taken again.
    Not,
    /// The lease with reservations to the end of the current period.
    Now(LeaseRecord),
    /// This limit has no room in the current period.
    Denied(Option<LimitName>),
    /// Another process changed the lease; read it again.
    Changed,
}

impl Inner {
    /// The end of the period of a calendar limit that contains a time of the ledger; `None` without a calendar.
    pub(crate) fn period_end_ns(&self, limit: &LimitName, at_ns: u64) -> Option<u64> {
        let end = self.info(limit)?.definition.kind.period_end(UnixMs::new(at_ns / MS_NS))?;
        Some(end.get().saturating_mul(MS_NS))
    }

    /// Takes the late reservations of a lease again, to the end of the current period.
    pub(crate) async fn retake(&self, name: &LeaseName, record: &LeaseRecord) -> Result<Retaken, BackendError> {
        if !record.is_late() {
            return Ok(Retaken::Not);
        }
        let mut record = record.clone();
        let mut retaking = self.retaking(name, &record);
        let mut retaken = Retaken::Not;
        for _ in 0..CHAINS_MAX {
            let chain = retaking.chain(&self.common, record.first.fingerprint);
            if chain.is_empty() {
                return Ok(retaken);
            }
            match retaking.read(&self.create_one(chain, Direction::Takes).await?) {
                RetakeResult::Done(held) => {
                    replace(&mut record, held);
                    if !record.is_late() {
                        return Ok(Retaken::Now(record));
                    }
                    retaking = self.retaking(name, &record);
                    retaken = Retaken::Now(record.clone());
                }
                RetakeResult::Again => {}
                RetakeResult::Denied(limit) => return Ok(Retaken::Denied(limit)),
                RetakeResult::Changed => {
                    self.leases.forget(name.id);
                    return Ok(Retaken::Changed);
                }
                RetakeResult::Failed(message) => return Err(BackendError::Failed(message)),
            }
        }
        Err(BackendError::Failed("the lease changed at every attempt; try again".into()))
    }

    fn retaking(&self, name: &LeaseName, record: &LeaseRecord) -> Retaking {
        let now_ns = self.shared.clock.now_ns();
        Retaking::new(name, record, now_ns, |limit, at_ns| self.period_end_ns(limit, at_ns))
    }
}

/// Replaces reservations of the same limits.
fn replace(record: &mut LeaseRecord, held: Vec<Held>) {
    for new in held {
        if let Some(old) = record.held.iter_mut().find(|old| old.account == new.account) {
            *old = Held { earlier: old.earlier, used: old.used, ..new };
        }
    }
}
