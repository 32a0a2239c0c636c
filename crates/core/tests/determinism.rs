//! Determinism: the same log gives the same Book, byte for byte, on every replica and through every snapshot.

#![allow(clippy::unwrap_used, clippy::panic, clippy::arithmetic_side_effects, reason = "a test may")]

mod support;

use earmark_core::{
    AccountId, Book, Command, CompleteOutcome, Config, ExternalParts, JournalRecord, LeaseId, NamespaceId, Outcome,
    UnixMs, VaultId,
};

use support::bank::account;
use support::journal::Journal;
use support::random::Random;
use support::script::Script;
use support::snapshot::{restore, snapshot};
use support::soak::each_seed;
use support::step::{Step, Timed};
use support::test_book::{START, TestBook, concurrency, created, rolling};

const SEEDS: u64 = 300;
const STEPS: usize = 400;

fn log(seed: u64) -> (Config, Vec<Timed>) {
    let script = Script::new(seed);
    (script.config(), script.steps(STEPS))
}

/// The outcome of a step and its journal records.
type Answer = (Outcome, Vec<JournalRecord>);

fn answer(book: &mut Book, timed: &Timed) -> Answer {
    (book.apply(timed.at(), timed.step.command()), book.drain_journal())
}

fn apply(book: &mut Book, steps: &[Timed]) -> Vec<Answer> {
    steps.iter().map(|timed| answer(book, timed)).collect()
}

/// Reports the position of the first difference instead of all bytes.
fn assert_same_bytes(a: &[u8], b: &[u8], what: &str) {
    let differ = a.iter().zip(b).position(|(a, b)| a != b);
    assert_eq!((a.len(), differ), (b.len(), None), "{what}");
}

#[test]
fn one_log_applied_twice_gives_the_same_bytes_whatever_the_layout_of_the_tables() {
    each_seed("determinism, twice", SEEDS, |seed| {
        let (config, steps) = log(seed);
        let mut first = Book::new(config, seed);
        let mut second = Book::new(config, !seed);
        let outcomes = apply(&mut first, &steps);
        assert_eq!(outcomes, apply(&mut second, &steps), "EARMARK_SEED={seed}");
        assert_same_bytes(&snapshot(&mut first), &snapshot(&mut second), &format!("EARMARK_SEED={seed}"));
    });
}

#[test]
fn a_snapshot_in_the_middle_changes_no_later_answer_and_no_byte() {
    each_seed("determinism, through a snapshot", SEEDS, |seed| {
        let (config, steps) = log(seed);
        let mut random = Random::new(seed);
        let mut straight = Book::new(config, seed);
        let outcomes = apply(&mut straight, &steps);
        let at_end = snapshot(&mut straight);
        for _ in 0..4 {
            let middle = random.index(steps.len() + 1);
            let what = format!("EARMARK_SEED={seed}, a snapshot before step {middle}");
            let mut before = Book::new(config, random.next());
            apply(&mut before, &steps[..middle]);
            let bytes = snapshot(&mut before);
            let piece = random.index(bytes.len()) + 1;
            let mut after = restore(&bytes, piece, random.next())
                .unwrap_or_else(|error| panic!("{what} was not restored: {error}"));
            assert_same_bytes(&snapshot(&mut after), &bytes, &what);
            assert_eq!(apply(&mut after, &steps[middle..]), outcomes[middle..], "{what}");
            assert_same_bytes(&snapshot(&mut after), &at_end, &what);
        }
    });
}

