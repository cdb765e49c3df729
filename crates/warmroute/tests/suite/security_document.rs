//! SECURITY.md: its parts, and that what it names exists.

use std::{collections::BTreeSet, path::PathBuf};

use contract_id::contract;

use crate::harness::Program;

const DOCUMENT: &str = include_str!("../../../../SECURITY.md");
const REFERENCE: &str = include_str!("../../../../docs/configuration.md");

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the text below a heading.
fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let start = text.find(&format!("\n{heading}\n"));
    let start = start.unwrap_or_else(|| panic!("no {heading:?}")) + heading.len() + 2;
    let end = text[start..]
        .find("\n## ")
        .map_or(text.len(), |end| start + end);
    &text[start..end]
}

/// Returns the cells of each row of the only table, without its head.
fn rows(section: &str) -> Vec<Vec<&str>> {
    let lines = section.lines().filter(|line| line.starts_with("| "));
    lines
        .skip(1)
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}

/// Returns what stands between backquotes.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

#[test]
#[contract("S82")]
fn the_threat_model_says_whom_the_router_trusts_and_when_reports_are_answered() {
    let report = section(DOCUMENT, "## Reporting a vulnerability");
    for promise in ["3 working days", "10 working days", "30 days", "90 days"] {
        assert!(report.contains(promise), "{promise}");
    }
    let trust = rows(section(DOCUMENT, "## Whom the router trusts"));
    for party in [
        "client",
        "engine",
        "publisher",
        "Redis",
        "model files",
        "replicas",
        "operator",
    ] {
        let row = trust.iter().find(|row| row[0].contains(party));
        let row = row.unwrap_or_else(|| panic!("no row of {party}"));
        assert!(
            row.len() == 3 && row.iter().all(|cell| !cell.is_empty()),
            "{row:?}"
        );
        let is_level = ["none", "semi-trusted", "trusted"]
            .iter()
            .any(|it| row[1].starts_with(it));
        assert!(is_level, "{row:?}");
    }
    assert!(DOCUMENT.contains("Severity, highest first:"));
}

#[test]
#[contract("S82")]
fn each_crate_has_its_exposure_and_no_other_is_named() {
    let exposure = section(DOCUMENT, "## Exposure of each part");
    let named: BTreeSet<String> = rows(exposure)
        .iter()
        .flat_map(|row| quoted(row[1]))
        .map(str::to_owned)
        .collect();
    let folders = std::fs::read_dir(repository().join("crates")).expect("the crates");
    let there: BTreeSet<String> = folders
        .map(|folder| {
            folder
                .expect("a folder")
                .file_name()
                .into_string()
                .expect("a name")
        })
        .collect();
    assert_eq!(named, there);
}

#[test]
#[contract("S82")]
fn each_file_section_setting_and_flag_that_is_named_exists() {
    let links: Vec<&str> = DOCUMENT
        .split("](")
        .skip(1)
        .map(|rest| &rest[..rest.find(')').expect("the end of a link")])
        .collect();
    assert!(links.len() > 5, "{links:?}");
    for link in links {
        let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
        let text = std::fs::read_to_string(repository().join(file));
        let text = text.unwrap_or_else(|error| panic!("{link}: {error}"));
        let anchor_of = |heading: &str| heading.to_lowercase().replace(' ', "-").replace('`', "");
        let mut headings = text.lines().filter_map(|line| {
            let heading = line.trim_start_matches('#');
            (heading.len() < line.len()).then(|| anchor_of(heading.trim()))
        });
        assert!(
            anchor.is_empty() || headings.any(|it| it == anchor),
            "{link}"
        );
    }
    let settings: Vec<&str> = quoted(DOCUMENT)
        .into_iter()
        .filter(|word| word.contains('.') && !word.contains(' '))
        .collect();
    assert!(settings.len() > 5, "{settings:?}");
    for setting in settings {
        let is_there = ["`", ".", "[]"]
            .iter()
            .any(|end| REFERENCE.contains(&format!("| `{setting}{end}")));
        assert!(is_there, "{setting}");
    }
    for command in quoted(DOCUMENT)
        .into_iter()
        .filter(|word| word.contains("--"))
    {
        let (words, flag) = command
            .rsplit_once(' ')
            .unwrap_or(("warmroute serve", command));
        let words: Vec<&str> = words.split(' ').skip(1).chain(["--help"]).collect();
        let help = Program::finish(&words);
        assert_eq!(help.code, Some(0), "{command}");
        assert!(help.stdout.contains(flag), "{command}");
    }
}
