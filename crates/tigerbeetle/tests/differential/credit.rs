//! Credit in the differential test: a Book that keeps limits and credit, beside a Book that keeps credit while limits
//! are on the ledger. Rounds of reserves, extensions and completes go to both. At the end of a round all leases have
//! run out, and their settlements and the balances are equal.

use std::sync::Arc;
use std::time::{Duration, Instant};

use earmark_admission::{
    AccountPath, Amount, Backend, BookCredits, CompleteAnswer, CompleteRequest, Composed, EntryKind, EntryQuery,
    ExtendRequest, LocalBook, LocalOptions, PutLimitRequest, ReserveRequest, WriteAnswer, WriteRequest,
};
use earmark_core::{
    AccountName, Actor, AssetName, ClientId, CreditTerms, Definition, ExternalParts, GrantTerms, Kind, LeaseClaim,
    LeaseId, OnTimeout, Operation, Overage, Overdraft, Principal, SettleLabels, SettleReason, UnixMs, VaultName,
    WriteId,
};
use earmark_tigerbeetle::{TigerBeetleLimits, TigerBeetleOptions};

use crate::PATIENCE;
use crate::compare;
use crate::support::ledger::Ledger;
use crate::support::random::Random;
use crate::support::{amounts, definition, key, namespace, wall_ms};
use crate::tally::Tally;

/// The timeout of slots and holds.
const TIMEOUT_SECONDS: u32 = 5;
/// A round whose operations take longer is not compared: a lease may have run out on one side alone.
const ROUND: Duration = Duration::from_millis(3_000);
const STREAMS: u64 = 12;
const ROUNDS: u64 = 3;
const LEASES: usize = 8;
const OPERATIONS: u64 = 40;
/// The difference between two ends that were decided one after the other.
const NEAR_MS: u64 = 3_000;

/// Cases that the streams of some seeds must meet.
pub const NEEDED: [&str; 10] = [
    "allowed",
    "denied",
    "short of credit",
    "extended",
    "extension denied",
    "extension short of credit",
    "completed",
    "completed late",
    "extension after a timeout",
    "settled by a timeout",
];

/// A settlement in the history: the lease, the limit, what was paid, owed and not collected, and why.
type Settled = (LeaseId, String, [u64; 3], SettleReason);

struct Asked {
    lease: LeaseId,
    names: Vec<String>,
    last: Option<ExtendRequest>,
    is_completed: bool,
}

struct Stream {
    number: u64,
    /// The ledger keeps all data, so a repeated seed needs new names.
    fresh: u32,
    random: Random,
    book: Arc<LocalBook>,
    composed: Arc<Composed<earmark_admission::Local>>,
    tally: Tally,
}

pub fn decide_alike(ledger: &Ledger, seed: u64) -> Tally {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let tally = runtime.unwrap().block_on(run(ledger, seed));
    println!("EARMARK_SEED={seed}, credit: {tally}");
    tally
}

async fn run(ledger: &Ledger, seed: u64) -> Tally {
    let book = Arc::new(LocalBook::open(LocalOptions::default()).await.unwrap());
    let registry = LocalBook::open(LocalOptions::default()).await.unwrap();
    let options = TigerBeetleOptions { deadline: PATIENCE, ..ledger.options() };
    let limits = TigerBeetleLimits::open(options, Arc::new(registry.clone())).await.unwrap();
    let credits = Arc::new(BookCredits::new(registry.clone()));
    let external = ExternalParts { limits: true, credit: false };
    let composed = Arc::new(Composed::new(registry, Arc::new(limits), credits, external));
    composed.start().await.unwrap();
    let fresh = rand::random();
    let streams: Vec<_> = (0..STREAMS)
        .map(|number| {
            let random = Random::new(seed.wrapping_mul(1_000).wrapping_add(number));
            let (book, composed, tally) = (Arc::clone(&book), Arc::clone(&composed), Tally::default());
            tokio::spawn(Stream { number, fresh, random, book, composed, tally }.run())
        })
        .collect();
    let mut tally = Tally::default();
    for stream in streams {
        tally.add(&stream.await.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic())));
    }
    tally
}

