//! Terms of credit as bytes.

use super::{CodecError, period, time};
use crate::credits::{CarryOver, GrantTerms, Overdraft, Plan};
use crate::id::AssetName;
use crate::time::UnixMs;
use crate::wire::{Bytes, Malformed, Put};

const DENY: u8 = 1;
const ALLOW: u8 = 2;
const LIMIT: u8 = 3;

pub(crate) fn put_grant_terms(out: &mut Vec<u8>, terms: GrantTerms) {
    out.put_u8(terms.priority());
    out.put_u64(terms.expires_at().unwrap_or(UnixMs::MAX).get());
}

pub(crate) fn grant_terms(input: &mut Bytes<'_>) -> Result<GrantTerms, CodecError> {
    let priority = input.u8()?;
    Ok(GrantTerms::new(priority, Some(time(input)?)))
}

pub(crate) fn put_overdraft(out: &mut Vec<u8>, overdraft: Overdraft) {
    match overdraft {
        Overdraft::Deny => out.put_u8(DENY),
        Overdraft::Allow => out.put_u8(ALLOW),
        Overdraft::Limit(limit) => {
            out.put_u8(LIMIT);
            out.put_u64(limit);
        }
    }
}

pub(crate) fn overdraft(input: &mut Bytes<'_>) -> Result<Overdraft, Malformed> {
    match input.u8()? {
        DENY => Ok(Overdraft::Deny),
        ALLOW => Ok(Overdraft::Allow),
        LIMIT => Ok(Overdraft::Limit(input.u64()?)),
        _ => Err(Malformed("its overdraft is unknown")),
    }
}

pub(super) fn put_plan(out: &mut Vec<u8>, plan: Option<&Plan>) {
    out.put_u8(plan.is_some().into());
    let Some(plan) = plan else { return };
    out.put_text(plan.asset.as_str());
    out.put_u64(plan.amount);
    out.put_u8(plan.period as u8);
    out.put_u16(plan.utc_offset_minutes.cast_unsigned());
    put_carry_over(out, plan.carry_over);
}

pub(super) fn plan(input: &mut Bytes<'_>) -> Result<Option<Plan>, CodecError> {
    if !input.bool()? {
        return Ok(None);
    }
    Ok(Some(Plan {
        asset: AssetName::new(input.text()?)?,
        amount: input.u64()?,
        period: period(input)?,
        utc_offset_minutes: input.u16()?.cast_signed(),
        carry_over: carry_over(input)?,
    }))
}

pub(crate) fn put_carry_over(out: &mut Vec<u8>, carry_over: CarryOver) {
    match carry_over {
        CarryOver::None => out.put_u8(0),
        CarryOver::Max(max) => {
            out.put_u8(1);
            out.put_u64(max);
        }
    }
}

pub(crate) fn carry_over(input: &mut Bytes<'_>) -> Result<CarryOver, Malformed> {
    Ok(if input.bool()? { CarryOver::Max(input.u64()?) } else { CarryOver::None })
}
