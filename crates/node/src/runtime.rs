//! openraft's runtime: tokio with a random source that simulations can seed.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use openraft::{AsyncRuntime, OptionalSend, TokioRuntime};
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};

thread_local! {
    static CHOSEN: RefCell<Option<StdRng>> = const { RefCell::new(None) };
}

/// Seeds the randomness of all nodes on this thread, so that a simulation can be repeated.
pub fn seed_randomness(seed: u64) {
    CHOSEN.set(Some(StdRng::seed_from_u64(seed)));
}

/// A random number from the seeded generator or the system.
pub(crate) fn random() -> u64 {
    Random.next_u64()
}

/// A random id, unique for all practical purposes.
pub(crate) fn random_id() -> u128 {
    (u128::from(random()) << 64) | u128::from(random())
}

/// The thread's seeded generator, or the system's.
#[derive(Clone, Copy, Debug, Default)]
pub struct Random;

impl RngCore for Random {
    fn next_u32(&mut self) -> u32 {
        self.next_u64() as u32
    }

    fn next_u64(&mut self) -> u64 {
        let chosen = CHOSEN.with_borrow_mut(|chosen| chosen.as_mut().map(RngCore::next_u64));
        chosen.unwrap_or_else(|| rand::thread_rng().next_u64())
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        rand_core_fill(self, bytes);
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), rand::Error> {
        self.fill_bytes(bytes);
        Ok(())
    }
}

fn rand_core_fill(random: &mut Random, bytes: &mut [u8]) {
    for chunk in bytes.chunks_mut(8) {
        let number = random.next_u64().to_le_bytes();
        chunk.copy_from_slice(&number[..chunk.len()]);
    }
}

/// Tokio with [`Random`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Runtime;

impl AsyncRuntime for Runtime {
    type JoinError = <TokioRuntime as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <TokioRuntime as AsyncRuntime>::Sleep;
    type Instant = <TokioRuntime as AsyncRuntime>::Instant;
    type TimeoutError = <TokioRuntime as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = <TokioRuntime as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = Random;
    type OneshotSender<T: OptionalSend> = <TokioRuntime as AsyncRuntime>::OneshotSender<T>;
    type OneshotReceiver<T: OptionalSend> = <TokioRuntime as AsyncRuntime>::OneshotReceiver<T>;
    type OneshotReceiverError = <TokioRuntime as AsyncRuntime>::OneshotReceiverError;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        let task: Pin<Box<dyn Future<Output = T::Output> + Send>> = Box::pin(future);
        TokioRuntime::spawn(task)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        TokioRuntime::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        TokioRuntime::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: Self::Instant, future: F) -> Self::Timeout<R, F> {
        TokioRuntime::timeout_at(deadline, future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        TokioRuntime::is_panic(join_error)
    }

    fn thread_rng() -> Random {
        Random
    }

    fn oneshot<T: OptionalSend>() -> (Self::OneshotSender<T>, Self::OneshotReceiver<T>) {
        TokioRuntime::oneshot()
    }
}
