//! The comparison table: a row for each contender, with figures that follow from the requests.

use std::time::Duration;

use engine_model::Profile;
use kv_blocks::BlockSize;
use routing::{AdmissionMode, Policy};
use simulate::{
    CONTENDERS, Cell, ComparedPace, ComparedTrace, ComparisonPlan, ComparisonReport, ComparisonRow,
    SessionPlan, Synthetic, Trace, TracePace, compare, run, speedup_for,
};

use super::{cell, line, read};

/// Four requests, ten seconds apart. All but the last token's block of the second and of the third are
/// in the prompts before them.
fn recorded() -> Trace {
    let prompts: [&[u64]; 4] = [&[1, 2], &[1, 2, 3], &[1, 2, 3], &[9]];
    let lines: Vec<String> = (0..)
        .zip(prompts)
        .map(|(number, ids)| line(number * 10_000, ids, 3))
        .collect();
    read(&lines.join("\n"))
}

fn agents() -> Trace {
    let size = BlockSize::new(512).unwrap();
    let workload: Synthetic = "agents?runs=20".parse().unwrap();
    Trace::read(&workload.text_with_sessions(size).unwrap(), size).unwrap()
}

/// One engine with little to do.
fn calm() -> ComparisonPlan {
    ComparisonPlan {
        workers: 1,
        loads: vec![0.01],
        ..ComparisonPlan::new(Profile::named("8b-h200").unwrap())
    }
}

/// Short closed loops on slow engines.
fn short_loops() -> ComparisonPlan {
    ComparisonPlan {
        workers: 2,
        capacity_ratios: vec![0.5],
        warm_up: Duration::from_secs(60),
        measured: Duration::from_secs(300),
        ..ComparisonPlan::new(Profile::named("toy").unwrap())
    }
}

fn prepared(plan: &ComparisonPlan, trace: Trace) -> ComparedTrace {
    plan.prepare("trace".to_owned(), trace).unwrap()
}

fn report(plan: &ComparisonPlan, trace: Trace) -> ComparisonReport {
    compare(&[prepared(plan, trace)], plan, 2, &mut |_, _| ())
}

fn of_policy(report: &ComparisonReport, cell: usize, policy: Policy) -> ComparisonRow {
    let rows = report.cells[cell].rows.iter();
    let mut wanted = rows.filter(|row| row.contender.policy == policy);
    *wanted.next().unwrap()
}

#[test]
fn the_figures_of_recorded_arrivals_follow_from_the_requests() {
    let plan = calm();
    let minutes = 30.0 / speedup_for(&recorded(), &plan.profile, 1, 0.01) / 60.0;
    let report = report(&plan, recorded());
    assert_eq!(report.cells.len(), 1);
    assert_eq!(report.cells[0].rows.len(), CONTENDERS.len());
    for row in &report.cells[0].rows {
        assert_eq!(row.reuse_ratio, Some(1.0), "{}", row.contender.name);
        assert_eq!(row.prefill_imbalance, 1.0);
        assert_eq!(row.sessions, None);
        assert!((row.turns_per_minute * minutes - 4.0).abs() < 0.01);
        assert!(row.ttft_p95_ms > 14.0, "{}", row.ttft_p95_ms);
    }
    assert!(report.losses.is_empty(), "all contenders have one engine");
}

#[test]
fn a_turn_whose_first_token_comes_after_the_slo_does_not_count() {
    let plan = ComparisonPlan {
        ttft_slo: Duration::from_millis(1),
        ..calm()
    };
    for row in &report(&plan, recorded()).cells[0].rows {
        assert_eq!(row.turns_per_minute, 0.0, "{}", row.contender.name);
    }
}

#[test]
fn prompts_that_repeat_nothing_have_no_share_of_the_reuse() {
    let trace = read(&[line(0, &[1, 2], 3), line(9_000, &[3, 4], 3)].join("\n"));
    for row in &report(&calm(), trace).cells[0].rows {
        assert_eq!(row.reuse_ratio, None, "{}", row.contender.name);
    }
}

