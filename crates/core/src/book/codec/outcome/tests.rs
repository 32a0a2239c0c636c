use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::book::{
    Charge, CompleteOutcome, CreditDenial, CreditShortage, Denial, ExtendOutcome, Extension, InvalidExtend,
    InvalidOperation, InvalidParts, InvalidWrite, LimitId, LimitStatus, NamespaceId, OPERATIONS_MAX, OperationResult,
    OverageHow, OverageTaken, PauseOutcome, Receipt, RequirementSet, ReserveOutcome, Settlement, TemplateOutcome, TxId,
    VaultId, WriteError, WriteOutcome,
};
use crate::credits::AccountId;
use crate::id::{Actor, LimitKey};
use crate::keys::KeyNumber;
use crate::limits::{DefinitionError, HoldField, NameField, Setting, SettingChange};
use crate::policies::PolicyOutcome;
use crate::quota::{QuotaKind, QuotasOutcome};
use crate::time::{Moment, UnixMs};

/// Examples of each variant of an enum. A variant without an example does not compile.
macro_rules! every {
    ($numbers:ident: $($pattern:pat => $examples:expr,)*) => {{
        let mut all = Vec::new();
        $(
            $numbers.restart();
            let examples = Vec::from($examples);
            assert!(!examples.is_empty());
            assert!(examples.iter().all(|each| matches!(each, $pattern)), "{}", stringify!($pattern));
            all.extend(examples);
        )*
        for each in &all {
            match each {
                $($pattern => {})*
            }
        }
        all
    }};
}

mod write_samples;

use write_samples::{receipt, results, writes};

/// A source of field values. It restarts for each variant, so that an example does not depend on the other variants.
#[derive(Debug)]
struct Numbers {
    all: Vec<u64>,
    next: usize,
}

impl Numbers {
    fn counting() -> Numbers {
        Numbers { all: (1..100).collect(), next: 0 }
    }

    fn restart(&mut self) {
        self.next = 0;
    }

    fn u64(&mut self) -> u64 {
        let number = self.all[self.next % self.all.len()];
        self.next += 1;
        number
    }

    fn u32(&mut self) -> u32 {
        self.u64() as u32
    }

    fn size(&mut self) -> usize {
        self.u64() as usize
    }

    fn time(&mut self) -> UnixMs {
        UnixMs::new(self.u64())
    }

    fn limit(&mut self) -> LimitId {
        LimitId { slot: self.u32(), generation: self.u32() }
    }

    /// As many items as a lease can have.
    fn list<T>(&mut self, mut item: impl FnMut(&mut Numbers) -> T) -> Vec<T> {
        (0..self.size() % (REQUIREMENTS_MAX + 1)).map(|_| item(self)).collect()
    }

    fn one_of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.size() % choices.len()].clone()
    }
}

fn of_each<T, U>(parts: Vec<T>, of: impl FnMut(T) -> U) -> Vec<U> {
    parts.into_iter().map(of).collect()
}

fn outcomes(n: &mut Numbers) -> Vec<Outcome> {
    every![n:
        Outcome::Namespace(_) => of_each(namespaces(n), Outcome::Namespace),
        Outcome::Limit(_) => of_each(limits(n), Outcome::Limit),
        Outcome::Pause(_) => of_each(pauses(n), Outcome::Pause),
        Outcome::Reserve(_) => of_each(reserves(n), Outcome::Reserve),
        Outcome::Complete(_) => of_each(completes(n), Outcome::Complete),
        Outcome::Write(_) => of_each(writes(n), Outcome::Write),
        Outcome::Ticked => [Outcome::Ticked],
        Outcome::ExternalSet => [Outcome::ExternalSet],
        Outcome::Key(_) => of_each(keys(n), Outcome::Key),
        Outcome::Quotas(_) => [
            Outcome::Quotas(QuotasOutcome::TooHigh(QuotaKind::Leases)),
            Outcome::Quotas(QuotasOutcome::TooManyNamespaces),
            Outcome::Quotas(QuotasOutcome::Set),
        ],
        Outcome::Unauthenticated => [Outcome::Unauthenticated],
        Outcome::Configure(_) => of_each(configures(n), Outcome::Configure),
        Outcome::Template(_) => of_each(templates(n), Outcome::Template),
        Outcome::Extend(_) => of_each(extends(n), Outcome::Extend),
        Outcome::Policy(_) => of_each(policies(n), Outcome::Policy),
    ]
}

