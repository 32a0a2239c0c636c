//! Sort keys of 64 bits for amounts of 128 bits.

/// Below this the sort key equals the amount, so sums of sort keys are exact.
pub(super) const EXACT: u128 = 1 << 62;

/// The sort key of an amount. From [`EXACT`] on it is approximate: the power of two and the next 55 bits.
pub(super) fn order(amount: i128) -> i64 {
    let size = amount.unsigned_abs();
    let rank = match size.checked_ilog2() {
        Some(power) if size >= EXACT => {
            let power = u128::from(power);
            let fraction = (size >> (power.saturating_sub(55))) & ((1 << 55) - 1);
            EXACT.saturating_add(power.saturating_sub(62) << 55).saturating_add(fraction)
        }
        _ => size,
    };
    let rank = i64::try_from(rank).unwrap_or(i64::MAX);
    if amount < 0 { rank.saturating_neg() } else { rank }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_amounts_is_kept_up_to_the_bounds() {
        let mut amounts = vec![0_i128, 1, 9, 10, i128::MAX, i128::MIN];
        for power in 1..127 {
            let amount = 1_i128 << power;
            amounts.extend([amount - 1, amount, amount + amount / 2, 1 - amount, -amount]);
        }
        amounts.sort_unstable();
        amounts.dedup();
        for pair in amounts.windows(2) {
            assert!(order(pair[0]) <= order(pair[1]), "{pair:?}");
            let is_far = pair[1].abs_diff(pair[0]) > pair[0].unsigned_abs() >> 50;
            assert!(!is_far || order(pair[0]) < order(pair[1]), "{pair:?}");
        }
        for amount in [1, -1, EXACT as i128 - 1, 1 - EXACT as i128] {
            assert_eq!(i128::from(order(amount)), amount);
        }
        assert_eq!(order(i128::MAX), -order(-i128::MAX));
    }
}
