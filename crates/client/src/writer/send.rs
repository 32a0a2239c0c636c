//! Sending under a number until it is known what became of it.

use earmark_core::Operation;

use super::file::Step;
use super::{Danger, Fate, Unfinished, Writer, WriterError};
use crate::ask::{Ask, Receipt, WriteCode, WriteItem, WriteRefusal};
use crate::deadline::Deadline;
use crate::failure::{Certainty, Failure};

/// What was heard of one number.
enum Heard {
    Committed(Receipt),
    Refused(WriteRefusal),
    /// Refused before it was looked at.
    Rejected(Failure),
    /// The deadline passed.
    Nothing(Failure),
}

/// The last word on a number, and whether a copy of it may still be under way.
struct LastWord {
    heard: Heard,
    may_be_under_way: bool,
}

/// What it means that a server finds a gap before a number.
enum Gap {
    /// It has everything that it acknowledged, so what it saw is over.
    Closed,
    /// It has lost what it acknowledged.
    Lost,
    /// It could not be asked, which says nothing about what it has.
    Unknown(Failure),
}

impl Writer {
    /// Sends the operations under a number that is on disk, and finds out what became of them.
    pub(super) async fn send(
        &mut self,
        sequence: u64,
        operations: Vec<Operation>,
        was_sent: bool,
        deadline: Deadline,
    ) -> Result<Receipt, WriterError> {
        self.reached(Step::Sending);
        let ask = self.ask(sequence, operations);
        let word = self.insist(&ask, was_sent, deadline).await;
        self.reached(Step::Answered);
        let refusal = match word.heard {
            Heard::Committed(receipt) => return self.is_committed(sequence, receipt),
            Heard::Nothing(source) if word.may_be_under_way => {
                return Err(WriterError::OutcomeUnknown { sequence, source });
            }
            Heard::Refused(refusal) => self.about_numbers(sequence, refusal)?,
            Heard::Nothing(failure) | Heard::Rejected(failure) => WriterError::NotSent(failure),
        };
        // A refusal is final only if no copy can still arrive, when what was in the way may be gone.
        if !word.may_be_under_way {
            self.unfinished = None;
            return Err(refusal);
        }
        if self.fence(deadline).await? == Fate::NeverHappened {
            self.ended(sequence);
            return Err(refusal);
        }
        // It is committed, but until its receipt is here its caller has not heard of it.
        match self.insist(&ask, true, deadline).await.heard {
            Heard::Committed(receipt) => self.is_committed(sequence, receipt),
            Heard::Nothing(source) | Heard::Rejected(source) => {
                Err(WriterError::OutcomeUnknown { sequence, source })
            }
            Heard::Refused(_) => Err(self.stop(Danger::NumberTaken { sequence })),
        }
    }

    fn is_committed(&mut self, sequence: u64, receipt: Receipt) -> Result<Receipt, WriterError> {
        if receipt.sequence != sequence {
            return Err(self.stop(Danger::NumberTaken { sequence }));
        }
        self.ended(sequence);
        Ok(receipt)
    }

    /// A refusal of the operations; an error if the number itself is what is wrong.
    fn about_numbers(&mut self, sequence: u64, refusal: WriteRefusal) -> Result<WriterError, WriterError> {
        let server = refusal.last_committed_sequence.unwrap_or(0);
        match refusal.code {
            // Whoever has counted on from this number is another writer.
            WriteCode::SequenceReused if server > sequence => {
                Err(self.stop(Danger::ServerAhead { server, file: sequence }))
            }
            // Of what this writer sent under the number, only a fence has other content.
            WriteCode::SequenceReused if self.unfinished.is_some_and(|unfinished| unfinished.is_fenced) => {
                self.ended(sequence);
                Err(WriterError::Fenced { sequence })
            }
            WriteCode::SequenceReused => Err(self.stop(Danger::NumberTaken { sequence })),
            WriteCode::AlreadyCommitted => Err(self.stop(Danger::ServerAhead { server, file: sequence })),
            WriteCode::SequenceGap => Err(self.stop(Danger::ServerBehind { server, file: self.committed })),
            _ => Ok(WriterError::Refused(refusal)),
        }
    }

