//! Random scripts of callers, operators and clocks, from one seed.
//!
//! Scripts are endless. The first steps put the limits in key order. Later ones delete limits and put others, which get
//! the slots of the deleted ones.

mod calls;
mod extend;
mod parts;
mod profile;
mod template;
mod write;

use std::collections::BTreeMap;

use earmark_core::{
    Book, Config, Definition, ExternalParts, ExternalSetup, JobId, Kind, LeaseId, LeaseState, LimitId, LimitKey,
    LimitOutcome, NamespaceId, NamespaceName, Outcome, Overage, Part, Period, PutPolicy, QUOTA_MAX, QuotaKind,
    SetQuotas, Setting, SettingChange, SettleLabels, UTC_OFFSET_MINUTES, UnixMs, Write,
};

use super::random::Random;
use super::step::{Step, Timed, key};
use profile::{Amounts, Profile};

const LEASES_RECENT: usize = 60;
/// Keys without a limit at the start.
const SPARE_KEYS: usize = 6;
/// Ids of limits that are remembered, stale ones included.
const IDS_MAX: usize = 200;
/// 366 days.
const HOLD_SECONDS_MAX: u32 = 31_622_400;
const TEAM: NamespaceId = NamespaceId(1);
const FLAVORS: [Flavor; 4] = [Flavor::Rolling, Flavor::Concurrency, Flavor::Credit, Flavor::Calendar];

pub struct Script {
    random: Random,
    profile: Profile,
    clock: u64,
    /// The last definitions, to be put again with small changes.
    definitions: BTreeMap<(NamespaceId, LimitKey), Definition>,
    /// Recently used leases and their requirements.
    used: Vec<Used>,
    /// Limits that may be deleted, to be put again.
    deleted: Vec<(NamespaceId, usize)>,
    /// Number of limits put, and of first steps taken.
    put: usize,
    /// Recently sent transactions.
    writes: Vec<Write>,
    /// Recent extensions, to be repeated.
    extensions: Vec<Step>,
    /// Ids that limits had at some time.
    ids: Vec<LimitId>,
    /// A Book that has applied every step so far. The script reads sequences and balances from it, to choose values
    /// near them.
    shadow: Book,
    seed: u64,
}

/// Prints the seed when the shadow Book panics.
impl Drop for Script {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("a script was at work: EARMARK_SEED={}", self.seed);
        }
    }
}

/// The kinds of limits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flavor {
    Rolling,
    Concurrency,
    Credit,
    Calendar,
}

impl Flavor {
    fn of(kind: &Kind) -> Flavor {
        match kind {
            Kind::Rolling { .. } => Flavor::Rolling,
            Kind::Concurrency { .. } => Flavor::Concurrency,
            Kind::Credit(_) => Flavor::Credit,
            Kind::Calendar { .. } => Flavor::Calendar,
        }
    }
}

#[derive(Clone)]
struct Used {
    namespace: NamespaceId,
    lease: LeaseId,
    requirements: Vec<Part>,
}

impl Script {
    pub fn new(seed: u64) -> Script {
        let mut random = Random::new(seed);
        let profile = Profile::new(&mut random);
        let clock = profile.start;
        let shadow = Book::new(profile.config, seed);
        Script {
            random,
            profile,
            clock,
            definitions: BTreeMap::new(),
            used: Vec::new(),
            deleted: Vec::new(),
            put: 0,
            writes: Vec::new(),
            extensions: Vec::new(),
            ids: Vec::new(),
            shadow,
            seed,
        }
    }

    pub fn config(&self) -> Config {
        self.profile.config
    }

    pub fn steps(self, count: usize) -> Vec<Timed> {
        self.take(count).collect()
    }

