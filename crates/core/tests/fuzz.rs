//! Fuzz tests: arbitrary bytes never cause a panic, a hang or an inconsistent Book.
//!
//! `EARMARK_SEED=7` replays one seed; `EARMARK_SOAK_SECONDS=600` runs new seeds for that long.

#![allow(clippy::unwrap_used, clippy::panic, clippy::arithmetic_side_effects, reason = "a test may")]

mod support;

use earmark_core::{
    AccountId, Book, Command, CommandBuffer, CompleteOutcome, Config, ExternalParts, ExternalSetup, LeaseId, LimitId,
    LimitRef, LimitStatus, Moment, NamespaceId, Operation, Overage, Part, PutLimit, Reserve, UnixMs, VaultId,
};

use support::bank::{Bank, close, credit, freeze, issue, open, open_overdraft, transfer};
use support::forge::{forge, mutate, replace};
use support::random::Random;
use support::script::Script;
use support::snapshot::{restore, snapshot};
use support::soak::each_seed;
use support::step::Step;
use support::test_book::{START, TestBook, concurrency, rolling};
use support::writer::{Writer, vault};

/// A Book with every kind of state: limits in every status; live, expired, completed, marked and denied leases; settled
/// usage and debt.
fn small_book() -> Book {
    let mut test = TestBook::with(Config { retention_ms: 5_000, ..Config::default() });
    test.put_active(rolling("rpm", 5, 60));
    test.put_active(concurrency("slots", 5, 1));
    test.put_active(rolling("down", 5, 60));
    test.put_active(rolling("gone", 5, 60));
    test.delete("gone");
    test.open("team");
    test.take(&[("slots", 2)]);
    let settled = test.take(&[("rpm", 2), ("slots", 1)]);
    test.settle(settled, &[("rpm", 9)]);
    test.take(&[("rpm", 1), ("down", 4)]);
    test.denied(&[("rpm", 5)]);
    let unknown = test.lease();
    test.complete(unknown, &[]);
    test.advance(1_500);
    test.put(rolling("down", 2, 60));
    with_credit(test)
}

/// Adds accounts in every status, live, released and forgotten holds, and two clients.
fn with_credit(test: TestBook) -> Book {
    let mut bank = Bank { test, writer: Writer::of_vault("billing", "main") };
    bank.commit(vec![
        open("acme"),
        open_overdraft("bank"),
        issue("acme", "usd", 90),
        transfer("bank", "acme", "eur", 4),
    ]);
    bank.commit(vec![open("shut"), close("shut"), freeze("bank")]);
    bank.test.put_active(credit("usd", "acme", 60, Overage::Debt));
    bank.test.put_active(credit("a:usd", "acme", 1, Overage::Deny));
    bank.test.take(&[("usd", 20), ("a:usd", 5)]);
    bank.deny_credit(&[("usd", 900)]);
    let late = bank.test.take(&[("usd", 1)]);
    bank.test.settle(late, &[("usd", 3)]);
    bank.test.advance(2_000);
    bank.test.tick();
    let mut ops = Writer::new("ops");
    ops.write(&mut bank.test, vec![Operation::OpenVault { vault: vault("eu") }]);
    bank.test.book
}

/// The same with limits and credit kept elsewhere: a lease without credit here, a released lease, and a limit waiting
/// to be dropped.
fn small_composed_book() -> Book {
    let mut test = TestBook::new();
    test.book = small_book();
    test.advance(10_000);
    test.set_external(ExternalParts { limits: false, credit: true });
    test.put_active(rolling("leaving", 5, 60));
    test.take(&[("slots", 1), ("usd", 7_000)]);
    let released = test.take(&[("leaving", 2), ("usd", 1)]);
    test.set_external(ExternalSetup { parts: ExternalParts { limits: true, credit: true }, ledger: Some(7) });
    assert!(matches!(test.release(released), CompleteOutcome::Completed(_)));
    test.delete("leaving");
    test.book
}

fn small_books() -> [Book; 2] {
    [small_book(), small_composed_book()]
}

/// The Book after a random script.
fn book_of(seed: u64, steps: usize) -> Book {
    let script = Script::new(seed);
    let mut book = Book::new(script.config(), seed);
    for timed in script.take(steps) {
        book.apply(timed.at(), timed.step.command());
    }
    book
}

