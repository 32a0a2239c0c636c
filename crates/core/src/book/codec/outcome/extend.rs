//! The outcome of an extension.

use crate::book::{ExtendOutcome, Extension, InvalidExtend};
use crate::wire::{wire_enum, wire_struct};

wire_enum!(ExtendOutcome or "what became of its extension is unknown" {
    1 => Invalid(why),
    2 => StaleLimit,
    3 => LeaseExpired,
    4 => NumberReused,
    5 => NumberDiffers { expected },
    6 => UnknownLimit { part },
    7 => LimitDecreasing { part, retry_after_ms },
    8 => LimitPaused { part, retry_after_ms },
    9 => AccountNotFound { part, retry_after_ms },
    10 => LimitsExternal,
    11 => TooManyLimits { found },
    12 => QuotaExceeded { kind, retry_after_ms },
    13 => Denied(denial),
    14 => InsufficientCredit(denial),
    15 => Extended(extension),
    16 => OwnedByGateway,
    17 => OtherCall,
});

wire_struct!(Extension { ends_at, ignored, above });

wire_enum!(InvalidExtend or "what is wrong with its extension is unknown" {
    1 => Number { found },
    2 => Add(why),
    3 => Used(why),
});
