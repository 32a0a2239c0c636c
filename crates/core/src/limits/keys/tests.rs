use std::collections::BTreeMap;

use super::*;
use crate::limits::{Config, Limit, Limits, Phase, TemplateId};

fn limits() -> Limits {
    Limits::new(Config::default(), 7)
}

fn key(number: u64) -> LimitKey {
    let long = if number.is_multiple_of(3) { ":a-key-that-takes-more-than-one-piece-of-the-table" } else { "" };
    LimitKey::new(&format!("user:{:05}{long}", number.wrapping_mul(7_919) % 50_021)).unwrap()
}

fn add(limits: &mut Limits, key: &LimitKey, is_derived: bool) -> LimitSlot {
    let limit = Limit { phase: Phase::Active, ..Limit::default() };
    if is_derived {
        return limits.add_derived(Limit { template: TemplateId(0), ..limit }, key);
    }
    let text = Text { key: key.clone(), capacity: 0, unit: String::new(), credit: None, description: String::new() };
    limits.add_limit(limit, text)
}

fn all(limits: &Limits, start: Bound<&str>) -> Vec<String> {
    let slots = limits.keys.range(&limits.state, NamespaceId::DEFAULT, Listed::All, start);
    slots.map(|slot| limits.state.key(slot).unwrap().to_string()).collect()
}

#[test]
fn keys_are_found_and_listed_in_order_after_any_additions_and_removals() {
    let (mut limits, mut model) = (limits(), BTreeMap::new());
    for number in 0..6_000 {
        let key = key(number);
        model.insert(key.as_str().to_owned(), add(&mut limits, &key, number % 2 == 0));
        if number % 4 == 0 {
            let gone = self::key(number / 2);
            if let Some(slot) = model.remove(gone.as_str()) {
                limits.unname_limit(slot);
                limits.state.limits.remove(slot);
            }
        }
    }
    let names: Vec<String> = model.keys().cloned().collect();
    assert_eq!(all(&limits, Bound::Unbounded), names);
    assert_eq!(limits.keys.len(NamespaceId::DEFAULT), names.len() as u64);
    for (place, name) in names.iter().enumerate().step_by(97) {
        assert_eq!(all(&limits, Bound::Included(name)), names[place..]);
        assert_eq!(all(&limits, Bound::Excluded(name)), names[place + 1..]);
        let between = format!("{name}0");
        assert_eq!(all(&limits, Bound::Included(&between)), all(&limits, Bound::Excluded(&between)));
    }
    assert_eq!(all(&limits, Bound::Excluded("zzz")), Vec::<String>::new());
    for (name, slot) in &model {
        let key = LimitKey::new(name).unwrap();
        assert_eq!(limits.resolve(NamespaceId::DEFAULT, &key), Some(*slot));
        assert_eq!(limits.resolve(NamespaceId(1), &key), None);
    }
    for (_, slot) in model {
        limits.unname_limit(slot);
        limits.state.limits.remove(slot);
    }
    assert_eq!(all(&limits, Bound::Unbounded), Vec::<String>::new());
    assert_eq!(limits.derived_of(NamespaceId::DEFAULT), 0);
}

#[test]
fn keys_that_come_in_order_fill_their_chunks() {
    let mut limits = limits();
    for number in 0..20_000 {
        add(&mut limits, &LimitKey::new(&format!("user:{number:09}")).unwrap(), true);
    }
    let chunks = &limits.keys.orders[0].chunks;
    let room: usize = chunks.iter().map(|chunk| chunk.slots.capacity()).sum();
    assert!(room < 25_000, "{room}");
}

#[test]
fn chunks_of_keys_that_are_gone_are_merged() {
    let mut limits = limits();
    let mut slots = Vec::new();
    for number in 0..20_000 {
        slots.push(add(&mut limits, &LimitKey::new(&format!("user:{number:09}")).unwrap(), true));
    }
    let kept = |place: usize| place.is_multiple_of(400);
    for slot in slots.iter().enumerate().filter(|(place, _)| !kept(*place)).map(|(_, slot)| *slot) {
        limits.unname_limit(slot);
        limits.state.limits.remove(slot);
    }
    let chunks = limits.keys.orders[0].chunks.len();
    assert!(chunks <= 2, "{chunks}");
    let names: Vec<String> =
        (0..20_000).filter(|place| kept(*place)).map(|number| format!("user:{number:09}")).collect();
    assert_eq!(all(&limits, Bound::Unbounded), names);
}

#[test]
fn a_restore_lists_the_same_limits_as_additions_one_by_one() {
    let (mut limits, mut restored) = (limits(), self::limits());
    restored.keys.begin_restore();
    for number in 0..5_000 {
        let key = key(number);
        add(&mut limits, &key, number % 5 != 0);
        add(&mut restored, &key, number % 5 != 0);
    }
    restored.keys.end_restore(&restored.state);
    assert_eq!(all(&restored, Bound::Unbounded), all(&limits, Bound::Unbounded));
    assert_eq!(restored.keys.len(NamespaceId::DEFAULT), 5_000);
    for limits in [&limits, &restored] {
        let defined = limits.keys.range(&limits.state, NamespaceId::DEFAULT, Listed::Defined, Bound::Unbounded);
        let slots: Vec<LimitSlot> = defined.collect();
        assert_eq!(slots.len(), 1_000);
        assert!(slots.iter().all(|slot| limits.state.text(*slot).is_some()));
    }
    add(&mut restored, &LimitKey::new("user:00000:more").unwrap(), true);
    assert_eq!(all(&restored, Bound::Unbounded).len(), 5_001);
}