    fn first_step(&mut self) -> Option<Step> {
        let place = self.put;
        self.put += 1;
        if place < self.profile.keys {
            let namespace = NamespaceId::DEFAULT;
            let definition = self.fresh_definition(self.profile.key(place), FLAVORS[place % FLAVORS.len()]);
            self.definitions.insert((namespace, definition.key.clone()), definition.clone());
            return Some(Step::Put { namespace, definition, expected_revision: None });
        }
        if place == self.profile.keys {
            return Some(Step::OpenNamespace(NamespaceName::new("team").unwrap()));
        }
        if place == self.profile.keys + 1 && self.random.chance(80) {
            // A tenth of a small table would refuse most steps in `team`.
            return Some(self.ample_quotas());
        }
        if place < self.profile.keys + 4 {
            let flavor = if place % 2 == 1 { Flavor::Rolling } else { self.random.pick(&FLAVORS) };
            let definition = self.fresh_definition(self.profile.key(place % 2), flavor);
            self.definitions.insert((TEAM, definition.key.clone()), definition.clone());
            return Some(Step::Put { namespace: TEAM, definition, expected_revision: Some(0) });
        }
        self.first_write(place - self.profile.keys - 4)
    }

    fn any_step(&mut self) -> Step {
        if self.profile.is_composed && self.random.chance(12) {
            return self.composed_step();
        }
        match self.random.below(100) {
            93..95 if self.profile.is_calm => Step::Tick,
            0..36 => self.reserve(),
            36..45 => self.retry(),
            45..57 => self.extend(),
            57..75 => self.complete(),
            75..83 => self.write(),
            83..86 => self.change_template(),
            86..93 => self.put(),
            93..95 => self.delete(),
            95..96 => {
                let name = self.random.pick(&["default", "team", "other"]);
                Step::OpenNamespace(NamespaceName::new(name).unwrap())
            }
            96 if self.random.chance(30) => self.put_policy(),
            96 => self.set_quotas(),
            97 => Step::AdvanceTime(UnixMs::new(self.clock).plus_ms(self.random.below(90_000))),
            98 => self.configure(),
            99 if self.random.chance(70) => self.pause(),
            _ => Step::Tick,
        }
    }

    /// Mostly a short pause of a limit, often a second one or a resume.
    fn pause(&mut self) -> Step {
        let namespace = self.namespace();
        let place = self.random.index(self.profile.keys.min(4) + 1);
        let for_ms = self.random.pick(&[0, 0, 1, 500, 1_000, 5_000, 60_000, 3_600_000, 3_600_001]);
        let reason = if self.random.chance(5) { "r".repeat(257) } else { format!("at {}", self.clock) };
        let only_lengthen = self.random.chance(30);
        Step::Pause { namespace, key: self.profile.key(place), for_ms, reason, only_lengthen }
    }

    /// Mostly the setting of another profile; sometimes a value that is not allowed.
    fn configure(&mut self) -> Step {
        let other = Profile::new(&mut self.random).config;
        let changes = Setting::ALL.into_iter().filter_map(|setting| {
            let (least, most) = setting.allowed().into_inner();
            let value = if self.random.chance(2) { u64::MAX } else { other.get(setting).clamp(least, most) };
            let is_picked = self.random.chance(30);
            is_picked.then_some(SettingChange { setting, value })
        });
        Step::Configure(changes.collect())
    }

    fn ample_quotas(&mut self) -> Step {
        let quotas = [(QuotaKind::Leases, 1_000), (QuotaKind::Clients, 1_000)].into_iter().collect();
        Step::SetQuotas(SetQuotas { namespace: NamespaceName::new("team").unwrap(), quotas })
    }

    /// A quota near the use, sometimes below it; often an ample one, so that the script goes on.
    fn set_quotas(&mut self) -> Step {
        let name = self.random.pick(&["default", "team", "team"]);
        let namespace = NamespaceName::new(name).unwrap();
        let id = self.shadow.namespace(&namespace).unwrap_or_default();
        let mut quotas = BTreeMap::new();
        for usage in self.shadow.quotas(self.shadow.time(), id) {
            if self.random.chance(40) {
                let near = (usage.used + self.random.below(4)).saturating_sub(1);
                let ample = self.random.pick(&[1_000_000, 1_000_000, 1_000_000, QUOTA_MAX, QUOTA_MAX + 1]);
                quotas.insert(usage.kind, if self.random.chance(40) { near } else { ample });
            }
        }
        Step::SetQuotas(SetQuotas { namespace, quotas })
    }

