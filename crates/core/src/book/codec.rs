//! Commands as bytes, for the log. A command has one encoding only.

mod call;
mod credit;
mod extend;
mod key;
mod outcome;
mod policy;
mod quota;
mod receipt;
mod template;
mod write;

use call::Marked;
pub use key::{put_principal, take_principal};
pub(crate) use template::template;
pub(crate) use write::operations;

use super::call::LeaseClaim;
use super::command::{
    Command, Complete, DeleteLimit, DropLimit, ExternalParts, ExternalSetup, ForeignLimit, LimitId, LimitRef,
    NamespaceId, Part, PauseLimit, PutLimit, Release, Reserve,
};
use super::write::Write;
use crate::credits::SettleLabels;
use crate::id::{AccountName, JobId, LeaseId, LimitKey, NameError, NamespaceName};
use crate::keys::{CreateKey, RevokeKey, Role};
use crate::limits::{CreditTerms, Definition, Kind, OnTimeout, Overage, Period, Setting, SettingChange, Template};
use crate::policies::PutPolicy;
use crate::quota::{QuotaKind, SetQuotas};
use crate::time::Moment;
use crate::wire::{Bytes, Malformed, Put, Wire, wire_codes, wire_enum, wire_struct};

const OPEN_NAMESPACE: u8 = 1;
const PUT_LIMIT: u8 = 2;
const DELETE_LIMIT: u8 = 3;
const RESERVE: u8 = 4;
const COMPLETE: u8 = 5;
const TICK: u8 = 6;
const WRITE: u8 = 7;
const RELEASE: u8 = 8;
const DROP_LIMIT: u8 = 9;
const SET_EXTERNAL: u8 = 10;
const ADVANCE_TIME: u8 = 11;
const CONFIGURE: u8 = 12;
/// A reserve with a job id, which follows the lease.
const RESERVE_FOR_JOB: u8 = 13;
const PUT_TEMPLATE: u8 = 14;
const DELETE_TEMPLATE: u8 = 15;
const PAUSE_LIMIT: u8 = 16;
const EXTEND: u8 = 17;
/// A reserve for a call or by a gateway, with flags that follow the lease.
const RESERVE_MARKED: u8 = 18;
/// A complete with a claim, which follows the lease.
const COMPLETE_CLAIMED: u8 = 19;
/// A complete with a claim, which may claim nothing, and labels, which follow the lease.
const COMPLETE_LABELLED: u8 = 20;
const CREATE_KEY: u8 = 32;
const REVOKE_KEY: u8 = 33;
const SET_QUOTAS: u8 = 34;
const PUT_POLICY: u8 = 35;
/// Before the tag of a command that comes from anyone.
const BY_ANYONE: u8 = 40;
/// Before the number of a key and the tag of a command that comes by it.
const BY_KEY: u8 = 41;
/// Before the actor name and the tag of a command from a named actor.
const BY_NAMED: u8 = 42;
/// Before the role, the actor name and the tag of a command from the user of a session token.
const BY_SESSION: u8 = 43;

const ROLLING: u8 = 1;
const CONCURRENCY: u8 = 2;
const CREDIT: u8 = 3;
const CALENDAR: u8 = 4;

