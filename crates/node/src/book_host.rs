//! The replicated Book behind the backend interface.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use earmark_admission::{
    Answered, Audit, BackendError, BookHost, BookRequest, ChangeCursor, ChangePage, ChangePager, ChangeQuery,
    Direction, EntryCollector, EntryOrder, EntryPage, EntryQuery, Stats, Submission, Submitter, Sums, entry_view,
};
use earmark_core::{
    AccountId, AccountName, Book, Command, JobId, LimitRef, NamespaceName, Part, Principal, UnixMs, VaultId,
};
use tokio::time::Instant;

use crate::fault::Fault;
use crate::proposer::{NO_KEYS, Proposer, QueuedRequests, RaftBatchTarget};
use crate::reads::Reads;
use crate::service::LeaderContact;
use crate::space::{NO_SPACE, needs_space};

/// Events charged per operation of a write. An operation takes about as many bytes as eight commands.
const OPERATION_EVENTS: usize = 8;
/// Bytes of limits and jobs charged as one more event. Bounds a log entry to about one megabyte, so that a slow link can
/// carry it in one message.
const EVENT_BYTES: usize = 384;
/// Bytes charged for a limit by id, its amount included.
const ID_BYTES: usize = 16;
/// Records that the audit reads while it blocks writes. All earlier records are read beside the traffic.
const RECORDS_LEFT: u64 = 1_000;

/// Book host on a Raft log.
pub struct NodeBookHost {
    pub(crate) proposer: Proposer,
    pub(crate) last_leader_contact: LeaderContact,
    pub(crate) reads: Reads,
    pub(crate) submitter: Submitter<RaftBatchTarget>,
    pub(crate) is_stopped: AtomicBool,
}

fn failed(fault: Fault) -> BackendError {
    BackendError::Failed(fault.to_string())
}

fn events(command: &Command<'_>) -> usize {
    let named = |parts: &[Part], job: Option<&JobId>| {
        let bytes = |part: &Part| match &part.limit {
            LimitRef::Key(key) => key.as_str().len(),
            LimitRef::Foreign(limit) => limit.namespace.as_str().len().saturating_add(limit.key.as_str().len()),
            LimitRef::Id(_) => ID_BYTES,
        };
        let job = job.map_or(0, |job| job.as_str().len());
        (parts.iter().map(bytes).sum::<usize>().saturating_add(job) / EVENT_BYTES).saturating_add(1)
    };
    match command {
        Command::Write(write) => write.operations.len().saturating_mul(OPERATION_EVENTS).saturating_add(1),
        Command::Reserve(reserve) => named(reserve.requirements, reserve.job),
        Command::Extend(extend) => named(extend.add, None).saturating_add(named(extend.used, None)),
        Command::Complete(complete) => named(complete.actuals, None),
        Command::PutPolicy(put) => (put.text.len() / EVENT_BYTES).saturating_add(1),
        Command::Release(_)
        | Command::OpenNamespace(_)
        | Command::PutLimit(_)
        | Command::DeleteLimit(_)
        | Command::PutTemplate(_)
        | Command::DeleteTemplate(_)
        | Command::DropLimit(_)
        | Command::PauseLimit(_)
        | Command::SetExternal(_)
        | Command::Configure(_)
        | Command::CreateKey(_)
        | Command::RevokeKey(_)
        | Command::SetQuotas(_)
        | Command::Tick
        | Command::AdvanceTime(_) => 1,
    }
}

impl NodeBookHost {
    /// Whether the leader refuses commands that need space: this node, or another that said so.
    fn is_short_of_space(&self) -> bool {
        let space = &self.proposer.space;
        (space.is_short() && self.proposer.is_leader()) || space.is_leader_short()
    }
}

impl BookHost for NodeBookHost {
    async fn submit<R: BookRequest>(&self, by: Principal, requests: Vec<R>, direction: Direction) -> Vec<Answered<R>> {
        Submission::run(by, requests, |submission| {
            let (mut sum, mut is_about_keys, mut is_growing) = (0_usize, false, false);
            submission.each_command(&mut |_, command| {
                sum = sum.saturating_add(events(&command));
                is_growing |= needs_space(&command);
                is_about_keys |= matches!(command, Command::CreateKey(_) | Command::RevokeKey(_));
            });
            if is_about_keys && !self.proposer.takes_keys {
                return Err(BackendError::Failed(NO_KEYS.into()));
            }
            if is_growing && self.is_short_of_space() {
                return Err(BackendError::Overloaded(NO_SPACE));
            }
            self.submitter.enqueue(QueuedRequests { submission, since: Instant::now() }, sum, direction)
        })
        .await
    }

    async fn read_barrier(&self) -> Result<UnixMs, BackendError> {
        self.reads.barrier().await.map_err(BackendError::Failed)
    }

    fn now(&self) -> UnixMs {
        let last = self.proposer.applied_state.lock().book.time();
        self.proposer.clock.now(last).map_or(last, |now| now.log)
    }

    fn with_book<T>(&self, read: impl FnOnce(&Book) -> T) -> T {
        read(&self.proposer.applied_state.lock().book)
    }

