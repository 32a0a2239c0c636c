//! Pauses of limits: the request and its answer.

use earmark_core::{
    Command, LimitKey, NamespaceId, NamespaceName, Outcome, PAUSE_MS_MAX, PAUSE_REASON_BYTES_MAX, PAUSES_MAX,
    PAUSES_NAMESPACE_MAX, PauseLimit, PauseOutcome, Principal, UnixMs,
};

use crate::backend::LimitError;
use crate::book_host::{BookBackend, BookHost};
use crate::book_request::{Answered, Applied, BookRequest};

/// Refuses reserves of a limit for a time, or resumes it. A second pause replaces the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PauseLimitRequest {
    /// The namespace of the limit.
    pub namespace: NamespaceName,
    /// The limit.
    pub key: LimitKey,
    /// How long, in milliseconds, at most one hour; 0 resumes.
    pub for_ms: u64,
    /// Why, for people; may be empty.
    pub reason: String,
    /// Whether it may only lengthen a pause.
    pub only_lengthen: bool,
}

/// A pause with its namespace resolved.
pub(crate) struct BookPause {
    namespace: NamespaceId,
    request: PauseLimitRequest,
}

impl BookRequest for BookPause {
    /// When the pause ends; `None` if the limit is not paused now.
    type Answer = Option<UnixMs>;
    type Error = LimitError;

    fn command(&self) -> Command<'_> {
        let PauseLimitRequest { key, for_ms, reason, only_lengthen, .. } = &self.request;
        let (for_ms, only_lengthen) = (*for_ms, *only_lengthen);
        Command::PauseLimit(PauseLimit { namespace: self.namespace, key, for_ms, reason, only_lengthen })
    }

    fn answer(&self, _: &Applied<'_>, outcome: Outcome) -> Option<Answered<Self>> {
        if let Outcome::Pause(outcome) = outcome { Some(answer(outcome)) } else { None }
    }
}

fn answer(outcome: PauseOutcome) -> Result<Option<UnixMs>, LimitError> {
    match outcome {
        PauseOutcome::Paused { until } => Ok(Some(until)),
        PauseOutcome::Resumed => Ok(None),
        PauseOutcome::TooLong { found } => Err(LimitError::InvalidPause(format!(
            "for_ms: found {found}, allowed are integers from 0 to {PAUSE_MS_MAX}"
        ))),
        PauseOutcome::ReasonTooLong { found } => Err(LimitError::InvalidPause(format!(
            "reason: found {found} bytes, allowed are up to {PAUSE_REASON_BYTES_MAX}"
        ))),
        PauseOutcome::NotFound => Err(LimitError::NotFound),
        PauseOutcome::TooManyInNamespace => Err(LimitError::TooManyPauses { max: PAUSES_NAMESPACE_MAX }),
        PauseOutcome::TooMany => Err(LimitError::TooManyPauses { max: PAUSES_MAX }),
        PauseOutcome::QuotaExceeded(kind) => Err(LimitError::QuotaExceeded(kind)),
    }
}

impl<H: BookHost> BookBackend<H> {
    pub(crate) async fn pause(&self, by: Principal, request: PauseLimitRequest) -> Result<Option<UnixMs>, LimitError> {
        let inner = &self.0;
        inner.find_namespaces([&request.namespace].into_iter()).await?;
        let namespace = inner.namespace(&request.namespace).ok_or(LimitError::NotFound)?;
        inner.submit_one(by, BookPause { namespace, request }).await
    }
}
