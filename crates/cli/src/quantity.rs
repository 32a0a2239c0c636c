//! Durations and amounts on the command line: `90`, `60s`, `1m`, `2h`, `7d` and `1500`, `60k`, `1.5m`.

use std::time::Duration;

use earmark_node::DiskReserve;

const SECOND_UNITS: [(&str, u64); 5] = [("", 1), ("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400)];
const MILLISECOND_UNITS: [(&str, u64); 5] = [("", 1_000), ("s", 1_000), ("ms", 1), ("m", 60_000), ("h", 3_600_000)];
const SIZE_UNITS: [(&str, u64); 5] = [("", 1), ("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30), ("T", 1 << 40)];
const AMOUNT_UNITS: [(&str, u64); 3] = [("", 1), ("k", 1_000), ("m", 1_000_000)];

/// A clap value parser for a duration of 1 to `max` seconds.
pub(crate) fn seconds(max: u32) -> impl Fn(&str) -> Result<u32, String> + Clone {
    move |text| {
        let found = parse(text, &SECOND_UNITS).and_then(|seconds| u32::try_from(seconds).ok());
        found.filter(|seconds| (1..=max).contains(seconds)).ok_or_else(|| {
            let most = crate::output::seconds(max.into());
            format!("found {text:?}, allowed are 1 s to {most}, such as 90, 60s or 1m")
        })
    }
}

/// A clap value parser for a duration of up to `max` seconds, in milliseconds.
pub(crate) fn duration(max: u32) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| {
        let found = parse(text, &MILLISECOND_UNITS).map(Duration::from_millis);
        found.filter(|found| !found.is_zero() && *found <= Duration::from_secs(max.into())).ok_or_else(|| {
            let most = crate::output::seconds(max.into());
            format!("found {text:?}, allowed are durations up to {most}, such as 10, 0.5 or 1m")
        })
    }
}

/// A size in bytes, such as 512M.
pub(crate) fn size(text: &str) -> Option<u64> {
    parse(text, &SIZE_UNITS)
}

/// A clap value parser for the space to keep free: a size, or a percentage of the disk.
pub(crate) fn disk_reserve(text: &str) -> Result<DiskReserve, String> {
    let found = match text.strip_suffix('%') {
        Some(percent) => percent.parse().ok().filter(|percent| *percent <= 90).map(DiskReserve::Percent),
        None => parse(text, &SIZE_UNITS).map(DiskReserve::Bytes),
    };
    found.ok_or_else(|| format!("found {text:?}, allowed are sizes such as 0, 512M or 2G, and 0% to 90%"))
}

/// Parses an amount of at least `min`.
pub(crate) fn amount(text: &str, min: u64) -> Result<u64, String> {
    parse(text, &AMOUNT_UNITS)
        .filter(|amount| *amount >= min)
        .ok_or_else(|| format!("found {text:?}, allowed are whole numbers from {min}, such as 1500, 60k or 1.5m"))
}

/// A clap value parser for a whole number of at least 1.
pub(crate) fn positive(text: &str) -> Result<u64, String> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let found = text.parse().ok().filter(|number| is_plain && *number > 0);
    found.ok_or_else(|| format!("found {text:?}, allowed are whole numbers from 1"))
}

/// A decimal number with a unit. `None` if it is malformed, too large or not a whole number of base units.
fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let split = text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let (_, size) = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let scaled = fraction.parse::<u64>().ok()?.checked_mul(*size)?;
    let scale = 10_u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let part = scaled.is_multiple_of(scale).then_some(scaled / scale)?;
    whole.parse::<u64>().ok()?.checked_mul(*size)?.checked_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_reserve_is_a_size_or_a_percentage() {
        for (text, expected) in [
            ("0", DiskReserve::Bytes(0)),
            ("1.5G", DiskReserve::Bytes(3 << 29)),
            ("512m", DiskReserve::Bytes(512 << 20)),
            ("5%", DiskReserve::Percent(5)),
        ] {
            assert_eq!(disk_reserve(text), Ok(expected), "{text}");
        }
        for text in ["", "5", "91%", "-1%", "1X", "%"] {
            assert_eq!(disk_reserve(text).is_ok(), text == "5", "{text}");
        }
    }

    #[test]
    fn a_duration_is_seconds_or_has_a_unit() {
        let parse = seconds(366 * 86_400);
        for (text, expected) in [
            ("90", 90),
            ("60s", 60),
            ("1m", 60),
            ("1.5m", 90),
            ("2h", 7_200),
            ("2H", 7_200),
            ("7d", 604_800),
            ("366d", 366 * 86_400),
        ] {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
        assert_eq!(duration(3_600)("0.2"), Ok(Duration::from_millis(200)));
        assert_eq!(duration(3_600)("1h"), Ok(Duration::from_secs(3_600)));
        assert!(duration(3_600)("0").is_err() && duration(3_600)("61m").is_err());
        for text in [
            "",
            "0",
            "0m",
            "1x",
            "m",
            "1m30",
            "-1",
            "+1",
            "1 m",
            "1.m",
            ".5m",
            "1.0001m",
            "367d",
            "99999999999999999999",
        ] {
            let message = format!("found {text:?}, allowed are 1 s to 366 d, such as 90, 60s or 1m");
            assert_eq!(parse(text), Err(message), "{text}");
        }
    }

    #[test]
    fn an_amount_may_be_in_thousands_or_millions() {
        for (text, expected) in
            [("0", 0), ("1500", 1_500), ("60k", 60_000), ("60K", 60_000), ("1.5m", 1_500_000), ("0.25k", 250)]
        {
            assert_eq!(amount(text, 0), Ok(expected), "{text}");
        }
        assert_eq!(amount(&u64::MAX.to_string(), 1), Ok(u64::MAX));
        for text in
            ["0", "", "-1", "+1", "1.5", "1.0001k", "k", "60kb", "60s", "18446744073709551616", "18446744073709551615k"]
        {
            let message = format!("found {text:?}, allowed are whole numbers from 1, such as 1500, 60k or 1.5m");
            assert_eq!(amount(text, 1), Err(message), "{text}");
        }
    }

    #[test]
    fn a_sequence_number_counts_from_one() {
        assert_eq!(positive("7"), Ok(7));
        for text in ["0", "", "+7", "7k", "1.0"] {
            assert_eq!(positive(text), Err(format!("found {text:?}, allowed are whole numbers from 1")));
        }
    }
}
