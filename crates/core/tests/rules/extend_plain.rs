//! Extensions that take more of exactly the limits of their lease have a shorter way through the Book, unless any limit is
//! paused. Both ways must be one rule.

use earmark_core::{ExtendOutcome, LeaseId, PauseOutcome, ReserveOutcome};

use crate::support::snapshot::snapshot;
use crate::support::test_book::{Asked, TestBook, concurrency, rolling};

/// The limits by name. A window longer than the retention settles into slots.
const LIMITS: [&str; 5] = ["calls", "day", "rpm", "slow", "tpm"];

fn book() -> TestBook {
    let mut test = TestBook::new();
    test.put_active(concurrency("calls", 40, 5));
    test.put_active(rolling("day", 100_000, 86_400));
    test.put_active(rolling("rpm", 60, 10));
    test.put_active(concurrency("slow", 1_000, 600));
    test.put_active(rolling("tpm", 2_000, 60));
    test.put_active(rolling("other", 1, 60));
    test
}

struct Live {
    lease: LeaseId,
    named: Vec<&'static str>,
    number: u32,
}

/// Two Books with the same stream, one of which extends while the limit `other` is paused.
struct Pair {
    short: TestBook,
    long: TestBook,
    random: u64,
}

impl Pair {
    fn below(&mut self, end: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % end
    }

    fn amounts(&mut self, named: &[&'static str]) -> Vec<(&'static str, u64)> {
        named.iter().map(|name| (*name, 1 + self.below(if name.len() == 3 { 9 } else { 2 }))).collect()
    }

    fn reserve(&mut self) -> Option<Live> {
        let mut named = LIMITS.to_vec();
        while named.len() > 1 && self.below(3) > 0 {
            let place = self.below(named.len() as u64) as usize;
            named.remove(place);
        }
        let amounts = self.amounts(&named);
        let lease = self.short.lease();
        assert_eq!(self.long.lease(), lease);
        let outcome = self.short.reserve(lease, &amounts);
        assert_eq!(self.long.reserve(lease, &amounts), outcome);
        matches!(outcome, ReserveOutcome::Created { .. }).then_some(Live { lease, named, number: 0 })
    }

    /// The outcome of an extension, and its number.
    fn extend(&mut self, live: &Live) -> (ExtendOutcome, u32) {
        let renew = self.below(4) > 0;
        let mut named = live.named.clone();
        if self.below(6) == 0 {
            named.reverse();
        }
        if self.below(8) == 0 {
            named.pop();
        }
        let amounts = self.amounts(&named);
        // Sometimes the last number again, mostly with another body.
        let number = if self.below(12) == 0 { live.number } else { live.number + 1 };
        let asked = Asked { add: &amounts, renew, ..Asked::default() };
        for test in [&mut self.short, &mut self.long] {
            assert!(matches!(test.pause("other", 1_000), PauseOutcome::Paused { .. }));
        }
        self.short.pause("other", 0);
        let outcome = self.short.extend(live.lease, number, asked);
        assert_eq!(self.long.extend(live.lease, number, asked), outcome);
        self.long.pause("other", 0);
        (outcome, number)
    }
}

#[test]
fn the_short_way_of_an_extension_decides_and_changes_what_the_long_one_does() {
    let mut pair = Pair { short: book(), long: book(), random: 5 };
    let (mut live, mut extended, mut denied) = (Vec::new(), 0, 0);
    for step in 0..6_000 {
        let ms = [0, 1, 40, 300, 2_000][pair.below(5) as usize];
        pair.short.advance(ms);
        pair.long.advance(ms);
        if live.len() < 12 {
            live.extend(pair.reserve());
        }
        if live.is_empty() {
            continue;
        }
        let place = pair.below(live.len() as u64) as usize;
        let (outcome, number) = pair.extend(&live[place]);
        match outcome {
            ExtendOutcome::Extended(_) => {
                live[place].number = number;
                extended += 1;
            }
            ExtendOutcome::Denied(_) => {
                live[place].number = number;
                denied += 1;
            }
            ExtendOutcome::LeaseExpired => drop(live.swap_remove(place)),
            other => assert!(matches!(other, ExtendOutcome::NumberReused | ExtendOutcome::Invalid(_)), "{other:?}"),
        }
        if pair.below(6) == 0 && !live.is_empty() {
            let done = live.swap_remove(pair.below(live.len() as u64) as usize);
            let actuals = pair.amounts(&done.named);
            assert_eq!(pair.short.complete(done.lease, &actuals), pair.long.complete(done.lease, &actuals));
        }
        if step % 20 == 0 {
            assert_eq!(snapshot(&mut pair.short.book), snapshot(&mut pair.long.book), "{step}");
        }
    }
    assert!(extended > 1_000 && denied > 100, "{extended} {denied}");
}
