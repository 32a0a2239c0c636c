//! The statuses of records that exist already.

use tigerbeetle::{Account, CreateAccountStatus, CreateTransferStatus as Status, Transfer, TransferFlags};

use super::state::has;

pub(super) fn account(new: &Account, old: &Account) -> CreateAccountStatus {
    let differences = [
        (new.flags != old.flags, CreateAccountStatus::ExistsWithDifferentFlags),
        (new.user_data_128 != old.user_data_128, CreateAccountStatus::ExistsWithDifferentUserData128),
        (new.user_data_64 != old.user_data_64, CreateAccountStatus::ExistsWithDifferentUserData64),
        (new.user_data_32 != old.user_data_32, CreateAccountStatus::ExistsWithDifferentUserData32),
        (new.ledger != old.ledger, CreateAccountStatus::ExistsWithDifferentLedger),
        (new.code != old.code, CreateAccountStatus::ExistsWithDifferentCode),
    ];
    let difference = differences.into_iter().find(|(differs, _)| *differs);
    difference.map_or(CreateAccountStatus::Exists, |(_, status)| status)
}

/// `pending` is the transfer that `old` posted or voided.
pub(super) fn transfer(new: &Transfer, old: &Transfer, pending: Option<&Transfer>) -> Status {
    if new.flags != old.flags {
        return Status::ExistsWithDifferentFlags;
    }
    if new.pending_id != old.pending_id {
        return Status::ExistsWithDifferentPendingId;
    }
    if new.timeout != old.timeout {
        return Status::ExistsWithDifferentTimeout;
    }
    // A post or a void takes from its pending transfer what it leaves out.
    let expected = pending.map_or(*new, |pending| filled_in(new, pending));
    let differences = [
        (expected.debit_account_id != old.debit_account_id, Status::ExistsWithDifferentDebitAccountId),
        (expected.credit_account_id != old.credit_account_id, Status::ExistsWithDifferentCreditAccountId),
        (expected.amount != old.amount, Status::ExistsWithDifferentAmount),
        (expected.user_data_128 != old.user_data_128, Status::ExistsWithDifferentUserData128),
        (expected.user_data_64 != old.user_data_64, Status::ExistsWithDifferentUserData64),
        (expected.user_data_32 != old.user_data_32, Status::ExistsWithDifferentUserData32),
        (expected.ledger != old.ledger, Status::ExistsWithDifferentLedger),
        (expected.code != old.code, Status::ExistsWithDifferentCode),
    ];
    let difference = differences.into_iter().find(|(differs, _)| *differs);
    difference.map_or(Status::Exists, |(_, status)| status)
}

/// A post or a void with the fields that it leaves to its pending transfer.
pub(super) fn filled_in(new: &Transfer, pending: &Transfer) -> Transfer {
    let or = |own: u128, other: u128| if own == 0 { other } else { own };
    let takes_all = if has(new, TransferFlags::VoidPendingTransfer) { 0 } else { u128::MAX };
    Transfer {
        debit_account_id: or(new.debit_account_id, pending.debit_account_id),
        credit_account_id: or(new.credit_account_id, pending.credit_account_id),
        amount: if new.amount == takes_all { pending.amount } else { new.amount },
        user_data_128: or(new.user_data_128, pending.user_data_128),
        user_data_64: if new.user_data_64 == 0 { pending.user_data_64 } else { new.user_data_64 },
        user_data_32: if new.user_data_32 == 0 { pending.user_data_32 } else { new.user_data_32 },
        ledger: if new.ledger == 0 { pending.ledger } else { new.ledger },
        code: if new.code == 0 { pending.code } else { new.code },
        ..*new
    }
}