fn usd() -> AssetName {
    AssetName::new("usd").unwrap()
}

fn account(name: &str) -> AccountName {
    AccountName::new(name).unwrap()
}

impl Stream {
    fn both(&self) -> [Arc<dyn Backend>; 2] {
        [Arc::clone(&self.book) as _, Arc::clone(&self.composed) as _]
    }

    fn named(&self, name: &str) -> String {
        format!("{name}.{}.{}", self.fresh, self.number)
    }

    fn path(&self, name: &str) -> AccountPath {
        let (vault, account) = (VaultName::new(VaultName::MAIN).unwrap(), account(&self.named(name)));
        AccountPath { namespace: namespace(), vault, account }
    }

    /// Every other stream has little credit, the others little room, because the two backends judge room and credit in
    /// different orders.
    fn is_poor(&self) -> bool {
        self.number.is_multiple_of(2)
    }

    /// The highest usage that an extension reports. Timeouts at the same moment that cost more than their holds take the
    /// last credit of an account in any order, so the poor report little.
    fn used_max(&self) -> u64 {
        if self.is_poor() { 1 } else { 50 }
    }

    async fn open(&self) {
        let is_poor = self.is_poor();
        let [payer, revenue] = ["payer", "revenue"].map(|name| account(&self.named(name)));
        let open = |account: &AccountName| Operation::OpenAccount {
            account: account.clone(),
            overdraft: Overdraft::Deny,
            plan: None,
        };
        let amount = if is_poor { 400 } else { 100_000 };
        let memo = String::new();
        let issue = Operation::Issue { account: payer.clone(), asset: usd(), amount, memo, terms: GrantTerms::PLAIN };
        let (slots, tokens) = if is_poor { (1_000, 1_000_000) } else { (6, 400) };
        let credit = |name: &str, on_timeout, overage| {
            let (vault, account, revenue) = (VaultName::new(VaultName::MAIN).unwrap(), payer.clone(), revenue.clone());
            let terms =
                CreditTerms { timeout_seconds: TIMEOUT_SECONDS, vault, account, asset: usd(), revenue, on_timeout };
            Definition { overage, ..definition(&self.named(name), Kind::Credit(terms), 0) }
        };
        let limits = [
            definition(&self.named("slots"), Kind::Concurrency { timeout_seconds: TIMEOUT_SECONDS }, slots),
            definition(&self.named("tokens"), Kind::Rolling { window_seconds: 900 }, tokens),
            credit("release", OnTimeout::Release, Overage::Debt),
            credit("charge", OnTimeout::Charge, Overage::Deny),
        ];
        for backend in self.both() {
            let request = WriteRequest {
                namespace: namespace(),
                vault: Some(VaultName::new(VaultName::MAIN).unwrap()),
                id: WriteId::Sequence { client: ClientId::new(&self.named("writer")).unwrap(), sequence: 1 },
                operations: vec![open(&payer), open(&revenue), issue.clone()],
                actor: Actor::new("system:test").unwrap(),
            };
            let written = backend.write(Principal::System, request).await.unwrap();
            assert!(matches!(written, WriteAnswer::Committed(_)), "{written:?}");
            for definition in limits.clone() {
                let request = PutLimitRequest { namespace: namespace(), definition, expected_revision: None };
                backend.put_limit(Principal::System, request).await.unwrap();
            }
        }
    }

