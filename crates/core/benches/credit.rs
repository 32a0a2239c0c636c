//! Cost of credit. Run with `cargo bench -p earmark-core --bench credit`.

#![allow(clippy::expect_used, clippy::panic, clippy::arithmetic_side_effects, reason = "a benchmark may")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(missing_docs, unreachable_pub, dead_code, reason = "a benchmark is not read from outside")]

mod workload;

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use earmark_core::*;
use workload::{ENDLESS, put};

/// Commands per batch.
const BATCH: usize = 64;
const ACCOUNTS: [u32; 2] = [1_000, 1_000_000];
/// Simulated load: one million calls per second.
const CALLS_PER_MS: u64 = 1_000;

/// A Book with accounts, a credit limit on each, and three other limits.
struct CreditWorkload {
    book: Book,
    now: UnixMs,
    calls: u64,
    random: u64,
    accounts: u32,
    names: Vec<AccountName>,
    limits: Vec<LimitId>,
    shared: [LimitId; 3],
    asset: AssetName,
    write: Write,
    writes: Vec<Write>,
    outcomes: Vec<Outcome>,
    /// Time spent in `apply`, without building the commands.
    spent: Duration,
}

fn account(number: u32) -> AccountName {
    AccountName::new(&format!("tenant:{number}:prepaid")).expect("a valid name")
}

fn asset() -> AssetName {
    AssetName::new("usd_micro").expect("a valid name")
}

impl CreditWorkload {
    fn new(accounts: u32) -> CreditWorkload {
        let write = Write {
            namespace: NamespaceId::DEFAULT,
            vault: Some(VaultName::new("main").expect("a valid name")),
            id: WriteId::Sequence { client: ClientId::new("billing").expect("a valid name"), sequence: 0 },
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
        let (asset, writes, outcomes, spent) = (asset(), Vec::new(), Vec::new(), Duration::ZERO);
        let mut workload = CreditWorkload {
            book,
            now,
            calls,
            random,
            accounts,
            names,
            limits,
            shared,
            asset,
            write,
            writes,
            outcomes,
            spent,
        };
        workload.fill();
        workload
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
                    terms: GrantTerms::PLAIN,
                };
                [Operation::OpenAccount { account, overdraft: Overdraft::Deny, plan: None }, issue]
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
                on_timeout: Default::default(),
            };
            let key = format!("tenant:{number}:credit");
            self.limits.push(put(&mut self.book, self.now, &key, Kind::Credit(terms), 0));
        }
        // Resolve the accounts of every limit once before measuring.
        let tenants: Vec<u32> = (0..self.accounts).collect();
        for some in tenants.chunks(BATCH) {
            self.pairs(0, some);
        }
    }

    fn next_sequence(&mut self) {
        if let WriteId::Sequence { sequence, .. } = &mut self.write.id {
            *sequence += 1;
        }
    }

    fn commit(&mut self) {
        self.next_sequence();
        self.write.log_index += 1;
        self.write.tx_id = TxId(self.write.log_index.into());
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

    /// One batch of sequenced writes with one transfer each.
    fn transfers(&mut self) {
        let mut writes = std::mem::take(&mut self.writes);
        writes.resize_with(BATCH, || self.write.clone());
        for write in &mut writes {
            self.pass();
            let (from, to) = (self.random(), self.random());
            let to = if from == to { (to + 1) % self.accounts } else { to };
            self.next_sequence();
            write.id = self.write.id.clone();
            write.operations.clear();
            write.operations.push(Operation::Transfer {
                from: self.names[from as usize].clone(),
                to: self.names[to as usize].clone(),
                asset: self.asset.clone(),
                amount: 5,
                memo: String::new(),
            });
        }
        let commands: Vec<Command<'_>> = writes.iter().map(Command::Write).collect();
        self.apply_all(&commands);
        self.writes = writes;
    }

    fn apply_all(&mut self, commands: &[Command<'_>]) {
        self.outcomes.clear();
        let start = Instant::now();
        self.book.apply_all(self.now, commands, &mut self.outcomes);
        let journal = self.book.drain_journal();
        self.spent += start.elapsed();
        drop(journal);
        for outcome in &self.outcomes {
            let is_fine = matches!(
                outcome,
                Outcome::Write(WriteOutcome::Committed(_))
                    | Outcome::Reserve(ReserveOutcome::Created { .. })
                    | Outcome::Complete(CompleteOutcome::Completed(_))
            );
            assert!(is_fine, "{outcome:?}");
        }
    }

    /// One batch of reserves on a credit limit and the first `shared` limits, and their completes.
    fn pairs(&mut self, shared: usize, tenants: &[u32]) {
        let part = |limit, amount| Part { limit: LimitRef::Id(limit), amount };
        let calls: Vec<(LeaseId, [Part; 4])> = tenants
            .iter()
            .map(|tenant| {
                self.pass();
                self.random();
                let random = (u128::from(self.random) << 16) | u128::from(self.calls & 0xffff);
                let [rpm, tpm, slots] = self.shared;
                let credit = part(self.limits[*tenant as usize], 900);
                (LeaseId::from_parts(self.now, random), [part(rpm, 1), part(tpm, 1_500), part(slots, 1), credit])
            })
            .collect();
        let namespace = NamespaceId::DEFAULT;
        let reserves = calls.iter().map(|(lease, parts)| {
            let requirements = &parts[3 - shared..];
            Command::Reserve(Reserve {
                namespace,
                lease: *lease,
                job: None,
                call: None,
                by_gateway: false,
                requirements,
            })
        });
        self.apply_all(&reserves.collect::<Vec<_>>());
        let actuals: Vec<[Part; 1]> =
            calls.iter().map(|(_, parts)| [Part { amount: 300, ..parts[3].clone() }]).collect();
        let completes = calls.iter().zip(&actuals).map(|((lease, _), actuals)| {
            Command::Complete(Complete {
                namespace,
                lease: *lease,
                claim: earmark_core::LeaseClaim::default(),
                actuals,
                labels: &earmark_core::SettleLabels::NONE,
            })
        });
        self.apply_all(&completes.collect::<Vec<_>>());
    }

    fn any_tenants(&mut self) -> Vec<u32> {
        (0..BATCH).map(|_| self.random()).collect()
    }
}

/// A hold and a settlement are one entry each, so a pair counts as two.
fn benches(c: &mut Criterion) {
    let mut group = c.benchmark_group("credit");
    group.sample_size(10).measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1));
    for accounts in ACCOUNTS {
        let mut workload = CreditWorkload::new(accounts.min(LIMITS_MAX - 10));
        let mut measure = |name: &str, entries: u64, job: fn(&mut CreditWorkload)| {
            group.throughput(Throughput::Elements(entries * BATCH as u64));
            group.bench_function(format!("{name}, {accounts} accounts"), |b| {
                b.iter_custom(|rounds| {
                    workload.spent = Duration::ZERO;
                    (0..rounds).for_each(|_| job(&mut workload));
                    workload.spent
                });
            });
        };
        measure("sequenced writes of one transfer", 1, CreditWorkload::transfers);
        measure("entries: hold and settle", 2, |workload| {
            let tenants = workload.any_tenants();
            workload.pairs(0, &tenants);
        });
        measure("three limits and one hold, and its settle", 1, |workload| {
            let tenants = workload.any_tenants();
            workload.pairs(3, &tenants);
        });
    }
    group.finish();
}

criterion_group!(credit, benches);
criterion_main!(credit);
