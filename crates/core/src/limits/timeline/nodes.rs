//! The nodes of all timelines, in two slabs shared by all limits.

use crate::limits::slab::{NONE, Record, Slab};
use crate::time::UnixMs;

const LEAF_CELLS: usize = 21;
const INNER_CHILDREN: usize = 31;

/// Amounts held by leases that can still complete, and by leases that cannot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) settled: u64,
    pub(crate) unsettled: u64,
}

impl Sums {
    pub(crate) const ZERO: Sums = Sums { settled: 0, unsettled: 0 };

    pub(crate) fn settled(settled: u64) -> Sums {
        Sums { settled, unsettled: 0 }
    }

    pub(crate) fn unsettled(unsettled: u64) -> Sums {
        Sums { settled: 0, unsettled }
    }

    pub(crate) fn total(self) -> u64 {
        self.settled.saturating_add(self.unsettled)
    }

    /// Wrapping, because the sums on the right edge are stale; see [`super::Timeline`].
    pub(crate) fn plus(self, other: Sums) -> Sums {
        Sums {
            settled: self.settled.wrapping_add(other.settled),
            unsettled: self.unsettled.wrapping_add(other.unsettled),
        }
    }

    /// The difference that takes these sums off.
    pub(crate) fn negated(self) -> Sums {
        Sums::ZERO.minus(self)
    }

    pub(crate) fn minus(self, other: Sums) -> Sums {
        Sums {
            settled: self.settled.wrapping_sub(other.settled),
            unsettled: self.unsettled.wrapping_sub(other.unsettled),
        }
    }
}

/// The amounts that expire in one millisecond.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cell {
    pub(crate) at: UnixMs,
    pub(crate) sums: Sums,
}

impl Cell {
    pub(crate) const ZERO: Cell = Cell { at: UnixMs::new(0), sums: Sums::ZERO };
}

/// An entry of an inner node. `at` is a lower bound of the times below it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Child {
    pub(crate) at: UnixMs,
    pub(crate) sums: Sums,
    pub(crate) node: u32,
}

/// An entry of a tree node: an end time, and the sums that end then or under that child.
pub(crate) trait Entry: Copy + Default {
    fn at(&self) -> UnixMs;
    fn sums(&self) -> Sums;
}

impl Entry for Cell {
    fn at(&self) -> UnixMs {
        self.at
    }
    fn sums(&self) -> Sums {
        self.sums
    }
}

impl Entry for Child {
    fn at(&self) -> UnixMs {
        self.at
    }
    fn sums(&self) -> Sums {
        self.sums
    }
}

/// A fixed-size array of entries, ordered by time. Expired entries leave at the front without moving the rest.
#[derive(Clone, Copy)]
pub(crate) struct Run<E, const N: usize> {
    start: u8,
    len: u8,
    link: u32,
    entries: [E; N],
}

/// A leaf: end times with their sums.
pub(crate) type Leaf = Run<Cell, LEAF_CELLS>;
/// An inner node: children with their sums.
pub(crate) type Inner = Run<Child, INNER_CHILDREN>;

impl<E: Entry, const N: usize> Default for Run<E, N> {
    fn default() -> Self {
        Run { start: 0, len: 0, link: NONE, entries: [E::default(); N] }
    }
}

impl<E: Entry, const N: usize> Record for Run<E, N> {
    fn link(&self) -> u32 {
        self.link
    }
    fn set_link(&mut self, link: u32) {
        self.link = link;
    }
}