/// Checks that a decoded Book can be used, encoded and restored.
fn assert_sound(book: &mut Book, what: &str) {
    let now = book.time();
    for id in (0..64_u32).flat_map(|slot| (0..4).map(move |generation| LimitId { slot, generation })) {
        let Some(usage) = book.usage(now, id) else { continue };
        let is_decreasing = matches!(usage.status, LimitStatus::Decreasing { .. });
        // A derived limit shows its current template, and may have counted under an earlier one that was not enforced.
        let is_shadow = book.limit(now, id).is_some_and(|limit| !limit.definition.enforce || limit.template.is_some());
        assert!(usage.reserved <= usage.capacity || is_decreasing || is_shadow, "{what}: {id:?} {usage:?}");
        let free = if is_decreasing { 0 } else { usage.capacity.saturating_sub(usage.reserved) };
        assert_eq!(usage.available, free, "{what}: {id:?}");
    }
    for vault in (0..8).map(VaultId) {
        for total in book.audit(vault) {
            assert_eq!(total.issued.checked_sub(total.retired + total.expired), Some(total.live), "{what}: {total:?}");
        }
    }
    for account in (0..32).map(AccountId) {
        for balance in book.balances(now, account) {
            assert!(balance.held >= 0, "{what}: {balance:?}");
        }
    }
    for info in book.limits(now, NamespaceId::DEFAULT) {
        let id = book.resolve(NamespaceId::DEFAULT, &info.definition.key);
        assert_eq!(id.and_then(|id| book.limit(now, id)).as_ref(), Some(&info), "{what}");
    }
    let bytes = snapshot(book);
    let mut again = restore(&bytes, bytes.len(), 5).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(snapshot(&mut again) == bytes, "{what}: restored, it has other bytes");
}

#[test]
fn every_truncation_of_a_snapshot_is_an_error() {
    for mut book in small_books() {
        let bytes = snapshot(&mut book);
        assert!(restore(&bytes, bytes.len(), 1).is_ok());
        for length in 0..bytes.len() {
            assert!(restore(&bytes[..length], bytes.len(), 1).is_err(), "{length} of {} bytes", bytes.len());
        }
    }
}

#[test]
fn every_flipped_bit_of_a_snapshot_is_an_error() {
    for mut book in small_books() {
        let mut bytes = snapshot(&mut book);
        for place in 0..bytes.len() {
            for bit in 0..8 {
                bytes[place] ^= 1 << bit;
                assert!(restore(&bytes, bytes.len(), 1).is_err(), "bit {bit} of byte {place}");
                bytes[place] ^= 1 << bit;
            }
        }
    }
}

#[test]
fn anything_after_the_end_of_a_snapshot_is_an_error() {
    let bytes = snapshot(&mut small_book());
    for more in [&[0][..], &[7], &bytes, &bytes[12..]] {
        let longer = [&bytes, more].concat();
        assert!(restore(&longer, longer.len(), 1).is_err());
        assert!(restore(&longer, 7, 1).is_err());
    }
}

#[test]
fn a_snapshot_may_come_in_pieces_of_any_size() {
    for mut book in small_books() {
        let bytes = snapshot(&mut book);
        for piece in 1..=bytes.len() {
            let mut book = restore(&bytes, piece, 1).unwrap_or_else(|error| panic!("pieces of {piece}: {error}"));
            assert!(snapshot(&mut book) == bytes, "pieces of {piece}");
        }
    }
}

#[test]
fn a_refusal_says_what_is_wrong_with_the_snapshot() {
    let bytes = snapshot(&mut small_book());
    let message = |bytes: &[u8]| restore(bytes, 1_000, 1).err().unwrap().to_string();
    assert!(message(b"not a snapshot").contains("not a snapshot"), "{}", message(b"not a snapshot"));
    assert!(message(&bytes[..bytes.len() - 1]).contains("cut off"));
    let mut damaged = bytes.clone();
    damaged[bytes.len() / 2] ^= 0x10;
    assert!(message(&damaged).contains("damaged"));
}

#[test]
fn random_and_mutated_snapshots_are_refused_or_give_a_sound_book() {
    each_seed("fuzz, snapshots", 250, |seed| {
        let mut random = Random::new(seed);
        let length = random.index(4_000);
        let noise = random.bytes(length);
        assert!(restore(&noise, length.max(1), seed).is_err(), "EARMARK_SEED={seed}");
        let (steps, other_steps) = (random.index(300), random.index(300));
        let valid = snapshot(&mut book_of(seed, steps));
        let other = snapshot(&mut book_of(seed.wrapping_add(1), other_steps));
        for round in 0..60 {
            let mut bytes = valid.clone();
            if random.chance(20) {
                // The head of one snapshot with the tail of another.
                bytes.truncate(random.index(valid.len()));
                bytes.extend_from_slice(&other[random.index(other.len())..]);
            } else {
                mutate(&mut bytes, &mut random);
            }
            let piece = random.index(bytes.len().max(1)) + 1;
            if let Ok(mut book) = restore(&bytes, piece, seed) {
                assert_sound(&mut book, &format!("EARMARK_SEED={seed}, round {round}"));
            }
        }
    });
}

