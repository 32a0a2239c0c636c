use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// The reference model: a sorted map.
#[derive(Default)]
struct Plain(BTreeMap<UnixMs, Sums>);

impl Plain {
    fn add(&mut self, at: UnixMs, more: Sums) {
        let cell = self.0.entry(at).or_default();
        *cell = cell.plus(more);
    }

    fn change(&mut self, at: UnixMs, less: Sums, more: Sums) {
        let cell = self.0.get_mut(&at).unwrap();
        *cell = cell.minus(less).plus(more);
        if *cell == Sums::ZERO {
            self.0.remove(&at);
        }
    }

    fn due(&self, now: UnixMs) -> Sums {
        self.0.range(..=now).fold(Sums::ZERO, |sums, (_, cell)| sums.plus(*cell))
    }

    fn freed_at(&self, mut need: u64) -> UnixMs {
        for (at, cell) in &self.0 {
            if need <= cell.total() {
                return *at;
            }
            need -= cell.total();
        }
        unreachable!("more is needed than is held");
    }
}

#[derive(Clone, Debug)]
enum Op {
    Append { after: u64, amount: u64 },
    Insert { before_last: u64, amount: u64 },
    Settle { nth: usize, part: u64 },
    Take { nth: usize },
    SettleAndAdd { nth: usize, to: (u64, u64), amount: u64 },
    Move { nth: usize, to: (u64, u64), amount: u64 },
    Expire { after: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0_u64..3, 1_u64..100).prop_map(|(after, amount)| Op::Append { after, amount }),
        3 => (0_u64..2_000, 1_u64..100).prop_map(|(before_last, amount)| Op::Insert { before_last, amount }),
        2 => (0_usize..5_000, 0_u64..100).prop_map(|(nth, part)| Op::Settle { nth, part }),
        3 => (0_usize..5_000).prop_map(|nth| Op::Take { nth }),
        2 => (0_usize..5_000, to(), 1_u64..100).prop_map(|(nth, to, amount)| Op::SettleAndAdd { nth, to, amount }),
        2 => (0_usize..5_000, to(), 1_u64..100).prop_map(|(nth, to, amount)| Op::Move { nth, to, amount }),
        1 => (0_u64..40).prop_map(|after| Op::Expire { after }),
    ]
}

/// A time near the last one: milliseconds after it and before it.
fn to() -> impl Strategy<Value = (u64, u64)> {
    (0_u64..3, prop_oneof![Just(0), 0_u64..60])
}

struct Both {
    tree: Timeline,
    nodes: Nodes,
    plain: Plain,
    now: UnixMs,
    last: UnixMs,
}

impl Both {
    fn new() -> Both {
        let start = UnixMs::new(10_000);
        Both {
            tree: Timeline::default(),
            nodes: Nodes::default(),
            plain: Plain::default(),
            now: start,
            last: start.plus_ms(1),
        }
    }

    fn nth(&self, nth: usize) -> Option<(UnixMs, Sums)> {
        let len = self.plain.0.len();
        (len > 0).then(|| self.plain.0.iter().nth(nth % len).map(|(at, sums)| (*at, *sums)).unwrap())
    }

    fn add(&mut self, at: UnixMs, amount: u64) {
        self.tree.add(&mut self.nodes, at, Sums::unsettled(amount));
        self.plain.add(at, Sums::unsettled(amount));
    }

    fn change(&mut self, at: UnixMs, less: Sums, more: Sums) {
        assert!(self.tree.change(&mut self.nodes, at, more.minus(less)));
        self.plain.change(at, less, more);
    }

