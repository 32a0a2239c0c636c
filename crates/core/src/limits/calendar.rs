//! Calendar periods: the end of the period that contains a time.
//!
//! The calendar is the Gregorian one, with days of 86,400 seconds, as in Unix time.

use super::definition::Period;
use crate::time::UnixMs;

const HOUR_SECONDS: i64 = 60 * 60;
const DAY_SECONDS: i64 = 24 * HOUR_SECONDS;
/// Days from 1970-01-01, a Thursday, back to the Monday before.
const EPOCH_WEEKDAY: i64 = 3;
/// Days from 0000-03-01 to 1970-01-01. Years begin in March here, so that the leap day is the last day of a year.
const EPOCH_DAY: i64 = 719_468;
/// Days in 400 years, after which the calendar repeats.
const ERA_DAYS: i64 = 146_097;

/// The period of a calendar limit, and how far its local time is ahead of UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Calendar {
    pub(crate) period: Period,
    pub(crate) utc_offset_minutes: i16,
}

impl Calendar {
    /// The end of the period that contains `at`. It is later than `at`, and a whole second.
    pub(crate) fn end(self, at: UnixMs) -> UnixMs {
        let offset = i64::from(self.utc_offset_minutes).saturating_mul(60);
        let local = (at.get() / 1_000).cast_signed().saturating_add(offset);
        let day = local.div_euclid(DAY_SECONDS);
        let local_end = match self.period {
            Period::Hour => local.div_euclid(HOUR_SECONDS).saturating_add(1).saturating_mul(HOUR_SECONDS),
            Period::Day => day.saturating_add(1).saturating_mul(DAY_SECONDS),
            Period::Week => {
                let weekday = day.saturating_add(EPOCH_WEEKDAY).rem_euclid(7);
                day.saturating_sub(weekday).saturating_add(7).saturating_mul(DAY_SECONDS)
            }
            Period::Month => next_month(day).saturating_mul(DAY_SECONDS),
        };
        let end = u64::try_from(local_end.saturating_sub(offset)).unwrap_or(0);
        UnixMs::new(end.saturating_mul(1_000))
    }

    /// The number of periods that begin after that of `from`, up to that of `to`.
    pub(crate) fn periods_between(self, from: UnixMs, to: UnixMs) -> u64 {
        u64::try_from(self.number(to).saturating_sub(self.number(from))).unwrap_or(0)
    }

    /// The number of the period that contains `at`: consecutive periods have consecutive numbers.
    fn number(self, at: UnixMs) -> i64 {
        let offset = i64::from(self.utc_offset_minutes).saturating_mul(60);
        let local = (at.get() / 1_000).cast_signed().saturating_add(offset);
        let day = local.div_euclid(DAY_SECONDS);
        match self.period {
            Period::Hour => local.div_euclid(HOUR_SECONDS),
            Period::Day => day,
            Period::Week => day.saturating_add(EPOCH_WEEKDAY).div_euclid(7),
            Period::Month => {
                let Month { era, year, month } = Month::of(day);
                era.saturating_mul(400).saturating_add(year).saturating_mul(12).saturating_add(month)
            }
        }
    }

    /// The seconds from the second of `at` to the end of its period.
    pub(crate) fn seconds_left(self, at: UnixMs) -> u32 {
        let seconds = (self.end(at).get() / 1_000).saturating_sub(at.get() / 1_000);
        u32::try_from(seconds).unwrap_or(u32::MAX)
    }
}

/// A month of the years that begin in March.
struct Month {
    era: i64,
    /// The year of its era, from 0.
    year: i64,
    /// The month of its year, from 0.
    month: i64,
}

impl Month {
    /// The month of a day. Days count from 1970-01-01.
    fn of(day: i64) -> Month {
        let day = day.saturating_add(EPOCH_DAY);
        let (era, day) = (day.div_euclid(ERA_DAYS), day.rem_euclid(ERA_DAYS));
        // Without the leap days before it, every year has 365 days. The last day of 4, 100 and 400 years is a leap day.
        let leap_days = (day / 1_460).saturating_sub(day / 36_524).saturating_add(day / 146_096);
        let year = day.saturating_sub(leap_days) / 365;
        let day_of_year = day.saturating_sub(first_day(year));
        Month { era, year, month: day_of_year.saturating_mul(5).saturating_add(2) / 153 }
    }
}

/// The first day of the month after that of `day`. Days count from 1970-01-01.
///
/// Months from March on have 31, 30, 31, 30, 31 days, twice, and then 31 and the rest: month `m` begins on day
/// `(153 * m + 2) / 5` of its year.
fn next_month(day: i64) -> i64 {
    let Month { era, year, month } = Month::of(day);
    let start = if month == 11 {
        first_day(year.saturating_add(1))
    } else {
        let next = month.saturating_add(1).saturating_mul(153).saturating_add(2) / 5;
        first_day(year).saturating_add(next)
    };
    era.saturating_mul(ERA_DAYS).saturating_add(start).saturating_sub(EPOCH_DAY)
}

/// The first day of a year of an era.
fn first_day(year: i64) -> i64 {
    year.saturating_mul(365).saturating_add(year / 4).saturating_sub(year / 100).saturating_add(year / 400)
}

#[cfg(test)]
mod tests;