/// Checks the test below: an unchanged snapshot is accepted after forging, so a refusal is due to the change.
#[test]
fn forged_snapshots_have_valid_checksums() {
    let bytes = snapshot(&mut small_book());
    let accepted = (0..2_000).filter(|&seed| {
        let forged = forge(&bytes, &mut Random::new(seed));
        forged != bytes && restore(&forged, forged.len(), 1).is_ok()
    });
    let accepted = accepted.count();
    assert!(accepted > 20, "only {accepted} of 2,000 forgeries changed a value that may have any");
}

#[test]
fn forged_snapshots_are_refused_or_give_a_sound_book_with_the_same_bytes() {
    each_seed("fuzz, forgeries", 400, |seed| {
        let mut random = Random::new(seed);
        let valid = if seed.is_multiple_of(2) {
            snapshot(&mut small_books()[(seed / 2 % 2) as usize])
        } else {
            snapshot(&mut book_of(seed, random.clone().index(300)))
        };
        for round in 0..60 {
            let bytes = forge(&valid, &mut random);
            let what = format!("EARMARK_SEED={seed}, round {round}");
            let Ok(mut book) = restore(&bytes, bytes.len(), seed) else { continue };
            assert!(snapshot(&mut book) == bytes, "{what}: it was taken for something else");
            use_up(&mut book, seed);
            assert_sound(&mut book, &what);
        }
    });
}

#[test]
fn a_snapshot_that_contradicts_itself_is_refused_though_its_checksums_fit() {
    let mut test = TestBook::with(Config { leases_max: 0x0a0b_0c0d, ..Config::default() });
    test.open("team-a");
    test.open("team-b");
    test.put_active(rolling("limit:a", 0x1111_2222_3333_4444, 60));
    test.put_active(rolling("limit:b", 100, 60));
    let [held, other, denied, completed] = [1, 2, 3, 4].map(|_| test.lease_from(START.minus_ms(1)));
    test.reserve(held, &[("limit:a", 0x0123_4567_89ab_cdef)]);
    test.advance(1_000);
    let reserved_at = test.now();
    test.reserve(other, &[("limit:b", 1)]);
    test.advance(1_000);
    let denied_at = test.now();
    test.denial(denied, &[("limit:b", 100)]);
    test.advance(1_000);
    test.complete(completed, &[]);
    test.advance(1_000);
    test.tick();
    let bytes = snapshot(&mut test.book);
    let id = |lease: LeaseId| lease.to_u128().to_le_bytes();
    let time = |time: UnixMs| time.get().to_le_bytes();
    let later = test.now().plus_ms(1);
    for (what, forged) in [
        ("a namespace twice", replace(&bytes, b"team-b", b"team-a")),
        ("a limit twice", replace(&bytes, b"limit:b", b"limit:a")),
        ("a lease twice", replace(&bytes, &id(other), &id(held))),
        ("a lease held and denied", replace(&bytes, &id(denied), &id(held))),
        ("a lease denied and completed", replace(&bytes, &id(completed), &id(denied))),
        ("a lease of nothing", replace(&bytes, &0x0123_4567_89ab_cdef_u64.to_le_bytes(), &[0; 8])),
        ("a lease of more than there is", replace(&bytes, &0x0123_4567_89ab_cdef_u64.to_le_bytes(), &[0xff; 8])),
        ("a lease from the future", replace(&bytes, &time(reserved_at), &time(later))),
        ("a Book before its leases", replace(&bytes, &time(test.now()), &time(reserved_at))),
        ("a denial from the future", replace(&bytes, &time(denied_at), &time(later))),
        ("more leases than a Book can number", replace(&bytes, &0x0a0b_0c0d_u32.to_le_bytes(), &[0xff; 4])),
    ] {
        let Err(error) = restore(&forged, forged.len(), 1) else { panic!("{what} was accepted") };
        assert!(error.to_string().contains("damaged"), "{what}: {error}");
    }
}

