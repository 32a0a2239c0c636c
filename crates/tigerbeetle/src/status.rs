//! Statuses of transfers, sorted by what they mean here.

use tigerbeetle::CreateTransferStatus as Status;

/// Whether a transfer of this id is there already, the same or another.
pub(crate) const fn exists(status: Status) -> bool {
    matches!(
        status,
        Status::Exists
            | Status::ExistsWithDifferentFlags
            | Status::ExistsWithDifferentPendingId
            | Status::ExistsWithDifferentTimeout
            | Status::ExistsWithDifferentDebitAccountId
            | Status::ExistsWithDifferentCreditAccountId
            | Status::ExistsWithDifferentAmount
            | Status::ExistsWithDifferentUserData128
            | Status::ExistsWithDifferentUserData64
            | Status::ExistsWithDifferentUserData32
            | Status::ExistsWithDifferentLedger
            | Status::ExistsWithDifferentCode
    )
}

/// Whether a reservation has ended already, by time or by someone else's void.
pub(crate) const fn has_ended(status: Status) -> bool {
    matches!(
        status,
        Status::PendingTransferExpired
            | Status::PendingTransferAlreadyVoided
            | Status::PendingTransferAlreadyPosted
    )
}

/// A status that nothing here leads to, for an operator.
pub(crate) fn describe(status: Status) -> String {
    match status {
        Status::DebitAccountNotFound | Status::CreditAccountNotFound => {
            "TigerBeetle has lost an account that it had: is this another data file?".into()
        }
        Status::DebitAccountAlreadyClosed | Status::CreditAccountAlreadyClosed => {
            "TigerBeetle says that an account of Earmark was closed; nothing here closes any".into()
        }
        other => format!("TigerBeetle refused a transfer: {other}"),
    }
}
