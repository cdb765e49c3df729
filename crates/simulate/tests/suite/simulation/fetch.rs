//! Engines that read blocks from each other.

use std::time::Duration;

use engine_model::Profile;
use kv_blocks::BlockSize;
use routing::Policy;
use simulate::{
    Cell, CellReport, FetchLink, SessionPlan, Synthetic, Trace, TracePace, run, sessions_for,
};

use super::{cell, line, read};

const LINK: FetchLink = FetchLink {
    gb_per_s: 10.0,
    floor: Duration::from_millis(5),
};

/// Ten documents of 20,480 tokens, each read once; three seconds later eight long questions about it
/// come at once, when played three times faster.
fn questions() -> Trace {
    let mut lines = Vec::new();
    for document in 0..10u32 {
        let first = u64::from(document) * 1_000;
        let at_ms = document * 20_000;
        let ids: Vec<u64> = (first..first + 40).collect();
        lines.push(line(at_ms, &ids, 1));
        for question in 0..8u64 {
            let own = first + 100 + 10 * question;
            let asked: Vec<u64> = ids.iter().copied().chain(own..own + 8).collect();
            lines.push(line(at_ms + 10_000, &asked, 1));
        }
    }
    read(&lines.join("\n"))
}

/// Eight engines that compute slowly, with or without connections between them.
fn slow_engines(link: Option<FetchLink>) -> Cell {
    let cell = Cell {
        profile: Profile::named("70b-h100x2").unwrap(),
        pace: TracePace::faster(3.0),
        ..cell(Policy::Warm, 8)
    };
    cell.with_fetch(link)
}

#[test]
fn with_room_in_the_caches_first_tokens_come_sooner_and_less_is_computed() {
    let trace = questions();
    let mean = |link| run(&trace, &slow_engines(link)).ttft_ms.mean;
    let (without, with) = (mean(None), mean(Some(LINK)));
    assert!(with < 0.9 * without, "{with} ms with, {without} ms without");
    // A connection that takes longer than to compute is not used for long.
    let slow = mean(Some(FetchLink {
        gb_per_s: 0.5,
        ..LINK
    }));
    assert!(slow < 1.5 * without, "{slow} ms, {without} ms without");
}

#[test]
fn equal_seeds_give_equal_reports_and_a_policy_that_reads_nothing_is_unchanged() {
    let trace = questions();
    let bytes = |cell: &Cell| serde_json::to_string(&run(&trace, cell)).unwrap();
    let reading = slow_engines(Some(LINK));
    assert_eq!(bytes(&reading), bytes(&reading));
    let blocks = |link| {
        let cell = Cell {
            routing: cell(Policy::DynamoCost, 8).routing,
            ..slow_engines(None)
        };
        bytes(&cell.with_fetch(link))
    };
    assert_eq!(blocks(None), blocks(Some(LINK)));
}

/// Agents whose sessions need this multiple of the tokens in the caches of four engines.
fn agents(ratio: f64, link: Option<FetchLink>) -> CellReport {
    let size = BlockSize::new(64).unwrap();
    let workload: Synthetic = "agents?runs=60".parse().unwrap();
    let mut trace = Trace::read(&workload.text_with_sessions(size).unwrap(), size).unwrap();
    let profile = Profile::named("toy").unwrap();
    trace.drop_what_exceeds(&profile);
    let plan = SessionPlan {
        warm_up: Duration::from_secs(120),
        measured: Duration::from_secs(600),
        ..SessionPlan::new(sessions_for(&trace, &profile, 4, ratio))
    };
    let cell = Cell {
        profile,
        pace: TracePace::closed_loop(plan),
        ..cell(Policy::Warm, 4)
    };
    run(&trace, &cell.with_fetch(link))
}

#[test]
fn near_capacity_reads_cost_no_turns() {
    for ratio in [0.8, 1.0] {
        let turns = |link| {
            let report = agents(ratio, link);
            report.sessions.expect("a closed loop").turns_per_minute
        };
        let (without, with) = (turns(None), turns(Some(LINK)));
        assert!(with > 0.93 * without, "{ratio}: {with} of {without}");
    }
}
