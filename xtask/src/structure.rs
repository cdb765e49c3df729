//! `cargo xtask structure`: figures of the size and shape of the source code.
//!
//! The figures come from tokens and not from a compiler; `docs/structure.md` explains them and says
//! what they cannot see. The command reports: it passes whatever the figures are.

mod aims;
mod cycles;
mod distribution;
mod figures;
mod functions;
mod lists;
mod longest;
mod modules;
mod names;
#[cfg(test)]
mod outside_world;
mod report;
mod setting;
mod source_file;
mod test_count;
mod types;
mod use_trees;
#[cfg(test)]
mod wall_clock;

use std::{fs, path::Path};

use figures::Figures;

use crate::tests_in_sources;

const DOCUMENT: &str = "docs/structure.md";
const START: &str = "<!-- The output of `cargo xtask structure` starts here. -->\n";
const END: &str = "<!-- The output ends here. -->\n";

/// What `cargo xtask structure` prints or writes of all figures.
#[derive(Clone, Copy)]
pub(crate) enum StructureReport {
    /// The tables of `docs/structure.md`.
    Tables,
    /// The tables, and the items with the largest figures.
    List,
    /// Writes the tables into `docs/structure.md`.
    Write,
}

/// Returns the text to print.
pub(crate) fn structure(root: &Path, report: StructureReport) -> Result<String, String> {
    let sources = tests_in_sources::sources(root)?;
    let files = source_file::source_files(&sources);
    let figures = Figures::of(&files, &sources);
    let tables = tables(&figures);
    match report {
        StructureReport::List => Ok(tables + &longest::lists(&figures)),
        StructureReport::Write => write(root, &tables),
        StructureReport::Tables => Ok(tables),
    }
}

/// Returns the source files that name the key of a setting, as text.
pub(crate) fn files_naming_setting(root: &Path, key: &str) -> Result<String, String> {
    let sources = tests_in_sources::sources(root)?;
    let files = source_file::source_files(&sources);
    Ok(setting::files_naming(&files, key))
}

fn tables(figures: &Figures) -> String {
    [
        report::comparison(figures),
        aims::table(figures),
        report::crates(figures),
    ]
    .join("\n")
}

fn write(root: &Path, tables: &str) -> Result<String, String> {
    let path = root.join(DOCUMENT);
    let document =
        fs::read_to_string(&path).map_err(|error| format!("{DOCUMENT} cannot be read: {error}"))?;
    let document = with_tables(&document, tables)
        .ok_or_else(|| format!("{DOCUMENT} lacks a line of the two around the tables"))?;
    fs::write(&path, document).map_err(|error| format!("{DOCUMENT} cannot be written: {error}"))?;
    Ok(format!("wrote the tables of {DOCUMENT}; update its date\n"))
}

/// Returns the document with the text between the two marks replaced.
fn with_tables(document: &str, tables: &str) -> Option<String> {
    let (before, rest) = document.split_once(START)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{START}\n{tables}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_the_document_are_replaced_and_its_text_stays() {
        let document = format!("before\n{START}old\n{END}after\n");
        assert_eq!(
            with_tables(&document, "| new |\n").expect("both marks"),
            format!("before\n{START}\n| new |\n\n{END}after\n")
        );
        assert_eq!(with_tables("before\n", "| new |\n"), None);
    }
}
