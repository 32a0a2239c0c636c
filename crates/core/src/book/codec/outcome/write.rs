//! The outcome of a transaction.

use crate::book::{WriteError, WriteOutcome};
use crate::wire::wire_enum;

wire_enum!(WriteOutcome or "what became of its transaction is unknown" {
    1 => Refused(error),
    2 => Exists(receipt),
    3 => Committed(receipt),
});

wire_enum!(WriteError or "why its transaction was refused is unknown" {
    1 => Invalid(why),
    2 => VaultNotFound { operation },
    3 => SequenceGap { last_committed_sequence },
    4 => AlreadyCommitted { last_committed_sequence },
    5 => SequenceReused { last_committed_sequence },
    6 => TooManyClients,
    7 => WrongScope { operation },
    8 => ConditionFailed { operation, revision },
    9 => AccountNotFound { operation },
    10 => AccountClosed { operation },
    11 => AccountFrozen { operation },
    12 => Conflict { operation },
    13 => InsufficientCredit { operation },
    14 => QuotaExceeded { operation, kind },
    15 => KeyCommitted,
    16 => KeyReused,
    17 => TooManyKeys,
});
