//! The contract ids: families of promises, each numbered from 1.

use std::collections::BTreeSet;

/// The document of the promises to users. Each is listed in the status, with or without a test.
pub(crate) const CONTRACT: &str = "docs/contract.md";
/// The document of the other ids.
pub(crate) const FAULTS: &str = "docs/faults-and-threats.md";

const FAMILIES: &[&str] = &[
    "A", "B", "CH", "CK", "D", "DY", "F", "G", "I", "MC", "S", "V",
];

/// Family and number; ids sort by them, so that `V9` comes before `V10`.
pub(crate) type Id = (&'static str, u32);

/// Returns the id of this name, if it has the form of one.
pub(crate) fn parse(text: &str) -> Option<Id> {
    let digits = text.find(|letter: char| letter.is_ascii_digit())?;
    let (family, number) = text.split_at(digits);
    let family = FAMILIES.iter().find(|name| **name == family)?;
    // `V08` and `V+8` are numbers, but not ids.
    let number = number
        .parse()
        .ok()
        .filter(|parsed: &u32| parsed.to_string() == number)?;
    (number > 0).then_some((*family, number))
}

/// Returns the ids that a document defines: those in the first column of its tables and those that
/// its headings start with.
pub(crate) fn defined_in(document: &str) -> BTreeSet<Id> {
    document.lines().filter_map(defined_by).collect()
}

fn defined_by(line: &str) -> Option<Id> {
    let name = match line.strip_prefix('|') {
        Some(row) => row.split('|').next()?.trim(),
        None => line
            .strip_prefix('#')?
            .trim_start_matches('#')
            .split_whitespace()
            .next()?,
    };
    parse(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_family_and_a_number_of_it() {
        assert_eq!(parse("CK86"), Some(("CK", 86)));
        assert_eq!(parse("F1"), Some(("F", 1)));
        for text in [
            "CK0",
            "V08",
            "V+8",
            "V",
            "8",
            "",
            "X1",
            "ck1",
            "V1 ",
            "V1.2",
            "V99999999999",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_row_or_a_heading_defines_an_id_and_a_mention_does_not() {
        let document = "# Title\n\nSee CK9.\n\n| id | promise |\n|---|---|\n| CK1 | CK2 and V3 |\n|F4|x|\n\
            | CK5-CK8 | range |\n| C0 | a retry class |\n### G7 A goal\n## 2 Part (DY)\n";
        let defined = defined_in(document);
        assert_eq!(
            defined.into_iter().collect::<Vec<_>>(),
            [("CK", 1), ("F", 4), ("G", 7)]
        );
    }

    #[test]
    fn ids_sort_by_number_and_not_by_letter() {
        assert!(parse("V9") < parse("V10"));
        assert!(parse("CH31") < parse("CK1"));
    }
}
