//! The reasons why a command is malformed.

use super::{Result, put_size, size};
use crate::book::codec::CodecError;
use crate::book::{InvalidOperation, InvalidParts, InvalidWrite};
use crate::id::ClientId;
use crate::limits::{DefinitionError, HoldField, NameField};
use crate::wire::{Bytes, Put};

const PARTS_UNKNOWN_NAMESPACE: u8 = 1;
const PARTS_EMPTY: u8 = 2;
const PARTS_TOO_MANY: u8 = 3;
const PARTS_AMOUNT_ZERO: u8 = 4;
const PARTS_DUPLICATE: u8 = 5;

const WRITE_UNKNOWN_NAMESPACE: u8 = 1;
const WRITE_TOO_MANY_OPERATIONS: u8 = 2;
const WRITE_SEQUENCE: u8 = 3;
const WRITE_OPERATION: u8 = 4;
const WRITE_CLIENT_CLAIMED: u8 = 5;
const WRITE_CLIENT_RETIRED: u8 = 6;

const OPERATION_DEFINITION: u8 = 1;
const OPERATION_LIMIT_KIND_DIFFERS: u8 = 2;
const OPERATION_TOO_MANY_LIMITS: u8 = 3;
const OPERATION_TOO_MANY_VAULTS: u8 = 4;
const OPERATION_TOO_MANY_ACCOUNTS: u8 = 5;
const OPERATION_TOO_MANY_ASSETS: u8 = 6;
const OPERATION_AMOUNT_ZERO: u8 = 7;
const OPERATION_OUT_OF_RANGE: u8 = 8;
const OPERATION_MEMO_TOO_LONG: u8 = 9;
const OPERATION_TO_ITSELF: u8 = 10;
const OPERATION_NEEDS_ADMIN: u8 = 11;
const OPERATION_UNKNOWN_CLIENT: u8 = 12;
const OPERATION_CREDIT_EXTERNAL: u8 = 13;
const OPERATION_TOO_MANY_GRANTS: u8 = 14;
const OPERATION_EXPIRY_PAST: u8 = 15;
const OPERATION_CARRY_OVER_ZERO: u8 = 17;
const OPERATION_PLAN_UTC_OFFSET: u8 = 18;

const DEFINITION_CAPACITY_ZERO: u8 = 1;
const DEFINITION_CAPACITY_OF_CREDIT: u8 = 2;
const DEFINITION_HOLD_SECONDS: u8 = 3;
const DEFINITION_UNIT_TOO_LONG: u8 = 4;
const DEFINITION_DESCRIPTION_TOO_LONG: u8 = 5;
const DEFINITION_UTC_OFFSET: u8 = 6;
const DEFINITION_SHARED_CREDIT: u8 = 7;
const DEFINITION_SHADOW_CREDIT: u8 = 8;
const DEFINITION_PLACEHOLDER: u8 = 9;

pub(super) fn put_invalid_parts(out: &mut Vec<u8>, why: InvalidParts) {
    match why {
        InvalidParts::UnknownNamespace => out.put_u8(PARTS_UNKNOWN_NAMESPACE),
        InvalidParts::Empty => out.put_u8(PARTS_EMPTY),
        InvalidParts::TooMany { found } => {
            out.put_u8(PARTS_TOO_MANY);
            put_size(out, found);
        }
        InvalidParts::AmountZero { part } => {
            out.put_u8(PARTS_AMOUNT_ZERO);
            put_size(out, part);
        }
        InvalidParts::Duplicate { part } => {
            out.put_u8(PARTS_DUPLICATE);
            put_size(out, part);
        }
    }
}

pub(super) fn invalid_parts(input: &mut Bytes<'_>) -> Result<InvalidParts> {
    Ok(match input.u8()? {
        PARTS_UNKNOWN_NAMESPACE => InvalidParts::UnknownNamespace,
        PARTS_EMPTY => InvalidParts::Empty,
        PARTS_TOO_MANY => InvalidParts::TooMany { found: size(input)? },
        PARTS_AMOUNT_ZERO => InvalidParts::AmountZero { part: size(input)? },
        PARTS_DUPLICATE => InvalidParts::Duplicate { part: size(input)? },
        _ => return Err(CodecError::Malformed("what is wrong with its parts is unknown")),
    })
}

