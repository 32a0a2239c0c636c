//! Several pieces of work of one caller at once.

use std::pin::Pin;
use std::task::Poll;

/// Does pieces of work side by side, and gives what each gave, in order. Nothing is spawned: it ends with its caller.
pub(crate) async fn side_by_side<F: Future>(work: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<Pin<Box<F>>> = work.map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    std::future::poll_fn(move |context| {
        for (work, done) in running.iter_mut().zip(&mut done).filter(|(_, done)| done.is_none()) {
            if let Poll::Ready(result) = work.as_mut().poll(context) {
                *done = Some(result);
            }
        }
        match done.iter().all(Option::is_some) {
            true => Poll::Ready(std::mem::take(&mut done).into_iter().flatten().collect()),
            false => Poll::Pending,
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_goes_on_while_others_wait_and_answers_come_in_order() {
        let all = tokio::sync::Barrier::new(8);
        let told = side_by_side((0..8).map(|place| {
            let all = &all;
            async move {
                all.wait().await;
                place
            }
        }));
        assert_eq!(told.await, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(side_by_side(std::iter::empty::<std::future::Ready<u8>>()).await, [0_u8; 0]);
    }
}
