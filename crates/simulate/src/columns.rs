//! The figures of a cell as a table row, for the page and the terminal.

use crate::{CellReport, SessionReport};

/// One column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Heading. Times are in ms, and a percentile belongs to the figure of the columns before it.
    pub name: &'static str,
    /// Formats the cell's value.
    pub of: fn(&CellReport) -> String,
}

/// Returns the columns of these cells, in order. The first one is text and the others are numbers.
pub fn columns(cells: &[CellReport]) -> &'static [Column] {
    if cells.iter().any(|cell| cell.sessions.is_some()) {
        &SESSIONS
    } else {
        &REQUESTS
    }
}

/// Columns of recorded arrivals.
static REQUESTS: [Column; 18] = [
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
        name: "in SLO %",
        of: in_slo,
    },
    Column {
        name: "unfinished",
        of: |cell| cell.unfinished.to_string(),
    },
];

/// Columns of closed loops.
static SESSIONS: [Column; 17] = [
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
        name: "sessions",
        of: |cell| session_figure(cell, |sessions| sessions.concurrent.to_string()),
    },
    Column {
        name: "x cache",
        of: |cell| session_figure(cell, |sessions| format!("{:.2}", sessions.capacity_ratio)),
    },
    Column {
        name: "turns/min",
        of: |cell| session_figure(cell, |sessions| format!("{:.1}", sessions.turns_per_minute)),
    },
    Column {
        name: "ended",
        of: |cell| session_figure(cell, |sessions| sessions.finished.to_string()),
    },
    Column {
        name: "reuse %",
        of: |cell| session_figure(cell, |sessions| percent(sessions.reuse_ratio)),
    },
    Column {
        name: "TTFT mean",
        of: |cell| whole(cell.ttft_ms.mean),
    },
    Column {
        name: "p95",
        of: |cell| session_figure(cell, |sessions| whole(sessions.ttft_p95_ms)),
    },
    Column {
        name: "longest",
        of: |cell| session_figure(cell, |sessions| whole(sessions.longest_wait_ms)),
    },
    Column {
        name: "in goal %",
        of: |cell| {
            session_figure(cell, |sessions| {
                (sessions.goal).map_or_else(|| "-".to_owned(), |goal| percent(goal.share_within))
            })
        },
    },
    Column {
        name: "Jain",
        of: |cell| session_figure(cell, |sessions| format!("{:.3}", sessions.jain_index)),
    },
    Column {
        name: "ITL mean",
        of: |cell| format!("{:.2}", cell.itl_ms.mean),
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
        name: "in SLO %",
        of: in_slo,
    },
];

fn in_slo(cell: &CellReport) -> String {
    (cell.slo).map_or_else(|| "-".to_owned(), |slo| percent(slo.met_share))
}

fn session_figure(cell: &CellReport, of: impl Fn(SessionReport) -> String) -> String {
    cell.sessions.map_or_else(String::new, of)
}

fn percent(share: f64) -> String {
    format!("{:.2}", share * 100.0)
}

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
