//! The changes, each of which looks at its condition and at nothing else.

use std::collections::BTreeSet;
use std::sync::Arc;

use earmark_core::{AccountName, Overdraft, Standing};

use super::rows::Rows;
use crate::id::ReservationId;
use crate::model::{
    Account, AccountKey, Claim, ClaimKind, EntryBody, LeaseKey, Need, Phase, Plan, PostingState, Record,
    StoredEntry, StoredRecord, Ticket, VaultKey,
};
use crate::store::Change;

impl Rows {
    /// Makes a change, and says how many rows it changed.
    pub(super) fn change(&mut self, change: &Change) -> u64 {
        let count = match change {
            Change::OpenVault(home) => self.open_vault(home),
            Change::Begin(record) => usize::from(self.begin(record)),
            Change::Claim(ticket, plan) => self.claim(ticket, plan),
            Change::Reserve(ticket, plan) => self.reserve(ticket, plan),
            Change::Decide(ticket, plan) => usize::from(self.decide(ticket, plan)),
            Change::Finalize(ticket, plan) => self.finalize(ticket, plan),
            Change::Create(ticket, plan) => self.create(ticket, plan),
            Change::Apply(ticket, plan) => self.apply(ticket, plan),
            Change::Record(ticket, plan) => self.record_entries(ticket, plan),
            Change::Abort(ticket) => usize::from(self.advance(ticket, Phase::Reserving, Phase::Releasing)),
            Change::Release(rid) => self.release(*rid),
            Change::Unclaim(rid) => self.unclaim(*rid),
            Change::End(ticket) => usize::from(self.end(ticket)),
            Change::TakeOver { ticket, to, silent_since } => {
                let is_free = self.is_silent(ticket.owner, *silent_since);
                let found = self.record_mut(ticket).filter(|_| is_free);
                usize::from(found.map(|stored| stored.record.ticket.owner = *to).is_some())
            }
            Change::Beat(owner, at) => {
                self.owners.insert(*owner, *at);
                1
            }
            Change::Leave(owner) => usize::from(self.owners.remove(owner).is_some()),
        };
        count as u64
    }

    fn open_vault(&mut self, home: &VaultKey) -> usize {
        let is_new = !self.vaults.contains_key(home);
        self.vaults.entry(home.clone()).or_default();
        let Ok(account) = AccountName::new(AccountName::REVENUE) else { return 0 };
        let revenue = AccountKey { home: home.clone(), account };
        let has_revenue = self.accounts.contains_key(&revenue);
        if !has_revenue {
            let account = Account { standing: Standing::Open, overdraft: Overdraft::Deny, claim: None };
            self.accounts.insert(revenue, account);
        }
        usize::from(is_new).saturating_add(usize::from(!has_revenue))
    }

