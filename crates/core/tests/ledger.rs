//! Compares credit in the Book with a model that is a table of balances.
//!
//! `EARMARK_SEED=7 cargo test -p earmark-core --test ledger` replays one script. Every command is encoded and decoded,
//! the Book is sometimes restored from a snapshot, and all sums are checked after every step.

#![allow(clippy::unwrap_used, clippy::panic, clippy::arithmetic_side_effects, reason = "a test may")]

mod support;

use std::collections::BTreeMap;

use earmark_core::{
    AccountId, AssetId, Book, Command, CommandBuffer, Complete, CompleteOutcome, Config, JournalRecord, Kind, LeaseId,
    NamespaceId, Outcome, Overage, Part, PutLimit, Reserve, ReserveOutcome, UnixMs, VaultId, WriteOutcome,
};

use support::balance_model::{ACCOUNTS, ASSETS, BalanceModel, TERMS};
use support::bank::{account, asset, credit};
use support::forge::mutate;
use support::random::Random;
use support::random_writer::RandomWriter;
use support::snapshot::{restore, snapshot};
use support::soak::each_seed;
use support::step::by_key;
use support::test_book::START;
use support::wire::assert_comes_back;

const SEEDS: u64 = 150;
const STEPS: usize = 250;

/// Applies a command after encoding and decoding it; likewise for its outcome.
fn apply(book: &mut Book, buffer: &mut CommandBuffer, now: UnixMs, command: Command<'_>) -> Outcome {
    let mut bytes = Vec::new();
    command.encode(&mut bytes);
    let (decoded, taken) = buffer.decode(&bytes).unwrap();
    assert_eq!((decoded, taken), (command, bytes.len()));
    let outcome = book.apply(now, decoded);
    assert_comes_back(&outcome, "the ledger");
    outcome
}