/// Bytes that are not a valid command, outcome or journal record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The layout is invalid.
    #[error("it cannot be decoded: {0}")]
    Malformed(&'static str),
    /// A name is invalid.
    #[error("it cannot be decoded: {0}")]
    Name(#[from] NameError),
}

impl From<Malformed> for CodecError {
    fn from(malformed: Malformed) -> CodecError {
        CodecError::Malformed(malformed.0)
    }
}

impl From<CodecError> for Malformed {
    fn from(error: CodecError) -> Malformed {
        match error {
            CodecError::Malformed(what) => Malformed(what),
            CodecError::Name(_) => Malformed("a name is invalid"),
        }
    }
}

impl Command<'_> {
    /// Appends the command to `out`: about 100 bytes for a reserve of four limits by id.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Command::OpenNamespace(name) => {
                out.put_u8(OPEN_NAMESPACE);
                name.write(out);
            }
            Command::PutLimit(command) => {
                out.put_u8(PUT_LIMIT);
                command.namespace.write(out);
                revision::write(&command.expected_revision, out);
                command.definition.write(out);
            }
            Command::DeleteLimit(command) => {
                out.put_u8(DELETE_LIMIT);
                command.namespace.write(out);
                revision::write(&command.expected_revision, out);
                command.key.write(out);
            }
            Command::PutTemplate(command) => template::put_put(out, PUT_TEMPLATE, command),
            Command::DeleteTemplate(command) => template::put_delete(out, DELETE_TEMPLATE, command),
            Command::PauseLimit(command) => put_pause(out, command),
            Command::Reserve(command) => put_reserve(out, command),
            Command::Extend(command) => extend::put(out, EXTEND, command),
            Command::Complete(command) => put_complete(out, command),
            Command::Release(command) => {
                out.put_u8(RELEASE);
                put_lease(out, command.namespace, command.lease);
            }
            Command::DropLimit(command) => put_drop(out, command),
            Command::SetExternal(setup) => {
                out.put_u8(SET_EXTERNAL);
                setup.write(out);
            }
            Command::Configure(changes) => {
                out.put_u8(CONFIGURE);
                out.put_len(changes.len());
                changes.iter().for_each(|change| change.write(out));
            }
            Command::Write(command) => {
                out.put_u8(WRITE);
                command.write(out);
            }
            Command::CreateKey(command) => {
                out.put_u8(CREATE_KEY);
                command.write(out);
            }
            Command::RevokeKey(command) => {
                out.put_u8(REVOKE_KEY);
                command.write(out);
            }
            Command::SetQuotas(command) => {
                out.put_u8(SET_QUOTAS);
                command.write(out);
            }
            Command::PutPolicy(command) => {
                out.put_u8(PUT_POLICY);
                command.write(out);
            }
            Command::Tick => out.put_u8(TICK),
            Command::AdvanceTime(to) => {
                out.put_u8(ADVANCE_TIME);
                to.write(out);
            }
        }
    }
}

fn put_reserve(out: &mut Vec<u8>, command: &Reserve<'_>) {
    let is_marked = command.call.is_some() || command.by_gateway;
    let plain = if command.job.is_some() { RESERVE_FOR_JOB } else { RESERVE };
    out.put_u8(if is_marked { RESERVE_MARKED } else { plain });
    put_lease(out, command.namespace, command.lease);
    if is_marked {
        call::put_reserve(out, command);
    }
    if let Some(job) = command.job {
        out.put_text(job.as_str());
    }
    put_parts(out, command.requirements);
}

fn put_complete(out: &mut Vec<u8>, command: &Complete<'_>) {
    let is_claimed = command.claim != LeaseClaim::default();
    let is_labelled = !command.labels.is_empty();
    let plain = if is_claimed { COMPLETE_CLAIMED } else { COMPLETE };
    out.put_u8(if is_labelled { COMPLETE_LABELLED } else { plain });
    put_lease(out, command.namespace, command.lease);
    if is_claimed || is_labelled {
        command.claim.write(out);
    }
    if is_labelled {
        command.labels.put(out);
    }
    put_parts(out, command.actuals);
}

fn put_pause(out: &mut Vec<u8>, command: &PauseLimit<'_>) {
    out.put_u8(PAUSE_LIMIT);
    command.namespace.write(out);
    command.key.write(out);
    command.for_ms.write(out);
    out.put_text(command.reason);
    command.only_lengthen.write(out);
}

fn put_drop(out: &mut Vec<u8>, command: &DropLimit<'_>) {
    out.put_u8(DROP_LIMIT);
    command.namespace.write(out);
    command.revision.write(out);
    command.key.write(out);
}

/// Storage that a decoded command borrows from. Reused, it stops allocating.
#[derive(Debug, Default)]
pub struct CommandBuffer {
    parts: Vec<Part>,
    used: Vec<Part>,
    job: Option<JobId>,
    labels: SettleLabels,
    definition: Option<Definition>,
    template: Option<Template>,
    settings: Vec<SettingChange>,
    key: Option<LimitKey>,
    reason: Option<String>,
    namespace: Option<NamespaceName>,
    write: Option<Write>,
    create_key: Option<CreateKey>,
    revoke_key: Option<RevokeKey>,
    set_quotas: Option<SetQuotas>,
    put_policy: Option<PutPolicy>,
}

