//! Means and percentiles.

/// Returns the mean; 0 for an empty slice.
pub(crate) fn mean(values: &[f64]) -> f64 {
    if values.is_empty() {
        0.0
    } else {
        values.iter().sum::<f64>() / values.len() as f64
    }
}

/// Returns a percentile: of n sorted values the one at `floor((n - 1) * share)`, with `share` from
/// 0 to 1. Returns 0 for an empty slice.
pub(crate) fn percentile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return 0.0;
    };
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a length is one"
    )]
    let index = (last as f64 * share.clamp(0.0, 1.0)) as usize;
    sorted[index.min(last)]
}

/// Returns `values` in ascending order.
pub(crate) fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// Returns the largest of `values` over their mean; 1 if there is nothing to compare.
pub(crate) fn imbalance(values: &[f64]) -> f64 {
    let mean = mean(values);
    if mean > 0.0 {
        values.iter().copied().fold(0.0, f64::max) / mean
    } else {
        1.0
    }
}

/// Returns `part` over `whole`; 0 if `whole` is 0.
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_values_and_rounds_down() {
        let values: Vec<f64> = (1..=10).map(f64::from).collect();
        let at = |share| percentile(&values, share);
        assert_eq!(
            [at(0.0), at(0.5), at(0.9), at(0.99), at(1.0)],
            [1.0, 5.0, 9.0, 9.0, 10.0]
        );
        assert_eq!(percentile(&[7.0], 0.99), 7.0);
        assert_eq!(percentile(&[], 0.5), 0.0);
    }

    #[test]
    fn the_mean_and_the_imbalance_of_an_empty_list_are_defined() {
        assert_eq!((mean(&[]), mean(&[1.0, 2.0, 6.0])), (0.0, 3.0));
        assert_eq!(
            (
                imbalance(&[]),
                imbalance(&[0.0, 0.0]),
                imbalance(&[1.0, 3.0])
            ),
            (1.0, 1.0, 1.5)
        );
        assert_eq!((ratio(1, 0), ratio(1, 4)), (0.0, 0.25));
    }

    #[test]
    fn values_are_sorted_by_size() {
        assert_eq!(sorted(vec![3.0, 1.0, 2.0]), [1.0, 2.0, 3.0]);
    }
}