    async fn entries(
        &self,
        (id, name): (AccountId, AccountName),
        query: EntryQuery,
    ) -> Result<EntryPage, BackendError> {
        let applied_state = Arc::clone(&self.proposer.applied_state);
        let read = self.proposer.applied_state.disk.run(move || {
            let mut page = EntryCollector::new(query);
            while let Some((order, after, most)) = page.next_chunk() {
                let journal = &applied_state.journal;
                let (records, has_more) = match order {
                    EntryOrder::Ascending => journal.records_of(id, after, most)?,
                    EntryOrder::Descending => journal.records_before(id, after, most)?,
                };
                let state = applied_state.lock();
                let is_read = records.iter().all(|entry| {
                    let view = entry_view(&state.book, entry.number, &entry.record, (id, &name));
                    page.take(entry.number, view)
                });
                if is_read && !has_more {
                    return Ok(page.finish(false));
                }
            }
            Ok(page.finish(true))
        });
        read.await.map_err(failed)
    }

    async fn audit(&self, vault: VaultId, at: UnixMs) -> Result<Audit, BackendError> {
        let applied_state = Arc::clone(&self.proposer.applied_state);
        let counted = self.proposer.applied_state.disk.run(move || {
            let mut sums = Sums::default();
            let mut next = 1;
            loop {
                let end = applied_state.lock().journal;
                if end.records.saturating_sub(next) <= RECORDS_LEFT {
                    break;
                }
                applied_state.journal.scan(next, end, |entry| {
                    sums.add(&entry.record);
                    true
                })?;
                next = end.records.saturating_add(1);
            }
            let state = applied_state.lock();
            applied_state.journal.scan(next, state.journal, |entry| {
                sums.add(&entry.record);
                true
            })?;
            Ok(sums.audit(&state.book, vault, at))
        });
        counted.await.map_err(failed)
    }

    async fn log(&self, query: ChangeQuery) -> Result<ChangePage, BackendError> {
        let applied_state = Arc::clone(&self.proposer.applied_state);
        let read = self.proposer.applied_state.disk.run(move || {
            let before = query.after.book;
            let mut pager = ChangePager::new(query);
            let rest = applied_state
                .journal
                .changes(before, |entry| pager.take(&applied_state.lock().book, entry.number, &entry.record))?;
            let Some(rest) = rest else { return Ok(pager.finish()) };
            pager.pass(ChangeCursor::of_book(rest));
            Ok(pager.cut())
        });
        read.await.map_err(failed)
    }

    async fn limits_changed(self: &Arc<Self>, _: &NamespaceName, _: bool) -> Result<(), BackendError> {
        Ok(())
    }

    fn limits_version(&self) -> u64 {
        self.proposer.applied_state.limits_version()
    }

    fn runs_maintenance(&self) -> bool {
        self.proposer.is_leader()
    }

    fn stats(&self) -> Stats {
        let state = self.proposer.applied_state.lock();
        let last = state.book.time();
        let now = self.proposer.clock.now(last).map_or(last, |now| now.log);
        Stats::of(&state.book, now, self.submitter.depth())
    }

    fn ready(&self) -> Result<(), String> {
        if self.is_stopped.load(Ordering::Relaxed) {
            return Err("this node is shutting down".into());
        }
        if let Some(failure) = self.proposer.applied_state.failure().get() {
            return Err(failure.to_owned());
        }
        if let Some(why) = self.proposer.lacks_quorum() {
            return Err(why);
        }
        match self.proposer.leader() {
            Some(leader) if leader.id == self.proposer.id => Ok(()),
            Some(_) => self.last_leader_contact.problem(self.proposer.lease.saturating_mul(2)).map_or(Ok(()), Err),
            None => Err("no leader is known".into()),
        }
    }

    fn warning(&self) -> Option<String> {
        self.proposer.space.warning()
    }

    async fn shut_down(self: &Arc<Self>) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.submitter.stop().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use earmark_admission::BatchTarget as _;
    use earmark_core::{LeaseId, LimitKey, NamespaceId, Reserve};

    /// A log entry took 2,048 reserves of any size. With 32 long names each it had 17 megabytes.
    #[test]
    fn an_entry_of_the_log_is_about_a_megabyte_at_most() -> Result<(), Box<dyn std::error::Error>> {
        let long = LimitKey::new(&"x".repeat(255))?;
        for limit in [LimitRef::Id(earmark_core::LimitId { slot: 7, generation: 1 }), LimitRef::Key(long)] {
            let parts = vec![Part { limit, amount: 1 }; 32];
            let (namespace, lease) = (NamespaceId::DEFAULT, LeaseId::from_u128(1));
            let job = JobId::new(&"j".repeat(JobId::BYTES_MAX))?;
            let command = Command::Reserve(Reserve {
                namespace,
                lease,
                job: Some(&job),
                call: None,
                by_gateway: false,
                requirements: &parts,
            });
            let mut bytes = Vec::new();
            command.encode(&mut bytes);
            let entry = bytes.len() * (RaftBatchTarget::BATCH_EVENTS_MAX / events(&command));
            assert!(entry < 5 << 18, "{entry} bytes");
        }
        Ok(())
    }
}
