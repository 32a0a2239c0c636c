//! The records of plans.

use crate::book::Book;
use crate::credits::{Account, AccountStatus, AssetId, CarryOver, PlanState, PlanTerms, State};
use crate::limits::UTC_OFFSET_MINUTES;
use crate::limits::calendar::Calendar;
use crate::limits::slab::NONE;
use crate::time::UnixMs;
use crate::wire::{Bytes, Malformed, Put, Wire};

/// All plans, ordered by account.
pub(super) fn all_plans(state: &State) -> impl Iterator<Item = &PlanState> + Send {
    let slots = (0..state.accounts.used()).map(|account| state.accounts.get(account).plan);
    slots.filter(|slot| *slot != NONE).map(|slot| state.plans.get(slot))
}

pub(super) fn put_plan(out: &mut Vec<u8>, plan: &PlanState) {
    out.put_u32(plan.account);
    out.put_u8(plan.terms.is_some().into());
    if let Some(terms) = plan.terms {
        out.put_u16(terms.asset.0);
        out.put_u64(terms.amount);
        out.put_u8(terms.calendar.period as u8);
        out.put_u16(terms.calendar.utc_offset_minutes.cast_unsigned());
        terms.carry_over.write(out);
    }
    // No period ends at the epoch, so 0 stands for a plan without an issued period.
    out.put_u64(plan.issued_until.map_or(0, UnixMs::get));
    out.put_u64(plan.next_try.get());
}

pub(super) fn read_plan(book: &mut Book, last: &mut Option<u32>, input: &mut Bytes<'_>) -> Result<(), Malformed> {
    let account = input.u32()?;
    let state = &book.credits.state;
    let is_live = |account: &Account| account.name.is_some() && account.standing != AccountStatus::Closed;
    if account >= state.accounts.used() || !is_live(state.accounts.get(account)) {
        return Err(Malformed("a plan is of no account, or of a closed one"));
    }
    if last.replace(account) >= Some(account) {
        return Err(Malformed("plans are doubled or out of order"));
    }
    let terms = if input.bool()? { Some(read_terms(input)?) } else { None };
    let has_balance = |terms: PlanTerms| state.balance(account, terms.asset).is_some();
    if !terms.is_none_or(has_balance) {
        return Err(Malformed("a plan is of no balance"));
    }
    let (until, next_try) = (input.u64()?, input.u64()?);
    if next_try < until || next_try >= UnixMs::MAX.get() {
        return Err(Malformed("the time of a plan is out of bounds"));
    }
    let issued_until = (until > 0).then(|| UnixMs::new(until));
    if terms.is_none() && issued_until.is_none() {
        return Err(Malformed("a plan was removed before it began"));
    }
    let plan = PlanState { account, terms, issued_until, next_try: UnixMs::new(next_try), ..PlanState::default() };
    book.credits.add_plan(plan);
    Ok(())
}

fn read_terms(input: &mut Bytes<'_>) -> Result<PlanTerms, Malformed> {
    let (asset, amount) = (AssetId(input.u16()?), input.u64()?);
    let period = Wire::read(input)?;
    let utc_offset_minutes = input.u16()?.cast_signed();
    let carry_over = Wire::read(input)?;
    let is_sound = amount > 0 && carry_over != CarryOver::Max(0) && UTC_OFFSET_MINUTES.contains(&utc_offset_minutes);
    if !is_sound {
        return Err(Malformed("the terms of a plan are out of bounds"));
    }
    Ok(PlanTerms { asset, amount, calendar: Calendar { period, utc_offset_minutes }, carry_over })
}
