//! Routing quality compared with golden values: a change that loses 2 % fails here and names the
//! cell.
//!
//! `WARMROUTE_WRITE_GOLDEN=1 cargo test -p simulate --test suite quality::` rewrites
//! `golden.csv`; `docs/benchmarks/routing.md` says when that is right.

mod comparison;
mod faults;
mod figure;
mod golden;
mod herd;
mod hot_prefix;
mod measured;
mod workloads;

use routing::{RoutingSection, RoutingSettings};

use self::{
    figure::CellFigure,
    golden::{Golden, GoldenRow},
    measured::{CellMeasurement, measured, overall},
};

#[test]
fn no_figure_of_any_cell_is_worse_than_its_golden_value() {
    let mut found = measured(&workloads::all(), &RoutingSettings::default());
    found.extend(overall(&found));
    if std::env::var_os("WARMROUTE_WRITE_GOLDEN").is_some() {
        return Golden::of(&found).write();
    }
    let golden = Golden::read();
    assert_eq!(
        golden.cells(),
        found
            .iter()
            .map(|found| found.cell.as_str())
            .collect::<Vec<_>>(),
        "cells in golden.csv"
    );
    let lost = golden.lost(&found);
    assert!(
        lost.is_empty(),
        "the router got worse:\n{}\n",
        lost.join("\n")
    );
}

#[test]
fn a_router_that_ignores_caches_is_detected_and_the_cell_is_named() {
    let mut chat = workloads::all();
    chat.retain(|workload| workload.name == "chat");
    chat[0].cells.truncate(1);
    let without_overlap = RoutingSettings {
        section: RoutingSection {
            overlap_weight: 0.0,
            ..RoutingSection::default()
        },
        ..RoutingSettings::default()
    };
    let lost = Golden::read().lost(&measured(&chat, &without_overlap));
    assert!(
        lost.iter()
            .any(|line| line.starts_with("chat, 4 workers, load 0.3: block_hit_ratio is ")),
        "{lost:?}"
    );
}

fn row(figure: CellFigure, value: f64) -> Golden {
    Golden(vec![GoldenRow {
        cell: "chat, 4 workers, load 0.3".to_owned(),
        figure,
        value,
        tolerance: 2.0,
    }])
}

fn found(figure: CellFigure, value: f64) -> [CellMeasurement; 1] {
    [CellMeasurement {
        cell: "chat, 4 workers, load 0.3".to_owned(),
        figures: vec![(figure, value, 0.0)],
    }]
}

#[test]
fn a_time_that_grows_beyond_the_tolerance_is_a_loss_and_a_shorter_one_is_not() {
    let golden = row(CellFigure::TtftMean, 100.0);
    assert_eq!(
        golden.lost(&found(CellFigure::TtftMean, 102.1)),
        [
            "chat, 4 workers, load 0.3: ttft_mean_ms is 102.1000, golden 100.0000: 2.1 % worse, allowed 2.0 %"
        ]
    );
    for value in [101.9, 100.0, 50.0] {
        assert!(
            golden.lost(&found(CellFigure::TtftMean, value)).is_empty(),
            "{value}"
        );
    }
}

#[test]
fn hits_that_drop_beyond_the_tolerance_are_a_loss_and_more_hits_are_not() {
    let golden = row(CellFigure::BlockHits, 0.5);
    assert_eq!(golden.lost(&found(CellFigure::BlockHits, 0.489)).len(), 1);
    for value in [0.491, 0.5, 0.9] {
        assert!(
            golden.lost(&found(CellFigure::BlockHits, value)).is_empty(),
            "{value}"
        );
    }
}

#[test]
fn a_nan_figure_is_a_loss() {
    assert_eq!(
        row(CellFigure::ItlMean, 5.0)
            .lost(&found(CellFigure::ItlMean, f64::NAN))
            .len(),
        1
    );
}
