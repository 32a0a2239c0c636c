//! When the amounts held by a limit expire: sums ordered by time.
//!
//! The structure is a B+-tree. A leaf has a cell for every millisecond in which something expires, and an inner node
//! has the sums of its children. Expiry and the question "when is enough free?" therefore cost steps in the height of
//! the tree, not in the number of expired cells.

mod insert;
mod nodes;
mod path;

use insert::{Split, insert_below};
use nodes::{Cell, Change, Child, Inner, Leaf};
pub(crate) use nodes::{Nodes, Sums};
use path::{HEIGHT_MAX, Path};

use super::slab::NONE;
use crate::time::UnixMs;

/// Cells that are kept in the limit itself. A limit with few reservations, such as that of one user, needs no leaf.
const FEW: usize = 2;

/// The amounts that one limit holds, by expiry.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Timeline {
    /// Up to [`FEW`] cells, ordered by time.
    Few { len: u8, cells: [Cell; FEW] },
    /// Any number of cells, at least one.
    Many(Tree),
}

impl Default for Timeline {
    fn default() -> Timeline {
        Timeline::EMPTY
    }
}

impl Timeline {
    pub(crate) const EMPTY: Timeline = Timeline::Few { len: 0, cells: [Cell::ZERO; FEW] };

    fn few(&self) -> &[Cell] {
        match self {
            Timeline::Few { len, cells } => &cells[..usize::from(*len)],
            Timeline::Many(_) => &[],
        }
    }

    /// The sum of everything held.
    #[inline]
    pub(crate) fn sums(&self) -> Sums {
        match self {
            Timeline::Few { .. } => self.few().iter().fold(Sums::ZERO, |sums, cell| sums.plus(cell.sums)),
            Timeline::Many(tree) => tree.sums(),
        }
    }

    /// The earliest expiry.
    pub(crate) fn next_at(&self) -> UnixMs {
        match self {
            Timeline::Few { .. } => self.few().first().map_or(UnixMs::MAX, |cell| cell.at),
            Timeline::Many(tree) => tree.next_at,
        }
    }

    #[inline]
    pub(crate) fn is_due(&self, now: UnixMs) -> bool {
        match self {
            Timeline::Few { .. } => self.few().first().is_some_and(|cell| cell.at <= now),
            Timeline::Many(tree) => tree.is_due(now),
        }
    }

    /// Adds `more`, which expires at `at`.
    #[inline]
    pub(crate) fn add(&mut self, nodes: &mut Nodes, at: UnixMs, more: Sums) {
        match self {
            Timeline::Many(tree) => tree.add(nodes, at, more),
            Timeline::Few { .. } => self.add_to_few(nodes, at, more),
        }
    }

    fn add_to_few(&mut self, nodes: &mut Nodes, at: UnixMs, more: Sums) {
        let Timeline::Few { len, cells } = self else { return };
        if more == Sums::ZERO {
            return;
        }
        let count = usize::from(*len);
        let position = cells[..count].partition_point(|cell| cell.at < at);
        if let Some(cell) = cells[..count].get_mut(position).filter(|cell| cell.at == at) {
            cell.sums = cell.sums.plus(more);
        } else if count < FEW {
            cells.copy_within(position..count, position.saturating_add(1));
            cells[position] = Cell { at, sums: more };
            *len = len.saturating_add(1);
        } else {
            let mut tree = Tree::default();
            cells.iter().for_each(|cell| tree.add(nodes, cell.at, cell.sums));
            tree.add(nodes, at, more);
            *self = Timeline::Many(tree);
        }
    }

    /// Changes the cell at `at` by a difference. Returns whether the cell exists.
    #[inline(always)]
    pub(crate) fn change(&mut self, nodes: &mut Nodes, at: UnixMs, by: Sums) -> bool {
        nodes.count(1);
        let Timeline::Many(tree) = self else { return self.change_few(at, by) };
        // Above the last leaf no sums are kept, so nothing else needs updating.
        match nodes.leaves.get_mut(tree.tail).change(at, by) {
            Change::Changed => {
                tree.sums = tree.sums.plus(by);
                true
            }
            other => self.end_change(nodes, other, at, by),
        }
    }

