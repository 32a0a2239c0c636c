//! Requests about leases in namespaces that do not exist.

use earmark_core::{Book, Outcome, Principal};

use super::{BookHost, Inner};
use crate::backend::BackendError;
use crate::book_request::{Applied, BookRequest, Decided, NamesLimits};

impl<H: BookHost> Inner<H> {
    /// Answers requests of namespaces that do not exist, after a read barrier. They are no commands: otherwise anybody
    /// could fill the log with them. `None` if a namespace exists.
    pub(super) fn answer_unknown<A, R>(&self, by: &Principal, requests: &[R]) -> Option<Vec<Result<A, BackendError>>>
    where
        R: BookRequest<Answer = Decided<A, R>, Error = BackendError> + NamesLimits,
    {
        if requests.iter().any(|request| request.names().0.is_some()) {
            return None;
        }
        let now = self.host.now();
        let answer = |book: &Book, request: &R| {
            if !book.permits(now, by) {
                return Err(BackendError::Unauthenticated);
            }
            let applied = Applied { book, wall: now, is_repeated: false };
            match request.answer(&applied, Outcome::Ticked) {
                Some(Ok(Decided::Answer(answer))) => Ok(answer),
                Some(Err(error)) => Err(error),
                Some(Ok(Decided::Stale(_))) | None => Err(BackendError::Failed("the Book did not answer".into())),
            }
        };
        Some(self.host.with_book(|book| requests.iter().map(|request| answer(book, request)).collect()))
    }
}
