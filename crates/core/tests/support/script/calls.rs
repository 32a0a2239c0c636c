//! The calls and owners of a script's leases.

use earmark_core::{CallMark, LeaseClaim, LeaseId};

use super::Script;

impl Script {
    /// The call of a reserve, and whether a gateway sends it. Derived from the lease, so that a retry mostly has the same
    /// ones; the policy may have changed since.
    pub(super) fn mark(&mut self, lease: LeaseId) -> (Option<CallMark>, bool) {
        let (mut call, mut by_gateway) = self.first_mark(lease);
        match self.random.below(100) {
            0..3 => call = None,
            3..6 => call = call.map(|call| CallMark { attributes: call.attributes ^ 1, ..call }),
            6..9 => call = call.map(|call| CallMark { bounds: call.bounds ^ 1, ..call }),
            9..13 => by_gateway = !by_gateway,
            _ => {}
        }
        (call, by_gateway)
    }

    /// The claim of a complete or an extension; mostly that of the lease.
    pub(super) fn claim(&mut self, lease: LeaseId) -> LeaseClaim {
        let (call, mut by_gateway) = self.first_mark(lease);
        let mut attributes = call.map(|call| call.attributes).filter(|_| self.random.chance(70));
        match self.random.below(100) {
            0..4 => attributes = Some(attributes.unwrap_or(0) ^ 1),
            4..9 => by_gateway = !by_gateway,
            _ => {}
        }
        LeaseClaim { attributes, by_gateway }
    }

    fn first_mark(&mut self, lease: LeaseId) -> (Option<CallMark>, bool) {
        let bits = lease.to_u128() as u32;
        let policy_revision = self.random.between(1, 3);
        let call = CallMark { attributes: bits >> 8, bounds: bits >> 16, policy_revision };
        (bits.is_multiple_of(4).then_some(call), (bits >> 4).is_multiple_of(5))
    }
}
