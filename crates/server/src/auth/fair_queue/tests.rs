use std::sync::Mutex;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::*;
use crate::metrics::Metrics;

const CONCURRENT: u32 = 4;
/// Items of a batch that takes all permits.
const ALL: usize = CONCURRENT as usize * ITEMS_PER_PERMIT;
const WAITING_MAX: usize = 3;

fn queues() -> FairQueues {
    let limits = QueueLimits { concurrent: NonZeroU32::new(CONCURRENT).unwrap(), waiting_max: WAITING_MAX };
    FairQueues::new(limits, Metrics::new().auth().queue)
}

fn caller(name: &str) -> LimitKey {
    LimitKey::new(name).unwrap()
}

fn bounds() -> WaitBounds<'static> {
    WaitBounds { deadline: Instant::now() + Duration::from_secs(30), hangup: None }
}

async fn acquire(queue: &CallerQueue, items: usize) -> Result<WorkPermit<'_>, AuthError> {
    queue.acquire(items, bounds(), || {}).await
}

/// A request that waits, records its number, and ends.
fn spawn(queue: &Arc<CallerQueue>, items: usize, number: u32, order: &Arc<Mutex<Vec<u32>>>) -> JoinHandle<()> {
    let (queue, order) = (Arc::clone(queue), Arc::clone(order));
    tokio::spawn(async move {
        let _permit = acquire(&queue, items).await.unwrap();
        order.lock().unwrap().push(number);
    })
}

/// Lets every task run until it waits.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_full_queue_of_one_caller_does_not_delay_another() {
    let queues = queues();
    let (noisy, quiet) = (queues.get(&caller("key:1")), queues.get(&caller("key:2")));
    assert!(Arc::ptr_eq(&noisy, &queues.get(&caller("key:1"))));
    let mut permits = Vec::new();
    for _ in 0..CONCURRENT {
        permits.push(acquire(&noisy, 1).await.unwrap());
    }
    let order = Arc::default();
    let waiting: Vec<_> = (0..WAITING_MAX as u32).map(|number| spawn(&noisy, 1, number, &order)).collect();
    settle().await;
    assert_eq!(noisy.waiting.load(Ordering::Relaxed), WAITING_MAX);
    drop(acquire(&quiet, 1).await.unwrap());
    let refused = acquire(&noisy, 1).await.err();
    assert_eq!(refused, Some(AuthError::RateLimited { retry_after_ms: RETRY_AFTER_MS }));
    assert!(order.lock().unwrap().is_empty());
    permits.pop();
    for task in waiting {
        task.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), [0, 1, 2]);
    assert_eq!(noisy.waiting.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_batch_takes_a_permit_for_every_eight_items_and_is_not_overtaken() {
    let queue = queues().get(&caller("key:1"));
    let small = acquire(&queue, 1).await.unwrap();
    let order = Arc::default();
    // It needs more permits than there are, so it takes all of them.
    let batch = spawn(&queue, 1_000_000, 0, &order);
    settle().await;
    let behind = spawn(&queue, 1, 1, &order);
    settle().await;
    assert!(order.lock().unwrap().is_empty(), "{order:?}");
    assert_eq!(queue.waiting.load(Ordering::Relaxed), 2);
    drop(small);
    batch.await.unwrap();
    behind.await.unwrap();
    assert_eq!(*order.lock().unwrap(), [0, 1]);
    for (items, permits) in [(0, 1), (1, 1), (8, 1), (9, 2), (16, 2)] {
        let _some = acquire(&queue, items).await.unwrap();
        assert_eq!(queue.permits.available_permits() as u32, CONCURRENT - permits, "{items}");
    }
    let all = acquire(&queue, usize::MAX).await.unwrap();
    assert_eq!(queue.permits.available_permits(), 0);
    drop(all);
    assert_eq!(queue.permits.available_permits(), CONCURRENT as usize);
}

#[tokio::test]
async fn a_cancelled_request_leaves_the_queue_and_returns_its_permits() {
    let queue = queues().get(&caller("key:1"));
    let all = acquire(&queue, ALL).await.unwrap();
    let order = Arc::default();
    let gone = spawn(&queue, ALL, 0, &order);
    settle().await;
    let behind = spawn(&queue, 1, 1, &order);
    settle().await;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    assert_eq!(queue.waiting.load(Ordering::Relaxed), 1);
    drop(all);
    behind.await.unwrap();
    assert_eq!(*order.lock().unwrap(), [1]);
    assert_eq!(queue.permits.available_permits(), CONCURRENT as usize);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_too_long_or_whose_client_hung_up_is_rejected() {
    let queue = queues().get(&caller("key:1"));
    let _all = acquire(&queue, ALL).await.unwrap();
    let start = Instant::now();
    assert!(acquire(&queue, 1).await.is_err());
    assert_eq!(start.elapsed(), Duration::from_secs(30));
    let hangup = Hangup::default();
    hangup.set();
    let start = Instant::now();
    let bounds = WaitBounds { hangup: Some(&hangup), ..bounds() };
    assert!(queue.acquire(1, bounds, || {}).await.is_err());
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!(!hangup.is_watched());
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_are_logged_once_a_minute() {
    let queue = queues().get(&caller("key:1"));
    let _all = acquire(&queue, ALL).await.unwrap();
    let mut logged = 0;
    for _ in 0..6 {
        // Each waits for half a minute and is rejected.
        assert!(queue.acquire(1, bounds(), || logged += 1).await.is_err());
    }
    assert_eq!(logged, 3);
}