impl<E: Entry, const N: usize> Run<E, N> {
    pub(crate) fn of(entries: &[E]) -> Self {
        let mut run = Run::default();
        for &entry in entries.iter().take(N) {
            run.push(entry);
        }
        run
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.len)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() == N
    }

    fn end(&self) -> usize {
        usize::from(self.start).saturating_add(self.len())
    }

    pub(crate) fn entries(&self) -> &[E] {
        &self.entries[usize::from(self.start)..self.end()]
    }

    #[inline(always)]
    pub(crate) fn entries_mut(&mut self) -> &mut [E] {
        let end = self.end();
        &mut self.entries[usize::from(self.start)..end]
    }

    /// Appends an entry. Returns false if there is no room, or if making room would move more than half a run.
    pub(crate) fn push(&mut self, entry: E) -> bool {
        if self.end() == N {
            if self.len() > N / 2 {
                return false;
            }
            self.compact();
        }
        let end = self.end();
        self.entries[end] = entry;
        self.len = self.len.saturating_add(1);
        true
    }

    /// Inserts an entry at `position`. The run must not be full.
    pub(crate) fn insert(&mut self, position: usize, entry: E) {
        if self.end() == N {
            self.compact();
        }
        let start = usize::from(self.start).saturating_add(position);
        let end = self.end();
        self.entries.copy_within(start..end, start.saturating_add(1));
        self.entries[start] = entry;
        self.len = self.len.saturating_add(1);
    }

    pub(crate) fn remove(&mut self, position: usize) {
        if position == 0 {
            return self.drop_front(1);
        }
        let start = usize::from(self.start).saturating_add(position);
        let end = self.end();
        self.entries.copy_within(start.saturating_add(1)..end, start);
        self.len = self.len.saturating_sub(1);
    }

    pub(crate) fn drop_front(&mut self, count: u8) {
        self.start = self.start.saturating_add(count);
        self.len = self.len.saturating_sub(count);
    }

    /// Inserts into a full run and returns its later part as a new run. Insertions tend to continue where they are,
    /// so the earlier part is left fuller, but not by more than a half: otherwise few insertions could build a high
    /// tree.
    pub(crate) fn insert_and_split(&mut self, position: usize, entry: E) -> Self {
        let middle = position.clamp(N / 2, (N / 2).saturating_add(N / 4));
        let mut later = Run::of(&self.entries()[middle..]);
        self.len = self.len.saturating_sub(later.len);
        match position.checked_sub(middle) {
            Some(position) => later.insert(position, entry),
            None => self.insert(position, entry),
        }
        later
    }

    pub(crate) fn sums(&self) -> Sums {
        self.entries().iter().fold(Sums::ZERO, |sums, entry| sums.plus(entry.sums()))
    }

    fn compact(&mut self) {
        let (start, end) = (usize::from(self.start), self.end());
        self.entries.copy_within(start..end, 0);
        self.start = 0;
    }
}

/// The effect of a change on a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    NotFound,
    Changed,
    CellGone,
    /// The cell was the last one in its leaf.
    Emptied,
}

impl Leaf {
    /// Changes the cell at `at` by a difference. Removes the cell if nothing is left.
    #[inline(always)]
    pub(crate) fn change(&mut self, at: UnixMs, by: Sums) -> Change {
        let cells = self.entries_mut();
        // Earlier times are in other leaves, and many changes are at the last one.
        let position = match cells {
            [.., last] if last.at == at => cells.len().saturating_sub(1),
            [first, ..] if first.at <= at => {
                // A busy limit has a cell in each millisecond.
                let likely = at.ms_since(first.at) as usize;
                match cells.get(likely) {
                    Some(cell) if cell.at == at => likely,
                    _ => cells.partition_point(|cell| cell.at < at),
                }
            }
            _ => return Change::NotFound,
        };
        let Some(cell) = cells.get_mut(position).filter(|cell| cell.at == at) else { return Change::NotFound };
        cell.sums = cell.sums.plus(by);
        if cell.sums == Sums::ZERO { self.remove_changed(position) } else { Change::Changed }
    }

    #[inline(never)]
    fn remove_changed(&mut self, position: usize) -> Change {
        self.remove(position);
        if self.is_empty() { Change::Emptied } else { Change::CellGone }
    }

    pub(crate) fn find(&self, at: UnixMs) -> Result<usize, usize> {
        self.entries().binary_search_by_key(&at, |cell| cell.at)
    }

    /// Adds to the last cell if it is at that time.
    #[inline]
    pub(crate) fn add_to_last(&mut self, at: UnixMs, more: Sums) -> bool {
        let last = self.end().checked_sub(1).and_then(|last| self.entries.get_mut(last));
        let Some(last) = last.filter(|last| last.at == at) else { return false };
        last.sums = last.sums.plus(more);
        true
    }

