//! Sessions that wait for their replies, in virtual time: every figure is the same in each run.

use std::{sync::atomic::AtomicBool, time::Duration};

use engine_model::Profile;
use kv_blocks::BlockSize;
use routing::Policy;
use simulate::{
    Cell, CellReport, RequestReport, SessionPlan, SessionReport, SimulationReport, SlowEngine,
    Synthetic, Trace, TracePace, TraceSummary, html, run, run_all, run_in_detail, sessions_for,
};

use super::{cell, read};

/// A turn of a session with a whole block for each id, `pause_ms` after the reply before it.
fn turn(session: &str, pause_ms: Option<u32>, ids: &[u64]) -> String {
    let tokens = ids.len() * 512;
    let delay = pause_ms.map_or_else(String::new, |ms| format!(r#""delay": {ms}, "#));
    format!(
        r#"{{"timestamp": 0, "session_id": "{session}", {delay}"input_length": {tokens}, "output_length": 1, "hash_ids": {ids:?}}}"#
    )
}

/// Three turns of one session, 8 and 5 s after the reply before each.
fn three_turns() -> Trace {
    let lines = [
        turn("a", None, &[1, 2]),
        turn("a", Some(8_000), &[1, 2, 3]),
        turn("a", Some(5_000), &[1, 2, 3, 4]),
    ];
    read(&lines.join("\n"))
}

fn plan(concurrent: u32, warm_up_s: u64, measured_s: u64) -> SessionPlan {
    SessionPlan {
        warm_up: Duration::from_secs(warm_up_s),
        measured: Duration::from_secs(measured_s),
        ..SessionPlan::new(concurrent)
    }
}

fn closed(policy: Policy, workers: u32, plan: SessionPlan) -> Cell {
    Cell {
        pace: TracePace::closed_loop(plan),
        ..cell(policy, workers)
    }
}

fn sessions(report: &CellReport) -> SessionReport {
    report.sessions.expect("it is a closed loop")
}

fn end_s(request: &RequestReport) -> f64 {
    request.arrival_s + request.e2e_ms.unwrap_or(f64::NAN) / 1e3
}

/// Times from each reply to the next request, in whole milliseconds, where one session runs at a
/// time; from the first end of a session on.
fn pauses_of_whole_sessions(cell: &Cell) -> Vec<f64> {
    let requests = run_in_detail(&three_turns(), cell).1;
    let pauses: Vec<f64> = requests
        .windows(2)
        .map(|pair| ((pair[1].arrival_s - end_s(&pair[0])) * 1e3).round())
        .collect();
    let end = pauses.iter().position(|pause| *pause == 0.0).unwrap();
    pauses[end + 1..].to_vec()
}

#[test]
fn a_request_comes_its_pause_after_the_reply_and_the_next_session_at_the_end_of_the_last() {
    let pauses = pauses_of_whole_sessions(&closed(Policy::RoundRobin, 1, plan(1, 0, 300)));
    assert!(pauses.len() > 30, "{pauses:?}");
    for (position, pause) in pauses.iter().enumerate() {
        assert_eq!(*pause, [8_000.0, 5_000.0, 0.0][position % 3], "{position}");
    }
}

#[test]
fn without_a_closed_loop_sessions_and_pauses_have_no_effect() {
    let lines = ["a", "a", "b"].map(|session| turn(session, Some(70_000), &[1, 2]));
    let plain = lines.each_ref().map(|line| {
        let (head, tail) = line.split_once(r#""session_id""#).unwrap();
        let (_, tail) = tail.split_once(r#""delay": 70000, "#).unwrap();
        format!("{head}{tail}")
    });
    let played = |lines: &[String]| run(&read(&lines.join("\n")), &cell(Policy::Warm, 2));
    assert_eq!(played(&lines), played(&plain));
    assert_eq!(played(&lines).sessions, None);
}

#[test]
fn pauses_that_a_trace_cut_at_a_minute_become_longer_and_others_do_not() {
    let lines = [
        turn("a", None, &[1]),
        turn("a", Some(60_000), &[1, 2]),
        turn("a", Some(59_000), &[1, 2, 3]),
    ];
    let trace = read(&lines.join("\n"));
    let plan = SessionPlan {
        mean_tail: Duration::from_secs(120),
        ..plan(1, 0, 36_000)
    };
    let requests = run_in_detail(&trace, &closed(Policy::RoundRobin, 1, plan)).1;
    let pauses: Vec<f64> = (requests.windows(2))
        .map(|pair| pair[1].arrival_s - end_s(&pair[0]))
        .filter(|pause| *pause > 1.0)
        .collect();
    let (short, long): (Vec<f64>, Vec<f64>) = pauses.iter().partition(|pause| **pause < 59.5);
    assert!(short.iter().all(|pause| (pause - 59.0).abs() < 1e-6));
    assert!(long.iter().all(|pause| *pause >= 60.0), "{long:?}");
    let mean = long.iter().sum::<f64>() / long.len() as f64;
    assert!((140.0..220.0).contains(&mean), "{mean}");
}

#[test]
fn runs_share_the_blocks_that_sessions_share_and_no_others() {
    let one = read(&turn("a", None, &[1, 2, 3]));
    let lines = [turn("a", None, &[1, 2, 3]), turn("b", None, &[1, 4, 5])];
    let two = read(&lines.join("\n"));
    let cell = closed(Policy::RoundRobin, 1, plan(1, 0, 120));
    let computed = |trace: &Trace| {
        let (report, requests) = run_in_detail(trace, &cell);
        let answered = requests.iter().filter(|request| request.ttft_ms.is_some());
        let computed: Vec<u32> = answered.map(|request| request.computed_tokens).collect();
        assert!(computed.len() > 100);
        (computed, sessions(&report).reuse_ratio)
    };
    let (alone, nothing_to_reuse) = computed(&one);
    assert!(alone.iter().all(|tokens| *tokens == 1_536));
    assert_eq!(nothing_to_reuse, 0.0);
    let (sharing, all_reused) = computed(&two);
    assert_eq!(sharing[0], 1_536);
    assert!(sharing[1..].iter().all(|tokens| *tokens == 1_024));
    assert_eq!(all_reused, 1.0);
}

#[test]
fn as_many_sessions_run_at_a_time_as_planned() {
    let cell = closed(Policy::LeastLoaded, 2, plan(5, 0, 300));
    let requests = run_in_detail(&three_turns(), &cell).1;
    let answered: Vec<&RequestReport> = (requests.iter())
        .filter(|request| request.e2e_ms.is_some())
        .collect();
    let most = answered.iter().map(|request| {
        let now = request.arrival_s;
        let open = answered
            .iter()
            .filter(|other| other.arrival_s <= now && now < end_s(other));
        open.count()
    });
    assert!(most.max().unwrap() <= 5);
    // Each session has one request on its way at the end of the run.
    assert_eq!(requests.len(), answered.len() + 5);
}

#[test]
fn turns_and_ended_sessions_are_those_of_the_measured_time() {
    let cell = closed(Policy::RoundRobin, 1, plan(4, 100, 600));
    let (report, requests) = run_in_detail(&three_turns(), &cell);
    let figures = sessions(&report);
    let turns = (requests.iter())
        .filter(|request| (100.0..=700.0).contains(&end_s(request)))
        .count();
    assert_eq!(figures.turns_per_minute, turns as f64 / 10.0);
    // A session takes 13 s and a little more.
    assert!((4 * 42..=4 * 46).contains(&figures.finished), "{figures:?}");
    assert_eq!(
        (figures.concurrent, figures.warm_up_s, figures.measured_s),
        (4, 100.0, 600.0)
    );
    assert_eq!(figures.longest_wait_ms, report.ttft_ms.max.unwrap());
    assert!(figures.ttft_p95_ms <= figures.longest_wait_ms);
    assert!(figures.ttft_p95_ms >= report.ttft_ms.p90.unwrap());
}

#[test]
fn progress_is_even_on_an_idle_fleet_and_uneven_where_half_of_the_engines_are_slow() {
    let lines: Vec<String> = (0..200u64)
        .map(|number| {
            let ids: Vec<u64> = (0..=number).collect();
            turn("a", Some(1_000), &ids)
        })
        .collect();
    let trace = read(&lines.join("\n"));
    // By a hash of the session, so that half of them meet the slow engine.
    let mut cell = closed(Policy::RendezvousHash, 2, plan(8, 30, 300));
    let even = sessions(&run(&trace, &cell)).jain_index;
    assert!(even > 0.99, "{even}");
    cell.faults.slow = vec![SlowEngine {
        worker: 0,
        times: 50.0,
    }];
    let uneven = sessions(&run(&trace, &cell)).jain_index;
    assert!(uneven < 0.97, "{uneven}");
}

#[test]
fn a_refused_request_comes_again_a_second_later_and_its_wait_goes_on() {
    let lines: Vec<String> = (16..22u64)
        .map(|blocks| {
            let ids: Vec<u64> = (0..blocks).collect();
            turn("a", (blocks > 16).then_some(5_000), &ids)
        })
        .collect();
    let trace = read(&lines.join("\n"));
    let mut cell = closed(Policy::Warm, 1, plan(40, 0, 300));
    let slowest = |cell: &Cell| {
        let (report, requests) = run_in_detail(&trace, cell);
        let early = requests.iter().filter(|request| request.arrival_s < 200.0);
        let unanswered = early.filter(|request| request.ttft_ms.is_none());
        assert_eq!(unanswered.count(), 0);
        sessions(&report).longest_wait_ms
    };
    let with_room = slowest(&cell);
    cell.routing.queue.max_entries = 1;
    let refused = slowest(&cell);
    assert!(
        with_room < 1_000.0 && refused > 1_000.0,
        "{with_room} and {refused}"
    );
}

fn agents() -> Trace {
    let size = BlockSize::new(64).unwrap();
    let workload: Synthetic = "agents?runs=30".parse().unwrap();
    let mut trace = Trace::read(&workload.text_with_sessions(size).unwrap(), size).unwrap();
    trace.drop_what_exceeds(&Profile::named("toy").unwrap());
    trace
}

fn toy(policy: Policy, seed: u64) -> Cell {
    Cell {
        profile: Profile::named("toy").unwrap(),
        seed,
        ..closed(policy, 2, plan(8, 60, 300))
    }
}

#[test]
fn equal_seeds_give_equal_reports_and_other_seeds_do_not() {
    let trace = agents();
    let bytes = |seed| serde_json::to_string(&run(&trace, &toy(Policy::Warm, seed))).unwrap();
    assert_eq!(bytes(1), bytes(1));
    assert_ne!(bytes(1), bytes(2));
}

#[test]
fn sessions_go_on_under_every_policy() {
    let trace = agents();
    for policy in Policy::ALL {
        let figures = sessions(&run(&trace, &toy(policy, 1)));
        assert!(figures.turns_per_minute > 1.0, "{policy}: {figures:?}");
        assert!(figures.finished > 0, "{policy}: {figures:?}");
        assert!((0.0..=1.0).contains(&figures.reuse_ratio), "{policy}");
        assert!((0.0..=1.0).contains(&figures.jain_index), "{policy}");
    }
}

/// Prompts of 8,192 tokens that nothing else has, one after the other in each session.
fn cold_prompts() -> Trace {
    let ids: Vec<u64> = (0..16).collect();
    read(&turn("a", None, &ids))
}

fn found(goal_ms: u64) -> CellReport {
    let goal = SessionPlan {
        ttft_goal: Some(Duration::from_millis(goal_ms)),
        ..plan(1_000, 60, 120)
    };
    let cells = [closed(Policy::LeastLoaded, 1, goal)];
    let never = AtomicBool::new(false);
    let mut reports = run_all(&cold_prompts(), &cells, 1, &never, &mut |_| ());
    reports.remove(0)
}

#[test]
fn the_search_finds_a_number_of_sessions_that_meets_the_goal_and_one_more_does_not() {
    let figures = sessions(&found(1_000));
    let goal = figures.goal.unwrap();
    assert!(goal.share_within >= SessionPlan::SHARE_WITHIN, "{goal:?}");
    assert_eq!(goal.ttft_ms, 1_000.0);
    assert_eq!(goal.most_sessions, figures.concurrent);
    // A prompt takes a seventh of a second alone.
    assert!((2..20).contains(&figures.concurrent), "{figures:?}");
    let more = SessionPlan {
        ttft_goal: Some(Duration::from_secs(1)),
        ..plan(figures.concurrent + 1, 60, 120)
    };
    let cell = closed(Policy::LeastLoaded, 1, more);
    let beyond = sessions(&run(&cold_prompts(), &cell));
    assert_eq!(beyond.goal.unwrap().most_sessions, 0, "{beyond:?}");
}

#[test]
fn a_goal_that_no_number_of_sessions_meets_has_the_report_of_one_session() {
    let figures = sessions(&found(1));
    assert_eq!(figures.concurrent, 1);
    let goal = figures.goal.unwrap();
    assert_eq!((goal.most_sessions, goal.share_within), (0, 0.0));
}

#[test]
fn a_multiple_of_the_caches_is_a_number_of_sessions_by_their_mean_length() {
    let lines = [turn("a", None, &[1]), turn("b", None, &[1, 2, 3])];
    let trace = read(&lines.join("\n"));
    let profile = Profile {
        // The mean prompt has 1,024 tokens and its reply one.
        kv_tokens: 10_250,
        ..Profile::named("toy").unwrap()
    };
    let numbers = [(1, 1.0), (2, 1.0), (2, 0.5), (1, 0.001)]
        .map(|(workers, ratio)| sessions_for(&trace, &profile, workers, ratio));
    assert_eq!(numbers, [10, 20, 10, 1]);
    let cell = Cell {
        profile,
        ..closed(Policy::Warm, 2, plan(10, 1, 1))
    };
    assert_eq!(sessions(&run(&trace, &cell)).capacity_ratio, 0.5);
}

#[test]
fn the_page_of_closed_loops_has_their_numbers_of_sessions_and_their_figures() {
    let trace = agents();
    let report = SimulationReport {
        schema: SimulationReport::SCHEMA,
        trace: TraceSummary::of("agents".to_owned(), &trace),
        profile: "toy",
        fit: None,
        seed: 1,
        cells: vec![run(&trace, &toy(Policy::Warm, 1))],
    };
    let page = html::page(&report);
    for part in [
        "the first 60 s are not counted",
        "<figcaption>Turns per minute",
        "<figcaption>Share of the available reuse (%)",
        "<figcaption>warm, 8 sessions, 2 engines",
        "<th>turns/min</th>",
    ] {
        assert!(page.contains(part), "{part}");
    }
}
