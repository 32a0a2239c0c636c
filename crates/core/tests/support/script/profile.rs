//! The parameters of one script.

use earmark_core::{Config, Hints, LimitKey, UnixMs};

use crate::support::random::Random;
use crate::support::step::key;

/// Magnitude of amounts and capacities.
#[derive(Clone, Copy)]
pub enum Amounts {
    Small,
    Middling,
    Huge,
}

pub struct Profile {
    pub config: Config,
    pub amounts: Amounts,
    /// Number of limits put at the start.
    pub keys: usize,
    /// Ample capacity and few errors, so that leases on many limits are allowed.
    pub is_calm: bool,
    /// Percentage of steps without a change of time.
    pub standstill_percent: u64,
    pub start: u64,
    /// Whether limits or credit are sometimes kept elsewhere.
    pub is_composed: bool,
}

impl Profile {
    pub fn new(random: &mut Random) -> Profile {
        let hints = Hints {
            concurrency_base_ms: random.pick(&[50, 1, 0, 700]),
            concurrency_max_ms: random.pick(&[2_000, 300, u64::MAX]),
            rolling_base_ms: random.pick(&[100, 1, 0, 2_000]),
            rolling_window_part: random.pick(&[10, 1, 0, 1_000]),
            rolling_max_ms: random.pick(&[5_000, 400, u64::MAX]),
            jitter_percent: random.pick(&[20, 0, 100, 50, 1_000]),
            decreasing_ms: random.pick(&[10_000, 0, 7]),
        };
        let config = Config {
            // Short, so that much is forgotten and most windows are longer.
            retention_ms: random.pick(&[1_000, 1_500, 2_000, 3_000, 5_000, 30_000, 900_000, 0]),
            lease_ahead_ms: random.pick(&[60_000, 1_000, 0]),
            leases_max: random.pick(&[1_000_000, 1_000, 1_000, 200, 100, 40, 12, 3]),
            limits_max: random.pick(&[1_000, 1_000, 1_000, 38]),
            clients_max: random.pick(&[1_000, 1_000, 6]),
            hints: if random.chance(30) { Hints::default() } else { hints },
        };
        let keys = random.pick(&[3, 4, 5, 8, 16, 34, 34]);
        let is_calm = keys > 8 && random.chance(70);
        let config = if is_calm { Config { leases_max: 1_000, ..config } } else { config };
        let amounts = random.pick(&[Amounts::Small, Amounts::Small, Amounts::Middling, Amounts::Huge]);
        Profile {
            config,
            amounts: if is_calm { Amounts::Small } else { amounts },
            keys,
            is_calm,
            standstill_percent: random.pick(&[20, 40, 60, 90]),
            start: match random.below(100) {
                0..5 => 0,
                5..8 => UnixMs::MAX.get() - 60_000,
                _ => 1_750_000_000_000 + random.below(1_000_000),
            },
            is_composed: random.chance(35),
        }
    }

    /// Key order differs from id order, so that tests of order are meaningful.
    pub fn key(&self, place: usize) -> LimitKey {
        key(&format!("k{:02}:{place}", (place * 7 + 3) % 40))
    }
}