fn policies(n: &mut Numbers) -> Vec<PolicyOutcome> {
    every![n:
        PolicyOutcome::TooLarge => [PolicyOutcome::TooLarge],
        PolicyOutcome::RevisionDiffers { .. } => [PolicyOutcome::RevisionDiffers { revision: n.u64() }],
        PolicyOutcome::QuotaExceeded(_) => [PolicyOutcome::QuotaExceeded(QuotaKind::PolicyBytes)],
        PolicyOutcome::TooManyNamespaces => [PolicyOutcome::TooManyNamespaces],
        PolicyOutcome::Changed { .. } => [PolicyOutcome::Changed { revision: n.u64() }],
    ]
}

fn templates(n: &mut Numbers) -> Vec<TemplateOutcome> {
    every![n:
        TemplateOutcome::UnknownNamespace => [TemplateOutcome::UnknownNamespace],
        TemplateOutcome::DiffersInNamesOnly { .. } =>
            [TemplateOutcome::DiffersInNamesOnly { key: LimitKey::pattern("a:{b}").unwrap() }],
        TemplateOutcome::RevisionDiffers { .. } => [TemplateOutcome::RevisionDiffers { revision: n.u64() }],
        TemplateOutcome::NotFound => [TemplateOutcome::NotFound],
        TemplateOutcome::KindDiffers => [TemplateOutcome::KindDiffers],
        TemplateOutcome::VaultNotFound => [TemplateOutcome::VaultNotFound],
        TemplateOutcome::QuotaExceeded(_) => [TemplateOutcome::QuotaExceeded(QuotaKind::Templates)],
        TemplateOutcome::Changed { .. } => [TemplateOutcome::Changed { revision: n.u64() }],
    ]
}

fn configures(n: &mut Numbers) -> Vec<ConfigureOutcome> {
    every![n:
        ConfigureOutcome::Configured => [ConfigureOutcome::Configured],
        ConfigureOutcome::Invalid(_) => of_each(
            Setting::ALL.map(|setting| SettingChange { setting, value: n.u64() }).into(),
            ConfigureOutcome::Invalid,
        ),
    ]
}

fn keys(n: &mut Numbers) -> Vec<KeyOutcome> {
    every![n:
        KeyOutcome::Exists(_) => [KeyOutcome::Exists(KeyNumber(n.u32()))],
        KeyOutcome::IdTaken => [KeyOutcome::IdTaken],
        KeyOutcome::NotTheFirst => [KeyOutcome::NotTheFirst],
        KeyOutcome::NotAnAdmin => [KeyOutcome::NotAnAdmin],
        KeyOutcome::ClientIsKey => [KeyOutcome::ClientIsKey],
        KeyOutcome::InvalidExpiry => [KeyOutcome::InvalidExpiry],
        KeyOutcome::QuotaExceeded(_) => QuotaKind::ALL.map(KeyOutcome::QuotaExceeded),
        KeyOutcome::TooMany => [KeyOutcome::TooMany],
        KeyOutcome::TooManyNamespaces => [KeyOutcome::TooManyNamespaces],
        KeyOutcome::Created(_) => [KeyOutcome::Created(KeyNumber(n.u32()))],
        KeyOutcome::NotFound => [KeyOutcome::NotFound],
        KeyOutcome::LastAdmin => [KeyOutcome::LastAdmin],
        KeyOutcome::Revoked(_) => [KeyOutcome::Revoked(KeyNumber(n.u32()))],
    ]
}

fn namespaces(n: &mut Numbers) -> Vec<NamespaceOutcome> {
    every![n:
        NamespaceOutcome::Opened(_) => [NamespaceOutcome::Opened(NamespaceId(n.u64() as u16))],
        NamespaceOutcome::Exists(_) => [NamespaceOutcome::Exists(NamespaceId(n.u64() as u16))],
        NamespaceOutcome::TooMany => [NamespaceOutcome::TooMany],
    ]
}

