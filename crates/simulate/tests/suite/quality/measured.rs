//! Runs the workloads, each cell at several paces: after the first different pick two runs have
//! different histories, so the figures of a single run change by some percent with any change, and
//! their mean by much less.

use std::{sync::Mutex, thread};

use routing::RoutingSettings;
use simulate::{Cell, CellReport, TracePace, run};

use super::{
    figure::CellFigure,
    workloads::{FleetSize, QualityWorkload},
};

/// The offsets of a cell's paces, in thousandths of the pace that gives its load.
const PACES: [f64; 10] = [-9.0, -7.0, -5.0, -3.0, -1.0, 1.0, 3.0, 5.0, 7.0, 9.0];

/// The name of the figures over all cells.
pub(crate) const OVERALL: &str = "all cells";

/// The figures of one cell.
#[derive(Debug)]
pub(crate) struct CellMeasurement {
    pub(crate) cell: String,
    /// Each figure's mean, and the standard error of that in percent.
    pub(crate) figures: Vec<(CellFigure, f64, f64)>,
}

/// Runs every cell, on all cores.
pub(crate) fn measured(
    workloads: &[QualityWorkload],
    routing: &RoutingSettings,
) -> Vec<CellMeasurement> {
    let cells = workloads
        .iter()
        .flat_map(|workload| workload.cells.iter().map(move |fleet| (workload, *fleet)));
    let cells: Vec<_> = cells.collect();
    let runs: Vec<_> = (0..cells.len())
        .flat_map(|cell| PACES.map(|pace| (cell, pace)))
        .collect();
    let left = Mutex::new(runs.into_iter().enumerate());
    let reports = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let next = left.lock().unwrap().next();
                    let Some((index, (cell, pace))) = next else {
                        break;
                    };
                    let (workload, fleet) = cells[cell];
                    let report = play(workload, fleet, pace, routing);
                    reports.lock().unwrap().push((index, report));
                }
            });
        }
    });
    let mut reports = reports.into_inner().unwrap();
    reports.sort_by_key(|(index, _)| *index);
    let reports: Vec<CellReport> = reports.into_iter().map(|(_, report)| report).collect();
    let named = cells.iter().zip(reports.chunks(PACES.len()));
    named
        .map(|((workload, fleet), reports)| summed_up(name(workload, *fleet), reports))
        .collect()
}

fn play(
    workload: &QualityWorkload,
    fleet: FleetSize,
    pace: f64,
    routing: &RoutingSettings,
) -> CellReport {
    let FleetSize { workers, load } = fleet;
    let mut at = TracePace::for_load(&workload.trace, &workload.profile, workers, load);
    at.speedup *= 1.0 + pace / 1e3;
    run(
        &workload.trace,
        &Cell::new(routing.clone(), workers, at, workload.profile),
    )
}

fn name(workload: &QualityWorkload, FleetSize { workers, load }: FleetSize) -> String {
    format!("{}, {workers} workers, load {load}", workload.name)
}

fn summed_up(cell: String, reports: &[CellReport]) -> CellMeasurement {
    let count = reports.len() as f64;
    let summed_up = |figure: CellFigure| {
        let values: Vec<f64> = reports.iter().map(|report| figure.of(report)).collect();
        let mean = values.iter().sum::<f64>() / count;
        let variance = values
            .iter()
            .map(|value| (value - mean).powi(2))
            .sum::<f64>()
            / (count - 1.0);
        (figure, mean, 100.0 * (variance / count).sqrt() / mean)
    };
    CellMeasurement {
        cell,
        figures: CellFigure::ALL.map(summed_up).into(),
    }
}

/// The geometric mean over all cells, which is steadier than any single cell.
pub(crate) fn overall(cells: &[CellMeasurement]) -> Option<CellMeasurement> {
    let count = cells.len() as f64;
    let over_all = |index: usize| {
        let values = || cells.iter().map(|cell| cell.figures[index]);
        let mean = (values().map(|(_, value, _)| value.ln()).sum::<f64>() / count).exp();
        let error = values()
            .map(|(_, _, error)| error.powi(2))
            .sum::<f64>()
            .sqrt()
            / count;
        (CellFigure::ALL[index], mean, error)
    };
    let figures = (0..CellFigure::ALL.len()).map(over_all).collect();
    (!cells.is_empty()).then(|| CellMeasurement {
        cell: OVERALL.to_owned(),
        figures,
    })
}
