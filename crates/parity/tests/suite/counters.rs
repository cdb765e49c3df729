//! Replies that do not tell: the engine's own counters stand in.

use std::time::Duration;

use kv_blocks::Moment;
use parity::{
    ActualSource, Basis, EngineCounters, IncomparableRequest, ParitySettings,
    ParityState::{Downgraded, Drifting, NoData, Ok, Recovering},
    ParityTracker, PredictionSample,
};

use proptest::prelude::*;

use crate::journal::{Journal, SECOND, SETTINGS, TARGET};

const SMALL: ParitySettings = ParitySettings {
    min_joined: 10,
    ..SETTINGS
};

/// So many requests of 1000 tokens, each predicted so; the engine counts them after `before`, so many hits each.
fn requests(
    journal: &mut Journal,
    before: (u64, u64),
    count: u64,
    predicted: u32,
    hits: u64,
) -> (u64, u64) {
    (0..count).for_each(|_| journal.request(predicted, predicted, None));
    (before.0 + count * 1000, before.1 + count * hits)
}

#[test]
fn sums_are_compared_with_the_growth_of_the_engines_counters() {
    for (hits, state) in [
        (500, Ok),
        (450, Ok),
        (449, Drifting),
        (300, Drifting),
        (299, Downgraded),
    ] {
        let mut journal = Journal::new(SMALL);
        journal.told(70_000, 60_000);
        let (queries, found) = requests(&mut journal, (70_000, 60_000), 10, 500, hits);
        assert_eq!(journal.state(), NoData);
        journal.told(queries, found);
        assert_eq!(journal.path(), [state], "{hits}");
        let report = journal.report();
        assert_eq!(
            (report.source, report.requests, report.joined),
            (ActualSource::EngineMetrics, 10, 0)
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
fn an_engine_that_others_use_too_tells_nothing() {
    // 2 % of the prompt tokens may be on their way.
    for (foreign, state) in [(200, Downgraded), (210, NoData)] {
        let mut journal = Journal::new(SMALL);
        journal.told(0, 0);
        let (queries, hits) = requests(&mut journal, (0, 0), 10, 500, 0);
        journal.told(queries + foreign, hits);
        assert_eq!(journal.state(), state, "{foreign}");
    }
    let mut journal = Journal::new(SMALL);
    journal.told(0, 0);
    let (queries, hits) = requests(&mut journal, (0, 0), 10, 500, 500);
    journal.told(queries, hits);
    assert_eq!(journal.path(), [Ok]);
    // After the change only what follows is judged.
    let (queries, hits) = requests(&mut journal, (queries, hits), 10, 500, 500);
    journal.told(queries + 5000, hits);
    journal.told(queries + 9000, hits);
    assert_eq!(journal.path(), [Ok, NoData]);
    let reason = journal.report().reason.expect("a reason");
    assert!(reason.contains("others use it too"), "{reason}");
}

#[test]
fn a_request_on_its_way_at_a_reading_is_waited_for() {
    let mut journal = Journal::new(SMALL);
    journal.told(0, 0);
    let (queries, hits) = requests(&mut journal, (0, 0), 10, 500, 500);
    let late = journal.sample(500, 500, None);
    journal.now = journal.now + SECOND;
    // Counted by the engine, and not ended yet.
    journal.told(queries + 1000, hits + 500);
    assert_eq!(journal.state(), NoData);
    journal.ended(late);
    journal.tick();
    assert_eq!(journal.path(), [Ok]);
    assert_eq!(journal.report().predicted_tokens, 5500);
}

#[test]
fn counters_that_fall_are_another_engines_and_nothing_is_held_against_it() {
    let mut journal = Journal::new(SMALL);
    journal.told(90_000, 80_000);
    let (queries, hits) = requests(&mut journal, (90_000, 80_000), 9, 500, 0);
    journal.told(queries, hits);
    journal.told(0, 0);
    let (queries, hits) = requests(&mut journal, (0, 0), 10, 500, 500);
    journal.told(queries, hits);
    assert_eq!(journal.path(), [Ok]);

    // The same where replies tell: what was predicted of the process that died decides nothing.
    let mut journal = Journal::new(SMALL);
    journal.told(90_000, 80_000);
    journal.off_by(500, 9);
    journal.told(0, 0);
    journal.off_by(0, 9);
    assert_eq!(journal.state(), NoData);
    journal.off_by(0, 1);
    assert_eq!(journal.path(), [Ok]);
    assert_eq!(
        journal.report().exact,
        10,
        "it stays in the report all the same"
    );
    assert_eq!(journal.report().requests, 19);
}

#[test]
fn a_downgraded_engine_is_believed_again_when_its_events_agree_with_its_counters() {
    let mut journal = Journal::new(ParitySettings {
        min_joined: 20,
        ..SETTINGS
    });
    journal.told(0, 0);
    let told = requests(&mut journal, (0, 0), 20, 500, 0);
    journal.told(told.0, told.1);
    assert_eq!(journal.path(), [Downgraded]);
    journal.told(told.0, told.1);
    let told = requests(&mut journal, told, 10, 500, 500);
    journal.told(told.0, told.1);
    assert_eq!(journal.path(), [Downgraded, Recovering]);
    let told = requests(&mut journal, told, 10, 500, 500);
    journal.told(told.0, told.1);
    assert_eq!(journal.path(), [Downgraded, Recovering, Ok]);
}

#[test]
fn an_engine_that_tells_nothing_any_more_is_not_judged_by_what_it_told_long_ago() {
    let mut journal = Journal::new(SMALL);
    journal.told(0, 0);
    let (queries, hits) = requests(&mut journal, (0, 0), 10, 500, 500);
    journal.told(queries, hits);
    assert_eq!(journal.state(), Ok);
    journal.now = journal.now + SETTINGS.window + SECOND;
    requests(&mut journal, (0, 0), 20, 500, 0);
    journal.tick();
    assert_eq!(journal.path(), [Ok, NoData]);
}

#[test]
fn what_was_sent_from_here_and_cannot_be_judged_does_not_count_as_others_traffic() {
    // Twice the same traffic, and between the two a request of ours whose tokens the engine counts in its own way.
    for (unjudged, path) in [(true, vec![Ok]), (false, vec![NoData; 0])] {
        let mut journal = Journal::new(SMALL);
        journal.told(0, 0);
        let told = requests(&mut journal, (0, 0), 6, 500, 500);
        journal.told(told.0, told.1);
        if unjudged {
            journal.unjudged(900);
        }
        let told = requests(&mut journal, (told.0 + 1700, told.1 + 800), 6, 500, 0);
        journal.told(told.0, told.1);
        let told = requests(&mut journal, told, 6, 500, 500);
        journal.told(told.0, told.1);
        assert_eq!(journal.path(), path, "{unjudged}");
        if unjudged {
            let report = journal.report();
            assert_eq!(
                (report.predicted_tokens, report.actual_tokens),
                (6000, 6000),
                "the two spans without it"
            );
        }
    }
}

#[test]
fn where_requests_that_cannot_be_judged_run_all_the_time_that_is_the_reason() {
    let mut journal = Journal::new(SMALL);
    journal.told(0, 0);
    let mut told = (0, 0);
    for _ in 0..4 {
        journal.unjudged(900);
        told = requests(&mut journal, (told.0 + 1700, told.1), 10, 500, 500);
        journal.told(told.0, told.1);
    }
    assert_eq!(journal.path(), []);
    let reason = journal.report().reason.expect("a reason");
    assert!(reason.contains("cannot be compared"), "{reason}");
    // A few tokens among many change nothing.
    let told = (0..4).fold(told, |told, _| {
        journal.unjudged(100);
        let told = requests(&mut journal, (told.0 + 100, told.1), 10, 500, 500);
        journal.told(told.0, told.1);
        told
    });
    assert_eq!((journal.path(), told.1), (vec![Ok], 40_000));
}

#[test]
fn an_unjudged_request_spoils_each_interval_in_which_it_may_have_been_looked_up() {
    let mut journal = Journal::new(SMALL);
    journal.told(0, 0);
    let sent = journal.now;
    let told = requests(&mut journal, (0, 0), 10, 500, 500);
    journal.told(told.0, told.1);
    let read = journal.now;
    let told = requests(&mut journal, told, 10, 500, 0);
    let late = EngineCounters {
        at: journal.now,
        queries: told.0,
        hits: told.1,
    };
    journal.now = journal.now + SECOND;
    // It ends when that reading was taken and had not come here yet.
    let until = journal.now;
    journal.book.record_incomparable(
        until,
        TARGET,
        IncomparableRequest {
            sent: read,
            until,
            prompt_tokens: 5000,
        },
    );
    journal.look(Some(late), true);
    let told = requests(&mut journal, told, 10, 500, 0);
    journal.told(told.0, told.1);
    assert_eq!(
        journal.report().predicted_tokens,
        5000,
        "what came before it"
    );
    journal.book.record_incomparable(
        until,
        TARGET,
        IncomparableRequest {
            sent,
            until: read,
            prompt_tokens: 5000,
        },
    );
    assert_eq!(journal.report().predicted_tokens, 0);
}

#[test]
fn readings_are_bounded_and_the_latest_are_kept() {
    let mut journal = Journal::new(SMALL);
    let mut told = (0, 0);
    journal.told(0, 0);
    for _ in 0..500 {
        told = requests(&mut journal, told, 1, 500, 500);
        journal.told(told.0, told.1);
    }
    assert_eq!(journal.path(), [Ok]);
    assert_eq!(journal.report().predicted_tokens, 127 * 500);
}

proptest! {
    /// Requests of 10 tokens end, and readings come to the book, in any order and as late as they like.
    #[test]
    fn a_request_stands_where_it_was_sent_however_late_it_ends_or_a_reading_comes(
        spans in prop::collection::vec((1..200_u64, 0..60_u64), 1..80),
        readings in prop::collection::vec((1..200_u64, 0..60_u64), 2..8),
    ) {
        enum CounterEvent {
            Ended(u64),
            Read(u64),
        }
        let mut news: Vec<(u64, CounterEvent)> = spans.iter().map(|(sent, took)| (sent + took, CounterEvent::Ended(*sent))).collect();
        news.extend(readings.iter().map(|(at, took)| (at + took, CounterEvent::Read(*at))));
        news.sort_by_key(|(when, _)| *when);
        let moment = |second: u64| Moment::at(Duration::from_secs(second));
        // Requests that the engine has seen by then.
        let seen = |at: u64| spans.iter().filter(|(sent, _)| *sent < at).count() as u64;
        let mut book = ParityTracker::new(ParitySettings { min_joined: 1000, ..SETTINGS });
        let mut taken: Vec<u64> = Vec::new();
        for (when, what) in news {
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
                    book.observe(moment(when), TARGET, sample);
                }
                CounterEvent::Read(at) => {
                    let counters = EngineCounters { at: moment(at), queries: 10 * seen(at), hits: 0 };
                    book.tick(moment(when), TARGET, Some(counters), Some(0));
                    // One that is overtaken is no news.
                    if taken.last().is_none_or(|latest| at > *latest) {
                        taken.push(at);
                    }
                }
            }
        }
        let (first, last) = (taken[0], taken[taken.len() - 1]);
        let expected = if first == last { 0 } else { 7 * (seen(last) - seen(first)) };
        prop_assert_eq!(book.summary(TARGET).report().predicted_tokens, expected);
    }
}
