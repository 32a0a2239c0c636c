//! A sequenced write of a vault: each number of each client once, all of its operations or none.

mod draft;

use std::sync::Arc;

use earmark_admission::{WriteAnswer, WriteRequest};
use earmark_core::{
    AccountId, InvalidOperation, InvalidWrite, Operation, OperationResult, Overdraft, Receipt, TxId, What,
    WriteError,
};

use super::entry_gate;
use super::hold::need;
use crate::gather::{Gathered, Gathering, Move, Namer};
use crate::id::GateId;
use crate::model::{
    AccountKey, AssetKey, ClientKey, Entry, EntryBody, Plan, StoredEntry, TotalsChange, Transaction, Turn,
    VaultKey,
};
use crate::saga::{Draft, Engine, Proposal, Task, Trouble};
use crate::store::{PurseQuery, StoreError, Survey, Surveyed};
use draft::{Blame, Operations, Verdict};

/// Only where amounts are this large can a balance leave the range of 128 bits.
const LARGE: i128 = 1 << 100;

/// Commits a transaction.
pub(crate) struct TransactionTask {
    home: VaultKey,
    request: WriteRequest,
    tx_id: TxId,
    gate: GateId,
}

impl TransactionTask {
    pub(crate) fn new(home: VaultKey, request: WriteRequest) -> TransactionTask {
        let gate = entry_gate(&home, What::Transaction(&request.client, request.sequence));
        TransactionTask { home, request, tx_id: TxId(ulid::Ulid::generate().0), gate }
    }

    fn client(&self) -> ClientKey {
        ClientKey { home: self.home.clone(), client: self.request.client.clone() }
    }

    /// What is said of the number alone; nothing if it is the client's next.
    async fn judge(&self, engine: &Engine, found: &Surveyed) -> Result<Option<WriteAnswer>, Trouble> {
        let sequence = self.request.sequence;
        if sequence == 0 || sequence == u64::MAX {
            return Ok(Some(refused(WriteError::Invalid(InvalidWrite::Sequence { found: sequence }))));
        }
        let last = found.last_sequence.unwrap_or(0);
        if sequence > last.saturating_add(1) {
            return Ok(Some(refused(WriteError::SequenceGap { last_committed_sequence: last })));
        }
        if sequence <= last {
            return self.committed(engine, last).await.map(Some);
        }
        if found.last_sequence.is_none() && !engine.has_room_for_client().await? {
            return Ok(Some(refused(WriteError::TooManyClients)));
        }
        Ok(None)
    }