#[test]
fn credit_that_contradicts_itself_is_refused_though_its_checksums_fit() {
    let mut bank = Bank::new();
    bank.commit(vec![open("acme-a"), open("acme-b"), open("shut-c"), close("shut-c")]);
    bank.commit(vec![issue("acme-a", "usd", 0x0bad_cafe_0123), issue("acme-b", "eur", 7)]);
    let mut ops = Writer::new("ops");
    for name in ["vault-a", "vault-b"] {
        ops.write(&mut bank.test, vec![Operation::OpenVault { vault: vault(name) }]);
    }
    Writer::of_vault("client-a", "main").write(&mut bank.test, Vec::new());
    Writer::of_vault("client-b", "main").write(&mut bank.test, Vec::new());
    bank.test.put_active(credit("usd", "acme-a", 60, Overage::Debt));
    let lease = bank.test.take(&[("usd", 0x1234_5678)]);
    let last = bank.test.take(&[("usd", 5)]).to_u128().to_le_bytes();
    let bytes = snapshot(&mut bank.test.book);
    assert!(restore(&bytes, bytes.len(), 1).is_ok());
    let amount = |amount: u64| amount.to_le_bytes();
    let nobody = LeaseId::from_parts(START, 0xffff).to_u128().to_le_bytes();
    let lease = lease.to_u128().to_le_bytes();
    // Layout of a hold: lease, limit, paying account, asset, paid account, usage, overage rule, timeout rule, release
    // flag.
    let using = |lease: [u8; 16], limit: u8, account: u8, used: u8, is_released: u8| {
        let named = [limit, 0, 0, 0, account, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        [&lease[..], &named, &[used, 0, 0, 0, 0, 0, 0, 0, 1, 0, is_released]].concat()
    };
    let hold = |lease, limit, account, is_released| using(lease, limit, account, 0, is_released);
    let found = hold(lease, 0, 1, 0);
    for (what, forged) in [
        ("an account twice", replace(&bytes, b"acme-b", b"acme-a")),
        ("a vault twice", replace(&bytes, b"vault-b", b"vault-a")),
        ("a client twice", replace(&bytes, b"\0client-b", b"\0client-a")),
        ("an asset twice", replace(&bytes, b"\x03\0\0\0eur", b"\x03\0\0\0usd")),
        ("an account that stands nowhere", replace(&bytes, b"shut-c\x03", b"shut-c\x07")),
        ("a hold of no lease", replace(&bytes, &found, &hold(nobody, 0, 1, 0))),
        ("a hold of no requirement", replace(&bytes, &found, &hold(lease, 9, 1, 0))),
        ("a hold of no account", replace(&bytes, &found, &hold(lease, 0, 99, 0))),
        ("a hold with usage that nobody reported", replace(&bytes, &found, &using(lease, 0, 1, 3, 0))),
        ("a hold of no balance", replace(&bytes, &found, &hold(lease, 0, 2, 0))),
        ("a hold that lives and was released", replace(&bytes, &hold(last, 0, 1, 0), &hold(last, 0, 1, 1))),
        ("more held than can be counted", replace(&bytes, &amount(0x1234_5678), &amount(u64::MAX))),
        ("a lease that holds less", replace(&bytes, &amount(0x1234_5678), &amount(0))),
    ] {
        let Err(error) = restore(&forged, forged.len(), 1) else { panic!("{what} was accepted") };
        assert!(error.to_string().contains("damaged"), "{what}: {error}");
    }
}

/// Applies random commands to a decoded Book.
fn use_up(book: &mut Book, seed: u64) {
    let start = book.time();
    for timed in Script::new(seed ^ 1).take(60) {
        book.apply(start.plus_ms(timed.now.get() % 100_000), timed.step.command());
    }
    for ms in [1, 1_000, 60_000, 100_000_000, 1 << 47] {
        book.apply(start.plus_ms(ms), Command::Tick);
    }
}

#[test]
fn commands_come_back_from_their_bytes_as_they_were() {
    each_seed("fuzz, codec", 40, |seed| {
        let mut buffer = CommandBuffer::default();
        for timed in Script::new(seed).take(400) {
            let command = timed.step.command();
            let mut bytes = Vec::new();
            command.encode(&mut bytes);
            let length = bytes.len();
            // Bytes of the next command follow.
            bytes.extend_from_slice(&[1, 2, 3]);
            let (decoded, taken) = buffer.decode(&bytes).unwrap();
            assert_eq!((decoded, taken), (command, length), "EARMARK_SEED={seed}");
            for shorter in 0..length {
                assert!(buffer.decode(&bytes[..shorter]).is_err(), "EARMARK_SEED={seed}: {command:?}");
            }
        }
    });
}

#[test]
fn random_and_mutated_commands_leave_the_book_sound() {
    each_seed("fuzz, commands", 250, |seed| {
        let mut random = Random::new(seed);
        let mut buffer = CommandBuffer::default();
        let script = Script::new(seed);
        let mut book = Book::new(script.config(), seed);
        let mut decoded = 0;
        for timed in script.take(400) {
            let mut bytes = Vec::new();
            timed.step.command().encode(&mut bytes);
            match random.below(10) {
                0..4 => {}
                4 => bytes = random.bytes(random.clone().index(200)),
                _ => mutate(&mut bytes, &mut random),
            }
            let Ok((command, taken)) = buffer.decode(&bytes) else { continue };
            assert!(taken <= bytes.len());
            decoded += 1;
            book.apply(timed.at(), command);
        }
        assert!(decoded > 100, "EARMARK_SEED={seed}: only {decoded} decoded");
        assert_sound(&mut book, &format!("EARMARK_SEED={seed}"));
    });
}

/// Times, leases and amounts at the limits of their ranges, which no real client sends.
#[test]
fn commands_from_the_ends_of_all_ranges_leave_the_book_sound() {
    each_seed("fuzz, extremes", 250, |seed| {
        let mut random = Random::new(seed);
        let times = [0, 1, START.get(), START.get() + 1, UnixMs::MAX.get() - 1, u64::MAX];
        let extremes = [0, 1, 2, u64::MAX / 2, u64::MAX - 1, u64::MAX];
        let most = i128::MAX as u128;
        let amounts = [1, u128::from(u64::MAX), most / 2, most - 1, most, most + 1];
        let config = Config {
            retention_ms: random.pick(&extremes),
            lease_ahead_ms: random.pick(&extremes),
            leases_max: random.pick(&[0, 1, 50, u32::MAX]),
            clients_max: random.pick(&[0, 1, 9, u32::MAX]),
            ..Config::default()
        };
        let mut book = Book::new(config, seed);
        let mut highest = 0;
        for timed in Script::new(seed).take(300) {
            let mut step = timed.step;
            if let Step::Reserve { lease, requirements: parts, .. } | Step::Complete { lease, actuals: parts, .. } =
                &mut step
            {
                *lease = LeaseId::from_parts(UnixMs::new(random.pick(&times)), lease.to_u128());
                for part in parts {
                    part.amount = random.pick(&extremes);
                }
            }
            if let Step::Release { lease, .. } = &mut step {
                *lease = LeaseId::from_parts(UnixMs::new(random.pick(&times)), lease.to_u128());
            }
            if let Step::Write(write) = &mut step {
                for operation in &mut write.operations {
                    if let Operation::Issue { amount, .. }
                    | Operation::Transfer { amount, .. }
                    | Operation::Retire { amount, .. } = operation
                    {
                        *amount = random.pick(&amounts);
                    }
                }
            }
            // Reach the end of time late, since nothing can follow it.
            highest = if random.chance(2) { (highest + 1).min(times.len() - 1) } else { highest };
            let log = UnixMs::new(times[random.index(highest + 1)]);
            let wall = UnixMs::new(random.pick(&times));
            book.apply(Moment { log, wall }, step.command());
        }
        assert_sound(&mut book, &format!("EARMARK_SEED={seed}"));
    });
}

/// Regression: a text over 65,535 bytes was truncated on encoding, possibly inside a character, and could not be
/// decoded. The Book refuses oversized texts, equally on every replica.
#[test]
fn a_command_that_the_book_refuses_for_its_size_comes_back_from_its_bytes() {
    let mut definition = rolling("rpm", 1, 60);
    definition.description = "é".repeat(40_000);
    let namespace = NamespaceId::DEFAULT;
    let put = Command::PutLimit(PutLimit { namespace, definition: &definition, expected_revision: None });
    let requirements = vec![Part { limit: LimitRef::Id(LimitId::default()), amount: 1 }; 300];
    let lease = LeaseId::from_parts(START, 1);
    let reserve = Command::Reserve(Reserve {
        namespace,
        lease,
        job: None,
        call: None,
        by_gateway: false,
        requirements: &requirements,
    });
    for command in [put, reserve] {
        let mut bytes = Vec::new();
        command.encode(&mut bytes);
        let mut buffer = CommandBuffer::default();
        assert_eq!(buffer.decode(&bytes), Ok((command, bytes.len())));
    }
}
