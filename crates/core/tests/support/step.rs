//! Commands that own their data, so that a script can store them.

use earmark_core::{
    CallMark, Command, Complete, Definition, DeleteLimit, DeleteTemplate, DropLimit, Extend, ExtendStep, ExternalSetup,
    JobId, LeaseClaim, LeaseId, LimitId, LimitKey, LimitRef, Moment, NamespaceId, NamespaceName, Part, PauseLimit,
    PutLimit, PutPolicy, PutTemplate, Release, Reserve, SetQuotas, SettingChange, SettleLabels, Template, UnixMs,
    Write,
};

/// A [`Command`] that owns its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    OpenNamespace(NamespaceName),
    Put {
        namespace: NamespaceId,
        definition: Definition,
        expected_revision: Option<u64>,
    },
    Delete {
        namespace: NamespaceId,
        key: LimitKey,
        expected_revision: Option<u64>,
    },
    PutTemplate {
        namespace: NamespaceId,
        template: Box<Template>,
        expected_revision: Option<u64>,
    },
    DeleteTemplate {
        namespace: NamespaceId,
        key: LimitKey,
        expected_revision: Option<u64>,
    },
    Pause {
        namespace: NamespaceId,
        key: LimitKey,
        for_ms: u64,
        reason: String,
        only_lengthen: bool,
    },
    Reserve {
        namespace: NamespaceId,
        lease: LeaseId,
        job: Option<JobId>,
        call: Option<CallMark>,
        by_gateway: bool,
        requirements: Vec<Part>,
    },
    Complete {
        namespace: NamespaceId,
        lease: LeaseId,
        claim: LeaseClaim,
        actuals: Vec<Part>,
        labels: SettleLabels,
    },
    Extend {
        namespace: NamespaceId,
        lease: LeaseId,
        number: u32,
        add: Vec<Part>,
        used: Vec<Part>,
        renew: bool,
        step: ExtendStep,
        claim: LeaseClaim,
    },
    Release {
        namespace: NamespaceId,
        lease: LeaseId,
    },
    Drop {
        namespace: NamespaceId,
        key: LimitKey,
        revision: u64,
    },
    SetExternal(ExternalSetup),
    Configure(Vec<SettingChange>),
    Write(Box<Write>),
    SetQuotas(SetQuotas),
    PutPolicy(PutPolicy),
    Tick,
    AdvanceTime(UnixMs),
}

impl Step {
    pub fn command(&self) -> Command<'_> {
        match *self {
            Step::OpenNamespace(ref name) => Command::OpenNamespace(name),
            Step::Put { namespace, ref definition, expected_revision } => {
                Command::PutLimit(PutLimit { namespace, definition, expected_revision })
            }
            Step::Delete { namespace, ref key, expected_revision } => {
                Command::DeleteLimit(DeleteLimit { namespace, key, expected_revision })
            }
            Step::PutTemplate { namespace, ref template, expected_revision } => {
                Command::PutTemplate(PutTemplate { namespace, template, expected_revision })
            }
            Step::DeleteTemplate { namespace, ref key, expected_revision } => {
                Command::DeleteTemplate(DeleteTemplate { namespace, key, expected_revision })
            }
            Step::Pause { namespace, ref key, for_ms, ref reason, only_lengthen } => {
                Command::PauseLimit(PauseLimit { namespace, key, for_ms, reason, only_lengthen })
            }
            Step::Reserve { namespace, lease, ref job, call, by_gateway, ref requirements } => {
                Command::Reserve(Reserve { namespace, lease, job: job.as_ref(), call, by_gateway, requirements })
            }
            Step::Complete { namespace, lease, claim, ref actuals, ref labels } => {
                Command::Complete(Complete { namespace, lease, claim, actuals, labels })
            }
            Step::Extend { namespace, lease, number, ref add, ref used, renew, step, claim } => {
                Command::Extend(Extend { namespace, lease, number, add, used, renew, step, claim })
            }
            Step::Release { namespace, lease } => Command::Release(Release { namespace, lease }),
            Step::Drop { namespace, ref key, revision } => Command::DropLimit(DropLimit { namespace, key, revision }),
            Step::SetExternal(setup) => Command::SetExternal(setup),
            Step::Configure(ref changes) => Command::Configure(changes),
            Step::Write(ref write) => Command::Write(write),
            Step::SetQuotas(ref set) => Command::SetQuotas(set),
            Step::PutPolicy(ref put) => Command::PutPolicy(put),
            Step::Tick => Command::Tick,
            Step::AdvanceTime(to) => Command::AdvanceTime(to),
        }
    }

    /// The lease of the command, if any.
    pub fn lease(&self) -> Option<(NamespaceId, LeaseId)> {
        match *self {
            Step::Reserve { namespace, lease, .. }
            | Step::Complete { namespace, lease, .. }
            | Step::Extend { namespace, lease, .. }
            | Step::Release { namespace, lease, .. } => Some((namespace, lease)),
            Step::OpenNamespace(_)
            | Step::Put { .. }
            | Step::Delete { .. }
            | Step::Pause { .. }
            | Step::PutTemplate { .. }
            | Step::DeleteTemplate { .. }
            | Step::Drop { .. }
            | Step::SetExternal(_)
            | Step::Configure(_)
            | Step::Write(_)
            | Step::SetQuotas(_)
            | Step::PutPolicy(_)
            | Step::Tick
            | Step::AdvanceTime(_) => None,
        }
    }
}

/// A step, with its log and wall time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timed {
    pub now: UnixMs,
    pub wall: UnixMs,
    pub step: Step,
}

impl Timed {
    pub fn at(&self) -> Moment {
        Moment { log: self.now, wall: self.wall }
    }
}

pub fn key(name: &str) -> LimitKey {
    LimitKey::new(name).unwrap()
}

/// A part that names its limit by key: `rpm`, or `!default:rpm` in another namespace.
pub fn by_key(name: &str, amount: u64) -> Part {
    Part { limit: LimitKey::parse_qualified(name).unwrap().into(), amount }
}

/// A part that names its limit by id.
pub fn by_id(limit: LimitId, amount: u64) -> Part {
    Part { limit: LimitRef::Id(limit), amount }
}
