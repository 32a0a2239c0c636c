//! Commits a write: each sequence of a client or idempotency key once, all of its operations or none.

mod operations;
mod plans;
mod room;

use std::sync::Arc;

use earmark_admission::{WriteAnswer, WriteRequest, Writer};
use earmark_core::{
    AccountId, ClientOwner, EntryPurpose, InvalidOperation, InvalidWrite, KEY_RESULTS_MS, Operation, OperationResult,
    Overdraft, Receipt, TxId, WriteError, WriteId,
};

use super::entry_gate;
use super::hold::need;
use crate::coin_selection::{BalanceChange, Misfit, PostingIds, Selection};
use crate::id::GateId;
use crate::model::{
    AccountKey, AssetKey, ClaimKind, ClientKey, Entry, EntryBody, Plan, SequenceClaim, StoredEntry, TotalsChange,
    Transaction, VaultKey,
};
use crate::saga::{Draft, Engine, Proposal, Task, TaskError};
use crate::store::{Funds, PostingQuery, StoreError, Survey, Surveyed};
use operations::{Operations, Verdict, Violation};

/// Only amounts this large can bring a balance out of 128 bits.
const LARGE: i128 = 1 << 100;

/// Commits a transaction.
pub(crate) struct TransactionTask {
    home: VaultKey,
    writer: Writer,
    request: WriteRequest,
    tx_id: TxId,
    gate: GateId,
}

impl TransactionTask {
    pub(crate) fn new(home: VaultKey, writer: Writer, request: WriteRequest) -> TransactionTask {
        let gate = entry_gate(
            &home,
            match &request.id {
                WriteId::Sequence { client, sequence } => EntryPurpose::Transaction(client, *sequence),
                WriteId::Key(key) => EntryPurpose::Key(key),
            },
        );
        TransactionTask { home, writer, request, tx_id: TxId(ulid::Ulid::generate().0), gate }
    }

    /// The client of a sequenced write.
    fn client(&self) -> Option<ClientKey> {
        let client = self.request.id.client()?.clone();
        Some(ClientKey { home: self.home.clone(), client })
    }

    /// The sequence that the write commits.
    fn sequence_claim(&self, owner: Option<ClientOwner>) -> Option<SequenceClaim> {
        Some(SequenceClaim { client: self.client()?, sequence: self.request.id.sequence()?, owner })
    }

    /// The answer if the identity alone decides it; `None` if the write is new.
    async fn judge(&self, engine: &Engine, found: &Surveyed) -> Result<Option<WriteAnswer>, TaskError> {
        let Some(sequence) = self.request.id.sequence() else { return self.judge_key(engine).await };
        if sequence == 0 || sequence == u64::MAX {
            return Ok(Some(refused(WriteError::Invalid(InvalidWrite::Sequence { found: sequence }))));
        }
        let last = found.client.as_ref().map_or(0, |client| client.last_sequence);
        if sequence > last.saturating_add(1) {
            return Ok(Some(refused(WriteError::SequenceGap { last_committed_sequence: last })));
        }
        if sequence <= last {
            return self.committed(engine, last).await.map(Some);
        }
        Ok(None)
    }

    /// The answer to a used key. Its entry, whose gate is the hash of the key, stays for good. Like a Book, it answers
    /// for a day.
    async fn judge_key(&self, engine: &Engine) -> Result<Option<WriteAnswer>, TaskError> {
        let entries = engine.call(engine.store.entries(self.gate)).await?;
        let Some(stored) = entries.first() else { return Ok(None) };
        if stored.entry.at.log.plus_ms(KEY_RESULTS_MS) <= engine.time.now() {
            return Ok(Some(refused(WriteError::KeyCommitted)));
        }
        Ok(Some(match (&stored.entry.body, receipt(stored)) {
            (EntryBody::Transaction(transaction), Some(receipt))
                if transaction.operations == self.request.operations && transaction.actor == self.request.actor =>
            {
                WriteAnswer::Committed(receipt)
            }
            _ => refused(WriteError::KeyReused),
        }))
    }

    /// The answer to a committed sequence. Entries, and so their answers, are kept for good.
    async fn committed(&self, engine: &Engine, last: u64) -> Result<WriteAnswer, TaskError> {
        let entries = engine.call(engine.store.entries(self.gate)).await?;
        let Some(stored) = entries.first() else {
            return Ok(refused(WriteError::AlreadyCommitted { last_committed_sequence: last }));
        };
        match (&stored.entry.body, receipt(stored)) {
            (EntryBody::Transaction(transaction), Some(receipt))
                if transaction.operations == self.request.operations =>
            {
                Ok(WriteAnswer::Committed(receipt))
            }
            _ => Ok(refused(WriteError::SequenceReused { last_committed_sequence: last })),
        }
    }