pub(super) fn put_invalid_write(out: &mut Vec<u8>, why: &InvalidWrite) {
    match why {
        InvalidWrite::UnknownNamespace => out.put_u8(WRITE_UNKNOWN_NAMESPACE),
        InvalidWrite::TooManyOperations { found } => {
            out.put_u8(WRITE_TOO_MANY_OPERATIONS);
            put_size(out, *found);
        }
        InvalidWrite::Sequence { found } => {
            out.put_u8(WRITE_SEQUENCE);
            out.put_u64(*found);
        }
        InvalidWrite::ClientClaimed { client } => {
            out.put_u8(WRITE_CLIENT_CLAIMED);
            out.put_text(client.as_str());
        }
        InvalidWrite::ClientRetired { client } => {
            out.put_u8(WRITE_CLIENT_RETIRED);
            out.put_text(client.as_str());
        }
        InvalidWrite::Operation { operation, why } => {
            out.put_u8(WRITE_OPERATION);
            put_size(out, *operation);
            put_invalid_operation(out, why);
        }
    }
}

pub(super) fn invalid_write(input: &mut Bytes<'_>) -> Result<InvalidWrite> {
    Ok(match input.u8()? {
        WRITE_UNKNOWN_NAMESPACE => InvalidWrite::UnknownNamespace,
        WRITE_TOO_MANY_OPERATIONS => InvalidWrite::TooManyOperations { found: size(input)? },
        WRITE_SEQUENCE => InvalidWrite::Sequence { found: input.u64()? },
        WRITE_CLIENT_CLAIMED => InvalidWrite::ClientClaimed { client: ClientId::new(input.text()?)? },
        WRITE_CLIENT_RETIRED => InvalidWrite::ClientRetired { client: ClientId::new(input.text()?)? },
        WRITE_OPERATION => InvalidWrite::Operation { operation: size(input)?, why: invalid_operation(input)? },
        _ => return Err(CodecError::Malformed("what is wrong with its transaction is unknown")),
    })
}

fn put_invalid_operation(out: &mut Vec<u8>, why: &InvalidOperation) {
    match why {
        InvalidOperation::Definition(error) => {
            out.put_u8(OPERATION_DEFINITION);
            put_definition_error(out, error);
        }
        InvalidOperation::LimitKindDiffers => out.put_u8(OPERATION_LIMIT_KIND_DIFFERS),
        InvalidOperation::TooManyLimits => out.put_u8(OPERATION_TOO_MANY_LIMITS),
        InvalidOperation::TooManyVaults => out.put_u8(OPERATION_TOO_MANY_VAULTS),
        InvalidOperation::TooManyAccounts => out.put_u8(OPERATION_TOO_MANY_ACCOUNTS),
        InvalidOperation::TooManyAssets => out.put_u8(OPERATION_TOO_MANY_ASSETS),
        InvalidOperation::TooManyGrants => out.put_u8(OPERATION_TOO_MANY_GRANTS),
        InvalidOperation::ExpiryPast => out.put_u8(OPERATION_EXPIRY_PAST),
        InvalidOperation::AmountZero => out.put_u8(OPERATION_AMOUNT_ZERO),
        InvalidOperation::CarryOverZero => out.put_u8(OPERATION_CARRY_OVER_ZERO),
        InvalidOperation::PlanUtcOffset { found } => {
            out.put_u8(OPERATION_PLAN_UTC_OFFSET);
            out.put_u16(found.cast_unsigned());
        }
        InvalidOperation::OutOfRange => out.put_u8(OPERATION_OUT_OF_RANGE),
        InvalidOperation::MemoTooLong { found } => {
            out.put_u8(OPERATION_MEMO_TOO_LONG);
            put_size(out, *found);
        }
        InvalidOperation::ToItself => out.put_u8(OPERATION_TO_ITSELF),
        InvalidOperation::NeedsAdmin => out.put_u8(OPERATION_NEEDS_ADMIN),
        InvalidOperation::UnknownClient => out.put_u8(OPERATION_UNKNOWN_CLIENT),
        InvalidOperation::CreditExternal => out.put_u8(OPERATION_CREDIT_EXTERNAL),
    }
}

