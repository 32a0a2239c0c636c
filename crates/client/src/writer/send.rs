//! Sends a write until its outcome is known.

use earmark_core::{Operation, WriteId};

use super::file::Step;
use super::{Fate, SequenceConflict, Unfinished, Writer, WriterError};
use crate::answer::{Receipt, WriteCode, WriteRefusal};
use crate::deadline::Deadline;
use crate::failure::{Certainty, Failure};
use crate::request::Write;

/// The outcome of the last attempt.
enum Outcome {
    Committed(Receipt),
    Refused(WriteRefusal),
    /// The request was refused before the write was examined.
    Rejected(Failure),
    /// The deadline passed.
    Nothing(Failure),
}

/// The outcome of the last attempt, and whether a copy of an earlier one may still arrive.
struct LastOutcome {
    outcome: Outcome,
    may_arrive_late: bool,
}

/// The meaning of `SEQUENCE_GAP`.
enum Gap {
    /// The server has everything that it acknowledged; it was behind for a moment.
    Closed,
    /// The server lost writes that it acknowledged.
    Lost,
    /// The server could not be asked.
    Unknown(Failure),
}

impl Writer {
    /// Sends operations whose sequence number is on disk, until their outcome is known.
    pub(super) async fn send(
        &mut self,
        sequence: u64,
        operations: Vec<Operation>,
        was_sent: bool,
        deadline: Deadline,
    ) -> Result<Receipt, WriterError> {
        self.reached(Step::Sending);
        let write = self.request(sequence, operations);
        let word = self.send_until_known(&write, was_sent, deadline).await;
        self.reached(Step::Answered);
        let refusal = match word.outcome {
            Outcome::Committed(receipt) => return self.is_committed(sequence, receipt),
            Outcome::Nothing(source) if word.may_arrive_late => {
                return Err(WriterError::OutcomeUnknown { sequence, source });
            }
            Outcome::Refused(refusal) => self.sequence_conflict(sequence, refusal)?,
            Outcome::Nothing(failure) | Outcome::Rejected(failure) => WriterError::NotSent(failure),
        };
        // A refusal is final only if no earlier copy can arrive later, when the reason may be gone.
        if !word.may_arrive_late {
            self.unfinished = None;
            return Err(refusal);
        }
        if self.fence(deadline).await? == Fate::NeverHappened {
            self.mark_known(sequence);
            return Err(refusal);
        }
        // The write is committed. It stays unfinished until its receipt arrives.
        match self.send_until_known(&write, true, deadline).await.outcome {
            Outcome::Committed(receipt) => self.is_committed(sequence, receipt),
            Outcome::Nothing(source) | Outcome::Rejected(source) => {
                Err(WriterError::OutcomeUnknown { sequence, source })
            }
            Outcome::Refused(_) => Err(self.stop(SequenceConflict::NumberTaken { sequence })),
        }
    }

    fn is_committed(&mut self, sequence: u64, receipt: Receipt) -> Result<Receipt, WriterError> {
        if receipt.sequence != Some(sequence) {
            return Err(self.stop(SequenceConflict::NumberTaken { sequence }));
        }
        self.mark_known(sequence);
        Ok(receipt)
    }

    /// Converts a refusal of the operations; stops the writer if the sequence number itself was refused.
    fn sequence_conflict(&mut self, sequence: u64, refusal: WriteRefusal) -> Result<WriterError, WriterError> {
        let server = refusal.last_committed_sequence.unwrap_or(0);
        match refusal.code {
            // Another writer used sequences after this one.
            WriteCode::SequenceReused if server > sequence => {
                Err(self.stop(SequenceConflict::ServerAhead { server, file: sequence }))
            }
            // This writer sends no other content with the same number than a fence.
            WriteCode::SequenceReused if self.unfinished.is_some_and(|unfinished| unfinished.is_fenced) => {
                self.mark_known(sequence);
                Err(WriterError::Fenced { sequence })
            }
            WriteCode::SequenceReused => Err(self.stop(SequenceConflict::NumberTaken { sequence })),
            WriteCode::AlreadyCommitted => Err(self.stop(SequenceConflict::ServerAhead { server, file: sequence })),
            WriteCode::SequenceGap => Err(self.stop(SequenceConflict::ServerBehind { server, file: self.committed })),
            _ => Ok(WriterError::Refused(refusal)),
        }
    }