    fn survey(&self, operations: &Operations, posting_sets: Vec<PostingQuery>) -> Survey {
        let account = |name: &earmark_core::AccountName| AccountKey { home: self.home.clone(), account: name.clone() };
        let asset = |name: &earmark_core::AssetName| AssetKey { home: self.home.clone(), asset: name.clone() };
        Survey {
            accounts: operations.accounts().iter().map(|name| account(name)).collect(),
            posting_sets,
            client: self.client(),
            assets: operations.assets().iter().map(|name| asset(name)).collect(),
        }
    }

    /// The first balance or total that would leave 128 bits.
    async fn find_overflow(
        &self,
        engine: &Engine,
        moves: &[BalanceChange],
        totals: &[(TotalsChange, Option<crate::store::AssetSums>)],
    ) -> Result<Option<Violation>, TaskError> {
        for each in moves {
            let sums = totals.iter().find(|(change, _)| change.asset.asset == each.asset);
            let issued = sums.and_then(|(_, sums)| *sums).map_or(0, |sums| sums.issued);
            if each.change.unsigned_abs() < LARGE.unsigned_abs() && issued < LARGE {
                continue;
            }
            let funds = engine.call(engine.store.funds(each.account.clone(), engine.time.as_of())).await?;
            let funds = funds.iter().find(|funds| funds.asset == each.asset);
            let parts = |funds: &Funds| [funds.active, funds.expired, funds.pending, funds.held, funds.due];
            let parts = funds.map_or([0; 5], parts);
            let after = parts.iter().try_fold(each.change, |sum, part| sum.checked_add(*part));
            if after.is_none() {
                return Ok(Some(Violation::Balance(each.account.account.clone(), each.asset.clone())));
            }
        }
        for (change, sums) in totals {
            let sums = sums.unwrap_or_default();
            let asset = || change.asset.asset.clone();
            if sums.issued.checked_add(change.issued).is_none() {
                return Ok(Some(Violation::Issued(asset())));
            }
            if sums.retired.checked_add(change.retired).is_none() {
                return Ok(Some(Violation::Retired(asset())));
            }
        }
        Ok(None)
    }

    fn plan(
        &self,
        engine: &Engine,
        operations: &Operations,
        verdict: &Verdict,
        selection: &Selection,
        owner: Option<ClientOwner>,
    ) -> Plan {
        let transaction = Transaction {
            tx_id: self.tx_id,
            id: self.request.id.clone(),
            actor: self.request.actor.clone(),
            operations: self.request.operations.clone(),
        };
        let entry = Entry {
            home: self.home.clone(),
            at: engine.time.moment(),
            body: EntryBody::Transaction(transaction),
            changes: operations.changes(),
        };
        let mut plan = Plan {
            inputs: selection.inputs.clone(),
            outputs: selection.outputs.clone(),
            entries: vec![entry],
            needs: Vec::new(),
            claims: verdict.claims.clone(),
            totals: Vec::new(),
            sequence_claim: self.sequence_claim(owner),
            growth: Vec::new(),
        };
        for (name, spends) in &verdict.moved {
            let account = AccountKey { home: self.home.clone(), account: name.clone() };
            need(&mut plan, &account, *spends);
        }
        plan
    }

    /// The refusal, with the operation that causes the violation.
    fn refuse_for(&self, operations: &Operations, blame: &Violation, why: Misfit) -> Proposal<WriteAnswer> {
        let operation = operations.violating_operation(&self.request.operations, blame, why == Misfit::Short);
        let invalid = |why| WriteError::Invalid(InvalidWrite::Operation { operation, why });
        Proposal::Answer(refused(match why {
            Misfit::Short => WriteError::InsufficientCredit { operation },
            Misfit::OutOfRange => invalid(InvalidOperation::OutOfRange),
            Misfit::TooManyGrants => invalid(InvalidOperation::TooManyGrants),
        }))
    }
}

fn refused(error: WriteError) -> WriteAnswer {
    WriteAnswer::Refused(error)
}

/// The receipt of a transaction, from its entry.
pub(crate) fn receipt(stored: &StoredEntry) -> Option<Arc<Receipt>> {
    let EntryBody::Transaction(transaction) = &stored.entry.body else { return None };
    let result = |operation: &Operation| match operation {
        Operation::Issue { .. } | Operation::Transfer { .. } | Operation::Retire { .. } => OperationResult::Entry,
        // Only a Book numbers accounts.
        _ => OperationResult::Account(AccountId::default()),
    };
    Some(Arc::new(Receipt {
        tx_id: transaction.tx_id,
        sequence: transaction.id.sequence(),
        log_index: stored.number,
        committed_at: stored.entry.at,
        actor: transaction.actor.clone(),
        results: transaction.operations.iter().map(result).collect(),
    }))
}

impl Task for TransactionTask {
    type Answer = WriteAnswer;

    fn key(&self) -> GateId {
        self.gate
    }

