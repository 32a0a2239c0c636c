//! The Book's end of the queue: what it is asked, in which order, and what it answered.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex};

use earmark_core::{
    Book, Command, Complete, Definition, DeleteLimit, LeaseId, LimitKey, NamespaceId, NamespaceName, Outcome,
    Part, PutLimit, Reserve, TxId, UnixMs, Write, WriteOutcome,
};

use super::{Shelf, lock};
use crate::answer;
use crate::backend::{Amount, BackendError, CompleteAnswer, LimitChange, LimitError, ReserveAnswer};
use crate::clock::{Clock, Moment};
use crate::ledger::WriteAnswer;
use crate::submitter::Ledger;

/// One command, with what its answer is put together from.
pub(super) enum Work {
    Reserve {
        namespace: Option<NamespaceId>,
        lease: LeaseId,
        parts: Vec<Part>,
        requirements: Vec<Amount>,
    },
    Complete {
        namespace: Option<NamespaceId>,
        lease: LeaseId,
        parts: Vec<Part>,
        actuals: Vec<Amount>,
    },
    Change {
        namespace: NamespaceName,
        change: Change,
        expected_revision: Option<u64>,
    },
    /// Its id and its place in the log are filled in when it is its turn.
    Write(Write),
}

pub(super) enum Change {
    Put(Definition),
    Delete(LimitKey),
}

impl Change {
    pub(super) fn key(&self) -> &LimitKey {
        match self {
            Change::Put(definition) => &definition.key,
            Change::Delete(key) => key,
        }
    }
}

/// The answer to one command.
pub(super) enum Done {
    Reserve(Result<ReserveAnswer, BackendError>),
    Complete(Result<CompleteAnswer, BackendError>),
    Limit(Result<LimitChange, LimitError>),
    Write(WriteAnswer),
}

pub(super) fn mixed_up() -> BackendError {
    BackendError::Failed("answers got mixed up".into())
}

pub(super) struct BookLedger {
    pub(super) shelf: Arc<Mutex<Shelf>>,
    pub(super) clock: Arc<dyn Clock>,
    /// How many writes were committed, which is the place of the latest in the order of all.
    pub(super) log_index: u64,
}

impl BookLedger {
    /// Carries out work in its order. Retries and refused writes take no place in the order of writes, and whether
    /// a write is one of them shows only when it is carried out; so each ends a run, and the next is numbered
    /// after it.
    fn carry_out(&mut self, book: &mut Book, moment: Moment, work: &mut [Work]) -> Vec<Done> {
        let mut done = Vec::with_capacity(work.len());
        for run in work.chunk_by_mut(|item, _| !matches!(item, Work::Write(_))) {
            let log_index = self.log_index.saturating_add(1);
            if let Some(Work::Write(write)) = run.last_mut() {
                write.log_index = log_index;
                write.tx_id = tx_id(moment.log, log_index);
            }
            let outcomes = apply(book, moment, run);
            if let Some(Outcome::Write(WriteOutcome::Committed(_))) = outcomes.last() {
                self.log_index = log_index;
            }
            let answers = run.iter().zip(outcomes);
            done.extend(answers.map(|(item, outcome)| answer(book, moment.wall, item, outcome)));
        }
        done
    }
}

/// The id of a write: a ULID.
fn tx_id(now: UnixMs, log_index: u64) -> TxId {
    let random = RandomState::new().hash_one(log_index);
    let low = (u128::from(random) << 16) | u128::from(log_index & 0xffff);
    TxId(LeaseId::from_parts(now, low).to_u128())
}

impl Ledger for BookLedger {
    /// What one caller sends together.
    type Item = Vec<Work>;
    type Outcome = Vec<Done>;

    /// So many commands keep the lock, which reads wait for, for less than a millisecond.
    const BATCH_EVENTS_MAX: usize = 2_048;

