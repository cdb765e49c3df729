//! The upper limit of a target's share of the load.

/// The limit as a multiple of a target's even share of the load, in millionths.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadFactor(u64);

const MILLION: u64 = 1_000_000;

impl LoadFactor {
    /// Creates `1 + epsilon`. A value that is not a number, or below 0, counts as 0: even shares.
    pub(super) fn above_even(epsilon: f64) -> Self {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to what fits"
        )]
        let epsilon = (epsilon * MILLION as f64).round().clamp(0.0, 1e15) as u64;
        Self(MILLION + epsilon)
    }

    /// Returns the most requests that a target may have in flight, the new one included, when all
    /// `targets` have `in_flight` without it.
    pub(super) fn cap(self, in_flight: u64, targets: usize) -> u64 {
        let share = u128::from(self.0) * (u128::from(in_flight) + 1);
        u64::try_from(share.div_ceil(u128::from(MILLION) * targets.max(1) as u128))
            .unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("CK17")]
    fn the_cap_is_computed_in_millionths_without_rounding_errors() {
        let cap =
            |epsilon, in_flight, targets| LoadFactor::above_even(epsilon).cap(in_flight, targets);
        // In floating point 1.1 * 50 is a little above 55, and its fifth rounds up to 12.
        assert_eq!(((1.0f64 + 0.1) * 50.0 / 5.0).ceil(), 12.0);
        assert_eq!(
            (cap(0.1, 49, 5), cap(0.1, 49, 11), cap(0.15, 99, 1)),
            (11, 5, 115)
        );
        assert_eq!(
            (
                cap(0.25, 499, 4),
                cap(0.25, 0, 4),
                cap(0.25, 3, 4),
                cap(0.25, 4, 4)
            ),
            (157, 1, 2, 2)
        );
        // Rounded to the nearest millionth, half up.
        assert_eq!(
            (cap(0.000_000_4, 999_999, 1), cap(0.000_000_5, 999_999, 1)),
            (1_000_000, 1_000_001)
        );
        assert_eq!(
            (cap(f64::NAN, 9, 10), cap(-3.0, 9, 10), cap(0.0, 10, 10)),
            (1, 1, 2)
        );
        assert!(cap(f64::INFINITY, u64::MAX, 1) >= u64::from(u32::MAX));
    }
}
