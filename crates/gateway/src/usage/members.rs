//! Members of a JSON document, picked out while its bytes pass.
//!
//! The document may be of any size and come in any pieces; the memory is a few kilobytes. It is not validated: only
//! brackets and strings are followed. The values that are picked are validated by who reads them.

use std::collections::VecDeque;

/// The largest value that is picked, in bytes, with its whitespace. Usages of providers have a few hundred.
pub(crate) const VALUE_BYTES_MAX: usize = 16 << 10;
/// Keys are compared up to this length.
const KEY_BYTES_MAX: usize = 24;
/// Members are picked up to this depth.
const LEVELS: usize = 2;

/// The path of a member: its key, or the key of an object and the key in it.
pub(crate) type Path = &'static [&'static str];

/// An object or list that is open, down to [`LEVELS`].
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    is_object: bool,
    key: [u8; KEY_BYTES_MAX],
    /// The length of the key, which may exceed what is kept.
    key_len: usize,
    /// Whether the next string is a key.
    wants_key: bool,
}

impl Level {
    fn is_at(&self, key: &str) -> bool {
        self.is_object && self.key.get(..self.key_len) == Some(key.as_bytes())
    }

    /// Appends a part of the key.
    fn keep(&mut self, part: &[u8]) {
        let room = self.key.get_mut(self.key_len..).unwrap_or_default();
        let kept = room.len().min(part.len());
        if let (Some(room), Some(part)) = (room.get_mut(..kept), part.get(..kept)) {
            room.copy_from_slice(part);
        }
        self.key_len = self.key_len.saturating_add(part.len());
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Text {
    Outside,
    Inside,
    /// Behind a backslash.
    Escape,
}

/// A value that is picked.
#[derive(Debug)]
struct Pick {
    path: usize,
    depth: usize,
    value: Vec<u8>,
    is_too_long: bool,
}

impl Pick {
    fn keep(&mut self, part: &[u8]) {
        self.is_too_long |= self.value.len().saturating_add(part.len()) > VALUE_BYTES_MAX;
        if !self.is_too_long {
            self.value.extend_from_slice(part);
        }
    }
}

/// Picks members out of one document.
#[derive(Debug)]
pub(crate) struct Members {
    paths: &'static [Path],
    text: Text,
    is_key: bool,
    depth: usize,
    levels: [Level; LEVELS],
    /// Whether a colon came and its value did not.
    wants_value: bool,
    pick: Option<Pick>,
    /// Where the picked value begins in the bytes that are being read, or 0 if it began before them.
    from: usize,
    picked: VecDeque<(usize, Option<Vec<u8>>)>,
    is_complete: bool,
}

/// Values that may wait to be taken. A document with more is hostile; the later ones are left out.
const PICKED_MAX: usize = 16;

impl Members {
    pub(crate) fn new(paths: &'static [Path]) -> Members {
        Members {
            paths,
            text: Text::Outside,
            is_key: false,
            depth: 0,
            levels: [Level::default(); LEVELS],
            wants_value: false,
            pick: None,
            from: 0,
            picked: VecDeque::new(),
            is_complete: false,
        }
    }

    /// Whether the document has ended.
    pub(crate) const fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The next value that was picked, with the number of its path. `None` as a value is one that is too long.
    pub(crate) fn take(&mut self) -> Option<(usize, Option<Vec<u8>>)> {
        self.picked.pop_front()
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let mut at = 0_usize;
        while let Some(byte) = bytes.get(at).copied() {
            at = match self.text {
                // Below the levels only brackets and strings matter.
                Text::Outside if self.depth > LEVELS => match find_structure(bytes, at) {
                    Some(found) => self.outside(bytes, found),
                    None => break,
                },
                Text::Outside => self.outside(bytes, at),
                Text::Inside => self.inside(bytes, at),
                Text::Escape => {
                    self.keep_key(&[byte]);
                    self.text = Text::Inside;
                    at.saturating_add(1)
                }
            };
        }
        if let Some(pick) = &mut self.pick {
            pick.keep(bytes.get(self.from..).unwrap_or_default());
        }
        self.from = 0;
    }

    /// Reads a string up to its end or its next escape. Returns the offset behind it.
    fn inside(&mut self, bytes: &[u8], at: usize) -> usize {
        let rest = bytes.get(at..).unwrap_or_default();
        let plain = memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
        self.keep_key(rest.get(..plain).unwrap_or_default());
        let end = at.saturating_add(plain);
        let next = end.saturating_add(1);
        match rest.get(plain) {
            None => return end,
            Some(b'\\') => {
                self.keep_key(b"\\");
                self.text = Text::Escape;
            }
            Some(_) => {
                self.text = Text::Outside;
                if !std::mem::take(&mut self.is_key) {
                    self.end_value(bytes, next);
                }
            }
        }
        next
    }

    /// Keeps a part of the current key.
    fn keep_key(&mut self, part: &[u8]) {
        if self.is_key
            && let Some(level) = self.level()
        {
            level.keep(part);
        }
    }

    /// The innermost open object or list, if it is near the root.
    fn level(&mut self) -> Option<&mut Level> {
        self.depth.checked_sub(1).and_then(|level| self.levels.get_mut(level))
    }

    /// Reads one byte outside of strings. Returns the offset behind it.
    fn outside(&mut self, bytes: &[u8], at: usize) -> usize {
        let next = at.saturating_add(1);
        match bytes.get(at).copied().unwrap_or_default() {
            b' ' | b'\n' | b'\r' | b'\t' => self.end_value(bytes, at),
            b'"' => self.begin_string(at),
            byte @ (b'{' | b'[') => {
                self.begin_value(at);
                self.depth = self.depth.saturating_add(1);
                if let Some(level) = self.level() {
                    *level = Level { is_object: byte == b'{', wants_key: byte == b'{', ..Level::default() };
                }
            }
            b'}' | b']' => {
                self.end_value(bytes, at);
                self.depth = self.depth.saturating_sub(1);
                self.end_value(bytes, next);
                self.is_complete |= self.depth == 0;
            }
            b',' => {
                self.end_value(bytes, at);
                if let Some(level) = self.level() {
                    level.wants_key = level.is_object;
                }
            }
            b':' => self.wants_value = self.depth <= LEVELS,
            _ => self.begin_value(at),
        }
        next
    }

    fn begin_string(&mut self, at: usize) {
        self.text = Text::Inside;
        let is_picking = self.pick.is_some();
        if let Some(level) = self.level()
            && level.wants_key
        {
            level.wants_key = false;
            level.key_len = 0;
            // Inside a value that is picked, a key is part of the value.
            self.is_key = !is_picking;
        }
        if !self.is_key {
            self.begin_value(at);
        }
    }

    /// Begins to pick a value if its path is wanted.
    fn begin_value(&mut self, at: usize) {
        if !std::mem::take(&mut self.wants_value) || self.pick.is_some() {
            return;
        }
        let levels = self.levels.get(..self.depth).unwrap_or_default();
        let is_here =
            |path: &Path| path.len() == levels.len() && path.iter().zip(levels).all(|(key, level)| level.is_at(key));
        if let Some(path) = self.paths.iter().position(is_here) {
            self.pick = Some(Pick { path, depth: self.depth, value: Vec::new(), is_too_long: false });
            self.from = at;
        }
    }

    /// Ends the value that is picked in front of an offset, if it ends at this depth.
    fn end_value(&mut self, bytes: &[u8], to: usize) {
        let depth = self.depth;
        if let Some(mut pick) = self.pick.take_if(|pick| pick.depth == depth)
            && self.picked.len() < PICKED_MAX
        {
            pick.keep(bytes.get(self.from..to).unwrap_or_default());
            self.picked.push_back((pick.path, (!pick.is_too_long).then_some(pick.value)));
        }
    }
}

/// The offset of the next bracket or quote.
fn find_structure(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = bytes.get(at..).unwrap_or_default();
    let found = rest.iter().position(|byte| matches!(byte, b'"' | b'{' | b'}' | b'[' | b']'));
    found.map(|found| at.saturating_add(found))
}
