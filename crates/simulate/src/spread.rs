//! Spreading of arrivals that were recorded with coarse time stamps.

/// Longest time over which requests with the same time stamp are spread, in seconds: before a long
/// pause they arrived together.
const LONGEST_GAP_S: f64 = 10.0;

/// Spreads equal times evenly over the gap to the next one; those of the last time stamp over the
/// gap before it. Times are in seconds and in ascending order, and stay so.
pub(crate) fn spread(times: &mut [f64]) {
    let mut gap = 1.0;
    let mut rest = times;
    while let Some(first) = rest.first().copied() {
        let together = rest.iter().take_while(|time| **time == first).count();
        let (tick, later) = rest.split_at_mut(together);
        if let Some(next) = later.first() {
            gap = (next - first).min(LONGEST_GAP_S);
        }
        for (index, time) in tick.iter_mut().enumerate() {
            *time = first + gap * index as f64 / together as f64;
        }
        rest = later;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spread_out(times: &[f64]) -> Vec<f64> {
        let mut times = times.to_vec();
        spread(&mut times);
        times
    }

    #[test]
    fn equal_times_are_spread_evenly_up_to_the_next_one_and_the_last_over_the_gap_before() {
        assert_eq!(
            spread_out(&[0.0, 0.0, 0.0, 3.0, 4.0, 4.0]),
            [0.0, 1.0, 2.0, 3.0, 4.0, 4.5]
        );
    }

    #[test]
    fn requests_before_a_long_pause_are_not_spread_over_it() {
        assert_eq!(spread_out(&[0.0, 0.0, 100.0]), [0.0, 5.0, 100.0]);
    }

    #[test]
    fn one_time_stamp_alone_is_spread_over_a_second() {
        assert_eq!(spread_out(&[0.0; 4]), [0.0, 0.25, 0.5, 0.75]);
    }

    proptest! {
        #[test]
        fn the_spread_keeps_the_order_and_never_moves_a_request_back(mut times in prop::collection::vec((0u32..50).prop_map(f64::from), 0..100)) {
            times.sort_by(f64::total_cmp);
            let spread = spread_out(&times);
            prop_assert!(spread.is_sorted());
            for (before, after) in times.iter().zip(&spread) {
                prop_assert!(*before <= *after && *after < before + LONGEST_GAP_S);
            }
        }
    }
}
