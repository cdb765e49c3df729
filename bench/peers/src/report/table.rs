//! A Markdown table with aligned columns, so that it is also readable as plain text.

/// Rows of equal length; the first row is the head. All columns but the first are right-aligned.
#[derive(Debug, Default)]
pub(super) struct TextTable(Vec<Vec<String>>);

impl TextTable {
    pub(super) fn row(&mut self, cells: Vec<String>) {
        self.0.push(cells);
    }

    pub(super) fn text(&self) -> String {
        let Some(head) = self.0.first() else {
            return String::new();
        };
        let cells = |column| {
            self.0
                .iter()
                .filter_map(move |row: &Vec<String>| row.get(column))
        };
        let widths: Vec<usize> = (0..head.len())
            .map(|column| {
                cells(column)
                    .map(|cell| cell.chars().count())
                    .max()
                    .unwrap_or(0)
                    .max(3)
            })
            .collect();
        let line = |row: &Vec<String>| {
            let padded = row
                .iter()
                .zip(&widths)
                .enumerate()
                .map(|(column, (cell, width))| match column {
                    0 => format!("{cell:<width$}"),
                    _ => format!("{cell:>width$}"),
                });
            format!("| {} |\n", padded.collect::<Vec<_>>().join(" | "))
        };
        let rule = widths
            .iter()
            .enumerate()
            .map(|(column, width)| match column {
                0 => "-".repeat(width + 2),
                _ => format!("{}:", "-".repeat(width + 1)),
            });
        let rule = format!("|{}|\n", rule.collect::<Vec<_>>().join("|"));
        let rows: String = self.0[1..].iter().map(line).collect();
        format!("{}{rule}{rows}", line(head))
    }
}
