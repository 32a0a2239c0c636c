//! Outcomes survive encoding and decoding between nodes.
//!
//! `EARMARK_SEED=7 cargo test -p earmark-core --test outcomes` replays one script.

#![allow(clippy::unwrap_used, clippy::panic, clippy::arithmetic_side_effects, reason = "a test may")]

mod support;

use earmark_core::{Book, Outcome};

use support::forge::mutate;
use support::random::Random;
use support::script::Script;
use support::soak::each_seed;
use support::wire::{assert_comes_back, encoded};

const SEEDS: u64 = 40;
const STEPS: usize = 400;

fn outcomes(seed: u64) -> Vec<Outcome> {
    let script = Script::new(seed);
    let mut book = Book::new(script.config(), seed);
    script.take(STEPS).map(|timed| book.apply(timed.at(), timed.step.command())).collect()
}

#[test]
fn the_outcomes_of_a_script_come_back_from_their_bytes_as_they_were() {
    each_seed("outcomes", SEEDS, |seed| {
        for outcome in outcomes(seed) {
            assert_comes_back(&outcome, &format!("EARMARK_SEED={seed}"));
        }
    });
}

#[test]
fn outcomes_that_follow_each_other_are_read_one_by_one() {
    each_seed("outcomes, in a row", SEEDS, |seed| {
        let outcomes = outcomes(seed);
        let bytes: Vec<u8> = outcomes.iter().flat_map(encoded).collect();
        let mut rest = &bytes[..];
        for outcome in outcomes {
            let (decoded, taken) = Outcome::decode(rest).unwrap();
            assert_eq!(decoded, outcome, "EARMARK_SEED={seed}");
            rest = &rest[taken..];
        }
        assert_eq!(rest, [], "EARMARK_SEED={seed}");
    });
}

#[test]
fn mutated_outcomes_are_refused_or_have_no_other_bytes() {
    each_seed("outcomes, mutated", SEEDS, |seed| {
        let mut random = Random::new(seed);
        let mut accepted = 0;
        for outcome in outcomes(seed) {
            let mut bytes = encoded(&outcome);
            mutate(&mut bytes, &mut random);
            let Ok((other, taken)) = Outcome::decode(&bytes) else { continue };
            accepted += 1;
            assert_eq!(encoded(&other), bytes[..taken], "EARMARK_SEED={seed}: {other:?}");
        }
        assert!(accepted > 20, "EARMARK_SEED={seed}: only {accepted} were accepted");
    });
}
