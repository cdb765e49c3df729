//! Formats the report as a table for people.

use std::fmt::Write;

use simulate::{SimulationReport, columns};

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
        "engines: {}; times in ms; {}\n",
        report.profile,
        report.uncounted()
    );
    let columns = columns(&report.cells);
    let head = columns.iter().map(|column| column.name.to_owned());
    let mut rows: Vec<Vec<String>> = vec![head.collect()];
    for cell in &report.cells {
        rows.push(columns.iter().map(|column| (column.of)(cell)).collect());
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    for row in &rows {
        let mut line = format!("{:<width$}", row[0], width = widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            let _ = write!(line, "  {cell:>width$}");
        }
        let _ = writeln!(text, "{line}");
    }
    text
}
