//! A Book host without a queue or a task: callers execute their own commands under a lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use earmark_admission::{
    Answered, Applied, Audit, BackendError, BookHost, BookRequest, ChangePage, ChangeQuery, Clock, Direction,
    EntryPage, EntryQuery, Stats,
};
use earmark_core::{
    AccountId, AccountName, Book, Config, LeaseId, Moment, NamespaceName, Outcome, Principal, TxId, UnixMs, VaultId,
    WriteOutcome,
};

pub(super) struct LocalHost {
    state: Mutex<LocalState>,
    clock: Arc<dyn Clock>,
}

struct LocalState {
    book: Book,
    /// The number of committed writes.
    log_index: u64,
}

impl LocalState {
    fn execute<R: BookRequest>(&mut self, moment: Moment, by: &Principal, mut requests: Vec<R>) -> Vec<Answered<R>> {
        let done = requests.iter_mut().map(|request| {
            let log_index = self.log_index.saturating_add(1);
            if let Some(write) = request.write_mut() {
                write.log_index = log_index;
                write.tx_id = tx_id(moment.log);
            }
            let outcome = self.book.apply_as(moment, by, request.command());
            if let Outcome::Write(WriteOutcome::Committed(_)) = outcome {
                self.log_index = log_index;
            }
            let applied = Applied { book: &self.book, wall: moment.wall, is_repeated: false };
            applied.answer(request, outcome)
        });
        let done = done.collect();
        // A Book that ends with its process needs no history.
        drop(self.book.drain_journal());
        done
    }
}

fn tx_id(now: UnixMs) -> TxId {
    TxId(LeaseId::from_parts(now, rand::random()).to_u128())
}

impl LocalHost {
    pub(super) fn new(config: Config, clock: Arc<dyn Clock>) -> LocalHost {
        let book = Book::new(config, rand::random());
        LocalHost { state: Mutex::new(LocalState { book, log_index: 0 }), clock }
    }

    fn lock(&self) -> MutexGuard<'_, LocalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn no_history() -> BackendError {
    BackendError::Failed("a Book in the process of its callers has no history".into())
}

impl BookHost for LocalHost {
    async fn submit<R: BookRequest>(&self, by: Principal, requests: Vec<R>, _: Direction) -> Vec<Answered<R>> {
        let mut state = self.lock();
        // The clock is read under the lock, so that time never goes backwards between commands.
        state.execute(self.clock.now(), &by, requests)
    }

    async fn read_barrier(&self) -> Result<UnixMs, BackendError> {
        Ok(self.clock.now().log)
    }

    fn now(&self) -> UnixMs {
        self.clock.now().log
    }

    fn with_book<T>(&self, read: impl FnOnce(&Book) -> T) -> T {
        read(&self.lock().book)
    }

    async fn entries(&self, _: (AccountId, AccountName), _: EntryQuery) -> Result<EntryPage, BackendError> {
        Err(no_history())
    }

    async fn audit(&self, _: VaultId, _: UnixMs) -> Result<Audit, BackendError> {
        Err(no_history())
    }

    async fn log(&self, _: ChangeQuery) -> Result<ChangePage, BackendError> {
        Err(no_history())
    }

    async fn limits_changed(self: &Arc<Self>, _: &NamespaceName, _: bool) -> Result<(), BackendError> {
        Ok(())
    }

    fn stats(&self) -> Stats {
        let now = self.clock.now().log;
        Stats::of(&self.lock().book, now, 0)
    }

    fn ready(&self) -> Result<(), String> {
        Ok(())
    }

    async fn shut_down(self: &Arc<Self>) {}
}
