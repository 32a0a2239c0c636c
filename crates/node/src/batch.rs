//! Encoding of the commands of one log entry, and their application to a Book.

use bytes::Bytes;
use earmark_core::{
    Book, CodecError, Command, CommandBuffer, Moment, Outcome, Principal, UnixMs, put_principal, take_principal,
};

use crate::types::Batch;

/// The format of a batch.
const FORMAT: u8 = 1;
/// Format, log time, wall time and command count.
const HEADER_BYTES: usize = 21;
/// Commands decoded and applied together: enough for the Book to prefetch, few enough for the processor cache.
const GROUP: usize = 64;
/// Maximum commands per batch.
pub(crate) const COMMANDS_MAX: usize = 8_192;

/// Why a batch is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BatchError {
    #[error("the batch header is truncated")]
    Short,
    #[error("unknown batch format {found}; this version of Earmark reads format {FORMAT}")]
    Format { found: u8 },
    #[error("{found} commands exceed the maximum of {COMMANDS_MAX}")]
    Count { found: u32 },
    #[error("command {place}: {source}")]
    Command { place: usize, source: CodecError },
    #[error("{left} bytes follow the last command")]
    Long { left: usize },
}

/// Encodes commands into a batch.
pub(crate) struct BatchBuilder {
    bytes: Vec<u8>,
    count: u32,
}

impl BatchBuilder {
    /// An empty batch with capacity for `bytes`.
    pub(crate) fn new(bytes: usize) -> BatchBuilder {
        let mut buffer = Vec::with_capacity(bytes.saturating_add(HEADER_BYTES));
        buffer.resize(HEADER_BYTES, 0);
        BatchBuilder { bytes: buffer, count: 0 }
    }

    pub(crate) fn push(&mut self, command: &Command<'_>) {
        self.push_by(&Principal::System, command);
    }

    pub(crate) fn push_by(&mut self, by: &Principal, command: &Command<'_>) {
        put_principal(&mut self.bytes, by);
        command.encode(&mut self.bytes);
        self.count = self.count.saturating_add(1);
    }

    /// Completes the batch with the leader's log and wall time.
    pub(crate) fn finish(mut self, at: Moment) -> Batch {
        self.bytes[0] = FORMAT;
        self.bytes[1..9].copy_from_slice(&at.log.get().to_le_bytes());
        self.bytes[9..17].copy_from_slice(&at.wall.get().to_le_bytes());
        self.bytes[17..21].copy_from_slice(&self.count.to_le_bytes());
        Bytes::from(self.bytes).into()
    }
}

/// A decoded batch header with the encoded commands.
struct BatchHeader<'a> {
    at: Moment,
    count: usize,
    commands: &'a [u8],
}

fn open(batch: &Batch) -> Result<BatchHeader<'_>, BatchError> {
    let (header, commands) = batch.bytes.split_first_chunk::<HEADER_BYTES>().ok_or(BatchError::Short)?;
    let [format, rest @ ..] = header;
    let (log, rest) = rest.split_first_chunk::<8>().ok_or(BatchError::Short)?;
    let (wall, count) = rest.split_first_chunk::<8>().ok_or(BatchError::Short)?;
    let count = count.first_chunk::<4>().ok_or(BatchError::Short)?;
    if *format != FORMAT {
        return Err(BatchError::Format { found: *format });
    }
    let found = u32::from_le_bytes(*count);
    let count = found as usize;
    if count > COMMANDS_MAX {
        return Err(BatchError::Count { found });
    }
    let time = |bytes: &[u8; 8]| UnixMs::new(u64::from_le_bytes(*bytes));
    Ok(BatchHeader { at: Moment { log: time(log), wall: time(wall) }, count, commands })
}

fn right(rest: &mut &[u8]) -> Result<Principal, CodecError> {
    let (by, used) = take_principal(rest)?;
    *rest = rest.get(used..).unwrap_or_default();
    Ok(by)
}

/// Decodes batches. Reuses its buffers, so it allocates only at first.
#[derive(Default)]
pub(crate) struct BatchReader {
    buffers: Vec<CommandBuffer>,
}

