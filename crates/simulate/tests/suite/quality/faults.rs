//! The cost of faults. `docs/benchmarks/simulator.md` has the figures of faults that cost more than
//! these bounds.

use std::time::Duration;

use routing::RoutingSettings;
use simulate::{Cell, FaultPlan, LostView, RequestReport, SlowEngine, TracePace, run_in_detail};

use super::workloads::{self, QualityWorkload};

const WORKERS: u32 = 4;
const LOADS: [f64; 2] = [0.3, 0.55];
/// As in the quality gate: single runs have different histories.
const PACES: [f64; 5] = [-0.008, -0.004, 0.0, 0.004, 0.008];

fn named(names: &[&str]) -> Vec<QualityWorkload> {
    workloads::all()
        .into_iter()
        .filter(|workload| names.contains(&workload.name))
        .collect()
}

/// All requests of all paces.
fn played(workload: &QualityWorkload, load: f64, change: &dyn Fn(&mut Cell)) -> Vec<RequestReport> {
    let play = |faster: f64| {
        let mut pace = TracePace::for_load(&workload.trace, &workload.profile, WORKERS, load);
        pace.speedup *= 1.0 + faster;
        let mut cell = Cell::new(RoutingSettings::default(), WORKERS, pace, workload.profile);
        change(&mut cell);
        run_in_detail(&workload.trace, &cell).1
    };
    PACES.into_iter().flat_map(play).collect()
}

fn mean_ttft(requests: &[RequestReport]) -> f64 {
    requests
        .iter()
        .map(|request| request.ttft_ms.unwrap())
        .sum::<f64>()
        / requests.len() as f64
}

fn assert_costs_at_most_5_percent(names: &[&str], change: &dyn Fn(&mut Cell)) {
    for workload in named(names) {
        for load in LOADS {
            let (usual, changed) = (
                played(&workload, load, &|_| ()),
                played(&workload, load, change),
            );
            let cost = mean_ttft(&changed) / mean_ttft(&usual) - 1.0;
            assert!(
                cost <= 0.05,
                "{}, load {load}: {:.1} % of mean TTFT",
                workload.name,
                100.0 * cost
            );
        }
    }
}

#[test]
fn events_with_2_seconds_of_delay_cost_at_most_5_percent_of_the_mean_ttft() {
    assert_costs_at_most_5_percent(&["mixed", "chat", "tenants"], &|cell| {
        cell.event_delay = Duration::from_secs(2)
    });
}

#[test]
fn a_loss_of_a_tenth_of_all_messages_costs_at_most_5_percent_of_the_mean_ttft() {
    assert_costs_at_most_5_percent(&["mixed", "chat", "tenants"], &|cell| cell.event_loss = 0.1);
}

#[test]
fn thirty_seconds_after_a_lost_view_routing_is_as_good_as_without_the_loss() {
    // Chats at low load return after more than half a minute, and their cold prompts spread like
    // others.
    let played_at = [
        ("mixed", LOADS[0]),
        ("mixed", LOADS[1]),
        ("chat", LOADS[1]),
        ("tenants", LOADS[1]),
    ];
    for (name, load) in played_at {
        let [workload] = &named(&[name])[..] else {
            panic!("{name} is gone")
        };
        let usual = played(workload, load, &|_| ());
        let lost_at = usual.last().unwrap().arrival_s / 2.0;
        let forgotten = LostView {
            worker: 0,
            at: Duration::from_secs_f64(lost_at),
        };
        let wiped = played(workload, load, &|cell| {
            cell.faults.forgotten = vec![forgotten]
        });
        let later = |requests: &[RequestReport]| {
            let later = requests
                .iter()
                .filter(|request| request.arrival_s > lost_at + 30.0);
            mean_ttft(&later.copied().collect::<Vec<_>>())
        };
        let cost = later(&wiped) / later(&usual) - 1.0;
        assert!(
            cost <= 0.05,
            "{name}, load {load}: {:.1} % of mean TTFT",
            100.0 * cost
        );
    }
}

/// The share of the tokens that an engine computed, after a minute in which it was three times slower
/// than the rest, as a multiple of what it can compute in the same time.
fn part_of_fair_share(workload: &QualityWorkload, load: f64) -> f64 {
    let slow = SlowEngine {
        worker: 0,
        times: 3.0,
    };
    let fair = (1.0 / slow.times) / (f64::from(WORKERS - 1) + 1.0 / slow.times);
    let requests = played(workload, load, &|cell| {
        cell.faults = FaultPlan {
            slow: vec![slow],
            ..FaultPlan::default()
        }
    });
    let later = requests.iter().filter(|request| request.arrival_s > 60.0);
    let computed = |worker: Option<usize>| {
        let there = later
            .clone()
            .filter(|request| worker.is_none() || request.worker == worker);
        there
            .map(|request| u64::from(request.computed_tokens))
            .sum::<u64>() as f64
    };
    computed(Some(0)) / computed(None) / fair
}

#[test]
fn an_engine_three_times_slower_than_the_rest_gets_no_more_than_its_share_after_a_minute() {
    for workload in named(&["mixed", "chat", "tenants"]) {
        for load in LOADS {
            let part = part_of_fair_share(&workload, load);
            assert!(
                part <= 1.0,
                "{}, load {load}: {part:.2} of its fair share",
                workload.name
            );
        }
    }
}

/// Not so agents and tenants with long prompts: a cold one takes seconds more there.
#[test]
fn a_slow_engine_gets_a_good_part_of_its_share_where_the_others_are_busy() {
    for workload in named(&["mixed", "chat"]) {
        let load = LOADS[1];
        let part = part_of_fair_share(&workload, load);
        assert!(
            part >= 0.4,
            "{}, load {load}: {part:.2} of its fair share",
            workload.name
        );
    }
}
