//! `cargo xtask contract-status`: joins the `#[contract("..")]` attributes of all tests, and the marks
//! of those in Python, with the output of a test run.

use std::{collections::BTreeSet, fs, path::Path};

use crate::{
    contract_ids::{self, Id},
    python_tests, security_checklist, status_table, test_log, tests_in_sources, undeclared_modules,
};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum StatusMode {
    /// Writes `docs/contract-status.md`.
    Write,
    /// Compares the file with the tests.
    Check,
}

pub(crate) fn contract_status(root: &Path, log: &Path, mode: StatusMode) -> Result<String, String> {
    let text = fs::read_to_string(log)
        .map_err(|error| format!("the test log {} cannot be read: {error}", log.display()))?;
    let results = test_log::read(&text);
    let sources = tests_in_sources::sources(root)?;
    let mut tests = tests_in_sources::find(&sources)?;
    tests.extend(python_tests::find(root)?);
    let promised = ids_of(root, contract_ids::CONTRACT)?;
    let mut defined = ids_of(root, contract_ids::FAULTS)?;
    defined.extend(&promised);
    let undefined: Vec<_> = tests
        .iter()
        .flat_map(|test| test.undefined_ids(&defined))
        .collect();
    if !undefined.is_empty() {
        return Err(undefined.join("\n"));
    }
    let undeclared = undeclared_modules::find(&sources);
    if !undeclared.is_empty() {
        return Err(undeclared.join("\n"));
    }
    let not_run = status_table::not_run(&tests, &results);
    if let Some(first) = not_run.first() {
        return Err(format!(
            "{} tests with ids have no result in {}, the first is {}::{}: expected the log of a full run; run ./test again",
            not_run.len(),
            log.display(),
            first.file,
            first.name(),
        ));
    }
    let table = status_table::table(&tests, &results, &promised);
    let path = root.join("docs/contract-status.md");
    let checklist = root.join(security_checklist::CHECKLIST);
    let open = read(root, security_checklist::OPEN)?;
    if mode == StatusMode::Write {
        let page = security_checklist::page(&table, &open, &defined)?;
        fs::write(&checklist, page)
            .map_err(|error| format!("{} cannot be written: {error}", checklist.display()))?;
        fs::write(&path, &table)
            .map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
        return Ok(format!(
            "wrote docs/contract-status.md, {} tests with ids",
            tests.len()
        ));
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    let (table, unconfirmed) = status_table::with_skipped_as_written(&table, &written);
    let page = security_checklist::page(&table, &open, &defined)?;
    if fs::read_to_string(&checklist).unwrap_or_default() != page {
        return Err(format!(
            "{} is not what the tests say: write it anew with: WARMROUTE_WRITE_STATUS=1 ./test",
            security_checklist::CHECKLIST
        ));
    }
    match status_table::first_difference(&written, &table) {
        None if unconfirmed == 0 => Ok(format!(
            "docs/contract-status.md is true, {} tests with ids",
            tests.len()
        )),
        None => Ok(format!(
            "docs/contract-status.md is true as far as tests ran, {} tests with ids; NOTE: {unconfirmed} of its rows say \
             ok of tests that were skipped here",
            tests.len()
        )),
        Some(difference) => Err(format!(
            "docs/contract-status.md is not what the tests say\n{difference}\n\
             write it anew with: WARMROUTE_WRITE_STATUS=1 ./test"
        )),
    }
}

/// Returns the ids that a document defines.
fn ids_of(root: &Path, document: &str) -> Result<BTreeSet<Id>, String> {
    Ok(contract_ids::defined_in(&read(root, document)?))
}

fn read(root: &Path, document: &str) -> Result<String, String> {
    fs::read_to_string(root.join(document))
        .map_err(|error| format!("{document} cannot be read: {error}"))
}
