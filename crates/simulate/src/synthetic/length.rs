//! Lengths and pauses with a realistic distribution: most are short, some are long.

use crate::random::SplitMix64;

/// The quantiles at eighths of the distribution, in thousandths of the mean; linear in between.
/// Roughly a lognormal distribution (sigma 0.9), cut off so that the mean is 1000.
const QUANTILES: [u64; 9] = [50, 237, 364, 500, 667, 889, 1224, 1878, 4432];

/// Draws a number with this mean, from a twentieth of it to four and a half times it, and at least
/// 1.
pub(super) fn around(random: &mut SplitMix64, mean: u64) -> u64 {
    let drawn = random.below(8_000);
    let (eighth, rest) = (usize::try_from(drawn / 1_000).unwrap_or(0), drawn % 1_000);
    let (from, to) = (QUANTILES[eighth], QUANTILES[eighth + 1]);
    let thousandths = from + (to - from) * rest / 1_000;
    (mean.saturating_mul(thousandths) / 1_000).max(1)
}

/// Draws a number of tokens with this mean.
pub(super) fn tokens(random: &mut SplitMix64, mean: u32) -> u32 {
    u32::try_from(around(random, u64::from(mean))).unwrap_or(u32::MAX)
}

/// Draws a time in ms with this mean in seconds.
pub(super) fn ms(random: &mut SplitMix64, mean_s: u64) -> u64 {
    around(random, mean_s.saturating_mul(1_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_as_requested_and_the_median_is_two_thirds_of_it() {
        let mut random = SplitMix64::new(1, 1);
        let mut drawn: Vec<u64> = (0..100_000).map(|_| around(&mut random, 10_000)).collect();
        drawn.sort_unstable();
        let mean = drawn.iter().sum::<u64>() / 100_000;
        assert!((9_900..10_100).contains(&mean), "{mean}");
        assert!((6_500..6_850).contains(&drawn[50_000]), "{}", drawn[50_000]);
        assert!(drawn[0] >= 500 && drawn[99_999] <= 44_320);
    }

    #[test]
    fn nothing_is_shorter_than_one() {
        assert_eq!(around(&mut SplitMix64::new(1, 1), 0), 1);
    }
}
