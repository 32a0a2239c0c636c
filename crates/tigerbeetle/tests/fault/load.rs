//! Callers that retry until they have an answer, and a record of the answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use earmark_admission::{
    Answer, BackendError, EnforcedStatus, Limits, LimitsComplete, LimitsReserve, Refusal, ReserveAnswer,
};
use earmark_core::{Definition, Kind, LeaseId, Overage};
use earmark_tigerbeetle::TigerBeetleLimits;
use tokio::task::JoinHandle;

use crate::support::random::Random;
use crate::support::registry::TestRegistry;
use crate::support::{amounts, definition, key, lease, namespace};

const CALLERS: u64 = 12;
/// How long the calls after a kill may take on a busy machine.
const PROGRESS: Duration = Duration::from_secs(120);
/// Overage never fits into this limit, so it always becomes debt.
const TOKENS: u64 = 10_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerKind {
    Allowed,
    Denied,
    Ended,
    Reconciled,
    Unreconciled,
    Other,
}

/// A target for requests.
pub trait RequestTarget: Send + Sync + 'static {
    /// Reserves one slot and `tokens`.
    fn reserve(&self, lease: LeaseId, tokens: u64) -> Answer<'_, Option<AnswerKind>>;

    /// Completes with `tokens` as actual usage.
    fn complete(&self, lease: LeaseId, tokens: u64) -> Answer<'_, Option<AnswerKind>>;
}

pub fn registry() -> Arc<TestRegistry> {
    let registry = TestRegistry::default();
    let tokens = definition("tokens", Kind::Rolling { window_seconds: 3_600 }, TOKENS);
    registry.put(&namespace(), Definition { overage: Overage::Debt, ..tokens });
    registry.put(&namespace(), definition("slots", Kind::Concurrency { timeout_seconds: 3_600 }, CALLERS / 2));
    Arc::new(registry)
}

/// Limits in this process.
pub struct Direct(pub Arc<TigerBeetleLimits>);

impl RequestTarget for Direct {
    fn reserve(&self, lease: LeaseId, tokens: u64) -> Answer<'_, Option<AnswerKind>> {
        Box::pin(async move { reserve(&self.0, lease, tokens).await.ok() })
    }

    fn complete(&self, lease: LeaseId, tokens: u64) -> Answer<'_, Option<AnswerKind>> {
        Box::pin(async move { complete(&self.0, lease, tokens).await.ok() })
    }
}

pub async fn reserve(limits: &TigerBeetleLimits, lease: LeaseId, tokens: u64) -> Result<AnswerKind, BackendError> {
    let requirements = amounts(&[("slots", 1), ("tokens", tokens)]);
    let request =
        LimitsReserve { namespace: namespace(), lease, job: None, call: None, by_gateway: false, requirements };
    limits.reserve(vec![request]).await.remove(0).map(|answer| match answer {
        ReserveAnswer::Allowed { .. } => AnswerKind::Allowed,
        ReserveAnswer::Denied { .. } => AnswerKind::Denied,
        ReserveAnswer::Refused(Refusal::LeaseExpired) => AnswerKind::Ended,
        ReserveAnswer::Refused(_) => AnswerKind::Other,
    })
}

pub async fn complete(limits: &TigerBeetleLimits, lease: LeaseId, tokens: u64) -> Result<AnswerKind, BackendError> {
    let request = LimitsComplete {
        namespace: namespace(),
        lease,
        claim: earmark_core::LeaseClaim::default(),
        actuals: amounts(&[("tokens", tokens)]),
    };
    limits.complete(vec![request]).await.remove(0).map(|answer| match answer.reconciled {
        true => AnswerKind::Reconciled,
        false => AnswerKind::Unreconciled,
    })
}

/// Sums over the answers of all callers.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerTotals {
    pub allowed: u64,
    pub denied: u64,
    /// Retries.
    pub retries: u64,
    /// Tokens that remain reserved: the reservation, or less if less was used.
    tokens: u64,
    debt: u128,
}

pub struct Load {
    callers: Vec<JoinHandle<AnswerTotals>>,
    is_over: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
}

