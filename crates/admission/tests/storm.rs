//! Many concurrent callers, some of which disconnect: no limit is ever exceeded, and in the end everything is free.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use earmark_admission::*;
use earmark_core::{Definition, Kind, LeaseId, LimitKey, NamespaceName, Overage, Principal, UnixMs};

use crate::random::Random;

const TASKS: u64 = 64;
/// Reserves per task and round. With the completes this makes more than 200,000 operations.
const CALLS: u64 = 250;
/// Between rounds all tasks stop, the sums are compared and a window passes.
const ROUNDS: u64 = 10;
const NAMES: [&str; 4] = ["rpm", "tpm", "slots", "daily"];
const CAPACITIES: [u64; 4] = [8_000, 2_500_000, 900, 20_000_000];

struct Storm {
    book: LocalBook,
    clock: Arc<ManualClock>,
    keys: [LimitKey; 4],
    /// The amounts that callers know to be reserved. They are added after an answer and subtracted before a complete,
    /// so they never exceed the real amounts.
    known: [AtomicU64; 4],
    allowed: AtomicU64,
    denied: AtomicU64,
    dropped: AtomicU64,
}

fn namespace() -> NamespaceName {
    NamespaceName::new("default").expect("a valid name")
}

impl Storm {
    async fn new() -> Storm {
        let clock = ManualClock::at(1_700_000_000_000);
        let options = LocalOptions { clock: Arc::clone(&clock) as _, ..LocalOptions::default() };
        let book = LocalBook::open(options).await.unwrap_or_else(|error| panic!("{error}"));
        let minute = Kind::Rolling { window_seconds: 60 };
        let kinds = [minute.clone(), minute.clone(), Kind::Concurrency { timeout_seconds: 60 }, minute];
        let keys = NAMES.map(|name| LimitKey::new(name).expect("a valid key"));
        for ((key, kind), capacity) in keys.iter().zip(kinds).zip(CAPACITIES) {
            let (unit, description) = (String::new(), String::new());
            let definition = Definition {
                key: key.clone(),
                kind,
                capacity,
                unit,
                description,
                overage: Overage::Deny,
                shared: false,
                enforce: true,
            };
            let request = PutLimitRequest { namespace: namespace(), definition, expected_revision: None };
            book.put_limit(Principal::System, request).await.expect("a limit that can be put");
        }
        let known = std::array::from_fn(|_| AtomicU64::new(0));
        let (allowed, denied, dropped) = Default::default();
        Storm { book, clock, keys, known, allowed, denied, dropped }
    }

    fn parts(&self, amounts: [u64; 4]) -> Vec<Amount> {
        self.keys.iter().zip(amounts).map(|(key, amount)| Amount { key: key.clone(), amount }).collect()
    }

    async fn call(&self, lease: LeaseId, random: &mut Random) {
        let amounts = [1, 1 + random.below(800), 1 + random.below(3), 1 + random.below(800)];
        let requirements = self.parts(amounts);
        let request =
            ReserveRequest { namespace: namespace(), lease, job: None, call: None, by_gateway: false, requirements };
        if random.below(10) == 0 {
            let asked = self.book.reserve(Principal::System, vec![request.clone()]);
            hang_up(asked).await;
            self.dropped.fetch_add(1, Ordering::Relaxed);
            // Half of the callers that lost the answer retry, and must get the same answer.
            if random.below(2) == 0 {
                return;
            }
        }
        match self.book.reserve(Principal::System, vec![request]).await.remove(0) {
            Ok(ReserveAnswer::Allowed { .. }) => self.use_it(lease, amounts, random).await,
            Ok(ReserveAnswer::Denied { .. }) => _ = self.denied.fetch_add(1, Ordering::Relaxed),
            other => panic!("{other:?}"),
        }
    }

    async fn use_it(&self, lease: LeaseId, amounts: [u64; 4], random: &mut Random) {
        self.allowed.fetch_add(1, Ordering::Relaxed);
        for ((known, amount), capacity) in self.known.iter().zip(amounts).zip(CAPACITIES) {
            let held = known.fetch_add(amount, Ordering::SeqCst) + amount;
            assert!(held <= capacity, "{held} of {capacity}");
        }
        tokio::task::yield_now().await;
        let used = [amounts[0], random.below(amounts[1] + 1), 0, random.below(amounts[3] + 1)];
        for (known, back) in self.known.iter().zip((0..4).map(|i| amounts[i] - used[i])) {
            known.fetch_sub(back, Ordering::SeqCst);
        }
        let request = CompleteRequest {
            namespace: namespace(),
            lease,
            job: None,
            claim: earmark_core::LeaseClaim::default(),
            actuals: self.parts(used),
            labels: earmark_core::SettleLabels::NONE,
        };
        if random.below(10) == 0 {
            hang_up(self.book.complete(Principal::System, vec![request])).await;
            return;
        }
        let answer =
            self.book.complete(Principal::System, vec![request]).await.remove(0).expect("a backend that answers");
        assert!(answer.reconciled);
    }

    async fn usage(&self, place: usize) -> earmark_core::Usage {
        let usage = self.book.usage(namespace(), self.keys[place].clone()).await;
        usage.expect("a backend that answers").expect("a limit that exists")
    }
}

/// Sends a request and drops the future before the answer.
async fn hang_up<T>(mut asked: Answer<'_, T>) {
    std::future::poll_fn(|context| {
        _ = asked.as_mut().poll(context);
        Poll::Ready(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_limit_is_exceeded_at_any_moment_and_all_capacity_comes_back() {
    let storm = Arc::new(Storm::new().await);
    for round in 0..ROUNDS {
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let storm = Arc::clone(&storm);
                tokio::spawn(async move {
                    let mut random = Random::new(round * TASKS + task);
                    let now = storm.clock.now().wall;
                    for number in 0..CALLS {
                        let random_bits = u128::from(round << 40 | task << 32 | number);
                        storm.call(LeaseId::from_parts(now, random_bits), &mut random).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("a task that does not panic");
        }
        for (place, capacity) in CAPACITIES.into_iter().enumerate() {
            let usage = storm.usage(place).await;
            let known = storm.known[place].swap(0, Ordering::SeqCst);
            assert!((known..=capacity).contains(&usage.reserved), "{}: {usage:?}, {known}", NAMES[place]);
        }
        storm.clock.advance_ms(60_000);
        for (place, name) in NAMES.iter().enumerate() {
            assert_eq!(storm.usage(place).await.reserved, 0, "{name}");
        }
    }
    let [allowed, denied, dropped] =
        [&storm.allowed, &storm.denied, &storm.dropped].map(|count| count.load(Ordering::Relaxed));
    println!("{allowed} allowed, {denied} denied, {dropped} hung up");
    assert!(allowed > 40_000 && denied > 10_000 && dropped > 10_000, "the storm was no storm");
    assert!(TASKS * ROUNDS * CALLS + allowed > 200_000);
    assert_eq!(storm.clock.now().log, UnixMs::new(1_700_000_000_000 + ROUNDS * 60_000));
}
