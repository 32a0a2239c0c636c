//! The nodes of all timelines, in two slabs that every limit shares.

use crate::limits::slab::{NONE, Record, Slab};
use crate::time::UnixMs;

const LEAF_CELLS: usize = 21;
const INNER_CHILDREN: usize = 31;

/// What is held: of leases that may still change, and of those that cannot.
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

    /// Sums wrap, since those at the right edge of a timeline are stale; see [`super::Timeline`].
    pub(crate) fn plus(self, other: Sums) -> Sums {
        Sums {
            settled: self.settled.wrapping_add(other.settled),
            unsettled: self.unsettled.wrapping_add(other.unsettled),
        }
    }

    pub(crate) fn minus(self, other: Sums) -> Sums {
        Sums {
            settled: self.settled.wrapping_sub(other.settled),
            unsettled: self.unsettled.wrapping_sub(other.unsettled),
        }
    }
}

/// What ends at one moment.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cell {
    pub(crate) at: UnixMs,
    pub(crate) sums: Sums,
}

/// A node below another one: `at` bounds what is in it from below.
#[derive(Clone, Copy, Default)]
pub(crate) struct Child {
    pub(crate) at: UnixMs,
    pub(crate) sums: Sums,
    pub(crate) node: u32,
}

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

/// A short run of entries, in order of time. What is due leaves at the front without moving the rest.
#[derive(Clone, Copy)]
pub(crate) struct Run<E, const N: usize> {
    start: u8,
    len: u8,
    link: u32,
    entries: [E; N],
}

pub(crate) type Leaf = Run<Cell, LEAF_CELLS>;
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

    pub(crate) fn entries_mut(&mut self) -> &mut [E] {
        let end = self.end();
        &mut self.entries[usize::from(self.start)..end]
    }

    /// Adds an entry at the end. Says no when there is no room, or when making room would move more than
    /// half a run for one entry.
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

    /// Adds an entry at a place. The run must not be full.
    pub(crate) fn insert(&mut self, place: usize, entry: E) {
        if self.end() == N {
            self.compact();
        }
        let start = usize::from(self.start).saturating_add(place);
        let end = self.end();
        self.entries.copy_within(start..end, start.saturating_add(1));
        self.entries[start] = entry;
        self.len = self.len.saturating_add(1);
    }

    pub(crate) fn remove(&mut self, place: usize) {
        if place == 0 {
            return self.drop_front(1);
        }
        let start = usize::from(self.start).saturating_add(place);
        let end = self.end();
        self.entries.copy_within(start.saturating_add(1)..end, start);
        self.len = self.len.saturating_sub(1);
    }

    pub(crate) fn drop_front(&mut self, count: u8) {
        self.start = self.start.saturating_add(count);
        self.len = self.len.saturating_sub(count);
    }

    /// Adds an entry to a run that is full, and gives the later part of it as a run of its own. What comes
    /// late mostly goes on coming late, so the part that is left behind is the fuller one; but no more than
    /// by half, lest few insertions make a high tree.
    pub(crate) fn insert_and_split(&mut self, place: usize, entry: E) -> Self {
        let middle = place.clamp(N / 2, (N / 2).saturating_add(N / 4));
        let mut later = Run::of(&self.entries()[middle..]);
        self.len = self.len.saturating_sub(later.len);
        match place.checked_sub(middle) {
            Some(place) => later.insert(place, entry),
            None => self.insert(place, entry),
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

/// What became of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    NotFound,
    Changed,
    CellGone,
    /// It was the last one in its leaf.
    Emptied,
}

impl Leaf {
    /// Takes `less` from the cell of that time and adds `more`. A cell that holds nothing goes.
    pub(crate) fn change(&mut self, at: UnixMs, less: Sums, more: Sums) -> Change {
        let last = self.len().saturating_sub(1);
        let is_last = self.entries().last().is_some_and(|cell| cell.at == at);
        let Ok(place) = (if is_last { Ok(last) } else { self.find(at) }) else { return Change::NotFound };
        let cell = &mut self.entries_mut()[place];
        cell.sums = cell.sums.minus(less).plus(more);
        if cell.sums != Sums::ZERO {
            return Change::Changed;
        }
        self.remove(place);
        if self.is_empty() { Change::Emptied } else { Change::CellGone }
    }

    pub(crate) fn find(&self, at: UnixMs) -> Result<usize, usize> {
        self.entries().binary_search_by_key(&at, |cell| cell.at)
    }

    /// Adds to the cell of that time, or a new cell after the first. Says no when it belongs elsewhere or
    /// there is no room.
    pub(crate) fn add_inside(&mut self, cell: Cell) -> bool {
        if let Some(last) = self.entries_mut().last_mut().filter(|last| last.at == cell.at) {
            last.sums = last.sums.plus(cell.sums);
            return true;
        }
        let place = match self.find(cell.at) {
            Ok(place) => {
                let found = &mut self.entries_mut()[place];
                found.sums = found.sums.plus(cell.sums);
                return true;
            }
            Err(place) => place,
        };
        if place == 0 || self.is_full() {
            return false;
        }
        self.insert(place, cell);
        true
    }
}

impl Inner {
    /// The place of the child that covers `at`.
    pub(crate) fn place_of(&self, at: UnixMs) -> usize {
        self.entries().partition_point(|child| child.at <= at).saturating_sub(1)
    }

    /// How many children at the front hold nothing that ends after `now`. The last child never counts: what
    /// it holds may go on without bound.
    pub(crate) fn due(&self, now: UnixMs) -> u8 {
        let later = &self.entries()[1.min(self.len())..];
        u8::try_from(later.partition_point(|child| child.at <= now)).unwrap_or(0)
    }
}

/// The nodes of all timelines, and those that were cut off and wait to be freed.
#[derive(Default)]
pub(crate) struct Nodes {
    pub(crate) leaves: Slab<Leaf>,
    pub(crate) inners: Slab<Inner>,
    garbage: Vec<(u32, u8)>,
    /// Units of work so far: entries looked at and nodes freed.
    pub(crate) steps: u64,
}

impl Nodes {
    pub(crate) fn count(&mut self, steps: usize) {
        self.steps = self.steps.wrapping_add(steps as u64);
    }

    /// The nodes as they are now, for a snapshot.
    pub(crate) fn share(&mut self) -> Nodes {
        Nodes { leaves: self.leaves.share(), inners: self.inners.share(), ..Nodes::default() }
    }

    /// Leaves a node and all below it to be freed later.
    pub(crate) fn discard(&mut self, node: u32, level: u8) {
        self.garbage.push((node, level));
    }

    /// Frees up to `nodes_max` of the nodes that were discarded.
    pub(crate) fn reclaim(&mut self, nodes_max: usize) {
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

    pub(crate) fn child(&self, inner: u32, place: usize) -> u32 {
        self.inners.get(inner).entries().get(place).map_or(NONE, |child| child.node)
    }

    /// The leaf at the left or right edge below `node`.
    pub(crate) fn edge(&self, mut node: u32, height: u8, right: bool) -> u32 {
        for _ in 0..height {
            let place = if right { self.inners.get(node).len().saturating_sub(1) } else { 0 };
            node = self.child(node, place);
        }
        node
    }
}
