//! Replies without cached tokens: the engine's own counters are used instead.

use std::time::Duration;

use kv_blocks::Moment;
use parity::{
    Basis, EngineCounters, IncomparableRequest, ParitySettings,
    ParityState::{Downgraded, Drifting, NoData, Ok, Recovering},
    ParityTracker, PredictionSample,
};

use proptest::prelude::*;

use crate::fixture::{SECOND, SETTINGS, TARGET, TrackerFixture};

const SMALL: ParitySettings = ParitySettings {
    min_joined: 10,
    ..SETTINGS
};

/// Requests of 1000 tokens with one prediction each; the engine counts them from `before` on, with
/// the given hits each.
fn requests(
    fixture: &mut TrackerFixture,
    before: (u64, u64),
    count: u64,
    predicted: u32,
    hits: u64,
) -> (u64, u64) {
    (0..count).for_each(|_| fixture.request(predicted, predicted, None));
    (before.0 + count * 1000, before.1 + count * hits)
}

#[test]
fn predicted_sums_are_compared_with_the_growth_of_the_engines_counters() {
    for (hits, state) in [
        (500, Ok),
        (450, Ok),
        (449, Drifting),
        (300, Drifting),
        (299, Downgraded),
    ] {
        let mut fixture = TrackerFixture::new(SMALL);
        fixture.read_counters(70_000, 60_000);
        let (queries, found) = requests(&mut fixture, (70_000, 60_000), 10, 500, hits);
        assert_eq!(fixture.state(), NoData);
        fixture.read_counters(queries, found);
        assert_eq!(fixture.path(), [state], "{hits}");
        let report = fixture.report();
        assert_eq!(
            (report.source, report.requests, report.joined),
            ("engine_metrics".into(), 10, 0)
        );
        assert_eq!(
            (report.predicted_tokens, report.actual_tokens),
            (5000, 10 * hits)
        );
        assert_eq!(
            (
                report.exact_ratio,
                report.over_ratio,
                report.drift_tokens_p99
            ),
            (None, None, None)
        );
    }
}

#[test]
fn an_engine_with_foreign_traffic_gives_no_verdict() {
    // 2 % of the prompt tokens may be in flight.
    for (foreign, state) in [(200, Downgraded), (210, NoData)] {
        let mut fixture = TrackerFixture::new(SMALL);
        fixture.read_counters(0, 0);
        let (queries, hits) = requests(&mut fixture, (0, 0), 10, 500, 0);
        fixture.read_counters(queries + foreign, hits);
        assert_eq!(fixture.state(), state, "{foreign}");
    }
    let mut fixture = TrackerFixture::new(SMALL);
    fixture.read_counters(0, 0);
    let (queries, hits) = requests(&mut fixture, (0, 0), 10, 500, 500);
    fixture.read_counters(queries, hits);
    assert_eq!(fixture.path(), [Ok]);
    // Only samples after the change count.
    let (queries, hits) = requests(&mut fixture, (queries, hits), 10, 500, 500);
    fixture.read_counters(queries + 5000, hits);
    fixture.read_counters(queries + 9000, hits);
    assert_eq!(fixture.path(), [Ok, NoData]);
    let reason = fixture.summary().verdict.reason.expect("a reason");
    assert!(reason.contains("others use it too"), "{reason}");
}

#[test]
fn a_reading_waits_for_requests_in_flight() {
    let mut fixture = TrackerFixture::new(SMALL);
    fixture.read_counters(0, 0);
    let (queries, hits) = requests(&mut fixture, (0, 0), 10, 500, 500);
    let late = fixture.sample(500, 500, None);
    fixture.now = fixture.now + SECOND;
    // Counted by the engine, and not ended yet.
    fixture.read_counters(queries + 1000, hits + 500);
    assert_eq!(fixture.state(), NoData);
    fixture.ended(late);
    fixture.tick();
    assert_eq!(fixture.path(), [Ok]);
    assert_eq!(fixture.report().predicted_tokens, 5500);
}

