//! The report as a table for people.

use std::fmt::Write;

use simulate::{CellReport, Report};

/// The whole report.
pub(super) fn of(report: &Report) -> String {
    let trace = &report.trace;
    let mut text = format!(
        "{}: {} requests, {} blocks, {:.2} % of them could be found in a cache without end\n",
        trace.file,
        trace.requests,
        trace.blocks,
        trace.infinite_hit_ratio * 100.0,
    );
    if trace.dropped > 0 {
        let _ = writeln!(text, "{} requests were left out: no engine could hold them", trace.dropped);
    }
    let _ =
        writeln!(text, "engines: {}; times in ms; the first tenth of the requests is not counted\n", report.profile);
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(report.cells.iter().map(row));
    let widths: Vec<usize> =
        (0..HEAD.len()).map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0)).collect();
    for row in &rows {
        let mut line = format!("{:<width$}", row[0], width = widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            let _ = write!(line, "  {cell:>width$}");
        }
        let _ = writeln!(text, "{line}");
    }
    text
}

const HEAD: [&str; 15] = [
    "policy",
    "workers",
    "load",
    "speed",
    "hit %",
    "TTFT mean",
    "p50",
    "p90",
    "p99",
    "ITL mean",
    "ITL p99",
    "e2e mean",
    "imbalance",
    "held %",
    "unfinished",
];

fn row(cell: &CellReport) -> [String; 15] {
    let whole = |ms: f64| format!("{ms:.0}");
    [
        cell.policy.to_owned(),
        cell.workers.to_string(),
        cell.load.map_or_else(|| "-".to_owned(), |load| load.to_string()),
        format!("{:.3}", cell.speedup),
        format!("{:.2}", cell.block_hit_ratio * 100.0),
        format!("{:.1}", cell.ttft_ms.mean),
        cell.ttft_ms.p50.map_or_else(String::new, whole),
        cell.ttft_ms.p90.map_or_else(String::new, whole),
        whole(cell.ttft_ms.p99),
        format!("{:.2}", cell.itl_ms.mean),
        format!("{:.2}", cell.itl_ms.p99),
        whole(cell.e2e_ms.mean),
        format!("{:.3}", cell.prefill_imbalance),
        format!("{:.1}", cell.held_ratio * 100.0),
        cell.unfinished.to_string(),
    ]
}
