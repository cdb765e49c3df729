//! Several routers in front of one fleet against one. `docs/benchmarks/replicas.md` has more cells.

use routing::RoutingSettings;
use simulate::{Cell, CellReport, ReplicaPlan, TracePace, run};

use super::{
    figure::CellFigure,
    workloads::{self, QualityWorkload},
};

const WORKERS: u32 = 8;
const LOAD: f64 = 0.55;
/// As in the quality gate: single runs have different histories.
const PACES: [f64; 7] = [-0.006, -0.004, -0.002, 0.0, 0.002, 0.004, 0.006];

/// One report for each pace.
fn played(workload: &QualityWorkload, replicas: ReplicaPlan) -> Vec<CellReport> {
    let play = |(seed, faster): (u64, f64)| {
        let mut pace = TracePace::for_load(&workload.trace, &workload.profile, WORKERS, LOAD);
        pace.speedup *= 1.0 + faster;
        let cell = Cell::new(RoutingSettings::default(), WORKERS, pace, workload.profile);
        run(
            &workload.trace,
            &Cell {
                replicas,
                seed,
                ..cell
            },
        )
    };
    (1..).zip(PACES).map(play).collect()
}

fn mean(reports: &[CellReport], figure: CellFigure) -> f64 {
    reports.iter().map(|report| figure.of(report)).sum::<f64>() / reports.len() as f64
}

#[test]
fn three_routers_with_load_sync_do_as_well_as_one() {
    let routers = |routers, load_sync| ReplicaPlan {
        routers,
        load_sync,
        ..ReplicaPlan::default()
    };
    for workload in workloads::all() {
        // Near saturation; see the page.
        if workload.name == "agents" {
            continue;
        }
        let one = played(&workload, routers(1, false));
        let three = played(&workload, routers(3, true));
        for figure in [CellFigure::TtftMean, CellFigure::Imbalance] {
            let loss = figure.loss(mean(&one, figure), mean(&three, figure));
            assert!(
                loss <= 5.0,
                "{}: {loss:.1} % of {}",
                workload.name,
                figure.name()
            );
        }
        assert!(three.iter().all(|report| report.unfinished == 0));
    }
}

#[test]
fn routers_that_know_nothing_of_each_other_do_worse() {
    let workload = workloads::all().swap_remove(0);
    let apart = ReplicaPlan {
        routers: 3,
        ..ReplicaPlan::default()
    };
    let ttft = |replicas| mean(&played(&workload, replicas), CellFigure::TtftMean);
    let (one, three) = (ttft(ReplicaPlan::default()), ttft(apart));
    assert!(three > 1.1 * one, "{three} and {one}");
}