fn limits(n: &mut Numbers) -> Vec<LimitOutcome> {
    every![n:
        LimitOutcome::Invalid(_) => of_each(definition_errors(n), LimitOutcome::Invalid),
        LimitOutcome::UnknownNamespace => [LimitOutcome::UnknownNamespace],
        LimitOutcome::RevisionDiffers { .. } => [LimitOutcome::RevisionDiffers { revision: n.u64() }],
        LimitOutcome::NotFound => [LimitOutcome::NotFound],
        LimitOutcome::KindDiffers => [LimitOutcome::KindDiffers],
        LimitOutcome::TooMany => [LimitOutcome::TooMany],
        LimitOutcome::QuotaExceeded(_) => [LimitOutcome::QuotaExceeded(QuotaKind::Limits)],
        LimitOutcome::VaultNotFound => [LimitOutcome::VaultNotFound],
        LimitOutcome::Changed { .. } => of_each(statuses(n), |status| {
            n.restart();
            LimitOutcome::Changed { limit: n.limit(), revision: n.u64(), status }
        }),
    ]
}

fn statuses(n: &mut Numbers) -> Vec<LimitStatus> {
    every![n:
        LimitStatus::Active => [LimitStatus::Active],
        LimitStatus::Decreasing { .. } => [LimitStatus::Decreasing { to: n.u64() }],
        LimitStatus::Deleted => [LimitStatus::Deleted],
    ]
}

fn pauses(n: &mut Numbers) -> Vec<PauseOutcome> {
    every![n:
        PauseOutcome::TooLong { .. } => [PauseOutcome::TooLong { found: n.u64() }],
        PauseOutcome::ReasonTooLong { .. } => [PauseOutcome::ReasonTooLong { found: n.size() }],
        PauseOutcome::NotFound => [PauseOutcome::NotFound],
        PauseOutcome::TooManyInNamespace => [PauseOutcome::TooManyInNamespace],
        PauseOutcome::TooMany => [PauseOutcome::TooMany],
        PauseOutcome::QuotaExceeded(_) => [PauseOutcome::QuotaExceeded(QuotaKind::DerivedLimits)],
        PauseOutcome::Paused { .. } => [PauseOutcome::Paused { until: n.time() }],
        PauseOutcome::Resumed => [PauseOutcome::Resumed],
    ]
}

fn definition_errors(n: &mut Numbers) -> Vec<DefinitionError> {
    let fields = every![n:
        HoldField::WindowSeconds => [HoldField::WindowSeconds],
        HoldField::TimeoutSeconds => [HoldField::TimeoutSeconds],
    ];
    every![n:
        DefinitionError::CapacityZero => [DefinitionError::CapacityZero],
        DefinitionError::CapacityOfCredit { .. } => [DefinitionError::CapacityOfCredit { found: n.u64() }],
        DefinitionError::HoldSeconds { .. } => of_each(fields.clone(), |field| {
            n.restart();
            DefinitionError::HoldSeconds { field, found: n.u32() }
        }),
        DefinitionError::UtcOffset { .. } => [DefinitionError::UtcOffset { found: n.size() as i16 }],
        DefinitionError::SharedCredit => [DefinitionError::SharedCredit],
        DefinitionError::ShadowCredit => [DefinitionError::ShadowCredit],
        DefinitionError::UnitTooLong { .. } => [DefinitionError::UnitTooLong { found: n.size() }],
        DefinitionError::DescriptionTooLong { .. } => [DefinitionError::DescriptionTooLong { found: n.size() }],
        DefinitionError::Placeholder { .. } => [
            DefinitionError::Placeholder { field: NameField::Key },
            DefinitionError::Placeholder { field: NameField::Account },
        ],
    ]
}

