//! The table as Markdown, with columns that line up as plain text, too.

use std::fmt::Write;

use super::report::{ComparisonCell, ComparisonReport, ComparisonRow};

/// Headings. The first three columns are text and the others are numbers.
const COLUMNS: [&str; 8] = [
    "trace",
    "pace",
    "policy",
    "sessions",
    "reuse, %",
    "turns/min",
    "TTFT p95, ms",
    "imbalance",
];
const TEXT_COLUMNS: usize = 3;

/// Least width of a column, for the line below the heading.
const LEAST_WIDTH: usize = 3;

/// Returns the conditions, the table and the result of the gate.
pub(super) fn table(report: &ComparisonReport) -> String {
    let mut text = format!(
        "{} engines `{}`; turns with a first token within {} ms; seed {}.\n\n",
        report.workers, report.profile, report.ttft_slo_ms, report.seed
    );
    let rows: Vec<[String; COLUMNS.len()]> = report
        .cells
        .iter()
        .flat_map(|cell| cell.rows.iter().map(move |row| texts(cell, row)))
        .collect();
    let widths: [usize; COLUMNS.len()] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells
            .chain([COLUMNS[column].chars().count(), LEAST_WIDTH])
            .max()
            .unwrap_or(LEAST_WIDTH)
    });
    write_line(&mut text, &COLUMNS.map(str::to_owned), &widths);
    for (column, width) in widths.iter().enumerate() {
        let rule = "-".repeat(*width);
        let _ = match column {
            0..TEXT_COLUMNS => write!(text, "|{rule}--"),
            _ => write!(text, "|{rule}-:"),
        };
    }
    text.push_str("|\n");
    for row in &rows {
        write_line(&mut text, row, &widths);
    }
    text.push('\n');
    if report.losses.is_empty() {
        text.push_str("The gate passes: every figure of `warm` is within its bound.\n");
    } else {
        text.push_str("The gate fails:\n\n");
        for loss in &report.losses {
            let _ = writeln!(text, "- {}", cleaned(&loss.to_string()));
        }
    }
    text
}

fn write_line(text: &mut String, row: &[String; COLUMNS.len()], widths: &[usize; COLUMNS.len()]) {
    for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
        let _ = match column {
            0..TEXT_COLUMNS => write!(text, "| {cell:<width$} "),
            _ => write!(text, "| {cell:>width$} "),
        };
    }
    text.push_str("|\n");
}

fn texts(cell: &ComparisonCell, row: &ComparisonRow) -> [String; COLUMNS.len()] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    [
        cleaned(&cell.trace),
        cell.pace.to_string(),
        row.contender.name.to_owned(),
        or_dash(row.sessions.map(|sessions| sessions.to_string())),
        or_dash(row.reuse_ratio.map(|ratio| format!("{:.1}", ratio * 100.0))),
        format!("{:.1}", row.turns_per_minute),
        format!("{:.0}", row.ttft_p95_ms),
        format!("{:.2}", row.prefill_imbalance),
    ]
}

/// Returns a name of a file without what would end a cell of the table or begin other markup.
fn cleaned(name: &str) -> String {
    let is_markup = |character: char| character.is_control() || "|`<>[]*\\".contains(character);
    name.replace(is_markup, "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::{CONTENDERS, ComparedPace, gate::losses};

    fn report(trace: &str, turns_of_warm: f64) -> ComparisonReport {
        let row = |index: usize, turns_per_minute| ComparisonRow {
            contender: CONTENDERS[index],
            sessions: (index == 0).then_some(68),
            reuse_ratio: (index == 0).then_some(0.974_21),
            turns_per_minute,
            ttft_p95_ms: 1_234.567,
            prefill_imbalance: 1.043_2,
        };
        let cells = vec![ComparisonCell {
            trace: trace.to_owned(),
            requests: 6_003,
            pace: ComparedPace::CapacityRatio(0.8),
            rows: vec![row(0, turns_of_warm), row(2, 100.0)],
        }];
        ComparisonReport {
            schema: ComparisonReport::SCHEMA,
            profile: "8b-h200",
            workers: 8,
            ttft_slo_ms: 2_000.0,
            seed: 1,
            losses: losses(&cells),
            cells,
        }
    }

    #[test]
    fn the_table_lines_up_and_a_missing_figure_is_a_dash() {
        assert_eq!(
            table(&report("sessions", 99.0)),
            "\
8 engines `8b-h200`; turns with a first token within 2000 ms; seed 1.

| trace    | pace         | policy  | sessions | reuse, % | turns/min | TTFT p95, ms | imbalance |
|----------|--------------|---------|---------:|---------:|----------:|-------------:|----------:|
| sessions | 0.8 x caches | warm    |       68 |     97.4 |      99.0 |         1235 |      1.04 |
| sessions | 0.8 x caches | lmetric |        - |        - |     100.0 |         1235 |      1.04 |

The gate passes: every figure of `warm` is within its bound.
"
        );
    }

    #[test]
    fn losses_are_listed_below_the_table() {
        let text = table(&report("sessions", 50.0));
        let (_, gate) = text.split_once("The gate fails:\n\n").unwrap();
        assert_eq!(
            gate,
            "- sessions, 0.8 x caches: turns per minute within the SLO of warm is 50, of lmetric 100: \
             50.0 % worse, allowed 5.0 %\n"
        );
    }

    #[test]
    fn the_name_of_a_trace_stays_in_its_cell() {
        let text = table(&report("a|b\n<c>", 99.0));
        assert!(text.contains("| a_b__c_ |"), "{text}");
    }
}
