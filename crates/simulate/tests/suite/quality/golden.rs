//! `golden.csv`: the golden figures, and the loss that a change may cause.

use std::{fmt::Write, fs, path::PathBuf};

use super::{
    figure::CellFigure,
    measured::{CellMeasurement, OVERALL},
};

const HEAD: &str = "cell;figure;golden;tolerance_percent";

/// Standard errors by which a figure may differ without counting as a loss.
const ERRORS: f64 = 3.0;

/// All golden values.
pub(crate) struct Golden(pub(crate) Vec<GoldenRow>);

/// One golden value.
pub(crate) struct GoldenRow {
    pub(crate) cell: String,
    pub(crate) figure: CellFigure,
    pub(crate) value: f64,
    /// In percent.
    pub(crate) tolerance: f64,
}

impl Golden {
    /// The measured figures become the expected ones. Varying figures get a tolerance that they do
    /// not exceed; all cells together are steadier than each.
    pub(crate) fn of(found: &[CellMeasurement]) -> Self {
        let rows = found.iter().flat_map(|measured| {
            let share = if measured.cell == OVERALL { 0.5 } else { 1.0 };
            measured
                .figures
                .iter()
                .map(move |(figure, value, error)| GoldenRow {
                    cell: measured.cell.clone(),
                    figure: *figure,
                    value: *value,
                    tolerance: (share * figure.least_tolerance()).max(ERRORS * error),
                })
        });
        Self(rows.collect())
    }

    pub(crate) fn read() -> Self {
        let text = fs::read_to_string(file()).unwrap();
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some(HEAD));
        Self(lines.map(row).collect())
    }

    pub(crate) fn write(&self) {
        let mut text = format!("{HEAD}\n");
        for GoldenRow {
            cell,
            figure,
            value,
            tolerance,
        } in &self.0
        {
            writeln!(text, "{cell};{};{value:.4};{tolerance:.1}", figure.name()).unwrap();
        }
        fs::write(file(), text).unwrap();
    }

    /// The cells, each once.
    pub(crate) fn cells(&self) -> Vec<&str> {
        let mut cells: Vec<&str> = self.0.iter().map(|row| row.cell.as_str()).collect();
        cells.dedup();
        cells
    }

    /// A line for each figure that is worse than its tolerance.
    pub(crate) fn lost(&self, found: &[CellMeasurement]) -> Vec<String> {
        let mut lost = Vec::new();
        for measured in found {
            for (figure, value, _) in &measured.figures {
                let row = self
                    .0
                    .iter()
                    .find(|row| row.cell == measured.cell && row.figure == *figure);
                let GoldenRow {
                    value: golden,
                    tolerance,
                    ..
                } = row.unwrap();
                let loss = figure.loss(*golden, *value);
                if loss.is_nan() || loss > *tolerance {
                    lost.push(format!(
                        "{}: {} is {value:.4}, golden {golden:.4}: {loss:.1} % worse, allowed {tolerance:.1} %",
                        measured.cell,
                        figure.name()
                    ));
                }
            }
        }
        lost
    }
}

fn row(line: &str) -> GoldenRow {
    let [cell, figure, value, tolerance] = line.split(';').collect::<Vec<_>>()[..] else {
        panic!("{line}")
    };
    GoldenRow {
        cell: cell.to_owned(),
        figure: CellFigure::named(figure).unwrap(),
        value: value.parse().unwrap(),
        tolerance: tolerance.parse().unwrap(),
    }
}

fn file() -> PathBuf {
    [
        env!("CARGO_MANIFEST_DIR"),
        "tests",
        "suite",
        "quality",
        "golden.csv",
    ]
    .iter()
    .collect()
}