#[test]
fn falling_counters_mean_a_restart_and_earlier_samples_do_not_count() {
    let mut fixture = TrackerFixture::new(SMALL);
    fixture.read_counters(90_000, 80_000);
    let (queries, hits) = requests(&mut fixture, (90_000, 80_000), 9, 500, 0);
    fixture.read_counters(queries, hits);
    fixture.read_counters(0, 0);
    let (queries, hits) = requests(&mut fixture, (0, 0), 10, 500, 500);
    fixture.read_counters(queries, hits);
    assert_eq!(fixture.path(), [Ok]);

    // The same with replies that report it: predictions for the ended process decide nothing.
    let mut fixture = TrackerFixture::new(SMALL);
    fixture.read_counters(90_000, 80_000);
    fixture.off_by(500, 9);
    fixture.read_counters(0, 0);
    fixture.off_by(0, 9);
    assert_eq!(fixture.state(), NoData);
    fixture.off_by(0, 1);
    assert_eq!(fixture.path(), [Ok]);
    assert_eq!(
        fixture.report().exact,
        10,
        "it stays in the report all the same"
    );
    assert_eq!(fixture.report().requests, 19);
}

#[test]
fn a_downgraded_engine_regains_trust_when_its_events_agree_with_its_counters() {
    let mut fixture = TrackerFixture::new(ParitySettings {
        min_joined: 20,
        ..SETTINGS
    });
    fixture.read_counters(0, 0);
    let counters = requests(&mut fixture, (0, 0), 20, 500, 0);
    fixture.read_counters(counters.0, counters.1);
    assert_eq!(fixture.path(), [Downgraded]);
    fixture.read_counters(counters.0, counters.1);
    let counters = requests(&mut fixture, counters, 10, 500, 500);
    fixture.read_counters(counters.0, counters.1);
    assert_eq!(fixture.path(), [Downgraded, Recovering]);
    let counters = requests(&mut fixture, counters, 10, 500, 500);
    fixture.read_counters(counters.0, counters.1);
    assert_eq!(fixture.path(), [Downgraded, Recovering, Ok]);
}

#[test]
fn old_readings_of_an_engine_without_new_ones_do_not_count() {
    let mut fixture = TrackerFixture::new(SMALL);
    fixture.read_counters(0, 0);
    let (queries, hits) = requests(&mut fixture, (0, 0), 10, 500, 500);
    fixture.read_counters(queries, hits);
    assert_eq!(fixture.state(), Ok);
    fixture.now = fixture.now + SETTINGS.window + SECOND;
    requests(&mut fixture, (0, 0), 20, 500, 0);
    fixture.tick();
    assert_eq!(fixture.path(), [Ok, NoData]);
}

#[test]
fn own_incomparable_requests_do_not_count_as_foreign_traffic() {
    // The same traffic twice, and in between our own request that the engine counts differently.
    for (incomparable, path) in [(true, vec![Ok]), (false, vec![NoData; 0])] {
        let mut fixture = TrackerFixture::new(SMALL);
        fixture.read_counters(0, 0);
        let counters = requests(&mut fixture, (0, 0), 6, 500, 500);
        fixture.read_counters(counters.0, counters.1);
        if incomparable {
            fixture.incomparable(900);
        }
        let counters = requests(
            &mut fixture,
            (counters.0 + 1700, counters.1 + 800),
            6,
            500,
            0,
        );
        fixture.read_counters(counters.0, counters.1);
        let counters = requests(&mut fixture, counters, 6, 500, 500);
        fixture.read_counters(counters.0, counters.1);
        assert_eq!(fixture.path(), path, "{incomparable}");
        if incomparable {
            let report = fixture.report();
            assert_eq!(
                (report.predicted_tokens, report.actual_tokens),
                (6000, 6000),
                "the two spans without it"
            );
        }
    }
}

#[test]
fn constant_incomparable_requests_are_reported_as_the_reason() {
    let mut fixture = TrackerFixture::new(SMALL);
    fixture.read_counters(0, 0);
    let mut counters = (0, 0);
    for _ in 0..4 {
        fixture.incomparable(900);
        counters = requests(&mut fixture, (counters.0 + 1700, counters.1), 10, 500, 500);
        fixture.read_counters(counters.0, counters.1);
    }
    assert_eq!(fixture.path(), []);
    let reason = fixture.summary().verdict.reason.expect("a reason");
    assert!(reason.contains("cannot be compared"), "{reason}");
    // A few tokens among many change nothing.
    let counters = (0..4).fold(counters, |counters, _| {
        fixture.incomparable(100);
        let counters = requests(&mut fixture, (counters.0 + 100, counters.1), 10, 500, 500);
        fixture.read_counters(counters.0, counters.1);
        counters
    });
    assert_eq!((fixture.path(), counters.1), (vec![Ok], 40_000));
}

