//! Targets for the time to first token: the share that meets them, and the predictions.

use std::time::Duration;

use routing::Policy;
use simulate::{Cell, SloReport, run};

use super::{cell, line, read};

fn aimed(policy: Policy, ttft_ms: u64) -> Cell {
    let mut cell = cell(policy, 1);
    cell.routing.section.slo.ttft = Some(Duration::from_millis(ttft_ms));
    cell
}

fn slo(lines: &[String], cell: &Cell) -> SloReport {
    let report = run(&read(&lines.join("\n")), cell);
    report.slo.expect("there is a target")
}

#[test]
fn the_met_share_counts_first_tokens_within_the_target() {
    // About 34 ms and 215 ms.
    let long: Vec<u64> = (10..30).collect();
    let lines = [line(0, &[1, 2], 3), line(10_000, &long, 3)];
    for (ttft_ms, share) in [(10, 0.0), (100, 0.5), (1_000, 1.0)] {
        let slo = slo(&lines, &aimed(Policy::RoundRobin, ttft_ms));
        assert_eq!((slo.ttft_ms, slo.met_share), (ttft_ms as f64, share));
        assert_eq!(slo.predictions, None, "it has no time model");
    }
    let without = run(&read(&lines.join("\n")), &cell(Policy::Warm, 1));
    assert_eq!(without.slo, None);
}

#[test]
fn predictions_are_close_once_the_speed_is_known() {
    let lines: Vec<String> = (0..100u32)
        .map(|number| {
            let first = u64::from(number) * 100;
            let blocks = u64::from(number % 8) + 1;
            let ids: Vec<u64> = (first..first + blocks).collect();
            line(number * 2_000, &ids, 2)
        })
        .collect();
    let slo = slo(&lines, &aimed(Policy::Warm, 1_000));
    let predictions = slo.predictions.expect("warm has a time model");
    assert_eq!(predictions.requests, 90);
    assert!(predictions.close_share > 0.8, "{predictions:?}");
    assert!(predictions.p05 <= predictions.p50 && predictions.p50 <= predictions.p95);
}

#[test]
fn short_prompts_meet_a_target_that_first_come_first_served_misses() {
    let long = |first: u64| (first..first + 64).collect::<Vec<u64>>();
    let mut lines = vec![line(0, &long(1_000), 1), line(1, &long(2_000), 1)];
    lines.extend((0..10).map(|number| line(2 + number, &[u64::from(number) + 1], 1)));
    // Each of the long ones takes a second.
    let met = |policy| slo(&lines, &aimed(policy, 1_500)).met_share;
    assert_eq!(met(Policy::RoundRobin), 0.0);
    assert!(met(Policy::Warm) > 0.9, "all but the second long one");
}

#[test]
fn a_refused_request_misses_its_target() {
    let mut cell = aimed(Policy::Warm, 1);
    cell.routing.section.slo.refuse = true;
    // The first one shows the speed of the worker.
    let trace = read(&[line(0, &[1, 2], 3), line(1, &[3, 4], 3)].join("\n"));
    let report = run(&trace, &cell);
    assert_eq!((report.finished, report.unfinished), (1, 1));
    let slo = report.slo.expect("there is a target");
    assert_eq!(slo.met_share, 0.0);
    assert_eq!(slo.predictions.map(|known| known.requests), Some(1));
}
