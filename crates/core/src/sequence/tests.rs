use std::collections::BTreeMap;

use super::*;

const START: UnixMs = UnixMs::new(1_750_000_000_000);

fn client(name: &str) -> ClientId {
    ClientId::new(name).unwrap()
}

fn content(number: u8) -> ContentHash {
    ContentHash([number; 16])
}

fn scope(namespace: u16, vault: Option<u32>) -> Scope {
    Scope { namespace: NamespaceId(namespace), vault: vault.map(VaultId) }
}

/// Commits like a caller: only the next sequence.
fn write(sequences: &mut Sequences<u64>, now: UnixMs, who: (Scope, &ClientId), sequence: u64, what: u8) -> bool {
    let Verdict::Next(claim) = sequences.judge(now, who, (sequence, content(what)), u64::MAX) else { return false };
    sequences.commit(claim, who, Kept { content: content(what), at: now, result: sequence * 1_000 + u64::from(what) });
    true
}

#[test]
fn every_row_of_the_table() {
    let mut sequences = Sequences::new(10, 1);
    let who = (scope(0, None), &client("billing"));
    assert_eq!(sequences.last(who.0, who.1), 0);
    assert_eq!(sequences.judge(START, who, (0, content(1)), u64::MAX), Verdict::Invalid);
    assert_eq!(sequences.judge(START, who, (u64::MAX, content(1)), u64::MAX), Verdict::Invalid);
    assert_eq!(sequences.judge(START, who, (2, content(1)), u64::MAX), Verdict::Gap { last: 0 });
    assert!(write(&mut sequences, START, who, 1, 1));
    assert!(write(&mut sequences, START, who, 2, 2));
    assert_eq!(sequences.judge(START, who, (1, content(1)), u64::MAX), Verdict::Committed(&1_001));
    assert_eq!(sequences.judge(START, who, (1, content(2)), u64::MAX), Verdict::Reused { last: 2 });
    assert_eq!(sequences.judge(START, who, (2, content(2)), u64::MAX), Verdict::Committed(&2_002));
    assert_eq!(sequences.judge(START, who, (4, content(2)), u64::MAX), Verdict::Gap { last: 2 });
    let later = START.plus_ms(RESULTS_MS);
    assert_eq!(sequences.judge(later.minus_ms(1), who, (1, content(1)), u64::MAX), Verdict::Committed(&1_001));
    assert_eq!(sequences.judge(later, who, (1, content(1)), u64::MAX), Verdict::Forgotten { last: 2 });
    assert_eq!(sequences.judge(later, who, (1, content(9)), u64::MAX), Verdict::Forgotten { last: 2 });
    assert_eq!(sequences.judge(later.plus_ms(1 << 40), who, (2, content(2)), u64::MAX), Verdict::Committed(&2_002));
    assert_eq!(sequences.judge(later.plus_ms(1 << 40), who, (2, content(9)), u64::MAX), Verdict::Reused { last: 2 });
}

#[test]
fn one_client_in_a_namespace_and_two_vaults_has_three_streams() {
    let mut sequences = Sequences::new(10, 1);
    let name = client("billing");
    for (position, number) in [(scope(0, None), 3), (scope(0, Some(0)), 1), (scope(0, Some(1)), 2), (scope(1, None), 4)]
    {
        for sequence in 1..=number {
            assert!(write(&mut sequences, START, (position, &name), sequence, 0));
        }
        assert_eq!(sequences.last(position, &name), number);
    }
    assert_eq!(sequences.last(scope(0, None), &name), 3);
}

#[test]
fn beyond_the_cap_new_clients_are_refused_and_known_ones_go_on() {
    let mut sequences = Sequences::new(2, 1);
    let position = scope(0, None);
    assert!(write(&mut sequences, START, (position, &client("a")), 1, 0));
    assert!(write(&mut sequences, START, (position, &client("b")), 1, 0));
    let c = client("c");
    assert_eq!(sequences.judge(START, (position, &c), (1, content(0)), u64::MAX), Verdict::TooManyClients);
    assert_eq!(sequences.judge(START, (position, &c), (2, content(0)), u64::MAX), Verdict::Gap { last: 0 });
    assert!(write(&mut sequences, START, (position, &client("a")), 2, 0));
}

