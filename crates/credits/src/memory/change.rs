//! The conditional changes. Each checks only its own condition.

use std::collections::BTreeSet;
use std::sync::Arc;

use earmark_core::{AccountName, AccountStatus, Overdraft};

use super::rows::Rows;
use crate::id::{PostingId, ReservationId};
use crate::model::{
    Account, AccountKey, Claim, ClaimKind, EntryBody, Growth, LeaseKey, Need, Phase, Plan, Posting, PostingState,
    Record, SagaToken, StoredEntry, StoredRecord, VaultKey,
};
use crate::store::{Change, Renewal};

impl Rows {
    /// Makes a change and returns the number of rows it changed.
    pub(super) fn change(&mut self, change: &Change) -> u64 {
        if let Some((token, phase)) = change.required_phase()
            && !self.is_in(token, phase)
        {
            return 0;
        }
        let count = match change {
            Change::OpenVault(home) => self.open_vault(home),
            Change::Begin(record) => usize::from(self.begin(record)),
            Change::Claim(token, plan) => self.claim(token, plan),
            Change::Reserve(token, plan) => self.reserve(token, plan),
            Change::Decide(token, plan) => usize::from(self.decide(token, plan)),
            Change::Finalize(token, plan) => self.finalize(token, plan),
            Change::Create(_, plan) => self.create(&plan.outputs),
            Change::Apply(token, plan) => self.apply(token, plan),
            Change::Record(token, plan) => self.record_entries(token, plan),
            Change::Abort(token) => usize::from(self.advance(token, Phase::Reserving, Phase::Releasing)),
            Change::Release(rid) => self.release(*rid),
            Change::Unclaim(rid) => self.unclaim(*rid),
            Change::Mark(mark) => self.create(std::slice::from_ref(mark)),
            Change::Renew(renewals) => self.renew(renewals),
            Change::End(token) => usize::from(self.end(token)),
            Change::TakeOver { token, to, expired_since } => {
                let is_free = self.is_expired(token.owner, *expired_since);
                let found = self.record_mut(token).filter(|_| is_free);
                usize::from(found.map(|stored| stored.record.token.owner = *to).is_some())
            }
            Change::Heartbeat(owner, at) => {
                self.owners.insert(*owner, *at);
                1
            }
            Change::Leave(owner) => usize::from(self.owners.remove(owner).is_some()),
        };
        count as u64
    }

    /// Commits the plan of a record; returns whether it took effect.
    pub(super) fn commit(&mut self, record: &Arc<Record>) -> bool {
        let (token, plan) = (&record.token, &*record.plan);
        if !self.begin(record) {
            return false;
        }
        self.reserve(token, plan);
        let is_decided = self.decide(token, plan);
        if is_decided {
            self.finalize(token, plan);
            self.create(&plan.outputs);
            self.record_entries(token, plan);
        } else {
            self.advance(token, Phase::Reserving, Phase::Releasing);
            self.release(token.rid);
        }
        self.end(token);
        is_decided
    }

    fn open_vault(&mut self, home: &VaultKey) -> usize {
        let is_new = !self.vaults.contains_key(home);
        self.vaults.entry(home.clone()).or_default();
        let Ok(account) = AccountName::new(AccountName::REVENUE) else { return 0 };
        let revenue = AccountKey { home: home.clone(), account };
        let has_revenue = self.accounts.contains_key(&revenue);
        if !has_revenue {
            let account = Account { standing: AccountStatus::Open, overdraft: Overdraft::Deny, claim: None };
            self.accounts.insert(revenue, account);
        }
        usize::from(is_new).saturating_add(usize::from(!has_revenue))
    }

    fn begin(&mut self, record: &Arc<Record>) -> bool {
        let SagaToken { gate, rid, .. } = record.token;
        let client = record.plan.sequence_claim.as_ref().map(|claim| claim.client.clone());
        let is_taken = client.as_ref().is_some_and(|client| self.by_client.contains_key(client));
        if is_taken || self.records.contains_key(&gate) {
            return false;
        }
        if let Some(client) = client {
            self.by_client.insert(client, gate);
        }
        self.by_rid.insert(rid, gate);
        let stored = StoredRecord { record: Record::clone(record), phase: Phase::Reserving };
        self.records.insert(gate, stored);
        true
    }

    fn record_mut(&mut self, token: &SagaToken) -> Option<&mut StoredRecord> {
        self.records.get_mut(&token.gate).filter(|stored| stored.record.token == *token)
    }

    fn is_in(&mut self, token: &SagaToken, phase: Phase) -> bool {
        self.record_mut(token).is_some_and(|stored| stored.phase == phase)
    }

