//! The Book moves credit like a model that is a table of balances.
//!
//! `EARMARK_SEED=7 cargo test -p earmark-core --test ledger` replays one script. Every command goes through its
//! bytes, now and then the Book through a snapshot, and after every step the sums are right.

#![allow(clippy::unwrap_used, clippy::panic, clippy::arithmetic_side_effects, reason = "a test may")]

mod support;

use earmark_core::{Book, Command, CommandBuffer, Config, Outcome, VaultId, WriteOutcome};

use support::bank::account;
use support::purse::{ACCOUNTS, ASSETS, Purse};
use support::random::Random;
use support::snapshot::{restore, snapshot};
use support::soak::each_seed;
use support::teller::Teller;

const SEEDS: u64 = 150;
const STEPS: usize = 250;

/// Applies a command after a way through its bytes.
fn apply(
    book: &mut Book,
    buffer: &mut CommandBuffer,
    now: earmark_core::UnixMs,
    command: Command<'_>,
) -> Outcome {
    let mut bytes = Vec::new();
    command.encode(&mut bytes);
    let (decoded, taken) = buffer.decode(&bytes).unwrap();
    assert_eq!((decoded, taken), (command, bytes.len()));
    book.apply(now, decoded)
}

#[test]
fn every_transaction_is_answered_and_every_unit_is_where_the_model_says() {
    let mut refused = 0;
    let mut committed = 0;
    each_seed("ledger", SEEDS, |seed| {
        let mut random = Random::new(seed);
        let config = Config { clients_max: 3, ..Config::default() };
        let (mut book, mut twin) = (Book::new(config, seed), Book::new(config, !seed));
        let mut teller = Teller::new(seed);
        let mut purse = Purse::new(3);
        let mut buffer = CommandBuffer::default();
        for step in 0..STEPS {
            let (now, write) = teller.next_write();
            let expected = purse.write(now, &write);
            let what = format!("EARMARK_SEED={seed}, step {step}: {write:?}");
            let outcome = apply(&mut book, &mut buffer, now, Command::Write(&write));
            assert_eq!(outcome, twin.apply(now, Command::Write(&write)), "{what}");
            let Outcome::Write(outcome) = outcome else { panic!("{what}: {outcome:?}") };
            match (&outcome, &expected) {
                (WriteOutcome::Refused(error), Err(code)) => {
                    refused += 1;
                    assert_eq!(error.code(), *code, "{what}");
                }
                (WriteOutcome::Committed(receipt), Ok(None)) => {
                    committed += 1;
                    purse.keep(receipt);
                }
                (WriteOutcome::Exists(receipt), Ok(Some(kept))) => assert_eq!(receipt, kept, "{what}"),
                _ => panic!("{what}: {outcome:?}, and not {expected:?}"),
            }
            teller.hear(&outcome);
            compare(&book, &purse, &what);
            if random.chance(10) {
                let bytes = snapshot(&mut book);
                assert_eq!(bytes, snapshot(&mut twin), "{what}");
                book = restore(&bytes, random.index(bytes.len()) + 1, seed).unwrap();
                assert_eq!(snapshot(&mut book), bytes, "{what}");
            }
        }
    });
    println!("{committed} committed, {refused} refused");
    assert!(committed > 1_000 && refused > 1_000);
}

fn compare(book: &Book, purse: &Purse, what: &str) {
    for name in ACCOUNTS {
        let info = book.account(VaultId::MAIN, &account(name));
        assert_eq!(info.as_ref().map(|info| info.standing), purse.standing(name), "{name}, {what}");
        let Some(info) = info else { continue };
        for balance in book.balances(book.time(), info.id) {
            let expected = purse.balance(name, balance.asset.as_str());
            assert_eq!(balance.available + balance.held, expected, "{name}, {what}");
        }
        for asset in ASSETS {
            let found = book
                .balances(book.time(), info.id)
                .into_iter()
                .find(|balance| balance.asset.as_str() == asset);
            let found = found.map_or(0, |balance| balance.available + balance.held);
            assert_eq!(found, purse.balance(name, asset), "{name}, {asset}, {what}");
        }
    }
    for total in book.audit(VaultId::MAIN) {
        assert_eq!(total.issued - total.retired, total.live, "{what}");
    }
}
