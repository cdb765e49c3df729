//! Fleets with faults.

use std::time::Duration;

use routing::{CacheSource, Policy};
use simulate::{FaultPlan, LostView, SlowEngine, run, run_in_detail};

use super::{cell, line, read};

#[test]
fn a_slow_engine_multiplies_all_its_times() {
    let trace = read(&line(0, &[1, 2], 5));
    let mut cell = cell(Policy::RoundRobin, 1);
    let usual = run(&trace, &cell);
    cell.faults = FaultPlan {
        slow: vec![SlowEngine {
            worker: 0,
            times: 3.0,
        }],
        ..FaultPlan::default()
    };
    let slow = run(&trace, &cell);
    assert!((slow.ttft_ms.mean / usual.ttft_ms.mean - 3.0).abs() < 1e-3);
    assert!((slow.itl_ms.mean / usual.itl_ms.mean - 3.0).abs() < 1e-3);
}

#[test]
fn other_engines_keep_their_speed() {
    let trace = read(&[line(0, &[1], 5), line(0, &[2], 5)].join("\n"));
    let mut cell = cell(Policy::RoundRobin, 2);
    let usual = run_in_detail(&trace, &cell).1[1].ttft_ms;
    cell.faults = FaultPlan {
        slow: vec![SlowEngine {
            worker: 0,
            times: 3.0,
        }],
        ..FaultPlan::default()
    };
    assert_eq!(run_in_detail(&trace, &cell).1[1].ttft_ms, usual);
}

/// A prompt, two others, and the first one's next turn a second later: only a router that knows the
/// cache sends it back there.
fn computed_of_follow_up(change: impl FnOnce(&mut simulate::Cell)) -> u32 {
    let lines = [
        line(0, &[1, 2, 3, 4], 1),
        line(100, &[9], 1),
        line(200, &[8], 1),
        line(1_000, &[1, 2, 3, 4, 5], 1),
    ];
    let mut cell = cell(Policy::KvAware, 2);
    cell.routing.section.speculative = false;
    change(&mut cell);
    run_in_detail(&read(&lines.join("\n")), &cell).1[3].computed_tokens
}

#[test]
fn a_follow_up_does_not_return_to_a_forgotten_cache() {
    let forgotten = |worker, ms| LostView {
        worker,
        at: Duration::from_millis(ms),
    };
    assert_eq!(computed_of_follow_up(|_| ()), 512);
    assert_eq!(
        computed_of_follow_up(|cell| cell.faults.forgotten = vec![forgotten(0, 600)]),
        5 * 512
    );
    assert_eq!(
        computed_of_follow_up(|cell| cell.faults.forgotten = vec![forgotten(1, 600)]),
        512,
        "another one's"
    );
    assert_eq!(
        computed_of_follow_up(|cell| cell.faults.forgotten = vec![forgotten(7, 600)]),
        512,
        "nobody's"
    );
}

#[test]
fn without_events_the_router_uses_its_own_decisions() {
    let silent = |cell: &mut simulate::Cell| {
        cell.cache = CacheSource::Predicted;
        cell.event_loss = 1.0;
    };
    assert_eq!(computed_of_follow_up(silent), 512);
}

#[test]
fn every_request_is_reported_with_its_engine_and_times() {
    let trace = read(&[line(0, &[1, 2], 1), line(500, &[1, 2, 3], 1)].join("\n"));
    let (report, requests) = run_in_detail(&trace, &cell(Policy::Warm, 2));
    assert_eq!(requests.len(), 2);
    assert_eq!(
        (
            requests[1].arrival_s,
            requests[1].computed_tokens,
            requests[1].queued
        ),
        (0.5, 512, false)
    );
    assert_eq!(
        requests[0].worker, requests[1].worker,
        "where its beginning is"
    );
    let mean = requests
        .iter()
        .filter_map(|request| request.ttft_ms)
        .sum::<f64>()
        / 2.0;
    assert!((report.ttft_ms.mean - mean).abs() < 1e-3);
}
