//! Accounts and transfers, and the rules by which they are created.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{SystemTime, UNIX_EPOCH};

use tigerbeetle::{
    Account, AccountFilter, AccountFilterFlags, AccountFlags, CreateAccountResult, CreateAccountStatus,
    CreateTransferResult, CreateTransferStatus as Status, QueryFilter, QueryFilterFlags, Reserved, Transfer,
    TransferFlags,
};

use super::exists;

const SECOND_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    Open,
    Posted,
    Voided,
    Expired,
}

/// The inverse of one change, for a chain that fails.
#[derive(Debug)]
enum Undo {
    Account(Account),
    Remove(Transfer),
    Reopen(Transfer),
}

#[derive(Debug, Default)]
pub struct State {
    now_ns: u64,
    /// By how much its clock is ahead of the wall.
    ahead_ns: u64,
    accounts: HashMap<u128, Account>,
    /// By time, which is unique.
    transfers: BTreeMap<u64, Transfer>,
    times: HashMap<u128, u64>,
    by_user_data_128: HashMap<u128, BTreeSet<u64>>,
    /// Ids that failed for a reason that may pass. They stay failed.
    failed: HashSet<u128>,
    pending: HashMap<u64, Pending>,
    /// End and time of each open transfer with a timeout.
    ends: BTreeSet<(u64, u64)>,
}

pub(super) fn has(transfer: &Transfer, flag: TransferFlags) -> bool {
    transfer.flags.0 & flag.0 != 0
}

/// Whether a status may pass, so that the id is remembered as failed.
fn is_transient(status: Status) -> bool {
    matches!(
        status,
        Status::DebitAccountNotFound
            | Status::CreditAccountNotFound
            | Status::PendingTransferNotFound
            | Status::ExceedsCredits
            | Status::ExceedsDebits
    )
}

impl State {
    pub(super) fn put_ahead(&mut self, ms: u64) {
        self.ahead_ns = ms * 1_000_000;
    }

    /// Moves the clock to the time of the last of `events`, and expires what is due.
    fn advance(&mut self, events: usize) {
        let wall_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        let next_ns = self.now_ns + u64::try_from(events).unwrap();
        self.now_ns = next_ns.max(u64::try_from(wall_ns).unwrap() + self.ahead_ns);
        while let Some((end, time)) = self.ends.first().copied().filter(|(end, _)| *end <= self.now_ns) {
            self.ends.remove(&(end, time));
            self.pending.insert(time, Pending::Expired);
            let transfer = self.transfers[&time];
            self.release(&transfer, &mut Vec::new());
        }
    }

    fn event_time(&self, events: usize, index: usize) -> u64 {
        self.now_ns - u64::try_from(events - index - 1).unwrap()
    }

    pub fn create_accounts(&mut self, accounts: &[Account]) -> Vec<CreateAccountResult> {
        self.advance(accounts.len());
        let mut results = Vec::with_capacity(accounts.len());
        for (index, account) in accounts.iter().enumerate() {
            assert_eq!(account.flags.0 & AccountFlags::Linked.0, 0, "the stand-in has no linked accounts");
            let mut timestamp = self.event_time(accounts.len(), index);
            let status = self.create_account(account, timestamp);
            if status == CreateAccountStatus::Exists {
                timestamp = self.accounts[&account.id].timestamp;
            }
            results.push(CreateAccountResult { timestamp, status, reserved: Reserved::default() });
        }
        results
    }

    fn create_account(&mut self, account: &Account, timestamp: u64) -> CreateAccountStatus {
        let both = AccountFlags::DebitsMustNotExceedCredits.0 | AccountFlags::CreditsMustNotExceedDebits.0;
        if account.timestamp != 0 {
            return CreateAccountStatus::TimestampMustBeZero;
        }
        match account.id {
            0 => return CreateAccountStatus::IdMustNotBeZero,
            u128::MAX => return CreateAccountStatus::IdMustNotBeIntMax,
            _ => {}
        }
        if let Some(old) = self.accounts.get(&account.id) {
            return exists::account(account, old);
        }
        let mistakes = [
            (account.flags.0 & both == both, CreateAccountStatus::FlagsAreMutuallyExclusive),
            (account.debits_pending != 0, CreateAccountStatus::DebitsPendingMustBeZero),
            (account.debits_posted != 0, CreateAccountStatus::DebitsPostedMustBeZero),
            (account.credits_pending != 0, CreateAccountStatus::CreditsPendingMustBeZero),
            (account.credits_posted != 0, CreateAccountStatus::CreditsPostedMustBeZero),
            (account.ledger == 0, CreateAccountStatus::LedgerMustNotBeZero),
            (account.code == 0, CreateAccountStatus::CodeMustNotBeZero),
        ];
        if let Some((_, status)) = mistakes.into_iter().find(|(is_wrong, _)| *is_wrong) {
            return status;
        }
        self.accounts.insert(account.id, Account { timestamp, ..*account });
        CreateAccountStatus::Created
    }

