//! The bounded queue between requests and the writer, and the rate of each key.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use earmark_admission::StoredRecord;
use earmark_core::UnixMs;
use tokio::sync::oneshot;

use super::record::encode_repeats;

/// Records of one key and outcome that are kept in full per second.
pub(super) const FULL_PER_SECOND: u32 = 10;
/// Bytes in the queue. Beyond this records are dropped.
const QUEUE_BYTES_MAX: u64 = 1 << 20;
/// Keys and outcomes whose rate is known at once. Beyond this records of others are dropped.
const RATES_MAX: usize = 65_536;
/// How often the writer looks for seconds that are over.
const SWEEP: Duration = Duration::from_millis(250);

/// Whether a decision gets a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    /// It gets one.
    InFull,
    /// It is counted in the last record of its key.
    Repeated,
    /// It is not kept.
    Dropped,
}

/// The decisions of one key and outcome in one second.
#[derive(Default)]
struct Rate {
    second: u64,
    in_full: u32,
    /// The number of its last record in the newest segment; 0 before the first.
    last: u64,
    /// Repeats that no record has yet.
    repeated: u64,
}

/// Identities are hashes already.
#[derive(Default)]
pub(crate) struct Unhashed(u64);

impl Hasher for Unhashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

struct State {
    next_number: u64,
    records: Vec<StoredRecord>,
    bytes: u64,
    rates: HashMap<u64, Rate, BuildHasherDefault<Unhashed>>,
    /// Readers that wait until everything before them is written.
    waiting: Vec<oneshot::Sender<()>>,
    is_stopped: bool,
}

/// Records for the writer.
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    bytes_max: u64,
}

/// Work for the writer.
pub(super) struct Work {
    pub(super) records: Vec<StoredRecord>,
    /// To be told once the records are written.
    pub(super) waiting: Vec<oneshot::Sender<()>>,
    pub(super) is_last: bool,
}

impl Queue {
    /// `segment_bytes` bounds the queue too: the writer appends it at once.
    pub(super) fn new(next_number: u64, segment_bytes: u64) -> Queue {
        let state = State {
            next_number: next_number.max(1),
            records: Vec::new(),
            bytes: 0,
            rates: HashMap::default(),
            waiting: Vec::new(),
            is_stopped: false,
        };
        Queue { state: Mutex::new(state), changed: Condvar::new(), bytes_max: segment_bytes.min(QUEUE_BYTES_MAX) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a decision of a key and outcome.
    pub(super) fn admit(&self, identity: u64, now: UnixMs) -> Admitted {
        let second = now.get() / 1_000;
        let mut state = self.lock();
        if state.is_stopped {
            return Admitted::Dropped;
        }
        let is_full = state.rates.len() >= RATES_MAX;
        let State { rates, records, bytes, next_number, .. } = &mut *state;
        let rate = match rates.get_mut(&identity) {
            Some(rate) => rate,
            None if is_full => return Admitted::Dropped,
            None => rates.entry(identity).or_default(),
        };
        if rate.second != second {
            if let Some(payload) = rate.take_repeats() {
                push(records, bytes, next_number, StoredRecord { number: 0, at: now, payload });
            }
            *rate = Rate { second, ..Rate::default() };
        }
        if rate.in_full < FULL_PER_SECOND {
            rate.in_full = rate.in_full.saturating_add(1);
            return Admitted::InFull;
        }
        // All ten were dropped, or their segment is not the newest any more and has its repeats.
        if rate.last == 0 {
            return if *bytes < self.bytes_max { Admitted::InFull } else { Admitted::Dropped };
        }
        rate.repeated = rate.repeated.saturating_add(1);
        Admitted::Repeated
    }

    /// Queues a record. Returns false if there is no room. The clock is read under the lock, so that times rise with
    /// numbers.
    pub(super) fn push(&self, identity: u64, payload: Vec<u8>, clock: fn() -> UnixMs) -> bool {
        let mut state = self.lock();
        if state.bytes >= self.bytes_max || state.is_stopped {
            return false;
        }
        let State { rates, records, bytes, next_number, .. } = &mut *state;
        let is_first = records.is_empty();
        let number = push(records, bytes, next_number, StoredRecord { number: 0, at: clock(), payload });
        if let Some(rate) = rates.get_mut(&identity) {
            rate.last = number;
        }
        drop(state);
        if is_first {
            self.changed.notify_one();
        }
        true
    }

    /// Waits for work. Without any it returns after a while, with the repeats of seconds that are over.
    pub(super) fn next(&self, clock: fn() -> UnixMs) -> Work {
        let is_idle = |state: &mut State| state.records.is_empty() && state.waiting.is_empty() && !state.is_stopped;
        let waited = self.changed.wait_timeout_while(self.lock(), SWEEP, is_idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        let now = clock();
        // A reader gets the repeats of this second too.
        let is_read = !state.waiting.is_empty() || state.is_stopped;
        state.count_repeats(now, is_read, false);
        state.take()
    }

    /// Everything that belongs into the newest segment before it is closed: records, and the repeats of its records.
    pub(super) fn close_segment(&self, clock: fn() -> UnixMs) -> Work {
        let mut state = self.lock();
        state.count_repeats(clock(), true, true);
        state.take()
    }

    /// Waits until everything that was queued before this call is written.
    pub(super) async fn written(&self) {
        let (sender, receiver) = oneshot::channel();
        {
            let mut state = self.lock();
            if state.is_stopped {
                return;
            }
            state.waiting.push(sender);
        }
        self.changed.notify_one();
        // An error means that the writer has ended; it wrote everything first.
        _ = receiver.await;
    }

    /// Refuses new records, and ends the writer once it has written those in the queue. Returns a receiver of that
    /// moment; `None` if it was stopped before.
    pub(super) fn stop(&self) -> Option<oneshot::Receiver<()>> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.lock();
        if std::mem::replace(&mut state.is_stopped, true) {
            return None;
        }
        state.waiting.push(sender);
        drop(state);
        self.changed.notify_one();
        Some(receiver)
    }
}

/// Gives a record the next number and queues it. Returns the number.
fn push(records: &mut Vec<StoredRecord>, bytes: &mut u64, next_number: &mut u64, record: StoredRecord) -> u64 {
    let number = *next_number;
    *next_number = number.saturating_add(1);
    *bytes = bytes.saturating_add(record.bytes());
    records.push(StoredRecord { number, ..record });
    number
}

impl Rate {
    /// A record of the repeats since the last one, if there are any.
    fn take_repeats(&mut self) -> Option<Vec<u8>> {
        let count = std::mem::take(&mut self.repeated);
        (count > 0 && self.last > 0).then(|| encode_repeats(self.last, count))
    }
}

impl State {
    /// Queues the repeats of the seconds that are over, or of `all`, and forgets those seconds. When the segment
    /// closes, later repeats belong to a new record.
    fn count_repeats(&mut self, now: UnixMs, all: bool, closes: bool) {
        let second = now.get() / 1_000;
        let State { rates, records, bytes, next_number, .. } = self;
        rates.retain(|_, rate| {
            let is_over = rate.second != second;
            if (is_over || all)
                && let Some(payload) = rate.take_repeats()
            {
                push(records, bytes, next_number, StoredRecord { number: 0, at: now, payload });
            }
            if closes {
                rate.last = 0;
            }
            !is_over
        });
    }

    fn take(&mut self) -> Work {
        self.bytes = 0;
        Work {
            records: std::mem::take(&mut self.records),
            waiting: std::mem::take(&mut self.waiting),
            is_last: self.is_stopped,
        }
    }
}