impl CommandBuffer {
    /// Decodes one command from the front of `bytes` and returns its length.
    ///
    /// # Errors
    /// The bytes do not start with a command.
    pub fn decode<'a>(&'a mut self, bytes: &[u8]) -> Result<(Command<'a>, usize), CodecError> {
        self.read(bytes, None)
    }

    /// Like [`CommandBuffer::decode`], from a log entry: `log_index` replaces the one in a write.
    ///
    /// # Errors
    /// The bytes do not start with a command.
    pub fn decode_at<'a>(&'a mut self, bytes: &[u8], log_index: u64) -> Result<(Command<'a>, usize), CodecError> {
        self.read(bytes, Some(log_index))
    }

    fn read<'a>(&'a mut self, bytes: &[u8], log_index: Option<u64>) -> Result<(Command<'a>, usize), CodecError> {
        let mut input = Bytes(bytes);
        let command = match input.u8()? {
            OPEN_NAMESPACE => Command::OpenNamespace(self.namespace.insert(Wire::read(&mut input)?)),
            PUT_LIMIT => Command::PutLimit(PutLimit {
                namespace: Wire::read(&mut input)?,
                expected_revision: revision::read(&mut input)?,
                definition: self.definition.insert(Wire::read(&mut input)?),
            }),
            DELETE_LIMIT => Command::DeleteLimit(DeleteLimit {
                namespace: Wire::read(&mut input)?,
                expected_revision: revision::read(&mut input)?,
                key: self.key.insert(Wire::read(&mut input)?),
            }),
            PUT_TEMPLATE => Command::PutTemplate(template::put(&mut input, &mut self.template)?),
            DELETE_TEMPLATE => Command::DeleteTemplate(template::delete(&mut input, &mut self.key)?),
            PAUSE_LIMIT => Command::PauseLimit(PauseLimit {
                namespace: Wire::read(&mut input)?,
                key: self.key.insert(Wire::read(&mut input)?),
                for_ms: input.u64()?,
                reason: self.reason.insert(Wire::read(&mut input)?),
                only_lengthen: input.bool()?,
            }),
            tag @ (RESERVE | RESERVE_FOR_JOB | RESERVE_MARKED) => {
                let (namespace, lease) = lease(&mut input)?;
                let marked = if tag == RESERVE_MARKED { call::reserve(&mut input)? } else { Marked::default() };
                let has_job = tag == RESERVE_FOR_JOB || marked.has_job;
                self.job = if has_job { Some(JobId::new(input.text()?)?) } else { None };
                let Marked { call, by_gateway, .. } = marked;
                let job = self.job.as_ref();
                let requirements = parts(&mut input, &mut self.parts)?;
                Command::Reserve(Reserve { namespace, lease, job, call, by_gateway, requirements })
            }
            EXTEND => Command::Extend(extend::extend(&mut input, &mut self.parts, &mut self.used)?),
            tag @ (COMPLETE | COMPLETE_CLAIMED | COMPLETE_LABELLED) => {
                Command::Complete(complete(&mut input, tag, (&mut self.parts, &mut self.labels))?)
            }
            RELEASE => {
                let (namespace, lease) = lease(&mut input)?;
                Command::Release(Release { namespace, lease })
            }
            DROP_LIMIT => Command::DropLimit(DropLimit {
                namespace: Wire::read(&mut input)?,
                revision: input.u64()?,
                key: self.key.insert(Wire::read(&mut input)?),
            }),
            SET_EXTERNAL => Command::SetExternal(Wire::read(&mut input)?),
            CONFIGURE => Command::Configure(settings(&mut input, &mut self.settings)?),
            WRITE => {
                let mut write = Write::read(&mut input)?;
                write.log_index = log_index.unwrap_or(write.log_index);
                Command::Write(self.write.insert(write))
            }
            CREATE_KEY => Command::CreateKey(self.create_key.insert(Wire::read(&mut input)?)),
            REVOKE_KEY => Command::RevokeKey(self.revoke_key.insert(Wire::read(&mut input)?)),
            SET_QUOTAS => Command::SetQuotas(self.set_quotas.insert(Wire::read(&mut input)?)),
            PUT_POLICY => Command::PutPolicy(self.put_policy.insert(Wire::read(&mut input)?)),
            TICK => Command::Tick,
            ADVANCE_TIME => Command::AdvanceTime(Wire::read(&mut input)?),
            _ => return Err(CodecError::Malformed("its tag is unknown")),
        };
        Ok((command, bytes.len().saturating_sub(input.0.len())))
    }
}

