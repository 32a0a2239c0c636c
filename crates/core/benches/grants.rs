//! Instructions of decisions about an account with one grant and with ten. Needs valgrind. Run with
//! `cargo bench -p earmark-core --bench grants`.

#![allow(clippy::expect_used, clippy::panic, clippy::arithmetic_side_effects, reason = "a benchmark may")]
#![allow(missing_docs, unreachable_pub, dead_code, reason = "a benchmark is not read from outside")]

mod workload;

use std::process::Command as Process;

use earmark_core::*;
use workload::put;

/// Rounds that are counted.
const COUNTED: u64 = 10_000;
/// The compared numbers of grants.
const GRANTS: [u64; 2] = [1, 10];
const OPERATIONS: [&str; 3] = ["reserve", "complete", "transfer"];

struct Bank {
    book: Book,
    now: UnixMs,
    limit: LimitId,
    write: Write,
    lease: u128,
}

fn account(name: &str) -> AccountName {
    AccountName::new(name).expect("a valid name")
}

fn asset() -> AssetName {
    AssetName::new("usd_micro").expect("a valid name")
}

fn vault() -> VaultName {
    VaultName::new("main").expect("a valid name")
}

impl Bank {
    /// An account whose credit is in this many grants. The first one pays.
    fn new(grants: u64) -> Bank {
        let now = UnixMs::new(1_700_000_000_000);
        let book = Book::new(Config::default(), 0x5eed);
        let issue = |number| Operation::Issue {
            account: account("acme"),
            asset: asset(),
            amount: 1 << 50,
            memo: String::new(),
            terms: GrantTerms::new(1, Some(now.plus_ms(1_000_000_000 + number))),
        };
        let open = |name| Operation::OpenAccount { account: account(name), overdraft: Overdraft::Deny, plan: None };
        let write = Write {
            namespace: NamespaceId::DEFAULT,
            vault: Some(vault()),
            id: WriteId::Sequence { client: ClientId::new("billing").expect("a valid name"), sequence: 0 },
            operations: [vec![open("acme"), open("other")], (0..grants).map(issue).collect()].concat(),
            tx_id: TxId(0),
            log_index: 0,
            actor: Actor::new("system:bench").expect("a valid actor"),
        };
        let terms = CreditTerms {
            timeout_seconds: 600,
            vault: vault(),
            account: account("acme"),
            asset: asset(),
            revenue: account("revenue"),
            on_timeout: OnTimeout::default(),
        };
        let mut bank = Bank { limit: LimitId::default(), book, now, write, lease: 0 };
        bank.commit();
        bank.limit = put(&mut bank.book, now, "credit", Kind::Credit(terms), 0);
        bank.write.operations = vec![Operation::Transfer {
            from: account("acme"),
            to: account("other"),
            asset: asset(),
            amount: 5,
            memo: String::new(),
        }];
        bank
    }

    fn commit(&mut self) {
        self.write.log_index += 1;
        self.write.tx_id = TxId(self.write.log_index.into());
        if let WriteId::Sequence { sequence, .. } = &mut self.write.id {
            *sequence += 1;
        }
        let outcome = self.book.apply(self.now, Command::Write(&self.write));
        assert!(matches!(outcome, Outcome::Write(WriteOutcome::Committed(_))), "{outcome:?}");
        drop(self.book.drain_journal());
    }

    fn parts(&self, amount: u64) -> [Part; 1] {
        [Part { limit: LimitRef::Id(self.limit), amount }]
    }

    fn reserve(&mut self, amount: u64) -> LeaseId {
        self.lease += 1;
        self.now = self.now.plus_ms(1);
        let lease = LeaseId::from_parts(self.now, self.lease);
        let requirements = &self.parts(amount);
        let outcome = self.book.apply(
            self.now,
            Command::Reserve(Reserve {
                namespace: NamespaceId::DEFAULT,
                lease,
                job: None,
                call: None,
                by_gateway: false,
                requirements,
            }),
        );
        assert!(matches!(outcome, Outcome::Reserve(ReserveOutcome::Created { .. })), "{outcome:?}");
        drop(self.book.drain_journal());
        lease
    }

    fn complete(&mut self, lease: LeaseId, amount: u64) {
        let actuals = &self.parts(amount);
        let complete = Complete {
            namespace: NamespaceId::DEFAULT,
            lease,
            claim: LeaseClaim::default(),
            actuals,
            labels: &SettleLabels::NONE,
        };
        let outcome = self.book.apply(self.now, Command::Complete(complete));
        assert!(matches!(outcome, Outcome::Complete(CompleteOutcome::Completed(_))), "{outcome:?}");
        drop(self.book.drain_journal());
    }
}

/// Counts each operation in a process of its own; with its name and a number of grants, runs it.
fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, operation, grants] = &arguments[..]
        && let Ok(grants) = grants.parse()
    {
        return run(operation, grants);
    }
    for operation in OPERATIONS {
        let [one, ten] = GRANTS.map(|grants| count(operation, grants) / COUNTED);
        println!("{one:>6} instructions with 1 grant, {ten:>6} with 10: {:.2}  {operation}", ten as f64 / one as f64);
    }
}

/// The instructions inside of [`counted`], as callgrind prints them.
fn count(operation: &str, grants: u64) -> u64 {
    let program = std::env::current_exe().expect("the path of this program");
    let mut valgrind = Process::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*counted*"]);
    let output = valgrind.arg(program).arg(operation).arg(grants.to_string()).output();
    let output = output.expect("valgrind, which counts instructions");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = text.lines().find_map(|line| line.split_once("Collected : ")).expect("a count of callgrind");
    line.1.trim().parse().expect("a number")
}

#[inline(never)]
fn counted<T>(mut job: impl FnMut() -> T) -> T {
    job()
}

fn run(operation: &str, grants: u64) {
    match operation {
        "reserve" => {
            let mut bank = Bank::new(grants);
            (0..COUNTED).for_each(|_| {
                let lease = counted(|| bank.reserve(900));
                bank.complete(lease, 300);
            });
        }
        "complete" => {
            let mut bank = Bank::new(grants);
            (0..COUNTED).for_each(|_| {
                let lease = bank.reserve(900);
                counted(|| bank.complete(lease, 300));
            });
        }
        _ => {
            let mut bank = Bank::new(grants);
            (0..COUNTED).for_each(|_| counted(|| bank.commit()));
        }
    }
}