    /// Sends a transaction without operations with the unfinished number. Either it takes the number, and no copy of the
    /// write can be committed any more; or the write has the number already. The write stays unfinished.
    pub(super) async fn fence(&mut self, deadline: Deadline) -> Result<Fate, WriterError> {
        let Some(unfinished) = self.unfinished else { return Err(WriterError::NothingToRepeat) };
        let Unfinished { sequence, content, .. } = unfinished;
        self.begin(Unfinished { is_fenced: true, ..unfinished }).await?;
        self.reached(Step::SendingFence);
        let fence = self.request(sequence, Vec::new());
        let word = self.send_until_known(&fence, true, deadline).await;
        self.reached(Step::AnsweredFence);
        match word.outcome {
            Outcome::Committed(receipt) if receipt.sequence == Some(sequence) => match content.is_empty() {
                true => Ok(Fate::Committed),
                false => Ok(Fate::NeverHappened),
            },
            Outcome::Committed(_) => Err(self.stop(SequenceConflict::NumberTaken { sequence })),
            Outcome::Refused(refusal)
                if refusal.code == WriteCode::SequenceReused
                    && refusal.last_committed_sequence.is_none_or(|last| last == sequence) =>
            {
                Ok(Fate::Committed)
            }
            Outcome::Refused(refusal) => {
                // The number is in conflict; or the fence was refused, and the outcome stays unknown.
                let message = refusal.to_string();
                self.sequence_conflict(sequence, refusal)?;
                let source = Failure::Invalid { message };
                Err(WriterError::OutcomeUnknown { sequence, source })
            }
            Outcome::Rejected(source) | Outcome::Nothing(source) => {
                Err(WriterError::OutcomeUnknown { sequence, source })
            }
        }
    }

    fn request(&self, sequence: u64, operations: Vec<Operation>) -> Write {
        let (scope, client) = (self.scope.clone(), self.client_id.clone());
        Write { scope, id: WriteId::Sequence { client, sequence }, operations }
    }

    /// Sends the same write until its outcome is known or the deadline passes.
    async fn send_until_known(&self, write: &Write, was_sent: bool, deadline: Deadline) -> LastOutcome {
        let mut backoff = self.client.backoff();
        let mut may_arrive_late = was_sent;
        let mut last = None;
        while !deadline.has_passed() {
            let failure = match self.client.ask_once(write, deadline).await {
                Ok(Ok(receipt)) => {
                    return LastOutcome { outcome: Outcome::Committed(receipt), may_arrive_late };
                }
                Ok(Err(refusal)) if refusal.code == WriteCode::Unavailable => {
                    Failure::Unavailable { server: "the server".into(), message: refusal.message }
                }
                Ok(Err(refusal)) if refusal.code == WriteCode::SequenceGap => match self.gap(deadline).await {
                    Gap::Closed => Failure::Unavailable { server: "the server".into(), message: refusal.message },
                    Gap::Lost => {
                        return LastOutcome { outcome: Outcome::Refused(refusal), may_arrive_late };
                    }
                    Gap::Unknown(failure @ Failure::DeadlinePassed { .. }) => failure,
                    Gap::Unknown(failure) => {
                        return LastOutcome { outcome: Outcome::Rejected(failure), may_arrive_late };
                    }
                },
                Ok(Err(refusal)) => {
                    return LastOutcome { outcome: Outcome::Refused(refusal), may_arrive_late };
                }
                Err(failure) if !failure.is_transient() => {
                    return LastOutcome { outcome: Outcome::Rejected(failure), may_arrive_late };
                }
                Err(failure) => failure,
            };
            may_arrive_late |= failure.certainty() == Certainty::Unknown;
            let wait = backoff.wait(&failure, self.client.servers());
            last = Some(Box::new(failure));
            _ = deadline.bound(tokio::time::sleep(wait)).await;
        }
        LastOutcome { outcome: Outcome::Nothing(Failure::DeadlinePassed { last }), may_arrive_late }
    }

    /// Asks the server for its last committed sequence, to find out the meaning of a gap.
    async fn gap(&self, deadline: Deadline) -> Gap {
        match self.client.client_state(&self.scope, &self.client_id, deadline).await {
            Ok(server) if server >= self.committed => Gap::Closed,
            Ok(_) => Gap::Lost,
            Err(failure) => Gap::Unknown(failure),
        }
    }
}
