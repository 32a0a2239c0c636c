//! A node that lags behind what other nodes have acknowledged.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use earmark_admission::{
    Amount, Answered, Applied, Audit, Backend, BackendError, BookBackend, BookHost, BookLimits, BookRequest,
    ChangePage, ChangeQuery, Clock, CompleteRequest, Composed, Direction, EntryPage, EntryQuery, LocalBook,
    LocalOptions, PutLimitRequest, ReserveAnswer, ReserveRequest, Stats, SystemClock,
};
use earmark_core::{
    AccountId, AccountName, Book, Config, Definition, ExternalParts, Kind, LeaseId, NamespaceName, Principal, UnixMs,
    VaultId,
};

use super::support::counter::{key, namespace};
use super::support::mirror::MirroredCredits;

/// Hosts a Book that decides, and shows an empty Book until its next read barrier.
struct Follower {
    leader: Mutex<Book>,
    empty: Book,
    is_behind: AtomicBool,
    clock: SystemClock,
}

impl BookHost for Follower {
    async fn submit<R: BookRequest>(&self, by: Principal, requests: Vec<R>, _: Direction) -> Vec<Answered<R>> {
        let (mut book, now) = (self.leader.lock().unwrap(), self.clock.now());
        let apply = |request: R| {
            let outcome = book.apply_as(now, &by, request.command());
            Applied { book: &book, wall: now.wall, is_repeated: false }.answer(&request, outcome)
        };
        requests.into_iter().map(apply).collect()
    }

    async fn read_barrier(&self) -> Result<UnixMs, BackendError> {
        self.is_behind.store(false, Ordering::SeqCst);
        Ok(self.clock.now().log)
    }

    fn now(&self) -> UnixMs {
        self.clock.now().log
    }

    fn with_book<T>(&self, read: impl FnOnce(&Book) -> T) -> T {
        match self.is_behind.load(Ordering::SeqCst) {
            true => read(&self.empty),
            false => read(&self.leader.lock().unwrap()),
        }
    }

    async fn entries(&self, _: (AccountId, AccountName), _: EntryQuery) -> Result<EntryPage, BackendError> {
        Err(BackendError::Failed("there is no credit here".into()))
    }

    async fn audit(&self, _: VaultId, _: UnixMs) -> Result<Audit, BackendError> {
        Err(BackendError::Failed("there is no credit here".into()))
    }

    async fn log(&self, _: ChangeQuery) -> Result<ChangePage, BackendError> {
        Err(BackendError::Failed("there is no history here".into()))
    }

    async fn limits_changed(self: &Arc<Self>, _: &NamespaceName, _: bool) -> Result<(), BackendError> {
        Ok(())
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }

    fn ready(&self) -> Result<(), String> {
        Ok(())
    }

    async fn shut_down(self: &Arc<Self>) {}
}

fn used(amount: u64) -> Vec<Amount> {
    vec![Amount { key: key("tpm"), amount }]
}

/// A node's knowledge of limits may lag. A reserve of a limit that another node had just created was allowed by the
/// leader and then released, as if the limit were deleted, and its lease was lost. A complete sent the actual of such a
/// limit to credit, which ignored it, so that the overage was lost.
#[tokio::test]
async fn a_limit_that_another_has_just_put_is_reserved_and_settled_by_who_has_not_heard_of_it() {
    let host = Arc::new(Follower {
        leader: Mutex::new(Book::new(Config::default(), 1)),
        empty: Book::new(Config::default(), 1),
        is_behind: AtomicBool::new(false),
        clock: SystemClock::new(),
    });
    let registry = BookBackend::new(Arc::clone(&host));
    let credits = Arc::new(MirroredCredits::new(LocalBook::open(LocalOptions::default()).await.unwrap()));
    let limits = Arc::new(BookLimits::new(registry.clone()));
    let backend = Composed::new(registry, limits, credits, ExternalParts { limits: false, credit: true });
    backend.start().await.unwrap();
    let definition = Definition::new(key("tpm"), Kind::Rolling { window_seconds: 60 }, 10);
    let put = PutLimitRequest { namespace: namespace(), definition, expected_revision: None };
    backend.put_limit(Principal::System, put).await.unwrap();

    let lease = LeaseId::from_parts(host.clock.now().wall, 1);
    host.is_behind.store(true, Ordering::SeqCst);
    let reserve = ReserveRequest {
        namespace: namespace(),
        lease,
        job: None,
        call: None,
        by_gateway: false,
        requirements: used(4),
    };
    let answer = backend.reserve(Principal::System, vec![reserve]).await.remove(0);
    assert!(matches!(answer, Ok(ReserveAnswer::Allowed { .. })), "{answer:?}");

    host.is_behind.store(true, Ordering::SeqCst);
    let complete = CompleteRequest {
        namespace: namespace(),
        lease,
        job: None,
        claim: earmark_core::LeaseClaim::default(),
        actuals: used(15),
        labels: earmark_core::SettleLabels::NONE,
    };
    let answer = backend.complete(Principal::System, vec![complete]).await.remove(0).unwrap();
    assert_eq!((answer.reconciled, answer.overage_debt, answer.ignored), (true, 11, Vec::new()));
    let usage = backend.usage(namespace(), key("tpm")).await.unwrap().unwrap();
    assert_eq!((usage.reserved, usage.debt), (4, 11));
}