#[test]
fn a_snapshot_after_every_step_changes_nothing_either() {
    each_seed("determinism, step by step", SEEDS / 10, |seed| {
        let (config, steps) = log(seed);
        let mut straight = Book::new(config, seed);
        let mut book = Book::new(config, seed);
        for (place, timed) in steps.iter().enumerate() {
            let expected = answer(&mut straight, timed);
            let what = format!("EARMARK_SEED={seed}, step {place}: {timed:?}");
            assert_eq!(answer(&mut book, timed), expected, "{what}");
            let bytes = snapshot(&mut book);
            assert_same_bytes(&bytes, &snapshot(&mut straight), &what);
            book = restore(&bytes, bytes.len(), seed).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    });
}

/// Checks the tests above: their snapshots contain live, expired and released holds.
#[test]
fn the_snapshots_of_the_scripts_have_holds_that_live_that_ended_and_that_were_released() {
    let (mut alive, mut ended, mut released, mut written) = (0, 0, 0, 0);
    for seed in 0..200 {
        let (config, steps) = log(seed);
        let mut book = Book::new(config, seed);
        let mut journal = Journal::default();
        for timed in &steps {
            let (_, records) = answer(&mut book, timed);
            journal.add(records).unwrap();
            let held = (0..12)
                .flat_map(|id| book.balances(book.time(), AccountId(id)))
                .map(|balance| balance.held)
                .sum::<i128>();
            alive += u32::from(held > 0);
            ended += u32::from(journal.open() > 0 && held == 0);
            released += u32::from(journal.releases > 0);
            written += u32::from(journal.transactions > 0);
        }
    }
    assert!(alive > 1_000 && ended > 50 && released > 1_000, "{alive} {ended} {released}");
    assert!(written > 10_000, "{written}");
}

/// Checks the tests above: many of their Books keep limits or credit elsewhere.
#[test]
fn the_snapshots_of_the_scripts_have_limits_and_credit_that_are_kept_elsewhere() {
    let (mut limits, mut credit, mut before, mut plain) = (0, 0, 0, 0);
    for seed in 0..100 {
        let (config, steps) = log(seed);
        let mut book = Book::new(config, seed);
        apply(&mut book, &steps);
        let external = book.external_parts();
        let is_composed = steps.iter().any(|timed| match timed.step {
            Step::SetExternal(setup) => setup.parts != ExternalParts::default(),
            _ => matches!(timed.step, Step::Release { .. }),
        });
        limits += u32::from(external.limits);
        credit += u32::from(external.credit);
        before += u32::from(is_composed && external == ExternalParts::default());
        plain += u32::from(!is_composed);
    }
    assert!(limits > 3 && credit > 3 && before > 0 && plain > 20, "{limits} {credit} {before} {plain}");
}

#[test]
fn commands_applied_together_are_answered_as_one_by_one() {
    each_seed("determinism, together", SEEDS / 3, |seed| {
        let (config, mut steps) = log(seed);
        let mut random = Random::new(seed);
        let (mut single, mut together) = (Book::new(config, seed), Book::new(config, seed));
        while !steps.is_empty() {
            let count = (random.index(40) + 1).min(steps.len());
            let rest = steps.split_off(count);
            let now = steps[0].now;
            let commands: Vec<Command<'_>> = steps.iter().map(|timed| timed.step.command()).collect();
            let mut outcomes = Vec::new();
            together.apply_all(now, &commands, &mut outcomes);
            let expected: Vec<Outcome> = commands.iter().map(|command| single.apply(now, *command)).collect();
            assert_eq!(outcomes, expected, "EARMARK_SEED={seed}");
            assert_eq!(together.drain_journal(), single.drain_journal(), "EARMARK_SEED={seed}");
            steps = rest;
        }
        assert_same_bytes(&snapshot(&mut together), &snapshot(&mut single), &format!("EARMARK_SEED={seed}"));
    });
}

#[test]
fn a_book_that_was_never_used_goes_through_a_snapshot_too() {
    let bytes = snapshot(&mut Book::new(Config::default(), 1));
    let mut book = restore(&bytes, 1, 2).unwrap();
    assert_eq!(book.leases(), 0);
    assert_same_bytes(&snapshot(&mut book), &bytes, "a new Book");
}

#[test]
fn what_was_frozen_stays_as_it_was_while_commands_go_on() {
    let mut test = TestBook::new();
    test.put_active(rolling("rpm", 100_000, 60));
    test.put_active(concurrency("slots", 100_000, 60));
    let leases: Vec<LeaseId> = (0..20_000).map(|_| test.take(&[("rpm", 1), ("slots", 1)])).collect();
    let expected = snapshot(&mut test.book);
    let frozen = test.book.freeze();
    let (bytes, after) = std::thread::scope(|scope| {
        let encoder = scope.spawn(|| frozen.encode().collect::<Vec<_>>().concat());
        for lease in &leases {
            test.settle(*lease, &[("rpm", 0)]);
        }
        test.delete("slots");
        test.advance(3_600_000);
        for _ in 0..10_000 {
            test.take(&[("rpm", 2)]);
        }
        (encoder.join().unwrap(), snapshot(&mut test.book))
    });
    assert_same_bytes(&bytes, &expected, "the frozen Book");
    assert_ne!(after, expected);
    // The restored Book still holds every lease.
    let restored = restore(&bytes, 64 * 1024, 9).unwrap();
    assert_eq!(restored.usage(START, test.id("rpm")).unwrap().reserved, 20_000);
    assert_eq!(restored.leases(), 20_000);
}

/// Reserves `count` leases in random order at one time, then lets all be forgotten.
fn with_forgotten_past(table_seed: u64, count: u32, random: &mut Random) -> TestBook {
    let config = Config { retention_ms: 1_000, ..Config::default() };
    let mut test = TestBook::with(config);
    test.book = Book::new(config, table_seed);
    test.put_active(rolling("rpm", 1_000_000, 5));
    test.put_active(concurrency("slots", 1_000_000, 5));
    let mut numbers: Vec<u32> = (0..count).collect();
    random.shuffle(&mut numbers);
    for number in numbers {
        let lease = LeaseId::from_parts(START, u128::from(number) << 20);
        let outcome = test.reserve(lease, &[("rpm", 1), ("slots", 1)]);
        assert_eq!(outcome, created(START));
        if number.is_multiple_of(3) {
            test.settle(lease, &[("rpm", u64::from(number % 2))]);
        }
    }
    test.advance(60_000);
    while test.book.leases() > 0 {
        test.tick();
    }
    test
}

#[test]
fn a_past_that_is_forgotten_leaves_no_byte_behind() {
    let mut random = Random::new(1);
    let mut desks = [
        with_forgotten_past(1, 1, &mut random),
        with_forgotten_past(2, 3_000, &mut random),
        with_forgotten_past(3, 3_000, &mut random),
        with_forgotten_past(4, 20_000, &mut random),
    ];
    let bytes: Vec<Vec<u8>> = desks
        .iter_mut()
        .map(|test| {
            for number in 0..50_u64 {
                let lease = LeaseId::from_parts(test.now(), u128::from(number));
                test.reserve(lease, &[("slots", 1), ("rpm", number + 1)]);
                if number.is_multiple_of(4) {
                    test.settle(lease, &[("rpm", number / 2)]);
                }
                test.advance(10);
            }
            snapshot(&mut test.book)
        })
        .collect();
    for other in &bytes[1..] {
        assert_same_bytes(other, &bytes[0], "two pasts");
    }
}

#[test]
fn reads_leave_no_byte_behind() {
    let (config, steps) = log(3);
    let mut random = Random::new(3);
    let (mut quiet, mut asked) = (Book::new(config, 1), Book::new(config, 1));
    for timed in &steps {
        quiet.apply(timed.at(), timed.step.command());
        asked.apply(timed.at(), timed.step.command());
        for number in 0..8 {
            let at = timed.now.plus_ms(random.below(1 << 32));
            let id = earmark_core::LimitId { slot: number, generation: u32::try_from(random.below(3)).unwrap() };
            let _ = asked.usage(at, id);
            let _ = asked.limit(at, id);
        }
        if let Some((namespace, lease)) = timed.step.lease() {
            let _ = asked.lease(timed.now.plus_ms(random.below(100_000)), namespace, lease);
        }
        read_credit(&asked, timed.now.plus_ms(random.below(1 << 32)));
        assert_same_bytes(&snapshot(&mut asked), &snapshot(&mut quiet), "reads");
    }
}

fn read_credit(book: &Book, at: UnixMs) {
    for name in ["a", "never"] {
        let _ = book.account(VaultId::MAIN, &account(name));
    }
    for number in 0..8 {
        let _ = book.balances(at, AccountId(number));
        let _ = book.audit(VaultId(number));
    }
    let client = earmark_core::ClientId::new("nobody").unwrap();
    assert_eq!(book.last_committed(NamespaceId::DEFAULT, Some(VaultId::MAIN), &client), 0);
}

/// Regression: a lease outlived its limit, the key was put again with another kind, and a late complete reported
/// overage. Its overage is settled usage on a concurrency limit for one second. A decoder that expects settled usage on
/// rolling limits only refuses this valid snapshot.
#[test]
fn late_usage_held_by_a_limit_that_changed_its_kind_goes_through_a_snapshot() {
    let mut test = TestBook::new();
    test.put_active(rolling("tpm", 10, 1));
    let lease = test.take(&[("tpm", 5)]);
    test.delete("tpm");
    test.advance(1_000);
    test.put_active(concurrency("tpm", 10, 60));
    assert!(matches!(test.complete(lease, &[("tpm", 9)]), CompleteOutcome::Completed(_)));
    assert_eq!(test.reserved("tpm"), 4);
    let bytes = snapshot(&mut test.book);
    test.book = restore(&bytes, bytes.len(), 1).unwrap();
    assert_eq!(test.reserved("tpm"), 4);
    test.denied(&[("tpm", 7)]);
    test.advance(1_000);
    assert_eq!(test.reserved("tpm"), 0);
}