    async fn run(mut self) -> Tally {
        self.open().await;
        for _ in 0..ROUNDS {
            let started = Instant::now();
            let mut leases = Vec::new();
            for _ in 0..OPERATIONS {
                if leases.len() < LEASES && self.random.chance(40) {
                    leases.extend(self.reserve().await);
                } else if !leases.is_empty() {
                    let place = self.random.index(leases.len());
                    if self.random.chance(20) {
                        self.complete(&mut leases[place], "completed").await;
                    } else {
                        self.extend(&mut leases[place]).await;
                    }
                }
                self.tally.operations += 1;
                if started.elapsed() > ROUND {
                    self.tally.disturbed += 1;
                    return self.tally;
                }
            }
            tokio::time::sleep(Duration::from_millis(u64::from(TIMEOUT_SECONDS) * 1_000 + 2_000)).await;
            self.settled().await;
            for asked in &mut leases {
                let is_timeout = !asked.is_completed;
                self.extend(asked).await;
                if is_timeout {
                    self.tally.met("extension after a timeout");
                    self.complete(asked, "completed late").await;
                }
            }
            self.settled().await;
        }
        self.tally
    }

    fn parts(&mut self, percent: u64) -> Vec<Amount> {
        let mut names = ["slots", "tokens", "release", "charge"];
        self.random.shuffle(&mut names);
        let mut parts = Vec::new();
        for name in names {
            if self.random.chance(percent) {
                let amount = if name == "slots" { 1 } else { self.random.between(1, 40) };
                parts.push((self.named(name), amount));
            }
        }
        let parts: Vec<(&str, u64)> = parts.iter().map(|(name, amount)| (name.as_str(), *amount)).collect();
        amounts(&parts)
    }

    async fn reserve(&mut self) -> Option<Asked> {
        let requirements = self.parts(60);
        let lease = LeaseId::from_parts(UnixMs::new(wall_ms()), rand::random());
        if requirements.is_empty() {
            return None;
        }
        let names = requirements.iter().map(|part| part.key.to_string()).collect();
        let request =
            ReserveRequest { namespace: namespace(), lease, job: None, call: None, by_gateway: false, requirements };
        let [book, composed] = self.both();
        for is_first in [true, false] {
            let one = book.reserve(Principal::System, vec![request.clone()]).await.remove(0).unwrap();
            let other = composed.reserve(Principal::System, vec![request.clone()]).await.remove(0).unwrap();
            let met = compare::reserve(&one, &other, is_first, NEAR_MS);
            let met = met.unwrap_or_else(|difference| panic!("{request:?}\n{difference}"));
            self.tally.met(met);
        }
        Some(Asked { lease, names, last: None, is_completed: false })
    }

    async fn extend(&mut self, asked: &mut Asked) {
        let (request, is_new) = match &asked.last {
            Some(last) if self.random.chance(20) => (last.clone(), false),
            last => {
                let number = last.as_ref().map_or(1, |last| last.number + 1);
                let (add, used_max) = (self.parts(25), self.used_max());
                let used = asked.names.iter().filter(|_| self.random.chance(40)).cloned().collect::<Vec<_>>();
                let used =
                    used.into_iter().map(|name| Amount { key: key(&name), amount: self.random.between(0, used_max) });
                let used = used.collect();
                let (lease, claim, renew) = (asked.lease, LeaseClaim::default(), self.random.chance(60));
                (ExtendRequest { namespace: namespace(), lease, number, add, used, claim, renew }, true)
            }
        };
        let [book, composed] = self.both();
        let one = book.extend(Principal::System, vec![request.clone()]).await.remove(0).unwrap();
        let other = composed.extend(Principal::System, vec![request.clone()]).await.remove(0).unwrap();
        let met = compare::extend(&one, &other, is_new, NEAR_MS);
        let met = met.unwrap_or_else(|difference| panic!("{request:?}\n{difference}"));
        self.tally.met(met);
        // A number that was used stays in use, whatever its answer.
        if is_new && matches!(met, "extended" | "extension denied" | "extension short of credit") {
            if met == "extended" {
                let added = request.add.iter().map(|part| part.key.to_string());
                asked.names.extend(added.filter(|name| !asked.names.contains(name)).collect::<Vec<_>>());
            }
            asked.last = Some(request);
        }
    }

