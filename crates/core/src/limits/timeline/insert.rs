//! Insertion into a tree of cells, which splits full nodes.

use super::nodes::{Cell, Child, Entry, Nodes, Run, Sums};
use crate::time::UnixMs;

/// A node that was split in two.
pub(super) struct Split {
    pub(super) left: Sums,
    pub(super) right: Child,
}

impl Split {
    fn of<E: Entry, const N: usize>(left: Sums, later: &Run<E, N>, node: u32) -> Split {
        let at = later.entries().first().map_or(UnixMs::MAX, Entry::at);
        Split { left, right: Child { at, sums: later.sums(), node } }
    }
}

/// Inserts a cell below a node, or adds to one. Returns how the node was split, if it was.
pub(super) fn insert_below(nodes: &mut Nodes, node: u32, level: u8, cell: Cell) -> Option<Split> {
    nodes.count(1);
    if level == 0 {
        return insert_in_leaf(nodes, node, cell);
    }
    let position = nodes.inners.get(node).position_of(cell.at);
    let child = nodes.child(node, position);
    let split = insert_below(nodes, child, level.saturating_sub(1), cell);
    let inner = nodes.inners.get_mut(node);
    let child = &mut inner.entries_mut()[position];
    let Some(split) = split else {
        child.sums = child.sums.plus(cell.sums);
        return None;
    };
    child.sums = split.left;
    let position = position.saturating_add(1);
    if !inner.is_full() {
        inner.insert(position, split.right);
        return None;
    }
    let later = inner.insert_and_split(position, split.right);
    Some(Split::of(inner.sums(), &later, nodes.inners.insert(later)))
}

fn insert_in_leaf(nodes: &mut Nodes, node: u32, cell: Cell) -> Option<Split> {
    let leaf = nodes.leaves.get_mut(node);
    let position = match leaf.find(cell.at) {
        Ok(position) => {
            let found = &mut leaf.entries_mut()[position];
            found.sums = found.sums.plus(cell.sums);
            return None;
        }
        Err(position) => position,
    };
    if !leaf.is_full() {
        leaf.insert(position, cell);
        return None;
    }
    let later = leaf.insert_and_split(position, cell);
    Some(Split::of(leaf.sums(), &later, nodes.leaves.insert(later)))
}