fn invalid_parts(n: &mut Numbers) -> Vec<InvalidParts> {
    every![n:
        InvalidParts::UnknownNamespace => [InvalidParts::UnknownNamespace],
        InvalidParts::Empty => [InvalidParts::Empty],
        InvalidParts::TooMany { .. } => [InvalidParts::TooMany { found: n.size() }],
        InvalidParts::AmountZero { .. } => [InvalidParts::AmountZero { part: n.size() }],
        InvalidParts::Duplicate { .. } => [InvalidParts::Duplicate { part: n.size() }],
    ]
}

fn denial(n: &mut Numbers) -> Denial {
    Denial { retry_after_ms: n.u64(), limited_by: n.list(Numbers::size), never: n.one_of(&[false, true]) }
}

fn credit_denials(n: &mut Numbers) -> Vec<CreditDenial> {
    let shortages = every![n:
        CreditShortage::UnknownAccount => [CreditShortage::UnknownAccount],
        CreditShortage::Frozen => [CreditShortage::Frozen],
        CreditShortage::Closed => [CreditShortage::Closed],
        CreditShortage::NotEnough => [CreditShortage::NotEnough],
    ];
    of_each(shortages, |why| {
        n.restart();
        CreditDenial { requirement: n.size(), retry_after_ms: n.u64(), why }
    })
}

fn reserves(n: &mut Numbers) -> Vec<ReserveOutcome> {
    every![n:
        ReserveOutcome::Invalid(_) => of_each(invalid_parts(n), ReserveOutcome::Invalid),
        ReserveOutcome::StaleLimit { .. } => [ReserveOutcome::StaleLimit { requirement: n.size() }],
        ReserveOutcome::ExistsWithOtherRequirements => [ReserveOutcome::ExistsWithOtherRequirements],
        ReserveOutcome::OwnedByGateway => [ReserveOutcome::OwnedByGateway],
        ReserveOutcome::Exists { .. } => [None, Some(9)].map(|policy_revision| {
            let (reserved_at, would_deny) = (n.time(), RequirementSet::from_bits(n.u32()));
            ReserveOutcome::Exists { reserved_at, would_deny, policy_revision }
        }),
        ReserveOutcome::ExistsDeniedByPolicy { .. } => [ReserveOutcome::ExistsDeniedByPolicy { policy_revision: 9 }],
        ReserveOutcome::ExistsDenied(_) => [ReserveOutcome::ExistsDenied(denial(n))],
        ReserveOutcome::ExistsInsufficientCredit(_) => of_each(credit_denials(n), ReserveOutcome::ExistsInsufficientCredit),
        ReserveOutcome::LeaseExpired => [ReserveOutcome::LeaseExpired],
        ReserveOutcome::LeaseTooOld { .. } => [
            ReserveOutcome::LeaseTooOld { lease_time: n.time(), forgotten_before: n.time() },
        ],
        ReserveOutcome::LeaseInFuture { .. } => [
            ReserveOutcome::LeaseInFuture { lease_time: n.time(), wall: n.time() },
        ],
        ReserveOutcome::UnknownLimit { .. } => [ReserveOutcome::UnknownLimit { requirement: n.size() }],
        ReserveOutcome::LimitDecreasing { .. } => [
            ReserveOutcome::LimitDecreasing { requirement: n.size(), retry_after_ms: n.u64() },
        ],
        ReserveOutcome::LimitPaused { .. } => {
            [ReserveOutcome::LimitPaused { requirement: n.size(), retry_after_ms: n.u64() }]
        },
        ReserveOutcome::AccountNotFound { .. } => [
            ReserveOutcome::AccountNotFound { requirement: n.size(), retry_after_ms: n.u64() },
        ],
        ReserveOutcome::LimitsExternal => [ReserveOutcome::LimitsExternal],
        ReserveOutcome::Overloaded => [ReserveOutcome::Overloaded],
        ReserveOutcome::QuotaExceeded { .. } => [
            ReserveOutcome::QuotaExceeded { kind: QuotaKind::Leases, retry_after_ms: n.u64() },
        ],
        ReserveOutcome::Denied(_) => [ReserveOutcome::Denied(denial(n))],
        ReserveOutcome::InsufficientCredit(_) => of_each(credit_denials(n), ReserveOutcome::InsufficientCredit),
        ReserveOutcome::Created { .. } => [ReserveOutcome::Created { reserved_at: n.time(), would_deny: RequirementSet::from_bits(n.u32()) }],
    ]
}

