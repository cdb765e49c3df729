//! Transitions between states.

use parity::{
    Basis, ParityChange, ParitySettings,
    ParityState::{Downgraded, Drifting, NoData, Ok, Recovering},
    ReplyKind,
};

use crate::fixture::{SECOND, SETTINGS, TARGET, TrackerFixture};

/// A downgraded journal, after 50 or 100 requests.
fn downgraded() -> TrackerFixture {
    let mut fixture = TrackerFixture::new(SETTINGS);
    fixture.off_by(500, 50);
    assert_eq!(fixture.path(), [Downgraded]);
    fixture
}

#[test]
fn the_first_state_follows_from_the_windows_ratio_after_enough_comparisons() {
    // The tokens of 1000 by which each request is off.
    for (off, state) in [
        (0, Ok),
        (20, Ok),
        (50, Ok),
        (51, Drifting),
        (200, Drifting),
        (201, Downgraded),
        (500, Downgraded),
    ] {
        let mut fixture = TrackerFixture::new(SETTINGS);
        fixture.off_by(off, 49);
        assert_eq!(
            (fixture.state(), fixture.changes.len()),
            (NoData, 0),
            "{off}"
        );
        fixture.off_by(off, 1);
        assert_eq!(fixture.path(), [state], "{off}");
    }
}

#[test]
fn under_prediction_counts_like_over_prediction() {
    let mut fixture = TrackerFixture::new(SETTINGS);
    (0..50).for_each(|_| fixture.request(0, 0, Some(500)));
    assert_eq!(fixture.state(), Downgraded);
    let mut fixture = TrackerFixture::new(SETTINGS);
    // The sums agree, the single requests do not.
    (0..25).for_each(|_| {
        fixture.request(600, 600, Some(500));
        fixture.request(400, 400, Some(500));
    });
    assert_eq!(fixture.state(), Drifting);
}

#[test]
fn a_drifting_target_recovers_only_below_the_recovery_ratio() {
    for (off, state) in [
        (50, Drifting),
        (21, Drifting),
        (20, Ok),
        (0, Ok),
        (300, Downgraded),
    ] {
        let mut fixture = TrackerFixture::new(SETTINGS);
        fixture.off_by(100, 50);
        assert_eq!(fixture.state(), Drifting);
        fixture.off_by(off, 49);
        assert_eq!(
            fixture.state(),
            Drifting,
            "earlier requests decide nothing more, and these are too few"
        );
        fixture.off_by(off, 1);
        assert_eq!(fixture.state(), state, "{off}");
    }
}

#[test]
fn a_downgraded_target_regains_trust_after_a_run_of_correct_events() {
    let mut fixture = downgraded();
    assert_eq!(fixture.changes[0].trust(), Some(false));
    fixture.announced_off_by(20, 9);
    assert_eq!(fixture.state(), Downgraded);
    fixture.announced_off_by(20, 1);
    assert_eq!(fixture.state(), Recovering);
    assert_eq!(fixture.changes[1].trust(), None);
    fixture.announced_off_by(0, 39);
    assert_eq!(fixture.state(), Recovering);
    fixture.announced_off_by(0, 1);
    assert_eq!(fixture.path(), [Downgraded, Recovering, Ok]);
    assert_eq!(fixture.changes[2].trust(), Some(true));
    assert_eq!(fixture.summary().verdict.reason, None);
}

#[test]
fn a_target_with_wrong_events_stays_downgraded_despite_good_own_predictions() {
    let mut fixture = downgraded();
    fixture.announced_off_by(21, 500);
    assert_eq!(fixture.path(), [Downgraded]);
    assert!(fixture.report().exact_ratio > Some(0.8));
}

#[test]
fn wrong_events_while_recovering_downgrade_the_target_again_and_are_refetched() {
    for (off, path) in [
        (50, vec![Downgraded, Recovering]),
        (51, vec![Downgraded, Recovering, Downgraded]),
    ] {
        let mut fixture = downgraded();
        fixture.announced_off_by(0, 10);
        fixture.announced_off_by(off, 10);
        assert_eq!(fixture.path(), path, "{off}");
    }
    let mut fixture = downgraded();
    fixture.announced_off_by(0, 10);
    fixture.announced_off_by(500, 10);
    assert_eq!(fixture.changes[2].trust(), Some(false));
    fixture.announced_off_by(0, 9);
    assert_eq!(
        fixture.state(),
        Downgraded,
        "earlier comparisons decide nothing more"
    );
    fixture.announced_off_by(0, 41);
    assert_eq!(fixture.state(), Ok);
}