fn invalid_operation(input: &mut Bytes<'_>) -> Result<InvalidOperation> {
    Ok(match input.u8()? {
        OPERATION_DEFINITION => InvalidOperation::Definition(definition_error(input)?),
        OPERATION_LIMIT_KIND_DIFFERS => InvalidOperation::LimitKindDiffers,
        OPERATION_TOO_MANY_LIMITS => InvalidOperation::TooManyLimits,
        OPERATION_TOO_MANY_VAULTS => InvalidOperation::TooManyVaults,
        OPERATION_TOO_MANY_ACCOUNTS => InvalidOperation::TooManyAccounts,
        OPERATION_TOO_MANY_ASSETS => InvalidOperation::TooManyAssets,
        OPERATION_TOO_MANY_GRANTS => InvalidOperation::TooManyGrants,
        OPERATION_EXPIRY_PAST => InvalidOperation::ExpiryPast,
        OPERATION_AMOUNT_ZERO => InvalidOperation::AmountZero,
        OPERATION_CARRY_OVER_ZERO => InvalidOperation::CarryOverZero,
        OPERATION_PLAN_UTC_OFFSET => InvalidOperation::PlanUtcOffset { found: input.u16()?.cast_signed() },
        OPERATION_OUT_OF_RANGE => InvalidOperation::OutOfRange,
        OPERATION_MEMO_TOO_LONG => InvalidOperation::MemoTooLong { found: size(input)? },
        OPERATION_TO_ITSELF => InvalidOperation::ToItself,
        OPERATION_NEEDS_ADMIN => InvalidOperation::NeedsAdmin,
        OPERATION_UNKNOWN_CLIENT => InvalidOperation::UnknownClient,
        OPERATION_CREDIT_EXTERNAL => InvalidOperation::CreditExternal,
        _ => return Err(CodecError::Malformed("what is wrong with its operation is unknown")),
    })
}

pub(super) fn put_definition_error(out: &mut Vec<u8>, error: &DefinitionError) {
    match error {
        DefinitionError::Placeholder { field } => {
            out.put_u8(DEFINITION_PLACEHOLDER);
            out.put_u8(match field {
                NameField::Key => 1,
                NameField::Account => 2,
            });
        }
        DefinitionError::CapacityZero => out.put_u8(DEFINITION_CAPACITY_ZERO),
        DefinitionError::CapacityOfCredit { found } => {
            out.put_u8(DEFINITION_CAPACITY_OF_CREDIT);
            out.put_u64(*found);
        }
        DefinitionError::HoldSeconds { field, found } => {
            out.put_u8(DEFINITION_HOLD_SECONDS);
            out.put_u8(match field {
                HoldField::WindowSeconds => 1,
                HoldField::TimeoutSeconds => 2,
            });
            out.put_u32(*found);
        }
        DefinitionError::UtcOffset { found } => {
            out.put_u8(DEFINITION_UTC_OFFSET);
            out.put_u16(found.cast_unsigned());
        }
        DefinitionError::SharedCredit => out.put_u8(DEFINITION_SHARED_CREDIT),
        DefinitionError::ShadowCredit => out.put_u8(DEFINITION_SHADOW_CREDIT),
        DefinitionError::UnitTooLong { found } => {
            out.put_u8(DEFINITION_UNIT_TOO_LONG);
            put_size(out, *found);
        }
        DefinitionError::DescriptionTooLong { found } => {
            out.put_u8(DEFINITION_DESCRIPTION_TOO_LONG);
            put_size(out, *found);
        }
    }
}

pub(super) fn definition_error(input: &mut Bytes<'_>) -> Result<DefinitionError> {
    Ok(match input.u8()? {
        DEFINITION_CAPACITY_ZERO => DefinitionError::CapacityZero,
        DEFINITION_CAPACITY_OF_CREDIT => DefinitionError::CapacityOfCredit { found: input.u64()? },
        DEFINITION_HOLD_SECONDS => {
            let field = match input.u8()? {
                1 => HoldField::WindowSeconds,
                2 => HoldField::TimeoutSeconds,
                _ => return Err(CodecError::Malformed("the field of its definition is unknown")),
            };
            DefinitionError::HoldSeconds { field, found: input.u32()? }
        }
        DEFINITION_UTC_OFFSET => DefinitionError::UtcOffset { found: input.u16()?.cast_signed() },
        DEFINITION_SHARED_CREDIT => DefinitionError::SharedCredit,
        DEFINITION_SHADOW_CREDIT => DefinitionError::ShadowCredit,
        DEFINITION_PLACEHOLDER => match input.u8()? {
            1 => DefinitionError::Placeholder { field: NameField::Key },
            2 => DefinitionError::Placeholder { field: NameField::Account },
            _ => return Err(CodecError::Malformed("the field of its definition is unknown")),
        },
        DEFINITION_UNIT_TOO_LONG => DefinitionError::UnitTooLong { found: size(input)? },
        DEFINITION_DESCRIPTION_TOO_LONG => DefinitionError::DescriptionTooLong { found: size(input)? },
        _ => return Err(CodecError::Malformed("what is wrong with its definition is unknown")),
    })
}
