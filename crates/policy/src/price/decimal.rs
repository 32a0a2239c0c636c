//! Decimal numbers as JSON writes them, in exact integers.

/// A decimal number of at least 0: `digits` times ten to the power of `exponent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decimal {
    digits: u128,
    exponent: i32,
}

/// The largest power of ten that a number may be written with. Prices have about -12.
const EXPONENT_MAX: i32 = 64;

impl Decimal {
    /// Parses a number of JSON, for example `2.5e-06`. `None` if it is negative, too long or not a number.
    pub(super) fn parse(text: &str) -> Option<Decimal> {
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        if whole.is_empty() || !whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let digits = format!("{whole}{fraction}").parse().ok()?;
        let exponent = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
        (-EXPONENT_MAX..=EXPONENT_MAX).contains(&exponent).then_some(Decimal { digits, exponent })
    }

    /// The number times ten to the power of `power`, if that is a whole number of 64 bits.
    pub(super) fn scaled(self, power: u32) -> Option<u64> {
        let power = self.exponent.checked_add(i32::try_from(power).ok()?)?;
        if self.digits == 0 {
            return Some(0);
        }
        let factor = 10_u128.checked_pow(power.unsigned_abs())?;
        let scaled = if power >= 0 {
            self.digits.checked_mul(factor)?
        } else {
            (self.digits.checked_rem(factor)? == 0).then(|| self.digits.checked_div(factor))??
        };
        u64::try_from(scaled).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_per_token_becomes_a_rate_per_million_exactly() {
        let rate = |text: &str| Decimal::parse(text).and_then(|price| price.scaled(12));
        for (text, expected) in [
            ("2.5e-06", Some(2_500_000)),
            ("0.0000025", Some(2_500_000)),
            ("25E-7", Some(2_500_000)),
            ("1.25e-07", Some(125_000)),
            ("1e-12", Some(1)),
            ("1.5e-12", None),
            ("1e-13", None),
            ("10e-13", Some(1)),
            ("0", Some(0)),
            ("0.0", Some(0)),
            ("0e-60", Some(0)),
            ("1", Some(1_000_000_000_000)),
            ("1e9", None),
            ("-1e-6", None),
            ("1e-999", None),
            ("\"1\"", None),
            (".5", None),
            ("", None),
            ("1e", None),
            ("null", None),
        ] {
            assert_eq!(rate(text), expected, "{text}");
        }
    }
}