    /// Creates transfers in order. Those of a linked chain are all created or none.
    pub fn create_transfers(&mut self, transfers: &[Transfer]) -> Vec<CreateTransferResult> {
        self.advance(transfers.len());
        let mut results: Vec<CreateTransferResult> = Vec::with_capacity(transfers.len());
        let (mut chain_start, mut is_broken, mut undo) = (None, false, Vec::new());
        for (index, transfer) in transfers.iter().enumerate() {
            let mut timestamp = self.event_time(transfers.len(), index);
            let is_linked = has(transfer, TransferFlags::Linked);
            if is_linked && chain_start.is_none() {
                chain_start = Some(index);
                undo.clear();
            }
            let status = match (is_linked && index + 1 == transfers.len(), is_broken) {
                (true, _) => Status::LinkedEventChainOpen,
                (false, true) => Status::LinkedEventFailed,
                (false, false) => self.create_transfer(transfer, timestamp, &mut undo),
            };
            if status == Status::Exists {
                timestamp = self.times[&transfer.id];
            }
            results.push(CreateTransferResult { timestamp, status, reserved: Reserved::default() });
            if status != Status::Created
                && !is_broken
                && let Some(start) = chain_start
            {
                is_broken = true;
                self.roll_back(&mut undo);
                results[start..index].iter_mut().for_each(|result| result.status = Status::LinkedEventFailed);
            }
            if is_transient(status) {
                self.failed.insert(transfer.id);
            }
            if !is_linked {
                (chain_start, is_broken) = (None, false);
            }
        }
        results
    }

    fn create_transfer(&mut self, transfer: &Transfer, timestamp: u64, undo: &mut Vec<Undo>) -> Status {
        let supported = TransferFlags::Linked
            | TransferFlags::Pending
            | TransferFlags::PostPendingTransfer
            | TransferFlags::VoidPendingTransfer;
        assert_eq!(transfer.flags.0 & !supported.0, 0, "flags that the stand-in does not support");
        if transfer.timestamp != 0 {
            return Status::TimestampMustBeZero;
        }
        match transfer.id {
            0 => return Status::IdMustNotBeZero,
            u128::MAX => return Status::IdMustNotBeIntMax,
            _ => {}
        }
        if let Some(old) = self.find(transfer.id) {
            let pending = self.find(old.pending_id);
            return exists::transfer(transfer, &old, pending.as_ref());
        }
        if self.failed.contains(&transfer.id) {
            return Status::IdAlreadyFailed;
        }
        let ends =
            has(transfer, TransferFlags::PostPendingTransfer) || has(transfer, TransferFlags::VoidPendingTransfer);
        let created = if ends { self.check_end(transfer) } else { self.check_transfer(transfer) };
        match created {
            Err(status) => status,
            Ok(created) => {
                self.insert(Transfer { timestamp, ..created }, undo);
                Status::Created
            }
        }
    }

    /// The record of a transfer that moves an amount, or the first mistake in it.
    fn check_transfer(&self, transfer: &Transfer) -> Result<Transfer, Status> {
        let is_pending = has(transfer, TransferFlags::Pending);
        let refuse = |is_wrong: bool, status: Status| if is_wrong { Err(status) } else { Ok(()) };
        refuse(transfer.debit_account_id == 0, Status::DebitAccountIdMustNotBeZero)?;
        refuse(transfer.debit_account_id == u128::MAX, Status::DebitAccountIdMustNotBeIntMax)?;
        refuse(transfer.credit_account_id == 0, Status::CreditAccountIdMustNotBeZero)?;
        refuse(transfer.credit_account_id == u128::MAX, Status::CreditAccountIdMustNotBeIntMax)?;
        refuse(transfer.credit_account_id == transfer.debit_account_id, Status::AccountsMustBeDifferent)?;
        refuse(transfer.pending_id != 0, Status::PendingIdMustBeZero)?;
        refuse(!is_pending && transfer.timeout != 0, Status::TimeoutReservedForPendingTransfer)?;
        refuse(transfer.ledger == 0, Status::LedgerMustNotBeZero)?;
        refuse(transfer.code == 0, Status::CodeMustNotBeZero)?;
        let debit = self.accounts.get(&transfer.debit_account_id).ok_or(Status::DebitAccountNotFound)?;
        let credit = self.accounts.get(&transfer.credit_account_id).ok_or(Status::CreditAccountNotFound)?;
        refuse(debit.ledger != credit.ledger, Status::AccountsMustHaveTheSameLedger)?;
        refuse(transfer.ledger != debit.ledger, Status::TransferMustHaveTheSameLedgerAsAccounts)?;
        let overflows = |held: u128| held.checked_add(transfer.amount).is_none();
        refuse(is_pending && overflows(debit.debits_pending), Status::OverflowsDebitsPending)?;
        refuse(is_pending && overflows(credit.credits_pending), Status::OverflowsCreditsPending)?;
        refuse(overflows(debit.debits_posted), Status::OverflowsDebitsPosted)?;
        refuse(overflows(credit.credits_posted), Status::OverflowsCreditsPosted)?;
        let (debits, credits) =
            (debit.debits_pending + debit.debits_posted, credit.credits_pending + credit.credits_posted);
        refuse(overflows(debits), Status::OverflowsDebits)?;
        refuse(overflows(credits), Status::OverflowsCredits)?;
        let must = |account: &Account, flag: AccountFlags| account.flags.0 & flag.0 != 0;
        let exceeds_credits = debits + transfer.amount > debit.credits_posted;
        refuse(must(debit, AccountFlags::DebitsMustNotExceedCredits) && exceeds_credits, Status::ExceedsCredits)?;
        let exceeds_debits = credits + transfer.amount > credit.debits_posted;
        refuse(must(credit, AccountFlags::CreditsMustNotExceedDebits) && exceeds_debits, Status::ExceedsDebits)?;
        Ok(*transfer)
    }

