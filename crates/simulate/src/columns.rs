//! The figures of a cell as a table row, for the page and the terminal.

use crate::CellReport;

/// One column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Heading. Times are in ms, and a percentile belongs to the figure of the columns before it.
    pub name: &'static str,
    /// Formats the cell's value.
    pub of: fn(&CellReport) -> String,
}

/// Every column, in order. The first one is text and the others are numbers.
pub const COLUMNS: [Column; 17] = [
    Column {
        name: "policy",
        of: |cell| cell.policy.to_owned(),
    },
    Column {
        name: "workers",
        of: |cell| cell.workers.to_string(),
    },
    Column {
        name: "routers",
        of: routers,
    },
    Column {
        name: "load",
        of: |cell| {
            cell.pace
                .load
                .map_or_else(|| "-".to_owned(), |load| load.to_string())
        },
    },
    Column {
        name: "speed",
        of: |cell| format!("{:.3}", cell.pace.speedup),
    },
    Column {
        name: "hit %",
        of: |cell| format!("{:.2}", cell.block_hit_ratio * 100.0),
    },
    Column {
        name: "TTFT mean",
        of: |cell| format!("{:.1}", cell.ttft_ms.mean),
    },
    Column {
        name: "p50",
        of: |cell| cell.ttft_ms.p50.map_or_else(String::new, whole),
    },
    Column {
        name: "p90",
        of: |cell| cell.ttft_ms.p90.map_or_else(String::new, whole),
    },
    Column {
        name: "p99",
        of: |cell| whole(cell.ttft_ms.p99),
    },
    Column {
        name: "ITL mean",
        of: |cell| format!("{:.2}", cell.itl_ms.mean),
    },
    Column {
        name: "p99",
        of: |cell| format!("{:.2}", cell.itl_ms.p99),
    },
    Column {
        name: "e2e mean",
        of: |cell| whole(cell.e2e_ms.mean),
    },
    Column {
        name: "p99",
        of: |cell| whole(cell.e2e_ms.p99),
    },
    Column {
        name: "imbalance",
        of: |cell| format!("{:.3}", cell.prefill_imbalance),
    },
    Column {
        name: "held %",
        of: |cell| format!("{:.1}", cell.held_ratio * 100.0),
    },
    Column {
        name: "unfinished",
        of: |cell| cell.unfinished.to_string(),
    },
];

fn routers(cell: &CellReport) -> String {
    match (cell.routers, cell.load_sync) {
        (1, _) => "1".to_owned(),
        (number, Some(_)) => format!("{number} in sync"),
        (number, None) => format!("{number} apart"),
    }
}

fn whole(ms: f64) -> String {
    format!("{ms:.0}")
}
