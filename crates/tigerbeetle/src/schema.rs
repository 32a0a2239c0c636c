//! The ledger schema: accounts, transfers, and their codes.

#[cfg(test)]
mod tests;

use earmark_admission::Amount;
use earmark_core::{CreditShortage, Kind, Label, LeaseClaim, LeaseId, LeaseScope, LimitKey, LimitScope, NamespaceName};
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
    /// An anchor, or the void of one: by the next extension, or by the end of the lease.
    Anchor = 4,
    Capacity = 6,
    Cleared = 7,
    /// A reservation that reached the ledger in a later period than it was sent for, taken again.
    Retake = 8,
    /// A report of usage. Its amount is the usage, `user_data_64` the low half of the limit's account id.
    Used = 9,
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
/// A bit of `user_data_32` of a reservation: `user_data_64` is its end, in nanoseconds. Its transfer expires less than a
/// second later.
pub(crate) const EXACT_END: u32 = 1 << 9;
/// How often a reservation is taken again in a later period. A second time needs a delay of an hour.
pub(crate) const ROUNDS_MAX: u16 = 2;

/// Which of the reservations of a lease on one limit: by extension, then by how often it was taken again in a later
/// period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PartVersion {
    /// 0 for the reserve.
    pub(crate) extension: u32,
    pub(crate) round: u16,
}

impl PartVersion {
    /// Bits 16 and 17 of `user_data_32` of a reservation are the round, those above the extension: 14 bits hold
    /// [`EXTENSIONS_MAX`](earmark_core::EXTENSIONS_MAX).
    pub(crate) fn bits(self) -> u32 {
        u32::from(self.round & 3) << 16 | self.extension << 18
    }

    pub(crate) fn from_bits(bits: u32) -> PartVersion {
        PartVersion { extension: bits >> 18, round: u16::try_from(bits >> 16 & 3).unwrap_or_default() }
    }

    pub(crate) fn next_round(self) -> PartVersion {
        PartVersion { round: self.round.saturating_add(1), ..self }
    }
}

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

/// The decision that an anchor stands for. Its lowest bits of `user_data_32` are the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// A reserve that was allowed.
    Reserved,
    /// A complete of an unknown lease.
    Marked,
    /// An extension that was made.
    Extended,
    /// An extension that a limit had no room for. The amount of the anchor is the time to wait, in milliseconds.
    Denied {
        /// The place of the limit in the sorted amounts of the extension.
        rank: u8,
        never: bool,
    },
    /// An extension that an account had too little credit for.
    Short {
        /// The place of the credit limit in the sorted amounts of the extension.
        rank: u8,
        why: CreditShortage,
    },
}

const DECISION_CODE: u32 = 0xf;
const NEVER: u32 = 1 << 4;
const RANK_SHIFT: u32 = 5;
const WHY_SHIFT: u32 = 10;
const HAS_CREDIT: u32 = 1 << 13;
const IS_CALL: u32 = 1 << 14;
const BY_GATEWAY: u32 = 1 << 15;
const NUMBER_SHIFT: u32 = 16;

/// Why credit is missing, with codes that never change.
const SHORTAGES: [CreditShortage; 4] =
    [CreditShortage::NotEnough, CreditShortage::Frozen, CreditShortage::Closed, CreditShortage::UnknownAccount];

impl Decision {
    fn bits(self) -> u32 {
        let rank_bits = |rank: u8| u32::from(rank & 31) << RANK_SHIFT;
        match self {
            Decision::Reserved => 1,
            Decision::Marked => 2,
            Decision::Extended => 3,
            Decision::Denied { rank, never } => 4 | rank_bits(rank) | if never { NEVER } else { 0 },
            Decision::Short { rank, why } => {
                let code = (0..).zip(SHORTAGES).find(|(_, each)| *each == why).map_or(0, |(code, _)| code);
                5 | rank_bits(rank) | code << WHY_SHIFT
            }
        }
    }

    fn from_bits(bits: u32) -> Option<Decision> {
        let rank = u8::try_from(bits >> RANK_SHIFT & 31).unwrap_or_default();
        match bits & DECISION_CODE {
            1 => Some(Decision::Reserved),
            2 => Some(Decision::Marked),
            3 => Some(Decision::Extended),
            4 => Some(Decision::Denied { rank, never: bits & NEVER != 0 }),
            5 => {
                let code = usize::try_from(bits >> WHY_SHIFT & 7).unwrap_or_default();
                Some(Decision::Short { rank, why: SHORTAGES.get(code).copied().unwrap_or(CreditShortage::NotEnough) })
            }
            _ => None,
        }
    }
}

