//! Requirements and actuals of a script.

use earmark_core::{ForeignLimit, Kind, LimitId, LimitRef, NamespaceId, NamespaceName, Part};

use super::profile::Amounts;
use super::{SPARE_KEYS, Script, TEAM, unknown_key};
use crate::support::step::key;

const PARTS_MAX: usize = 32;

impl Script {
    pub(super) fn requirements(&mut self, namespace: NamespaceId) -> Vec<Part> {
        let known = self.known(namespace);
        let mut places: Vec<usize> = (0..known).collect();
        self.random.shuffle(&mut places);
        let count = match self.random.below(100) {
            0..55 => self.random.between(1, 3),
            55..70 => self.random.between(2, 6),
            70..92 => self.random.between(5, 31),
            92..98 => PARTS_MAX as u64,
            98 => PARTS_MAX as u64 + self.random.between(1, 2),
            _ => 0,
        };
        let count = usize::try_from(count).unwrap();
        if count > PARTS_MAX {
            places.extend(known..count);
        }
        places.truncate(count);
        let mut parts: Vec<Part> = places.iter().map(|&place| self.part(namespace, place)).collect();
        self.name_users(&mut parts);
        self.rename(namespace, &mut parts);
        self.spoil_parts(namespace, &mut parts);
        parts
    }

    /// Sometimes names keys that only templates match.
    fn name_users(&mut self, parts: &mut [Part]) {
        if !self.random.chance(35) {
            return;
        }
        let mut users = ["t:a", "t:b", "t:c", "t:u1", "t:u2", "t:u3", "x:u1", "t:u1:m"];
        self.random.shuffle(&mut users);
        let count = self.random.index(4).min(parts.len());
        for (part, user) in parts.iter_mut().zip(users).take(count) {
            *part = Part { limit: LimitRef::Key(key(user)), amount: self.random.between(1, 3) };
        }
    }

    /// Number of limits of a namespace, plus a few unknown ones.
    fn known(&mut self, namespace: NamespaceId) -> usize {
        let known = if namespace == NamespaceId::DEFAULT { self.profile.keys } else { 2 };
        if self.random.chance(8) && !self.profile.is_calm { known + SPARE_KEYS } else { known }
    }

    fn part(&mut self, namespace: NamespaceId, place: usize) -> Part {
        let amount = self.amount(namespace, place);
        Part { limit: LimitRef::Key(self.profile.key(place)), amount }
    }

    pub(super) fn amount(&mut self, namespace: NamespaceId, place: usize) -> u64 {
        let key = self.profile.key(place);
        let capacity = match self.definitions.get(&(namespace, key)) {
            None => 10,
            Some(definition) => match &definition.kind {
                Kind::Rolling { .. } | Kind::Concurrency { .. } | Kind::Calendar { .. } => definition.capacity.max(1),
                Kind::Credit(terms) => {
                    let terms = terms.clone();
                    let has = self.available(namespace, &terms.vault, &terms.account, &terms.asset);
                    u64::try_from(has.max(1)).unwrap_or(u64::MAX)
                }
            },
        };
        if self.random.chance(if self.profile.is_calm { 1 } else { 10 }) {
            let near = [capacity, capacity - 1, capacity.saturating_add(1), capacity / 2];
            return self.random.pick(&near).max(1);
        }
        match self.profile.amounts {
            Amounts::Small => self.random.between(1, 3),
            Amounts::Middling => self.random.between(1, (capacity / 8).max(1)),
            Amounts::Huge => {
                let choices = [1, u64::MAX, capacity / 3, capacity / 2, capacity - capacity / 3];
                self.random.pick(&choices).max(1)
            }
        }
    }

