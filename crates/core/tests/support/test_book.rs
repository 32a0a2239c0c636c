//! A Book with a clock, for tests of single rules.

use earmark_core::{
    Book, CompleteOutcome, Config, Definition, Denial, ExtendOutcome, ExtendStep, ExternalSetup, JobId, Kind, LeaseId,
    LeaseInfo, LeaseState, LimitId, LimitOutcome, LimitStatus, Moment, NamespaceId, NamespaceName, NamespaceOutcome,
    Outcome, Part, PauseOutcome, Period, RequirementSet, ReserveOutcome, Settlement, UnixMs, Usage,
};

use super::step::{Step, by_key, key};

/// A whole second.
pub const START: UnixMs = UnixMs::new(1_750_000_000_000);

pub struct TestBook {
    pub book: Book,
    pub namespace: NamespaceId,
    now: UnixMs,
    leases: u128,
    /// The job of every reserve.
    pub job: Option<JobId>,
    /// Milliseconds by which the wall clock is ahead of log time.
    pub wall_ahead_ms: u64,
}

/// The request of an extension.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    pub add: &'a [(&'a str, u64)],
    pub used: &'a [(&'a str, u64)],
    pub renew: bool,
    pub step: ExtendStep,
}

/// More of some limits.
pub fn add<'a>(add: &'a [(&'a str, u64)]) -> Asked<'a> {
    Asked { add, ..Asked::default() }
}

/// Usage that is certain.
pub fn used<'a>(used: &'a [(&'a str, u64)]) -> Asked<'a> {
    Asked { used, ..Asked::default() }
}

/// Later ends.
pub fn renew<'a>() -> Asked<'a> {
    Asked { renew: true, ..Asked::default() }
}

pub fn rolling(name: &str, capacity: u64, window_seconds: u32) -> Definition {
    define(name, capacity, Kind::Rolling { window_seconds })
}

pub fn concurrency(name: &str, capacity: u64, timeout_seconds: u32) -> Definition {
    define(name, capacity, Kind::Concurrency { timeout_seconds })
}

fn define(name: &str, capacity: u64, kind: Kind) -> Definition {
    Definition::new(key(name), kind, capacity)
}

/// Allowed, and no shadow limit would have denied it.
pub fn created(reserved_at: UnixMs) -> ReserveOutcome {
    ReserveOutcome::Created { reserved_at, would_deny: RequirementSet::default() }
}

/// Allowed before, and no shadow limit would have denied it.
pub fn exists(reserved_at: UnixMs) -> ReserveOutcome {
    ReserveOutcome::Exists { reserved_at, would_deny: RequirementSet::default(), policy_revision: None }
}

pub fn calendar(name: &str, capacity: u64, period: Period, utc_offset_minutes: i16) -> Definition {
    define(name, capacity, Kind::Calendar { period, utc_offset_minutes })
}

pub fn changed(limit: LimitId, revision: u64, status: LimitStatus) -> LimitOutcome {
    LimitOutcome::Changed { limit, revision, status }
}

fn parts(named: &[(&str, u64)]) -> Vec<Part> {
    named.iter().map(|&(name, amount)| by_key(name, amount)).collect()
}

impl TestBook {
    pub fn new() -> TestBook {
        TestBook::with(Config::default())
    }

    pub fn with(config: Config) -> TestBook {
        TestBook {
            book: Book::new(config, 1),
            namespace: NamespaceId::DEFAULT,
            now: START,
            leases: 0,
            job: None,
            wall_ahead_ms: 0,
        }
    }

    pub fn now(&self) -> UnixMs {
        self.now
    }

    /// Advances the clock without a command.
    pub fn advance(&mut self, ms: u64) {
        self.now = self.now.plus_ms(ms);
    }

    /// Sets the clock of the sender back.
    pub fn set_clock_back(&mut self, ms: u64) {
        self.now = self.now.minus_ms(ms);
    }

    pub fn apply(&mut self, step: &Step) -> Outcome {
        let wall = self.now.plus_ms(self.wall_ahead_ms);
        self.book.apply(Moment { log: self.now, wall }, step.command())
    }

    pub fn tick(&mut self) {
        assert_eq!(self.apply(&Step::Tick), Outcome::Ticked);
    }

    pub fn open(&mut self, name: &str) -> NamespaceId {
        match self.apply(&Step::OpenNamespace(NamespaceName::new(name).unwrap())) {
            Outcome::Namespace(NamespaceOutcome::Opened(id)) => id,
            other => panic!("{name} was not opened: {other:?}"),
        }
    }

    pub fn put(&mut self, definition: Definition) -> LimitOutcome {
        self.put_if(definition, None)
    }

    pub fn put_if(&mut self, definition: Definition, expected_revision: Option<u64>) -> LimitOutcome {
        match self.apply(&Step::Put { namespace: self.namespace, definition, expected_revision }) {
            Outcome::Limit(outcome) => outcome,
            other => panic!("no answer to a put: {other:?}"),
        }
    }

    /// Puts a limit that must be active at once.
    pub fn put_active(&mut self, definition: Definition) -> LimitId {
        match self.put(definition) {
            LimitOutcome::Changed { limit, status: LimitStatus::Active, .. } => limit,
            other => panic!("the limit is not in force: {other:?}"),
        }
    }

    pub fn delete(&mut self, name: &str) -> LimitOutcome {
        self.delete_if(name, None)
    }

    pub fn delete_if(&mut self, name: &str, expected_revision: Option<u64>) -> LimitOutcome {
        match self.apply(&Step::Delete { namespace: self.namespace, key: key(name), expected_revision }) {
            Outcome::Limit(outcome) => outcome,
            other => panic!("no answer to a delete: {other:?}"),
        }
    }

    /// Pauses a limit, for the reason `429`.
    pub fn pause(&mut self, name: &str, for_ms: u64) -> PauseOutcome {
        self.pause_if(name, for_ms, false)
    }

    pub fn pause_if(&mut self, name: &str, for_ms: u64, only_lengthen: bool) -> PauseOutcome {
        let (namespace, reason) = (self.namespace, "429".to_owned());
        match self.apply(&Step::Pause { namespace, key: key(name), for_ms, reason, only_lengthen }) {
            Outcome::Pause(outcome) => outcome,
            other => panic!("no answer to a pause: {other:?}"),
        }
    }

    /// A new lease. Its low random bits are 0, so jitter does not shorten its hints.
    pub fn lease(&mut self) -> LeaseId {
        self.lease_from(self.now)
    }

    pub fn lease_from(&mut self, time: UnixMs) -> LeaseId {
        self.leases += 1;
        LeaseId::from_parts(time, self.leases << 16)
    }

    pub fn reserve(&mut self, lease: LeaseId, named: &[(&str, u64)]) -> ReserveOutcome {
        self.reserve_parts(lease, parts(named))
    }

    pub fn reserve_parts(&mut self, lease: LeaseId, requirements: Vec<Part>) -> ReserveOutcome {
        let step = Step::Reserve {
            namespace: self.namespace,
            lease,
            job: self.job.clone(),
            call: None,
            by_gateway: false,
            requirements,
        };
        match self.apply(&step) {
            Outcome::Reserve(outcome) => outcome,
            other => panic!("no answer to a reserve: {other:?}"),
        }
    }

    /// Reserves with a new lease, which must be allowed.
    pub fn take(&mut self, named: &[(&str, u64)]) -> LeaseId {
        let lease = self.lease();
        let reserved_at = self.book.time().max(self.now);
        assert_eq!(self.reserve(lease, named), created(reserved_at), "{named:?}");
        lease
    }

    /// Reserves with a new lease, which must be denied.
    pub fn denied(&mut self, named: &[(&str, u64)]) -> (LeaseId, Denial) {
        let lease = self.lease();
        (lease, self.denial(lease, named))
    }

    pub fn denial(&mut self, lease: LeaseId, named: &[(&str, u64)]) -> Denial {
        match self.reserve(lease, named) {
            ReserveOutcome::Denied(denial) => denial,
            other => panic!("{named:?} was not denied: {other:?}"),
        }
    }

    pub fn complete(&mut self, lease: LeaseId, named: &[(&str, u64)]) -> CompleteOutcome {
        self.complete_parts(lease, parts(named))
    }

    pub fn complete_parts(&mut self, lease: LeaseId, actuals: Vec<Part>) -> CompleteOutcome {
        self.complete_labelled(lease, actuals, earmark_core::SettleLabels::NONE)
    }

    pub fn complete_labelled(
        &mut self,
        lease: LeaseId,
        actuals: Vec<Part>,
        labels: earmark_core::SettleLabels,
    ) -> CompleteOutcome {
        let claim = earmark_core::LeaseClaim::default();
        let step = Step::Complete { namespace: self.namespace, lease, claim, actuals, labels };
        match self.apply(&step) {
            Outcome::Complete(outcome) => outcome,
            other => panic!("no answer to a complete: {other:?}"),
        }
    }

    pub fn extend(&mut self, lease: LeaseId, number: u32, asked: Asked<'_>) -> ExtendOutcome {
        let Asked { add, used, renew, step } = asked;
        let (namespace, add, used) = (self.namespace, parts(add), parts(used));
        match self.apply(&Step::Extend {
            namespace,
            lease,
            number,
            add,
            used,
            claim: earmark_core::LeaseClaim::default(),
            renew,
            step,
        }) {
            Outcome::Extend(outcome) => outcome,
            other => panic!("no answer to an extension: {other:?}"),
        }
    }

    /// Extends a lease, which must be allowed. Returns its end in milliseconds from now; 0 without any.
    pub fn extended(&mut self, lease: LeaseId, number: u32, asked: Asked<'_>) -> u64 {
        match self.extend(lease, number, asked) {
            ExtendOutcome::Extended(extension) => extension.ends_at.map_or(0, |end| end.ms_since(self.now)),
            other => panic!("{asked:?} was not extended: {other:?}"),
        }
    }

    pub fn release(&mut self, lease: LeaseId) -> CompleteOutcome {
        match self.apply(&Step::Release { namespace: self.namespace, lease }) {
            Outcome::Complete(outcome) => outcome,
            other => panic!("no answer to a release: {other:?}"),
        }
    }

    pub fn set_external(&mut self, setup: impl Into<ExternalSetup>) {
        assert_eq!(self.apply(&Step::SetExternal(setup.into())), Outcome::ExternalSet);
    }

    pub fn drop_limit(&mut self, name: &str, revision: u64) -> LimitOutcome {
        match self.apply(&Step::Drop { namespace: self.namespace, key: key(name), revision }) {
            Outcome::Limit(outcome) => outcome,
            other => panic!("no answer to a drop: {other:?}"),
        }
    }

    /// Completes a lease; the actuals must be applied.
    pub fn settle(&mut self, lease: LeaseId, named: &[(&str, u64)]) -> Settlement {
        match self.complete(lease, named) {
            CompleteOutcome::Completed(settlement) => settlement,
            other => panic!("{named:?} was not settled: {other:?}"),
        }
    }

    pub fn id(&self, name: &str) -> LimitId {
        self.book.resolve(self.namespace, &key(name)).unwrap()
    }

    pub fn usage(&self, name: &str) -> Usage {
        self.book.usage(self.now, self.id(name)).unwrap()
    }

    pub fn reserved(&self, name: &str) -> u64 {
        self.usage(name).reserved
    }

    pub fn info(&self, lease: LeaseId) -> Option<LeaseInfo> {
        self.book.lease(self.now, self.namespace, lease)
    }

    pub fn state(&self, lease: LeaseId) -> Option<LeaseState> {
        self.info(lease).map(|info| info.state)
    }
}
