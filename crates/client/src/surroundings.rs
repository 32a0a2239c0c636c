//! Where wall time and randomness come from.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use earmark_core::{LeaseId, UnixMs};

/// Where wall time and randomness come from. Waiting is by the clock of tokio, which tests can stop.
pub trait Surroundings: Send + Sync + 'static {
    /// The time on the wall.
    fn wall(&self) -> UnixMs;

    /// 64 random bits.
    fn random(&self) -> u64;
}

/// The clock and the randomness of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Machine;

impl Surroundings for Machine {
    fn wall(&self) -> UnixMs {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        UnixMs::new(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
    }

    fn random(&self) -> u64 {
        rand::random()
    }
}

/// The surroundings that a client was given.
#[derive(Clone)]
pub(crate) struct Around(Arc<dyn Surroundings>);

impl fmt::Debug for Around {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Around")
    }
}

impl Default for Around {
    fn default() -> Around {
        Around(Arc::new(Machine))
    }
}

impl Around {
    pub(crate) fn new(surroundings: Arc<dyn Surroundings>) -> Around {
        Around(surroundings)
    }

    /// The time on the wall.
    pub(crate) fn wall(&self) -> UnixMs {
        self.0.wall()
    }

    /// A lease that nobody had before.
    pub(crate) fn lease(&self) -> LeaseId {
        let random = (u128::from(self.0.random()) << 64) | u128::from(self.0.random());
        LeaseId::from_parts(self.0.wall(), random)
    }

    /// A duration from 0 to `max`, each as likely as the other.
    pub(crate) fn up_to(&self, max: Duration) -> Duration {
        let max = u64::try_from(max.as_nanos()).unwrap_or(u64::MAX);
        let part = (u128::from(max) * u128::from(self.0.random())) >> 64;
        Duration::from_nanos(u64::try_from(part).unwrap_or(max))
    }
}
