//! The lines of a text, by byte offset.

/// The byte offsets at which lines begin.
pub(crate) struct Lines(Vec<usize>);

impl Lines {
    pub(crate) fn of(text: &str) -> Lines {
        let after_break = |(at, byte)| (byte == b'\n').then_some(at + 1);
        Lines(std::iter::once(0).chain(text.bytes().enumerate().filter_map(after_break)).collect())
    }

    /// The line of an offset; the first is 1.
    pub(crate) fn at(&self, offset: usize) -> usize {
        self.0.partition_point(|start| *start <= offset).max(1)
    }
}
