//! Chores of the repository: `cargo xtask contract-status --log FILE [--check]`.
//!
//! `contract-status` joins the `#[contract("..")]` attributes of all tests with the output of a test run and writes
//! `docs/contract-status.md`; with `--check` it only compares. The standard library is enough for this, and keeps the
//! chore out of the way of the build.

mod contract_ids;
mod rust_tokens;
mod status_table;
mod test_log;
mod tests_in_sources;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

const USAGE: &str = "usage: cargo xtask contract-status --log FILE [--check]";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (log, mode) = match args.as_slice() {
        ["contract-status", "--log", log] => (log, Mode::Write),
        ["contract-status", "--log", log, "--check"] | ["contract-status", "--check", "--log", log] => {
            (log, Mode::Check)
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match contract_status(&root(), Path::new(log), mode) {
        Ok(done) => {
            eprintln!("{done}");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("contract-status: {problem}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Write,
    Check,
}

/// The repository: beside this package, or where the command was started.
fn root() -> PathBuf {
    let package = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    package.and_then(|package| package.parent().map(Path::to_owned)).unwrap_or_else(|| PathBuf::from("."))
}

fn contract_status(root: &Path, log: &Path, mode: Mode) -> Result<String, String> {
    let text =
        fs::read_to_string(log).map_err(|error| format!("the test log {} cannot be read: {error}", log.display()))?;
    let results = test_log::read(&text);
    let tests = tests_in_sources::find(root)?;
    let unknown: Vec<_> = tests.iter().flat_map(tests_in_sources::ContractTest::unknown_ids).collect();
    if !unknown.is_empty() {
        return Err(unknown.join("\n"));
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
    let table = status_table::table(&tests, &results);
    let path = root.join("docs/contract-status.md");
    if mode == Mode::Write {
        fs::write(&path, &table).map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
        return Ok(format!("wrote docs/contract-status.md, {} tests with ids", tests.len()));
    }
    match status_table::first_difference(&fs::read_to_string(&path).unwrap_or_default(), &table) {
        None => Ok(format!("docs/contract-status.md is true, {} tests with ids", tests.len())),
        Some(difference) => Err(format!(
            "docs/contract-status.md is not what the tests say\n{difference}\n\
             write it anew with: WARMROUTE_WRITE_STATUS=1 ./test"
        )),
    }
}