    /// A refusal is based on the rows that were read. If a copy of the same write has decided, or committed between two
    /// reads, those rows may include its effects. Then this reads again.
    async fn propose(&self, engine: &Engine, attempt: u32) -> Result<Proposal<WriteAnswer>, TaskError> {
        let proposal = self.draft(engine, attempt).await?;
        // Neither a wrong sequence or key nor a client id of somebody else depends on what a copy did.
        let is_refused = matches!(&proposal, Proposal::Answer(WriteAnswer::Refused(error))
            if error.last_committed_sequence().is_none()
                && !matches!(error, WriteError::KeyCommitted | WriteError::KeyReused)
                && !matches!(error, WriteError::Invalid(InvalidWrite::ClientClaimed { .. })));
        if !is_refused {
            return Ok(proposal);
        }
        let is_under_way = engine.unblock(self.gate, self.sequence_claim(None)).await?;
        let is_done = !engine.call(engine.store.entries(self.gate)).await?.is_empty();
        Ok(if is_under_way || is_done { Proposal::Wait(None) } else { proposal })
    }

    async fn done(&self, engine: &Engine, _: GateId, _: &Plan) -> Result<WriteAnswer, TaskError> {
        let entries = engine.call(engine.store.entries(self.gate)).await?;
        let found = entries.first().and_then(receipt);
        let missing = || StoreError::Corrupt(format!("entry {} is missing after its commit", self.gate));
        Ok(WriteAnswer::Committed(found.ok_or_else(missing)?))
    }
}

impl TransactionTask {
    async fn draft(&self, engine: &Engine, attempt: u32) -> Result<Proposal<WriteAnswer>, TaskError> {
        let operations = Operations::new(&self.request.operations);
        let mut permits = engine.queue_payers(&operations.moves(&self.home)).await;
        let (posting_sets, merge_permits) = engine.posting_queries(&operations.moves(&self.home), attempt > 1);
        permits.extend(merge_permits);
        let survey = self.survey(&operations, posting_sets);
        let assets = survey.assets.clone();
        let found = engine.survey(survey).await?;
        let current = found.client.as_ref().and_then(|client| client.owner.as_ref());
        let claimed = self.request.id.client().map(|client| self.writer.claim(client, current)).transpose();
        let owner = match claimed {
            Ok(owner) => owner.flatten(),
            Err(error) => return Ok(Proposal::Answer(refused(error))),
        };
        if let Some(answer) = self.judge(engine, &found).await? {
            return Ok(Proposal::Answer(answer));
        }
        let room = match self.room(engine, &assets, &found).await? {
            Some(Ok(room)) => room,
            Some(Err(error)) => return Ok(Proposal::Answer(refused(error))),
            None => return Ok(Proposal::Wait(None)),
        };
        let mut drafting = operations.clone();
        let verdict = match drafting.check(engine, &self.home, &self.request.operations, (&found, &room)).await? {
            Ok(verdict) if verdict.is_in_doubt => return Ok(Proposal::Wait(None)),
            Ok(verdict) => verdict,
            Err(error) => return Ok(Proposal::Answer(refused(error))),
        };
        let totals = operations.totals(&self.home, &found);
        let mut moves = operations.moves(&self.home);
        for each in &mut moves {
            each.overdraft = verdict.overdraft(&each.account.account).unwrap_or(Overdraft::Deny);
        }
        if let Some(blame) = self.find_overflow(engine, &moves, &totals).await? {
            return Ok(self.refuse_for(&operations, &blame, Misfit::OutOfRange));
        }
        let Some(plan_changes) = self.plan_changes(engine).await? else { return Ok(Proposal::Wait(None)) };
        let rid = engine.new_rid();
        let (ids, all) = (&mut PostingIds::new(rid), &self.request.operations);
        let selected = engine.select(ids, &mut moves, &found.posting_sets, all).await?;
        let refuse = |place: usize, why| {
            let Some(each) = moves.get(place) else { return Proposal::Wait(None) };
            let violation = Violation::Balance(each.account.account.clone(), each.asset.clone());
            self.refuse_for(&operations, &violation, why)
        };
        let mut selection = match selected.or_propose(refuse) {
            Ok(selection) => selection,
            Err(proposal) => return Ok(proposal),
        };
        let mut plan = self.plan(engine, &operations, &verdict, &selection, owner);
        plan.totals = totals.into_iter().map(|(change, _)| change).collect();
        plan.growth = room.growth(plan.claims.iter().filter(|claim| claim.kind == ClaimKind::Opening).count());
        if !plans::add_changes(engine, ids, plan_changes, (&mut plan, &mut selection)) {
            return Ok(Proposal::Wait(None));
        }
        Ok(Proposal::Commit(Box::new(Draft {
            gate: self.gate,
            rid,
            lease: None,
            plan,
            taken: selection.taken,
            permits,
        })))
    }
}
