//! The wait before a retry.

use std::time::Duration;

use crate::env::SharedEnv;
use crate::failure::Failure;

/// The waits between attempts: exponential, with jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffOptions {
    /// The upper bound of the first wait.
    pub first: Duration,
    /// The upper bound of every wait.
    pub longest: Duration,
}

impl Default for BackoffOptions {
    fn default() -> BackoffOptions {
        BackoffOptions { first: Duration::from_millis(20), longest: Duration::from_secs(2) }
    }
}

/// The waits between the attempts of one request.
#[derive(Debug)]
pub(crate) struct Backoff<'a> {
    env: &'a SharedEnv,
    options: BackoffOptions,
    next: Duration,
    /// The number of servers asked since the last wait.
    asked: usize,
}

impl<'a> Backoff<'a> {
    pub(crate) fn new(env: &'a SharedEnv, options: BackoffOptions) -> Backoff<'a> {
        Backoff { env, options, next: options.first, asked: 0 }
    }

    /// The wait after a failure. A failure of one server leads to the next server at once; the wait comes when all of
    /// them failed. Half of it is random, so that callers who failed together do not retry together.
    pub(crate) fn wait(&mut self, failure: &Failure, servers: usize) -> Duration {
        self.asked += 1;
        if failure.blames_server() && self.asked < servers {
            return Duration::ZERO;
        }
        self.asked = 0;
        let wait = self.next / 2 + self.env.up_to(self.next / 2);
        self.next = self.next.saturating_mul(2).min(self.options.longest);
        wait
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use earmark_core::UnixMs;

    use super::*;
    use crate::env::Env;

    struct Always(u64);

    impl Env for Always {
        fn wall(&self) -> UnixMs {
            UnixMs::new(0)
        }

        fn random(&self) -> u64 {
            self.0
        }
    }

    fn waits(random: u64, servers: usize, failure: &Failure) -> Vec<u128> {
        let env = SharedEnv::new(Arc::new(Always(random)));
        let options = BackoffOptions { first: Duration::from_millis(100), longest: Duration::from_millis(300) };
        let mut backoff = Backoff::new(&env, options);
        (0..5).map(|_| backoff.wait(failure, servers).as_millis()).collect()
    }

    #[test]
    fn waits_double_up_to_the_longest_and_half_of_each_is_random() {
        let failure = Failure::NoAnswer { server: "a".into(), why: "it broke".into() };
        assert_eq!(waits(0, 1, &failure), [50, 100, 150, 150, 150]);
        assert_eq!(waits(u64::MAX, 1, &failure), [99, 199, 299, 299, 299]);
    }

    #[test]
    fn the_next_server_is_asked_at_once_until_all_have_failed() {
        let failure = Failure::Unreachable {
            server: "a".into(),
            why: "refused".into(),
            kind: std::io::ErrorKind::ConnectionRefused,
        };
        assert_eq!(waits(0, 3, &failure), [0, 0, 50, 0, 0]);
        assert_eq!(waits(0, 3, &Failure::Busy { waiting_max: 1 }), [50, 100, 150, 150, 150]);
    }
}
