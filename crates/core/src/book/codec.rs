//! Commands as bytes, for the log. A command has one encoding only.

mod call;
mod credit;
mod extend;
mod key;
mod outcome;
mod policy;
mod quota;
mod receipt;
mod result;
mod template;
mod write;

use call::Marked;
pub(crate) use call::{mark, put_mark};
pub(crate) use credit::{carry_over, grant_terms, overdraft, put_carry_over, put_grant_terms, put_overdraft};
use credit::{plan, put_plan};
pub(crate) use key::role;
pub use key::{put_principal, take_principal};
pub(crate) use receipt::{put_receipt, receipt};
pub(crate) use result::{put_result, read_result};
pub(crate) use template::template;
pub(crate) use write::{operations, put_operations};

use super::call::LeaseClaim;
use super::command::{
    Command, Complete, DeleteLimit, DropLimit, ExternalParts, ExternalSetup, ForeignLimit, LimitId, LimitRef,
    NamespaceId, Part, PauseLimit, PutLimit, Release, Reserve,
};
use super::write::Write;
use crate::credits::SettleLabels;
use crate::id::{AccountName, AssetName, JobId, LeaseId, LimitKey, NameError, NamespaceName, VaultName};
use crate::keys::{CreateKey, RevokeKey};
use crate::limits::{CreditTerms, Definition, Kind, OnTimeout, Overage, Period, Setting, SettingChange, Template};
use crate::policies::PutPolicy;
use crate::quota::SetQuotas;
use crate::time::{Moment, UnixMs};
use crate::wire::{Bytes, Malformed, Put};

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

const BY_NUMBER: u8 = 1;
const BY_NAME: u8 = 2;
const BY_NAMESPACE_AND_NAME: u8 = 3;

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

impl Command<'_> {
    /// Appends the command to `out`: about 100 bytes for a reserve of four limits by id.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Command::OpenNamespace(name) => {
                out.put_u8(OPEN_NAMESPACE);
                out.put_text(name.as_str());
            }
            Command::PutLimit(command) => {
                out.put_u8(PUT_LIMIT);
                out.put_u16(command.namespace.0);
                put_revision(out, command.expected_revision);
                put_definition(out, command.definition);
            }
            Command::DeleteLimit(command) => {
                out.put_u8(DELETE_LIMIT);
                out.put_u16(command.namespace.0);
                put_revision(out, command.expected_revision);
                out.put_text(command.key.as_str());
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
                put_external(out, *setup);
            }
            Command::Configure(changes) => {
                out.put_u8(CONFIGURE);
                out.put_len(changes.len());
                changes.iter().for_each(|change| put_setting(out, *change));
            }
            Command::Write(command) => {
                out.put_u8(WRITE);
                write::put_write(out, command);
            }
            Command::CreateKey(command) => {
                out.put_u8(CREATE_KEY);
                key::put_create(out, command);
            }
            Command::RevokeKey(command) => {
                out.put_u8(REVOKE_KEY);
                key::put_revoke(out, command);
            }
            Command::SetQuotas(command) => quota::put_set(out, SET_QUOTAS, command),
            Command::PutPolicy(command) => policy::put_put(out, PUT_POLICY, command),
            Command::Tick => out.put_u8(TICK),
            Command::AdvanceTime(to) => {
                out.put_u8(ADVANCE_TIME);
                out.put_u64(to.get());
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
        call::put_claim(out, command.claim);
    }
    if is_labelled {
        command.labels.put(out);
    }
    put_parts(out, command.actuals);
}

fn put_pause(out: &mut Vec<u8>, command: &PauseLimit<'_>) {
    out.put_u8(PAUSE_LIMIT);
    out.put_u16(command.namespace.0);
    out.put_text(command.key.as_str());
    out.put_u64(command.for_ms);
    out.put_text(command.reason);
    out.put_u8(command.only_lengthen.into());
}

