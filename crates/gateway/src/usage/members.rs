//! Members of a JSON document, picked out while its bytes pass.
//!
//! The document may be of any size and come in any pieces; the memory is a few kilobytes. It is not validated: only
//! brackets and strings are followed. The values that are picked are validated by who reads them.

use std::collections::VecDeque;

/// The largest value that is picked, in bytes. Usages of providers have a few hundred.
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
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            at = at.saturating_add(match self.text {
                Text::Outside => {
                    self.outside(rest.first().copied().unwrap_or_default());
                    1
                }
                Text::Escape => {
                    self.keep(rest.get(..1).unwrap_or_default());
                    self.text = Text::Inside;
                    1
                }
                Text::Inside => self.inside(rest),
            });
        }
    }

    /// The bytes that were read of a string.
    fn inside(&mut self, rest: &[u8]) -> usize {
        let plain = memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
        self.keep(rest.get(..plain).unwrap_or_default());
        let Some(end) = rest.get(plain) else { return plain };
        if *end == b'\\' {
            self.keep(b"\\");
            self.text = Text::Escape;
        } else {
            self.text = Text::Outside;
            if self.is_key {
                self.is_key = false;
            } else {
                self.keep(b"\"");
                self.end_scalar();
            }
        }
        plain.saturating_add(1)
    }

    /// Keeps bytes of the current key or value.
    fn keep(&mut self, bytes: &[u8]) {
        if self.is_key
            && let Some(level) = self.level()
        {
            for byte in bytes {
                if let Some(place) = level.key.get_mut(level.key_len) {
                    *place = *byte;
                }
                level.key_len = level.key_len.saturating_add(1);
            }
        }
        // Keys inside a value that is picked are part of it.
        if let Some(pick) = &mut self.pick {
            pick.is_too_long |= pick.value.len().saturating_add(bytes.len()) > VALUE_BYTES_MAX;
            if !pick.is_too_long {
                pick.value.extend_from_slice(bytes);
            }
        }
    }

    /// The innermost open object or list, if it is near the root.
    fn level(&mut self) -> Option<&mut Level> {
        self.depth.checked_sub(1).and_then(|level| self.levels.get_mut(level))
    }

    fn outside(&mut self, byte: u8) {
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' => self.end_scalar(),
            b'"' => self.begin_string(),
            b'{' | b'[' => {
                self.begin_value();
                self.keep(&[byte]);
                self.depth = self.depth.saturating_add(1);
                if let Some(level) = self.level() {
                    *level = Level { is_object: byte == b'{', wants_key: byte == b'{', ..Level::default() };
                }
            }
            b'}' | b']' => {
                self.end_scalar();
                self.keep(&[byte]);
                self.depth = self.depth.saturating_sub(1);
                self.end_scalar();
                self.is_complete |= self.depth == 0;
            }
            b',' => {
                self.end_scalar();
                self.keep(b",");
                if let Some(level) = self.level() {
                    level.wants_key = level.is_object;
                }
            }
            b':' => {
                self.keep(b":");
                self.wants_value = self.depth <= LEVELS;
            }
            _ => {
                self.begin_value();
                self.keep(&[byte]);
            }
        }
    }

    fn begin_string(&mut self) {
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
            self.begin_value();
            self.keep(b"\"");
        }
    }

    /// Begins to pick a value if its path is wanted.
    fn begin_value(&mut self) {
        if !std::mem::take(&mut self.wants_value) || self.pick.is_some() {
            return;
        }
        let levels = self.levels.get(..self.depth).unwrap_or_default();
        let is_here =
            |path: &Path| path.len() == levels.len() && path.iter().zip(levels).all(|(key, level)| level.is_at(key));
        if let Some(path) = self.paths.iter().position(is_here) {
            self.pick = Some(Pick { path, depth: self.depth, value: Vec::new(), is_too_long: false });
        }
    }

    /// Ends the value that is picked, if it ends at this depth.
    fn end_scalar(&mut self) {
        let ends = |pick: &mut Pick| pick.depth == self.depth && !pick.value.is_empty();
        if let Some(pick) = self.pick.take_if(ends)
            && self.picked.len() < PICKED_MAX
        {
            self.picked.push_back((pick.path, (!pick.is_too_long).then_some(pick.value)));
        }
    }
}