    /// Sends a transaction without operations under the unfinished number. Either it takes the number, and no copy of
    /// the write can any more; or the write has it already. The number stays unfinished until its caller hears of it.
    pub(super) async fn fence(&mut self, deadline: Deadline) -> Result<Fate, WriterError> {
        let Some(unfinished) = self.unfinished else { return Err(WriterError::NothingToRepeat) };
        let Unfinished { sequence, content, .. } = unfinished;
        self.begin(Unfinished { is_fenced: true, ..unfinished }).await?;
        self.reached(Step::SendingFence);
        let ask = self.ask(sequence, Vec::new());
        let word = self.insist(&ask, true, deadline).await;
        self.reached(Step::AnsweredFence);
        match word.heard {
            Heard::Committed(receipt) if receipt.sequence == sequence => match content.is_empty() {
                true => Ok(Fate::Committed),
                false => Ok(Fate::NeverHappened),
            },
            Heard::Committed(_) => Err(self.stop(Danger::NumberTaken { sequence })),
            Heard::Refused(refusal)
                if refusal.code == WriteCode::SequenceReused
                    && refusal.last_committed_sequence.is_none_or(|last| last == sequence) =>
            {
                Ok(Fate::Committed)
            }
            Heard::Refused(refusal) => {
                // The numbers are wrong; or the fence was refused, and nothing is known for certain.
                let message = refusal.to_string();
                self.about_numbers(sequence, refusal)?;
                let source = Failure::Invalid { message };
                Err(WriterError::OutcomeUnknown { sequence, source })
            }
            Heard::Rejected(source) | Heard::Nothing(source) => {
                Err(WriterError::OutcomeUnknown { sequence, source })
            }
        }
    }

    fn ask(&self, sequence: u64, operations: Vec<Operation>) -> Ask {
        let (scope, client) = (self.scope.clone(), self.client_id.clone());
        WriteItem { scope, client, sequence, operations }.into()
    }

    /// Sends the same again and again until somebody says what became of it.
    async fn insist(&self, ask: &Ask, was_sent: bool, deadline: Deadline) -> LastWord {
        let mut backoff = self.client.backoff();
        let mut may_be_under_way = was_sent;
        let mut last = None;
        while !deadline.has_passed() {
            let failure = match self.client.write_once(ask, deadline).await {
                Ok(Ok(receipt)) => {
                    return LastWord { heard: Heard::Committed(receipt), may_be_under_way };
                }
                Ok(Err(refusal)) if refusal.code == WriteCode::Unavailable => {
                    Failure::Unavailable { server: "the server".into(), message: refusal.message }
                }
                Ok(Err(refusal)) if refusal.code == WriteCode::SequenceGap => {
                    match self.gap(deadline).await {
                        Gap::Closed => {
                            Failure::Unavailable { server: "the server".into(), message: refusal.message }
                        }
                        Gap::Lost => return LastWord { heard: Heard::Refused(refusal), may_be_under_way },
                        Gap::Unknown(failure @ Failure::DeadlinePassed { .. }) => failure,
                        Gap::Unknown(failure) => {
                            return LastWord { heard: Heard::Rejected(failure), may_be_under_way };
                        }
                    }
                }
                Ok(Err(refusal)) => return LastWord { heard: Heard::Refused(refusal), may_be_under_way },
                Err(failure) if !failure.is_transient() => {
                    return LastWord { heard: Heard::Rejected(failure), may_be_under_way };
                }
                Err(failure) => failure,
            };
            may_be_under_way |= failure.certainty() == Certainty::Unknown;
            let wait = backoff.wait(&failure, self.client.servers());
            last = Some(Box::new(failure));
            _ = deadline.bound(tokio::time::sleep(wait)).await;
        }
        LastWord { heard: Heard::Nothing(Failure::DeadlinePassed { last }), may_be_under_way }
    }

    /// What a gap means, now that the server has made sure of how far this client has counted.
    async fn gap(&self, deadline: Deadline) -> Gap {
        match self.client.client_state(&self.scope, &self.client_id, deadline).await {
            Ok(server) if server >= self.committed => Gap::Closed,
            Ok(_) => Gap::Lost,
            Err(failure) => Gap::Unknown(failure),
        }
    }
}
