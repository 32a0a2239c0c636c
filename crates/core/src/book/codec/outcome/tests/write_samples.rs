//! Samples of the outcomes of writes.

use super::*;

pub(super) fn results(n: &mut Numbers) -> Vec<OperationResult> {
    every![n:
        OperationResult::Limit { .. } => of_each(statuses(n), |status| {
            n.restart();
            OperationResult::Limit { revision: n.u64(), status }
        }),
        OperationResult::Vault(_) => [OperationResult::Vault(VaultId(n.u32()))],
        OperationResult::Account(_) => [OperationResult::Account(AccountId(n.u32()))],
        OperationResult::Entry => [OperationResult::Entry],
        OperationResult::Client => [OperationResult::Client],
    ]
}

pub(super) fn receipt(n: &mut Numbers, results: Vec<OperationResult>) -> Arc<Receipt> {
    n.restart();
    let actors = ["client:billing", "system:limits-file", "user:7"].map(|actor| Actor::new(actor).unwrap());
    Arc::new(Receipt {
        tx_id: TxId(u128::from(n.u64()) << 64 | u128::from(n.u64())),
        sequence: Some(n.u64()).filter(|sequence| *sequence != 0),
        log_index: n.u64(),
        committed_at: Moment { log: n.time(), wall: n.time() },
        actor: n.one_of(&actors),
        results,
    })
}

pub(super) fn writes(n: &mut Numbers) -> Vec<WriteOutcome> {
    every![n:
        WriteOutcome::Refused(_) => of_each(write_errors(n), WriteOutcome::Refused),
        WriteOutcome::Exists(_) => [
            WriteOutcome::Exists(receipt(n, Vec::new())),
            WriteOutcome::Exists(Arc::new(Receipt { sequence: None, ..Receipt::clone(&receipt(n, Vec::new())) })),
        ],
        WriteOutcome::Committed(_) => of_each(results(n), |result| {
            WriteOutcome::Committed(receipt(n, vec![result; 2]))
        }),
    ]
}

fn write_errors(n: &mut Numbers) -> Vec<WriteError> {
    every![n:
        WriteError::Invalid(_) => of_each(invalid_writes(n), WriteError::Invalid),
        WriteError::VaultNotFound { .. } => [
            WriteError::VaultNotFound { operation: None },
            WriteError::VaultNotFound { operation: Some(n.size()) },
        ],
        WriteError::SequenceGap { .. } => [WriteError::SequenceGap { last_committed_sequence: n.u64() }],
        WriteError::AlreadyCommitted { .. } => [WriteError::AlreadyCommitted { last_committed_sequence: n.u64() }],
        WriteError::SequenceReused { .. } => [WriteError::SequenceReused { last_committed_sequence: n.u64() }],
        WriteError::TooManyClients => [WriteError::TooManyClients],
        WriteError::KeyCommitted => [WriteError::KeyCommitted],
        WriteError::KeyReused => [WriteError::KeyReused],
        WriteError::TooManyKeys => [WriteError::TooManyKeys],
        WriteError::QuotaExceeded { .. } => [
            WriteError::QuotaExceeded { operation: None, kind: QuotaKind::JournalBytesPerDay },
            WriteError::QuotaExceeded { operation: Some(n.size()), kind: QuotaKind::Vaults },
        ],
        WriteError::WrongScope { .. } => [WriteError::WrongScope { operation: n.size() }],
        WriteError::ConditionFailed { .. } => [
            WriteError::ConditionFailed { operation: n.size(), revision: n.u64() },
        ],
        WriteError::AccountNotFound { .. } => [WriteError::AccountNotFound { operation: n.size() }],
        WriteError::AccountClosed { .. } => [WriteError::AccountClosed { operation: n.size() }],
        WriteError::AccountFrozen { .. } => [WriteError::AccountFrozen { operation: n.size() }],
        WriteError::Conflict { .. } => [WriteError::Conflict { operation: n.size() }],
        WriteError::InsufficientCredit { .. } => [WriteError::InsufficientCredit { operation: n.size() }],
    ]
}

fn invalid_writes(n: &mut Numbers) -> Vec<InvalidWrite> {
    every![n:
        InvalidWrite::UnknownNamespace => [InvalidWrite::UnknownNamespace],
        InvalidWrite::TooManyOperations { .. } => [InvalidWrite::TooManyOperations { found: n.size() }],
        InvalidWrite::Sequence { .. } => [InvalidWrite::Sequence { found: n.u64() }],
        InvalidWrite::ClientClaimed { .. } => [
            InvalidWrite::ClientClaimed { client: "billing".parse().unwrap() },
        ],
        InvalidWrite::ClientRetired { .. } => [
            InvalidWrite::ClientRetired { client: "billing".parse().unwrap() },
        ],
        InvalidWrite::Operation { .. } => of_each(invalid_operations(n), |why| {
            n.restart();
            InvalidWrite::Operation { operation: n.size(), why }
        }),
    ]
}

fn invalid_operations(n: &mut Numbers) -> Vec<InvalidOperation> {
    every![n:
        InvalidOperation::Definition(_) => of_each(definition_errors(n), InvalidOperation::Definition),
        InvalidOperation::LimitKindDiffers => [InvalidOperation::LimitKindDiffers],
        InvalidOperation::TooManyLimits => [InvalidOperation::TooManyLimits],
        InvalidOperation::TooManyVaults => [InvalidOperation::TooManyVaults],
        InvalidOperation::TooManyAccounts => [InvalidOperation::TooManyAccounts],
        InvalidOperation::TooManyAssets => [InvalidOperation::TooManyAssets],
        InvalidOperation::AmountZero => [InvalidOperation::AmountZero],
        InvalidOperation::OutOfRange => [InvalidOperation::OutOfRange],
        InvalidOperation::MemoTooLong { .. } => [InvalidOperation::MemoTooLong { found: n.size() }],
        InvalidOperation::ToItself => [InvalidOperation::ToItself],
        InvalidOperation::NeedsAdmin => [InvalidOperation::NeedsAdmin],
        InvalidOperation::UnknownClient => [InvalidOperation::UnknownClient],
        InvalidOperation::CreditExternal => [InvalidOperation::CreditExternal],
        InvalidOperation::TooManyGrants => [InvalidOperation::TooManyGrants],
        InvalidOperation::ExpiryPast => [InvalidOperation::ExpiryPast],
        InvalidOperation::CarryOverZero => [InvalidOperation::CarryOverZero],
        InvalidOperation::PlanUtcOffset { .. } => [InvalidOperation::PlanUtcOffset { found: -721 }],
    ]
}
