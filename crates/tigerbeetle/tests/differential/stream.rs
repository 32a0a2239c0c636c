//! One random stream, and when its answers can be compared.

mod changes;
mod extend;
mod reads;

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{
    Amount, Backend, CompleteRequest, Limits, LimitsComplete, LimitsReserve, LocalBook, ReserveAnswer, ReserveRequest,
};
use earmark_core::{Kind, LeaseId, LimitKey, NamespaceName, Period, Principal, UnixMs};
use earmark_tigerbeetle::TigerBeetleLimits;

use self::extend::Extended;
use crate::TOLERANCE_MS;
use crate::compare::{self, Compared};
use crate::support::random::Random;
use crate::support::registry::{Lagging, TestRegistry};
use crate::support::wall_ms;
use crate::tally::Tally;

/// Expected maximum duration of an operation. Slower ones are not compared.
const SLACK_MS: u64 = 250;
/// Attempts to choose an operation, per operation executed.
const TRIES: u64 = 8;
const LEASES_MAX: usize = 60;
const HISTORY: usize = 40;

/// Limits whose reservations outlive the test.
const SLOW: [(&str, Kind); 5] = [
    ("slow:rolling:1", Kind::Rolling { window_seconds: 900 }),
    ("slow:rolling:2", Kind::Rolling { window_seconds: 600 }),
    ("slow:rolling:3", Kind::Rolling { window_seconds: 899 }),
    ("slow:slots:1", Kind::Concurrency { timeout_seconds: 900 }),
    ("slow:slots:2", Kind::Concurrency { timeout_seconds: 3_600 }),
];
/// Calendar limits whose period outlives the test: the offset moves an end that is near by half a day.
fn slow_calendars(now_ms: u64) -> [(&'static str, Kind); 2] {
    [("slow:day", Period::Day), ("slow:month", Period::Month)].map(|(name, period)| {
        let ends = |utc_offset_minutes| {
            let kind = Kind::Calendar { period, utc_offset_minutes };
            let end = kind.period_end(UnixMs::new(now_ms)).unwrap();
            (end.get() - now_ms, kind)
        };
        let (one, other) = (ends(0), ends(720));
        (name, if one.0 >= other.0 { one.1 } else { other.1 })
    })
}

/// Hours that end with the next two minutes.
fn quick_calendars(now_ms: u64) -> [(&'static str, Kind); 2] {
    [("quick:hour:1", 1), ("quick:hour:2", 2)].map(|(name, minutes)| {
        let offset = (60 - (now_ms / 60_000 + minutes) % 60) % 60;
        (name, Kind::Calendar { period: Period::Hour, utc_offset_minutes: offset.try_into().unwrap() })
    })
}

const QUICK: [(&str, Kind); 4] = [
    ("quick:rolling:1", Kind::Rolling { window_seconds: 1 }),
    ("quick:rolling:2", Kind::Rolling { window_seconds: 2 }),
    ("quick:rolling:3", Kind::Rolling { window_seconds: 3 }),
    ("quick:slots:2", Kind::Concurrency { timeout_seconds: 2 }),
];

/// Shared limits of another namespace.
const SHARED: [(&str, Kind); 2] = [
    ("shared:rolling", Kind::Rolling { window_seconds: 900 }),
    ("shared:slots", Kind::Concurrency { timeout_seconds: 900 }),
];

/// Templates, and keys that match them.
const TEMPLATES: [(&str, Kind); 2] = [
    ("derived:{user}:tpm", Kind::Rolling { window_seconds: 900 }),
    ("derived:{user}:slots", Kind::Concurrency { timeout_seconds: 900 }),
];
const DERIVED: [(&str, usize); 3] = [("derived:a:tpm", 0), ("derived:b:tpm", 0), ("derived:a:slots", 1)];

/// A limit, and the periods in which the two backends may differ.
struct Limit {
    key: LimitKey,
    kind: Kind,
    is_quick: bool,
    /// Whether it was put; for a key of a template, whether a definition overrides it.
    is_put: bool,
    /// Index of the template that the key matches.
    template: Option<usize>,
    /// Start and end, in wall-clock milliseconds.
    unclear: Vec<(u64, u64)>,
}

impl Limit {
    /// When a reservation that is made at a time ends.
    fn end_ms(&self, at_ms: u64) -> u64 {
        let end = self.kind.period_end(UnixMs::new(at_ms)).map(UnixMs::get);
        end.unwrap_or(at_ms + u64::from(self.kind.hold_seconds()) * 1_000)
    }

    /// How much later it ends in TigerBeetle at most, which counts whole seconds.
    fn rounding_ms(&self) -> u64 {
        if matches!(self.kind, Kind::Calendar { .. }) { 1_000 } else { 0 }
    }
}

/// A lease and its requirements.
#[derive(Clone)]
struct Asked {
    lease: LeaseId,
    parts: Vec<Amount>,
    /// Earliest and latest time at which it was allowed; `None` if denied.
    at: Option<(u64, u64)>,
    is_completed: bool,
    is_unknown: bool,
    /// The amounts of its extensions.
    added: Vec<Amount>,
    /// Its last extension.
    extended: Option<Extended>,
    /// Earliest and latest times of its extensions.
    extended_at: Vec<(u64, u64)>,
}

impl Asked {
    fn new(lease: LeaseId, parts: Vec<Amount>, at: Option<(u64, u64)>, is_unknown: bool) -> Asked {
        let (added, extended_at) = (Vec::new(), Vec::new());
        Asked { lease, parts, at, is_completed: false, is_unknown, added, extended: None, extended_at }
    }

    /// All that it reserved, by limit.
    fn all(&self) -> Vec<Amount> {
        let mut all = self.parts.clone();
        for added in &self.added {
            match all.iter_mut().find(|part| part.key == added.key) {
                Some(part) => part.amount += added.amount,
                None => all.push(added.clone()),
            }
        }
        all
    }
}

pub struct Stream {
    seed: u64,
    namespace: NamespaceName,
    random: Random,
    book: Arc<LocalBook>,
    nodes: Vec<Arc<TigerBeetleLimits>>,
    registry: Arc<TestRegistry>,
    lagging: Arc<Lagging>,
    limits: Vec<Limit>,
    leases: Vec<Asked>,
    history: VecDeque<String>,
    /// Longest time that reserving on both backends took.
    longest_ms: u64,
    tally: Tally,
}

/// The machine stalled, so the results cannot be compared.
struct Disturbed;

/// Whether an operation ran and was compared.
type Asking = Result<bool, Disturbed>;

impl Stream {
    pub fn new(
        seed: u64,
        number: u64,
        book: Arc<LocalBook>,
        nodes: Vec<Arc<TigerBeetleLimits>>,
        (registry, lagging): (Arc<TestRegistry>, Arc<Lagging>),
    ) -> Stream {
        let mut random = Random::new(seed.wrapping_mul(1_000).wrapping_add(number));
        // The server keeps all data, so a repeated seed needs a new namespace.
        let fresh = rand::random::<u32>();
        let limit = |is_quick: bool| {
            move |(name, kind): (&str, Kind)| Limit {
                key: name.parse().unwrap(),
                kind,
                is_quick,
                is_put: false,
                template: None,
                unclear: Vec::new(),
            }
        };
        let derived = DERIVED.into_iter().map(|(name, template)| Limit {
            template: Some(template),
            ..limit(false)((name, TEMPLATES[template].1.clone()))
        });
        random.next();
        let namespace: NamespaceName = format!("s{seed}.{number}.{fresh}").parse().unwrap();
        let owner: NamespaceName = format!("{namespace}.shared").parse().unwrap();
        let shared = SHARED.into_iter().map(|(name, kind)| Limit {
            key: LimitKey::in_namespace(&owner, &name.parse().unwrap()),
            ..limit(false)((name, kind))
        });
        Stream {
            seed,
            namespace,
            random,
            book,
            nodes,
            registry,
            lagging,
            limits: {
                let slow = SLOW.into_iter().chain(slow_calendars(wall_ms())).map(limit(false));
                let quick = QUICK.into_iter().chain(quick_calendars(wall_ms())).map(limit(true));
                slow.chain(quick).chain(derived).chain(shared).collect()
            },
            leases: Vec::new(),
            history: VecDeque::new(),
            longest_ms: 0,
            tally: Tally::default(),
        }
    }

    pub async fn run(mut self, operations: u64) -> Tally {
        for template in 0..TEMPLATES.len() {
            if self.put_template(template).await.is_err() {
                return self.tally;
            }
        }
        for place in 0..self.limits.len() {
            if self.limits[place].template.is_none() && self.put(place).await.is_err() {
                return self.tally;
            }
        }
        let end = self.tally.operations + operations;
        for _ in 0..operations * TRIES {
            let done = match self.random.below(100) {
                0..45 => self.reserve_new().await,
                45..52 => self.retry(false).await,
                52..56 => self.retry(true).await,
                56..72 => self.extend().await,
                72..85 => self.complete().await,
                85..91 => self.change().await,
                91..95 => self.lease().await,
                _ => self.usages().await,
            };
            match done {
                Ok(true) => self.tally.operations += 1,
                Ok(false) => self.tally.idle += 1,
                Err(Disturbed) => {
                    self.tally.disturbed += 1;
                    return self.tally;
                }
            }
            if self.tally.operations == end {
                break;
            }
        }
        // Wait until everything short has expired on both sides.
        tokio::time::sleep(Duration::from_millis(5_000 + 2 * TOLERANCE_MS)).await;
        if self.usages().await.is_err() || self.after_timeouts().await.is_err() {
            self.tally.disturbed += 1;
        }
        self.tally
    }

    /// Reads and extends every extended lease once more: by now those of only short limits have timed out.
    async fn after_timeouts(&mut self) -> Asking {
        for place in 0..self.leases.len() {
            let asked = &self.leases[place];
            let all = asked.all();
            if asked.at.is_some() && asked.extended.is_some() && !asked.is_completed && self.are_clear(&all) {
                self.lease_at(place).await?;
                self.extend_at(place).await?;
            }
        }
        Ok(true)
    }

    fn node(&mut self) -> Arc<TigerBeetleLimits> {
        let place = self.random.index(self.nodes.len());
        Arc::clone(&self.nodes[place])
    }

    /// Whether both backends agree on a limit now and for the duration of an operation.
    fn is_clear(&mut self, place: usize) -> bool {
        let now = wall_ms();
        let limit = &mut self.limits[place];
        limit.unclear.retain(|(_, to)| *to >= now);
        // The two decide in different periods if one ends in between.
        let is_near_end = limit.rounding_ms() > 0 && limit.end_ms(now) <= now + SLACK_MS + TOLERANCE_MS;
        !is_near_end && limit.unclear.iter().all(|(from, _)| *from > now + SLACK_MS)
    }

    fn place(&self, key: &LimitKey) -> Option<usize> {
        self.limits.iter().position(|limit| limit.key == *key)
    }

    fn are_clear(&mut self, parts: &[Amount]) -> bool {
        let places: Vec<usize> = parts.iter().filter_map(|part| self.place(&part.key)).collect();
        places.into_iter().all(|place| self.is_clear(place))
    }

    fn say(&mut self, what: &impl Debug) {
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(format!("{} {what:?}", wall_ms()));
    }

    /// Accepts a comparison. A difference is a bug, unless a reservation expired during the operation.
    fn check<T>(&self, began: u64, parts: &[Amount], compared: Compared<T>) -> Result<T, Disturbed> {
        compared.map_err(|difference| {
            let is_quick = |part: &Amount| self.place(&part.key).is_some_and(|place| self.limits[place].is_quick);
            if wall_ms() > began + SLACK_MS && parts.iter().any(is_quick) {
                return Disturbed;
            }
            let history: Vec<&str> = self.history.iter().map(String::as_str).collect();
            panic!(
                "{}\n\nthey differ, with EARMARK_SEED={} in {}:\n{difference}",
                history.join("\n"),
                self.seed,
                self.namespace
            );
        })
    }

    fn amount(&mut self) -> u64 {
        match self.random.below(20) {
            0 => self.random.between(60, 150),
            1..4 => self.random.between(20, 60),
            _ => self.random.between(1, 12),
        }
    }

    /// Requirements of a new lease: mostly on limits that can be compared, sometimes on an unknown one.
    fn parts(&mut self) -> Vec<Amount> {
        let count = self.random.pick(&[1, 1, 2, 2, 3, 4]);
        let mut places: Vec<usize> = (0..self.limits.len()).collect();
        self.random.shuffle(&mut places);
        let mut parts = Vec::new();
        for place in places {
            if parts.len() < count && self.is_clear(place) {
                let amount = self.amount();
                parts.push(Amount { key: self.limits[place].key.clone(), amount });
            }
        }
        if self.random.chance(2) {
            parts.push(Amount { key: "nobody:put:this".parse().unwrap(), amount: 1 });
        }
        self.random.shuffle(&mut parts);
        parts
    }

    fn new_lease(&mut self, made_at_ms: u64) -> LeaseId {
        let random = (u128::from(self.random.next()) << 64) | u128::from(rand::random::<u64>());
        LeaseId::from_parts(UnixMs::new(made_at_ms), random)
    }

    async fn ask(
        &mut self,
        lease: LeaseId,
        parts: &[Amount],
        is_first: bool,
    ) -> Result<(&'static str, (u64, u64)), Disturbed> {
        let began = wall_ms();
        let (namespace, requirements) = (self.namespace.clone(), parts.to_vec());
        let request = ReserveRequest {
            namespace: namespace.clone(),
            lease,
            job: None,
            call: None,
            by_gateway: false,
            requirements,
        };
        let book = self.book.reserve(Principal::System, vec![request.clone()]).await.remove(0).unwrap();
        let request = LimitsReserve {
            namespace,
            lease,
            job: None,
            call: None,
            by_gateway: false,
            requirements: request.requirements,
        };
        let ledger = self.node().reserve(vec![request]).await.remove(0).unwrap();
        let ended = wall_ms();
        self.say(&("reserve", lease, parts.iter().map(|p| (p.key.as_str(), p.amount)).collect::<Vec<_>>(), &ledger));
        self.longest_ms = self.longest_ms.max(ended - began);
        let compared = compare::reserve(&book, &ledger, is_first, self.longest_ms);
        let answer = self.check(began, parts, compared)?;
        if is_first && matches!(ledger, ReserveAnswer::Allowed { .. }) {
            self.blur(parts, began, ended);
        }
        self.usage_of(parts).await?;
        Ok((answer, (began, ended)))
    }

    /// A reservation made between two times expires between two times.
    fn blur(&mut self, parts: &[Amount], began: u64, ended: u64) {
        for part in parts {
            let Some(place) = self.place(&part.key) else { continue };
            let limit = &mut self.limits[place];
            if limit.is_quick {
                let (first, last) = (limit.end_ms(began), limit.end_ms(ended));
                limit.unclear.push((first - TOLERANCE_MS, last + limit.rounding_ms() + TOLERANCE_MS));
            }
        }
    }

    async fn reserve_new(&mut self) -> Asking {
        let parts = self.parts();
        if parts.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
            return Ok(false);
        }
        let now = wall_ms();
        let (made_at, aged) = match self.random.below(100) {
            0 => (now - 3_600_000, Some("too old")),
            1 => (now + 3_600_000, Some("too new")),
            _ => (now, None),
        };
        let lease = self.new_lease(made_at);
        let (answer, at) = self.ask(lease, &parts, true).await?;
        if let Some(aged) = aged {
            self.tally.met(aged);
            return Ok(true);
        }
        self.tally.met(answer);
        if matches!(answer, "allowed" | "denied" | "never") {
            let at = (answer == "allowed").then_some(at);
            self.remember(Asked::new(lease, parts, at, false));
        }
        Ok(true)
    }

    fn remember(&mut self, asked: Asked) {
        if self.leases.len() == LEASES_MAX {
            let place = self.random.index(LEASES_MAX);
            self.leases.swap_remove(place);
        }
        self.leases.push(asked);
    }

    /// A random earlier lease whose limits can be compared.
    fn known(&mut self) -> Option<usize> {
        for _ in 0..8 {
            if self.leases.is_empty() {
                return None;
            }
            let place = self.random.index(self.leases.len());
            let parts = self.leases[place].all();
            if self.are_clear(&parts) {
                return Some(place);
            }
        }
        None
    }

    async fn retry(&mut self, is_changed: bool) -> Asking {
        let Some(place) = self.known() else { return Ok(false) };
        let Asked { lease, mut parts, at, extended, .. } = self.leases[place].clone();
        self.random.shuffle(&mut parts);
        if is_changed {
            // Only the process that denied a lease knows its requirements.
            if at.is_none() {
                return Ok(false);
            }
            match self.random.below(3) {
                0 => parts[0].amount += 1,
                1 if parts.len() > 1 => {
                    parts.pop();
                }
                _ => {
                    let other = self.parts().into_iter().find(|part| parts.iter().all(|p| p.key != part.key));
                    let Some(other) = other else { return Ok(false) };
                    parts.push(other);
                }
            }
        }
        let (answer, _) = self.ask(lease, &parts, false).await?;
        self.tally.met(match answer {
            "allowed" if extended.is_some() => "retried after an extension, same",
            "expired" if extended.is_some() => "retried after an extension, expired",
            "allowed" => "retried, same",
            "denied" => "retried, denied again",
            "expired" => "retried, expired",
            "invalid" => "retried, other body",
            other => other,
        });
        Ok(true)
    }

    async fn complete(&mut self) -> Asking {
        let known = if self.random.chance(6) { None } else { self.known() };
        let asked = match known {
            Some(place) => self.leases[place].clone(),
            None => {
                let (lease, parts) = (self.new_lease(wall_ms()), self.parts());
                Asked::new(lease, parts, None, true)
            }
        };
        let all = asked.all();
        let actuals = self.actuals(&all);
        if !self.are_clear(&actuals) {
            return Ok(false);
        }
        let began = wall_ms();
        let (namespace, lease) = (self.namespace.clone(), asked.lease);
        let request = CompleteRequest {
            namespace: namespace.clone(),
            lease,
            job: None,
            claim: earmark_core::LeaseClaim::default(),
            actuals,
            labels: earmark_core::SettleLabels::NONE,
        };
        let book = self.book.complete(Principal::System, vec![request.clone()]).await.remove(0).unwrap();
        let request =
            LimitsComplete { namespace, lease, claim: earmark_core::LeaseClaim::default(), actuals: request.actuals };
        let actuals = request.actuals.clone();
        let ledger = self.node().complete(vec![request]).await.remove(0).unwrap();
        let ended = wall_ms();
        self.say(&("complete", lease, actuals.iter().map(|p| (p.key.as_str(), p.amount)).collect::<Vec<_>>(), &ledger));
        self.check(began, &all, compare::complete(&book, &ledger))?;
        for (amount, what) in [
            (ledger.overage_reserved, "overage reserved"),
            (ledger.overage_debt, "overage debt"),
            (ledger.overage_dropped, "overage dropped"),
        ] {
            if amount > 0 {
                self.tally.met(what);
            }
        }
        self.tally.met(match (ledger.reconciled, asked.is_completed) {
            (true, false) => "completed",
            (true, true) => "completed before",
            (false, _) => "completed, unknown",
        });
        self.blur_settled(&asked, began, ended);
        match known {
            // After a complete, only the process that denied the lease knows that it was denied.
            Some(place) if asked.at.is_none() && !asked.is_unknown => {
                self.leases.swap_remove(place);
            }
            Some(place) => self.leases[place].is_completed = true,
            None => self.remember(Asked { is_completed: false, ..asked.clone() }),
        }
        self.usage_of(&all).await?;
        Ok(true)
    }

    /// Settled usage expires up to a second later in TigerBeetle. Overage of an expired reservation is held for one
    /// second.
    fn blur_settled(&mut self, asked: &Asked, began: u64, ended: u64) {
        let Some(at) = asked.at.filter(|_| !asked.is_completed) else { return };
        for part in &asked.all() {
            let Some(place) = self.place(&part.key) else { continue };
            let limit = &mut self.limits[place];
            if limit.is_quick {
                let late = ended - began + 1_000 + TOLERANCE_MS;
                for (from, to) in asked.extended_at.iter().copied().chain([at]) {
                    limit.unclear.push((limit.end_ms(from) - TOLERANCE_MS, limit.end_ms(to) + late));
                }
                limit.unclear.push((began + 1_000 - TOLERANCE_MS, ended + 1_000 + TOLERANCE_MS));
                if limit.rounding_ms() > 0 {
                    limit.unclear.push((limit.end_ms(began) - TOLERANCE_MS, limit.end_ms(ended) + late));
                }
            }
        }
    }

    /// Actuals: less, equal, more, none, or on another limit.
    fn actuals(&mut self, parts: &[Amount]) -> Vec<Amount> {
        let mut actuals = Vec::new();
        for part in parts {
            let amount = match self.random.below(10) {
                0..2 => continue,
                2 => 0,
                3..6 => self.random.between(0, part.amount),
                6 => part.amount,
                7..9 => part.amount + self.random.between(1, 20),
                _ => part.amount + self.random.between(20, 200),
            };
            // A changed template counts from the next reserve; in TigerBeetle it may count from the next overage.
            let is_derived = self.place(&part.key).is_some_and(|place| self.limits[place].template.is_some());
            let amount = if is_derived { amount.min(part.amount) } else { amount };
            actuals.push(Amount { key: part.key.clone(), amount });
        }
        if self.random.chance(10)
            && let Some(other) = self.parts().into_iter().find(|part| parts.iter().all(|p| p.key != part.key))
        {
            actuals.push(other);
        }
        self.random.shuffle(&mut actuals);
        actuals
    }
}