impl Load {
    pub fn start(port: Arc<dyn RequestTarget>) -> Load {
        let is_over = Arc::new(AtomicBool::new(false));
        let calls = Arc::new(AtomicU64::new(0));
        let callers = (0..CALLERS)
            .map(|number| {
                let caller = Caller {
                    port: Arc::clone(&port),
                    random: Random::new(number),
                    totals: AnswerTotals::default(),
                    is_over: Arc::clone(&is_over),
                    calls: Arc::clone(&calls),
                };
                tokio::spawn(caller.run())
            })
            .collect();
        Load { callers, is_over, calls }
    }

    /// Waits until calls are answered, so that the next kill interrupts work. Returns false if they are not within
    /// [`PROGRESS`].
    pub async fn progresses(&self) -> bool {
        let start = Instant::now();
        let before = self.calls.load(Ordering::SeqCst);
        let enough = || self.calls.load(Ordering::SeqCst) >= before + 3 * CALLERS;
        while !enough() && self.callers.iter().all(|caller| !caller.is_finished()) {
            if start.elapsed() > PROGRESS {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        true
    }

    /// Lets every caller finish its current call.
    pub async fn finish(self) -> AnswerTotals {
        self.is_over.store(true, Ordering::SeqCst);
        let mut all = AnswerTotals::default();
        for caller in self.callers {
            let totals = caller.await.unwrap();
            all.allowed += totals.allowed;
            all.denied += totals.denied;
            all.retries += totals.retries;
            all.tokens += totals.tokens;
            all.debt += totals.debt;
        }
        all
    }
}

struct Caller {
    port: Arc<dyn RequestTarget>,
    random: Random,
    totals: AnswerTotals,
    is_over: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
}

impl Caller {
    async fn run(mut self) -> AnswerTotals {
        while !self.is_over.load(Ordering::SeqCst) {
            self.call().await;
            self.calls.fetch_add(1, Ordering::SeqCst);
        }
        self.totals
    }

    /// One call from reserve to complete, with occasional duplicates of both.
    async fn call(&mut self) {
        let (lease, tokens) = (lease(), self.random.between(1, 20));
        let word = self.reserve(lease, tokens).await;
        if self.random.chance(30) {
            assert_eq!(self.reserve(lease, tokens).await, word, "{lease} has two answers");
        }
        match word {
            AnswerKind::Allowed => self.totals.allowed += 1,
            AnswerKind::Denied => {
                self.totals.denied += 1;
                tokio::time::sleep(Duration::from_millis(5)).await;
                return;
            }
            other => panic!("{lease} was answered {other:?}"),
        }
        let (actual, stays, debt) = match self.random.below(3) {
            0 => (tokens / 2, tokens / 2, 0),
            1 => (tokens, tokens, 0),
            _ => (tokens + TOKENS, tokens, u128::from(TOKENS)),
        };
        self.totals.tokens += stays;
        self.totals.debt += debt;
        for _ in 0..self.random.between(1, 2) {
            assert_eq!(self.complete(lease, actual).await, AnswerKind::Reconciled, "{lease} was forgotten");
        }
        assert_eq!(self.reserve(lease, tokens).await, AnswerKind::Ended, "{lease} came back");
    }

    async fn reserve(&mut self, lease: LeaseId, tokens: u64) -> AnswerKind {
        loop {
            if let Some(word) = self.port.reserve(lease, tokens).await {
                return word;
            }
            self.totals.retries += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn complete(&mut self, lease: LeaseId, tokens: u64) -> AnswerKind {
        loop {
            if let Some(word) = self.port.complete(lease, tokens).await {
                return word;
            }
            self.totals.retries += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Checks the ledger against the answers.
pub async fn check(limits: &TigerBeetleLimits, registry: &TestRegistry, totals: &AnswerTotals) {
    assert!(totals.allowed > 3 * CALLERS, "too little happened: {totals:?}");
    for name in ["slots", "tokens"] {
        let enforced = limits.apply_definition(namespace(), key(name)).await.unwrap();
        assert_eq!(enforced, EnforcedStatus::InForce);
    }
    let usage = async |name: &str| {
        let info = registry.get(&namespace(), &key(name)).unwrap();
        limits.usage(namespace(), info).await.unwrap()
    };
    let (slots, tokens) = (usage("slots").await, usage("tokens").await);
    assert_eq!((slots.reserved, slots.capacity), (0, CALLERS / 2), "a slot is lost");
    assert_eq!(tokens.capacity, TOKENS);
    assert_eq!(tokens.reserved, totals.tokens, "what was allowed was not taken once");
    assert_eq!(tokens.debt, totals.debt, "debt was doubled or lost");
}
