//! Random leases on credit, completes, transactions and time: credit is conserved, and a Book restored from a
//! snapshot gives the same outcomes and the same journal.
//!
//! Every byte chooses among a few names and amounts, so that almost any input is a long meaningful script, and small
//! changes to the input are small changes to the script.

#![no_main]

use earmark_core::{
    Actor, Book, ClientId, Command, Complete, Config, CreditTerms, Definition, Kind, LeaseId, LimitRef,
    NamespaceId, Operation, Overage, Overdraft, Part, PutLimit, Reserve, Restore, TxId, UnixMs, VaultId,
    VaultName, Write,
};
use libfuzzer_sys::fuzz_target;

const ACCOUNTS: [&str; 4] = ["a", "b", "c", "revenue"];
const LIMITS: [&str; 5] = ["usd:a", "usd:a:2", "usd:b", "rpm", "slots"];
const START: UnixMs = UnixMs::new(1_750_000_000_000);

struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn next(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> Option<T> {
        let choice = self.next()?;
        Some(choices[usize::from(choice) % choices.len()])
    }
}

fn definition(choices: &mut Choices<'_>) -> Option<Definition> {
    let key = choices.pick(&LIMITS)?;
    let seconds = choices.pick(&[1, 2, 60])?;
    let (kind, capacity) = match choices.next()? % 4 {
        0 => (Kind::Rolling { window_seconds: seconds }, 50),
        1 => (Kind::Concurrency { timeout_seconds: seconds }, 5),
        _ => {
            let terms = CreditTerms {
                timeout_seconds: seconds,
                vault: VaultName::new("main").expect("a name"),
                account: choices.pick(&ACCOUNTS)?.parse().expect("a name"),
                asset: choices.pick(&["usd", "eur"])?.parse().expect("a name"),
                revenue: choices.pick(&ACCOUNTS)?.parse().expect("a name"),
            };
            (Kind::Credit(terms), 0)
        }
    };
    let overage = choices.pick(&[Overage::Debt, Overage::Deny])?;
    let (unit, description) = (String::new(), String::new());
    Some(Definition { key: key.parse().expect("a key"), kind, capacity, unit, description, overage, shared: false, enforce: true })
}

fn parts(choices: &mut Choices<'_>) -> Option<Vec<Part>> {
    let mut parts = Vec::new();
    for _ in 0..choices.next()? % 4 {
        let limit = LimitRef::Key(choices.pick(&LIMITS)?.parse().expect("a key"));
        let amount = choices.pick(&[0, 1, 2, 3, 5, 10, 100, u64::MAX])?;
        parts.push(Part { limit, amount });
    }
    Some(parts)
}

fn operation(choices: &mut Choices<'_>) -> Option<Operation> {
    let account = choices.pick(&ACCOUNTS)?.parse().expect("a name");
    let asset = choices.pick(&["usd", "eur"])?.parse().expect("a name");
    let memo = String::new();
    let amounts = [0, 1, 3, 10, 100, u64::MAX as u128 + 2, i128::MAX as u128, u128::MAX];
    Some(match choices.next()? % 9 {
        0 => {
            Operation::OpenAccount { account, overdraft: choices.pick(&[Overdraft::Deny, Overdraft::Allow])? }
        }
        1 => Operation::FreezeAccount { account },
        2 => Operation::UnfreezeAccount { account },
        3 => Operation::CloseAccount { account },
        4 => Operation::OpenVault { vault: VaultName::new("eu").expect("a name") },
        5 => Operation::Retire { account, asset, amount: choices.pick(&amounts)?, memo },
        6 => {
            let to = choices.pick(&ACCOUNTS)?.parse().expect("a name");
            Operation::Transfer { from: account, to, asset, amount: choices.pick(&amounts)?, memo }
        }
        _ => Operation::Issue { account, asset, amount: choices.pick(&amounts)?, memo },
    })
}

fn write(book: &Book, choices: &mut Choices<'_>) -> Option<Write> {
    let client: ClientId = choices.pick(&["x", "y"])?.parse().expect("a name");
    let last = book.last_committed(NamespaceId::DEFAULT, Some(VaultId::MAIN), &client);
    let sequence = match choices.next()? {
        250.. => last + 2,
        240..250 => last,
        _ => last + 1,
    };
    let mut operations = Vec::new();
    for _ in 0..choices.next()? % 4 {
        operations.push(operation(choices)?);
    }
    Some(Write {
        namespace: NamespaceId::DEFAULT,
        vault: Some(VaultName::new("main").expect("a name")),
        id: earmark_core::WriteId::Sequence { client, sequence },
        operations,
        tx_id: TxId(0),
        log_index: 0,
        actor: Actor::new("system:fuzz").expect("an actor"),
    })
}

fn bytes(book: &mut Book) -> Vec<u8> {
    book.freeze().encode().flatten().collect()
}

fn restored(bytes: &[u8]) -> Book {
    let mut restore = Restore::new(2);
    restore.feed(bytes).expect("a Book's own snapshot");
    restore.finish().expect("a Book's own snapshot")
}

fn both(books: &mut [Book; 2], now: UnixMs, command: Command<'_>) {
    let [book, twin] = books;
    assert_eq!(book.apply(now, command), twin.apply(now, command), "{command:?}");
    assert_eq!(book.drain_journal(), twin.drain_journal(), "{command:?}");
    for total in book.audit(VaultId::MAIN) {
        assert_eq!(total.issued.checked_sub(total.retired), Some(total.live), "{total:?} after {command:?}");
    }
}

fn run(choices: &mut Choices<'_>, books: &mut [Book; 2]) -> Option<()> {
    let namespace = NamespaceId::DEFAULT;
    let mut now = START;
    loop {
        now = now.plus_ms(choices.pick(&[0, 0, 0, 1, 500, 1_000, 60_000, 400_000])?);
        match choices.next()? % 16 {
            0..2 => {
                let definition = definition(choices)?;
                both(
                    books,
                    now,
                    Command::PutLimit(PutLimit {
                        namespace,
                        definition: &definition,
                        expected_revision: None,
                    }),
                );
            }
            2..6 => {
                let write = write(&books[0], choices)?;
                both(books, now, Command::Write(&write));
            }
            6 => books[1] = restored(&bytes(&mut books[0])),
            kind => {
                // Leases of the last minute, few enough to be used again.
                let back = choices.pick(&[0, 0, 1_000, 60_000])?;
                let lease = LeaseId::from_parts(now.minus_ms(back), u128::from(choices.next()? % 4));
                let parts = parts(choices)?;
                let command = if kind < 12 {
                    Command::Reserve(Reserve { namespace, lease, wall: now, requirements: &parts })
                } else {
                    Command::Complete(Complete { namespace, lease, wall: now, actuals: &parts })
                };
                both(books, now, command);
            }
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let config = Config { retention_ms: 120_000, leases_max: 64, clients_max: 2, ..Config::default() };
    let mut books = [Book::new(config, 1), Book::new(config, 2)];
    run(&mut Choices(input), &mut books);
    let [mut book, mut twin] = books;
    assert_eq!(bytes(&mut book), bytes(&mut twin));
});
