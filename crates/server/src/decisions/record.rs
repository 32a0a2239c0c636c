//! Records of the decision log and their encoding.
//!
//! A record is a decision, or the number of repeats of an earlier one, which is in the same segment. The file header has
//! the version.

use earmark_admission::{AppliedUsage, RECORD_BYTES_MAX};
use earmark_core::{Actor, JobId, LeaseId, LimitKey, NamespaceName, UnixMs};

use super::Decision;

const DECISION: u8 = 1;
const REPEATS: u8 = 2;
/// The amount of a limit that is not known.
const NO_AMOUNT: u8 = 0;
/// Bytes of a decision beside its texts, rounded up.
const DECISION_BYTES: usize = 64;
/// Bytes of a limit beside its key, rounded up.
const LIMIT_BYTES: usize = 32;

/// The outcome of a decision. The codes are part of the file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Outcome {
    /// A limit or an account lacked room.
    Denied = 1,
    /// Refused by name, by a quota or by the policy.
    Refused = 2,
    /// Concurrency or credit ran out before the lease was completed.
    Timeout = 3,
    /// A complete reported more than was reserved.
    Overage = 4,
}

impl Outcome {
    /// The names, in the API and on the command line.
    pub(crate) const NAMES: [&'static str; 4] = ["denied", "refused", "timeout", "overage"];
    const ALL: [Outcome; 4] = [Outcome::Denied, Outcome::Refused, Outcome::Timeout, Outcome::Overage];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Outcome::Denied => "denied",
            Outcome::Refused => "refused",
            Outcome::Timeout => "timeout",
            Outcome::Overage => "overage",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Outcome> {
        Outcome::ALL.into_iter().find(|outcome| outcome.name() == name)
    }
}

/// A decision as it is read from the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoggedDecision {
    pub(crate) at: UnixMs,
    pub(crate) outcome: Outcome,
    pub(crate) namespace: NamespaceName,
    pub(crate) actor: Actor,
    pub(crate) lease: LeaseId,
    pub(crate) job: Option<JobId>,
    pub(crate) attributes: Vec<(String, String)>,
    pub(crate) limits: Vec<LoggedLimit>,
    /// Further decisions of the same key and outcome in the same second that have no record.
    pub(crate) repeated: u64,
}

/// A limit in the way. Of another namespace's limit only the key is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoggedLimit {
    pub(crate) key: LimitKey,
    pub(crate) asked: Option<u64>,
    pub(crate) available: Option<u64>,
    pub(crate) capacity: Option<u64>,
}

/// A record of the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Record {
    Decision(Box<LoggedDecision>),
    /// Repeats of the record with this number.
    Repeats {
        of: u64,
        count: u64,
    },
}

/// Encodes a decision. `usages` are parallel to its limits.
pub(super) fn encode(decision: &Decision<'_>, usages: &[AppliedUsage]) -> Vec<u8> {
    let limits = decision.limits.iter().map(|(key, _)| key.as_str().len() + LIMIT_BYTES).sum::<usize>();
    let attributes =
        decision.attributes.map_or(0, |all| all.iter().map(|(name, value)| name.len() + value.len() + 4).sum());
    let texts = decision.namespace.as_str().len() + decision.actor.as_str().len();
    let job = decision.job.map_or(0, |job| job.as_str().len());
    let mut out = Vec::with_capacity((DECISION_BYTES + texts + job + attributes + limits).min(RECORD_BYTES_MAX));
    out.extend_from_slice(&[DECISION, decision.outcome as u8]);
    put_text(&mut out, decision.namespace.as_str());
    put_text(&mut out, decision.actor.as_str());
    out.extend_from_slice(&decision.lease.to_u128().to_le_bytes());
    put_text(&mut out, decision.job.map_or("", JobId::as_str));
    out.push(decision.attributes.map_or(0, |all| all.iter().len() as u8));
    for (name, value) in decision.attributes.iter().flat_map(|all| all.iter()) {
        put_text(&mut out, name);
        put_text(&mut out, value);
    }
    out.push(decision.limits.len() as u8);
    for (place, (key, asked)) in decision.limits.iter().enumerate() {
        put_text(&mut out, key.as_str());
        let usage = usages.get(place).copied().unwrap_or_default();
        let is_own = !key.is_foreign();
        for amount in [is_own.then_some(*asked), usage.available, usage.capacity] {
            put_amount(&mut out, amount.filter(|_| is_own));
        }
    }
    out
}

pub(super) fn encode_repeats(of: u64, count: u64) -> Vec<u8> {
    let mut out = vec![REPEATS];
    out.extend_from_slice(&of.to_le_bytes());
    out.extend_from_slice(&count.to_le_bytes());
    out
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u16).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn put_amount(out: &mut Vec<u8>, amount: Option<u64>) {
    match amount {
        Some(amount) => {
            out.push(1);
            out.extend_from_slice(&amount.to_le_bytes());
        }
        None => out.push(NO_AMOUNT),
    }
}

/// Decodes a record. `None` if it is not one; checksums make that a bug.
pub(super) fn decode(at: UnixMs, payload: &[u8]) -> Option<Record> {
    let mut input = Input(payload);
    let record = match input.byte()? {
        DECISION => Record::Decision(Box::new(input.decision(at)?)),
        REPEATS => Record::Repeats { of: input.number()?, count: input.number()? },
        _ => return None,
    };
    input.0.is_empty().then_some(record)
}

/// The namespace of an encoded decision, and its outcome, without decoding the rest.
pub(super) fn peek(payload: &[u8]) -> Option<(u8, &str)> {
    let mut input = Input(payload);
    if input.byte()? != DECISION {
        return None;
    }
    Some((input.byte()?, input.text()?))
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn number(&mut self) -> Option<u64> {
        self.take(8)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }

    fn text(&mut self) -> Option<&'a str> {
        let len = self.take(2)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))?;
        std::str::from_utf8(self.take(len.into())?).ok()
    }

    fn amount(&mut self) -> Option<Option<u64>> {
        if self.byte()? == NO_AMOUNT { Some(None) } else { self.number().map(Some) }
    }

    fn decision(&mut self, at: UnixMs) -> Option<LoggedDecision> {
        let code = self.byte()?;
        let outcome = Outcome::ALL.into_iter().find(|outcome| *outcome as u8 == code)?;
        let namespace = NamespaceName::new(self.text()?).ok()?;
        let actor = Actor::new(self.text()?).ok()?;
        let lease = LeaseId::from_u128(self.take(16)?.first_chunk().map(|bytes| u128::from_le_bytes(*bytes))?);
        let job = self.text()?;
        let job = if job.is_empty() { None } else { Some(JobId::new(job).ok()?) };
        let mut attributes = Vec::new();
        for _ in 0..self.byte()? {
            attributes.push((self.text()?.to_owned(), self.text()?.to_owned()));
        }
        let mut limits = Vec::new();
        for _ in 0..self.byte()? {
            limits.push(LoggedLimit {
                key: LimitKey::parse_qualified(self.text()?).ok()?,
                asked: self.amount()?,
                available: self.amount()?,
                capacity: self.amount()?,
            });
        }
        Some(LoggedDecision { at, outcome, namespace, actor, lease, job, attributes, limits, repeated: 0 })
    }
}