    /// Mostly another policy; sometimes the same, or with a revision that it does not have.
    fn put_policy(&mut self) -> Step {
        let name = self.random.pick(&["default", "team", "team", "other"]);
        let namespace = NamespaceName::new(name).unwrap();
        let id = self.shadow.namespace(&namespace).unwrap_or_default();
        let newest = self.shadow.policy(id, None).map_or(0, |policy| policy.revision);
        let expected_revision = self.random.pick(&[None, None, Some(newest), Some(newest), Some(0)]);
        let text = "#".repeat(self.random.index(5)).into();
        Step::PutPolicy(PutPolicy { namespace, text, expected_revision })
    }

    /// Commands that only composed backends send.
    fn composed_step(&mut self) -> Step {
        match self.random.below(100) {
            0..15 => self.set_external(),
            15..50 => self.drop_limit(),
            _ => {
                let known = if self.random.chance(90) { self.used_lease() } else { None };
                let known = known.map(|used| (used.namespace, used.lease));
                let (namespace, lease) = known.unwrap_or_else(|| (self.namespace(), self.new_lease()));
                Step::Release { namespace, lease }
            }
        }
    }

    /// Limits are kept elsewhere only sometimes, because the Book then enforces none.
    fn set_external(&mut self) -> Step {
        let external = ExternalParts { limits: self.random.chance(40), credit: self.random.chance(60) };
        let is_named = external.limits && self.random.chance(50);
        let ledger = is_named.then(|| self.random.below(3).into());
        Step::SetExternal(ExternalSetup { parts: external, ledger })
    }

    /// Mostly a limit that was deleted, with the revision of its deletion.
    fn drop_limit(&mut self) -> Step {
        let any = (self.namespace(), self.random.index(self.profile.keys + SPARE_KEYS));
        let (namespace, place) = self.deleted.last().copied().filter(|_| self.random.chance(80)).unwrap_or(any);
        let key = self.profile.key(place);
        let id = self.shadow.resolve(namespace, &key);
        let limit = id.and_then(|id| self.shadow.limit(self.shadow.time(), id));
        let revision = limit.map_or(0, |limit| limit.revision);
        let revision = if self.random.chance(90) { revision } else { self.random.below(4) };
        Step::Drop { namespace, key, revision }
    }

    /// Mostly the default namespace; sometimes one that does not exist.
    fn namespace(&mut self) -> NamespaceId {
        NamespaceId(match self.random.below(100) {
            0..86 => 0,
            86..98 => 1,
            98 => 2,
            _ => 9,
        })
    }

    fn pass_time(&mut self) {
        let random = &mut self.random;
        if random.chance(self.profile.standstill_percent) {
            return;
        }
        let retention = self.profile.config.retention_ms;
        let passed = match random.below(100) {
            0..15 => 1,
            15..40 => random.below(300),
            // Whole and half seconds, so that steps fall exactly on the ends of windows.
            40..75 => 500 * random.between(1, 6),
            75..85 => 1_000 - self.clock % 1_000,
            85..93 => retention.min(20_000) + random.below(3),
            93..98 => 1_000 * random.between(1, 60),
            98 => 3_600_000 * random.between(1, 5),
            _ => 1_000 * random.pick(&[100_000, u64::from(HOLD_SECONDS_MAX), 1]),
        };
        self.clock = UnixMs::new(self.clock + passed).get();
    }

    /// The time of the next command. Some commands carry an earlier time.
    fn now(&mut self) -> UnixMs {
        if self.random.chance(6) {
            return UnixMs::new(self.clock).minus_ms(self.random.below(5_000));
        }
        UnixMs::new(self.clock)
    }

