//! Groups of transfer statuses.

use tigerbeetle::CreateTransferStatus as Status;

/// Whether a transfer with this id exists, equal or not.
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

/// Whether the reservation has expired or was voided.
pub(crate) const fn has_ended(status: Status) -> bool {
    matches!(
        status,
        Status::PendingTransferExpired | Status::PendingTransferAlreadyVoided | Status::PendingTransferAlreadyPosted
    )
}

/// Message for a status that Earmark's own requests never cause.
pub(crate) fn describe(status: Status) -> String {
    match status {
        Status::DebitAccountNotFound | Status::CreditAccountNotFound => {
            "TigerBeetle no longer has an account of Earmark; is this another data file?".into()
        }
        Status::DebitAccountAlreadyClosed | Status::CreditAccountAlreadyClosed => {
            "an account of Earmark was closed in TigerBeetle; Earmark never closes accounts".into()
        }
        other => format!("TigerBeetle refused a transfer: {other}"),
    }
}
