//! Points in time on the command line: a date, milliseconds since 1970, or a duration back from now.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::quantity;

/// The longest duration back from now: ten years.
const AGO_SECONDS_MAX: u32 = 3_660 * 24 * 60 * 60;
/// Digits from which a number is a time in milliseconds and not a duration in seconds.
const MS_DIGITS: usize = 11;
const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

/// A clap value parser for a point in time, in milliseconds since 1970.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    if let Some(ms) = date(text) {
        return Ok(ms);
    }
    if text.len() >= MS_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().map_err(|_| format!("found {text:?}, which is too large"));
    }
    let wrong = |_| {
        format!(
            "found {text:?}, allowed are dates in UTC such as 2026-01-31, durations back from now such as 2h or 7d, and milliseconds since 1970"
        )
    };
    let seconds = quantity::seconds(AGO_SECONDS_MAX)(text).map_err(wrong)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    Ok(now.saturating_sub(u64::from(seconds).saturating_mul(1_000)))
}

/// The beginning of a day in UTC, from `YYYY-MM-DD`.
fn date(text: &str) -> Option<u64> {
    let mut parts = text.split('-').map(|part| {
        let is_plain = part.bytes().all(|byte| byte.is_ascii_digit());
        part.parse::<u64>().ok().filter(|_| is_plain)
    });
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    if parts.next().is_some() || text.len() != 10 || !(1970..=9999).contains(&year) {
        return None;
    }
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let february = if is_leap { 29 } else { 28 };
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let index = usize::try_from(month.checked_sub(1)?).ok()?;
    if day < 1 || day > *lengths.get(index)? {
        return None;
    }
    let before = year - 1;
    let leap_days = before / 4 - before / 100 + before / 400 - (1969 / 4 - 1969 / 100 + 1969 / 400);
    let days = (year - 1970) * 365 + leap_days + lengths.iter().take(index).sum::<u64>() + day - 1;
    Some(days * DAY_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_the_beginning_of_its_day_in_utc() {
        for (text, days) in [("1970-01-01", 0), ("2000-03-01", 11_017), ("2024-02-29", 19_782), ("2026-11-18", 20_775)]
        {
            assert_eq!(parse(text), Ok(days * DAY_MS), "{text}");
        }
        for text in ["2023-02-29", "2026-13-01", "2026-00-10", "2026-1-1", "1969-12-31", "2026-01-01-1", "+026-01-01"] {
            assert_eq!(date(text), None, "{text}");
        }
    }

    #[test]
    fn a_long_number_is_milliseconds_and_a_short_one_a_duration() {
        assert_eq!(parse("1700000000000"), Ok(1_700_000_000_000));
        let (hour, minutes) = (parse("1h").unwrap(), parse("60m").unwrap());
        assert!(minutes.abs_diff(hour) < 1_000 && hour > 1_700_000_000_000);
        assert!(parse("yesterday").unwrap_err().contains("2026-01-31"));
    }
}