#[test]
fn with_a_small_minimum_each_step_needs_only_that_many_samples() {
    let mut fixture = TrackerFixture::new(ParitySettings {
        min_joined: 3,
        ..SETTINGS
    });
    fixture.off_by(500, 3);
    fixture.announced_off_by(0, 2);
    assert_eq!(fixture.path(), [Downgraded]);
    fixture.announced_off_by(0, 2);
    assert_eq!(fixture.path(), [Downgraded, Recovering, Ok]);
}

#[test]
fn a_target_without_events_drifts_and_is_never_downgraded() {
    let mut fixture = TrackerFixture {
        basis: Basis::Decisions,
        ..TrackerFixture::new(SETTINGS)
    };
    fixture.off_by(1000, 500);
    assert_eq!(fixture.path(), [Drifting]);
    assert_eq!(fixture.changes[0].trust(), None);
}

#[test]
fn wrong_own_predictions_do_not_count_against_later_events() {
    let mut fixture = TrackerFixture {
        basis: Basis::Decisions,
        ..TrackerFixture::new(SETTINGS)
    };
    fixture.off_by(1000, 500);
    let late = fixture.sample(1000, 1000, Some(0));
    fixture.now = fixture.now + SECOND;
    fixture.basis = Basis::Events;
    fixture.off_by(0, 25);
    fixture.ended(late);
    fixture.off_by(0, 24);
    assert_eq!(
        fixture.path(),
        [Drifting],
        "a late one of ours counts neither for nor against them"
    );
    fixture.off_by(0, 1);
    assert_eq!(fixture.path(), [Drifting, Ok]);

    // Events that are themselves wrong do count, after enough samples.
    let mut fixture = TrackerFixture {
        basis: Basis::Decisions,
        ..TrackerFixture::new(SETTINGS)
    };
    fixture.off_by(0, 500);
    fixture.basis = Basis::Events;
    fixture.off_by(500, 49);
    assert_eq!(fixture.path(), [Ok]);
    fixture.off_by(500, 1);
    assert_eq!(fixture.path(), [Ok, Downgraded]);
}

#[test]
fn samples_before_a_publisher_restart_do_not_count() {
    let mut fixture = TrackerFixture::new(SETTINGS);
    fixture.tick();
    fixture.off_by(500, 49);
    fixture.restarts = 1;
    fixture.tick();
    fixture.off_by(0, 49);
    assert_eq!(fixture.state(), NoData);
    fixture.off_by(0, 1);
    assert_eq!(fixture.path(), [Ok]);
}

#[test]
fn omitted_zeros_count_once_the_engine_has_reported_another_value() {
    let mut fixture = TrackerFixture {
        counted_by: Some(ReplyKind::Chat),
        ..TrackerFixture::new(SETTINGS)
    };
    fixture.request(0, 0, None);
    assert_eq!(fixture.report().joined, 0, "it may never report zeros");
    fixture.request(500, 500, Some(500));
    fixture.request(0, 0, None);
    let report = fixture.report();
    assert_eq!(
        (report.joined, report.exact, report.actual_tokens),
        (2, 2, 500)
    );
    // Replies without usage give no evidence, and other kinds of replies may never report it.
    for counted_by in [
        None,
        Some(ReplyKind::ChatStream),
        Some(ReplyKind::Completion),
    ] {
        fixture.counted_by = counted_by;
        fixture.request(500, 500, None);
    }
    assert_eq!(fixture.report().joined, 2);
    // Nor may a restarted engine.
    fixture.counted_by = Some(ReplyKind::Chat);
    fixture.tick();
    fixture.restarts = 1;
    fixture.tick();
    fixture.request(500, 500, None);
    assert_eq!(fixture.report().joined, 2);
}

