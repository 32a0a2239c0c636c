use std::time::Duration;

use tokio::task::JoinHandle;

use super::*;
use crate::metrics::Metrics;

const AT_ONCE: u32 = 4;
/// As many items as take all places.
const ALL: usize = AT_ONCE as usize * ITEMS_A_PLACE;
const WAITING_MAX: usize = 3;

fn turns() -> Turns {
    let terms = TurnTerms { at_once: NonZeroU32::new(AT_ONCE).unwrap(), waiting_max: WAITING_MAX };
    Turns::new(terms, Metrics::new().door().waits)
}

fn caller(name: &str) -> LimitKey {
    LimitKey::new(name).unwrap()
}

fn patience() -> Patience<'static> {
    Patience { deadline: Instant::now() + Duration::from_secs(30), presence: None }
}

async fn enter(line: &Line, items: usize) -> Result<Place<'_>, Refused> {
    line.enter(items, patience(), || {}).await
}

/// A request that waits and then says its number, and ends at once.
fn waits(line: &Arc<Line>, items: usize, number: u32, went_on: &Arc<Mutex<Vec<u32>>>) -> JoinHandle<()> {
    let (line, went_on) = (Arc::clone(line), Arc::clone(went_on));
    tokio::spawn(async move {
        let _place = enter(&line, items).await.unwrap();
        went_on.lock().unwrap().push(number);
    })
}

/// Lets every task go as far as it can.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn one_line_is_as_long_as_it_likes_and_another_does_not_move_slower() {
    let turns = turns();
    let (noisy, quiet) = (turns.line(&caller("key:1")), turns.line(&caller("key:2")));
    assert!(Arc::ptr_eq(&noisy, &turns.line(&caller("key:1"))));
    let mut places = Vec::new();
    for _ in 0..AT_ONCE {
        places.push(enter(&noisy, 1).await.unwrap());
    }
    let went_on = Arc::default();
    let waiting: Vec<_> = (0..WAITING_MAX as u32).map(|number| waits(&noisy, 1, number, &went_on)).collect();
    settle().await;
    assert_eq!(noisy.waiting.load(Ordering::Relaxed), WAITING_MAX);
    drop(enter(&quiet, 1).await.unwrap());
    let refused = enter(&noisy, 1).await.err();
    assert_eq!(refused, Some(Refused::TooMany { retry_after_ms: RETRY_AFTER_MS }));
    assert!(went_on.lock().unwrap().is_empty());
    places.pop();
    for task in waiting {
        task.await.unwrap();
    }
    assert_eq!(*went_on.lock().unwrap(), [0, 1, 2]);
    assert_eq!(noisy.waiting.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_batch_takes_a_place_for_every_eight_items_and_is_not_overtaken() {
    let line = turns().line(&caller("key:1"));
    let small = enter(&line, 1).await.unwrap();
    let went_on = Arc::default();
    // Larger than all places together, it takes all of them.
    let batch = waits(&line, 1_000_000, 0, &went_on);
    settle().await;
    let behind = waits(&line, 1, 1, &went_on);
    settle().await;
    assert!(went_on.lock().unwrap().is_empty(), "{went_on:?}");
    assert_eq!(line.waiting.load(Ordering::Relaxed), 2);
    drop(small);
    batch.await.unwrap();
    behind.await.unwrap();
    assert_eq!(*went_on.lock().unwrap(), [0, 1]);
    for (items, places) in [(0, 1), (1, 1), (8, 1), (9, 2), (16, 2)] {
        let _some = enter(&line, items).await.unwrap();
        assert_eq!(line.places.available_permits() as u32, AT_ONCE - places, "{items}");
    }
    let all = enter(&line, usize::MAX).await.unwrap();
    assert_eq!(line.places.available_permits(), 0);
    drop(all);
    assert_eq!(line.places.available_permits(), AT_ONCE as usize);
}

#[tokio::test]
async fn whoever_gives_up_leaves_the_line_with_what_was_kept_for_them() {
    let line = turns().line(&caller("key:1"));
    let all = enter(&line, ALL).await.unwrap();
    let went_on = Arc::default();
    let gone = waits(&line, ALL, 0, &went_on);
    settle().await;
    let behind = waits(&line, 1, 1, &went_on);
    settle().await;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    assert_eq!(line.waiting.load(Ordering::Relaxed), 1);
    drop(all);
    behind.await.unwrap();
    assert_eq!(*went_on.lock().unwrap(), [1]);
    assert_eq!(line.places.available_permits(), AT_ONCE as usize);
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_too_long_or_whose_client_is_gone_is_refused() {
    let line = turns().line(&caller("key:1"));
    let _all = enter(&line, ALL).await.unwrap();
    let start = Instant::now();
    assert!(enter(&line, 1).await.is_err());
    assert_eq!(start.elapsed(), Duration::from_secs(30));
    let presence = Presence::default();
    presence.leave();
    let start = Instant::now();
    let patience = Patience { presence: Some(&presence), ..patience() };
    assert!(line.enter(1, patience, || {}).await.is_err());
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!(!presence.is_asked_for());
}

#[tokio::test(start_paused = true)]
async fn that_requests_wait_is_said_once_a_minute() {
    let line = turns().line(&caller("key:1"));
    let _all = enter(&line, ALL).await.unwrap();
    let mut said = 0;
    for _ in 0..6 {
        // Each waits for half a minute, and is refused.
        assert!(line.enter(1, patience(), || said += 1).await.is_err());
    }
    assert_eq!(said, 3);
}

#[test]
fn lines_that_nobody_stands_in_are_forgotten() {
    let turns = turns();
    let kept = turns.line(&caller("kept"));
    for number in 0..10 * SWEEP_MIN {
        drop(turns.line(&caller(&format!("key:{number}"))));
    }
    assert!(turns.lines.lock().unwrap().by_caller.len() <= SWEEP_MIN + 1);
    assert!(Arc::ptr_eq(&kept, &turns.line(&caller("kept"))));
}
