//! The workload of all benchmarks: admit one call against four limits at once.

use earmark_core::*;

const MODELS: u64 = 20;
const TENANTS: u64 = 1_000;
const START_MS: u64 = 1_700_000_000_000;

/// A capacity that no benchmark exhausts.
pub const ENDLESS: u64 = 1 << 60;

/// A Book with 20 models x (requests, tokens, concurrency) and 1,000 tenants, and a stream of calls.
pub struct Workload {
    pub book: Book,
    pub now: UnixMs,
    /// Calls in one simulated millisecond.
    calls_per_ms: u64,
    calls: u64,
    random: u64,
    parts: [Part; 4],
}

/// An admitted call, with the data to complete it.
#[derive(Clone, Copy)]
pub struct Call {
    pub lease: LeaseId,
    limits: [LimitId; 4],
}

pub const TOKENS: u64 = 1_500;

impl Workload {
    /// `tokens_per_minute` limits every model; all other limits are endless.
    pub fn new(tokens_per_minute: u64, calls_per_ms: u64) -> Workload {
        let mut book = Book::new(Config::default(), 0x5eed);
        let now = UnixMs::new(START_MS);
        let minute = Kind::Rolling { window_seconds: 60 };
        for model in 0..MODELS {
            put(&mut book, now, &format!("global:llm:openai:model-{model}:rpm"), minute.clone(), ENDLESS);
            put(&mut book, now, &format!("global:llm:openai:model-{model}:tpm"), minute.clone(), tokens_per_minute);
            let slots = Kind::Concurrency { timeout_seconds: 600 };
            put(&mut book, now, &format!("global:llm:openai:model-{model}:concurrency"), slots, ENDLESS);
        }
        for tenant in 0..TENANTS {
            let day = Kind::Rolling { window_seconds: 86_400 };
            put(&mut book, now, &format!("tenant:{tenant}:llm:daily_tokens"), day, ENDLESS);
        }
        let parts = [1, TOKENS, 1, TOKENS].map(|amount| Part { limit: LimitRef::Id(LimitId::default()), amount });
        Workload { book, now, calls_per_ms, calls: 0, random: 1, parts }
    }

    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 31)
    }

    /// The next call, with its lease and limits. Advances the clock.
    pub fn next_call(&mut self) -> Call {
        self.calls += 1;
        if self.calls.is_multiple_of(self.calls_per_ms) {
            self.now = self.now.plus_ms(1);
        }
        let random = self.random();
        let model = (random % MODELS) as u32 * 3;
        let tenant = (MODELS * 3 + (random >> 32) % TENANTS) as u32;
        let lease = LeaseId::from_parts(self.now, (u128::from(random) << 16) | u128::from(self.calls & 0xffff));
        Call { lease, limits: [model, model + 1, model + 2, tenant].map(|slot| LimitId { slot, generation: 0 }) }
    }

    pub fn reserve(&mut self, call: &Call) -> Outcome {
        for (part, limit) in self.parts.iter_mut().zip(call.limits) {
            part.limit = LimitRef::Id(limit);
        }
        self.parts[1].amount = TOKENS;
        self.parts[3].amount = TOKENS;
        self.book.apply(
            self.now,
            Command::Reserve(Reserve {
                namespace: NamespaceId::DEFAULT,
                lease: call.lease,
                job: None,
                call: None,
                by_gateway: false,
                requirements: &self.parts,
            }),
        )
    }

    pub fn reserve_all(&mut self, calls: &[Call], outcomes: &mut Vec<Outcome>) {
        let amounts = [1, TOKENS, 1, TOKENS];
        let parts: Vec<[Part; 4]> = calls
            .iter()
            .map(|call| std::array::from_fn(|i| Part { limit: LimitRef::Id(call.limits[i]), amount: amounts[i] }))
            .collect();
        let commands: Vec<Command<'_>> = calls
            .iter()
            .zip(&parts)
            .map(|(call, requirements)| {
                let namespace = NamespaceId::DEFAULT;
                Command::Reserve(Reserve {
                    namespace,
                    lease: call.lease,
                    job: None,
                    call: None,
                    by_gateway: false,
                    requirements,
                })
            })
            .collect();
        self.book.apply_all(self.now, &commands, outcomes);
    }

    /// Completes a call with a third of its tokens.
    pub fn complete(&mut self, call: &Call) -> Outcome {
        self.parts[1] = Part { limit: LimitRef::Id(call.limits[1]), amount: TOKENS / 3 };
        self.parts[3] = Part { limit: LimitRef::Id(call.limits[3]), amount: TOKENS / 3 };
        let actuals = [self.parts[1].clone(), self.parts[3].clone()];
        self.book.apply(
            self.now,
            Command::Complete(Complete {
                namespace: NamespaceId::DEFAULT,
                lease: call.lease,
                claim: earmark_core::LeaseClaim::default(),
                actuals: &actuals,
                labels: &earmark_core::SettleLabels::NONE,
            }),
        )
    }

    /// Takes as much again for a call and renews it; panics if that is denied.
    pub fn extend(&mut self, call: &Call, number: u32) {
        let amounts = [1, TOKENS, 1, TOKENS];
        for ((part, limit), amount) in self.parts.iter_mut().zip(call.limits).zip(amounts) {
            *part = Part { limit: LimitRef::Id(limit), amount };
        }
        let outcome = self.book.apply(
            self.now,
            Command::Extend(Extend {
                namespace: NamespaceId::DEFAULT,
                lease: call.lease,
                number,
                add: &self.parts,
                used: &[],
                claim: earmark_core::LeaseClaim::default(),
                renew: true,
                step: ExtendStep::Whole,
            }),
        );
        assert!(matches!(outcome, Outcome::Extend(ExtendOutcome::Extended(_))), "{outcome:?}");
    }

    /// Admits one call; panics if it is denied.
    pub fn admit(&mut self) -> Call {
        let call = self.next_call();
        let outcome = self.reserve(&call);
        assert!(matches!(outcome, Outcome::Reserve(ReserveOutcome::Created { .. })), "{outcome:?}");
        call
    }
}

pub fn put(book: &mut Book, now: UnixMs, key: &str, kind: Kind, capacity: u64) -> LimitId {
    let definition = Definition {
        key: key.parse().expect("a valid key"),
        kind,
        capacity,
        unit: "tokens".into(),
        description: String::new(),
        overage: Overage::Debt,
        shared: false,
        enforce: true,
    };
    let command = PutLimit { namespace: NamespaceId::DEFAULT, definition: &definition, expected_revision: None };
    match book.apply(now, Command::PutLimit(command)) {
        Outcome::Limit(LimitOutcome::Changed { limit, .. }) => limit,
        other => panic!("{key}: {other:?}"),
    }
}