/// The part of a reserve that a repeated one is compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReserveBody {
    /// That of the call, or without one that of the requirements.
    pub(crate) fingerprint: u64,
    /// The policy revision of the call, if it is for one.
    pub(crate) policy_revision: Option<u64>,
    pub(crate) by_gateway: bool,
}

impl ReserveBody {
    /// Whether two reserves are the same. A newer policy does not make another call.
    pub(crate) fn is_same(&self, other: &ReserveBody) -> bool {
        let is_call = |body: &ReserveBody| body.policy_revision.is_some();
        self.fingerprint == other.fingerprint && is_call(self) == is_call(other)
    }
}

/// Why a claim on a lease is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimRefusal {
    OwnedByGateway,
    OtherCall,
}

/// An anchor of a lease: its reserve, or an extension. The newest one is pending until the lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Anchor {
    /// 0 for the reserve.
    pub(crate) number: u32,
    /// Hash of the body.
    pub(crate) fingerprint: u64,
    pub(crate) decision: Decision,
    /// Whether the lease has credit limits, which the ledger does not hold.
    pub(crate) has_credit: bool,
    /// Whether the reserve is that of a call.
    pub(crate) is_call: bool,
    /// Whether a gateway made the lease.
    pub(crate) by_gateway: bool,
    /// The time to wait after a denial, in milliseconds; the policy revision of a call's reserve.
    pub(crate) amount: u64,
    /// The ledger's time; 0 before it is made.
    pub(crate) made_at_ns: u64,
}

impl Anchor {
    /// The anchor of a reserve.
    pub(crate) fn reserved(body: &ReserveBody, has_credit: bool) -> Anchor {
        Anchor {
            is_call: body.policy_revision.is_some(),
            by_gateway: body.by_gateway,
            amount: body.policy_revision.unwrap_or(0),
            ..Anchor::made(0, body.fingerprint, Decision::Reserved, has_credit)
        }
    }

    /// The anchor of an unknown lease that was completed.
    pub(crate) fn marked() -> Anchor {
        Anchor::made(0, 0, Decision::Marked, false)
    }

    pub(crate) fn made(number: u32, fingerprint: u64, decision: Decision, has_credit: bool) -> Anchor {
        let (is_call, by_gateway, amount, made_at_ns) = (false, false, 0, 0);
        Anchor { number, fingerprint, decision, has_credit, is_call, by_gateway, amount, made_at_ns }
    }

    /// The body of the reserve.
    pub(crate) fn body(&self) -> ReserveBody {
        let policy_revision = self.policy_revision();
        ReserveBody { fingerprint: self.fingerprint, policy_revision, by_gateway: self.by_gateway }
    }

    /// The policy revision of a call's reserve.
    pub(crate) fn policy_revision(&self) -> Option<u64> {
        self.is_call.then_some(self.amount)
    }

    /// Why a claim on a lease with this first anchor is refused.
    pub(crate) fn refusal(&self, claim: LeaseClaim) -> Option<ClaimRefusal> {
        if self.by_gateway && !claim.by_gateway {
            return Some(ClaimRefusal::OwnedByGateway);
        }
        let attributes = self.is_call.then_some(self.fingerprint >> 32);
        let is_other = claim.attributes.is_some_and(|claimed| attributes != Some(u64::from(claimed)));
        is_other.then_some(ClaimRefusal::OtherCall)
    }

    /// `None` if the transfer is the void of an anchor.
    pub(crate) fn read(transfer: &Transfer) -> Option<Anchor> {
        if transfer.code != Code::Anchor as u16 || has(transfer.flags, TransferFlags::VoidPendingTransfer) {
            return None;
        }
        let bits = transfer.user_data_32;
        Some(Anchor {
            number: bits >> NUMBER_SHIFT,
            fingerprint: transfer.user_data_64,
            decision: Decision::from_bits(bits)?,
            has_credit: bits & HAS_CREDIT != 0,
            is_call: bits & IS_CALL != 0,
            by_gateway: bits & BY_GATEWAY != 0,
            amount: u64::try_from(transfer.amount).unwrap_or(u64::MAX),
            made_at_ns: transfer.timestamp,
        })
    }

    fn bits(&self) -> u32 {
        let credit = if self.has_credit { HAS_CREDIT } else { 0 };
        let call = if self.is_call { IS_CALL } else { 0 };
        let gateway = if self.by_gateway { BY_GATEWAY } else { 0 };
        self.decision.bits() | credit | call | gateway | self.number << NUMBER_SHIFT
    }
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

