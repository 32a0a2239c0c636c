//! Paths from the root of a timeline to a leaf.

/// The maximum height. A node is split only when full, and neither half keeps more than three quarters, so each level
/// needs at least seven times as many insertions.
pub(super) const HEIGHT_MAX: usize = 24;

/// An inner node on a path, and the position of the child taken.
#[derive(Clone, Copy, Default)]
pub(super) struct Step {
    pub(super) inner: u32,
    position: u8,
}

impl Step {
    pub(super) fn position(self) -> usize {
        self.position.into()
    }
}

/// The path from the root to a leaf.
#[derive(Default)]
pub(super) struct Path {
    steps: [Step; HEIGHT_MAX],
    pub(super) len: usize,
}

impl Path {
    pub(super) fn push(&mut self, inner: u32, position: usize) {
        // A node has fewer than 256 children.
        self.steps[self.len] = Step { inner, position: position as u8 };
        self.len = self.len.saturating_add(1);
    }

    /// The steps from the leaf to the root.
    pub(super) fn upwards(&self) -> impl Iterator<Item = Step> {
        self.steps[..self.len].iter().rev().copied()
    }
}