    /// The record of a post or a void, or the first mistake in it.
    fn check_end(&self, transfer: &Transfer) -> Result<Transfer, Status> {
        let (is_post, is_void) =
            (has(transfer, TransferFlags::PostPendingTransfer), has(transfer, TransferFlags::VoidPendingTransfer));
        let refuse = |is_wrong: bool, status: Status| if is_wrong { Err(status) } else { Ok(()) };
        let is_pending = has(transfer, TransferFlags::Pending);
        refuse(is_post && is_void || is_pending, Status::FlagsAreMutuallyExclusive)?;
        refuse(transfer.pending_id == 0, Status::PendingIdMustNotBeZero)?;
        refuse(transfer.pending_id == u128::MAX, Status::PendingIdMustNotBeIntMax)?;
        refuse(transfer.pending_id == transfer.id, Status::PendingIdMustBeDifferent)?;
        refuse(transfer.timeout != 0, Status::TimeoutReservedForPendingTransfer)?;
        let pending = self.find(transfer.pending_id).ok_or(Status::PendingTransferNotFound)?;
        refuse(!has(&pending, TransferFlags::Pending), Status::PendingTransferNotPending)?;
        let created = exists::filled_in(transfer, &pending);
        let other_debit = created.debit_account_id != pending.debit_account_id;
        refuse(other_debit, Status::PendingTransferHasDifferentDebitAccountId)?;
        let other_credit = created.credit_account_id != pending.credit_account_id;
        refuse(other_credit, Status::PendingTransferHasDifferentCreditAccountId)?;
        refuse(created.ledger != pending.ledger, Status::PendingTransferHasDifferentLedger)?;
        refuse(created.code != pending.code, Status::PendingTransferHasDifferentCode)?;
        refuse(created.amount > pending.amount, Status::ExceedsPendingTransferAmount)?;
        refuse(is_void && created.amount < pending.amount, Status::PendingTransferHasDifferentAmount)?;
        match self.pending.get(&pending.timestamp) {
            Some(Pending::Posted) => Err(Status::PendingTransferAlreadyPosted),
            Some(Pending::Voided) => Err(Status::PendingTransferAlreadyVoided),
            Some(Pending::Expired) => Err(Status::PendingTransferExpired),
            Some(Pending::Open) | None => Ok(created),
        }
    }

    fn insert(&mut self, transfer: Transfer, undo: &mut Vec<Undo>) {
        let time = transfer.timestamp;
        if let Some(pending) = self.find(transfer.pending_id) {
            self.release(&pending, undo);
            let is_void = has(&transfer, TransferFlags::VoidPendingTransfer);
            self.pending.insert(pending.timestamp, if is_void { Pending::Voided } else { Pending::Posted });
            self.ends.remove(&(end(&pending), pending.timestamp));
            undo.push(Undo::Reopen(pending));
        }
        if has(&transfer, TransferFlags::Pending) {
            self.pending.insert(time, Pending::Open);
            if transfer.timeout > 0 {
                self.ends.insert((end(&transfer), time));
            }
            self.change(transfer.debit_account_id, undo, |account| account.debits_pending += transfer.amount);
            self.change(transfer.credit_account_id, undo, |account| account.credits_pending += transfer.amount);
        } else if !has(&transfer, TransferFlags::VoidPendingTransfer) {
            self.change(transfer.debit_account_id, undo, |account| account.debits_posted += transfer.amount);
            self.change(transfer.credit_account_id, undo, |account| account.credits_posted += transfer.amount);
        }
        self.times.insert(transfer.id, time);
        self.by_user_data_128.entry(transfer.user_data_128).or_default().insert(time);
        self.transfers.insert(time, transfer);
        undo.push(Undo::Remove(transfer));
    }