    /// [`Timeline::change`] at `from`, then [`Timeline::add`] at `to`, mostly in one look at the last leaf.
    #[inline(always)]
    fn change_and_add(&mut self, nodes: &mut Nodes, (from, by): (UnixMs, Sums), (to, more): (UnixMs, Sums)) {
        let mut is_added = false;
        if let Timeline::Many(tree) = self {
            nodes.count(1);
            let leaf = nodes.leaves.get_mut(tree.tail);
            is_added = to == tree.last_at && leaf.add_to_last(to, more);
            if is_added {
                tree.sums = tree.sums.plus(more);
            }
            match leaf.change(from, by) {
                Change::Changed => tree.sums = tree.sums.plus(by),
                change => _ = self.end_change(nodes, change, from, by),
            }
        } else {
            self.change_few(from, by);
        }
        if !is_added {
            self.add(nodes, to, more);
        }
    }

    /// Settles an amount that ends at `from`, and adds another one that ends at `to`.
    #[inline(never)]
    pub(crate) fn settle_and_add(&mut self, nodes: &mut Nodes, (from, old): (UnixMs, u64), (to, new): (UnixMs, u64)) {
        let by = Sums::settled(old).minus(Sums::unsettled(old));
        self.change_and_add(nodes, (from, by), (to, Sums::unsettled(new)));
    }

    /// Replaces an amount that ends at `from` by another one that ends at `to`.
    #[inline(never)]
    pub(crate) fn move_to(&mut self, nodes: &mut Nodes, (from, old): (UnixMs, u64), (to, new): (UnixMs, u64)) {
        self.change_and_add(nodes, (from, Sums::unsettled(old).negated()), (to, Sums::unsettled(new)));
    }

    fn change_few(&mut self, at: UnixMs, by: Sums) -> bool {
        let Timeline::Few { len, cells } = self else { return false };
        let count = usize::from(*len);
        let Some(position) = cells[..count].iter().position(|cell| cell.at == at) else { return false };
        let cell = &mut cells[position];
        cell.sums = cell.sums.plus(by);
        if cell.sums == Sums::ZERO {
            cells.copy_within(position.saturating_add(1)..count, position);
            *len = len.saturating_sub(1);
        }
        true
    }

    /// Ends [`Timeline::change`], which did this to the last leaf.
    #[inline(never)]
    fn end_change(&mut self, nodes: &mut Nodes, change: Change, at: UnixMs, by: Sums) -> bool {
        let Timeline::Many(tree) = self else { return false };
        match tree.end_change(nodes, change, at, by) {
            Change::NotFound => false,
            Change::Changed => true,
            Change::CellGone | Change::Emptied => {
                self.shrink(nodes);
                true
            }
        }
    }

    /// Removes everything that expires at or before `now`.
    pub(crate) fn expire(&mut self, nodes: &mut Nodes, now: UnixMs) {
        match self {
            Timeline::Many(tree) => {
                tree.expire(nodes, now);
                self.shrink(nodes);
            }
            Timeline::Few { len, cells } => {
                let count = usize::from(*len);
                let due = cells[..count].partition_point(|cell| cell.at <= now);
                nodes.count(due);
                cells.copy_within(due..count, 0);
                *len = count.saturating_sub(due) as u8;
            }
        }
    }

    /// Takes the last cell of a tree out of its leaf. Not two cells: a limit that has two or three in turn would move
    /// them each time.
    #[inline]
    fn shrink(&mut self, nodes: &mut Nodes) {
        let Timeline::Many(tree) = self else { return };
        if tree.root == NONE {
            *self = Timeline::default();
        } else if tree.height == 0 && tree.next_at == tree.last_at {
            let cell = Cell { at: tree.next_at, sums: tree.sums };
            nodes.leaves.remove(tree.root);
            *self = Timeline::Few { len: 1, cells: [cell, Cell::ZERO] };
        }
    }

    /// The sum of what has expired at `now`.
    pub(crate) fn due(&self, nodes: &Nodes, now: UnixMs) -> Sums {
        match self {
            Timeline::Many(tree) => tree.due(nodes, now),
            Timeline::Few { .. } => {
                let due = self.few().iter().take_while(|cell| cell.at <= now);
                due.fold(Sums::ZERO, |sums, cell| sums.plus(cell.sums))
            }
        }
    }

