//! Sagas whose steps all come in one list. Nobody can see one of them under way, so its record need not be written.

use std::collections::HashSet;
use std::sync::Arc;

use crate::id::{GateId, PostingId};
use crate::model::{ClientKey, Plan, Record, SagaToken};
use crate::store::Change;

/// The saga that a list makes from its first step to its last, if it claims no account.
fn whole(list: &[Change]) -> Option<&Record> {
    let [Change::Begin(record), steps @ .., Change::End(last)] = list else { return None };
    let (Record { token, plan, .. }, mut steps) = (&**record, steps.iter());
    let mut is_next =
        |is_it: fn(&Change) -> bool| steps.next().is_some_and(|step| is_it(step) && is_of(step, token, plan));
    let (takes, makes) = (!plan.inputs.is_empty(), !plan.outputs.is_empty());
    let is_whole = plan.claims.is_empty()
        && last == token
        && (!takes || is_next(|step| matches!(step, Change::Reserve(..))))
        && is_next(|step| matches!(step, Change::Decide(..)))
        && (!takes || is_next(|step| matches!(step, Change::Finalize(..))))
        && (!makes || is_next(|step| matches!(step, Change::Create(..))))
        && is_next(|step| matches!(step, Change::Record(..)))
        && steps.next().is_none();
    is_whole.then_some(record)
}

fn is_of(step: &Change, token: &SagaToken, plan: &Arc<Plan>) -> bool {
    match step {
        Change::Reserve(of, planned)
        | Change::Decide(of, planned)
        | Change::Finalize(of, planned)
        | Change::Create(of, planned)
        | Change::Record(of, planned) => of == token && Arc::ptr_eq(planned, plan),
        _ => false,
    }
}

/// How many rows each step of such a list has changed: all that it could, or none.
pub(crate) fn counts(list: &[Change], is_done: bool) -> Vec<u64> {
    let rows = list.iter().map(|step| match step {
        Change::Reserve(_, plan) | Change::Finalize(_, plan) => plan.inputs.len(),
        Change::Create(_, plan) => plan.outputs.len(),
        Change::Record(_, plan) => plan.entries.len(),
        _ => 1,
    });
    rows.map(|rows| if is_done { rows as u64 } else { 0 }).collect()
}

/// Sagas of which no two want the same, so that what one does is of no matter to the others.
#[derive(Default)]
pub(crate) struct WholeSagas<'a> {
    pub(crate) records: Vec<&'a Record>,
    gates: HashSet<GateId>,
    clients: HashSet<&'a ClientKey>,
    inputs: HashSet<PostingId>,
}

impl<'a> WholeSagas<'a> {
    /// Takes the saga of a list, if it is all of one and wants nothing that one before it wants.
    pub(crate) fn take(&mut self, list: &'a [Change]) -> Option<&'a Record> {
        let record = whole(list)?;
        let plan = &record.plan;
        let client = plan.sequence_claim.as_ref().map(|sequence_claim| &sequence_claim.client);
        let is_apart = !self.gates.contains(&record.token.gate)
            && client.is_none_or(|client| !self.clients.contains(client))
            && plan.inputs.iter().all(|posting| !self.inputs.contains(&posting.id));
        if !is_apart {
            return None;
        }
        let inputs: HashSet<PostingId> = plan.inputs.iter().map(|posting| posting.id).collect();
        if inputs.len() < plan.inputs.len() {
            // What is there once would count twice. Change by change it does not.
            return None;
        }
        self.gates.insert(record.token.gate);
        self.clients.extend(client);
        self.inputs.extend(inputs);
        self.records.push(record);
        Some(record)
    }
}