#[test]
fn the_last_ten_thousand_results_are_kept_and_the_last_of_every_client() {
    let mut sequences = Sequences::new(10, 1);
    let (a, b) = (client("a"), client("b"));
    let position = scope(0, None);
    assert!(write(&mut sequences, START, (position, &b), 1, 7));
    for sequence in 1..=RESULTS_MAX as u64 + 5 {
        assert!(write(&mut sequences, START, (position, &a), sequence, 0));
    }
    assert_eq!(sequences.state.recent.len(), RESULTS_MAX);
    assert_eq!(sequences.judge(START, (position, &b), (1, content(7)), u64::MAX), Verdict::Committed(&1_007));
    let last = RESULTS_MAX as u64 + 5;
    assert_eq!(sequences.judge(START, (position, &a), (5, content(0)), u64::MAX), Verdict::Forgotten { last });
    assert_eq!(sequences.judge(START, (position, &a), (6, content(0)), u64::MAX), Verdict::Committed(&6_000));
}

/// Everything ever committed, in order.
#[derive(Default)]
struct Model {
    all: Vec<(u8, u64, u8, UnixMs)>,
    last: BTreeMap<u8, u64>,
}

impl Model {
    fn judge(&self, now: UnixMs, clients_max: usize, who: u8, sequence: u64, what: u8) -> String {
        let last = self.last.get(&who).copied().unwrap_or(0);
        if sequence == 0 || sequence == u64::MAX {
            return "invalid".into();
        }
        if sequence > last + 1 {
            return format!("gap {last}");
        }
        if sequence == last + 1 {
            let is_full = last == 0 && self.last.len() >= clients_max;
            return if is_full { "too many".into() } else { "next".into() };
        }
        let position = self.all.iter().position(|(client, number, ..)| (*client, *number) == (who, sequence)).unwrap();
        let (_, _, content, at) = self.all[position];
        let is_recent = self.all.len() - position <= RESULTS_MAX && now < at.plus_ms(RESULTS_MS);
        if sequence != last && !is_recent {
            return format!("forgotten {last}");
        }
        if content == what {
            format!("committed {}", sequence * 1_000 + u64::from(what))
        } else {
            format!("reused {last}")
        }
    }
}

fn said(verdict: &Verdict<'_, u64>) -> String {
    match verdict {
        Verdict::Invalid => "invalid".into(),
        Verdict::Committed(result) => format!("committed {result}"),
        Verdict::Reused { last } => format!("reused {last}"),
        Verdict::Forgotten { last } => format!("forgotten {last}"),
        Verdict::Gap { last } => format!("gap {last}"),
        Verdict::TooManyClients => "too many".into(),
        Verdict::Next(_) => "next".into(),
    }
}

#[test]
fn every_verdict_is_that_of_a_plain_model() {
    for seed in 0..60_u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut below = |end: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % end
        };
        let clients_max = 3 + below(3) as usize;
        let clients: Vec<ClientId> = (0..6).map(|n| client(&format!("client-{n}"))).collect();
        let mut sequences = Sequences::new(clients_max as u32, seed);
        let (mut model, mut now) = (Model::default(), START);
        for _ in 0..400 {
            now = now.plus_ms([0, 1, 1_000, RESULTS_MS / 8, RESULTS_MS - 1][below(5) as usize]);
            let who = below(6) as u8;
            let last = model.last.get(&who).copied().unwrap_or(0);
            let sequence = match below(10) {
                0..5 => last + 1,
                5 => last,
                6 => last.saturating_sub(below(6)),
                7 => last + 2,
                8 => below(last + 3),
                _ => [0, u64::MAX][below(2) as usize],
            };
            let what = below(2) as u8;
            let key =
                (scope(u16::from(who % 2), (!who.is_multiple_of(3)).then_some(u32::from(who))), &clients[who as usize]);
            let expected = model.judge(now, clients_max, who, sequence, what);
            let verdict = said(&sequences.judge(now, key, (sequence, content(what)), u64::MAX));
            assert_eq!(verdict, expected, "seed {seed}: client {who}, sequence {sequence} of {last}");
            if verdict == "next" && below(4) > 0 {
                assert!(write(&mut sequences, now, key, sequence, what));
                model.all.push((who, sequence, what, now));
                model.last.insert(who, sequence);
            }
            assert_eq!(sequences.last(key.0, key.1), model.last.get(&who).copied().unwrap_or(0));
        }
    }
}
