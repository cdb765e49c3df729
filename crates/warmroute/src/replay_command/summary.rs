//! Formats the result for people.

use std::fmt::Write;

use simulate::SimulationReport;

use super::recording::RecordedResults;

/// Returns the recorded and the simulated results side by side.
pub(super) fn of(report: &SimulationReport, recorded: &RecordedResults) -> String {
    let trace = &report.trace;
    let mut text = format!("{}: {trace}\n", trace.file);
    // Writing into a String does not fail.
    let left_out = [
        (
            recorded.skipped,
            "lines were left out: no reply, no chain, or another block size",
        ),
        (
            trace.dropped,
            "requests were left out: no engine could hold them",
        ),
        (
            recorded.replies_of_unknown_length,
            "replies have a length that nobody told: the mean of the others stands for it",
        ),
    ];
    for (count, what) in left_out.into_iter().filter(|(count, _)| *count > 0) {
        let _ = writeln!(text, "{count} {what}");
    }
    let percent = |ratio: f64| format!("{:.2}", ratio * 100.0);
    let or_dash = |figure: Option<String>| figure.unwrap_or_else(|| "-".to_owned());
    let _ = writeln!(
        text,
        "engines: {}; the first tenth of the played requests is not counted\n",
        report.profile
    );
    let _ = writeln!(
        text,
        "{:<24} {:>8} {:>13} {:>14}",
        "", "workers", "hit % (tokens)", "TTFT mean (ms)"
    );
    let _ = writeln!(
        text,
        "{:<24} {:>8} {:>13} {:>14}",
        "as recorded",
        "-",
        or_dash(recorded.token_hit_ratio.map(percent)),
        or_dash(recorded.ttft_mean_ms.map(|ms| format!("{ms:.1}"))),
    );
    for cell in &report.cells {
        let _ = writeln!(
            text,
            "{:<24} {:>8} {:>13} {:>14}",
            cell.policy,
            cell.workers,
            percent(cell.token_hit_ratio),
            format!("{:.1}", cell.ttft_ms.mean),
        );
    }
    text
}
