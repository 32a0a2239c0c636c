//! The one that writes. Everything that changes the disk goes through its queue, so that it happens in order and away
//! from the threads that serve.

use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::{mpsc, oneshot};

use super::Ground;
use super::files::{Files, lock};
use crate::disk::Disk;
use crate::entry::payload_bytes;
use crate::failure::Failure;
use crate::fault::Fault;
use crate::types::{Entry, LogId, Vote};

/// How many pieces of work may wait.
pub(crate) const QUEUE_MAX: usize = 64;
/// Appends that wait are written together up to about so many bytes.
const MERGE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Called once with what became of an append.
pub type Flushed = Box<dyn FnOnce(io::Result<()>) + Send>;

/// Something that is to be done to the disk.
pub(crate) enum Work {
    Append { entries: Vec<Entry>, done: Flushed },
    Truncate { since: u64, last: Option<LogId>, done: oneshot::Sender<io::Result<()>> },
    Purge { upto: u64 },
    Begin { before: LogId },
    Vote { vote: Vote, done: oneshot::Sender<io::Result<()>> },
    Close { done: oneshot::Sender<io::Result<()>> },
}

impl Work {
    /// Up to where entries leave the disk for good, if they do.
    const fn lets_go(&self) -> Option<u64> {
        match self {
            Work::Purge { upto } => Some(*upto),
            Work::Begin { before } => Some(before.index),
            Work::Append { .. } | Work::Truncate { .. } | Work::Vote { .. } | Work::Close { .. } => None,
        }
    }
}

/// Does what comes out of the queue, until it is told to close or nobody is left to ask.
pub(crate) async fn run(
    disk: Arc<dyn Disk>,
    files: Files,
    failure: Failure,
    ground: Arc<OnceLock<Ground>>,
    mut queue: mpsc::Receiver<Work>,
) {
    let files = Arc::new(Mutex::new(files));
    let mut next = queue.recv().await;
    while let Some(work) = next.take() {
        let closing = matches!(work, Work::Close { .. });
        let (batch, after) = gather(work, &mut queue);
        if let (Some(upto), Some(ground)) = (batch.lets_go(), ground.get()) {
            let mut covered = ground.covered.clone();
            tokio::select! {
                // Nobody will make a snapshot any more if what makes them is gone; then it is better to keep all.
                found = covered.wait_for(|covered| *covered >= Some(upto)) => if found.is_err() { return },
                _ = failure.wait() => {}
            }
        }
        let (files, failure) = (Arc::clone(&files), failure.clone());
        let job = move || {
            let mut files = files.lock().unwrap_or_else(PoisonError::into_inner);
            perform(&mut files, &failure, batch);
        };
        disk.offload(Box::new(job)).await;
        if closing {
            return;
        }
        next = match after {
            Some(work) => Some(work),
            None => queue.recv().await,
        };
    }
}

/// Appends that wait, as one; and what waits behind them.
fn gather(work: Work, queue: &mut mpsc::Receiver<Work>) -> (Work, Option<Work>) {
    let Work::Append { mut entries, done } = work else { return (work, None) };
    let mut waiting = vec![done];
    let mut after = None;
    let mut bytes = size(&entries);
    while bytes < MERGE_BYTES_MAX {
        match queue.try_recv() {
            Ok(Work::Append { entries: more, done }) => {
                bytes = bytes.saturating_add(size(&more));
                entries.extend(more);
                waiting.push(done);
            }
            Ok(other) => {
                after = Some(other);
                break;
            }
            Err(_) => break,
        }
    }
    let done = move |result: io::Result<()>| {
        for done in waiting {
            done(
                result
                    .as_ref()
                    .map_or_else(|error| Err(io::Error::new(error.kind(), error.to_string())), |()| Ok(())),
            );
        }
    };
    (Work::Append { entries, done: Box::new(done) }, after)
}

fn size(entries: &[Entry]) -> usize {
    entries.iter().map(|entry| payload_bytes(&entry.payload)).fold(0, usize::saturating_add)
}

fn perform(files: &mut Files, failure: &Failure, work: Work) {
    let attempt = |change: &mut dyn FnMut() -> Result<(), Fault>| {
        failure.check()?;
        change().map_err(|fault| {
            failure.set(&fault);
            io::Error::other(fault.to_string())
        })
    };
    // Whoever asked may have gone away; what was asked is done all the same.
    match work {
        Work::Append { entries, done } => {
            let result = attempt(&mut || files.append(&entries));
            let written = result.is_ok();
            done(result);
            if written {
                let _ = attempt(&mut || files.advance_mark());
            }
        }
        Work::Truncate { since, last, done } => {
            let _ = done.send(attempt(&mut || files.truncate(since, last)));
            settled(files);
        }
        Work::Purge { upto } => {
            let _ = attempt(&mut || files.purge(upto));
        }
        Work::Begin { before } => {
            let _ = attempt(&mut || files.begin(before.index.wrapping_add(1), Some(before)));
            settled(files);
        }
        Work::Vote { vote, done } => {
            let _ = done.send(attempt(&mut || files.save_vote(vote)));
        }
        Work::Close { done } => {
            let _ = done.send(attempt(&mut || files.close()));
        }
    }
}

fn settled(files: &Files) {
    let mut memory = lock(&files.memory);
    memory.pending = memory.pending.saturating_sub(1);
}