    async fn submit(&mut self, batch: Vec<Vec<Work>>) -> Vec<Vec<Done>> {
        let moment = self.clock.now();
        let lens: Vec<usize> = batch.iter().map(Vec::len).collect();
        let mut work: Vec<Work> = batch.into_iter().flatten().collect();
        let shelf = Arc::clone(&self.shelf);
        let mut done = {
            let mut shelf = lock(&shelf);
            let done = self.carry_out(&mut shelf.book, moment, &mut work);
            let records = shelf.book.drain_journal();
            shelf.history.extend(records);
            done.into_iter()
        };
        lens.into_iter().map(|len| done.by_ref().take(len).collect()).collect()
    }

    async fn idle(&mut self) {
        let now = self.clock.now().log;
        let mut shelf = lock(&self.shelf);
        shelf.book.apply(now, Command::Tick);
        let records = shelf.book.drain_journal();
        shelf.history.extend(records);
    }
}

fn apply(book: &mut Book, moment: Moment, work: &[Work]) -> Vec<Outcome> {
    let (now, wall) = (moment.log, moment.wall);
    for item in work {
        if let Work::Change { namespace, .. } = item
            && book.namespace(namespace).is_none()
        {
            book.apply(now, Command::OpenNamespace(namespace));
        }
    }
    // A namespace that nobody has opened has no limits; its place in the outcomes is kept by a tick.
    let commands: Vec<Command<'_>> = work
        .iter()
        .map(|item| match item {
            Work::Reserve { namespace: Some(namespace), lease, parts, .. } => {
                Command::Reserve(Reserve { namespace: *namespace, lease: *lease, wall, requirements: parts })
            }
            Work::Complete { namespace: Some(namespace), lease, parts, .. } => {
                Command::Complete(Complete { namespace: *namespace, lease: *lease, wall, actuals: parts })
            }
            Work::Change { namespace, change, expected_revision } => {
                let namespace = book.namespace(namespace).unwrap_or(NamespaceId(u16::MAX));
                let expected_revision = *expected_revision;
                match change {
                    Change::Put(definition) => {
                        Command::PutLimit(PutLimit { namespace, definition, expected_revision })
                    }
                    Change::Delete(key) => {
                        Command::DeleteLimit(DeleteLimit { namespace, key, expected_revision })
                    }
                }
            }
            Work::Write(write) => Command::Write(write),
            Work::Reserve { namespace: None, .. } | Work::Complete { namespace: None, .. } => Command::Tick,
        })
        .collect();
    let mut outcomes = Vec::with_capacity(commands.len());
    book.apply_all(now, &commands, &mut outcomes);
    outcomes
}

fn answer(book: &Book, wall: UnixMs, work: &Work, outcome: Outcome) -> Done {
    match (work, outcome) {
        (Work::Reserve { requirements, .. }, Outcome::Reserve(outcome)) => {
            Done::Reserve(answer::reserve(book, wall, requirements, outcome))
        }
        (Work::Reserve { requirements, .. }, _) => Done::Reserve(Ok(answer::unknown_namespace(requirements))),
        (Work::Complete { actuals, .. }, Outcome::Complete(outcome)) => {
            Done::Complete(answer::complete(actuals, outcome))
        }
        (Work::Complete { .. }, _) => Done::Complete(Ok(CompleteAnswer {
            message: Some("namespace: no such namespace".into()),
            ..CompleteAnswer::default()
        })),
        (Work::Change { .. }, Outcome::Limit(outcome)) => Done::Limit(answer::limit(outcome)),
        (Work::Write(_), Outcome::Write(outcome)) => Done::Write(match outcome {
            WriteOutcome::Committed(receipt) | WriteOutcome::Exists(receipt) => {
                WriteAnswer::Committed(receipt)
            }
            WriteOutcome::Refused(error) => WriteAnswer::Refused(error),
        }),
        (Work::Change { .. } | Work::Write(_), _) => {
            Done::Limit(Err(BackendError::Failed("the Book gave no answer".into()).into()))
        }
    }
}