fn complete<'a>(
    input: &mut Bytes<'_>,
    tag: u8,
    (actuals, labels): (&'a mut Vec<Part>, &'a mut SettleLabels),
) -> Result<Complete<'a>, CodecError> {
    let (namespace, lease) = lease(input)?;
    let claim = if tag == COMPLETE { LeaseClaim::default() } else { Wire::read(input)? };
    if tag == COMPLETE_CLAIMED && claim == LeaseClaim::default() {
        return Err(CodecError::Malformed("it has a claim that claims nothing"));
    }
    *labels = if tag == COMPLETE_LABELLED { SettleLabels::read(input)? } else { SettleLabels::NONE };
    Ok(Complete { namespace, lease, claim, actuals: parts(input, actuals)?, labels })
}

const LIMITS_HERE: u8 = 0;
const LIMITS_ELSEWHERE: u8 = 1;
const LIMITS_ON_LEDGER: u8 = 2;

impl Wire for ExternalSetup {
    fn write(&self, out: &mut Vec<u8>) {
        let ExternalSetup { parts: ExternalParts { limits, credit }, ledger } = *self;
        let ledger = ledger.filter(|_| limits);
        out.put_u8(match (limits, ledger) {
            (false, _) => LIMITS_HERE,
            (true, None) => LIMITS_ELSEWHERE,
            (true, Some(_)) => LIMITS_ON_LEDGER,
        });
        credit.write(out);
        if let Some(ledger) = ledger {
            ledger.write(out);
        }
    }

    fn read(input: &mut Bytes<'_>) -> Result<ExternalSetup, CodecError> {
        let limits = input.u8()?;
        let credit = input.bool()?;
        let ledger = match limits {
            LIMITS_HERE | LIMITS_ELSEWHERE => None,
            LIMITS_ON_LEDGER => Some(input.u128()?),
            _ => return Err(CodecError::Malformed("where limits are kept is unknown")),
        };
        Ok(ExternalSetup { parts: ExternalParts { limits: limits != LIMITS_HERE, credit }, ledger })
    }
}

wire_struct!(SettingChange { setting, value });

fn settings<'a>(input: &mut Bytes<'_>, changes: &'a mut Vec<SettingChange>) -> Result<&'a [SettingChange], CodecError> {
    changes.clear();
    for _ in 0..input.u32()? {
        changes.push(Wire::read(input)?);
    }
    Ok(changes)
}

fn put_lease(out: &mut Vec<u8>, namespace: NamespaceId, lease: LeaseId) {
    out.put_u16(namespace.0);
    out.put_u128(lease.to_u128());
}

fn lease(input: &mut Bytes<'_>) -> Result<(NamespaceId, LeaseId), CodecError> {
    Ok((NamespaceId(input.u16()?), LeaseId::from_u128(input.u128()?)))
}

wire_struct!(Moment { log, wall });

fn put_parts(out: &mut Vec<u8>, parts: &[Part]) {
    out.put_len(parts.len());
    parts.iter().for_each(|part| part.write(out));
}

fn parts<'a>(input: &mut Bytes<'_>, parts: &'a mut Vec<Part>) -> Result<&'a [Part], CodecError> {
    parts.clear();
    for _ in 0..input.u32()? {
        parts.push(Wire::read(input)?);
    }
    Ok(parts)
}

wire_struct!(Part { limit, amount });

wire_enum!(LimitRef or "it names a limit in an unknown way" {
    1 => Id(id),
    2 => Key(key),
    3 => Foreign(limit),
});

