//! The ledger schema: accounts, transfers, and their codes.

use earmark_admission::Amount;
use earmark_core::{Kind, Label, LeaseId, LeaseScope, LimitKey, LimitScope, NamespaceName};
use sha2::{Digest, Sha256};
use tigerbeetle::{Account, AccountFlags, Transfer, TransferFlags};

/// Ledger of every account and transfer.
pub(crate) const LEDGER: u32 = 1;
/// Code of every account.
const ACCOUNT_CODE: u16 = 1;
pub(crate) const SECOND_NS: u64 = 1_000_000_000;

/// Purpose of a transfer. A void has the code of the transfer that it voids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Code {
    Reserve = 1,
    Rereserve = 2,
    Debt = 3,
    Anchor = 4,
    End = 5,
    Capacity = 6,
    Cleared = 7,
    /// A reservation that reached the ledger in a later period than it was sent for, taken again.
    Retake = 8,
}

/// Kind of the limit, in the low byte of `user_data_32` of each transfer that reserves from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Holding {
    Rolling = 1,
    Concurrency = 2,
    /// `user_data_64` of the transfer is the end of its period, in nanoseconds.
    Calendar = 3,
}

/// A bit of `user_data_32` of a reservation: the limit is not enforced, and would have denied it.
pub(crate) const WOULD_DENY: u32 = 1 << 8;
/// The bits of `user_data_32` of a reservation above this one say how often it was taken before.
pub(crate) const ROUND_SHIFT: u32 = 16;
/// How often a reservation is taken again in a later period. A second time needs a delay of an hour.
pub(crate) const ROUNDS_MAX: u16 = 2;

impl Holding {
    /// `None` for kinds that TigerBeetle does not hold.
    pub(crate) fn of(kind: &Kind) -> Option<Holding> {
        match kind {
            Kind::Rolling { .. } => Some(Holding::Rolling),
            Kind::Concurrency { .. } => Some(Holding::Concurrency),
            Kind::Calendar { .. } => Some(Holding::Calendar),
            Kind::Credit(_) => None,
        }
    }

    pub(crate) fn from_code(code: u32) -> Option<Holding> {
        let all = [Holding::Rolling, Holding::Concurrency, Holding::Calendar];
        all.into_iter().find(|holding| *holding as u32 == code & 0xff)
    }
}

/// The origin of an anchor, stored in its `user_data_32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Origin {
    Reserved = 1,
    /// A complete of an unknown lease.
    Marked = 2,
}

/// How a lease ended, in `user_data_32` of its end transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Ending {
    Completed = 1,
    /// Released without use.
    Released = 2,
}

/// The full name of a limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LimitName {
    pub(crate) namespace: NamespaceName,
    pub(crate) key: LimitKey,
}

impl LimitName {
    /// The limit of a requirement or an actual of a lease in `own`.
    pub(crate) fn of(own: &NamespaceName, amount: &Amount) -> LimitName {
        match amount.key.foreign() {
            Some((namespace, key)) => LimitName { namespace, key },
            None => LimitName { namespace: own.clone(), key: amount.key.clone() },
        }
    }

    /// The key as answers about a lease in `own` name it.
    pub(crate) fn seen_from(&self, own: &NamespaceName) -> LimitKey {
        if self.namespace == *own { self.key.clone() } else { LimitKey::in_namespace(&self.namespace, &self.key) }
    }

    fn scope(&self) -> LimitScope<'_> {
        LimitScope(&self.namespace, &self.key)
    }

    /// A limit of the default namespace.
    #[cfg(test)]
    pub(crate) fn in_default(key: &str) -> LimitName {
        LimitName { namespace: "default".parse().unwrap(), key: key.parse().unwrap() }
    }
}

/// The account ids of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitAccounts {
    pub(crate) limit: u128,
    pub(crate) debt: u128,
}

