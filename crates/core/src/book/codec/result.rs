//! Operation results as bytes, for snapshots, the journal and outcomes.

use crate::book::{LimitStatus, OperationResult, VaultId};
use crate::credits::AccountId;
use crate::wire::{Bytes, Malformed, Put};

pub(crate) fn put_result(out: &mut Vec<u8>, result: &OperationResult) {
    match *result {
        OperationResult::Limit { revision, status } => {
            out.put_u8(1);
            put_changed(out, revision, status);
        }
        OperationResult::Vault(vault) => {
            out.put_u8(2);
            out.put_u32(vault.0);
        }
        OperationResult::Account(account) => {
            out.put_u8(3);
            out.put_u32(account.0);
        }
        OperationResult::Entry => out.put_u8(4),
        OperationResult::Client => out.put_u8(5),
    }
}

pub(crate) fn read_result(input: &mut Bytes<'_>) -> Result<OperationResult, Malformed> {
    Ok(match input.u8()? {
        1 => {
            let (revision, status) = changed(input)?;
            OperationResult::Limit { revision, status }
        }
        2 => OperationResult::Vault(VaultId(input.u32()?)),
        3 => OperationResult::Account(AccountId(input.u32()?)),
        4 => OperationResult::Entry,
        5 => OperationResult::Client,
        _ => return Err(Malformed("the result of an operation is unknown")),
    })
}

/// The revision and status of a changed limit.
pub(super) fn put_changed(out: &mut Vec<u8>, revision: u64, status: LimitStatus) {
    let (status, to) = match status {
        LimitStatus::Active => (1, 0),
        LimitStatus::Decreasing { to } => (2, to),
        LimitStatus::Deleted => (3, 0),
    };
    out.put_u64(revision);
    out.put_u8(status);
    out.put_u64(to);
}

pub(super) fn changed(input: &mut Bytes<'_>) -> Result<(u64, LimitStatus), Malformed> {
    let revision = input.u64()?;
    let status = match (input.u8()?, input.u64()?) {
        (1, 0) => LimitStatus::Active,
        (2, to) => LimitStatus::Decreasing { to },
        (3, 0) => LimitStatus::Deleted,
        _ => return Err(Malformed("the status of a limit is unknown")),
    };
    Ok((revision, status))
}
