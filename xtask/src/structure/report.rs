//! The tables of figures in Markdown.

use super::{
    distribution::rate,
    figures::{CrateFigures, Figures},
    names,
};

/// Marks a figure that was not measured on linkerd2-proxy.
const NOT_MEASURED: &str = "-";

/// A row of the comparison.
struct ComparisonRow {
    figure: &'static str,
    warmroute: String,
    /// Of linkerd2-proxy 29637b64f, from the review of 2026-11-22.
    linkerd: &'static str,
}

/// Returns the figures of the workspace beside those of linkerd2-proxy.
pub(super) fn comparison(figures: &Figures) -> String {
    let rows = [
        file_rows(figures),
        function_rows(figures),
        type_rows(figures),
        text_rows(figures),
    ];
    let rows = rows.into_iter().flatten().map(|row| {
        let ComparisonRow {
            figure,
            warmroute,
            linkerd,
        } = row;
        format!("| {figure} | {warmroute} | {linkerd} |\n")
    });
    let head = "| figure | warmroute | linkerd2-proxy |\n|---|--:|--:|\n".to_owned();
    head + &rows.collect::<String>()
}

/// Returns the figures of each crate, the largest crate first.
pub(super) fn crates(figures: &Figures) -> String {
    let mut crates: Vec<_> = figures.crates.iter().collect();
    crates.sort_by_key(|figures| usize::MAX - figures.lines);
    let head = "| crate | files | lines | file lines median / max | tests | tests per 1,000 lines | largest module cycle |\n|---|--:|--:|--:|--:|--:|--:|\n";
    head.to_owned() + &crates.into_iter().map(crate_row).collect::<String>()
}

fn crate_row(figures: &CrateFigures) -> String {
    let cycle = match figures.largest_cycle() {
        0 => "-".to_owned(),
        files => files.to_string(),
    };
    format!(
        "| {} | {} | {} | {} / {} | {} | {:.1} | {cycle} |\n",
        figures.name,
        figures.file_lines.count(),
        grouped(figures.lines),
        figures.file_lines.percentile(50),
        figures.file_lines.max(),
        figures.tests,
        rate(figures.tests, figures.lines, 1_000),
    )
}

fn file_rows(figures: &Figures) -> Vec<ComparisonRow> {
    let files = &figures.file_lines;
    vec![
        ComparisonRow {
            figure: "source files / lines (tests out)",
            warmroute: format!("{} / {}", grouped(files.count()), grouped(figures.lines())),
            linkerd: "402 / 63,889",
        },
        ComparisonRow {
            figure: "file lines median / p90 / max",
            warmroute: format!(
                "{} / {} / {}",
                files.percentile(50),
                files.percentile(90),
                grouped(files.max())
            ),
            linkerd: "118 / 330 / 1,090",
        },
        ComparisonRow {
            figure: "files > 400 lines",
            warmroute: files.count_above(400).to_string(),
            linkerd: "24",
        },
    ]
}

fn function_rows(figures: &Figures) -> Vec<ComparisonRow> {
    let lines = figures.function_lines();
    let arguments = figures.arguments();
    let many = arguments.count_above(4);
    let with_bool = figures
        .functions
        .iter()
        .filter(|function| function.bools > 0);
    vec![
        ComparisonRow {
            figure: "functions",
            warmroute: grouped(lines.count()),
            linkerd: "3,051",
        },
        ComparisonRow {
            figure: "function lines median / p90 / p99 / max",
            warmroute: [50, 90, 99, 100]
                .map(|percent| lines.percentile(percent).to_string())
                .join(" / "),
            linkerd: "6 / 26 / 87 / 542",
        },
        ComparisonRow {
            figure: "functions > 60 / > 100 lines",
            warmroute: format!("{} / {}", lines.count_above(60), lines.count_above(100)),
            linkerd: "67 / 21",
        },
        ComparisonRow {
            figure: "functions with >= 5 arguments; most arguments",
            warmroute: format!("{}; {}", share(many, lines.count()), arguments.max()),
            linkerd: "0.6 % (17); 8",
        },
        ComparisonRow {
            figure: "functions with a `bool` parameter",
            warmroute: share(with_bool.count(), lines.count()),
            linkerd: "0.7 % (20)",
        },
    ]
}

fn type_rows(figures: &Figures) -> Vec<ComparisonRow> {
    let fields = figures.fields();
    let (cycle, cycle_crate) = figures.largest_cycle();
    vec![
        ComparisonRow {
            figure: "struct fields median / p90 / max",
            warmroute: [50, 90, 100]
                .map(|percent| fields.percentile(percent).to_string())
                .join(" / "),
            linkerd: "2 / 4 / 13",
        },
        ComparisonRow {
            figure: "structs > 13 / > 20 fields",
            warmroute: format!("{} / {}", fields.count_above(13), fields.count_above(20)),
            linkerd: "0 / 0",
        },
        ComparisonRow {
            figure: "largest module cycle of a crate, in files",
            warmroute: format!("{cycle} ({cycle_crate})"),
            linkerd: NOT_MEASURED,
        },
        ComparisonRow {
            figure: "type names that are a bare participle",
            warmroute: names::participles(&figures.types).len().to_string(),
            linkerd: NOT_MEASURED,
        },
        ComparisonRow {
            figure: "type names for more than two things",
            warmroute: names::ambiguous(&figures.types).len().to_string(),
            linkerd: NOT_MEASURED,
        },
    ]
}

fn text_rows(figures: &Figures) -> Vec<ComparisonRow> {
    let text = &figures.text;
    vec![
        ComparisonRow {
            figure: "`unwrap` and `expect` per 1,000 code lines",
            warmroute: format!("{:.1}", rate(text.unwraps, text.code_lines, 1_000)),
            linkerd: "3.0",
        },
        ComparisonRow {
            figure: "tests per 1,000 source lines",
            warmroute: format!("{:.1}", rate(figures.tests(), figures.lines(), 1_000)),
            linkerd: "10.9",
        },
        ComparisonRow {
            figure: "characters per non-blank line",
            warmroute: format!("{:.1}", rate(text.characters, text.filled_lines, 1)),
            linkerd: "27.9",
        },
        ComparisonRow {
            figure: "lines over 100 columns",
            warmroute: share(text.lines_over_100, text.filled_lines),
            linkerd: "0.1 %",
        },
    ]
}

/// Returns `1.5 % (99)`.
pub(super) fn share(part: usize, whole: usize) -> String {
    format!("{:.1} % ({part})", rate(part, whole, 100))
}

/// Returns `140,047`.
pub(super) fn grouped(count: usize) -> String {
    let digits = count.to_string();
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_readers() {
        assert_eq!(
            [7, 140, 1_400, 1_234_567].map(grouped),
            ["7", "140", "1,400", "1,234,567"]
        );
        assert_eq!(share(99, 6_520), "1.5 % (99)");
    }
}