#[test]
fn an_incomparable_request_voids_each_interval_that_may_include_its_lookup() {
    let mut fixture = TrackerFixture::new(SMALL);
    fixture.read_counters(0, 0);
    let sent = fixture.now;
    let counters = requests(&mut fixture, (0, 0), 10, 500, 500);
    fixture.read_counters(counters.0, counters.1);
    let read = fixture.now;
    let counters = requests(&mut fixture, counters, 10, 500, 0);
    let late = EngineCounters {
        at: fixture.now,
        queries: counters.0,
        hits: counters.1,
    };
    fixture.now = fixture.now + SECOND;
    // It ends after that reading was taken and before it arrived here.
    let until = fixture.now;
    fixture.tracker.record_incomparable(
        until,
        TARGET,
        IncomparableRequest {
            sent: read,
            until,
            prompt_tokens: 5000,
        },
    );
    fixture.tick_with(Some(late), true);
    let counters = requests(&mut fixture, counters, 10, 500, 0);
    fixture.read_counters(counters.0, counters.1);
    assert_eq!(
        fixture.report().predicted_tokens,
        5000,
        "what came before it"
    );
    fixture.tracker.record_incomparable(
        until,
        TARGET,
        IncomparableRequest {
            sent,
            until: read,
            prompt_tokens: 5000,
        },
    );
    assert_eq!(fixture.report().predicted_tokens, 0);
}

#[test]
fn readings_are_bounded_and_the_latest_are_kept() {
    let mut fixture = TrackerFixture::new(SMALL);
    let mut counters = (0, 0);
    fixture.read_counters(0, 0);
    for _ in 0..500 {
        counters = requests(&mut fixture, counters, 1, 500, 500);
        fixture.read_counters(counters.0, counters.1);
    }
    assert_eq!(fixture.path(), [Ok]);
    assert_eq!(fixture.report().predicted_tokens, 127 * 500);
}

proptest! {
    /// Requests of 10 tokens end, and readings arrive at the tracker, in any order and with any
    /// delay.
    #[test]
    fn a_request_counts_at_its_send_time_in_any_order_of_arrival(
        spans in prop::collection::vec((1..200_u64, 0..60_u64), 1..80),
        readings in prop::collection::vec((1..200_u64, 0..60_u64), 2..8),
    ) {
        enum CounterEvent {
            Ended(u64),
            Read(u64),
        }
        let mut events: Vec<(u64, CounterEvent)> = spans.iter().map(|(sent, took)| (sent + took, CounterEvent::Ended(*sent))).collect();
        events.extend(readings.iter().map(|(at, took)| (at + took, CounterEvent::Read(*at))));
        events.sort_by_key(|(when, _)| *when);
        let moment = |second: u64| Moment::at(Duration::from_secs(second));
        // Requests that the engine has seen by then.
        let seen = |at: u64| spans.iter().filter(|(sent, _)| *sent < at).count() as u64;
        let mut tracker = ParityTracker::new(ParitySettings { min_joined: 1000, ..SETTINGS });
        let mut taken: Vec<u64> = Vec::new();
        for (when, what) in events {
            match what {
                CounterEvent::Ended(sent) => {
                    let sample = PredictionSample {
                        sent: moment(sent),
                        prompt_tokens: 10,
                        predicted: 7,
                        announced: 7,
                        actual: None,
                        counted_by: None,
                        basis: Basis::Events,
                    };
                    tracker.observe(moment(when), TARGET, sample);
                }
                CounterEvent::Read(at) => {
                    let counters = EngineCounters { at: moment(at), queries: 10 * seen(at), hits: 0 };
                    tracker.tick(moment(when), TARGET, Some(counters), Some(0));
                    // An overtaken reading is ignored.
                    if taken.last().is_none_or(|latest| at > *latest) {
                        taken.push(at);
                    }
                }
            }
        }
        let (first, last) = (taken[0], taken[taken.len() - 1]);
        let expected = if first == last { 0 } else { 7 * (seen(last) - seen(first)) };
        prop_assert_eq!(tracker.summary(TARGET).counts().predicted_tokens, expected);
    }
}