    fn begin(&mut self, record: &Arc<Record>) -> bool {
        let Ticket { gate, rid, .. } = record.ticket;
        let client = record.plan.turn.as_ref().map(|turn| turn.client.clone());
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

    fn record_mut(&mut self, ticket: &Ticket) -> Option<&mut StoredRecord> {
        self.records.get_mut(&ticket.gate).filter(|stored| stored.record.ticket == *ticket)
    }

    fn is_in(&mut self, ticket: &Ticket, phase: Phase) -> bool {
        self.record_mut(ticket).is_some_and(|stored| stored.phase == phase)
    }

    fn advance(&mut self, ticket: &Ticket, from: Phase, to: Phase) -> bool {
        let found = self.record_mut(ticket).filter(|stored| stored.phase == from);
        found.map(|stored| stored.phase = to).is_some()
    }

    fn claim(&mut self, ticket: &Ticket, plan: &Plan) -> usize {
        if !self.is_in(ticket, Phase::Reserving) {
            return 0;
        }
        let claims = plan.claims.iter();
        claims.filter(|claim| self.claim_account(ticket.rid, claim)).count()
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

    fn reserve(&mut self, ticket: &Ticket, plan: &Plan) -> usize {
        if !self.is_in(ticket, Phase::Reserving) {
            return 0;
        }
        self.move_postings(plan, PostingState::Active, PostingState::Pending(ticket.rid))
    }

    fn finalize(&mut self, ticket: &Ticket, plan: &Plan) -> usize {
        if !self.is_in(ticket, Phase::Finalizing) {
            return 0;
        }
        let (pending, inactive) = (PostingState::Pending(ticket.rid), PostingState::Inactive(ticket.rid));
        self.move_postings(plan, pending, inactive)
    }

    fn move_postings(&mut self, plan: &Plan, from: PostingState, to: PostingState) -> usize {
        let inputs = plan.inputs.iter().map(|posting| posting.id);
        let mut moved = 0_usize;
        for id in inputs {
            if self.posting_state(id) == Some(from) {
                self.set_posting(id, to);
                moved = moved.saturating_add(1);
            }
        }
        moved
    }

    fn decide(&mut self, ticket: &Ticket, plan: &Plan) -> bool {
        let is_first = !self.entries.contains_key(&ticket.gate);
        let is_turn = plan.turn.as_ref().is_none_or(|turn| {
            let last = self.clients.get(&turn.client).copied().unwrap_or(0);
            last.checked_add(1) == Some(turn.sequence)
        });
        let are_met = plan.needs.iter().all(|need| self.is_met(ticket.rid, need));
        let is_ours = self.pending_of(ticket.rid).len() == plan.inputs.len()
            && self.claimed.get(&ticket.rid).map_or(0, BTreeSet::len) == plan.claims.len();
        is_ours && is_first && is_turn && are_met && self.advance(ticket, Phase::Reserving, Phase::Finalizing)
    }

    fn is_met(&self, rid: ReservationId, need: &Need) -> bool {
        let Some(account) = self.accounts.get(&need.account) else { return false };
        let is_free = match account.claim {
            Some((claimed_by, _)) if claimed_by == rid => return true,
            Some((_, ClaimKind::Opening | ClaimKind::Closing)) => false,
            Some((_, ClaimKind::Changing)) | None => true,
        };
        let stands = match account.standing {
            Standing::Open => true,
            Standing::Frozen => !need.spends,
            Standing::Closed => false,
        };
        is_free && stands
    }

    fn create(&mut self, ticket: &Ticket, plan: &Plan) -> usize {
        if !self.is_in(ticket, Phase::Finalizing) {
            return 0;
        }
        let mut created = 0_usize;
        for posting in &plan.outputs {
            if !self.has_posting(posting.id) {
                self.insert_posting(posting.clone());
                created = created.saturating_add(1);
            }
        }
        created
    }

    fn apply(&mut self, ticket: &Ticket, plan: &Plan) -> usize {
        if !self.is_in(ticket, Phase::Finalizing) {
            return 0;
        }
        let mut applied = 0_usize;
        for claim in &plan.claims {
            let found = self.accounts.get_mut(&claim.account);
            let ours = found.filter(|account| account.claim.is_some_and(|(rid, _)| rid == ticket.rid));
            if let Some(account) = ours {
                account.standing = claim.to;
                account.claim = None;
                applied = applied.saturating_add(1);
            }
        }
        self.claimed.remove(&ticket.rid);
        applied
    }

    fn record_entries(&mut self, ticket: &Ticket, plan: &Plan) -> usize {
        if !self.is_in(ticket, Phase::Finalizing) || self.entries.contains_key(&ticket.gate) {
            return 0;
        }
        let mut stored = Vec::with_capacity(plan.entries.len());
        for entry in &plan.entries {
            let last = self.vaults.entry(entry.home.clone()).or_default();
            *last = last.saturating_add(1);
            let entry = StoredEntry { number: *last, gate: ticket.gate, entry: Arc::new(entry.clone()) };
            self.index_entry(&entry);
            stored.push(entry);
        }
        for change in &plan.totals {
            let sums = self.assets.entry(change.asset.clone()).or_default();
            sums.issued = sums.issued.saturating_add(change.issued);
            sums.retired = sums.retired.saturating_add(change.retired);
        }
        if let Some(turn) = &plan.turn {
            self.clients.insert(turn.client.clone(), turn.sequence);
        }
        let count = stored.len();
        self.entries.insert(ticket.gate, stored);
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
        let mut accounts: Vec<&AccountName> =
            stored.entry.changes.iter().map(|change| &change.account).collect();
        accounts.dedup();
        for account in accounts {
            let key = AccountKey { home: home.clone(), account: account.clone() };
            self.histories.entry(key).or_default().push(stored.clone());
        }
    }

    /// Whether what a reservation id has taken may be given back.
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

    fn end(&mut self, ticket: &Ticket) -> bool {
        let is_recorded = self.entries.contains_key(&ticket.gate);
        let can_end = self.record_mut(ticket).is_some_and(|stored| match stored.phase {
            Phase::Reserving => false,
            Phase::Finalizing => is_recorded,
            Phase::Releasing => true,
        });
        if !can_end {
            return false;
        }
        if let Some(stored) = self.records.remove(&ticket.gate) {
            self.by_rid.remove(&ticket.rid);
            if let Some(turn) = &stored.record.plan.turn {
                self.by_client.remove(&turn.client);
            }
        }
        true
    }
}