impl LimitAccounts {
    pub(crate) fn of(LimitName { namespace, key }: &LimitName) -> LimitAccounts {
        LimitAccounts {
            limit: Label::LimitAccount(namespace, key).id().to_u128(),
            debt: Label::DebtAccount(namespace, key).id().to_u128(),
        }
    }

    /// The accounts to create. The limit account cannot be overdrawn.
    pub(crate) fn records(&self) -> [Account; 2] {
        [account(self.limit, AccountFlags::DebitsMustNotExceedCredits), account(self.debt, AccountFlags::empty())]
    }
}

/// The account ids that all limits and leases share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommonAccounts {
    pub(crate) operator: u128,
    pub(crate) lease: u128,
}

impl CommonAccounts {
    pub(crate) fn new() -> CommonAccounts {
        CommonAccounts { operator: Label::OperatorAccount.id().to_u128(), lease: Label::LeaseAccount.id().to_u128() }
    }

    /// The accounts to create.
    pub(crate) fn records(&self) -> [Account; 2] {
        [account(self.operator, AccountFlags::empty()), account(self.lease, AccountFlags::empty())]
    }
}

fn account(id: u128, flags: AccountFlags) -> Account {
    Account { id, ledger: LEDGER, code: ACCOUNT_CODE, flags, ..Account::default() }
}

/// Whether an account has the properties that Earmark gives it. Balances do not count.
pub(crate) fn is_ours(found: &Account, ours: &Account) -> bool {
    let words = |account: &Account| {
        let user_data = (account.user_data_128, account.user_data_64, account.user_data_32);
        (account.id, account.ledger, account.code, account.flags, user_data)
    };
    words(found) == words(ours)
}

/// A lease and the ids of its transfers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseName {
    pub(crate) namespace: NamespaceName,
    pub(crate) lease: LeaseId,
    /// In `user_data_128` of each of its transfers.
    pub(crate) id: u128,
}

impl LeaseName {
    pub(crate) fn new(namespace: NamespaceName, lease: LeaseId) -> LeaseName {
        let id = Label::Lease(&namespace, lease).id().to_u128();
        LeaseName { namespace, lease, id }
    }

    /// The first transfer of every reserve chain. Its id exists once, so a lease has one body.
    pub(crate) fn anchor(&self, common: &CommonAccounts, origin: Origin, fingerprint: u64) -> Transfer {
        Transfer {
            id: Label::LeaseAnchor(&self.namespace, self.lease).id().to_u128(),
            user_data_64: fingerprint,
            user_data_32: origin as u32,
            code: Code::Anchor as u16,
            ..self.note(common)
        }
    }

    /// The transfer that ends a lease. Its id exists once, so the first complete wins.
    pub(crate) fn end(&self, common: &CommonAccounts, ending: Ending) -> Transfer {
        Transfer {
            id: Label::LeaseComplete(&self.namespace, self.lease).id().to_u128(),
            user_data_32: ending as u32,
            code: Code::End as u16,
            ..self.note(common)
        }
    }

    /// A transfer of amount 0, as a marker.
    fn note(&self, common: &CommonAccounts) -> Transfer {
        Transfer {
            debit_account_id: common.operator,
            credit_account_id: common.lease,
            user_data_128: self.id,
            ledger: LEDGER,
            ..Transfer::default()
        }
    }

    fn scope(&self) -> LeaseScope<'_> {
        LeaseScope(&self.namespace, self.lease)
    }

    /// Id of a reservation. Round 0 is the first; a later one is taken in a later period.
    pub(crate) fn reserve_id(&self, limit: &LimitName, round: u16) -> u128 {
        match round {
            0 => Label::Reserve(self.scope(), limit.scope()).id().to_u128(),
            _ => earmark_core::id128(&format!("xfer:retake:{round}:{}:{}", self.scope(), limit.scope())).to_u128(),
        }
    }

    pub(crate) fn rereserve_id(&self, limit: &LimitName) -> u128 {
        Label::Rereserve(self.scope(), limit.scope()).id().to_u128()
    }

    pub(crate) fn debt_id(&self, limit: &LimitName) -> u128 {
        Label::Debt(self.scope(), limit.scope()).id().to_u128()
    }

    /// Id of the void of a reservation. A limit deleted from the registry leaves an account and no name; any id works,
    /// since a reservation can be voided only once.
    pub(crate) fn void_id(&self, limit: Option<&LimitName>, account: u128, round: u16) -> u128 {
        let label = match (limit, round) {
            (Some(limit), 0) => return Label::Void(self.scope(), limit.scope()).id().to_u128(),
            (Some(limit), _) => format!("xfer:revoid:{round}:{}:{}", self.scope(), limit.scope()),
            (None, _) => format!("xfer:void:{}:#{account:032x}:{round}", self.scope()),
        };
        earmark_core::id128(&label).to_u128()
    }
}