    fn near_last(&mut self, (after, before): (u64, u64)) -> UnixMs {
        let at = self.last.plus_ms(after).minus_ms(before).max(self.now.plus_ms(1));
        self.last = self.last.max(at);
        at
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::Append { after, amount } => {
                self.last = self.last.plus_ms(after).max(self.now.plus_ms(1));
                self.add(self.last, amount);
            }
            Op::Insert { before_last, amount } => {
                let at = self.last.minus_ms(before_last).max(self.now.plus_ms(1));
                self.last = self.last.max(at);
                self.add(at, amount);
            }
            Op::Settle { nth, part } => {
                let Some((at, sums)) = self.nth(nth) else { return };
                self.change(at, Sums::unsettled(sums.unsettled), Sums::settled(sums.unsettled.min(part)));
            }
            Op::Take { nth } => {
                let Some((at, sums)) = self.nth(nth) else { return };
                self.change(at, sums, Sums::ZERO);
            }
            Op::SettleAndAdd { nth, to, amount } => {
                let Some((at, Sums { unsettled, .. })) = self.nth(nth) else { return };
                let to = self.near_last(to);
                self.tree.settle_and_add(&mut self.nodes, (at, unsettled), (to, amount));
                self.plain.change(at, Sums::unsettled(unsettled), Sums::settled(unsettled));
                self.plain.add(to, Sums::unsettled(amount));
            }
            Op::Move { nth, to, amount } => {
                let Some((at, Sums { unsettled, .. })) = self.nth(nth) else { return };
                let to = self.near_last(to);
                self.tree.move_to(&mut self.nodes, (at, unsettled), (to, amount));
                self.plain.change(at, Sums::unsettled(unsettled), Sums::ZERO);
                self.plain.add(to, Sums::unsettled(amount));
            }
            Op::Expire { after } => {
                self.now = self.now.plus_ms(after);
                assert_eq!(self.tree.due(&self.nodes, self.now), self.plain.due(self.now));
                self.tree.expire(&mut self.nodes, self.now);
                self.plain.0 = self.plain.0.split_off(&self.now.plus_ms(1));
            }
        }
    }

    fn check(&mut self) {
        let all = self.plain.due(UnixMs::MAX);
        assert_eq!(self.tree.sums(), all);
        let first = self.plain.0.keys().next().copied();
        assert_eq!(first.unwrap_or(UnixMs::MAX), self.tree.next_at());
        for part in [1, 2, 3, 5] {
            let need = all.total() / part;
            if need > 0 {
                assert_eq!(self.tree.freed_at(&mut self.nodes, need), self.plain.freed_at(need));
                let probe = self.plain.freed_at(need);
                assert_eq!(self.tree.due(&self.nodes, probe), self.plain.due(probe));
            }
        }
        let mut seen = BTreeMap::new();
        self.tree.visit(&self.nodes, &mut |at, sums| assert!(seen.insert(at, sums).is_none()));
        assert_eq!(seen, self.plain.0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_timeline_answers_like_a_sorted_map(ops in prop::collection::vec(op(), 1..1_500)) {
        let mut both = Both::new();
        for (i, op) in ops.iter().enumerate() {
            both.run(op);
            if i % 16 == 0 {
                both.check();
            }
        }
        both.check();
        // Every discarded node is freed in the end, and the slabs reuse it.
        both.tree.expire(&mut both.nodes, UnixMs::MAX);
        both.nodes.reclaim(usize::MAX);
        let (leaves, inners) = (both.nodes.leaves.used(), both.nodes.inners.used());
        for _ in 0..leaves {
            both.nodes.leaves.insert(Leaf::default());
        }
        for _ in 0..inners {
            both.nodes.inners.insert(Inner::default());
        }
        prop_assert_eq!((both.nodes.leaves.used(), both.nodes.inners.used()), (leaves, inners));
    }
}

/// Times in an order that used to fill one node after the other just before its end, level by level.
#[derive(Default)]
struct Chains(Vec<u64>);

impl Chains {
    fn chain(&mut self, level: u32, low: u64) -> u64 {
        if level == 0 {
            self.0.extend((1..21).map(|step| low + step));
            return low + 20;
        }
        let last = self.chain(level - 1, low);
        self.0.extend((1..=30).rev().map(|step| last + step));
        self.chain(level - 1, last + 30)
    }

    fn new(levels: u32) -> Chains {
        let end = 1_000_000_000;
        let mut chains = Chains(vec![end]);
        chains.0.extend((1..=20).map(|step| step * 2));
        chains.0.extend([end - 1, 41]);
        let mut last = 41;
        for level in 0..levels {
            let spare = last + 1;
            chains.0.extend((1..=29).rev().map(|step| spare + step));
            last = chains.chain(level, last + 30);
            chains.0.extend([end - 2 - u64::from(level), spare]);
        }
        chains
    }
}

/// Redefining the window of a limit before each of 400,000 reserves produced expiries in this order. Every split then
/// left one entry in a node of its own, the tree grew beyond `HEIGHT_MAX`, and the next expiry broke the Book.
#[test]
fn no_order_of_insertions_makes_a_tree_high() {
    let mut both = Both::new();
    let chains = Chains::new(13);
    for &at in &chains.0 {
        both.add(both.now.plus_ms(at), 1);
    }
    assert!(chains.0.len() > 400_000);
    let Timeline::Many(tree) = both.tree else { panic!("few cells") };
    assert!(tree.height <= 6, "{}", tree.height);
    both.run(&Op::Expire { after: 200_000 });
    both.check();
}

#[test]
fn a_million_cells_that_are_due_at_once_take_a_bounded_number_of_steps() {
    let mut both = Both::new();
    for i in 0..1_000_000 {
        both.tree.add(&mut both.nodes, both.now.plus_ms(1 + i), Sums::unsettled(1));
    }
    let before = both.nodes.steps;
    assert_eq!(both.tree.freed_at(&mut both.nodes, 700_000), both.now.plus_ms(700_000));
    assert_eq!(both.tree.due(&both.nodes, both.now.plus_ms(900_000)).total(), 900_000);
    both.tree.expire(&mut both.nodes, both.now.plus_ms(900_000));
    assert_eq!(both.tree.sums(), Sums::unsettled(100_000));
    assert!(both.nodes.steps - before < 400, "{} steps", both.nodes.steps - before);
}
