//! The reasons why a command is malformed.

use crate::book::{InvalidOperation, InvalidParts, InvalidWrite};
use crate::limits::{DefinitionError, HoldField, NameField};
use crate::wire::wire_enum;

wire_enum!(InvalidParts or "what is wrong with its parts is unknown" {
    1 => UnknownNamespace,
    2 => Empty,
    3 => TooMany { found },
    4 => AmountZero { part },
    5 => Duplicate { part },
});

wire_enum!(InvalidWrite or "what is wrong with its transaction is unknown" {
    1 => UnknownNamespace,
    2 => TooManyOperations { found },
    3 => Sequence { found },
    4 => Operation { operation, why },
    5 => ClientClaimed { client },
    6 => ClientRetired { client },
});

wire_enum!(InvalidOperation or "what is wrong with its operation is unknown" {
    1 => Definition(error),
    2 => LimitKindDiffers,
    3 => TooManyLimits,
    4 => TooManyVaults,
    5 => TooManyAccounts,
    6 => TooManyAssets,
    7 => AmountZero,
    8 => OutOfRange,
    9 => MemoTooLong { found },
    10 => ToItself,
    11 => NeedsAdmin,
    12 => UnknownClient,
    13 => CreditExternal,
    14 => TooManyGrants,
    15 => ExpiryPast,
    17 => CarryOverZero,
    18 => PlanUtcOffset { found },
});

wire_enum!(DefinitionError or "what is wrong with its definition is unknown" {
    1 => CapacityZero,
    2 => CapacityOfCredit { found },
    3 => HoldSeconds { field, found },
    4 => UnitTooLong { found },
    5 => DescriptionTooLong { found },
    6 => UtcOffset { found },
    7 => SharedCredit,
    8 => ShadowCredit,
    9 => Placeholder { field },
});

wire_enum!(HoldField or "the field of its definition is unknown" {
    1 => WindowSeconds,
    2 => TimeoutSeconds,
});

wire_enum!(NameField or "the field of its definition is unknown" {
    1 => Key,
    2 => Account,
});