fn extends(n: &mut Numbers) -> Vec<ExtendOutcome> {
    every![n:
        ExtendOutcome::Invalid(_) => {
            let mut all = vec![InvalidExtend::Number { found: n.u32() }];
            all.extend(of_each(invalid_parts(n), InvalidExtend::Add));
            all.extend(of_each(invalid_parts(n), InvalidExtend::Used));
            of_each(all, ExtendOutcome::Invalid)
        },
        ExtendOutcome::StaleLimit => [ExtendOutcome::StaleLimit],
        ExtendOutcome::LeaseExpired => [ExtendOutcome::LeaseExpired],
        ExtendOutcome::OwnedByGateway => [ExtendOutcome::OwnedByGateway],
        ExtendOutcome::OtherCall => [ExtendOutcome::OtherCall],
        ExtendOutcome::NumberReused => [ExtendOutcome::NumberReused],
        ExtendOutcome::NumberDiffers { .. } => [ExtendOutcome::NumberDiffers { expected: n.u32() }],
        ExtendOutcome::UnknownLimit { .. } => [ExtendOutcome::UnknownLimit { part: n.size() }],
        ExtendOutcome::LimitDecreasing { .. } => [
            ExtendOutcome::LimitDecreasing { part: n.size(), retry_after_ms: n.u64() },
        ],
        ExtendOutcome::LimitPaused { .. } => [ExtendOutcome::LimitPaused { part: n.size(), retry_after_ms: n.u64() }],
        ExtendOutcome::AccountNotFound { .. } => [
            ExtendOutcome::AccountNotFound { part: n.size(), retry_after_ms: n.u64() },
        ],
        ExtendOutcome::LimitsExternal => [ExtendOutcome::LimitsExternal],
        ExtendOutcome::TooManyLimits { .. } => [ExtendOutcome::TooManyLimits { found: n.size() }],
        ExtendOutcome::QuotaExceeded { .. } => [
            ExtendOutcome::QuotaExceeded { kind: QuotaKind::JournalBytesPerDay, retry_after_ms: n.u64() },
        ],
        ExtendOutcome::Denied(_) => [ExtendOutcome::Denied(denial(n))],
        ExtendOutcome::InsufficientCredit(_) => of_each(credit_denials(n), ExtendOutcome::InsufficientCredit),
        ExtendOutcome::Extended(_) => {
            let mut all = Vec::new();
            for ends_at in [None, Some(n.time())] {
                let ignored = RequirementSet::from_bits(n.u32());
                all.push(ExtendOutcome::Extended(Extension { ends_at, ignored, above: RequirementSet::from_bits(n.u32()) }));
            }
            all
        },
    ]
}

fn settlements(n: &mut Numbers) -> Vec<Settlement> {
    let hows = every![n:
        OverageHow::Reserved => [OverageHow::Reserved],
        OverageHow::Debt => [OverageHow::Debt],
        OverageHow::Dropped => [OverageHow::Dropped],
    ];
    of_each(hows, |how| {
        n.restart();
        let ignored = n.list(Numbers::size);
        let raised = n.list(Numbers::size);
        let overages = vec![OverageTaken { limit: n.limit(), amount: n.u64(), how }];
        let charges =
            n.list(|n| Charge { limit: n.limit(), cost: n.u64(), paid: n.u64(), debt: n.u64(), uncollected: n.u64() });
        Settlement { ignored, raised, overages, charges, is_extended: how == OverageHow::Debt }
    })
}