impl BatchReader {
    /// Applies a batch. Returns the outcomes by position.
    pub(crate) fn apply(&mut self, book: &mut Book, log_index: u64, batch: &Batch) -> Result<Vec<Outcome>, BatchError> {
        let BatchHeader { at, count, commands: mut rest } = open(batch)?;
        let mut outcomes = Vec::with_capacity(count);
        while outcomes.len() < count {
            let group = count.saturating_sub(outcomes.len()).min(GROUP);
            if self.buffers.len() < group {
                self.buffers.resize_with(group, CommandBuffer::default);
            }
            let mut commands = Vec::with_capacity(group);
            let mut rights = Vec::with_capacity(group);
            for buffer in self.buffers.iter_mut().take(group) {
                let place = outcomes.len().saturating_add(commands.len());
                let failed = |source| BatchError::Command { place, source };
                rights.push(right(&mut rest).map_err(failed)?);
                let (command, used) = buffer.decode_at(rest, log_index).map_err(failed)?;
                rest = rest.get(used..).unwrap_or_default();
                commands.push(command);
            }
            book.apply_all_as(at, &rights, &commands, &mut outcomes);
        }
        if rest.is_empty() { Ok(outcomes) } else { Err(BatchError::Long { left: rest.len() }) }
    }

    /// Calls `take` with every command of a batch from another node. Its time is ignored.
    pub(crate) fn each(
        &mut self,
        batch: &Batch,
        mut take: impl FnMut(&Principal, &Command<'_>),
    ) -> Result<usize, BatchError> {
        let BatchHeader { count, commands: mut rest, .. } = open(batch)?;
        if self.buffers.is_empty() {
            self.buffers.push(CommandBuffer::default());
        }
        let Some(buffer) = self.buffers.first_mut() else { return Err(BatchError::Short) };
        for place in 0..count {
            let failed = |source| BatchError::Command { place, source };
            let by = right(&mut rest).map_err(failed)?;
            let (command, used) = buffer.decode(rest).map_err(failed)?;
            take(&by, &command);
            rest = rest.get(used..).unwrap_or_default();
        }
        if rest.is_empty() { Ok(count) } else { Err(BatchError::Long { left: rest.len() }) }
    }
}

#[cfg(test)]
mod tests {
    use earmark_core::{Config, Definition, JournalRecord, KeyNumber, Kind, NamespaceId, PutLimit};

    use super::*;

    const AT: Moment = Moment { log: UnixMs::new(7), wall: UnixMs::new(9) };

    #[test]
    fn a_batch_keeps_the_right_of_each_command() {
        let named = Principal::Actor("user:7".parse().unwrap());
        let rights = [Principal::System, Principal::Key(KeyNumber(7)), Principal::Anonymous, named];
        let mut builder = BatchBuilder::new(0);
        rights.iter().for_each(|by| builder.push_by(by, &Command::Tick));
        let mut found = Vec::new();
        let read = BatchReader::default().each(&builder.finish(AT), |by, _| found.push(by.clone()));
        assert_eq!((read, found), (Ok(4), rights.to_vec()));
    }

    #[test]
    fn commands_are_applied_at_the_log_and_wall_time_of_their_batch() {
        let mut book = Book::new(Config::default(), 1);
        let mut builder = BatchBuilder::new(0);
        let definition = Definition::new("rpm".parse().unwrap(), Kind::Rolling { window_seconds: 60 }, 1);
        let namespace = NamespaceId::DEFAULT;
        let put = PutLimit { namespace, definition: &definition, expected_revision: None };
        builder.push_by(&Principal::Anonymous, &Command::PutLimit(put));
        BatchReader::default().apply(&mut book, 1, &builder.finish(AT)).unwrap();
        let [JournalRecord::Limit(entry)] = &book.drain_journal()[..] else { panic!() };
        assert_eq!(entry.at, AT);
    }

    #[test]
    fn another_format_is_refused_by_its_number() {
        let mut bytes = BatchBuilder::new(0).finish(AT).bytes.to_vec();
        bytes[0] = 2;
        let refused = BatchReader::default().each(&Batch::from(Bytes::from(bytes)), |_, _| ());
        assert_eq!(refused, Err(BatchError::Format { found: 2 }));
    }
}
