//! A payment webhook that is delivered to any node and again, and an account whose plan is changed meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;

use earmark_admission::{Backend, EntryKind, EntryView, WriteAnswer, WriteRequest};
use earmark_core::{
    CarryOver, IdempotencyKey, KEY_RESULTS_MS, Operation, Period, Plan, Principal, Receipt, UnixMs, WriteError, WriteId,
};
use tokio::time::sleep;

use crate::caller::{Caller, TRIES};
use crate::oracle::{Oracle, right_ms};
use crate::support::client::{account, issue, usd, write_request};

/// The account that the webhook pays into.
pub const HOOKS: &str = "hooks";
/// The account with the plan.
pub const PLANNED: &str = "planned";
/// Processes that receive the same events.
pub const REPLICAS: usize = 2;

/// A payment event.
#[derive(Clone, Debug)]
pub struct Event {
    amount: u128,
    /// The first answer.
    receipt: Option<Arc<Receipt>>,
}

fn keyed(key: &str, operations: Vec<Operation>) -> WriteRequest {
    let id = WriteId::Key(IdempotencyKey::new(key).unwrap());
    WriteRequest { id, ..write_request("unused", 1, operations) }
}

impl Caller {
    /// Delivers new events, and old ones again.
    pub async fn deliver_events(mut self) {
        while !self.context.is_over() {
            let known = self.context.oracle.borrow().events.len();
            let event = if known > 0 && self.random.chance(50) { self.random.index(known) } else { known };
            if event == known {
                let amount = self.random.between(1, 50).into();
                self.context.oracle.borrow_mut().events.push(Event { amount, receipt: None });
            }
            for _ in 0..TRIES {
                let node = self.any();
                if self.deliver(node, event).await {
                    break;
                }
                let pause = self.ms(0, 200);
                sleep(pause).await;
            }
            let pause = self.ms(0, 80);
            sleep(pause).await;
        }
    }

    /// Delivers an event to a node.
    pub async fn deliver(&mut self, node: usize, event: usize) -> bool {
        let text = self.say(node, &format!("event {event}"));
        self.context.oracle.borrow_mut().ask(&text);
        let amount = self.context.oracle.borrow().events[event].amount;
        let request = keyed(&format!("evt-{event}"), vec![issue(HOOKS, amount)]);
        let answer = self.ask(node, async move |backend| backend.write(Principal::System, request).await).await;
        let mut oracle = self.context.oracle.borrow_mut();
        match answer {
            Some(Ok(answer)) => oracle.delivered(event, &answer),
            Some(Err(_)) | None => return false,
        }
        true
    }

    /// Sets, changes and removes the plan, also with other offsets.
    pub async fn change_plans(mut self) {
        let mut number = 0;
        while !self.context.is_over() {
            number += 1;
            let plan = self.random.chance(75).then(|| Plan {
                asset: usd(),
                amount: self.random.between(1, 50),
                period: Period::Hour,
                utc_offset_minutes: i16::try_from(self.random.below(4) * 15).unwrap(),
                carry_over: if self.random.chance(50) { CarryOver::None } else { CarryOver::Max(30) },
            });
            let operations = vec![Operation::SetPlan { account: account(PLANNED), plan }];
            for _ in 0..TRIES {
                let node = self.any();
                let text = self.say(node, &format!("plan {number}"));
                self.context.oracle.borrow_mut().ask(&text);
                let request = keyed(&format!("plan-{number}"), operations.clone());
                let answer = self.ask(node, async move |backend| backend.write(Principal::System, request).await).await;
                if let Some(Ok(answer)) = answer {
                    let is_done =
                        matches!(answer, WriteAnswer::Committed(_) | WriteAnswer::Refused(WriteError::KeyCommitted));
                    self.context.oracle.borrow_mut().must(is_done, || format!("plan {number}: {answer:?}"));
                    break;
                }
                let pause = self.ms(0, 200);
                sleep(pause).await;
            }
            let pause = self.ms(50, 400);
            sleep(pause).await;
        }
    }
}

impl Oracle {
    /// The answer to an event: the same receipt for a day, then that it was committed.
    fn delivered(&mut self, event: usize, answer: &WriteAnswer) {
        self.note(&format!("event {event} {answer:?}"));
        let first = self.events[event].receipt.clone();
        match (answer, first) {
            (WriteAnswer::Committed(receipt), Some(first)) => {
                self.must(*receipt == first, || format!("event {event} has two receipts, {first:?} and {receipt:?}"));
            }
            (WriteAnswer::Committed(receipt), None) => self.events[event].receipt = Some(Arc::clone(receipt)),
            (WriteAnswer::Refused(WriteError::KeyCommitted), first) => {
                let at = first.map_or(UnixMs::default(), |first| first.committed_at.log);
                let passed = (right_ms() + self.ahead_ms).saturating_sub(at.get());
                self.must(passed + 1_000 >= KEY_RESULTS_MS, || format!("event {event} has no receipt any more"));
            }
            (WriteAnswer::Refused(error), _) => self.must(false, || format!("event {event} is refused: {error:?}")),
        }
    }

    /// Checks that every event paid once. Returns the sum.
    pub fn check_events(&mut self, history: &[EntryView]) -> u128 {
        let mut found: BTreeMap<String, Arc<Receipt>> = BTreeMap::new();
        let mut sum = 0;
        for entry in history {
            let EntryKind::Transaction { id: WriteId::Key(key), receipt, .. } = &entry.what else { continue };
            sum += u128::try_from(entry.changes[0].amount).unwrap();
            let is_new = found.insert(key.to_string(), Arc::clone(receipt)).is_none();
            self.must(is_new, || format!("{key} paid twice"));
        }
        for (event, facts) in self.events.clone().iter().enumerate() {
            let Some(receipt) = &facts.receipt else { continue };
            let held = found.get(&format!("evt-{event}"));
            self.must(held == Some(receipt), || format!("event {event}: {receipt:?} is {held:?} in the history"));
        }
        sum
    }

    /// Checks that no period was issued twice. Returns the issued sum.
    pub fn check_plans(&mut self, history: &[EntryView]) -> u128 {
        let mut last = None;
        let mut sum = 0;
        for entry in history {
            let EntryKind::Plan { terms, .. } = &entry.what else { continue };
            sum += u128::try_from(entry.changes[0].amount).unwrap();
            let is_later = terms.expires_at() > last;
            self.must(is_later, || format!("a period until {last:?} was issued, and then {entry:?}"));
            last = terms.expires_at();
        }
        sum
    }
}
