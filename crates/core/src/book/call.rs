//! Calls and owners of leases.

/// The mark that a lease keeps of the call it was reserved for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallMark {
    /// The hash of the call's attributes.
    pub attributes: u32,
    /// The hash of the call's bounds.
    pub bounds: u32,
    /// The revision of the policy that gave the requirements.
    pub policy_revision: u64,
}

impl CallMark {
    /// The fingerprint by which a retry is compared with its first attempt. It replaces the fingerprint of the
    /// requirements, which another revision of the policy may change.
    #[must_use]
    pub const fn fingerprint(self) -> u64 {
        (self.attributes as u64) << 32 | self.bounds as u64
    }
}

/// The sender of a change to a lease, and the call it is for. The default is a caller that names limits itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseClaim {
    /// The hash of the call's attributes. Then the lease must be that of a call with these.
    pub attributes: Option<u32>,
    /// Whether a gateway sends it. The lease of a gateway is refused to all others.
    pub by_gateway: bool,
}