    fn spoil_parts(&mut self, namespace: NamespaceId, parts: &mut Vec<Part>) {
        let Some(last) = parts.len().checked_sub(1) else { return };
        let place = self.random.index(parts.len());
        match self.random.below(100) {
            0 => parts[place].amount = 0,
            // The same limit twice, sometimes once by key and once by id.
            1..4 => {
                parts.push(parts[place].clone());
                self.rename(namespace, &mut parts[last..]);
            }
            7..9 => parts[place].limit = LimitRef::Key(unknown_key(&mut self.random)),
            4 => {
                let (slot, generation) = (self.random.pick(&[0, 3, 999, u32::MAX]), self.random.pick(&[0, 1, 7]));
                parts[place].limit = LimitRef::Id(LimitId { slot, generation });
            }
            // A limit of another namespace, by id.
            5..7 => {
                let other = if namespace == TEAM { NamespaceId::DEFAULT } else { TEAM };
                let id = self.shadow.resolve(other, &self.profile.key(self.random.index(2)));
                parts[last].limit = id.map_or_else(|| parts[last].limit.clone(), LimitRef::Id);
            }
            // A limit of another namespace by name, or of the own one as if it were another.
            11..22 => {
                let namespace = NamespaceName::new(self.random.pick(&["default", "team", "nobody"])).unwrap();
                let key = self.profile.key(self.random.index(2));
                parts[last].limit = LimitRef::Foreign(Box::new(ForeignLimit { namespace, key }));
            }
            // An id of any limit so far, which is often stale.
            9..11 if !self.ids.is_empty() => {
                parts[place].limit = LimitRef::Id(self.ids[self.random.index(self.ids.len())]);
            }
            _ => {}
        }
    }

    /// Exchanges keys and ids for some limits.
    pub(super) fn rename(&mut self, namespace: NamespaceId, parts: &mut [Part]) {
        for part in parts {
            if self.random.chance(60) {
                continue;
            }
            let renamed = match &part.limit {
                LimitRef::Id(id) => self.shadow.key_seen_from(namespace, *id).map(Into::into),
                LimitRef::Key(key) => self.shadow.resolve(namespace, key).map(LimitRef::Id),
                LimitRef::Foreign(limit) => {
                    let other = if limit.namespace.is_default() { NamespaceId::DEFAULT } else { TEAM };
                    let found = self.shadow.resolve(other, &limit.key).filter(|_| limit.namespace.as_str() != "nobody");
                    found.map(LimitRef::Id)
                }
            };
            if let Some(limit) = renamed {
                part.limit = limit;
            }
        }
    }

    /// Credit that the owner of a requirement can still spend.
    fn owned(&self, namespace: NamespaceId, part: &Part) -> u64 {
        let known = match &part.limit {
            LimitRef::Id(id) => self.shadow.key(*id),
            LimitRef::Key(key) => Some(key.clone()),
            LimitRef::Foreign(_) => None,
        };
        let definition = known.and_then(|key| self.definitions.get(&(namespace, key)));
        let terms = definition.and_then(|definition| definition.kind.terms());
        let has = terms.map(|t| self.available(namespace, &t.vault, &t.account, &t.asset));
        u64::try_from(has.unwrap_or(0)).unwrap_or(0)
    }

    pub(super) fn actuals(&mut self, namespace: NamespaceId, requirements: Vec<Part>) -> Vec<Part> {
        let mut actuals = requirements;
        if self.random.chance(10) {
            actuals.clear();
        }
        actuals.retain(|_| !self.random.chance(15));
        for part in &mut actuals {
            part.amount = match self.random.below(100) {
                75..100 if self.profile.is_calm => part.amount,
                0..25 => part.amount,
                25..45 => part.amount / 2,
                45..55 => 0,
                55..75 => part.amount.saturating_add(self.random.between(1, 3)),
                75..90 => part.amount.saturating_mul(2),
                90..95 => part.amount.saturating_sub(1),
                95..98 => part.amount.saturating_add(self.owned(namespace, part).saturating_add(1)),
                _ => u64::MAX,
            };
        }
        self.random.shuffle(&mut actuals);
        self.rename(namespace, &mut actuals);
        match self.random.below(100) {
            0..8 => {
                let place = self.random.index(self.profile.keys + 1);
                actuals.push(self.part(namespace, place));
            }
            8..11 => {
                let limit = LimitRef::Key(unknown_key(&mut self.random));
                actuals.insert(0, Part { limit, amount: 1 });
            }
            11 => {
                let more = 100..100 + PARTS_MAX + 1 - actuals.len().min(PARTS_MAX);
                let named = |place: usize| LimitRef::Key(self.profile.key(place));
                actuals.extend(more.map(|place| Part { limit: named(place), amount: 1 }));
            }
            _ => {}
        }
        actuals
    }
}