    fn wall(&mut self) -> UnixMs {
        let wall = UnixMs::new(self.clock);
        match self.random.below(100) {
            0..2 => wall.minus_ms(self.random.below(120_000)),
            2..4 => wall.plus_ms(self.random.below(120_000)),
            _ => wall,
        }
    }

    fn new_lease(&mut self) -> LeaseId {
        let now = UnixMs::new(self.clock);
        let Config { retention_ms, lease_ahead_ms, .. } = self.profile.config;
        let time = match self.random.below(100) {
            0..76 => now,
            76..88 => now.minus_ms(self.random.below(400)),
            88..93 => now.minus_ms(self.random.below(retention_ms + 2)),
            93..95 => now.minus_ms(retention_ms + self.random.below(9_000)),
            // Once such a lease is forgotten, all others are too old until its time.
            95..97 => now.plus_ms(self.random.below(lease_ahead_ms + 1)),
            97 => now.plus_ms(lease_ahead_ms + self.random.below(2)),
            98 => now.plus_ms(lease_ahead_ms + self.random.below(100_000)),
            _ => UnixMs::new(self.random.next() & UnixMs::MAX.get()),
        };
        LeaseId::from_parts(time, u128::from(self.random.next()))
    }

    fn remember(&mut self, namespace: NamespaceId, lease: LeaseId, requirements: &[Part]) {
        if self.used.len() == LEASES_RECENT {
            self.used.remove(0);
        }
        self.used.push(Used { namespace, lease, requirements: requirements.to_vec() });
    }

    /// An earlier lease that is live, if a few tries find one. Most leases of a script have ended.
    fn live_lease(&mut self) -> Option<Used> {
        for _ in 0..8 {
            let used = self.used_lease()?;
            let info = self.shadow.lease(self.shadow.time(), used.namespace, used.lease);
            if info.is_some_and(|info| info.state == LeaseState::Live) {
                return Some(used);
            }
        }
        self.used_lease()
    }

    /// An earlier lease, mostly a recent one.
    fn used_lease(&mut self) -> Option<Used> {
        let newest = self.used.len().min(if self.random.chance(70) { 10 } else { LEASES_RECENT });
        if newest == 0 {
            return None;
        }
        let back = self.random.index(newest);
        Some(self.used[self.used.len() - 1 - back].clone())
    }

    fn reserve(&mut self) -> Step {
        let namespace = self.namespace();
        let lease = self.new_lease();
        let requirements = self.requirements(namespace);
        self.remember(namespace, lease, &requirements);
        let (call, by_gateway) = self.mark(lease);
        Step::Reserve { namespace, lease, job: self.job(), call, by_gateway, requirements }
    }

    /// The same requirements, in another order or by id; sometimes others, or another namespace.
    fn retry(&mut self) -> Step {
        let Some(used) = self.used_lease() else { return Step::Tick };
        let mut requirements = used.requirements;
        self.random.shuffle(&mut requirements);
        self.rename(used.namespace, &mut requirements);
        let mut namespace = used.namespace;
        match self.random.below(100) {
            0..6 => requirements = self.requirements(namespace),
            6..10 if !requirements.is_empty() => {
                let place = self.random.index(requirements.len());
                requirements[place].amount = self.amount(namespace, place);
            }
            10..13 => {
                requirements.pop();
            }
            13..16 => namespace = self.namespace(),
            _ => {}
        }
        let (lease, job, (call, by_gateway)) = (used.lease, self.job(), self.mark(used.lease));
        Step::Reserve { namespace, lease, job, call, by_gateway, requirements }
    }

    fn job(&mut self) -> Option<JobId> {
        self.random.chance(40).then(|| JobId::new(&format!("job-{}", self.random.below(30))).unwrap())
    }

    fn complete(&mut self) -> Step {
        let fresh = self.random.chance(8);
        let used = if fresh { None } else { self.used_lease() };
        let Used { namespace, lease, requirements } = used.unwrap_or_else(|| {
            let (namespace, lease) = (self.namespace(), self.new_lease());
            let requirements = self.requirements(namespace);
            self.remember(namespace, lease, &requirements);
            Used { namespace, lease, requirements }
        });
        let actuals = self.actuals(namespace, requirements);
        Step::Complete { namespace, lease, claim: self.claim(lease), actuals, labels: self.labels() }
    }

