//! All figures as a table.

use std::fmt::Write;

use super::escaped;
use crate::CellReport;

const HEAD: [&str; 17] = [
    "policy",
    "engines",
    "load",
    "speed",
    "finished",
    "unfinished",
    "hit %",
    "TTFT mean",
    "p50",
    "p90",
    "p99",
    "ITL mean",
    "ITL p99",
    "e2e mean",
    "e2e p99",
    "imbalance",
    "held %",
];

/// One row for each cell; times in ms.
pub(super) fn of(cells: &[CellReport]) -> String {
    let mut table = String::from("<div class=\"scroll\"><table><thead><tr>");
    for name in HEAD {
        let _ = write!(table, "<th>{name}</th>");
    }
    table.push_str("</tr></thead><tbody>\n");
    for cell in cells {
        table.push_str("<tr>");
        for value in row(cell) {
            let _ = write!(table, "<td>{}</td>", escaped(&value));
        }
        table.push_str("</tr>\n");
    }
    table.push_str("</tbody></table></div>\n");
    table
}

fn row(cell: &CellReport) -> [String; 17] {
    let ms = |value: f64| format!("{value:.1}");
    [
        cell.policy.to_owned(),
        cell.workers.to_string(),
        cell.load.map_or_else(|| "-".to_owned(), |load| load.to_string()),
        format!("{:.3}", cell.speedup),
        cell.finished.to_string(),
        cell.unfinished.to_string(),
        format!("{:.2}", cell.block_hit_ratio * 100.0),
        ms(cell.ttft_ms.mean),
        cell.ttft_ms.p50.map_or_else(String::new, ms),
        cell.ttft_ms.p90.map_or_else(String::new, ms),
        ms(cell.ttft_ms.p99),
        format!("{:.2}", cell.itl_ms.mean),
        format!("{:.2}", cell.itl_ms.p99),
        ms(cell.e2e_ms.mean),
        ms(cell.e2e_ms.p99),
        format!("{:.3}", cell.prefill_imbalance),
        format!("{:.1}", cell.held_ratio * 100.0),
    ]
}