    /// Adds to the cell at that time, or inserts one after the first. Returns false if it belongs to another leaf or
    /// the leaf is full.
    pub(crate) fn add_inside(&mut self, cell: Cell) -> bool {
        let before_last = self.len().saturating_sub(1);
        let position = match self.entries_mut() {
            // The last cell of a long window is mostly one of settled amounts, and the newest is the one before it.
            [.., newest, last] if newest.at < cell.at && cell.at < last.at => Err(before_last),
            [.., newest, _] if newest.at == cell.at => Ok(before_last.saturating_sub(1)),
            _ => self.find(cell.at),
        };
        let position = match position {
            Ok(position) => {
                let found = &mut self.entries_mut()[position];
                found.sums = found.sums.plus(cell.sums);
                return true;
            }
            Err(position) => position,
        };
        if position == 0 || self.is_full() {
            return false;
        }
        self.insert(position, cell);
        true
    }
}

impl Inner {
    /// The child that covers `at`.
    #[inline]
    pub(crate) fn child_mut(&mut self, at: UnixMs) -> Option<&mut Child> {
        let children = self.entries_mut();
        let position = children.partition_point(|child| child.at <= at).saturating_sub(1);
        children.get_mut(position)
    }

    /// The position of the child that covers `at`.
    pub(crate) fn position_of(&self, at: UnixMs) -> usize {
        self.entries().partition_point(|child| child.at <= at).saturating_sub(1)
    }

    /// How many children at the front have expired entirely at `now`. The last child never counts, since it has no
    /// upper bound.
    pub(crate) fn due(&self, now: UnixMs) -> u8 {
        let later = &self.entries()[1.min(self.len())..];
        u8::try_from(later.partition_point(|child| child.at <= now)).unwrap_or(0)
    }
}

/// The nodes of all timelines, and the discarded ones that are not freed yet.
#[derive(Default)]
pub(crate) struct Nodes {
    pub(crate) leaves: Slab<Leaf>,
    pub(crate) inners: Slab<Inner>,
    garbage: Vec<(u32, u8)>,
    /// Work units so far: entries read and nodes freed.
    pub(crate) steps: u64,
}

impl Nodes {
    pub(crate) fn count(&mut self, steps: usize) {
        self.steps = self.steps.wrapping_add(steps as u64);
    }

    /// A copy for a snapshot.
    pub(crate) fn share(&mut self) -> Nodes {
        Nodes { leaves: self.leaves.share(), inners: self.inners.share(), ..Nodes::default() }
    }

    /// Queues a node and everything below it to be freed.
    pub(crate) fn discard(&mut self, node: u32, level: u8) {
        self.garbage.push((node, level));
    }

    /// Frees up to `nodes_max` discarded nodes.
    #[inline]
    pub(crate) fn reclaim(&mut self, nodes_max: usize) {
        if !self.garbage.is_empty() {
            self.free_garbage(nodes_max);
        }
    }

    #[inline(never)]
    fn free_garbage(&mut self, nodes_max: usize) {
        for _ in 0..nodes_max {
            let Some((node, level)) = self.garbage.pop() else { return };
            self.count(1);
            if level == 0 {
                self.leaves.remove(node);
                continue;
            }
            let below = level.saturating_sub(1);
            let inner = *self.inners.get(node);
            self.garbage.extend(inner.entries().iter().map(|child| (child.node, below)));
            self.inners.remove(node);
        }
    }

    pub(crate) fn child(&self, inner: u32, position: usize) -> u32 {
        self.inners.get(inner).entries().get(position).map_or(NONE, |child| child.node)
    }

    /// The leaf at the left or right edge below `node`.
    pub(crate) fn edge(&self, mut node: u32, height: u8, right: bool) -> u32 {
        for _ in 0..height {
            let position = if right { self.inners.get(node).len().saturating_sub(1) } else { 0 };
            node = self.child(node, position);
        }
        node
    }
}
