//! Times computed by hand.

use engine_model::Profile;
use routing::Policy;
use simulate::{CellReport, run};

use super::{cell, line, read};

/// Constants of the profile 8b-h200, in ms.
const OVERHEAD: f64 = 14.1;
const STEP: f64 = 4.452;
const SEQUENCE: f64 = 0.022_24;
const KV_TOKEN: f64 = 3.159_6e-5;

fn prefill(start: f64, end: f64) -> f64 {
    0.014_109_7 * (end - start) + 4.919e-7 * (end * end - start * start)
}

fn decode(context: f64) -> f64 {
    STEP + SEQUENCE + KV_TOKEN * context
}

fn close(got: f64, want: f64) {
    assert!((got - want).abs() < 1.1e-3, "{got} is not {want}");
}

fn single_engine(lines: &[String]) -> CellReport {
    run(&read(&lines.join("\n")), &cell(Policy::RoundRobin, 1))
}

#[test]
fn a_cold_prompt_takes_overhead_step_and_prefill_and_each_token_a_step() {
    let report = single_engine(&[line(0, &[1, 2], 3)]);
    let first = OVERHEAD + STEP + prefill(0.0, 1024.0);
    close(report.ttft_ms.mean, first);
    let tokens = decode(1025.0) + decode(1026.0);
    close(report.itl_ms.mean, tokens / 2.0);
    close(report.e2e_ms.mean, first + tokens);
    assert_eq!(
        (report.finished, report.unfinished, report.block_hit_ratio),
        (1, 0, 0.0)
    );
}

#[test]
fn cached_tokens_are_not_computed_and_an_arrival_waits_for_the_current_step() {
    let report = single_engine(&[
        line(0, &[1, 2], 1),
        line(10_000, &[1, 2, 3], 2),
        line(10_005, &[4], 1),
    ]);
    let cold = OVERHEAD + STEP + prefill(0.0, 1024.0);
    let warm = OVERHEAD + STEP + prefill(1024.0, 1536.0);
    // Its overhead ends before the second request's first step; that one then decodes beside its
    // prefill.
    let waited = (warm - 5.0) + decode(1537.0) + prefill(0.0, 512.0);
    close(report.ttft_ms.mean, (cold + warm + waited) / 3.0);
    close(report.ttft_ms.max.unwrap(), cold.max(warm).max(waited));
    assert_eq!(report.token_hit_ratio, 0.333_333, "1024 tokens of 3072");
    assert_eq!(report.per_worker[0].hit_tokens, 1024);
    assert_eq!(report.per_worker[0].computed_tokens, 2048);
}

#[test]
fn the_last_token_of_a_cached_prompt_is_computed_again_with_its_block() {
    let report = single_engine(&[line(0, &[1, 2], 1), line(10_000, &[1, 2], 1)]);
    assert_eq!(report.per_worker[0].hit_tokens, 512);
}

#[test]
fn the_first_tenth_of_requests_is_warm_up_and_not_counted() {
    let lines: Vec<String> = (0..20)
        .map(|number| line(number * 10_000, &[1, 2], 1))
        .collect();
    let report = single_engine(&lines);
    assert_eq!(report.finished, 18);
    assert_eq!(
        report.block_hit_ratio, 0.5,
        "the cold one is not among them"
    );
    assert_eq!(report.per_worker[0].computed_tokens, 18 * 512);
}

#[test]
fn a_request_unfinished_900_seconds_after_the_last_arrival_counts_with_its_age() {
    let trace = read(&[line(0, &[1], 1_000_000), line(1_000, &[2], 1)].join("\n"));
    let mut cell = cell(Policy::RoundRobin, 1);
    cell.profile = Profile {
        kv_tokens: 2_000_000,
        ..cell.profile
    };
    let report = run(&trace, &cell);
    assert_eq!((report.finished, report.unfinished), (1, 1));
    assert!(
        report.ttft_ms.max.unwrap() < 1_000.0,
        "its first token came"
    );
    let short = 2.0 * report.e2e_ms.mean - 901_000.0;
    assert!((10.0..1_000.0).contains(&short), "{short} ms");
}

#[test]
fn a_higher_pace_shortens_the_gaps_between_requests() {
    let trace = read(&[line(0, &[1], 1), line(1_000, &[2], 1)].join("\n"));
    let mut cell = cell(Policy::RoundRobin, 1);
    let mut ttft = |speedup: f64| {
        cell.pace.speedup = speedup;
        run(&trace, &cell).ttft_ms.max.unwrap()
    };
    let (slow, fast) = (ttft(1.0), ttft(1_000.0));
    assert!(
        fast > slow,
        "{fast} ms with both at once, {slow} ms one by one"
    );
}
