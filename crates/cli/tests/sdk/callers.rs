//! Callers that reserve and complete, and the expected usage afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use earmark_client::{Actuals, Client, Deadline, Guard, Job, Limiter, TryAcquire};

use crate::random::Random;
use crate::support::{concurrency, job, key, rolling, soon};

const SLOTS: &str = "slots";
const TOKENS: &str = "tokens";
/// Fewer slots than callers, so that some reserves are denied.
pub const CAPACITY: u64 = 4;
const RESERVED: u64 = 10;

#[derive(Default)]
pub struct Known {
    taken: AtomicU64,
    tokens: AtomicU64,
    pub admitted: AtomicU64,
}

pub async fn prepare(client: &Client) {
    client.put_limit(&concurrency(SLOTS, CAPACITY), soon()).await.unwrap();
    client.put_limit(&rolling(TOKENS, 1 << 40, 86_400), soon()).await.unwrap();
}

pub fn a_job() -> Job {
    job(&[(SLOTS, 1), (TOKENS, RESERVED)])
}

impl Known {
    /// Counts a held slot and asserts that the capacity is not exceeded.
    pub fn took(&self) {
        let taken = self.taken.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(taken <= CAPACITY, "{taken} slots of {CAPACITY} are taken at once");
        self.admitted.fetch_add(1, Ordering::SeqCst);
    }

    /// Completes, releases or drops the guard.
    pub async fn finish(&self, guard: Guard, random: &mut Random) {
        self.taken.fetch_sub(1, Ordering::SeqCst);
        let used = random.below(RESERVED * 2);
        match random.below(4) {
            0 => {
                drop(guard);
                self.tokens.fetch_add(RESERVED, Ordering::SeqCst);
            }
            1 => assert!(guard.release().await.unwrap().reconciled),
            _ => {
                let actuals = Actuals::unknown().used(key(TOKENS), used);
                assert!(guard.complete(actuals).await.unwrap().reconciled, "an admitted lease is unknown");
                self.tokens.fetch_add(used, Ordering::SeqCst);
            }
        }
    }

    pub async fn call(self: Arc<Self>, limiter: Limiter, mut random: Random, calls: u64) {
        let what = a_job();
        for _ in 0..calls {
            let guard = match random.below(8) {
                0 => {
                    // Cancelled at a random moment: nothing may stay reserved.
                    let wait = Duration::from_micros(random.below(20_000));
                    match tokio::time::timeout(wait, limiter.acquire(&what, soon())).await {
                        Ok(admitted) => Some(admitted.unwrap()),
                        Err(_) => None,
                    }
                }
                1 => {
                    // Sometimes too short to learn the outcome.
                    let deadline = Deadline::after(Duration::from_millis(random.below(30)));
                    limiter.acquire(&what, deadline).await.ok()
                }
                2 => match limiter.try_acquire(&what, soon()).await.unwrap() {
                    TryAcquire::Admitted(guard) => Some(guard),
                    TryAcquire::Denied(_) => None,
                },
                _ => Some(limiter.acquire(&what, soon()).await.unwrap()),
            };
            if let Some(guard) = guard {
                self.took();
                if random.once_in(3) {
                    tokio::time::sleep(Duration::from_micros(random.below(3_000))).await;
                }
                self.finish(guard, &mut random).await;
            }
        }
    }

    /// Asserts the expected usage after all calls have ended.
    pub async fn check(&self, direct: &Client, limiters: &[Limiter]) {
        for limiter in limiters {
            assert!(limiter.flush(soon()).await, "an abandoned lease is not released yet");
            assert_eq!(limiter.abandoned(), 0);
        }
        let usage = |name: &'static str| async move {
            let usage = direct.usage(&key(name), soon()).await.unwrap();
            (usage.reserved, usage.debt)
        };
        assert_eq!(usage(SLOTS).await, (0, 0), "a slot has leaked");
        let tokens = self.tokens.load(Ordering::SeqCst);
        assert_eq!(usage(TOKENS).await, (tokens, 0), "the server counted another usage");
    }
}
