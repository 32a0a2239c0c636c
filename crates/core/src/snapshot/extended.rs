//! The records of extended leases. They follow the reservations of their lease.

use super::records::time;
use crate::book::{EXTENSIONS_MAX, REQUIREMENTS_MAX, RequirementSet};
use crate::limits::{Extended, ExtendedPart, ExtensionAnswer, Reservation};
use crate::time::UnixMs;
use crate::wire::{Bytes, Malformed, Put};

pub(super) fn put_extended(out: &mut Vec<u8>, extended: &Extended, parts: &[ExtendedPart]) {
    out.put_u32(extended.number);
    out.put_u32(extended.pending);
    out.put_u64(extended.pending_body);
    out.put_u8(extended.is_made.into());
    out.put_u64(extended.original);
    out.put_u64(extended.body);
    out.put_u64(extended.at.get());
    out.put_u32(extended.ignored.bits());
    out.put_u32(extended.above.bits());
    out.put_u8(extended.limited_by);
    out.put_u8(extended.answer as u8);
    for part in parts {
        out.put_u64(part.ends_at.get());
        out.put_u64(part.earlier);
        out.put_u64(part.earlier_ends_at.get());
        out.put_u64(part.used);
        out.put_u64(part.grown);
    }
}

/// Reads the extension of a lease with these reservations.
pub(super) fn read_extended(
    input: &mut Bytes<'_>,
    reserved_at: UnixMs,
    parts: &[Reservation],
    more: &mut Vec<ExtendedPart>,
) -> Result<Extended, Malformed> {
    let extended = Extended {
        number: input.u32()?,
        pending: input.u32()?,
        pending_body: input.u64()?,
        is_made: input.bool()?,
        original: input.u64()?,
        body: input.u64()?,
        at: time(input)?,
        ignored: RequirementSet::from_bits(input.u32()?),
        above: RequirementSet::from_bits(input.u32()?),
        limited_by: input.u8()?,
        answer: ExtensionAnswer::from_code(input.u8()?).ok_or(Malformed("the answer to an extension is unknown"))?,
    };
    let is_extended = extended.answer == ExtensionAnswer::Extended;
    let has_reports = !extended.ignored.is_empty() || !extended.above.is_empty();
    // Before the first answer there is only growth, pending or returned.
    let is_answered = extended.is_made || extended.answer.is_denial();
    let is_numbered = if is_answered { extended.number > 0 } else { extended.number == 0 };
    let is_pending = extended.pending > extended.number && extended.pending <= EXTENSIONS_MAX;
    let is_numbered = is_numbered && (is_pending || extended.pending == 0 && extended.pending_body == 0);
    let is_ranked = if extended.answer.is_denial() {
        usize::from(extended.limited_by) < REQUIREMENTS_MAX
    } else {
        extended.limited_by == 0
    };
    if extended.number > EXTENSIONS_MAX || !is_numbered || !is_ranked || has_reports && !is_extended {
        return Err(Malformed("an extension contradicts itself"));
    }
    more.clear();
    for part in parts {
        let read = ExtendedPart {
            ends_at: time(input)?,
            earlier: input.u64()?,
            earlier_ends_at: time(input)?,
            used: input.u64()?,
            grown: input.u64()?,
        };
        // Only usage of a window or period has earlier parts. Each of them took at least 1.
        let has_earlier = read.earlier > 0 && !part.is_bound();
        if read.ends_at <= reserved_at || has_earlier != (read.earlier_ends_at > reserved_at) {
            return Err(Malformed("an extended reservation contradicts itself"));
        }
        if !has_earlier && (read.earlier > 0 || read.earlier_ends_at != UnixMs::default()) {
            return Err(Malformed("an extended reservation contradicts itself"));
        }
        if read.grown > part.amount {
            return Err(Malformed("an extension added more than is reserved"));
        }
        more.push(read);
    }
    Ok(extended)
}