    fn labels(&mut self) -> SettleLabels {
        let count = if self.random.chance(60) { 0 } else { self.random.index(5) };
        let pairs = (0..count).map(|place| (["model", "user", "key", "tier"][place], self.random.below(3).to_string()));
        SettleLabels::new(pairs.collect::<Vec<_>>()).unwrap()
    }

    fn put(&mut self) -> Step {
        let namespace = self.namespace();
        self.put_in(namespace)
    }

    fn put_in(&mut self, namespace: NamespaceId) -> Step {
        let any = (namespace, self.random.index(self.profile.keys + SPARE_KEYS));
        let again = if self.random.chance(45) { self.deleted.pop() } else { None };
        let (namespace, place) = again.unwrap_or(any);
        let name = self.profile.key(place);
        let before = self.definitions.get(&(namespace, name.clone())).cloned();
        let mut definition = match before {
            Some(before) if self.random.chance(80) => self.redefined(before),
            Some(_) | None => {
                let flavor = self.random.pick(&FLAVORS);
                self.fresh_definition(name, flavor)
            }
        };
        if self.random.chance(6) {
            self.spoil(&mut definition);
        } else {
            self.definitions.insert((namespace, definition.key.clone()), definition.clone());
        }
        let expected_revision = self.expected_revision(namespace, &definition.key);
        Step::Put { namespace, definition, expected_revision }
    }

    fn delete(&mut self) -> Step {
        let namespace = self.namespace();
        self.delete_in(namespace)
    }

    fn delete_in(&mut self, namespace: NamespaceId) -> Step {
        let place = self.random.index(self.profile.keys + SPARE_KEYS);
        let key = self.profile.key(place);
        self.deleted.push((namespace, place));
        let expected_revision = self.expected_revision(namespace, &key);
        Step::Delete { namespace, key, expected_revision }
    }

    /// Often the revision of the limit, sometimes an older one.
    fn expected_revision(&mut self, namespace: NamespaceId, key: &LimitKey) -> Option<u64> {
        let id = self.shadow.resolve(namespace, key);
        let limit = id.and_then(|id| self.shadow.limit(self.shadow.time(), id));
        let revision = limit.map_or(0, |limit| limit.revision);
        let less = self.random.pick(&[0, 0, 0, 1, 5, revision]);
        self.random.chance(20).then_some(revision.saturating_sub(less))
    }

    fn fresh_definition(&mut self, key: LimitKey, flavor: Flavor) -> Definition {
        let random = &mut self.random;
        let hold = random.pick(&[1, 1, 2, 2, 3, 5, 10, 60, 60, 600, 3_600, 100_000, HOLD_SECONDS_MAX]);
        let overage = random.pick(&[Overage::Debt, Overage::Deny]);
        let kind = match flavor {
            Flavor::Rolling => Kind::Rolling { window_seconds: hold },
            Flavor::Concurrency => Kind::Concurrency { timeout_seconds: hold },
            Flavor::Credit => Kind::Credit(self.terms(hold)),
            Flavor::Calendar => self.calendar(),
        };
        let capacity = if flavor == Flavor::Credit { 0 } else { self.capacity() };
        Definition {
            key,
            kind,
            capacity,
            unit: "requests".into(),
            description: String::new(),
            overage,
            shared: flavor != Flavor::Credit && self.random.chance(40),
            enforce: flavor == Flavor::Credit || self.random.chance(80),
        }
    }