    fn advance(&mut self, token: &SagaToken, from: Phase, to: Phase) -> bool {
        let found = self.record_mut(token).filter(|stored| stored.phase == from);
        found.map(|stored| stored.phase = to).is_some()
    }

    fn claim(&mut self, token: &SagaToken, plan: &Plan) -> usize {
        let claims = plan.claims.iter();
        claims.filter(|claim| self.claim_account(token.rid, claim)).count()
    }

    fn claim_account(&mut self, rid: ReservationId, claim: &Claim) -> bool {
        let mark = Some((rid, claim.kind));
        let is_claimed = match (self.accounts.get_mut(&claim.account), claim.kind) {
            (None, ClaimKind::Opening) => {
                let account = Account { standing: claim.from, overdraft: claim.overdraft, claim: mark };
                self.accounts.insert(claim.account.clone(), account);
                true
            }
            (Some(account), ClaimKind::Changing | ClaimKind::Closing)
                if account.claim.is_none() && account.standing == claim.from =>
            {
                account.claim = mark;
                true
            }
            (None, ClaimKind::Changing | ClaimKind::Closing) | (Some(_), _) => false,
        };
        if is_claimed {
            self.claimed.entry(rid).or_default().insert(claim.account.clone());
        }
        is_claimed
    }

    fn reserve(&mut self, token: &SagaToken, plan: &Plan) -> usize {
        let is_as_read = |posting: &&Posting| self.extension(posting.id) == posting.extension();
        let inputs: Vec<PostingId> = plan.inputs.iter().filter(is_as_read).map(|posting| posting.id).collect();
        self.move_postings(inputs, PostingState::Active, PostingState::Pending(token.rid))
    }

    fn renew(&mut self, renewals: &[Renewal]) -> usize {
        let is_as_read = |renewal: &Renewal| {
            self.posting_state(renewal.id) == Some(PostingState::Active) && self.extension(renewal.id) == renewal.read
        };
        if !renewals.iter().all(is_as_read) {
            return 0;
        }
        for renewal in renewals {
            self.set_hold(renewal.id, &renewal.hold);
        }
        renewals.len()
    }

    fn finalize(&mut self, token: &SagaToken, plan: &Plan) -> usize {
        let (pending, inactive) = (PostingState::Pending(token.rid), PostingState::Inactive(token.rid));
        let inputs = plan.inputs.iter().map(|posting| posting.id).collect();
        self.move_postings(inputs, pending, inactive)
    }

    fn move_postings(&mut self, inputs: Vec<PostingId>, from: PostingState, to: PostingState) -> usize {
        let mut moved = 0_usize;
        for id in inputs {
            if self.posting_state(id) == Some(from) {
                self.set_posting(id, to);
                moved = moved.saturating_add(1);
            }
        }
        moved
    }

    fn decide(&mut self, token: &SagaToken, plan: &Plan) -> bool {
        let is_first = !self.entries.contains_key(&token.gate);
        let is_turn = plan.sequence_claim.as_ref().is_none_or(|sequence_claim| {
            let last = self.clients.get(&sequence_claim.client).map_or(0, |client| client.last_sequence);
            last.checked_add(1) == Some(sequence_claim.sequence)
        });
        let are_met = plan.needs.iter().all(|need| self.is_met(token.rid, need));
        let is_ours = self.pending_of(token.rid).len() == plan.inputs.len()
            && self.claimed.get(&token.rid).map_or(0, BTreeSet::len) == plan.claims.len();
        let has_room = |growth: &Growth| self.used(&growth.key).saturating_add(growth.added) <= growth.max;
        let is_decided = is_ours
            && is_first
            && is_turn
            && are_met
            && plan.growth.iter().all(has_room)
            && self.advance(token, Phase::Reserving, Phase::Finalizing);
        for growth in plan.growth.iter().filter(|_| is_decided) {
            let used = self.usage.entry(growth.key.clone()).or_default();
            *used = used.saturating_add(growth.added);
        }
        is_decided
    }

    fn is_met(&self, rid: ReservationId, need: &Need) -> bool {
        let Some(account) = self.accounts.get(&need.account) else { return false };
        let is_free = match account.claim {
            Some((claimed_by, _)) if claimed_by == rid => return true,
            Some((_, ClaimKind::Opening | ClaimKind::Closing)) => false,
            Some((_, ClaimKind::Changing)) | None => true,
        };
        let stands = match account.standing {
            AccountStatus::Open => true,
            AccountStatus::Frozen => !need.spends,
            AccountStatus::Closed => false,
        };
        is_free && stands
    }