fn completes(n: &mut Numbers) -> Vec<CompleteOutcome> {
    every![n:
        CompleteOutcome::Invalid(_) => of_each(invalid_parts(n), CompleteOutcome::Invalid),
        CompleteOutcome::StaleLimit { .. } => [CompleteOutcome::StaleLimit { actual: n.size() }],
        CompleteOutcome::OwnedByGateway => [CompleteOutcome::OwnedByGateway],
        CompleteOutcome::OtherCall => [CompleteOutcome::OtherCall],
        CompleteOutcome::Before => [CompleteOutcome::Before],
        CompleteOutcome::HeldNothing => [CompleteOutcome::HeldNothing],
        CompleteOutcome::UnknownByAge => [CompleteOutcome::UnknownByAge],
        CompleteOutcome::Overloaded => [CompleteOutcome::Overloaded],
        CompleteOutcome::LeasesQuotaExceeded => [CompleteOutcome::LeasesQuotaExceeded],
        CompleteOutcome::Marked => [CompleteOutcome::Marked],
        CompleteOutcome::Completed(_) => of_each(settlements(n), CompleteOutcome::Completed),
    ]
}

fn bytes(outcome: &Outcome) -> Vec<u8> {
    let mut bytes = Vec::new();
    outcome.encode(&mut bytes);
    bytes
}

fn any_numbers() -> impl Strategy<Value = Numbers> {
    let number = prop_oneof![any::<u64>(), 0..40_u64, Just(u64::MAX), Just(u64::from(u32::MAX))];
    vec(number, 1..60).prop_map(|all| Numbers { all, next: 0 })
}

#[test]
fn every_outcome_comes_back_and_no_part_of_its_bytes_is_one() {
    for outcome in outcomes(&mut Numbers::counting()) {
        let mut bytes = bytes(&outcome);
        let length = bytes.len();
        for shorter in 0..length {
            assert!(Outcome::decode(&bytes[..shorter]).is_err(), "{shorter} bytes of {outcome:?}");
        }
        bytes.push(0);
        assert_eq!(Outcome::decode(&bytes), Ok((outcome, length)));
    }
}

/// Nodes of one cluster may run different builds during an upgrade. Add a line for a new variant; do not change one.
#[test]
fn the_bytes_of_an_outcome_never_change() {
    let outcomes = outcomes(&mut Numbers::counting());
    let lines: Vec<&str> = include_str!("golden.hex").lines().collect();
    for (outcome, line) in outcomes.iter().zip(&lines) {
        let hex: String = bytes(outcome).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, *line, "{outcome:?}");
    }
    assert_eq!(outcomes.len(), lines.len());
}

#[test]
fn no_two_outcomes_have_the_same_bytes() {
    let mut all: Vec<Vec<u8>> = outcomes(&mut Numbers::counting()).iter().map(bytes).collect();
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
}