    /// Returns what a pending transfer holds.
    fn release(&mut self, pending: &Transfer, undo: &mut Vec<Undo>) {
        self.change(pending.debit_account_id, undo, |account| account.debits_pending -= pending.amount);
        self.change(pending.credit_account_id, undo, |account| account.credits_pending -= pending.amount);
    }

    fn change(&mut self, id: u128, undo: &mut Vec<Undo>, change: impl FnOnce(&mut Account)) {
        let account = self.accounts.get_mut(&id).unwrap();
        undo.push(Undo::Account(*account));
        change(account);
    }

    fn roll_back(&mut self, undo: &mut Vec<Undo>) {
        while let Some(last) = undo.pop() {
            match last {
                Undo::Account(account) => {
                    self.accounts.insert(account.id, account);
                }
                Undo::Remove(transfer) => {
                    let time = transfer.timestamp;
                    self.transfers.remove(&time);
                    self.times.remove(&transfer.id);
                    self.by_user_data_128.entry(transfer.user_data_128).or_default().remove(&time);
                    self.pending.remove(&time);
                    self.ends.remove(&(end(&transfer), time));
                }
                Undo::Reopen(pending) => {
                    self.pending.insert(pending.timestamp, Pending::Open);
                    if pending.timeout > 0 {
                        self.ends.insert((end(&pending), pending.timestamp));
                    }
                }
            }
        }
    }

    fn find(&self, id: u128) -> Option<Transfer> {
        self.times.get(&id).map(|time| self.transfers[time])
    }

    pub fn look_up_accounts(&mut self, ids: &[u128]) -> Vec<Account> {
        self.advance(0);
        ids.iter().filter_map(|id| self.accounts.get(id).copied()).collect()
    }

    pub fn query_transfers(&mut self, filter: &QueryFilter, results_max: usize) -> Vec<Transfer> {
        self.advance(0);
        let limit = usize::try_from(filter.limit).unwrap().min(results_max);
        let is_reversed = filter.flags.0 & QueryFilterFlags::Reversed.0 != 0;
        let is_wanted = |transfer: &Transfer| {
            (filter.user_data_64 == 0 || transfer.user_data_64 == filter.user_data_64)
                && (filter.user_data_32 == 0 || transfer.user_data_32 == filter.user_data_32)
                && (filter.ledger == 0 || transfer.ledger == filter.ledger)
                && (filter.code == 0 || transfer.code == filter.code)
                && is_between(transfer, filter.timestamp_min, filter.timestamp_max)
        };
        let times: Vec<u64> = match filter.user_data_128 {
            0 => self.transfers.keys().copied().collect(),
            wanted => self.by_user_data_128.get(&wanted).into_iter().flatten().copied().collect(),
        };
        page(times.into_iter().map(|time| self.transfers[&time]), is_reversed, limit, is_wanted)
    }

    pub fn account_transfers(&mut self, filter: &AccountFilter, results_max: usize) -> Vec<Transfer> {
        self.advance(0);
        let limit = usize::try_from(filter.limit).unwrap().min(results_max);
        let wants = |flag: AccountFilterFlags| filter.flags.0 & flag.0 != 0;
        let is_wanted = |transfer: &Transfer| {
            let is_debit = wants(AccountFilterFlags::Debits) && transfer.debit_account_id == filter.account_id;
            let is_credit = wants(AccountFilterFlags::Credits) && transfer.credit_account_id == filter.account_id;
            (is_debit || is_credit)
                && (filter.code == 0 || transfer.code == filter.code)
                && (filter.user_data_128 == 0 || transfer.user_data_128 == filter.user_data_128)
                && is_between(transfer, filter.timestamp_min, filter.timestamp_max)
        };
        page(self.transfers.values().copied(), wants(AccountFilterFlags::Reversed), limit, is_wanted)
    }
}

fn page(
    transfers: impl DoubleEndedIterator<Item = Transfer>,
    is_reversed: bool,
    limit: usize,
    is_wanted: impl Fn(&Transfer) -> bool,
) -> Vec<Transfer> {
    if is_reversed {
        transfers.rev().filter(is_wanted).take(limit).collect()
    } else {
        transfers.filter(is_wanted).take(limit).collect()
    }
}

fn is_between(transfer: &Transfer, min: u64, max: u64) -> bool {
    transfer.timestamp >= min && (max == 0 || transfer.timestamp <= max)
}

fn end(transfer: &Transfer) -> u64 {
    transfer.timestamp + u64::from(transfer.timeout) * SECOND_NS
}