fn put_drop(out: &mut Vec<u8>, command: &DropLimit<'_>) {
    out.put_u8(DROP_LIMIT);
    out.put_u16(command.namespace.0);
    out.put_u64(command.revision);
    out.put_text(command.key.as_str());
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
            OPEN_NAMESPACE => Command::OpenNamespace(self.namespace.insert(NamespaceName::new(input.text()?)?)),
            PUT_LIMIT => {
                let namespace = NamespaceId(input.u16()?);
                let expected_revision = revision(&mut input)?;
                let definition = self.definition.insert(definition(&mut input)?);
                Command::PutLimit(PutLimit { namespace, definition, expected_revision })
            }
            DELETE_LIMIT => {
                let namespace = NamespaceId(input.u16()?);
                let expected_revision = revision(&mut input)?;
                let key = self.key.insert(LimitKey::new(input.text()?)?);
                Command::DeleteLimit(DeleteLimit { namespace, key, expected_revision })
            }
            PUT_TEMPLATE => Command::PutTemplate(template::put(&mut input, &mut self.template)?),
            DELETE_TEMPLATE => Command::DeleteTemplate(template::delete(&mut input, &mut self.key)?),
            PAUSE_LIMIT => Command::PauseLimit(PauseLimit {
                namespace: NamespaceId(input.u16()?),
                key: self.key.insert(LimitKey::new(input.text()?)?),
                for_ms: input.u64()?,
                reason: self.reason.insert(input.text()?.to_owned()),
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
            DROP_LIMIT => {
                let (namespace, revision) = (NamespaceId(input.u16()?), input.u64()?);
                let key = self.key.insert(LimitKey::new(input.text()?)?);
                Command::DropLimit(DropLimit { namespace, key, revision })
            }
            SET_EXTERNAL => Command::SetExternal(external(&mut input)?),
            CONFIGURE => Command::Configure(settings(&mut input, &mut self.settings)?),
            WRITE => {
                let mut write = write::write(&mut input)?;
                write.log_index = log_index.unwrap_or(write.log_index);
                Command::Write(self.write.insert(write))
            }
            CREATE_KEY => Command::CreateKey(self.create_key.insert(key::create(&mut input)?)),
            REVOKE_KEY => Command::RevokeKey(self.revoke_key.insert(key::revoke(&mut input)?)),
            SET_QUOTAS => Command::SetQuotas(self.set_quotas.insert(quota::set(&mut input)?)),
            PUT_POLICY => Command::PutPolicy(self.put_policy.insert(policy::put(&mut input)?)),
            TICK => Command::Tick,
            ADVANCE_TIME => Command::AdvanceTime(time(&mut input)?),
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
    let claim = if tag == COMPLETE { LeaseClaim::default() } else { call::claim(input)? };
    if tag == COMPLETE_CLAIMED && claim == LeaseClaim::default() {
        return Err(CodecError::Malformed("it has a claim that claims nothing"));
    }
    *labels = if tag == COMPLETE_LABELLED { SettleLabels::read(input)? } else { SettleLabels::NONE };
    Ok(Complete { namespace, lease, claim, actuals: parts(input, actuals)?, labels })
}

const LIMITS_HERE: u8 = 0;
const LIMITS_ELSEWHERE: u8 = 1;
const LIMITS_ON_LEDGER: u8 = 2;

pub(crate) fn put_external(out: &mut Vec<u8>, setup: ExternalSetup) {
    let ExternalSetup { parts: ExternalParts { limits, credit }, ledger } = setup;
    let ledger = ledger.filter(|_| limits);
    out.put_u8(match (limits, ledger) {
        (false, _) => LIMITS_HERE,
        (true, None) => LIMITS_ELSEWHERE,
        (true, Some(_)) => LIMITS_ON_LEDGER,
    });
    out.put_u8(credit.into());
    if let Some(ledger) = ledger {
        out.put_u128(ledger);
    }
}

pub(crate) fn external(input: &mut Bytes<'_>) -> Result<ExternalSetup, Malformed> {
    let limits = input.u8()?;
    let credit = input.bool()?;
    let ledger = match limits {
        LIMITS_HERE | LIMITS_ELSEWHERE => None,
        LIMITS_ON_LEDGER => Some(input.u128()?),
        _ => return Err(Malformed("where limits are kept is unknown")),
    };
    Ok(ExternalSetup { parts: ExternalParts { limits: limits != LIMITS_HERE, credit }, ledger })
}

fn put_setting(out: &mut Vec<u8>, change: SettingChange) {
    out.put_u8(change.setting as u8);
    out.put_u64(change.value);
}

fn setting(input: &mut Bytes<'_>) -> Result<SettingChange, CodecError> {
    let setting = Setting::of(input.u8()?).ok_or(CodecError::Malformed("its setting is unknown"))?;
    Ok(SettingChange { setting, value: input.u64()? })
}

fn settings<'a>(input: &mut Bytes<'_>, changes: &'a mut Vec<SettingChange>) -> Result<&'a [SettingChange], CodecError> {
    changes.clear();
    for _ in 0..input.u32()? {
        changes.push(setting(input)?);
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

/// A time. Rejects times beyond [`UnixMs::MAX`], which would be encoded differently again.
pub(crate) fn time(input: &mut Bytes<'_>) -> Result<UnixMs, CodecError> {
    let ms = input.u64()?;
    if ms > UnixMs::MAX.get() {
        return Err(CodecError::Malformed("a time is later than there are times"));
    }
    Ok(UnixMs::new(ms))
}

pub(crate) fn put_moment(out: &mut Vec<u8>, at: Moment) {
    out.put_u64(at.log.get());
    out.put_u64(at.wall.get());
}

pub(crate) fn moment(input: &mut Bytes<'_>) -> Result<Moment, CodecError> {
    Ok(Moment { log: time(input)?, wall: time(input)? })
}

fn put_parts(out: &mut Vec<u8>, parts: &[Part]) {
    out.put_len(parts.len());
    for part in parts {
        match &part.limit {
            LimitRef::Id(id) => {
                out.put_u8(BY_NUMBER);
                put_limit_id(out, *id);
            }
            LimitRef::Key(key) => {
                out.put_u8(BY_NAME);
                out.put_text(key.as_str());
            }
            LimitRef::Foreign(limit) => {
                out.put_u8(BY_NAMESPACE_AND_NAME);
                out.put_text(limit.namespace.as_str());
                out.put_text(limit.key.as_str());
            }
        }
        out.put_u64(part.amount);
    }
}

fn parts<'a>(input: &mut Bytes<'_>, parts: &'a mut Vec<Part>) -> Result<&'a [Part], CodecError> {
    parts.clear();
    for _ in 0..input.u32()? {
        let limit = match input.u8()? {
            BY_NUMBER => LimitRef::Id(limit_id(input)?),
            BY_NAME => LimitRef::Key(LimitKey::new(input.text()?)?),
            BY_NAMESPACE_AND_NAME => {
                let namespace = NamespaceName::new(input.text()?)?;
                LimitRef::Foreign(Box::new(ForeignLimit { namespace, key: LimitKey::new(input.text()?)? }))
            }
            _ => return Err(CodecError::Malformed("it names a limit in an unknown way")),
        };
        parts.push(Part { limit, amount: input.u64()? });
    }
    Ok(parts)
}

pub(crate) fn put_limit_id(out: &mut Vec<u8>, id: LimitId) {
    out.put_u32(id.slot);
    out.put_u32(id.generation);
}

pub(crate) fn limit_id(input: &mut Bytes<'_>) -> Result<LimitId, Malformed> {
    Ok(LimitId { slot: input.u32()?, generation: input.u32()? })
}

fn put_revision(out: &mut Vec<u8>, revision: Option<u64>) {
    out.put_u8(revision.is_some().into());
    out.put_u64(revision.unwrap_or(0));
}

fn revision(input: &mut Bytes<'_>) -> Result<Option<u64>, CodecError> {
    match (input.bool()?, input.u64()?) {
        (true, revision) => Ok(Some(revision)),
        (false, 0) => Ok(None),
        (false, _) => Err(CodecError::Malformed("it has a revision and says that it has none")),
    }
}

pub(crate) fn put_definition(out: &mut Vec<u8>, definition: &Definition) {
    out.put_text(definition.key.as_str());
    out.put_u8(match definition.kind {
        Kind::Rolling { .. } => ROLLING,
        Kind::Concurrency { .. } => CONCURRENCY,
        Kind::Credit(_) => CREDIT,
        Kind::Calendar { .. } => CALENDAR,
    });
    if let Kind::Calendar { period, utc_offset_minutes } = definition.kind {
        out.put_u8(period as u8);
        out.put_u16(utc_offset_minutes.cast_unsigned());
    } else {
        out.put_u32(definition.kind.hold_seconds());
    }
    if let Some(terms) = definition.kind.terms() {
        out.put_text(terms.vault.as_str());
        out.put_text(terms.account.as_str());
        out.put_text(terms.asset.as_str());
        out.put_text(terms.revenue.as_str());
        out.put_u8(terms.on_timeout as u8);
    }
    out.put_u64(definition.capacity);
    out.put_text(&definition.unit);
    out.put_text(&definition.description);
    out.put_u8(definition.overage as u8);
    out.put_u8(definition.shared.into());
    out.put_u8(definition.enforce.into());
}

pub(crate) fn definition(input: &mut Bytes<'_>) -> Result<Definition, CodecError> {
    definition_named(input, LimitKey::new, AccountName::new)
}

/// A definition whose key and account are parsed by `key` and `account`.
fn definition_named(
    input: &mut Bytes<'_>,
    key: fn(&str) -> Result<LimitKey, NameError>,
    account: fn(&str) -> Result<AccountName, NameError>,
) -> Result<Definition, CodecError> {
    let key = key(input.text()?)?;
    let kind = match input.u8()? {
        ROLLING => Kind::Rolling { window_seconds: input.u32()? },
        CONCURRENCY => Kind::Concurrency { timeout_seconds: input.u32()? },
        CALENDAR => Kind::Calendar { period: period(input)?, utc_offset_minutes: input.u16()?.cast_signed() },
        CREDIT => Kind::Credit(CreditTerms {
            timeout_seconds: input.u32()?,
            vault: VaultName::new(input.text()?)?,
            account: account(input.text()?)?,
            asset: AssetName::new(input.text()?)?,
            revenue: AccountName::new(input.text()?)?,
            on_timeout: on_timeout(input)?,
        }),
        _ => return Err(CodecError::Malformed("its kind of limit is unknown")),
    };
    let capacity = input.u64()?;
    let unit = input.text()?.to_owned();
    let description = input.text()?.to_owned();
    let overage = match input.u8()? {
        1 => Overage::Debt,
        2 => Overage::Deny,
        _ => return Err(CodecError::Malformed("its overage is unknown")),
    };
    let (shared, enforce) = (input.bool()?, input.bool()?);
    Ok(Definition { key, kind, capacity, unit, description, overage, shared, enforce })
}

fn on_timeout(input: &mut Bytes<'_>) -> Result<OnTimeout, CodecError> {
    let code = input.u8()?;
    let found = OnTimeout::ALL.into_iter().find(|value| *value as u8 == code);
    found.ok_or(CodecError::Malformed("what its timeout does is unknown"))
}

pub(crate) fn period(input: &mut Bytes<'_>) -> Result<Period, CodecError> {
    let code = input.u8()?;
    let period = Period::ALL.into_iter().find(|period| *period as u8 == code);
    period.ok_or(CodecError::Malformed("its period is unknown"))
}

#[cfg(test)]
mod tests;