    /// The earliest time at which `need` has expired. `need` is at most what is held.
    pub(crate) fn freed_at(&self, nodes: &mut Nodes, need: u64) -> UnixMs {
        if let Timeline::Many(tree) = self {
            return tree.freed_at(nodes, need);
        }
        let mut need = need;
        for cell in self.few() {
            if need <= cell.sums.total() {
                return cell.at;
            }
            need = need.saturating_sub(cell.sums.total());
        }
        self.few().last().map_or(UnixMs::default(), |cell| cell.at)
    }

    /// Calls `visit` for every cell, ordered by time.
    pub(crate) fn visit(&self, nodes: &Nodes, visit: &mut impl FnMut(UnixMs, Sums)) {
        match self {
            Timeline::Few { .. } => self.few().iter().for_each(|cell| visit(cell.at, cell.sums)),
            Timeline::Many(tree) => tree.visit(nodes, visit),
        }
    }
}

/// A tree of cells.
///
/// Almost all insertions are at the right edge. To make them cheap, the sums of the last child are stale in every
/// node on the right edge. They are computed when a later sibling appears, and nothing reads them before. No leaf is
/// ever empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tree {
    root: u32,
    tail: u32,
    height: u8,
    next_at: UnixMs,
    last_at: UnixMs,
    sums: Sums,
}

impl Default for Tree {
    fn default() -> Tree {
        Tree { root: NONE, tail: NONE, height: 0, next_at: UnixMs::MAX, last_at: UnixMs::default(), sums: Sums::ZERO }
    }
}

impl Tree {
    fn sums(&self) -> Sums {
        self.sums
    }

    /// The first expiry of an empty tree is the latest time, which never comes.
    fn is_due(&self, now: UnixMs) -> bool {
        self.next_at <= now && self.root != NONE
    }

    /// Adds `more`, which expires at `at`.
    #[inline(always)]
    fn add(&mut self, nodes: &mut Nodes, at: UnixMs, more: Sums) {
        if more == Sums::ZERO {
            return;
        }
        self.sums = self.sums.plus(more);
        let is_added = at == self.last_at && self.root != NONE && nodes.leaves.get_mut(self.tail).add_to_last(at, more);
        if !is_added {
            self.add_cell(nodes, Cell { at, sums: more });
        }
    }

    /// Adds a cell whose sums are part of those of the tree already.
    #[inline(never)]
    fn add_cell(&mut self, nodes: &mut Nodes, cell: Cell) {
        let at = cell.at;
        if self.root == NONE {
            let leaf = nodes.leaves.insert(Leaf::of(&[cell]));
            *self = Tree { root: leaf, tail: leaf, height: 0, next_at: at, last_at: at, sums: self.sums };
            return;
        }
        self.next_at = self.next_at.min(at);
        if at > self.last_at {
            self.last_at = at;
            if !nodes.leaves.get_mut(self.tail).push(cell) {
                self.append_leaf(nodes, cell);
            }
            return;
        }
        // Above the last leaf no sums are kept, so nothing else needs updating.
        if !nodes.leaves.get_mut(self.tail).add_inside(cell) {
            self.insert(nodes, cell);
        }
    }

    /// Ends a change that did this to the last leaf. Returns what it did to the tree.
    #[inline]
    fn end_change(&mut self, nodes: &mut Nodes, change: Change, at: UnixMs, by: Sums) -> Change {
        let change = if change == Change::NotFound { self.change_inside(nodes, at, by) } else { change };
        if change == Change::NotFound {
            return change;
        }
        self.sums = self.sums.plus(by);
        match change {
            Change::Emptied => self.remove_leaf_of(nodes, at),
            Change::CellGone if at == self.next_at || at == self.last_at => self.refresh_edges(nodes),
            Change::CellGone | Change::Changed | Change::NotFound => {}
        }
        change
    }

    /// Changes a cell that is not in the last leaf.
    #[inline]
    fn change_inside(&mut self, nodes: &mut Nodes, at: UnixMs, by: Sums) -> Change {
        let leaf = self.change_above(nodes, at, by);
        let change = nodes.leaves.get_mut(leaf).change(at, by);
        if change == Change::NotFound {
            self.change_above(nodes, at, by.negated());
        }
        change
    }

