//! A report as one HTML page: charts and a table, without external resources.
//!
//! **Invariant**: every foreign text is escaped, and the same report gives the same bytes.

mod chart;
mod table;

use std::{collections::BTreeSet, fmt::Write};

use self::chart::{BarGroup, Bars};
pub(crate) use self::chart::{colour, short};
use crate::{CellReport, SimulationReport};

/// Most cells with a chart per engine, and most engines in each, to keep the page readable.
const MOST_CELLS: usize = 48;
const MOST_WORKERS: usize = 64;

const STYLE: &str = "\
:root{color-scheme:light dark;font:15px/1.5 system-ui,sans-serif}\
body{max-width:94rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.4rem}h2{font-size:1.15rem;margin-top:2rem}h3{font-size:1rem;margin-bottom:.2rem}\
p{max-width:62rem}\
.keys{position:sticky;top:0;max-width:none;padding:.3rem 0;background:Canvas}\
figure{display:inline-block;margin:0 1rem 1rem 0}figcaption{font-weight:600}\
svg{max-width:100%;height:auto}svg text{font-size:11px;fill:currentColor}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.85rem}\
th,td{padding:.15rem .5rem;text-align:right;border-bottom:1px solid #8884}\
th:first-child,td:first-child{text-align:left}.scroll{overflow-x:auto}\
.key{display:inline-block;width:.8em;height:.8em;margin:0 .3em 0 0}.key~.key{margin-left:.9em}";

/// The charts of each cell's figures, by load.
const CHARTS: [ChartSpec; 5] = [
    ChartSpec {
        title: "TTFT, mean (ms)",
        of: |cell| cell.ttft_ms.mean,
        from: 0.0,
    },
    ChartSpec {
        title: "TTFT, p99 (ms)",
        of: |cell| cell.ttft_ms.p99,
        from: 0.0,
    },
    ChartSpec {
        title: "Block hits (%)",
        of: |cell| cell.block_hit_ratio * 100.0,
        from: 0.0,
    },
    ChartSpec {
        title: "Prefill imbalance (busiest engine over mean)",
        of: |cell| cell.prefill_imbalance,
        from: 1.0,
    },
    ChartSpec {
        title: "ITL, mean (ms)",
        of: |cell| cell.itl_ms.mean,
        from: 0.0,
    },
];

/// The charts of closed loops, in front of the others.
static SESSION_CHARTS: [ChartSpec; 2] = [
    ChartSpec {
        title: "Turns per minute",
        of: |cell| {
            cell.sessions
                .map_or(0.0, |sessions| sessions.turns_per_minute)
        },
        from: 0.0,
    },
    ChartSpec {
        title: "Share of the available reuse (%)",
        of: |cell| {
            cell.sessions
                .map_or(0.0, |sessions| sessions.reuse_ratio * 100.0)
        },
        from: 0.0,
    },
];

struct ChartSpec {
    title: &'static str,
    of: fn(&CellReport) -> f64,
    /// The value at the foot of its bars.
    from: f64,
}

