//! Compares the Book with a simple model.
//!
//! `EARMARK_SEED=7 cargo test -p earmark-core --test model` replays one script. `EARMARK_SOAK_SECONDS=600` runs new
//! ones for that long and prints their `EARMARK_START_SEED`.

#![allow(clippy::unwrap_used, clippy::panic, clippy::arithmetic_side_effects, reason = "a test may")]

mod support;

use std::collections::BTreeMap;

use earmark_core::{
    CompleteOutcome, Config, Definition, InvalidParts, LeaseId, NamespaceId, Outcome, Overage, Part, REQUIREMENTS_MAX,
    ReserveOutcome, UnixMs,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use support::dense_script::DenseScript;
use support::model::Model;
use support::pair::{Difference, compare, shrink};
use support::script::Script;
use support::soak::each_seed;
use support::step::{Step, Timed, by_key, key};
use support::tally::Tally;
use support::test_book::{START, concurrency, rolling};

const SEEDS: u64 = 500;
const STEPS: usize = 400;
const CASES: u32 = 1_000;
const CROWDS: u64 = 3;
const DENSE_STEPS: usize = 16_000;

#[test]
fn every_answer_of_the_book_is_the_models() {
    let mut tally = Tally::default();
    each_seed("model", SEEDS, |seed| {
        let script = Script::new(seed);
        let config = script.config();
        let steps = script.steps(STEPS);
        if let Err(difference) = compare(config, seed, &steps, |outcome| tally.count(outcome)) {
            report(seed, config, &steps, &difference);
        }
    });
    println!("{} steps:\n{tally}", tally.total());
}

fn report(seed: u64, config: Config, steps: &[Timed], difference: &Difference) -> ! {
    let step = difference.step;
    println!("EARMARK_SEED={seed}, step {step}: {:?}\n{}\n", steps[step], difference.what);
    let (fewer, difference) = shrink(config, seed, steps.to_vec());
    println!("the same in {} steps, with {config:#?}:", fewer.len());
    for timed in &fewer {
        println!("  {} {:?}", timed.now, timed.step);
    }
    panic!("the Book and the model differ, EARMARK_SEED={seed}, step {step}: {}", difference.what);
}

#[test]
fn thousands_of_reservations_on_one_limit_are_answered_like_a_few() {
    let mut tally = Tally::default();
    each_seed("model, crowds", CROWDS, |seed| {
        let mut script = DenseScript::new(seed);
        let steps: Vec<Timed> = script.by_ref().take(DENSE_STEPS).collect();
        if let Err(difference) = compare(script.config, seed, &steps, |outcome| tally.count(outcome)) {
            report(seed, script.config, &steps, &difference);
        }
    });
    println!("{} steps:\n{tally}", tally.total());
}

/// Checks that the scripts cause every outcome; others would be untested.
#[test]
fn the_scripts_meet_every_outcome() {
    let mut tally = Tally::default();
    for seed in 0..300 {
        let script = Script::new(seed);
        let mut model = Model::new(script.config());
        for timed in script.take(STEPS) {
            tally.count(&model.apply(timed.at(), timed.step.command()));
        }
    }
    assert_eq!(tally.missing(), Vec::<&str>::new(), "of\n{tally}");
}

/// Regression: leases of 12 to 31 limits were stored wrongly, and too few scripts had such leases. Leases of every size
/// must be allowed, completed, and requested with a duplicate key.
#[test]
fn the_scripts_meet_leases_of_every_size() {
    let mut sizes = [[0_u32; 3]; REQUIREMENTS_MAX + 1];
    for seed in 0..250 {
        let script = Script::new(seed);
        let mut model = Model::new(script.config());
        let mut held: BTreeMap<(NamespaceId, LeaseId), usize> = BTreeMap::new();
        for timed in script.take(STEPS) {
            let outcome = model.apply(timed.at(), timed.step.command());
            let (Some(lease), Step::Reserve { requirements, .. }) = (timed.step.lease(), &timed.step) else {
                if let (Some(lease), Outcome::Complete(CompleteOutcome::Completed(_))) = (timed.step.lease(), outcome) {
                    sizes[held[&lease]][1] += 1;
                }
                continue;
            };
            match outcome {
                Outcome::Reserve(ReserveOutcome::Created { .. }) => {
                    sizes[requirements.len()][0] += 1;
                    held.insert(lease, requirements.len());
                }
                Outcome::Reserve(ReserveOutcome::Invalid(InvalidParts::Duplicate { .. })) => {
                    sizes[requirements.len()][2] += 1;
                }
                _ => {}
            }
        }
    }
    for (size, [allowed, completed, _]) in sizes.iter().enumerate().skip(1) {
        assert!(*allowed > 0 && *completed > 0, "{size}: {sizes:?}");
    }
    let doubled: u32 = sizes[5..].iter().map(|[_, _, doubled]| doubled).sum();
    assert!(doubled > 50, "{sizes:?}");
}

/// One move of a small script. Every move is valid after any other, so that shrinking can leave out any of them.
#[derive(Clone, Debug)]
enum Move {
    Pass(u64),
    Put(Definition),
    Delete(&'static str),
    Reserve(usize, Vec<Part>),
    Complete(usize, Vec<Part>),
}

const KEYS: [&str; 3] = ["c", "a", "b"];
const LEASES: usize = 12;

fn definition() -> impl Strategy<Value = Definition> {
    let hold = select(vec![1_u32, 2, 5, 60, 100_000]);
    let capacity = prop_oneof![4 => 1..8_u64, 1 => u64::MAX - 2..=u64::MAX];
    let overage = select(vec![Overage::Debt, Overage::Deny]);
    (select(KEYS.to_vec()), any::<bool>(), hold, capacity, overage).prop_map(
        |(name, is_rolling, hold, capacity, overage)| {
            let define = if is_rolling { rolling } else { concurrency };
            Definition { overage, ..define(name, capacity, hold) }
        },
    )
}

fn parts(amounts: impl Strategy<Value = u64>) -> impl Strategy<Value = Vec<Part>> {
    vec((select(KEYS.to_vec()), amounts), 0..4)
        .prop_map(|parts| parts.into_iter().map(|(name, amount)| by_key(name, amount)).collect())
}

fn a_move() -> impl Strategy<Value = Move> {
    let pass = prop_oneof![0..5_u64, (1..12_u64).prop_map(|halves| halves * 500), 0..200_000_u64];
    let asked = prop_oneof![6 => 1..5_u64, 1 => Just(u64::MAX)];
    let used = prop_oneof![6 => 0..7_u64, 1 => Just(u64::MAX)];
    prop_oneof![
        3 => pass.prop_map(Move::Pass),
        2 => definition().prop_map(Move::Put),
        1 => select(KEYS.to_vec()).prop_map(Move::Delete),
        5 => (0..LEASES, parts(asked)).prop_map(|(lease, parts)| Move::Reserve(lease, parts)),
        4 => (0..LEASES, parts(used)).prop_map(|(lease, parts)| Move::Complete(lease, parts)),
    ]
}

/// Converts moves to steps. A lease gets its time from its first use.
fn steps(moves: Vec<Move>) -> Vec<Timed> {
    let namespace = NamespaceId::DEFAULT;
    let mut now = START;
    let mut leases: [Option<LeaseId>; LEASES] = [None; LEASES];
    let mut lease_of = |number: usize, now: UnixMs| {
        let random = (number as u128) * 0x1_2345;
        *leases[number].get_or_insert(LeaseId::from_parts(now, random))
    };
    let mut steps = Vec::new();
    for a_move in moves {
        let step = match a_move {
            Move::Pass(ms) => {
                now = now.plus_ms(ms);
                Step::Tick
            }
            Move::Put(definition) => Step::Put { namespace, definition, expected_revision: None },
            Move::Delete(name) => Step::Delete { namespace, key: key(name), expected_revision: None },
            Move::Reserve(number, requirements) => Step::Reserve {
                namespace,
                lease: lease_of(number, now),
                job: None,
                call: None,
                by_gateway: false,
                requirements,
            },
            Move::Complete(number, actuals) => Step::Complete {
                namespace,
                lease: lease_of(number, now),
                claim: earmark_core::LeaseClaim::default(),
                actuals,
                labels: earmark_core::SettleLabels::NONE,
            },
        };
        steps.push(Timed { now, wall: now, step });
    }
    steps
}

proptest! {
    // Failures are printed in their smallest form and not stored in the work tree.
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn small_scripts_find_no_difference_either(
        moves in vec(a_move(), 1..60),
        retention_ms in select(vec![0_u64, 1_000, 3_000, 900_000]),
        leases_max in select(vec![3_u32, 1_000]),
    ) {
        let config = Config { retention_ms, leases_max, ..Config::default() };
        let difference = compare(config, 0, &steps(moves), |_| ());
        prop_assert!(difference.is_ok(), "{difference:?}");
    }
}
