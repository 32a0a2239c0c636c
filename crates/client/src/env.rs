//! The source of wall time and randomness.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use earmark_core::{LeaseId, UnixMs};

/// The source of wall time and randomness. Timeouts use the clock of tokio, which tests can pause.
pub trait Env: Send + Sync + 'static {
    /// The wall time.
    fn wall(&self) -> UnixMs;

    /// 64 random bits.
    fn random(&self) -> u64;
}

/// The clock and the randomness of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEnv;

impl Env for SystemEnv {
    fn wall(&self) -> UnixMs {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        UnixMs::new(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
    }

    fn random(&self) -> u64 {
        rand::random()
    }
}

/// The environment of one client.
#[derive(Clone)]
pub(crate) struct SharedEnv(Arc<dyn Env>);

impl fmt::Debug for SharedEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedEnv")
    }
}

impl Default for SharedEnv {
    fn default() -> SharedEnv {
        SharedEnv(Arc::new(SystemEnv))
    }
}

impl SharedEnv {
    pub(crate) fn new(env: Arc<dyn Env>) -> SharedEnv {
        SharedEnv(env)
    }

    pub(crate) fn wall(&self) -> UnixMs {
        self.0.wall()
    }

    /// A new lease id.
    pub(crate) fn lease(&self) -> LeaseId {
        let random = (u128::from(self.0.random()) << 64) | u128::from(self.0.random());
        LeaseId::from_parts(self.0.wall(), random)
    }

    /// A random duration from 0 to `max`, uniformly distributed.
    pub(crate) fn up_to(&self, max: Duration) -> Duration {
        let max = u64::try_from(max.as_nanos()).unwrap_or(u64::MAX);
        let part = (u128::from(max) * u128::from(self.0.random())) >> 64;
        Duration::from_nanos(u64::try_from(part).unwrap_or(max))
    }
}
