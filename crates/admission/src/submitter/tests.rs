use std::sync::Mutex as StdMutex;
use std::task::Poll;

use tokio::sync::Semaphore;

use super::*;

/// A target that executes a batch per permit and records its batches.
struct Gate {
    batches: Arc<StdMutex<Vec<Vec<u32>>>>,
    open: Arc<Semaphore>,
    idle: Arc<AtomicUsize>,
}

impl BatchTarget for Gate {
    type Item = PendingItem<u32, u32>;
    const BATCH_EVENTS_MAX: usize = 10;

    async fn submit(&mut self, batch: Vec<PendingItem<u32, u32>>) {
        self.batches.lock().unwrap().push(batch.iter().map(|pending| pending.item).collect());
        self.open.acquire().await.unwrap().forget();
        for pending in batch {
            let outcome = pending.item * 2;
            pending.reply(outcome);
        }
    }

    async fn idle(&mut self) {
        self.idle.fetch_add(1, Ordering::SeqCst);
    }
}

struct Desk {
    submitter: Submitter<Gate>,
    batches: Arc<StdMutex<Vec<Vec<u32>>>>,
    open: Arc<Semaphore>,
    idle: Arc<AtomicUsize>,
}

fn desk(queue_max: usize) -> Desk {
    let batches = Arc::new(StdMutex::new(Vec::new()));
    let (open, idle) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let gate = Gate { batches: Arc::clone(&batches), open: Arc::clone(&open), idle: Arc::clone(&idle) };
    Desk { submitter: Submitter::start(gate, queue_max), batches, open, idle }
}

impl Desk {
    fn take(&self, item: u32, events: usize) -> impl Future<Output = Result<u32, BackendError>> + Send + use<> {
        self.submitter.submit(item, events, Direction::Takes)
    }

    /// Waits until the target has received `count` batches.
    async fn until_batches(&self, count: usize) {
        while self.batches.lock().unwrap().len() < count {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn an_idle_ledger_gets_a_single_item_at_once() {
    let desk = desk(100);
    desk.open.add_permits(1);
    assert_eq!(desk.take(21, 1).await, Ok(42));
    assert_eq!(desk.submitter.depth(), 0);
}

#[tokio::test]
async fn a_busy_ledger_gets_what_waits_together_and_answers_by_position() {
    let desk = desk(100);
    let first = desk.take(1, 1);
    desk.until_batches(1).await;
    let rest: Vec<_> = (2..6).map(|item| desk.take(item, 2)).collect();
    assert_eq!(desk.submitter.depth(), 8);
    desk.open.add_permits(9);
    assert_eq!(first.await, Ok(2));
    for (item, answer) in (2..6).zip(rest) {
        assert_eq!(answer.await, Ok(item * 2));
    }
    assert_eq!(*desk.batches.lock().unwrap(), [vec![1], vec![2, 3, 4, 5]]);
}

#[tokio::test]
async fn an_item_is_never_split_between_batches() {
    let desk = desk(100);
    let first = desk.take(1, 1);
    desk.until_batches(1).await;
    let rest: Vec<_> = [(2, 6), (3, 5), (4, 5), (5, 11)].map(|(item, events)| desk.take(item, events)).into();
    desk.open.add_permits(9);
    first.await.unwrap();
    for answer in rest {
        answer.await.unwrap();
    }
    // 6 + 5 exceeds ten, 5 + 5 does not, and an item above ten goes alone.
    assert_eq!(*desk.batches.lock().unwrap(), [vec![1], vec![2], vec![3, 4], vec![5]]);
}

#[tokio::test]
async fn a_full_queue_refuses_reserves_at_once_and_still_takes_completes() {
    let desk = desk(8);
    let _first = desk.take(0, 1);
    desk.until_batches(1).await;
    let waiting: Vec<_> = (0..8).map(|item| desk.take(item, 1)).collect();
    let refused = desk.take(9, 1).await;
    assert_eq!(refused, Err(BackendError::Overloaded("the queue is full")));
    let kept: Vec<_> = (0..2).map(|item| desk.submitter.submit(item, 1, Direction::GivesBack)).collect();
    let refused = desk.submitter.submit(9, 1, Direction::GivesBack).await;
    assert!(matches!(refused, Err(BackendError::Overloaded(_))), "there is an end to that too");
    desk.open.add_permits(99);
    for answer in waiting {
        answer.await.unwrap();
    }
    for answer in kept {
        answer.await.unwrap();
    }
    assert_eq!(desk.submitter.depth(), 0);
}

#[tokio::test]
async fn work_whose_caller_went_away_is_still_submitted() {
    let desk = desk(100);
    let _first = desk.take(1, 1);
    desk.until_batches(1).await;
    // One future is never polled, one is polled once. Both items were queued.
    drop(desk.take(2, 1));
    let mut polled = Box::pin(desk.take(3, 1));
    std::future::poll_fn(|context| {
        assert!(polled.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
    drop(polled);
    desk.open.add_permits(9);
    desk.until_batches(2).await;
    assert_eq!(desk.batches.lock().unwrap()[1], [2, 3]);
}

#[tokio::test]
async fn what_waits_when_it_stops_is_carried_out_and_what_comes_later_refused() {
    let desk = desk(100);
    let answers: Vec<_> = (1..5).map(|item| desk.take(item, 4)).collect();
    desk.open.add_permits(99);
    desk.submitter.stop().await;
    for (item, answer) in (1..5).zip(answers) {
        assert_eq!(answer.await, Ok(item * 2));
    }
    assert!(desk.submitter.is_stopped());
    assert_eq!(desk.take(9, 1).await, Err(BackendError::Overloaded("the server is shutting down")));
    assert_eq!(desk.submitter.depth(), 0);
    desk.submitter.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_ledger_that_nobody_asks_is_woken_every_second() {
    let desk = desk(100);
    tokio::time::sleep(Duration::from_millis(3_500)).await;
    assert_eq!(desk.idle.load(Ordering::SeqCst), 3);
}
