//! The arithmetic against a calendar that is counted day by day.

use super::super::definition::{Period, UTC_OFFSET_MINUTES};
use super::{Calendar, DAY_SECONDS, HOUR_SECONDS};
use crate::time::UnixMs;

/// A day, counted from 1970-01-01.
#[derive(Clone, Copy)]
struct Day {
    year: u32,
    month: usize,
    day: u32,
    /// 0 is Monday.
    weekday: u32,
}

impl Day {
    /// The last day of 1969: 1970-01-01 was a Thursday.
    const BEFORE_EPOCH: Day = Day { year: 1969, month: 12, day: 31, weekday: 2 };

    fn days_of_month(self) -> u32 {
        let is_leap = self.year.is_multiple_of(400) || self.year.is_multiple_of(4) && !self.year.is_multiple_of(100);
        let february = if is_leap { 29 } else { 28 };
        [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][self.month - 1]
    }

    fn next(self) -> Day {
        let weekday = (self.weekday + 1) % 7;
        match (self.day == self.days_of_month(), self.month) {
            (false, _) => Day { day: self.day + 1, weekday, ..self },
            (true, 12) => Day { year: self.year + 1, month: 1, day: 1, weekday },
            (true, month) => Day { month: month + 1, day: 1, weekday, ..self },
        }
    }

    /// The days from this one to the first day of the next period.
    fn days_left(self, period: Period) -> i64 {
        match period {
            Period::Hour => panic!("an hour is not counted in days"),
            Period::Day => 1,
            Period::Week => i64::from(7 - self.weekday),
            Period::Month => i64::from(self.days_of_month() - self.day + 1),
        }
    }
}

fn end(period: Period, utc_offset_minutes: i16, second: i64) -> i64 {
    let at = UnixMs::new(u64::try_from(second).unwrap() * 1_000 + 999);
    let calendar = Calendar { period, utc_offset_minutes };
    let end = calendar.end(at);
    assert!(end > at, "{calendar:?} ends at {end:?}, before {at:?}");
    assert_eq!(end.get() % 1_000, 0);
    assert_eq!(u64::from(calendar.seconds_left(at)), end.get() / 1_000 - at.get() / 1_000);
    assert!(calendar.seconds_left(at) <= period.seconds_max());
    assert_eq!(calendar.periods_between(at, end), 1, "{calendar:?} at {at:?}");
    assert_eq!(calendar.periods_between(at, UnixMs::new(end.get() - 1)), 0, "{calendar:?} at {at:?}");
    i64::try_from(end.get() / 1_000).unwrap()
}

#[test]
fn every_day_until_the_year_10889_ends_its_periods_as_counted() {
    let last = i64::try_from(UnixMs::MAX.get()).unwrap() / 1_000 / DAY_SECONDS - 32;
    let mut day = Day::BEFORE_EPOCH.next();
    for number in 0..last {
        for period in [Period::Day, Period::Week, Period::Month] {
            let counted = (number + day.days_left(period)) * DAY_SECONDS;
            assert_eq!(end(period, 0, number * DAY_SECONDS), counted, "{period} of day {number}");
            assert_eq!(end(period, 0, (number + 1) * DAY_SECONDS - 1), counted, "{period} of day {number}");
        }
        day = day.next();
    }
    assert_eq!(day.year, 10_889);
}

#[test]
fn every_offset_moves_the_ends_around_each_midnight_of_a_leap_year() {
    // 2023-12-25, two weeks before a month, a year and a week end together with the year.
    let first = 19_716;
    let days: Vec<Day> = std::iter::successors(Some(Day::BEFORE_EPOCH.next()), |day| Some(day.next()))
        .skip(first - 1)
        .take(450)
        .collect();
    assert_eq!((days[1].year, days[1].month, days[1].day, days[1].weekday), (2023, 12, 25, 0));
    for offset in UTC_OFFSET_MINUTES {
        for (number, day) in days.iter().enumerate() {
            let midnight = i64::try_from(first - 1 + number).unwrap() * DAY_SECONDS - i64::from(offset) * 60;
            for second in [midnight, midnight + DAY_SECONDS - 1] {
                for period in [Period::Day, Period::Week, Period::Month] {
                    let counted = midnight + day.days_left(period) * DAY_SECONDS;
                    assert_eq!(end(period, offset, second), counted, "{period} at {second} with {offset}");
                }
                let hour = midnight + (second - midnight) / HOUR_SECONDS * HOUR_SECONDS;
                assert_eq!(end(Period::Hour, offset, second), hour + HOUR_SECONDS);
            }
        }
    }
}

#[test]
fn every_second_of_two_days_belongs_to_its_hour() {
    for offset in [-720, -570, -1, 0, 1, 330, 345, 840] {
        for second in DAY_SECONDS..3 * DAY_SECONDS {
            let mut ends = second + 1;
            while (ends + i64::from(offset) * 60) % HOUR_SECONDS != 0 {
                ends += 1;
            }
            if second % 97 == 0 || ends == second + 1 {
                assert_eq!(end(Period::Hour, offset, second), ends);
            }
        }
    }
}

#[test]
fn known_months_end_when_they_do() {
    for (second, offset, ends) in [
        // 2024-02-28T23:59:59Z: a leap year.
        (1_709_164_799, 0, 1_709_251_200),
        // 2023-02-28T12:00:00Z: not one.
        (1_677_585_600, 0, 1_677_628_800),
        // 2100-02-28T00:00:00Z: not one either.
        (4_107_456_000, 0, 4_107_542_400),
        // 2024-01-31T15:00:00Z is February in Tokyo, which ends at 15:00Z on 2024-02-29.
        (1_706_713_200, 540, 1_709_218_800),
        // 2024-02-01T04:59:59Z is January in New York (winter), for one more second.
        (1_706_763_599, -300, 1_706_763_600),
    ] {
        assert_eq!(end(Period::Month, offset, second), ends, "{second} with {offset}");
    }
}

#[test]
fn the_first_and_the_last_times_have_a_period() {
    for period in Period::ALL {
        for offset in UTC_OFFSET_MINUTES {
            let calendar = Calendar { period, utc_offset_minutes: offset };
            assert!(calendar.end(UnixMs::default()) > UnixMs::default());
            assert!(calendar.end(crate::TIME_MAX) > crate::TIME_MAX);
        }
    }
}
