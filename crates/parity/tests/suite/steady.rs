//! Constant conditions keep the state.

use std::collections::BTreeSet;

use parity::{Basis, ParitySettings, ParityState};
use proptest::prelude::*;

use crate::fixture::{SETTINGS, TrackerFixture};

proptest! {
    #[test]
    fn a_constant_difference_never_enters_a_state_twice(
        off in 0..500_u32,
        good_before in 0..300_usize,
        min_joined in 1..80_usize,
        mut ratios in prop::array::uniform3(0.0..0.6_f64),
        by_events in any::<bool>(),
    ) {
        ratios.sort_by(f64::total_cmp);
        let [recover_ratio, drift_ratio, downgrade_ratio] = ratios;
        let settings = ParitySettings { min_joined, drift_ratio, downgrade_ratio, recover_ratio, ..SETTINGS };
        let mut fixture = TrackerFixture::new(settings);
        if !by_events {
            fixture.basis = Basis::Decisions;
        }
        fixture.off_by(0, good_before);
        let before = fixture.changes.len();
        for _ in 0..600 {
            fixture.off_by(off, 1);
            fixture.tick();
        }
        let path = fixture.path().split_off(before);
        let distinct: BTreeSet<ParityState> = path.iter().copied().collect();
        prop_assert_eq!(distinct.len(), path.len(), "{:?}", path);
        // The state worsens step by step, and no further than the thresholds require.
        prop_assert!(path.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", path);
        let ratio = f64::from(off) / 1000.0;
        let worst = match ratio {
            ratio if ratio > downgrade_ratio && by_events => ParityState::Downgraded,
            ratio if ratio > drift_ratio => ParityState::Drifting,
            _ => ParityState::Ok,
        };
        prop_assert!(fixture.state() <= worst, "{:?} at {}", fixture.state(), ratio);
        // Only bad requests in the window: they decide the state.
        if good_before == 0 {
            prop_assert_eq!(fixture.state(), worst);
        }
    }

    /// About a tenth of the replies report cached tokens, and the engine reports its counters.
    #[test]
    fn an_intermittent_source_enters_no_state_twice(
        reports in prop::collection::vec(prop::bool::weighted(0.1), 400),
        off in 0..300_u32,
    ) {
        let mut fixture = TrackerFixture::new(ParitySettings { min_joined: 20, ..SETTINGS });
        fixture.basis = Basis::Decisions;
        let mut counters = (0, 0);
        fixture.read_counters(0, 0);
        for each in reports {
            fixture.request(500 + off, 500 + off, each.then_some(500));
            counters = (counters.0 + 1000, counters.1 + 500);
            fixture.read_counters(counters.0, counters.1);
        }
        let path = fixture.path();
        let distinct: BTreeSet<ParityState> = path.iter().copied().collect();
        prop_assert_eq!(distinct.len(), path.len(), "{:?}", path);
    }

    #[test]
    fn trust_is_withdrawn_and_restored_alternately(requests in prop::collection::vec((0..1000_u32, 0..1000_u32), 1..600)) {
        let mut fixture = TrackerFixture::new(ParitySettings { min_joined: 5, ..SETTINGS });
        for (predicted, actual) in requests {
            // In runs, so that every state occurs.
            (0..7).for_each(|_| fixture.request(predicted, if predicted > 500 { actual } else { predicted }, Some(actual)));
        }
        let mut trusted = true;
        for change in &fixture.changes {
            prop_assert_ne!(change.from, change.to);
            prop_assert_eq!(change.from.trusts_events(), trusted);
            if let Some(now) = change.trust() {
                trusted = now;
            }
            prop_assert_eq!(change.to.trusts_events(), trusted);
        }
    }
}