    /// The answer to a number that was committed. Entries are kept for ever, and so is what was answered.
    async fn committed(&self, engine: &Engine, last: u64) -> Result<WriteAnswer, Trouble> {
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

    fn survey(&self, operations: &Operations, purses: Vec<PurseQuery>) -> Survey {
        let account =
            |name: &earmark_core::AccountName| AccountKey { home: self.home.clone(), account: name.clone() };
        let asset =
            |name: &earmark_core::AssetName| AssetKey { home: self.home.clone(), asset: name.clone() };
        Survey {
            accounts: operations.accounts().iter().map(|name| account(name)).collect(),
            purses,
            client: Some(self.client()),
            assets: operations.assets().iter().map(|name| asset(name)).collect(),
        }
    }

    /// Whether every balance and every total can be counted afterwards.
    async fn find_overflow(
        &self,
        engine: &Engine,
        moves: &[Move],
        totals: &[(TotalsChange, Option<crate::store::AssetSums>)],
    ) -> Result<Option<Blame>, Trouble> {
        for each in moves {
            let sums = totals.iter().find(|(change, _)| change.asset.asset == each.asset);
            let issued = sums.and_then(|(_, sums)| *sums).map_or(0, |sums| sums.issued);
            if each.change.unsigned_abs() < LARGE.unsigned_abs() && issued < LARGE {
                continue;
            }
            let funds = engine.call(engine.store.funds(each.account.clone(), engine.time.now())).await?;
            let funds = funds.iter().find(|funds| funds.asset == each.asset);
            let parts = funds.map_or([0; 4], |funds| [funds.active, funds.pending, funds.held, funds.due]);
            let after = parts.iter().try_fold(each.change, |sum, part| sum.checked_add(*part));
            if after.is_none() {
                return Ok(Some(Blame::Balance(each.account.account.clone(), each.asset.clone())));
            }
        }
        for (change, sums) in totals {
            let sums = sums.unwrap_or_default();
            let asset = || change.asset.asset.clone();
            if sums.issued.checked_add(change.issued).is_none() {
                return Ok(Some(Blame::Issued(asset())));
            }
            if sums.retired.checked_add(change.retired).is_none() {
                return Ok(Some(Blame::Retired(asset())));
            }
        }
        Ok(None)
    }

    fn plan(
        &self,
        engine: &Engine,
        operations: &Operations,
        verdict: &Verdict,
        gathering: &Gathering,
    ) -> Plan {
        let transaction = Transaction {
            tx_id: self.tx_id,
            client: self.request.client.clone(),
            sequence: self.request.sequence,
            actor: self.request.actor.clone(),
            operations: self.request.operations.clone(),
        };
        let entry = Entry {
            home: self.home.clone(),
            at: engine.time.now(),
            body: EntryBody::Transaction(transaction),
            changes: operations.changes(),
        };
        let mut plan = Plan {
            inputs: gathering.inputs.clone(),
            outputs: gathering.outputs.clone(),
            entries: vec![entry],
            needs: Vec::new(),
            claims: verdict.claims.clone(),
            totals: Vec::new(),
            turn: Some(Turn { client: self.client(), sequence: self.request.sequence }),
        };
        for (name, spends) in &verdict.moved {
            let account = AccountKey { home: self.home.clone(), account: name.clone() };
            need(&mut plan, &account, *spends);
        }
        plan
    }

    /// The refusal of the operation that is to blame for what cannot be.
    fn blame(&self, operations: &Operations, blame: &Blame, is_short: bool) -> Proposal<WriteAnswer> {
        let operation = operations.to_blame(&self.request.operations, blame, is_short);
        let error = if is_short {
            WriteError::InsufficientCredit { operation }
        } else {
            WriteError::Invalid(InvalidWrite::Operation { operation, why: InvalidOperation::OutOfRange })
        };
        Proposal::Answer(refused(error))
    }
}

fn refused(error: WriteError) -> WriteAnswer {
    WriteAnswer::Refused(error)
}

/// What a transaction was answered, from its entry.
pub(crate) fn receipt(stored: &StoredEntry) -> Option<Arc<Receipt>> {
    let EntryBody::Transaction(transaction) = &stored.entry.body else { return None };
    let result = |operation: &Operation| match operation {
        Operation::Issue { .. } | Operation::Transfer { .. } | Operation::Retire { .. } => {
            OperationResult::Entry
        }
        // Accounts have names here, and numbers in a Book alone.
        _ => OperationResult::Account(AccountId::default()),
    };
    Some(Arc::new(Receipt {
        tx_id: transaction.tx_id,
        sequence: transaction.sequence,
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

    /// A refusal is judged by what was seen. If a copy of the same write is past the point of no return, or came through
    /// between two looks, what was seen is partly its own doing, and this looks again.
    async fn propose(&self, engine: &Engine, attempt: u32) -> Result<Proposal<WriteAnswer>, Trouble> {
        let proposal = self.look(engine, attempt).await?;
        // That a number is not the next one is no matter of what a copy did.
        let is_refused = matches!(&proposal, Proposal::Answer(WriteAnswer::Refused(error))
            if error.last_committed_sequence().is_none());
        let turn = Turn { client: self.client(), sequence: self.request.sequence };
        if !is_refused {
            return Ok(proposal);
        }
        let is_under_way = engine.unblock(self.gate, Some(turn)).await?;
        let is_done = !engine.call(engine.store.entries(self.gate)).await?.is_empty();
        Ok(if is_under_way || is_done { Proposal::Wait(None) } else { proposal })
    }

    async fn done(&self, engine: &Engine, _: GateId, _: &Plan) -> Result<WriteAnswer, Trouble> {
        let entries = engine.call(engine.store.entries(self.gate)).await?;
        let found = entries.first().and_then(receipt);
        let missing = || StoreError::Corrupt(format!("the entry {} was written and is not there", self.gate));
        Ok(WriteAnswer::Committed(found.ok_or_else(missing)?))
    }
}

impl TransactionTask {
    async fn look(&self, engine: &Engine, attempt: u32) -> Result<Proposal<WriteAnswer>, Trouble> {
        let operations = Operations::new(&self.request.operations);
        let mut permits = engine.queue(&operations.moves(&self.home)).await;
        let (purses, turns) = engine.questions(&operations.moves(&self.home), attempt > 1);
        permits.extend(turns);
        let found = engine.survey(self.survey(&operations, purses)).await?;
        if let Some(answer) = self.judge(engine, &found).await? {
            return Ok(Proposal::Answer(answer));
        }
        let mut drafting = operations.clone();
        let verdict = match drafting.check(engine, &self.home, &self.request.operations, &found).await? {
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
            return Ok(self.blame(&operations, &blame, false));
        }
        let rid = engine.new_rid();
        let gathering = match engine.gather(&mut Namer::new(rid), &moves, &found.purses).await? {
            Gathered::Postings(gathering) => gathering,
            Gathered::Busy(lane) => return Ok(Proposal::Busy(lane)),
            Gathered::Wait(lane) => return Ok(Proposal::Wait(lane)),
            Gathered::Short(place) | Gathered::OutOfRange(place) if moves.get(place).is_none() => {
                return Ok(Proposal::Wait(None));
            }
            Gathered::Short(place) => {
                let each = &moves[place];
                let blame = Blame::Balance(each.account.account.clone(), each.asset.clone());
                return Ok(self.blame(&operations, &blame, true));
            }
            Gathered::OutOfRange(place) => {
                let each = &moves[place];
                let blame = Blame::Balance(each.account.account.clone(), each.asset.clone());
                return Ok(self.blame(&operations, &blame, false));
            }
        };
        let mut plan = self.plan(engine, &operations, &verdict, &gathering);
        plan.totals = totals.into_iter().map(|(change, _)| change).collect();
        Ok(Proposal::Commit(Box::new(Draft {
            gate: self.gate,
            rid,
            lease: None,
            plan,
            taken: gathering.taken,
            permits,
        })))
    }
}
