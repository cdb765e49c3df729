//! The layout of Azure's LLM inference traces: CSV with the arrival, the length of the prompt and that
//! of the reply. Nothing in it says which prompts share a beginning, so none do.

use std::fmt::Write;

use time::{PrimitiveDateTime, format_description::BorrowedFormatItem, macros::format_description};

use super::TraceError;

/// The first line.
const HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";

/// Cells of a line; further ones are ignored.
const CELLS: usize = 3;

/// Longest piece of a trace in an error.
const SHOWN: usize = 60;

/// A time; the digits behind the second may be missing.
const LAYOUT: &[BorrowedFormatItem<'_>] = format_description!(
    version = 2,
    "[year]-[month]-[day] [hour]:[minute]:[second][optional [.[subsecond]]]"
);
const EXPECTED_TIME: &str = "a time such as 2023-11-16 18:15:46.6805900";

/// Returns whether a text has this layout.
pub(super) fn is_azure(text: &str) -> bool {
    text.lines()
        .next()
        .is_some_and(|line| line.trim_end() == HEADER)
}

/// Converts a text into the Mooncake layout, with a line for each line.
pub(super) fn json_lines(text: &str) -> Result<String, TraceError> {
    let mut lines = String::from("\n");
    let mut first = None;
    for (index, row) in text.lines().enumerate().skip(1) {
        let row = row.trim();
        if !row.is_empty() {
            let line = AzureLine {
                line: index + 1,
                cells: row.splitn(CELLS + 1, ',').take(CELLS).collect(),
            };
            let arrival = line.read(0, "TIMESTAMP", EXPECTED_TIME, time)?;
            let prompt = line.tokens(1, "ContextTokens")?;
            let output = line.tokens(2, "GeneratedTokens")?;
            let arrival_ms = (arrival - *first.get_or_insert(arrival)).as_seconds_f64() * 1e3;
            let _ = write!(
                lines,
                r#"{{"timestamp": {arrival_ms:.3}, "input_length": {prompt}, "output_length": {output}, "hash_ids": []}}"#
            );
        }
        lines.push('\n');
    }
    Ok(lines)
}

/// One line's cells.
struct AzureLine<'a> {
    line: usize,
    cells: Vec<&'a str>,
}

impl AzureLine<'_> {
    fn tokens(&self, cell: usize, field: &'static str) -> Result<u32, TraceError> {
        self.read(cell, field, "a whole number of tokens", |text| {
            text.parse().ok()
        })
    }

    fn read<T>(
        &self,
        cell: usize,
        field: &'static str,
        expected: &'static str,
        convert: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, TraceError> {
        let text = self.cells.get(cell).copied();
        text.and_then(convert).ok_or_else(|| TraceError::BadField {
            line: self.line,
            field,
            found: text.map_or_else(
                || "missing".to_owned(),
                |text| text.escape_debug().take(SHOWN).collect(),
            ),
            expected,
        })
    }
}

/// Reads a time in UTC.
fn time(text: &str) -> Option<PrimitiveDateTime> {
    let text = text.strip_suffix("+00:00").unwrap_or(text);
    let time = PrimitiveDateTime::parse(text, LAYOUT).ok()?;
    (1970..=2999).contains(&time.year()).then_some(time)
}

#[cfg(test)]
mod tests {
    use kv_blocks::BlockSize;

    use super::*;
    use crate::{Trace, infinite_hit_ratio};

    fn read(rows: &[&str]) -> Result<Trace, TraceError> {
        let text = [&[HEADER], rows].concat().join("\r\n");
        Trace::read(&text, BlockSize::new(512).unwrap())
    }

    #[test]
    fn arrivals_and_lengths_are_read_and_no_prompt_shares_anything() {
        let trace = read(&[
            "2023-11-16 23:59:59.5000000,374,44",
            "",
            "2023-11-17 00:00:02.2500000,374,109",
            "2023-11-17 00:00:03.5+00:00,1024,1",
        ])
        .unwrap();
        let of = |request: &crate::TraceRequest| {
            let lengths = (request.prompt_tokens, request.output_tokens);
            ((request.arrival_s * 1e3).round(), lengths)
        };
        let requests: Vec<_> = trace.requests.iter().map(of).collect();
        assert_eq!(
            requests,
            [
                (0.0, (374, 44)),
                (2_750.0, (374, 109)),
                (4_000.0, (1_024, 1))
            ]
        );
        assert_eq!(infinite_hit_ratio(&trace), 0.0);
        assert!(!trace.names_sessions());
    }

    #[test]
    fn further_cells_are_ignored_however_many_there_are() {
        let row = "2023-11-16 00:00:00,374,44".to_owned() + &",".repeat(100_000);
        assert_eq!(read(&[&row]).unwrap().requests[0].prompt_tokens, 374);
    }

    #[test]
    fn days_follow_the_calendar() {
        for (before, after) in [
            ("2023-12-31", "2024-01-01"),
            ("2024-02-28", "2024-02-29"),
            ("2024-02-29", "2024-03-01"),
            ("2023-02-28", "2023-03-01"),
            ("2100-02-28", "2100-03-01"),
            ("2000-02-29", "2000-03-01"),
            ("2024-04-30", "2024-05-01"),
        ] {
            let rows = [before, after].map(|date| format!("{date} 00:00:00,1,1"));
            let trace = read(&rows.each_ref().map(String::as_str)).unwrap();
            assert_eq!(trace.requests[1].arrival_s, 86_400.0, "{before}");
        }
    }

    #[test]
    fn a_bad_cell_is_refused_with_its_line_and_column() {
        for (row, expected) in [
            (
                "2023-11-16,1,1",
                "line 3: TIMESTAMP is 2023-11-16: expected a time",
            ),
            ("2023-11-16-1 00:00:00,1,1", "line 3: TIMESTAMP is "),
            ("2023-11-16 00:00:00:1,1,1", "line 3: TIMESTAMP is "),
            ("2023-11-16 00:00:-1,1,1", "line 3: TIMESTAMP is "),
            (
                "2023-11-16 00:00:\0\u{1b},1,1",
                r"line 3: TIMESTAMP is 2023-11-16 00:00:\0\u{1b}: expected a time",
            ),
            (
                "2023-11-16 00:00:00,-1,1",
                "line 3: ContextTokens is -1: expected a whole number of tokens",
            ),
            (
                "2023-11-16 00:00:00,4294967296,1",
                "line 3: ContextTokens is 4294967296: expected a whole number of tokens",
            ),
            ("2023-13-16 00:00:00,1,1", "line 3: TIMESTAMP is "),
            ("2023-11-16 24:00:00,1,1", "line 3: TIMESTAMP is "),
            ("2023-11-16 00:00:NaN,1,1", "line 3: TIMESTAMP is "),
            ("99999-11-16 00:00:00,1,1", "line 3: TIMESTAMP is "),
            ("9999-12-31 23:59:59,1,1", "line 3: TIMESTAMP is "),
            (
                "2023-11-16 00:00:00,many,1",
                "line 3: ContextTokens is many: expected a whole number of tokens",
            ),
            (
                "2023-11-16 00:00:00,1",
                "line 3: GeneratedTokens is missing",
            ),
            ("2023-11-16 00:00:00,0,1", "line 3: input_length is 0"),
            ("2023-11-15 00:00:00,1,1", "line 3: timestamp is -"),
        ] {
            let problem = read(&["2023-11-16 00:00:00,1,1", row]).unwrap_err();
            assert!(problem.to_string().starts_with(expected), "{problem}");
        }
        assert_eq!(read(&[]).unwrap_err(), TraceError::Empty);
    }
}
