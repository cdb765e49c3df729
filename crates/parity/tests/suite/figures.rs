//! The figures of a window.

use std::time::Duration;

use api::ParityCounts;
use kv_blocks::Moment;
use parity::{MOST_SAMPLES, ParitySettings, ParityState, ParityTracker, ParityVerdict, Summary};

use crate::fixture::{SETTINGS, TARGET, TrackerFixture};

#[test]
fn figures_without_requests_are_zero_or_unknown() {
    let summary = ParityTracker::new(SETTINGS).summary(TARGET);
    let unknown = ParityVerdict {
        state: ParityState::NoData,
        since: Moment::START,
        reason: None,
    };
    assert_eq!(summary.verdict, unknown);
    let empty = ParityCounts {
        source: "usage".into(),
        ..ParityCounts::default()
    };
    assert_eq!(summary.counts(), empty);
}

#[test]
fn figures_cover_only_joined_requests() {
    let mut fixture = TrackerFixture::new(SETTINGS);
    fixture.request(500, 500, None);
    (0..6).for_each(|_| fixture.request(480, 480, Some(480)));
    (0..3).for_each(|_| fixture.request(600, 600, Some(500)));
    fixture.request(0, 0, Some(16));
    let report = fixture.report();
    assert_eq!((report.requests, report.joined, report.exact), (11, 10, 6));
    assert_eq!(
        (report.exact_ratio, report.over_ratio),
        (Some(0.6), Some(0.3))
    );
    assert_eq!(
        (report.predicted_tokens, report.actual_tokens),
        (6 * 480 + 1800, 6 * 480 + 1500 + 16)
    );
    assert_eq!(
        (report.drift_tokens_p50, report.drift_tokens_p99),
        (Some(0), Some(100))
    );
    assert_eq!(fixture.tracker.exact_and_joined(TARGET), (6, 10));
}

#[test]
fn a_percentile_is_a_value_that_its_share_does_not_exceed() {
    let mut fixture = TrackerFixture::new(SETTINGS);
    (1..=200).for_each(|off| fixture.request(500 + off, 500, Some(500)));
    let report = fixture.report();
    assert_eq!(
        (report.drift_tokens_p50, report.drift_tokens_p99),
        (Some(100), Some(198))
    );
}

#[test]
fn the_summary_of_several_targets_has_the_worst_state() {
    let (mut well, mut wrong) = (TrackerFixture::new(SETTINGS), TrackerFixture::new(SETTINGS));
    well.off_by(0, 50);
    wrong.off_by(100, 50);
    let summary = |fixture: &TrackerFixture| fixture.tracker.summary(TARGET);
    let mut total = summary(&well);
    total.absorb(summary(&wrong));
    total.absorb(ParityTracker::new(SETTINGS).summary(TARGET));
    let verdict = total.verdict.clone();
    let total = total.counts();
    assert_eq!(
        (total.requests, total.joined, total.exact, total.exact_ratio),
        (100, 100, 50, Some(0.5))
    );
    assert_eq!(
        (total.predicted_tokens, total.actual_tokens),
        (50 * 500 + 50 * 600, 100 * 500)
    );
    assert_eq!(
        (total.drift_tokens_p50, total.drift_tokens_p99),
        (Some(0), Some(100))
    );
    let worst = wrong.summary().verdict;
    assert_eq!(worst.state, ParityState::Drifting);
    assert_eq!(verdict, worst);
}

#[test]
fn the_oldest_samples_are_evicted_and_the_minimum_is_capped_at_the_window() {
    let mut fixture = TrackerFixture::new(ParitySettings {
        min_joined: usize::MAX,
        ..SETTINGS
    });
    fixture.off_by(500, MOST_SAMPLES - 1);
    assert_eq!(fixture.state(), ParityState::NoData);
    fixture.off_by(500, 1);
    assert_eq!(fixture.state(), ParityState::Downgraded);
    fixture.off_by(0, 10);
    assert_eq!(fixture.report().requests, MOST_SAMPLES as u64);
    assert_eq!(fixture.report().exact, 10);
}

#[test]
fn figures_reach_back_to_the_latest_evicted_request() {
    let mut fixture = TrackerFixture::new(SETTINGS);
    let covered =
        |fixture: &TrackerFixture| fixture.summary().covered(fixture.now, SETTINGS.window);
    fixture.off_by(0, 1);
    let first = fixture.now;
    fixture.off_by(0, MOST_SAMPLES - 1);
    assert_eq!(covered(&fixture), SETTINGS.window);
    fixture.off_by(0, 1);
    assert_eq!(covered(&fixture), fixture.now.since(first));
    fixture.now = fixture.now + SETTINGS.window;
    fixture.tick();
    assert_eq!(covered(&fixture), SETTINGS.window);
    let mut total = ParityTracker::new(SETTINGS).summary(TARGET);
    total.absorb(fixture.tracker.summary(TARGET));
    let unlimited = |summary: Summary| summary.covered(fixture.now, Duration::MAX);
    assert_eq!(unlimited(total), unlimited(fixture.summary()));
}
