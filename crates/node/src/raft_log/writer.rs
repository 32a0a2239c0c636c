//! The log writer. All disk changes go through its queue, in order and away from the async worker threads.

use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use earmark_trace::{TraceContext, record_each};
use tokio::sync::{mpsc, oneshot};

use super::NodeContext;
use super::files::{Files, lock};
use crate::disk::Disk;
use crate::entry::payload_bytes;
use crate::failure::Failure;
use crate::fault::Fault;
use crate::traces;
use crate::types::{Entry, LogId, Vote};

pub(crate) const QUEUE_MAX: usize = 64;
/// Queued appends are merged up to about this many bytes per write.
const MERGE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Called once with the result of an append.
pub type Flushed = Box<dyn FnOnce(io::Result<()>) + Send>;

/// A task of the thread that writes the log. Tasks are executed in order.
pub(crate) enum WriteTask {
    Append { entries: Vec<Entry>, done: Flushed },
    Truncate { since: u64, last: Option<LogId>, done: oneshot::Sender<io::Result<()>> },
    Purge { upto: u64 },
    Begin { before: LogId },
    Vote { vote: Vote, done: oneshot::Sender<io::Result<()>> },
    Close { done: oneshot::Sender<io::Result<()>> },
}

impl WriteTask {
    /// Last index that this task removes from disk, if any.
    const fn removes_upto(&self) -> Option<u64> {
        match self {
            WriteTask::Purge { upto } => Some(*upto),
            WriteTask::Begin { before } => Some(before.index),
            WriteTask::Append { .. }
            | WriteTask::Truncate { .. }
            | WriteTask::Vote { .. }
            | WriteTask::Close { .. } => None,
        }
    }
}

/// Runs queued tasks until it is closed or all senders are gone.
pub(crate) async fn run(
    disk: Arc<dyn Disk>,
    files: Files,
    failure: Failure,
    context: Arc<OnceLock<NodeContext>>,
    mut queue: mpsc::Receiver<WriteTask>,
) {
    let files = Arc::new(Mutex::new(files));
    let mut next = queue.recv().await;
    while let Some(work) = next.take() {
        let closing = matches!(work, WriteTask::Close { .. });
        let (batch, after) = merge_appends(work, &mut queue);
        if let (Some(upto), Some(context)) = (batch.removes_upto(), context.get()) {
            let mut covered = context.covered.clone();
            tokio::select! {
                // No further snapshot will be made after the sender is gone, so everything is kept.
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

/// Merges queued appends; also returns the task that ended the merge.
fn merge_appends(work: WriteTask, queue: &mut mpsc::Receiver<WriteTask>) -> (WriteTask, Option<WriteTask>) {
    let WriteTask::Append { mut entries, done } = work else { return (work, None) };
    let mut waiting = vec![done];
    let mut after = None;
    let mut bytes = size(&entries);
    while bytes < MERGE_BYTES_MAX {
        match queue.try_recv() {
            Ok(WriteTask::Append { entries: more, done }) => {
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
                result.as_ref().map_or_else(|error| Err(io::Error::new(error.kind(), error.to_string())), |()| Ok(())),
            );
        }
    };
    (WriteTask::Append { entries, done: Box::new(done) }, after)
}

fn size(entries: &[Entry]) -> usize {
    entries.iter().map(|entry| payload_bytes(&entry.payload)).fold(0, usize::saturating_add)
}

fn perform(files: &mut Files, failure: &Failure, work: WriteTask) {
    let attempt = |change: &mut dyn FnMut() -> Result<(), Fault>| {
        failure.check()?;
        change().map_err(|fault| {
            failure.set(&fault);
            io::Error::other(fault.to_string())
        })
    };
    // The caller may be gone; the change is made anyway.
    match work {
        WriteTask::Append { entries, done } => {
            let traced: Vec<TraceContext> =
                entries.iter().flat_map(|entry| traces::of_payload(&entry.payload)).copied().collect();
            let since = (!traced.is_empty()).then(SystemTime::now);
            let result = attempt(&mut || files.append(&entries));
            let written = result.is_ok();
            if let Some(since) = since.filter(|_| written) {
                record_each("disk", traced, since, &[("earmark.entries", entries.len() as u64)]);
            }
            done(result);
            if written {
                let _ = attempt(&mut || files.advance_mark());
            }
        }
        WriteTask::Truncate { since, last, done } => {
            let _ = done.send(attempt(&mut || files.truncate(since, last)));
            settled(files);
        }
        WriteTask::Purge { upto } => {
            let _ = attempt(&mut || files.purge(upto));
        }
        WriteTask::Begin { before } => {
            let _ = attempt(&mut || files.begin(before.index.wrapping_add(1), Some(before)));
            settled(files);
        }
        WriteTask::Vote { vote, done } => {
            let _ = done.send(attempt(&mut || files.save_vote(vote)));
        }
        WriteTask::Close { done } => {
            let _ = done.send(attempt(&mut || files.close()));
        }
    }
}

fn settled(files: &Files) {
    let mut memory = lock(&files.memory);
    memory.pending = memory.pending.saturating_sub(1);
}
