//! The Book and the model side by side.

use std::panic::{AssertUnwindSafe, catch_unwind};

use earmark_core::{Book, Config, LeaseId, LimitId, LimitStatus, NamespaceId, Outcome, UnixMs};

use super::model::Model;
use super::random::Random;
use super::step::Timed;

const LEASES_READ: usize = 6;

pub struct Pair {
    pub book: Book,
    model: Model,
    /// What is read after a step beyond the present: which old lease, and how far ahead.
    random: Random,
    leases: Vec<(NamespaceId, LeaseId)>,
}

/// Where the two part ways.
#[derive(Debug)]
pub struct Difference {
    /// The place of the step.
    pub step: usize,
    pub what: String,
}

impl Pair {
    pub fn new(config: Config, seed: u64) -> Pair {
        let book = Book::new(config, seed);
        Pair { book, model: Model::new(config), random: Random::new(seed), leases: Vec::new() }
    }

    /// Both take the step, and are compared in everything that can be asked.
    pub fn apply(&mut self, timed: &Timed) -> Result<Outcome, String> {
        let command = timed.step.command();
        let of_model = self.model.apply(timed.now, command);
        let of_book = self.book.apply(timed.now, command);
        same("outcome", &of_book, &of_model)?;
        if let Some(lease) = timed.step.lease()
            && !self.leases.contains(&lease)
        {
            self.leases.push(lease);
        }
        self.compare_reads(timed.now)?;
        Ok(of_book)
    }

    fn compare_reads(&mut self, now: UnixMs) -> Result<(), String> {
        let (book, model) = (&self.book, &self.model);
        same("time", &book.time(), &model.time())?;
        same("forgotten_before", &book.forgotten_before(), &model.forgotten_before())?;
        same("leases", &book.leases(), &model.leases())?;
        for (number, name) in (0..).zip(model.namespaces()) {
            same("namespace", &book.namespace(name), &Some(NamespaceId(number)))?;
        }
        let ahead = match self.random.below(4) {
            0 => self.random.below(1_500),
            1 => 500 * self.random.below(12),
            2 => self.random.below(100_000),
            _ => self.random.below(1 << 36),
        };
        for at in [now, book.time().plus_ms(ahead)] {
            self.compare_limits(at)?;
        }
        let newest = self.leases.iter().rev().take(LEASES_READ);
        let older = (!self.leases.is_empty()).then(|| &self.leases[self.random.index(self.leases.len())]);
        for &(namespace, lease) in newest.chain(older) {
            for at in [now, self.book.time().plus_ms(ahead)] {
                let of_book = self.book.lease(at, namespace, lease);
                same("lease", &of_book, &self.model.lease(at, namespace, lease))
                    .map_err(|difference| format!("{lease} at {at}: {difference}"))?;
            }
        }
        Ok(())
    }

    fn compare_limits(&self, at: UnixMs) -> Result<(), String> {
        let (book, model) = (&self.book, &self.model);
        let numbers = u32::try_from(model.limits_ever()).unwrap();
        for id in (0..=numbers).map(LimitId) {
            let usage = book.usage(at, id);
            same("usage", &usage, &model.usage(at, id))
                .and_then(|()| same("limit", &book.limit(at, id), &model.limit(at, id)))
                .map_err(|difference| format!("{id:?} at {at}: {difference}"))?;
            let Some(usage) = usage else { continue };
            let is_decreasing = matches!(usage.status, LimitStatus::Decreasing { .. });
            if usage.reserved > usage.capacity && !is_decreasing {
                return Err(format!("{id:?} at {at}: more is reserved than there is: {usage:?}"));
            }
            if usage.available != usage.capacity.saturating_sub(usage.reserved) {
                return Err(format!("{id:?} at {at}: available is not what is left: {usage:?}"));
            }
        }
        for namespace in [NamespaceId::DEFAULT, NamespaceId(1), NamespaceId(7)] {
            let limits = book.limits(at, namespace);
            same("limits", &limits, &model.limits(at, namespace))?;
            for info in limits {
                let key = &info.definition.key;
                same("resolve", &book.resolve(namespace, key), &model.resolve(namespace, key))?;
            }
        }
        Ok(())
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, of_book: &T, of_model: &T) -> Result<(), String> {
    if of_book == of_model {
        return Ok(());
    }
    Err(format!("{what}\n   book: {of_book:?}\n  model: {of_model:?}"))
}

/// Runs all steps through a fresh pair. A panic is a difference too, so that it can be made smaller.
pub fn compare(
    config: Config,
    seed: u64,
    steps: &[Timed],
    mut seen: impl FnMut(&Outcome),
) -> Result<(), Difference> {
    let mut pair = Pair::new(config, seed);
    for (step, timed) in steps.iter().enumerate() {
        let what = match catch_unwind(AssertUnwindSafe(|| pair.apply(timed))) {
            Ok(Ok(outcome)) => {
                seen(&outcome);
                continue;
            }
            Ok(Err(difference)) => difference,
            Err(_) => "a panic, printed above".to_owned(),
        };
        return Err(Difference { step, what });
    }
    Ok(())
}

/// More steps than this are not spent on making a failure smaller.
const SHRINK_STEPS_MAX: usize = 3_000_000;

/// Leaves out steps for as long as the rest still shows a difference.
pub fn shrink(config: Config, seed: u64, mut steps: Vec<Timed>) -> (Vec<Timed>, Difference) {
    let mut difference = compare(config, seed, &steps, |_| ()).unwrap_err();
    steps.truncate(difference.step + 1);
    let mut size = steps.len() / 2;
    let mut spent = 0;
    while size > 0 {
        let mut start = 0;
        while start < steps.len() {
            spent += steps.len();
            if spent > SHRINK_STEPS_MAX {
                return (steps, difference);
            }
            let mut fewer = steps.clone();
            fewer.drain(start..steps.len().min(start + size));
            match compare(config, seed, &fewer, |_| ()) {
                Err(found) => {
                    fewer.truncate(found.step + 1);
                    (steps, difference) = (fewer, found);
                }
                Ok(()) => start += size,
            }
        }
        size /= 2;
    }
    (steps, difference)
}
