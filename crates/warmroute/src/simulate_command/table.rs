//! Formats the report as a table for people.

use std::fmt::Write;

use simulate::{COLUMNS, CellReport, SimulationReport};

/// Returns the whole report.
pub(super) fn of(report: &SimulationReport) -> String {
    let trace = &report.trace;
    let mut text = format!("{}: {trace}\n", trace.file);
    if trace.dropped > 0 {
        let _ = writeln!(
            text,
            "{} requests were left out: no engine could hold them",
            trace.dropped
        );
    }
    if let Some(fit) = &report.fit {
        let _ = writeln!(text, "{fit}");
    }
    let _ = writeln!(
        text,
        "engines: {}; times in ms; the first tenth of the requests is not counted\n",
        report.profile
    );
    let mut rows = vec![COLUMNS.map(|column| column.name.to_owned())];
    rows.extend(report.cells.iter().map(row));
    let widths = [0; COLUMNS.len()];
    let widths = rows.iter().fold(widths, |widths, row| {
        std::array::from_fn(|column| row[column].len().max(widths[column]))
    });
    for row in &rows {
        let mut line = format!("{:<width$}", row[0], width = widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            let _ = write!(line, "  {cell:>width$}");
        }
        let _ = writeln!(text, "{line}");
    }
    text
}

fn row(cell: &CellReport) -> [String; COLUMNS.len()] {
    COLUMNS.map(|column| (column.of)(cell))
}