    /// Changes the sums above the leaf that covers `at`, and returns the leaf.
    #[inline(always)]
    fn change_above(&self, nodes: &mut Nodes, at: UnixMs, by: Sums) -> u32 {
        let mut node = self.root;
        nodes.count(self.height.into());
        for _ in 0..self.height {
            let Some(child) = nodes.inners.get_mut(node).child_mut(at) else { break };
            child.sums = child.sums.plus(by);
            node = child.node;
        }
        node
    }

    /// Removes everything that expires at or before `now`.
    fn expire(&mut self, nodes: &mut Nodes, now: UnixMs) {
        if !self.is_due(now) {
            return;
        }
        if self.last_at <= now {
            nodes.count(1);
            nodes.discard(self.root, self.height);
            *self = Tree::default();
            return;
        }
        let mut path = Path::default();
        let mut freed = [Sums::ZERO; HEIGHT_MAX];
        let mut node = self.root;
        for level in (1..=self.height).rev() {
            let inner = *nodes.inners.get(node);
            let due = inner.due(now);
            nodes.count(inner.len());
            for child in &inner.entries()[..usize::from(due)] {
                freed[path.len] = freed[path.len].plus(child.sums);
                nodes.discard(child.node, level.saturating_sub(1));
            }
            if due > 0 {
                nodes.inners.get_mut(node).drop_front(due);
            }
            path.push(node, 0);
            node = nodes.child(node, 0);
        }
        let mut below = Sums::ZERO;
        let leaf = nodes.leaves.get_mut(node);
        let due = leaf.entries().partition_point(|cell| cell.at <= now);
        for cell in &leaf.entries()[..due] {
            below = below.plus(cell.sums);
        }
        leaf.drop_front(u8::try_from(due).unwrap_or(0));
        let is_empty = leaf.is_empty();
        nodes.count(due);
        for (step, freed) in path.upwards().zip(freed[..path.len].iter().rev()) {
            if let Some(child) = nodes.inners.get_mut(step.inner).entries_mut().first_mut() {
                child.sums = child.sums.minus(below);
            }
            below = below.plus(*freed);
        }
        self.sums = self.sums.minus(below);
        if is_empty {
            self.remove_leaf(nodes, node, &path);
        }
        self.collapse(nodes);
        self.refresh_edges(nodes);
    }

    /// The sum of what has expired at `now`.
    fn due(&self, nodes: &Nodes, now: UnixMs) -> Sums {
        if !self.is_due(now) {
            return Sums::ZERO;
        }
        if self.last_at <= now {
            return self.sums;
        }
        let mut sums = Sums::ZERO;
        let mut node = self.root;
        for _ in 0..self.height {
            let inner = nodes.inners.get(node);
            let due = usize::from(inner.due(now));
            for child in &inner.entries()[..due] {
                sums = sums.plus(child.sums);
            }
            node = nodes.child(node, due);
        }
        let cells = nodes.leaves.get(node).entries().iter();
        cells.take_while(|cell| cell.at <= now).fold(sums, |sums, cell| sums.plus(cell.sums))
    }

    /// The earliest time at which `need` has expired. `need` is at most what is held.
    fn freed_at(&self, nodes: &mut Nodes, need: u64) -> UnixMs {
        if self.root == NONE {
            return UnixMs::default();
        }
        let mut need = need;
        let mut node = self.root;
        for _ in 0..self.height {
            let inner = nodes.inners.get(node);
            let children = inner.entries();
            // The last child's sums may be stale, but are not needed: the rest of `need` must be in it.
            let earlier = &children[..children.len().saturating_sub(1)];
            let mut position = 0_usize;
            for child in earlier {
                if need <= child.sums.total() {
                    break;
                }
                need = need.saturating_sub(child.sums.total());
                position = position.saturating_add(1);
            }
            node = nodes.child(node, position);
            nodes.count(position.saturating_add(1));
        }
        let cells = nodes.leaves.get(node).entries();
        for cell in cells {
            if need <= cell.sums.total() {
                return cell.at;
            }
            need = need.saturating_sub(cell.sums.total());
        }
        self.last_at
    }

    /// Calls `visit` for every cell, ordered by time.
    fn visit(&self, nodes: &Nodes, visit: &mut impl FnMut(UnixMs, Sums)) {
        if self.root != NONE {
            visit_below(nodes, self.root, self.height, visit);
        }
    }