#[test]
fn pending_changes_are_combined_into_their_net_effect() {
    let change = |from, to| ParityChange {
        target: TARGET,
        from,
        to,
        ratio: None,
        reason: String::new(),
    };
    let path = [
        Ok, Downgraded, Recovering, Downgraded, Recovering, Ok, Drifting, Downgraded, NoData,
    ];
    let steps: Vec<ParityChange> = path
        .windows(2)
        .map(|pair| change(pair[0], pair[1]))
        .collect();
    for (first, before) in steps.iter().enumerate() {
        let mut merged = before.clone();
        for step in &steps[first + 1..] {
            merged = step.clone().after(&merged);
            let (was, is) = (before.from.trusts_events(), step.to.trusts_events());
            let expected = if step.to == Downgraded {
                Some(false)
            } else {
                (was != is).then_some(is)
            };
            assert_eq!(
                merged.trust(),
                expected,
                "{:?} -> {:?}",
                merged.from,
                merged.to
            );
        }
    }
}

#[test]
fn an_empty_window_decides_nothing_and_keeps_a_downgrade() {
    let mut fixture = TrackerFixture::new(SETTINGS);
    fixture.off_by(100, 60);
    fixture.now = fixture.now + SETTINGS.window + SECOND;
    fixture.tick();
    assert_eq!(fixture.path(), [Drifting, NoData]);
    assert_eq!(fixture.report().requests, 0);
    let mut fixture = downgraded();
    fixture.now = fixture.now + SETTINGS.window + SECOND;
    fixture.tick();
    assert_eq!(fixture.path(), [Downgraded]);
}

#[test]
fn a_target_that_lost_its_stream_is_treated_as_one_without_events() {
    for recovering in [false, true] {
        let mut fixture = downgraded();
        fixture.announced_off_by(0, if recovering { 10 } else { 0 });
        fixture.tick_with(None, false);
        assert_eq!(fixture.state(), NoData);
        assert_eq!(
            fixture.changes.last().and_then(parity::ParityChange::trust),
            Some(true)
        );
    }
    let mut well = TrackerFixture::new(SETTINGS);
    well.off_by(0, 50);
    well.tick_with(None, false);
    assert_eq!(well.path(), [Ok]);
}

#[test]
fn a_request_sent_before_a_change_decides_nothing_after_it() {
    let mut fixture = TrackerFixture::new(SETTINGS);
    let late = fixture.sample(1000, 1000, Some(0));
    fixture.off_by(500, 50);
    fixture.announced_off_by(0, 9);
    fixture.ended(late);
    assert_eq!(fixture.path(), [Downgraded]);
    fixture.announced_off_by(0, 1);
    assert_eq!(fixture.state(), Recovering);
}

#[test]
fn the_reason_contains_the_observed_numbers() {
    let mut fixture = TrackerFixture::new(SETTINGS);
    fixture.off_by(500, 50);
    fixture.announced_off_by(0, 50);
    let reasons: Vec<&str> = fixture
        .changes
        .iter()
        .map(|change| change.reason.as_str())
        .collect();
    assert_eq!(
        reasons,
        [
            "50000 cached tokens expected and 25000 found in 50 requests, off by 50.0 % of 50000 prompt tokens, above \
             parity.downgrade_ratio 0.2: its events are not believed",
            "by its events 5000 cached tokens expected and 5000 found in 10 requests, off by 0.0 % of 10000 prompt tokens: \
             they are believed again when the latest 50 requests are within parity.recover_ratio 0.02",
            "by its events 25000 cached tokens expected and 25000 found in 50 requests, off by 0.0 % of 50000 prompt \
             tokens: they are believed again",
        ]
    );
    assert_eq!(fixture.changes[0].ratio, Some(0.5));
}

#[test]
fn replies_without_cached_tokens_are_counted_and_not_compared() {
    let mut fixture = TrackerFixture::new(SETTINGS);
    (0..400).for_each(|_| fixture.request(500, 500, None));
    fixture.off_by(500, 49);
    assert_eq!(fixture.state(), NoData);
    fixture.off_by(500, 1);
    assert_eq!(
        fixture.state(),
        Downgraded,
        "more than a tenth of the replies tell"
    );
    assert_eq!(
        (fixture.report().requests, fixture.report().joined),
        (450, 50)
    );
}