    /// A calendar whose period often ends soon, because its offset puts the end within the next two minutes.
    fn calendar(&mut self) -> Kind {
        let period = self.random.pick(&Period::ALL);
        let minute_of_day = i16::try_from(self.clock / 60_000 % 1_440).unwrap();
        let soon = match period {
            Period::Hour => 59 - minute_of_day % 60,
            Period::Day | Period::Week | Period::Month => 1_439 - minute_of_day,
        };
        let soon = [soon, soon - 1_440].into_iter().find(|minutes| UTC_OFFSET_MINUTES.contains(minutes));
        let any = i16::try_from(self.random.below(1_561)).unwrap() - 720;
        let utc_offset_minutes = if self.random.chance(70) { soon.unwrap_or(any) } else { any };
        Kind::Calendar { period, utc_offset_minutes }
    }

    fn redefined(&mut self, mut definition: Definition) -> Definition {
        let flavor = Flavor::of(&definition.kind);
        match self.random.below(100) {
            0..12 => {}
            12..80 if flavor == Flavor::Credit => {
                let seconds = definition.kind.hold_seconds();
                definition.kind = Kind::Credit(self.terms(seconds));
            }
            12..30 => definition.capacity = (definition.capacity / 2).max(1),
            30..40 => definition.capacity = definition.capacity.saturating_sub(1).max(1),
            40..50 => definition.capacity = definition.capacity.saturating_add(1),
            50..80 => definition.capacity = self.capacity(),
            80..84 if flavor != Flavor::Credit => definition.enforce = !definition.enforce,
            80..90 => {
                definition.kind = self.fresh_definition(definition.key.clone(), flavor).kind;
            }
            90..94 => definition.description = format!("as of {}", self.clock),
            94..97 => definition.shared = !definition.shared && flavor != Flavor::Credit,
            _ => definition.overage = self.random.pick(&[Overage::Debt, Overage::Deny]),
        }
        definition
    }

    fn spoil(&mut self, definition: &mut Definition) {
        match self.random.below(9) {
            6 => definition.kind = Kind::Calendar { period: Period::Day, utc_offset_minutes: 841 },
            7 => {
                *definition = self.fresh_definition(definition.key.clone(), Flavor::Credit);
                definition.shared = true;
            }
            8 => {
                *definition = self.fresh_definition(definition.key.clone(), Flavor::Credit);
                definition.enforce = false;
            }
            0 => definition.capacity = if definition.capacity == 0 { 1 } else { 0 },
            5 => definition.kind = Kind::Credit(self.terms(0)),
            1 => definition.kind = Kind::Rolling { window_seconds: 0 },
            2 => definition.kind = Kind::Concurrency { timeout_seconds: HOLD_SECONDS_MAX + 1 },
            3 => definition.unit = "u".repeat(65),
            _ => definition.description = "d".repeat(1_025),
        }
    }

    fn capacity(&mut self) -> u64 {
        match self.profile.amounts {
            _ if self.profile.is_calm => self.random.between(1_000, 2_000),
            Amounts::Small => self.random.between(2, 14),
            Amounts::Middling => self.random.between(1, 200),
            Amounts::Huge => match self.random.below(4) {
                0 => u64::MAX,
                1 => u64::MAX - self.random.below(5),
                2 => u64::MAX / 2 + self.random.below(5),
                _ => self.random.between(1, 20),
            },
        }
    }
}

impl Iterator for Script {
    type Item = Timed;

    fn next(&mut self) -> Option<Timed> {
        let (now, step) = match self.first_step() {
            Some(step) => (UnixMs::new(self.clock), step),
            None => {
                self.pass_time();
                (self.now(), self.any_step())
            }
        };
        let timed = Timed { now, wall: self.wall(), step };
        let outcome = self.shadow.apply(timed.at(), timed.step.command());
        if let Outcome::Limit(LimitOutcome::Changed { limit, .. }) = outcome
            && !self.ids.contains(&limit)
        {
            let place = self.ids.len() % IDS_MAX;
            self.ids.insert(place.min(self.ids.len()), limit);
        }
        let _ = self.shadow.drain_journal();
        Some(timed)
    }
}

/// A key that no script puts.
fn unknown_key(random: &mut Random) -> LimitKey {
    key(random.pick(&["zz", "aa", "m:unknown"]))
}