    fn descend(&self, nodes: &mut Nodes, at: UnixMs, path: &mut Path) -> u32 {
        let mut node = self.root;
        nodes.count(self.height.into());
        for _ in 0..self.height {
            let position = nodes.inners.get(node).position_of(at);
            path.push(node, position);
            node = nodes.child(node, position);
        }
        node
    }

    /// Appends a leaf at the right edge and computes the sums of the previous one.
    fn append_leaf(&mut self, nodes: &mut Nodes, cell: Cell) {
        nodes.count(1);
        let mut closed = nodes.leaves.get(self.tail).sums();
        let mut path = Path::default();
        self.descend(nodes, UnixMs::MAX, &mut path);
        self.tail = nodes.leaves.insert(Leaf::of(&[cell]));
        let mut child = Child { at: cell.at, sums: Sums::ZERO, node: self.tail };
        for step in path.upwards() {
            let inner = nodes.inners.get_mut(step.inner);
            if let Some(last) = inner.entries_mut().last_mut() {
                last.sums = closed;
            }
            if inner.push(child) {
                return;
            }
            closed = inner.sums();
            child.node = nodes.inners.insert(Inner::of(&[child]));
        }
        self.grow(nodes, Split { left: closed, right: child });
    }

    /// Inserts a cell, or adds to one, anywhere but at the right edge.
    fn insert(&mut self, nodes: &mut Nodes, cell: Cell) {
        if let Some(split) = insert_below(nodes, self.root, self.height, cell) {
            self.grow(nodes, split);
        }
        let last = nodes.leaves.get(self.tail).entries().last().map(|cell| cell.at);
        if last != Some(self.last_at) {
            self.tail = nodes.edge(self.root, self.height, true);
        }
    }

    fn grow(&mut self, nodes: &mut Nodes, split: Split) {
        let left = Child { at: UnixMs::default(), sums: split.left, node: self.root };
        self.root = nodes.inners.insert(Inner::of(&[left, split.right]));
        self.height = self.height.saturating_add(1);
    }

    /// Frees the leaf that covers `at`, which is empty.
    #[inline(never)]
    fn remove_leaf_of(&mut self, nodes: &mut Nodes, at: UnixMs) {
        let mut path = Path::default();
        let leaf = self.descend(nodes, at, &mut path);
        self.remove_leaf(nodes, leaf, &path);
    }

    /// Frees an empty leaf and every ancestor that becomes empty.
    fn remove_leaf(&mut self, nodes: &mut Nodes, leaf: u32, path: &Path) {
        nodes.leaves.remove(leaf);
        for step in path.upwards() {
            nodes.count(1);
            let inner = nodes.inners.get_mut(step.inner);
            inner.remove(step.position());
            if !inner.is_empty() {
                self.collapse(nodes);
                return self.refresh_edges(nodes);
            }
            nodes.inners.remove(step.inner);
        }
        *self = Tree::default();
    }

    fn collapse(&mut self, nodes: &mut Nodes) {
        while self.height > 0 && nodes.inners.get(self.root).len() == 1 {
            let only = nodes.child(self.root, 0);
            nodes.inners.remove(self.root);
            self.root = only;
            self.height = self.height.saturating_sub(1);
        }
    }

    fn refresh_edges(&mut self, nodes: &mut Nodes) {
        if self.root == NONE {
            return;
        }
        nodes.count(usize::from(self.height).saturating_mul(2));
        self.tail = nodes.edge(self.root, self.height, true);
        let head = nodes.edge(self.root, self.height, false);
        if let Some(first) = nodes.leaves.get(head).entries().first() {
            self.next_at = first.at;
        }
        if let Some(last) = nodes.leaves.get(self.tail).entries().last() {
            self.last_at = last.at;
        }
    }
}

fn visit_below(nodes: &Nodes, node: u32, level: u8, visit: &mut impl FnMut(UnixMs, Sums)) {
    if level == 0 {
        for cell in nodes.leaves.get(node).entries() {
            visit(cell.at, cell.sums);
        }
        return;
    }
    for child in nodes.inners.get(node).entries() {
        visit_below(nodes, child.node, level.saturating_sub(1), visit);
    }
}

#[cfg(test)]
mod tests;