proptest! {
    #[test]
    fn an_outcome_of_any_numbers_comes_back_from_its_bytes(mut numbers in any_numbers()) {
        for outcome in outcomes(&mut numbers) {
            let mut bytes = bytes(&outcome);
            let length = bytes.len();
            bytes.extend_from_slice(&[1, 2, 3]);
            prop_assert_eq!(Outcome::decode(&bytes), Ok((outcome, length)));
        }
    }

    #[test]
    fn bytes_that_are_an_outcome_are_its_only_bytes(
        mut numbers in any_numbers(),
        position in any::<prop::sample::Index>(),
        byte in prop_oneof![any::<u8>(), 0..16_u8],
    ) {
        for outcome in outcomes(&mut numbers) {
            let mut damaged = bytes(&outcome);
            let position = position.index(damaged.len());
            damaged[position] = byte;
            if let Ok((other, taken)) = Outcome::decode(&damaged) {
                prop_assert_eq!(&bytes(&other)[..], &damaged[..taken]);
            }
        }
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(
        tags in (0..8_u8, 0..16_u8, 0..16_u8),
        mut noise in vec(prop_oneof![any::<u8>(), 0..4_u8], 0..300),
    ) {
        _ = Outcome::decode(&noise);
        noise.splice(0..0, [tags.0, tags.1, tags.2]);
        if let Ok((outcome, taken)) = Outcome::decode(&noise) {
            prop_assert_eq!(&bytes(&outcome)[..], &noise[..taken]);
        }
    }
}

fn refusal(bytes: &[u8]) -> String {
    Outcome::decode(bytes).unwrap_err().to_string()
}

/// An oversized list is refused by its count, before anything is allocated.
#[test]
fn a_list_is_as_long_as_a_lease_can_make_it_and_no_longer() {
    let with = |count: usize| -> [Outcome; 4] {
        let limit = LimitId { slot: 7, generation: 1 };
        let overage = OverageTaken { limit, amount: 1, how: OverageHow::Debt };
        let charge = Charge { limit, cost: 1, paid: 2, debt: 3, uncollected: 4 };
        let denial = Denial { retry_after_ms: 1, limited_by: vec![7; count], never: false };
        let [ignored, overages, charges] = [
            Settlement { ignored: vec![1; count], ..Settlement::default() },
            Settlement { overages: vec![overage; count], ..Settlement::default() },
            Settlement { charges: vec![charge; count], ..Settlement::default() },
        ]
        .map(|settlement| Outcome::Complete(CompleteOutcome::Completed(settlement)));
        [Outcome::Reserve(ReserveOutcome::Denied(denial)), ignored, overages, charges]
    };
    for outcome in with(REQUIREMENTS_MAX) {
        let bytes = bytes(&outcome);
        assert_eq!(Outcome::decode(&bytes), Ok((outcome, bytes.len())));
    }
    for outcome in with(REQUIREMENTS_MAX + 1) {
        assert_eq!(refusal(&bytes(&outcome)), "it cannot be decoded: it lists more than a lease can have");
    }
    for count in [33, 1 << 16, u32::MAX] {
        let bytes = [&[4, 7][..], &count.to_le_bytes()].concat();
        assert_eq!(refusal(&bytes), "it cannot be decoded: it lists more than a lease can have");
    }
}

#[test]
fn a_receipt_has_as_many_results_as_a_transaction_can_have_and_no_more() {
    let with = |count: usize| {
        let mut n = Numbers::counting();
        let results = results(&mut n).into_iter().cycle().take(count).collect();
        Outcome::Write(WriteOutcome::Committed(receipt(&mut n, results)))
    };
    let whole = bytes(&with(OPERATIONS_MAX));
    assert_eq!(Outcome::decode(&whole), Ok((with(OPERATIONS_MAX), whole.len())));
    assert_eq!(refusal(&bytes(&with(OPERATIONS_MAX + 1))), "it cannot be decoded: it has too many results");
    let mut hostile = bytes(&with(0));
    let end = hostile.len();
    hostile[end - 4..].fill(0xff);
    assert_eq!(refusal(&hostile), "it cannot be decoded: it has too many results");
}

#[test]
fn what_is_no_outcome_is_refused_by_what_is_wrong_with_it() {
    for (bytes, why) in [
        (&[][..], "it ends too early"),
        (&[0], "its tag is unknown"),
        (&[8, 0, 11], "its setting is unknown"),
        (&[10], "its tag is unknown"),
        (&[9, 18], "what became of its extension is unknown"),
        (&[9, 1, 4], "what is wrong with its extension is unknown"),
        (&[1, 4], "what became of its namespace is unknown"),
        (&[2, 10], "what became of its limit is unknown"),
        (&[2, 1, 11], "what is wrong with its definition is unknown"),
        (&[2, 1, 3, 3], "the field of its definition is unknown"),
        (&[2, 1, 9, 4], "the field of its definition is unknown"),
        (&[3, 23], "what became of its reserve is unknown"),
        (&[3, 1, 6], "what is wrong with its parts is unknown"),
        (&[3, 14, 0, 0, 0, 0, 0, 0, 1, 0], "a time is later than there are times"),
        (&[3, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2], "a flag is neither 0 nor 1"),
        (&[3, 13, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5], "why there was no credit is unknown"),
        (&[4, 12], "what became of its complete is unknown"),
        (&[5, 4], "what became of its transaction is unknown"),
        (&[5, 1, 18], "why its transaction was refused is unknown"),
        (&[5, 1, 1, 7], "what is wrong with its transaction is unknown"),
        (&[5, 1, 1, 4, 0, 0, 0, 0, 0, 0, 0, 0, 19], "what is wrong with its operation is unknown"),
    ] {
        assert_eq!(refusal(bytes), format!("it cannot be decoded: {why}"), "{bytes:?}");
    }
}
