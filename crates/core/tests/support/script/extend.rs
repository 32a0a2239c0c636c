//! Extensions of a script.

use earmark_core::{ExtendStep, Kind, LimitInfo, LimitRef, LimitStatus, NamespaceId, Part, REQUIREMENTS_MAX};

use super::{Script, Used};
use crate::support::step::Step;

/// Extensions that may be repeated.
const RECENT: usize = 12;

impl Script {
    /// Mostly the next extension of a recent lease; sometimes one again.
    pub(super) fn extend(&mut self) -> Step {
        if self.random.chance(25) && !self.extensions.is_empty() {
            let place = self.random.index(self.extensions.len());
            return self.again(self.extensions[place].clone());
        }
        let Some(Used { namespace, lease, requirements }) = self.live_lease() else { return Step::Tick };
        let info = self.shadow.lease(self.shadow.time(), namespace, lease);
        let last = info.map_or(0, |info| info.extensions);
        let number = match self.random.below(100) {
            0..3 => self.random.pick(&[0, 10_000, 10_001, u32::MAX]),
            3..8 => last,
            8..10 => last + 2,
            _ => last + 1,
        };
        let mut add = if self.random.chance(35) { Vec::new() } else { requirements.clone() };
        let takes_all = self.random.chance(4);
        if takes_all {
            add = self.every_limit(namespace);
        } else if self.random.chance(25) {
            let others = self.requirements(namespace);
            add.extend(others);
            add.dedup_by(|a, b| a.limit == b.limit);
        }
        self.random.shuffle(&mut add);
        let most = if takes_all { REQUIREMENTS_MAX } else { self.random.pick(&[1, 1, 2, 3, 6, 33]) };
        add.truncate(most);
        for part in &mut add {
            part.amount =
                if self.random.chance(85) { part.amount.min(self.random.between(1, 4)).max(1) } else { part.amount };
        }
        let mut used: Vec<Part> =
            if self.random.chance(50) { self.actuals(namespace, requirements) } else { Vec::new() };
        let reports = self.random.pick(&[1, 2, 33]);
        used.truncate(reports);
        let renew = self.random.chance(55);
        let (step, claim) = (ExtendStep::Whole, self.claim(lease));
        let step = Step::Extend { namespace, lease, number, add, used, renew, step, claim };
        if self.extensions.len() == RECENT {
            self.extensions.remove(0);
        }
        self.extensions.push(step.clone());
        step
    }

    /// One of each limit that can be taken now, so that a lease gets too many of them.
    fn every_limit(&self, namespace: NamespaceId) -> Vec<Part> {
        let limits = self.shadow.limits(self.shadow.time(), namespace).into_iter();
        let is_open = |limit: &LimitInfo| {
            let is_free = limit.status == LimitStatus::Active && limit.pause.is_none();
            is_free && !matches!(limit.definition.kind, Kind::Credit(_))
        };
        limits
            .filter(is_open)
            .map(|limit| Part { limit: LimitRef::Key(limit.definition.key.clone()), amount: 1 })
            .collect()
    }

    /// The same extension, with what it adds in another order; sometimes with another body.
    fn again(&mut self, step: Step) -> Step {
        let Step::Extend { namespace, lease, number, mut add, mut used, renew, step, claim } = step else {
            return step;
        };
        self.random.shuffle(&mut add);
        self.random.shuffle(&mut used);
        self.rename(namespace, &mut add);
        let renew = renew != self.random.chance(10);
        Step::Extend { namespace, lease, number, add, used, renew, step, claim }
    }
}
