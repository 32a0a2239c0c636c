//! Callers that do not give up, and what they were told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use earmark_admission::{
    Answer, BackendError, LimitStanding, Limits, LimitsComplete, LimitsReserve, Refusal, ReserveAnswer,
};
use earmark_core::{Definition, Kind, LeaseId, Overage};
use earmark_tigerbeetle::TigerBeetleLimits;
use tokio::task::JoinHandle;

use crate::support::random::Random;
use crate::support::registry::TestRegistry;
use crate::support::{amounts, definition, key, lease, namespace};

const CALLERS: u64 = 12;
/// More than the limit on tokens has, so that usage beyond what was reserved never fits and is always debt.
const TOKENS: u64 = 10_000_000;

/// What was answered, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    Allowed,
    Denied,
    Ended,
    Reconciled,
    Unreconciled,
    Other,
}

/// Whoever can be asked.
pub trait Port: Send + Sync + 'static {
    /// Takes a slot and so many tokens.
    fn reserve(&self, lease: LeaseId, tokens: u64) -> Answer<'_, Option<Word>>;

    /// Says that so many tokens were used.
    fn complete(&self, lease: LeaseId, tokens: u64) -> Answer<'_, Option<Word>>;
}

pub fn registry() -> Arc<TestRegistry> {
    let registry = TestRegistry::default();
    let tokens = definition("tokens", Kind::Rolling { window_seconds: 3_600 }, TOKENS);
    registry.put(&namespace(), Definition { overage: Overage::Debt, ..tokens });
    registry
        .put(&namespace(), definition("slots", Kind::Concurrency { timeout_seconds: 3_600 }, CALLERS / 2));
    Arc::new(registry)
}

/// Limits in this process.
pub struct Direct(pub Arc<TigerBeetleLimits>);

impl Port for Direct {
    fn reserve(&self, lease: LeaseId, tokens: u64) -> Answer<'_, Option<Word>> {
        Box::pin(async move { reserve(&self.0, lease, tokens).await.ok() })
    }

    fn complete(&self, lease: LeaseId, tokens: u64) -> Answer<'_, Option<Word>> {
        Box::pin(async move { complete(&self.0, lease, tokens).await.ok() })
    }
}

pub async fn reserve(limits: &TigerBeetleLimits, lease: LeaseId, tokens: u64) -> Result<Word, BackendError> {
    let requirements = amounts(&[("slots", 1), ("tokens", tokens)]);
    let request = LimitsReserve { namespace: namespace(), lease, requirements };
    limits.reserve(vec![request]).await.remove(0).map(|answer| match answer {
        ReserveAnswer::Allowed { .. } => Word::Allowed,
        ReserveAnswer::Denied { .. } => Word::Denied,
        ReserveAnswer::Refused(Refusal::LeaseExpired) => Word::Ended,
        ReserveAnswer::Refused(_) => Word::Other,
    })
}

pub async fn complete(limits: &TigerBeetleLimits, lease: LeaseId, tokens: u64) -> Result<Word, BackendError> {
    let request = LimitsComplete { namespace: namespace(), lease, actuals: amounts(&[("tokens", tokens)]) };
    limits.complete(vec![request]).await.remove(0).map(|answer| match answer.reconciled {
        true => Word::Reconciled,
        false => Word::Unreconciled,
    })
}

/// What callers were told, added up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Told {
    pub allowed: u64,
    pub denied: u64,
    /// How often a caller had to ask again.
    pub asked_again: u64,
    /// What stays reserved: what was reserved, or less where less was used.
    tokens: u64,
    debt: u128,
}

pub struct Load {
    callers: Vec<JoinHandle<Told>>,
    is_over: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
}

impl Load {
    pub fn start(port: Arc<dyn Port>) -> Load {
        let is_over = Arc::new(AtomicBool::new(false));
        let calls = Arc::new(AtomicU64::new(0));
        let callers = (0..CALLERS)
            .map(|number| {
                let caller = Caller {
                    port: Arc::clone(&port),
                    random: Random::new(number),
                    told: Told::default(),
                    is_over: Arc::clone(&is_over),
                    calls: Arc::clone(&calls),
                };
                tokio::spawn(caller.run())
            })
            .collect();
        Load { callers, is_over, calls }
    }

    /// Waits until calls are answered again, so that the next kill finds something under way.
    pub async fn goes_on(&self) {
        let before = self.calls.load(Ordering::SeqCst);
        let enough = || self.calls.load(Ordering::SeqCst) >= before + 3 * CALLERS;
        while !enough() && self.callers.iter().all(|caller| !caller.is_finished()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Lets every caller end the call it is at.
    pub async fn finish(self) -> Told {
        self.is_over.store(true, Ordering::SeqCst);
        let mut all = Told::default();
        for caller in self.callers {
            let told = caller.await.unwrap();
            all.allowed += told.allowed;
            all.denied += told.denied;
            all.asked_again += told.asked_again;
            all.tokens += told.tokens;
            all.debt += told.debt;
        }
        all
    }
}

struct Caller {
    port: Arc<dyn Port>,
    random: Random,
    told: Told,
    is_over: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
}

impl Caller {
    async fn run(mut self) -> Told {
        while !self.is_over.load(Ordering::SeqCst) {
            self.call().await;
            self.calls.fetch_add(1, Ordering::SeqCst);
        }
        self.told
    }

    /// One call, from its reserve to its complete, with copies of both now and then.
    async fn call(&mut self) {
        let (lease, tokens) = (lease(), self.random.between(1, 20));
        let word = self.reserve(lease, tokens).await;
        if self.random.chance(30) {
            assert_eq!(self.reserve(lease, tokens).await, word, "{lease} has two answers");
        }
        match word {
            Word::Allowed => self.told.allowed += 1,
            Word::Denied => {
                self.told.denied += 1;
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
        self.told.tokens += stays;
        self.told.debt += debt;
        for _ in 0..self.random.between(1, 2) {
            assert_eq!(self.complete(lease, actual).await, Word::Reconciled, "{lease} was forgotten");
        }
        assert_eq!(self.reserve(lease, tokens).await, Word::Ended, "{lease} came back");
    }

    async fn reserve(&mut self, lease: LeaseId, tokens: u64) -> Word {
        loop {
            if let Some(word) = self.port.reserve(lease, tokens).await {
                return word;
            }
            self.told.asked_again += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn complete(&mut self, lease: LeaseId, tokens: u64) -> Word {
        loop {
            if let Some(word) = self.port.complete(lease, tokens).await {
                return word;
            }
            self.told.asked_again += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// What the ledger has is what callers were told.
pub async fn check(limits: &TigerBeetleLimits, registry: &TestRegistry, told: &Told) {
    assert!(told.allowed > 3 * CALLERS, "too little happened: {told:?}");
    for name in ["slots", "tokens"] {
        let standing = limits.changed(namespace(), key(name)).await.unwrap();
        assert_eq!(standing, LimitStanding::InForce);
    }
    let usage = async |name: &str| {
        let info = registry.get(&namespace(), &key(name)).unwrap();
        limits.usage(namespace(), info).await.unwrap()
    };
    let (slots, tokens) = (usage("slots").await, usage("tokens").await);
    assert_eq!((slots.reserved, slots.capacity), (0, CALLERS / 2), "a slot is lost");
    assert_eq!(tokens.capacity, TOKENS);
    assert_eq!(tokens.reserved, told.tokens, "what was allowed was not taken once");
    assert_eq!(tokens.debt, told.debt, "debt was doubled or lost");
}
