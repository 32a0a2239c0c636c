//! Calendar periods, counted from the epoch.

use earmark_core::{Kind, Period, UnixMs};

const DAY: i64 = 86_400;

/// When a reservation of this kind ends that is made at `now`.
pub fn end(kind: &Kind, now: UnixMs) -> UnixMs {
    match kind {
        Kind::Calendar { period, utc_offset_minutes } => period_end(*period, *utc_offset_minutes, now),
        Kind::Rolling { .. } | Kind::Concurrency { .. } | Kind::Credit(_) => now.plus_ms(super::lease::hold_ms(kind)),
    }
}

pub fn period_end(period: Period, utc_offset_minutes: i16, now: UnixMs) -> UnixMs {
    let ahead = i64::from(utc_offset_minutes) * 60;
    let local = i64::try_from(now.get() / 1_000).unwrap() + ahead;
    let end = match period {
        Period::Hour => boundary(local, 3_600),
        Period::Day => boundary(local, DAY),
        // 1970-01-05 was a Monday.
        Period::Week => boundary(local - 4 * DAY, 7 * DAY) + 4 * DAY,
        Period::Month => month_end(local),
    };
    UnixMs::new(u64::try_from(end - ahead).unwrap() * 1_000)
}

/// The first multiple of `length` after `at`.
fn boundary(at: i64, length: i64) -> i64 {
    at - at.rem_euclid(length) + length
}

fn month_end(local: i64) -> i64 {
    let mut end = 0;
    for year in 1970.. {
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let year_end = end + if is_leap { 366 } else { 365 } * DAY;
        if year_end <= local {
            end = year_end;
            continue;
        }
        let february = if is_leap { 29 } else { 28 };
        for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
            if end > local {
                return end;
            }
            end += days * DAY;
        }
        return end;
    }
    panic!("time has no end")
}