#[test]
fn every_transaction_is_answered_and_every_unit_is_where_the_model_says() {
    let mut refused = 0;
    let mut committed = 0;
    each_seed("ledger", SEEDS, |seed| {
        let mut random = Random::new(seed);
        let config = Config { clients_max: 3, ..Config::default() };
        let (mut book, mut twin) = (Book::new(config, seed), Book::new(config, !seed));
        let mut writer = RandomWriter::new(seed);
        let mut model = BalanceModel::new(3);
        let mut buffer = CommandBuffer::default();
        for step in 0..STEPS {
            let (now, write) = writer.next_write();
            let expected = model.write(now, &write);
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
                    model.keep(receipt);
                }
                (WriteOutcome::Exists(receipt), Ok(Some(kept))) => assert_eq!(receipt, kept, "{what}"),
                _ => panic!("{what}: {outcome:?}, and not {expected:?}"),
            }
            writer.observe(&outcome);
            compare(&book, &model, &what);
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

/// A lease, its requirements, and whether they are held.
type Call = (LeaseId, Vec<(usize, u64)>, bool);

/// Random leases, held, settled or forgotten, between transactions.
struct Calls {
    random: Random,
    count: u128,
    leases: Vec<Call>,
}

impl Calls {
    fn parts(&mut self, most: u64) -> Vec<(usize, u64)> {
        let mut keys: Vec<usize> = (0..TERMS.len()).collect();
        self.random.shuffle(&mut keys);
        keys.truncate(self.random.index(3) + 1);
        keys.into_iter().map(|key| (key, self.random.between(1, most))).collect()
    }

    fn reserve(&mut self, now: UnixMs, book: &mut Book, twin: &mut Book, model: &mut BalanceModel) {
        self.count += 1;
        let wanted = self.parts(40);
        let lease = LeaseId::from_parts(now, self.count << 16);
        let requirements: Vec<Part> = wanted.iter().map(|&(key, amount)| by_key(&limit(key), amount)).collect();
        let command = Command::Reserve(Reserve {
            namespace: NamespaceId::DEFAULT,
            lease,
            job: None,
            call: None,
            by_gateway: false,
            requirements: &requirements,
        });
        let outcome = apply(book, &mut CommandBuffer::default(), now, command);
        assert_eq!(outcome, twin.apply(now, command));
        let is_held = matches!(outcome, Outcome::Reserve(ReserveOutcome::Created { .. }));
        let is_short = matches!(outcome, Outcome::Reserve(ReserveOutcome::InsufficientCredit(_)));
        assert!(is_held || is_short, "{outcome:?}");
        assert_eq!(is_held, model.reserve(now, lease, &wanted), "{now} {lease} {wanted:?}: {outcome:?}");
        self.leases.push((lease, wanted, is_held));
    }

    fn complete(&mut self, now: UnixMs, book: &mut Book, twin: &mut Book, model: &mut BalanceModel) {
        if self.leases.is_empty() {
            return;
        }
        let newest = self.leases.len().min(12);
        let place = self.leases.len() - 1 - self.random.index(newest);
        let (lease, wanted, is_held) = self.leases[place].clone();
        let mut said: Vec<(usize, u64)> = wanted
            .into_iter()
            .map(|(key, amount)| (key, self.random.pick(&[0, amount / 2, amount, amount + 30])))
            .collect();
        said.truncate(self.random.index(said.len() + 1));
        let actuals: Vec<Part> = said.iter().map(|&(key, amount)| by_key(&limit(key), amount)).collect();
        let command = Command::Complete(Complete {
            namespace: NamespaceId::DEFAULT,
            lease,
            claim: earmark_core::LeaseClaim::default(),
            actuals: &actuals,
            labels: &earmark_core::SettleLabels::NONE,
        });
        let outcome = apply(book, &mut CommandBuffer::default(), now, command);
        assert_eq!(outcome, twin.apply(now, command));
        match outcome {
            Outcome::Complete(CompleteOutcome::Completed(_)) => {
                assert!(is_held, "{lease}");
                model.complete(now, lease, &said);
                self.leases[place].2 = false;
            }
            Outcome::Complete(CompleteOutcome::UnknownByAge | CompleteOutcome::Marked) => {
                assert!(now.ms_since(lease.time()) >= 900_000, "{lease}");
                model.holds.retain(|hold| hold.lease != lease);
            }
            other => assert!(!is_held, "{lease}: {other:?}"),
        }
    }
}

fn limit(key: usize) -> String {
    format!("credit:{key}")
}

fn credit_limits(book: &mut Book) {
    for (key, (account_name, asset_name, revenue, seconds, keeps_debt)) in TERMS.into_iter().enumerate() {
        let overage = if keeps_debt { Overage::Debt } else { Overage::Deny };
        let mut definition = credit(&limit(key), account_name, seconds, overage);
        if let Kind::Credit(terms) = &mut definition.kind {
            (terms.asset, terms.revenue) = (asset(asset_name), account(revenue));
        }
        let put = PutLimit { namespace: NamespaceId::DEFAULT, definition: &definition, expected_revision: None };
        book.apply(START, Command::PutLimit(put));
    }
}

#[test]
fn holds_are_made_settled_and_returned_as_the_model_says() {
    let (mut settled, mut ran_out, mut short) = (0, 0, 0);
    each_seed("ledger, holds", SEEDS, |seed| {
        let config = Config::default();
        let (mut book, mut twin) = (Book::new(config, seed), Book::new(config, !seed));
        credit_limits(&mut book);
        credit_limits(&mut twin);
        let mut calls = Calls { random: Random::new(!seed), count: 0, leases: Vec::new() };
        let (mut writer, mut model) = (RandomWriter::new(seed), BalanceModel::new(1_000));
        writer.has_extremes = false;
        let funds = writer.funds();
        assert_eq!(model.write(START, &funds), Ok(None));
        for each in [&mut book, &mut twin] {
            assert!(matches!(each.apply(START, Command::Write(&funds)), Outcome::Write(WriteOutcome::Committed(_))));
        }
        let mut journals: [Vec<JournalRecord>; 2] = Default::default();
        for step in 0..2 * STEPS {
            match calls.random.below(10) {
                0..4 => {
                    let (now, write) = writer.next_write();
                    let expected = model.write(now, &write);
                    let outcome = book.apply(now, Command::Write(&write));
                    assert_eq!(outcome, twin.apply(now, Command::Write(&write)));
                    let Outcome::Write(outcome) = outcome else { panic!("{outcome:?}") };
                    assert_eq!(expected.is_err(), matches!(outcome, WriteOutcome::Refused(_)), "{outcome:?}");
                    if let WriteOutcome::Committed(receipt) = &outcome {
                        model.keep(receipt);
                    }
                    writer.observe(&outcome);
                }
                4..7 => calls.reserve(writer.advance(), &mut book, &mut twin, &mut model),
                _ => calls.complete(writer.advance(), &mut book, &mut twin, &mut model),
            }
            let what = format!("EARMARK_SEED={seed}, step {step}");
            compare(&book, &model, &what);
            journals[0].extend(book.drain_journal());
            journals[1].extend(twin.drain_journal());
            assert_eq!(journals[0].len(), journals[1].len(), "{what}");
            if calls.random.chance(8) {
                let bytes = snapshot(&mut book);
                assert!(bytes == snapshot(&mut twin), "{what}");
                book = restore(&bytes, bytes.len(), seed).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(snapshot(&mut book) == bytes, "{what}");
            }
        }
        assert_eq!(journals[0], journals[1], "EARMARK_SEED={seed}");
        let count = |is: fn(&JournalRecord) -> bool| journals[0].iter().filter(|record| is(record)).count();
        settled += count(|record| matches!(record, JournalRecord::Settle(settle) if settle.held > 0));
        ran_out += count(|record| matches!(record, JournalRecord::Settle(settle) if settle.held == 0));
        short += calls.leases.iter().filter(|(_, _, is_held)| !is_held).count();
        assert_journal(&mut book, journals[0].clone(), seed);
    });
    println!("{settled} settled in time, {ran_out} late, {short} completed or without credit");
    assert!(settled > 1_000 && ran_out > 1_000 && short > 1_000);
}

/// Checks that the journal adds up to the balances, after all expired holds are released.
fn assert_journal(book: &mut Book, mut journal: Vec<JournalRecord>, seed: u64) {
    let end = book.time().plus_ms(100_000);
    for _ in 0..100 {
        book.apply(end, Command::Tick);
    }
    journal.extend(book.drain_journal());
    let mut sums: BTreeMap<(AccountId, AssetId), i128> = BTreeMap::new();
    let mut add = |account, asset, amount: i128| *sums.entry((account, asset)).or_default() += amount;
    for record in journal {
        match record {
            JournalRecord::Transaction(written) => {
                written.changes.iter().for_each(|change| add(change.account, change.asset, change.amount));
            }
            JournalRecord::Hold(hold) => add(hold.account, hold.asset, -i128::from(hold.amount)),
            JournalRecord::Release(hold) => add(hold.account, hold.asset, hold.amount.into()),
            JournalRecord::Expire(expire) => add(expire.account, expire.asset, -expire.amount),
            JournalRecord::Plan(plan) => add(plan.account, plan.asset, plan.amount),
            JournalRecord::Key(_)
            | JournalRecord::Limit(_)
            | JournalRecord::Template(_)
            | JournalRecord::Pause(_)
            | JournalRecord::Quotas(_)
            | JournalRecord::Policy(_) => {}
            JournalRecord::Settle(settle) => {
                let returned = i128::from(settle.held) - i128::from(settle.paid);
                add(settle.hold.account, settle.hold.asset, returned);
                add(settle.revenue, settle.hold.asset, settle.paid.into());
            }
        }
    }
    for ((account, asset), sum) in sums {
        let (vault, _) = book.account_name(account).unwrap();
        let name = book.asset_name(vault, asset).unwrap().clone();
        let found = book.balances(end, account).into_iter().find(|balance| balance.asset == name);
        let found = found.map_or(0, |balance| balance.available);
        assert_eq!(found, sum, "EARMARK_SEED={seed}: {account:?} {name}");
    }
}

#[test]
fn mutated_transactions_leave_the_book_balanced() {
    each_seed("ledger, mutated", SEEDS, |seed| {
        let mut random = Random::new(seed);
        let mut book = Book::new(Config::default(), seed);
        let (mut writer, mut buffer) = (RandomWriter::new(seed), CommandBuffer::default());
        for _ in 0..STEPS {
            let (now, write) = writer.next_write();
            let mut bytes = Vec::new();
            Command::Write(&write).encode(&mut bytes);
            if random.chance(40) {
                mutate(&mut bytes, &mut random);
            }
            let Ok((command, _)) = buffer.decode(&bytes) else { continue };
            if let Outcome::Write(outcome) = book.apply(now, command) {
                writer.observe(&outcome);
            }
            for total in book.audit(VaultId::MAIN) {
                assert_eq!(total.issued - total.retired - total.expired, total.live, "EARMARK_SEED={seed}");
            }
        }
        let bytes = snapshot(&mut book);
        assert!(snapshot(&mut restore(&bytes, bytes.len(), 1).unwrap()) == bytes, "EARMARK_SEED={seed}");
    });
}

fn compare(book: &Book, model: &BalanceModel, what: &str) {
    for name in ACCOUNTS {
        let info = book.account(VaultId::MAIN, &account(name));
        assert_eq!(info.as_ref().map(|info| info.standing), model.standing(name), "{name}, {what}");
        let Some(info) = info else { continue };
        for asset in ASSETS {
            let found = book.balances(book.time(), info.id).into_iter().find(|balance| balance.asset.as_str() == asset);
            let found = found.map_or((0, 0), |balance| (balance.available + balance.held, balance.held));
            let held = model.held(book.time()).get(&(name.into(), asset.into())).copied().unwrap_or(0);
            assert_eq!(found, (model.balance(name, asset), held), "{name}, {asset}, {what}");
        }
    }
    for total in book.audit(VaultId::MAIN) {
        assert_eq!(total.issued - total.retired - total.expired, total.live, "{what}");
    }
}
