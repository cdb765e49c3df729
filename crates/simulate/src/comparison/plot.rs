//! Reuse and turns of all cells as an SVG document.

use std::fmt::Write;

use super::{CONTENDERS, ComparedFigure, report::ComparisonReport};
use crate::html::{colour, escaped, short};

const WIDTH: f64 = 980.0;
/// Space for the title and the names of the contenders.
const HEAD: f64 = 58.0;
/// Space of a panel: its title, its bars and the names of its cells.
const PANEL: f64 = 216.0;
const TITLE: f64 = 24.0;
const BARS: f64 = 140.0;
const SIDE: f64 = 16.0;
/// Share of a cell's width that is left free beside its bars.
const GAP: f64 = 0.12;
/// Least width of a bar with its value above it.
const LEAST_LABELLED: f64 = 26.0;

/// The panels: figure, title, and whether the bars are shares of the best in their cell.
const PANELS: [(ComparedFigure, &str, bool); 2] = [
    (
        ComparedFigure::Reuse,
        "Share of the available reuse, %",
        false,
    ),
    (
        ComparedFigure::Turns,
        "Turns per minute within the SLO, % of the best in the cell",
        true,
    ),
];

/// Draws one group of bars for each cell, and in it a bar for each contender.
pub(super) fn drawing(report: &ComparisonReport) -> String {
    let height = HEAD + PANEL * PANELS.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"{SIDE}\" y=\"22\" font-size=\"14\">warm beside the rules of other routers, {} engines {}</text>\n",
        report.workers,
        escaped(report.profile),
    );
    legend(&mut svg);
    for (number, (figure, title, relative)) in PANELS.into_iter().enumerate() {
        let top = HEAD + PANEL * number as f64;
        let _ = writeln!(
            svg,
            "<text x=\"{SIDE}\" y=\"{:.1}\" font-size=\"12\">{title}</text>",
            top + 12.0
        );
        panel(&mut svg, report, top + TITLE, (figure, relative));
    }
    svg.push_str("</svg>\n");
    svg
}

fn legend(svg: &mut String) {
    let slot = (WIDTH - 2.0 * SIDE) / CONTENDERS.len() as f64;
    for (index, contender) in CONTENDERS.iter().enumerate() {
        let x = SIDE + slot * index as f64;
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"34\" width=\"10\" height=\"10\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"43\">{}</text>",
            colour(index),
            x + 14.0,
            escaped(contender.name)
        );
    }
}

/// Draws the bars of a figure below `top`.
fn panel(
    svg: &mut String,
    report: &ComparisonReport,
    top: f64,
    (figure, relative): (ComparedFigure, bool),
) {
    let slot = (WIDTH - 2.0 * SIDE) / report.cells.len().max(1) as f64;
    let foot = top + BARS;
    for (number, cell) in report.cells.iter().enumerate() {
        let left = SIDE + slot * number as f64;
        let values = cell.rows.iter().filter_map(|row| figure.of(row));
        let whole = if relative {
            values.fold(0.0, f64::max)
        } else {
            1.0
        };
        let width = slot * (1.0 - GAP) / cell.rows.len().max(1) as f64;
        for (index, row) in cell.rows.iter().enumerate() {
            let Some(value) = figure.of(row) else {
                continue;
            };
            let share = if whole > 0.0 && value.is_finite() {
                (value / whole).clamp(0.0, 1.0)
            } else {
                0.0
            };
            let x = left + slot * GAP / 2.0 + width * index as f64;
            let (y, height) = (foot - share * BARS, share * BARS);
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{}\">\
                 <title>{}: {}</title></rect>",
                colour(index),
                escaped(row.contender.name),
                short(value)
            );
            if width >= LEAST_LABELLED {
                label(svg, (x + width / 2.0, y - 3.0), &short(share * 100.0));
            }
        }
        let middle = left + slot / 2.0;
        label(svg, (middle, foot + 14.0), &cell.trace);
        label(svg, (middle, foot + 28.0), &cell.pace.to_string());
    }
    let _ = writeln!(
        svg,
        "<line x1=\"{SIDE}\" x2=\"{:.1}\" y1=\"{foot:.1}\" y2=\"{foot:.1}\" stroke=\"#888888\"/>",
        WIDTH - SIDE
    );
}

/// Writes a text around the middle of a line, without the characters that XML cannot hold.
fn label(svg: &mut String, (x, y): (f64, f64), text: &str) {
    let is_forbidden =
        |character: char| character.is_control() || matches!(character, '\u{fffe}' | '\u{ffff}');
    let text = escaped(&text.replace(is_forbidden, "_"));
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{text}</text>"
    );
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;
    use crate::comparison::{ComparedPace, ComparisonCell, ComparisonRow};

    fn report(trace: &str) -> ComparisonReport {
        let row = |turns_per_minute, reuse_ratio| ComparisonRow {
            contender: CONTENDERS[0],
            sessions: None,
            reuse_ratio,
            turns_per_minute,
            ttft_p95_ms: 10.0,
            prefill_imbalance: 1.0,
        };
        ComparisonReport {
            schema: ComparisonReport::SCHEMA,
            profile: "8b-h200",
            workers: 8,
            ttft_slo_ms: 2_000.0,
            seed: 1,
            cells: vec![ComparisonCell {
                trace: trace.to_owned(),
                requests: 10,
                pace: ComparedPace::Load(0.55),
                rows: vec![row(200.0, Some(0.5)), row(50.0, None), row(f64::NAN, None)],
            }],
            losses: Vec::new(),
        }
    }

    #[test]
    fn reuse_is_drawn_as_a_share_of_all_and_turns_as_a_share_of_the_best() {
        let svg = drawing(&report("chat"));
        let bars: Vec<&str> = svg
            .split("<rect ")
            .filter(|rect| rect.contains("<title>"))
            .filter_map(|rect| rect.split("height=\"").nth(1)?.split('"').next())
            .collect();
        // A contender without a share has no bar.
        assert_eq!(bars, ["70.0", "140.0", "35.0", "0.0"], "{svg}");
    }

    #[test]
    #[contract("S70")]
    fn the_name_of_a_trace_is_escaped() {
        let svg = drawing(&report("<script>&"));
        assert!(svg.contains(">&lt;script&gt;&amp;</text>"), "{svg}");
        assert!(!svg.contains("<script"), "{svg}");
    }

    #[test]
    #[contract("S70")]
    fn what_xml_cannot_hold_is_replaced_in_the_name_of_a_trace() {
        let svg = drawing(&report("a\u{1}b\0c\u{ffff}"));
        assert!(svg.contains(">a_b_c_</text>"), "{svg}");
    }

    #[test]
    fn a_report_without_cells_is_a_drawing_without_bars() {
        let empty = ComparisonReport {
            cells: Vec::new(),
            ..report("chat")
        };
        assert!(!drawing(&empty).contains("<title>"));
    }
}