/// Links all transfers but the last, so that they succeed or fail together.
pub(crate) fn link(chain: &mut [Transfer]) {
    if let Some((_, linked)) = chain.split_last_mut() {
        for transfer in linked {
            transfer.flags = transfer.flags | TransferFlags::Linked;
        }
    }
}

/// Hash of a lease's requirements: the first 8 bytes of SHA-256 over them, sorted by key. It is stored, so the
/// algorithm must not change. It is never 0, which TigerBeetle reads as absent.
pub(crate) fn fingerprint<'a>(sorted: impl Iterator<Item = (&'a LimitKey, u64)>) -> u64 {
    let mut hash = Sha256::new();
    for (key, amount) in sorted {
        // No key contains a zero byte, so different lists give different bytes.
        hash.update(key.as_str().as_bytes());
        hash.update([0]);
        hash.update(amount.to_le_bytes());
    }
    let digest: [u8; 32] = hash.finalize().into();
    let mut first = [0_u8; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(first).max(1)
}

pub(crate) fn has(flags: TransferFlags, flag: TransferFlags) -> bool {
    flags.0 & flag.0 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> LimitKey {
        name.parse().unwrap()
    }

    #[test]
    fn the_check_values_of_the_design_hold() {
        assert_eq!(CommonAccounts::new().operator, 0xee06f35fb94212edc7e42a11203bfca8);
        let lease = LeaseName::new("default".parse().unwrap(), "01J00000000000000000000000".parse().unwrap());
        assert_eq!(
            lease.reserve_id(&LimitName::in_default("global:llm:openai:gpt-4o:rpm"), 0),
            0xc45e760e52ab0d347b2806411077b034
        );
    }

    /// Fingerprints are stored: with another algorithm every retry would look like other requirements.
    #[test]
    fn a_fingerprint_is_for_ever() {
        let (rpm, tpm) = (key("rpm"), key("tpm"));
        assert_eq!(fingerprint([(&rpm, 1), (&tpm, 60)].into_iter()), 0x161e4757ed93108e);
        assert_ne!(fingerprint([(&rpm, 1)].into_iter()), fingerprint([(&rpm, 2)].into_iter()));
        assert_ne!(fingerprint([(&rpm, 1)].into_iter()), fingerprint([(&tpm, 1)].into_iter()));
    }

    #[test]
    fn a_void_has_an_id_even_where_the_key_is_lost() {
        let lease = LeaseName::new("default".parse().unwrap(), "01J00000000000000000000000".parse().unwrap());
        let rpm = LimitName::in_default("rpm");
        assert_ne!(lease.void_id(Some(&rpm), 7, 0), lease.void_id(None, 7, 0));
        assert_ne!(lease.void_id(None, 7, 0), lease.void_id(None, 8, 0));
        assert_ne!(lease.void_id(Some(&rpm), 7, 0), lease.void_id(Some(&rpm), 7, 1));
    }

    #[test]
    fn a_chain_is_linked_up_to_its_last_transfer() {
        let mut chain = [Transfer::default(); 3];
        link(&mut chain);
        assert_eq!(chain.map(|transfer| has(transfer.flags, TransferFlags::Linked)), [true, true, false]);
        link(&mut []);
    }
}