    /// The transfer of an anchor. Its id exists once, so a lease has one body, and so has each of its extensions. It is
    /// pending without a timeout, so that either the next extension or the end of the lease voids it. The anchor of an
    /// unknown lease that was completed is posted.
    pub(crate) fn anchor(&self, common: &CommonAccounts, anchor: &Anchor) -> Transfer {
        let is_marked = anchor.decision == Decision::Marked;
        Transfer {
            id: self.anchor_id(anchor.number),
            amount: u128::from(anchor.amount),
            user_data_64: anchor.fingerprint,
            user_data_32: anchor.bits(),
            code: Code::Anchor as u16,
            flags: if is_marked { TransferFlags::empty() } else { TransferFlags::Pending },
            ..self.note(common)
        }
    }

    pub(crate) fn anchor_id(&self, number: u32) -> u128 {
        match number {
            0 => Label::LeaseAnchor(&self.namespace, self.lease).id().to_u128(),
            _ => self.labelled(&format!("xfer:extend:{}:{number}", self.scope())),
        }
    }

    /// The void of an anchor by the next extension.
    pub(crate) fn next_anchor(&self, number: u32) -> Transfer {
        Transfer { id: self.labelled(&format!("xfer:extended:{}:{number}", self.scope())), ..self.void_anchor(number) }
    }

    /// The void of the newest anchor that ends a lease. Its id exists once, so the first complete wins.
    pub(crate) fn end(&self, newest: u32, ending: Ending) -> Transfer {
        Transfer { id: self.end_id(), user_data_32: ending as u32, ..self.void_anchor(newest) }
    }

    pub(crate) fn end_id(&self) -> u128 {
        Label::LeaseComplete(&self.namespace, self.lease).id().to_u128()
    }

    fn void_anchor(&self, number: u32) -> Transfer {
        Transfer {
            pending_id: self.anchor_id(number),
            user_data_128: self.id,
            ledger: LEDGER,
            code: Code::Anchor as u16,
            flags: TransferFlags::VoidPendingTransfer,
            ..Transfer::default()
        }
    }

    /// The report of usage by an extension.
    pub(crate) fn used(&self, common: &CommonAccounts, number: u32, limit: &LimitName, used: u64) -> Transfer {
        Transfer {
            id: self.labelled(&format!("xfer:used:{}:{number}:{}", self.scope(), limit.scope())),
            amount: u128::from(used),
            user_data_64: used_key(LimitAccounts::of(limit).limit),
            code: Code::Used as u16,
            ..self.note(common)
        }
    }

    fn labelled(&self, label: &str) -> u128 {
        earmark_core::id128(label).to_u128()
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

    /// Id of a reservation. A limit deleted from the registry leaves an account and no name.
    pub(crate) fn reserve_id(&self, limit: Option<&LimitName>, account: u128, version: PartVersion) -> u128 {
        let PartVersion { extension, round } = version;
        let label = match (limit, extension, round) {
            (Some(limit), 0, 0) => return Label::Reserve(self.scope(), limit.scope()).id().to_u128(),
            (Some(limit), 0, _) => format!("xfer:retake:{round}:{}:{}", self.scope(), limit.scope()),
            (Some(limit), _, 0) => format!("xfer:extend:{}:{extension}:{}", self.scope(), limit.scope()),
            (Some(limit), _, _) => format!("xfer:retake:{round}:{}:{extension}:{}", self.scope(), limit.scope()),
            (None, _, _) => format!("xfer:extend:{}:{extension}:#{account:032x}:{round}", self.scope()),
        };
        self.labelled(&label)
    }

    pub(crate) fn rereserve_id(&self, limit: &LimitName) -> u128 {
        Label::Rereserve(self.scope(), limit.scope()).id().to_u128()
    }

    pub(crate) fn debt_id(&self, limit: &LimitName) -> u128 {
        Label::Debt(self.scope(), limit.scope()).id().to_u128()
    }

    /// Id of the void of a reservation. A limit deleted from the registry leaves an account and no name; any id works,
    /// since a reservation can be voided only once.
    pub(crate) fn void_id(&self, limit: Option<&LimitName>, account: u128, version: PartVersion) -> u128 {
        let PartVersion { extension, round } = version;
        let label = match (limit, extension, round) {
            (Some(limit), 0, 0) => return Label::Void(self.scope(), limit.scope()).id().to_u128(),
            (Some(limit), 0, _) => format!("xfer:revoid:{round}:{}:{}", self.scope(), limit.scope()),
            (Some(limit), _, _) => format!("xfer:revoid:{round}:{}:{extension}:{}", self.scope(), limit.scope()),
            (None, _, _) => format!("xfer:void:{}:#{account:032x}:{extension}:{round}", self.scope()),
        };
        self.labelled(&label)
    }
}

/// The part of an account id that names its limit in a report of usage. A lease has at most 32 limits.
pub(crate) fn used_key(account: u128) -> u64 {
    account as u64
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