    async fn complete(&mut self, asked: &mut Asked, what: &'static str) {
        let names = asked.names.iter().filter(|_| self.random.chance(70)).cloned().collect::<Vec<_>>();
        let actual = |name: &String| Amount { key: key(name), amount: self.random.between(0, 60) };
        let actuals = names.iter().map(actual).collect();
        let request = CompleteRequest {
            namespace: namespace(),
            lease: asked.lease,
            job: None,
            claim: LeaseClaim::default(),
            actuals,
            labels: SettleLabels::NONE,
        };
        let [book, composed] = self.both();
        for _ in 0..2 {
            let one = book.complete(Principal::System, vec![request.clone()]).await.remove(0).unwrap();
            let other = composed.complete(Principal::System, vec![request.clone()]).await.remove(0).unwrap();
            let told = |answer: &CompleteAnswer| {
                let CompleteAnswer { reconciled, raised, credit_paid, credit_debt, credit_uncollected, .. } = answer;
                let CompleteAnswer { overage_reserved, overage_debt, overage_dropped, ignored, .. } = answer;
                let credit = (*credit_paid, *credit_debt, *credit_uncollected);
                let overage = (*overage_reserved, *overage_debt, *overage_dropped);
                (*reconciled, raised.clone(), credit, overage, ignored.clone())
            };
            // Messages about a lease that held nothing depend on the cache.
            let is_same = told(&one) == told(&other) || !one.reconciled && !other.reconciled;
            assert!(is_same, "{request:?}\nthe Book: {one:?}\nTigerBeetle: {other:?}");
        }
        asked.is_completed = true;
        self.tally.met(what);
    }

    /// Waits until the settlements of both sides are written, and compares them with the balances.
    async fn settled(&mut self) {
        let [book, composed] = self.both();
        let started = Instant::now();
        let (mut one, mut other) = (self.sums(&*book).await, self.sums(&*composed).await);
        while one != other || one.0 != 0 {
            assert!(started.elapsed() < PATIENCE, "the Book: {one:?}\nTigerBeetle: {other:?}");
            // Log time settles with the next command.
            self.nudge().await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            (one, other) = (self.sums(&*book).await, self.sums(&*composed).await);
        }
        if one.2.iter().any(|(.., reason)| *reason == SettleReason::Timeout) {
            self.tally.met("settled by a timeout");
        }
    }

    /// A command for both Books.
    async fn nudge(&self) {
        for backend in self.both() {
            let request = WriteRequest {
                namespace: namespace(),
                vault: Some(VaultName::new(VaultName::MAIN).unwrap()),
                id: WriteId::Sequence { client: ClientId::new(&self.named("nudge")).unwrap(), sequence: 9 },
                operations: Vec::new(),
                actor: Actor::new("system:test").unwrap(),
            };
            // Refused for its sequence, which changes nothing.
            _ = backend.write(Principal::System, request).await.unwrap();
        }
    }

    /// The held credit of the payer, the available credit of payer and revenue, and all settlements.
    async fn sums(&self, backend: &dyn Backend) -> (i128, [i128; 2], Vec<Settled>) {
        let (mut held, mut available) = (0, [0, 0]);
        for (place, name) in ["payer", "revenue"].into_iter().enumerate() {
            for balance in backend.balances(self.path(name)).await.unwrap() {
                held += balance.held;
                available[place] += balance.available;
            }
        }
        let (mut settled, mut after) = (Vec::new(), 0);
        loop {
            let query = EntryQuery::oldest_first(after, 500);
            let page = backend.entries(self.path("payer"), query).await.unwrap();
            settled.extend(page.entries.into_iter().filter_map(|entry| match entry.what {
                EntryKind::Settle { hold, paid, debt, uncollected, reason, .. } => {
                    Some((hold.lease, hold.limit.to_string(), [paid, debt, uncollected], reason))
                }
                _ => None,
            }));
            match page.next {
                Some(next) => after = next,
                None => break,
            }
        }
        settled.sort_unstable_by(|one, other| (one.0, &one.1, one.2).cmp(&(other.0, &other.1, other.2)));
        (held, available, settled)
    }
}