    fn create(&mut self, outputs: &[Posting]) -> usize {
        let mut created = 0_usize;
        for posting in outputs {
            if !self.has_posting(posting.id) {
                self.insert_posting(posting.clone());
                created = created.saturating_add(1);
            }
        }
        created
    }

    fn apply(&mut self, token: &SagaToken, plan: &Plan) -> usize {
        let mut applied = 0_usize;
        for claim in &plan.claims {
            let found = self.accounts.get_mut(&claim.account);
            let ours = found.filter(|account| account.claim.is_some_and(|(rid, _)| rid == token.rid));
            if let Some(account) = ours {
                account.standing = claim.to;
                account.claim = None;
                applied = applied.saturating_add(1);
            }
        }
        self.claimed.remove(&token.rid);
        applied
    }

    fn record_entries(&mut self, token: &SagaToken, plan: &Plan) -> usize {
        if self.entries.contains_key(&token.gate) {
            return 0;
        }
        let mut stored = Vec::with_capacity(plan.entries.len());
        for entry in &plan.entries {
            let last = self.vaults.entry(entry.home.clone()).or_default();
            *last = last.saturating_add(1);
            let entry = StoredEntry { number: *last, gate: token.gate, entry: Arc::new(entry.clone()) };
            self.index_entry(&entry);
            stored.push(entry);
        }
        for change in &plan.totals {
            let sums = self.assets.entry(change.asset.clone()).or_default();
            sums.issued = sums.issued.saturating_add(change.issued);
            sums.retired = sums.retired.saturating_add(change.retired);
            sums.expired = sums.expired.saturating_add(change.expired);
        }
        if let Some(sequence_claim) = &plan.sequence_claim {
            let client = self.clients.entry(sequence_claim.client.clone()).or_default();
            client.last_sequence = sequence_claim.sequence;
            if let Some(owner) = &sequence_claim.owner {
                client.owner = Some(owner.clone());
            }
        }
        let count = stored.len();
        self.entries.insert(token.gate, stored);
        count
    }

    fn index_entry(&mut self, stored: &StoredEntry) {
        let home = &stored.entry.home;
        if let Some(lease) = stored.entry.body.lease() {
            let key = LeaseKey { namespace: home.namespace.clone(), lease };
            let gates = self.leases.entry(key).or_default();
            if !gates.contains(&stored.gate) {
                gates.push(stored.gate);
            }
        }
        if matches!(stored.entry.body, EntryBody::Transaction(_)) {
            self.transactions.push(stored.clone());
        }
        let mut accounts: Vec<&AccountName> = stored.entry.changes.iter().map(|change| &change.account).collect();
        accounts.dedup();
        for account in accounts {
            let key = AccountKey { home: home.clone(), account: account.clone() };
            self.histories.entry(key).or_default().push(stored.clone());
        }
    }

    /// Whether the rows that a reservation id took may be released.
    fn is_over(&self, rid: ReservationId) -> bool {
        let record = self.by_rid.get(&rid).and_then(|gate| self.records.get(gate));
        record.is_none_or(|stored| stored.phase == Phase::Releasing)
    }

    fn release(&mut self, rid: ReservationId) -> usize {
        if !self.is_over(rid) {
            return 0;
        }
        let pending = self.pending_of(rid);
        for id in &pending {
            self.set_posting(*id, PostingState::Active);
        }
        pending.len()
    }

    fn unclaim(&mut self, rid: ReservationId) -> usize {
        if !self.is_over(rid) {
            return 0;
        }
        let claimed = self.claimed.remove(&rid).unwrap_or_default();
        for key in &claimed {
            let is_new = self.accounts.get(key).and_then(|account| account.claim);
            if matches!(is_new, Some((_, ClaimKind::Opening))) {
                self.accounts.remove(key);
            } else if let Some(account) = self.accounts.get_mut(key) {
                account.claim = None;
            }
        }
        claimed.len()
    }

    fn end(&mut self, token: &SagaToken) -> bool {
        let is_recorded = self.entries.contains_key(&token.gate);
        let can_end = self.record_mut(token).is_some_and(|stored| match stored.phase {
            Phase::Reserving => false,
            Phase::Finalizing => is_recorded,
            Phase::Releasing => true,
        });
        if !can_end {
            return false;
        }
        if let Some(stored) = self.records.remove(&token.gate) {
            self.by_rid.remove(&token.rid);
            if let Some(sequence_claim) = &stored.record.plan.sequence_claim {
                self.by_client.remove(&sequence_claim.client);
            }
        }
        true
    }
}
