//! Scripts that fill few limits with thousands of reservations with different expiry times. They make the trees of the
//! Book deep, and cut and change them in the middle.

use earmark_core::{Config, Kind, LeaseId, LimitId, NamespaceId, UnixMs};

use super::random::Random;
use super::step::{Step, Timed, by_id};
use super::test_book::{START, rolling};

const LIMITS: u32 = 3;

pub struct DenseScript {
    random: Random,
    now: UnixMs,
    put: u32,
    open: Vec<LeaseId>,
    capacity: u64,
    hold_seconds: u32,
    pub config: Config,
}

impl DenseScript {
    pub fn new(seed: u64) -> DenseScript {
        let mut random = Random::new(seed);
        let config = Config {
            // Settled usage within the retention expires exactly; later usage is merged into slots.
            retention_ms: random.pick(&[1_000, 20_000_000]),
            ..Config::default()
        };
        let capacity = random.pick(&[1_000, 9_000]);
        let hold_seconds = random.pick(&[60, 3_600]);
        DenseScript { random, now: START, put: 0, open: Vec::new(), capacity, hold_seconds, config }
    }

    fn put(&mut self, number: u32) -> Step {
        // Alternating windows make new reservations expire between old ones.
        let hold = self.random.pick(&[self.hold_seconds, self.hold_seconds, self.hold_seconds / 2]);
        let name = format!("script:{number}");
        let mut definition = rolling(&name, self.capacity, hold);
        if number == 1 {
            definition.kind = Kind::Concurrency { timeout_seconds: hold };
        }
        Step::Put { namespace: NamespaceId::DEFAULT, definition, expected_revision: None }
    }

    fn reserve(&mut self) -> Step {
        let lease = LeaseId::from_parts(self.now, u128::from(self.random.next()));
        self.open.push(lease);
        let always = self.random.below(u64::from(LIMITS));
        let mut requirements = Vec::new();
        for number in 0..LIMITS {
            if u64::from(number) == always || self.random.chance(60) {
                let most = self.random.pick(&[1, 1, 1, 3]);
                let most = if self.random.chance(2) { self.capacity } else { most };
                requirements.push(by_id(id(number), self.random.between(1, most)));
            }
        }
        Step::Reserve { namespace: NamespaceId::DEFAULT, lease, job: None, call: None, by_gateway: false, requirements }
    }

    fn complete(&mut self) -> Step {
        if self.open.is_empty() {
            return Step::Tick;
        }
        let lease = self.open.swap_remove(self.random.index(self.open.len()));
        let amount = self.random.below(5);
        let actuals = vec![by_id(id(0), amount), by_id(id(2), 1)];
        let (claim, labels) = (earmark_core::LeaseClaim::default(), earmark_core::SettleLabels::NONE);
        Step::Complete { namespace: NamespaceId::DEFAULT, lease, claim, actuals, labels }
    }

    fn pass_time(&mut self) {
        let hold_ms = u64::from(self.hold_seconds) * 1_000;
        let passed = match self.random.below(2_000) {
            0 => hold_ms / 3,
            1 => hold_ms,
            2..20 => self.random.below(hold_ms / 40),
            _ => self.random.below(4),
        };
        self.now = self.now.plus_ms(passed);
    }
}

impl Iterator for DenseScript {
    type Item = Timed;

    fn next(&mut self) -> Option<Timed> {
        self.pass_time();
        let step = if self.put < LIMITS {
            self.put += 1;
            self.put(self.put - 1)
        } else {
            match self.random.below(1_000) {
                0..640 => self.reserve(),
                640..990 => self.complete(),
                990..994 => {
                    let number = self.random.index(LIMITS as usize);
                    self.put(u32::try_from(number).unwrap())
                }
                _ => Step::Tick,
            }
        };
        Some(Timed { now: self.now, wall: self.now, step })
    }
}

/// Nothing is deleted, so slots follow the order of the puts.
fn id(slot: u32) -> LimitId {
    LimitId { slot, generation: 0 }
}
