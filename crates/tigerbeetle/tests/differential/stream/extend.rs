//! Extensions of earlier leases.

use earmark_admission::{Amount, Backend, CreditStep, ExtendRequest, Limits, LimitsExtend};
use earmark_core::Principal;

use super::{Asking, Stream};
use crate::TOLERANCE_MS;
use crate::compare;
use crate::support::wall_ms;

/// The body of an extension.
#[derive(Clone, Debug)]
pub(super) struct Extended {
    number: u32,
    add: Vec<Amount>,
    used: Vec<Amount>,
    renew: bool,
}

impl Stream {
    pub(super) async fn extend(&mut self) -> Asking {
        match self.known() {
            Some(place) => self.extend_at(place).await,
            None => Ok(false),
        }
    }

    pub(super) async fn extend_at(&mut self, place: usize) -> Asking {
        let asked = self.leases[place].clone();
        let last = asked.extended.clone();
        let next = last.as_ref().map_or(1, |last| last.number + 1);
        let (body, is_new) = match (self.random.below(20), last) {
            (0..3, Some(last)) => (last, false),
            (3, Some(last)) => (Extended { renew: !last.renew, ..last }, false),
            (4, _) => (Extended { number: next + 1, ..self.body(&asked.all(), next) }, false),
            (5, Some(last)) if last.number > 1 => (Extended { number: last.number - 1, ..last }, false),
            _ => (self.body(&asked.all(), next), true),
        };
        let mut all = asked.all();
        all.extend(body.add.iter().cloned());
        if !self.are_clear(&all) {
            return Ok(false);
        }
        let began = wall_ms();
        let (namespace, lease) = (self.namespace.clone(), asked.lease);
        let Extended { number, add, used, renew } = body.clone();
        let request = ExtendRequest {
            namespace: namespace.clone(),
            lease,
            number,
            add,
            used,
            claim: earmark_core::LeaseClaim::default(),
            renew,
        };
        let book = self.book.extend(Principal::System, vec![request.clone()]).await.remove(0).unwrap();
        let ExtendRequest { add, used, .. } = request;
        let request = LimitsExtend {
            namespace,
            lease,
            number,
            add,
            used,
            claim: earmark_core::LeaseClaim::default(),
            renew,
            credit: CreditStep::Held,
        };
        let ledger = self.node().extend(vec![request]).await.remove(0).unwrap().answer;
        let ended = wall_ms();
        self.say(&("extend", lease, &body, &book, &ledger));
        self.longest_ms = self.longest_ms.max(ended - began);
        let answer = self.check(began, &all, compare::extend(&book, &ledger, is_new, self.longest_ms))?;
        let is_timeout = asked.at.is_some() && !asked.is_completed && answer == "extension of an ended lease";
        self.tally.met(if is_timeout && asked.extended.is_some() { "extension after a timeout" } else { answer });
        let asked = &mut self.leases[place];
        match answer {
            "extended" if is_new => {
                asked.added.extend(body.add.iter().cloned());
                asked.extended_at.push((began, ended));
                asked.extended = Some(body);
            }
            "extension denied" if is_new => asked.extended = Some(body),
            _ => {}
        }
        self.blur_extended(place);
        self.usage_of(&all).await?;
        Ok(true)
    }

    /// A random extension of a lease with these reservations.
    fn body(&mut self, all: &[Amount], number: u32) -> Extended {
        let mut add = if self.random.chance(60) { self.parts() } else { Vec::new() };
        for part in all {
            if self.random.chance(25) && add.iter().all(|added| added.key != part.key) {
                let amount = self.random.between(1, 12);
                add.push(Amount { key: part.key.clone(), amount });
            }
        }
        let mut used = Vec::new();
        for part in all.iter().chain(&add.clone()) {
            let is_derived = self.place(&part.key).is_some_and(|place| self.limits[place].template.is_some());
            if self.random.chance(40) && used.iter().all(|each: &Amount| each.key != part.key) {
                let most = if is_derived || self.random.chance(80) { part.amount } else { part.amount + 30 };
                let amount = self.random.between(0, most);
                used.push(Amount { key: part.key.clone(), amount });
            }
        }
        let renew = self.random.chance(60);
        Extended { number, add, used, renew }
    }

    /// The ends of all parts of an extended lease. TigerBeetle counts whole seconds.
    fn blur_extended(&mut self, place: usize) {
        let asked = self.leases[place].clone();
        for part in asked.all() {
            let Some(place) = self.place(&part.key) else { continue };
            let limit = &mut self.limits[place];
            if limit.is_quick {
                for (from, to) in asked.extended_at.iter().copied().chain(asked.at) {
                    limit.unclear.push((limit.end_ms(from) - TOLERANCE_MS, limit.end_ms(to) + 1_000 + TOLERANCE_MS));
                }
            }
        }
    }
}
