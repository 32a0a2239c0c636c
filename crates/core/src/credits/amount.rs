//! Credit amounts as decimal text, which no client rounds.

/// Parses an amount: at least 1, at most `i128::MAX`, digits only, no leading zero.
#[must_use]
pub fn parse_credit(digits: &str) -> Option<u128> {
    let is_plain = !digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit());
    let amount: u128 = is_plain.then(|| digits.parse().ok()).flatten()?;
    i128::try_from(amount).is_ok().then_some(amount)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_an_amount_and_nothing_else_is() {
        assert_eq!(parse_credit("1"), Some(1));
        assert_eq!(parse_credit("170141183460469231731687303715884105727"), Some(i128::MAX as u128));
        for text in ["", "0", "01", "-1", "+1", " 1", "1.0", "1e3", "170141183460469231731687303715884105728"] {
            assert_eq!(parse_credit(text), None, "{text:?}");
        }
    }
}
