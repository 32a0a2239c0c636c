//! The outcome of a complete.

use super::list;
use crate::book::{Charge, CompleteOutcome, OverageHow, OverageTaken, Settlement};
use crate::wire::{wire_enum, wire_struct};

wire_enum!(CompleteOutcome or "what became of its complete is unknown" {
    1 => Invalid(why),
    2 => Before,
    3 => HeldNothing,
    4 => UnknownByAge,
    5 => Overloaded,
    6 => Marked,
    7 => Completed(settlement),
    8 => LeasesQuotaExceeded,
    9 => StaleLimit { actual },
    10 => OwnedByGateway,
    11 => OtherCall,
});

wire_struct!(Settlement { ignored via list, raised via list, overages via list, charges via list, is_extended });

wire_struct!(OverageTaken { limit, amount, how });

wire_enum!(OverageHow or "what became of its overage is unknown" {
    1 => Reserved,
    2 => Debt,
    3 => Dropped,
});

wire_struct!(Charge { limit, cost, paid, debt, uncollected });
