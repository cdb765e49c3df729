//! The figures as Markdown tables, one for each metric.

use std::{fmt::Write as _, fs, io, path::Path};

use crate::{figures::Metric, index::Implementation};

use super::{BenchmarkResults, table::TextTable};

/// The figures between these two lines of a file are replaced.
const BEGIN: &str = "<!-- figures: begin -->";
const END: &str = "<!-- figures: end -->";

/// Returns the origin of the figures, then one table per metric.
pub(crate) fn markdown(results: &BenchmarkResults) -> String {
    let run = &results.run;
    let mut text = format!(
        "{}, {} cores, {}, medians of {}{}:\n\n    {}\n",
        run.cpu.as_deref().unwrap_or("processor unknown"),
        run.cores,
        run.date,
        run.reps,
        if run.quick {
            ", a quarter of each workload"
        } else {
            ""
        },
        run.command
    );
    for metric in Metric::ALL {
        let _ = write!(
            text,
            "\n**`{}`** {}\n\n{}",
            metric.name(),
            meaning(metric),
            table(results, metric).text()
        );
    }
    text
}

/// Writes the figures into a file: between its two marks, or as the whole of a new file.
///
/// # Errors
/// The file cannot be read or written, or exists without the marks.
pub(crate) fn write_into(path: &Path, figures: &str) -> io::Result<()> {
    let text = match fs::read_to_string(path) {
        Ok(text) => replaced(&text, figures).ok_or_else(|| {
            let what = format!(
                "no place for the figures: expected a line {BEGIN} and after it a line {END}"
            );
            io::Error::new(io::ErrorKind::InvalidData, what)
        })?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => figures.to_owned(),
        Err(error) => return Err(error),
    };
    fs::write(path, text)
}

fn replaced(text: &str, figures: &str) -> Option<String> {
    let begin = text.find(BEGIN)? + BEGIN.len();
    let end = begin + text[begin..].find(END)?;
    Some(format!("{}\n{figures}{}", &text[..begin], &text[end..]))
}

fn table(results: &BenchmarkResults, metric: Metric) -> TextTable {
    let mut table = TextTable::default();
    let mut head = vec!["workload".to_owned(), Implementation::Ours.name().into()];
    for peer in results.peers() {
        head.extend([peer.name().to_owned(), "ratio".into()]);
    }
    table.row(head);
    for workload in &results.workloads {
        let ours = workload.figure(metric, Implementation::Ours);
        let mut cells = vec![workload.name.to_owned(), shown(metric, ours)];
        for peer in results.peers() {
            let theirs = workload.figure(metric, peer);
            let ratio = ours
                .zip(theirs)
                .map(|(ours, theirs)| metric.ratio(ours, theirs));
            cells.extend([
                shown(metric, theirs),
                ratio.map_or("-".into(), |ratio| format!("{ratio:.2}")),
            ]);
        }
        table.row(cells);
    }
    table
}

fn meaning(metric: Metric) -> &'static str {
    match metric {
        Metric::QueryP50 => "one query against the standing state, median",
        Metric::QueryP99 => "the same, 99th percentile",
        Metric::QueryP50HotPrompt => {
            "the prompt's hashes read just before, as if they had just been computed, median"
        }
        Metric::QueryP50AsPairs => {
            "query and the answer copied into a list of (target, blocks) pairs, median"
        }
        Metric::BatchedQueries => {
            "millions of queries per second of CPU time, in batches where the index has them"
        }
        Metric::EventsBlocks => "millions of blocks stored and removed per second of CPU time",
        Metric::BytesPerMembership => "bytes asked of the allocator per pair of block and target",
        Metric::QueryP50WithWriter => "one query while a writer applies changes, median",
        Metric::QueryP99WithWriter => "the same, 99th percentile",
    }
}

fn shown(metric: Metric, value: Option<f64>) -> String {
    let Some(value) = value else {
        return "-".into();
    };
    match metric {
        Metric::BatchedQueries | Metric::EventsBlocks => format!("{:.2} M", value / 1e6),
        Metric::BytesPerMembership => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let text = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let expected = format!("before\n{BEGIN}\nnew\n{END}\nafter\n");
        assert_eq!(replaced(&text, "new\n"), Some(expected));
        assert_eq!(replaced("no marks", "new\n"), None);
    }
}
