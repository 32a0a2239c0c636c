//! What credit costs. `cargo bench -p earmark-core --bench credit`

#![allow(clippy::expect_used, clippy::panic, clippy::arithmetic_side_effects, reason = "a benchmark may")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(missing_docs, unreachable_pub, dead_code, reason = "a benchmark is not read from outside")]

mod workload;

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use earmark_core::*;
use workload::{ENDLESS, put};

const ACCOUNTS: [u32; 2] = [1_000, 1_000_000];
/// 1,000 calls in a millisecond: a million a second.
const CALLS_PER_MS: u64 = 1_000;

/// A Book with so many accounts, each with a limit of kind `credit`, and three other limits.
struct Bank {
    book: Book,
    now: UnixMs,
    calls: u64,
    random: u64,
    accounts: u32,
    names: Vec<AccountName>,
    limits: Vec<LimitId>,
    shared: [LimitId; 3],
    write: Write,
}

fn account(number: u32) -> AccountName {
    AccountName::new(&format!("tenant:{number}:prepaid")).expect("a valid name")
}

fn asset() -> AssetName {
    AssetName::new("usd_micro").expect("a valid name")
}

impl Bank {
    fn new(accounts: u32) -> Bank {
        let write = Write {
            namespace: NamespaceId::DEFAULT,
            vault: Some(VaultName::new("main").expect("a valid name")),
            client: ClientId::new("billing").expect("a valid name"),
            sequence: 0,
            operations: Vec::new(),
            tx_id: TxId(0),
            log_index: 0,
            actor: Actor::new("system:bench").expect("a valid actor"),
        };
        let now = UnixMs::new(1_700_000_000_000);
        let mut book = Book::new(Config::default(), 0x5eed);
        let minute = Kind::Rolling { window_seconds: 60 };
        let slots = Kind::Concurrency { timeout_seconds: 600 };
        let shared = [
            put(&mut book, now, "rpm", minute.clone(), ENDLESS),
            put(&mut book, now, "tpm", minute, ENDLESS),
            put(&mut book, now, "slots", slots, ENDLESS),
        ];
        let names = (0..accounts).map(account).collect();
        let (calls, random, limits) = (0, 1, Vec::new());
        let mut bank = Bank { book, now, calls, random, accounts, names, limits, shared, write };
        bank.fill();
        bank
    }

    fn fill(&mut self) {
        for first in (0..self.accounts).step_by(100) {
            let some = first..(first + 100).min(self.accounts);
            let opens = some.flat_map(|number| {
                let account = self.names[number as usize].clone();
                let issue = Operation::Issue {
                    account: account.clone(),
                    asset: asset(),
                    amount: 1 << 50,
                    memo: String::new(),
                };
                [Operation::OpenAccount { account, overdraft: Overdraft::Deny }, issue]
            });
            self.write.operations = opens.collect();
            self.commit();
        }
        for number in 0..self.accounts {
            let terms = CreditTerms {
                timeout_seconds: 600,
                vault: VaultName::new("main").expect("a valid name"),
                account: self.names[number as usize].clone(),
                asset: asset(),
                revenue: AccountName::new("revenue").expect("a valid name"),
            };
            let key = format!("tenant:{number}:credit");
            self.limits.push(put(&mut self.book, self.now, &key, Kind::Credit(terms), 0));
        }
        // Every limit finds its accounts once.
        for tenant in 0..self.accounts {
            self.pair(tenant, 0);
        }
    }

    fn commit(&mut self) {
        self.write.sequence += 1;
        self.write.log_index += 1;
        self.write.tx_id = TxId(self.write.sequence.into());
        let outcome = self.book.apply(self.now, Command::Write(&self.write));
        assert!(matches!(outcome, Outcome::Write(WriteOutcome::Committed(_))), "{outcome:?}");
        drop(self.book.drain_journal());
    }

    fn random(&mut self) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ (mixed >> 31)) % u64::from(self.accounts)) as u32
    }

    fn pass(&mut self) {
        self.calls += 1;
        if self.calls.is_multiple_of(CALLS_PER_MS) {
            self.now = self.now.plus_ms(1);
        }
    }

    /// One sequenced write of one transfer.
    fn transfer(&mut self) {
        self.pass();
        let (from, to) = (self.random(), self.random());
        let to = if from == to { (to + 1) % self.accounts } else { to };
        self.write.operations.clear();
        self.write.operations.push(Operation::Transfer {
            from: self.names[from as usize].clone(),
            to: self.names[to as usize].clone(),
            asset: asset(),
            amount: 5,
            memo: String::new(),
        });
        self.commit();
    }

    /// A reserve of one hold of credit and of the first `shared` limits, and its complete.
    fn pair(&mut self, tenant: u32, shared: usize) {
        self.pass();
        self.random();
        let lease =
            LeaseId::from_parts(self.now, (u128::from(self.random) << 16) | u128::from(self.calls & 0xffff));
        let part = |limit, amount| Part { limit: LimitRef::Id(limit), amount };
        let credit = self.limits[tenant as usize];
        let requirements = [
            part(self.shared[0], 1),
            part(self.shared[1], 1_500),
            part(self.shared[2], 1),
            part(credit, 900),
        ];
        let namespace = NamespaceId::DEFAULT;
        let wall = self.now;
        let requirements = &requirements[3 - shared..];
        let reserve = Reserve { namespace, lease, wall, requirements };
        let outcome = self.book.apply(self.now, Command::Reserve(reserve));
        assert!(matches!(outcome, Outcome::Reserve(ReserveOutcome::Created { .. })), "{outcome:?}");
        let actuals = &[part(credit, 300)];
        let outcome =
            self.book.apply(self.now, Command::Complete(Complete { namespace, lease, wall, actuals }));
        assert!(matches!(outcome, Outcome::Complete(CompleteOutcome::Completed(_))), "{outcome:?}");
        drop(self.book.drain_journal());
    }
}

/// An entry is consumed by every hold and by every settlement; a bench of pairs counts two.
fn benches(c: &mut Criterion) {
    let mut group = c.benchmark_group("credit");
    group.sample_size(10).measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1));
    for accounts in ACCOUNTS {
        let mut bank = Bank::new(accounts.min(LIMITS_MAX - 10));
        let mut measure = |name: &str, entries: u64, job: fn(&mut Bank)| {
            group.throughput(Throughput::Elements(entries));
            group.bench_function(format!("{name}, {accounts} accounts"), |b| {
                b.iter_custom(|rounds| {
                    let start = Instant::now();
                    (0..rounds).for_each(|_| job(&mut bank));
                    start.elapsed()
                });
            });
        };
        measure("sequenced write of one transfer", 1, Bank::transfer);
        measure("entries: hold and settle", 2, |bank| {
            let tenant = bank.random();
            bank.pair(tenant, 0);
        });
        measure("three limits and one hold, and its settle", 1, |bank| {
            let tenant = bank.random();
            bank.pair(tenant, 3);
        });
    }
    group.finish();
}

criterion_group!(credit, benches);
criterion_main!(credit);