/// Renders the whole page.
pub fn page(report: &SimulationReport) -> String {
    let trace = &report.trace;
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>Simulation of {file}</title><style>{STYLE}</style></head><body>\n\
         <h1>Simulation of {file}</h1>\n\
         <p>{trace}; {} requests left out. Engines: {}. \
         Seed {}; {}.</p>\n",
        trace.dropped,
        escaped(report.profile),
        report.seed,
        report.uncounted(),
        file = escaped(&trace.file),
    );
    if let Some(fit) = &report.fit {
        let _ = writeln!(
            page,
            "<p>Engines {}.</p>",
            escaped(&fit.to_string().replace('\n', "; "))
        );
    }
    let policies = policies(report);
    legend(&mut page, &policies);
    for workers in report
        .cells
        .iter()
        .map(|cell| cell.workers)
        .collect::<BTreeSet<_>>()
    {
        let cells: Vec<&CellReport> = report
            .cells
            .iter()
            .filter(|cell| cell.workers == workers)
            .collect();
        let _ = writeln!(page, "<h2>{workers} engines</h2>");
        let is_loop = cells.iter().any(|cell| cell.sessions.is_some());
        let of_sessions = SESSION_CHARTS.iter().filter(|_| is_loop);
        for figure in of_sessions.chain(&CHARTS) {
            let groups = by_pace(&cells, &policies, figure);
            page.push_str(
                &Bars {
                    title: figure.title,
                    from: figure.from,
                    groups: &groups,
                    names: &policies,
                }
                .drawn(),
            );
        }
    }
    per_worker(&mut page, &report.cells);
    page.push_str("<h2>All figures</h2>\n<p>Times in ms.</p>\n");
    page.push_str(&table::of(&report.cells));
    page.push_str("</body></html>\n");
    page
}

/// Returns the policies in the order of the report: the index of one selects its colour.
fn policies(report: &SimulationReport) -> Vec<&'static str> {
    let mut policies = Vec::new();
    for cell in &report.cells {
        if !policies.contains(&cell.policy) {
            policies.push(cell.policy);
        }
    }
    policies
}

fn legend(page: &mut String, policies: &[&str]) {
    page.push_str("<p class=\"keys\">");
    for (index, policy) in policies.iter().enumerate() {
        let (colour, name) = (chart::colour(index), escaped(policy));
        let _ = write!(
            page,
            "<span class=\"key\" style=\"background:{colour}\"></span>{name}"
        );
    }
    page.push_str("</p>\n");
}

/// Builds one group for each pace, with a bar for each policy.
fn by_pace(cells: &[&CellReport], policies: &[&str], figure: &ChartSpec) -> Vec<BarGroup> {
    let mut groups: Vec<BarGroup> = Vec::new();
    for cell in cells {
        let name = pace(cell);
        let bar = policies
            .iter()
            .position(|policy| *policy == cell.policy)
            .map(|index| (index, (figure.of)(cell)));
        match groups.last_mut().filter(|group| group.name == name) {
            Some(group) => group.bars.extend(bar),
            None => groups.push(BarGroup {
                name,
                bars: bar.into_iter().collect(),
            }),
        }
    }
    groups
}

fn pace(cell: &CellReport) -> String {
    if let Some(sessions) = cell.sessions {
        return format!("{} sessions", sessions.concurrent);
    }
    cell.pace.load.map_or_else(
        || format!("speed {:.3}", cell.pace.speedup),
        |load| format!("load {load}"),
    )
}

/// Draws each engine's computed and cached tokens, cell by cell.
fn per_worker(page: &mut String, cells: &[CellReport]) {
    page.push_str("<h2>Engine by engine</h2>\n<p>Prompt tokens: ");
    for (colour, name) in [
        (chart::COMPUTED, "computed"),
        (chart::FOUND, "found in the cache"),
    ] {
        let _ = write!(
            page,
            "<span class=\"key\" style=\"background:{colour}\"></span>{name}"
        );
    }
    page.push_str("</p>\n");
    for cell in cells.iter().take(MOST_CELLS) {
        page.push_str(&chart::stacked(
            &format!("{}, {}, {} engines", cell.policy, pace(cell), cell.workers),
            cell,
        ));
    }
    if cells.len() > MOST_CELLS {
        let _ = writeln!(
            page,
            "<p>{} more are in the table only.</p>",
            cells.len() - MOST_CELLS
        );
    }
}

/// Escapes text for HTML, also between double quotes.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Control characters are invalid in a page.
            control if control.is_control() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("S70")]
    fn html_special_characters_are_escaped() {
        assert_eq!(
            escaped("a<b>&\"c\"'d'\u{1}é"),
            "a&lt;b&gt;&amp;&quot;c&quot;&#39;d&#39;\u{fffd}é"
        );
    }
}