#[test]
fn recorded_arrivals_are_cut_and_requests_that_no_engine_holds_are_left_out() {
    let plan = ComparisonPlan {
        most_requests: 2,
        ..calm()
    };
    assert_eq!(report(&plan, recorded()).cells[0].requests, 2);
    let small = ComparisonPlan {
        profile: Profile {
            kv_tokens: 512,
            ..plan.profile
        },
        ..plan
    };
    assert!(small.prepare("trace".to_owned(), recorded()).is_none());
}

#[test]
fn sessions_are_played_in_a_closed_loop_by_the_same_figures_as_alone() {
    let plan = ComparisonPlan {
        ttft_slo: Duration::from_secs(3_600),
        ..short_loops()
    };
    let report = report(&plan, agents());
    assert_eq!(report.cells.len(), 1);
    assert_eq!(report.cells[0].pace, ComparedPace::CapacityRatio(0.5));
    let row = of_policy(&report, 0, Policy::RoundRobin);
    let mut trace = agents();
    trace.drop_what_exceeds(&plan.profile);
    let alone = Cell {
        profile: plan.profile,
        pace: TracePace::closed_loop(SessionPlan {
            warm_up: plan.warm_up,
            measured: plan.measured,
            ..SessionPlan::new(row.sessions.unwrap())
        }),
        ..cell(Policy::RoundRobin, 2)
    };
    let sessions = run(&trace, &alone).sessions.unwrap();
    assert_eq!(row.turns_per_minute, sessions.turns_per_minute);
    assert_eq!(row.reuse_ratio, Some(sessions.reuse_ratio));
    assert_eq!(row.ttft_p95_ms, sessions.ttft_p95_ms);
}

#[test]
fn the_search_adds_a_cell_with_a_number_of_sessions_for_each_contender() {
    let plan = ComparisonPlan {
        finds_sessions: true,
        capacity_ratios: Vec::new(),
        ttft_slo: Duration::from_secs(10),
        workers: 1,
        measured: Duration::from_secs(120),
        ..short_loops()
    };
    let report = report(&plan, agents());
    let cell = &report.cells[0];
    assert_eq!(report.cells.len(), 1);
    assert_eq!(cell.pace, ComparedPace::MostSessions);
    for row in &cell.rows {
        if row.sessions > Some(0) {
            assert!(row.turns_per_minute > 0.0, "{}", row.contender.name);
            assert!(row.ttft_p95_ms <= 10_000.0, "{}", row.contender.name);
        } else {
            assert_eq!(row.turns_per_minute, 0.0, "{}", row.contender.name);
        }
    }
    assert!(of_policy(&report, 0, Policy::Warm).sessions > Some(0));
}

#[test]
fn the_number_of_threads_changes_nothing_and_the_progress_counts_every_run() {
    let plan = calm();
    let traces = [prepared(&plan, recorded()), prepared(&plan, recorded())];
    let mut seen = Vec::new();
    let one = compare(&traces, &plan, 1, &mut |done, all| seen.push((done, all)));
    let runs = 2 * CONTENDERS.len();
    let expected: Vec<_> = (0..=runs).map(|done| (done, runs)).collect();
    assert_eq!(seen, expected);
    let three = compare(&traces, &plan, 3, &mut |_, _| ());
    assert_eq!(one, three);
    assert_eq!(one.markdown(), three.markdown());
    assert_eq!(one.plot(), three.plot());
}

#[test]
fn where_everything_fits_into_the_caches_admission_changes_nothing() {
    let report = report(&calm(), recorded());
    let rows = &report.cells[0].rows;
    let of = |admission| {
        let mut rows = rows.iter().filter(|row| {
            row.contender.policy == Policy::Warm && row.contender.admission == admission
        });
        rows.next().map(|row| {
            (
                row.reuse_ratio,
                row.turns_per_minute,
                row.ttft_p95_ms,
                row.prefill_imbalance,
            )
        })
    };
    assert!(of(AdmissionMode::Off).is_some());
    assert_eq!(of(AdmissionMode::LiveSet), of(AdmissionMode::Off));
}