wire_struct!(LimitId { slot, generation });

wire_struct!(ForeignLimit { namespace, key });

/// An expected revision: a flag, and 8 bytes in any case.
mod revision {
    use super::{Bytes, CodecError, Put, Wire};

    pub(super) fn write(revision: &Option<u64>, out: &mut Vec<u8>) {
        revision.is_some().write(out);
        out.put_u64(revision.unwrap_or(0));
    }

    pub(super) fn read(input: &mut Bytes<'_>) -> Result<Option<u64>, CodecError> {
        match (input.bool()?, input.u64()?) {
            (true, revision) => Ok(Some(revision)),
            (false, 0) => Ok(None),
            (false, _) => Err(CodecError::Malformed("it has a revision and says that it has none")),
        }
    }
}

/// The key of a template.
mod pattern {
    use super::{Bytes, CodecError, LimitKey, Wire};

    pub(super) fn write(key: &LimitKey, out: &mut Vec<u8>) {
        key.write(out);
    }

    pub(super) fn read(input: &mut Bytes<'_>) -> Result<LimitKey, CodecError> {
        Ok(LimitKey::pattern(input.text()?)?)
    }
}

impl Wire for Definition {
    fn write(&self, out: &mut Vec<u8>) {
        self.key.write(out);
        match &self.kind {
            Kind::Rolling { window_seconds } => put_kind(out, ROLLING, *window_seconds),
            Kind::Concurrency { timeout_seconds } => put_kind(out, CONCURRENCY, *timeout_seconds),
            Kind::Calendar { period, utc_offset_minutes } => {
                out.put_u8(CALENDAR);
                period.write(out);
                utc_offset_minutes.write(out);
            }
            Kind::Credit(terms) => {
                put_kind(out, CREDIT, terms.timeout_seconds);
                terms.vault.write(out);
                terms.account.write(out);
                terms.asset.write(out);
                terms.revenue.write(out);
                terms.on_timeout.write(out);
            }
        }
        self.capacity.write(out);
        self.unit.write(out);
        self.description.write(out);
        self.overage.write(out);
        self.shared.write(out);
        self.enforce.write(out);
    }

    fn read(input: &mut Bytes<'_>) -> Result<Definition, CodecError> {
        definition_named(input, LimitKey::new, AccountName::new)
    }
}

fn put_kind(out: &mut Vec<u8>, tag: u8, seconds: u32) {
    out.put_u8(tag);
    seconds.write(out);
}

/// A definition whose key and account are parsed by `key` and `account`.
fn definition_named(
    input: &mut Bytes<'_>,
    key: fn(&str) -> Result<LimitKey, NameError>,
    account: fn(&str) -> Result<AccountName, NameError>,
) -> Result<Definition, CodecError> {
    Ok(Definition {
        key: key(input.text()?)?,
        kind: match input.u8()? {
            ROLLING => Kind::Rolling { window_seconds: input.u32()? },
            CONCURRENCY => Kind::Concurrency { timeout_seconds: input.u32()? },
            CALENDAR => Kind::Calendar { period: Wire::read(input)?, utc_offset_minutes: Wire::read(input)? },
            CREDIT => Kind::Credit(CreditTerms {
                timeout_seconds: input.u32()?,
                vault: Wire::read(input)?,
                account: account(input.text()?)?,
                asset: Wire::read(input)?,
                revenue: Wire::read(input)?,
                on_timeout: Wire::read(input)?,
            }),
            _ => return Err(CodecError::Malformed("its kind of limit is unknown")),
        },
        capacity: input.u64()?,
        unit: Wire::read(input)?,
        description: Wire::read(input)?,
        overage: Wire::read(input)?,
        shared: input.bool()?,
        enforce: input.bool()?,
    })
}

wire_enum!(Overage or "its overage is unknown" {
    1 => Debt,
    2 => Deny,
});

wire_codes! {
    OnTimeout or "what its timeout does is unknown";
    Period or "its period is unknown";
    QuotaKind or "its quota is unknown";
    Role or "its role is unknown";
    Setting or "its setting is unknown";
}

#[cfg(test)]
mod tests;
