//! The first 300 requests of a public trace, with the figures of another simulator of the same
//! engine model.

use routing::Policy;
use simulate::{CellReport, TracePace, infinite_hit_ratio, run};

use super::{cell, read};

const CONVERSATION: &str =
    include_str!("../../../../../tests/fixtures/traces/conversation-300.jsonl");

fn report(policy: Policy, workers: u32, seed: u64) -> CellReport {
    let trace = read(CONVERSATION);
    let mut cell = cell(policy, workers);
    cell.pace = TracePace::for_load(&trace, &cell.profile, workers, 0.55);
    cell.seed = seed;
    run(&trace, &cell)
}

fn to(decimals: usize, figures: &[f64]) -> Vec<String> {
    figures
        .iter()
        .map(|figure| format!("{figure:.decimals$}"))
        .collect()
}

#[test]
fn round_robin_agrees_to_the_last_printed_digit() {
    for (workers, speedup, hits, ttft, itl) in [
        (
            2,
            "0.554",
            ["0.0455", "0.0463"],
            ["1097.4", "306.5", "3676.0", "8331.3"],
            ["15.38", "67.60"],
        ),
        (
            4,
            "1.127",
            ["0.0601", "0.0611"],
            ["996.5", "304.2", "3378.6", "7232.2"],
            ["13.07", "52.22"],
        ),
    ] {
        let report = report(Policy::RoundRobin, workers, 1);
        assert_eq!((report.finished, report.unfinished), (270, 0));
        assert_eq!(to(3, &[report.pace.speedup]), [speedup]);
        assert_eq!(
            to(4, &[report.block_hit_ratio, report.token_hit_ratio]),
            hits
        );
        let times = report.ttft_ms;
        assert_eq!(
            to(
                1,
                &[
                    times.mean,
                    times.p50.unwrap(),
                    times.p90.unwrap(),
                    times.p99
                ]
            ),
            ttft
        );
        assert_eq!(to(2, &[report.itl_ms.mean, report.itl_ms.p99]), itl);
    }
}

#[test]
fn the_trace_is_read_as_by_the_reference_simulator() {
    let trace = read(CONVERSATION);
    assert_eq!(
        (trace.requests.len(), trace.blocks(), trace.dropped),
        (300, 8_490, 0)
    );
    assert_eq!(to(4, &[infinite_hit_ratio(&trace)]), ["0.0796"]);
}

#[test]
fn equal_seeds_give_equal_reports_and_other_seeds_do_not() {
    let bytes = |seed| serde_json::to_string(&report(Policy::Random, 4, seed)).unwrap();
    assert_eq!(bytes(1), bytes(1));
    assert_ne!(bytes(1), bytes(2));
}

#[test]
fn every_policy_finishes_every_request() {
    for policy in Policy::ALL {
        let report = report(policy, 4, 1);
        assert_eq!((report.finished, report.unfinished), (270, 0), "{policy}");
        assert_eq!(
            report
                .per_worker
                .iter()
                .map(|worker| worker.requests)
                .sum::<u64>(),
            270,
            "{policy}"
        );
    }
}
