//! The output of `cargo test`, as results by package and test, and that of the tests in Python.
//!
//! `cargo test` does not print the package of an integration test, but it runs a package's unit
//! tests first: a test program belongs to the package of the last unit tests before it.
//!
//! For the test harness, a test that skips itself passes. It prints its name on its own line
//! ([`test_programs::SKIPPED`]), so its result here is `skipped`.
//!
//! A test in Python has its path in its name (see [`python_tests`]), whatever ran before it. Where none
//! of them could run, the log has one line with the reason.

use std::collections::HashSet;

use test_programs::SKIPPED;

use crate::python_tests;

/// The result of a test that skipped itself.
pub(crate) const SKIPPED_RESULT: &str = "skipped";

/// One line of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TestResult {
    /// The library's name, `event_sources`: the package's own spelling is not in the output. Empty
    /// for tests in Python.
    pub(crate) library: String,
    /// `src/lib.rs` or `tests/suite/main.rs`; the folder of all tests in Python.
    pub(crate) program: String,
    /// `module::tests::a_name`, in Python `python/tests/test_x.py::test_a_name`. Empty if no test in
    /// Python ran.
    pub(crate) name: String,
    pub(crate) result: String,
}

pub(crate) fn read(log: &str) -> Vec<TestResult> {
    let mut results: Vec<TestResult> = Vec::new();
    let mut skipped = HashSet::new();
    let mut library = String::new();
    let mut program = None;
    for line in log.lines().map(str::trim_end) {
        let trimmed = line.trim_start();
        if let Some((source, binary)) = running(trimmed) {
            let unit_tests = source.strip_prefix("unittests ");
            if unit_tests.is_some() {
                library = binary.to_owned();
            }
            program = Some(unit_tests.unwrap_or(source).to_owned());
        } else if let Some(row) = python_result(line) {
            results.push(row);
        } else if let (Some(program), Some(name)) = (&program, skipped_test(line)) {
            skipped.insert((library.clone(), program.clone(), name.to_owned()));
        } else if trimmed.starts_with("Doc-tests ") {
            program = None; // examples have no ids
        } else if let (Some(program), Some((name, result))) = (&program, result(line)) {
            let name = name.to_owned();
            results.push(TestResult {
                library: library.clone(),
                program: program.clone(),
                name,
                result,
            });
        }
    }
    for row in results.iter_mut().filter(|row| row.result == "ok") {
        // The two lines come through two pipes: either may be first.
        if skipped.contains(&(row.library.clone(), row.program.clone(), row.name.clone())) {
            SKIPPED_RESULT.clone_into(&mut row.result);
        }
    }
    results
}

/// `test python/tests/test_x.py::test_a ... ok`, or the line that says why none of them ran.
fn python_result(line: &str) -> Option<TestResult> {
    let (name, result) = if line.starts_with(python_tests::NOT_RUN) {
        ("", SKIPPED_RESULT.to_owned())
    } else {
        result(line).filter(|(name, _)| name.starts_with(python_tests::FOLDER))?
    };
    Some(TestResult {
        library: String::new(),
        program: python_tests::FOLDER.to_owned(),
        name: name.to_owned(),
        result,
    })
}

/// `Running unittests src/lib.rs (target/debug/deps/net-0123456789abcdef)`: returns the source and
/// the program's name.
fn running(line: &str) -> Option<(&str, &str)> {
    let (source, path) = line
        .strip_prefix("Running ")?
        .strip_suffix(')')?
        .split_once(" (")?;
    let file = path.rsplit(['/', '\\']).next()?;
    let (name, _fingerprint) = file.rsplit_once('-')?;
    Some((source, name))
}

/// `test skipped: a::b: there is no such program`.
fn skipped_test(line: &str) -> Option<&str> {
    let (_, said) = line.split_once(SKIPPED)?;
    said.split_once(": ").map(|(name, _)| name)
}

/// `test a::b ... ok`. Output of a program under test may precede the line, or its result.
pub(crate) fn result(line: &str) -> Option<(&str, String)> {
    let (before, result) = line.split_once(" ... ")?;
    let before = before.strip_suffix(" - should panic").unwrap_or(before);
    let (before, name) = before.rsplit_once(' ')?;
    if !before.ends_with("test") {
        return None;
    }
    let result = if result.ends_with("ok") {
        "ok".to_owned()
    } else if result.ends_with("FAILED") {
        "failed".to_owned()
    } else {
        result.replace('|', "/")
    };
    Some((name, result))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "
   Compiling net v0.1.0
     Running unittests src/lib.rs (target/debug/deps/event_sources-0f9c)

running 3 tests
test zmq::tests::first ... ok
test zmq::tests::second ... FAILED
{\"log\":1}test panics - should panic ... ok

     Running tests/wire.rs (target/debug/deps/wire-12ab)
test skipped: fourth: there is no redis-server
test third ... ignored, needs a GPU | or two
test fourth ... ok
test later ... ok
test skipped: later: there is no redis-server
test skipped: fifth: there is no redis-server
test fifth ... FAILED

     Running tests/other.rs (target/debug/deps/other-34cd)
test fourth ... ok

   Doc-tests event_sources
test crates/event-sources/src/lib.rs - (line 3) ... ok
test python/tests/test_x.py::test_a ... ok
test python/tests/test_x.py::test_b ... FAILED
test python/tests/test_x.py::test_c ... skipped
python/tests skipped: there is no python3
";

    #[test]
    fn each_result_has_its_package_and_program() {
        let rows: Vec<_> = read(LOG)
            .into_iter()
            .map(|row| {
                format!(
                    "{} {} {} {}",
                    row.library, row.program, row.name, row.result
                )
            })
            .collect();
        assert_eq!(
            rows,
            [
                "event_sources src/lib.rs zmq::tests::first ok",
                "event_sources src/lib.rs zmq::tests::second failed",
                "event_sources src/lib.rs panics ok",
                "event_sources tests/wire.rs third ignored, needs a GPU / or two",
                "event_sources tests/wire.rs fourth skipped",
                "event_sources tests/wire.rs later skipped",
                "event_sources tests/wire.rs fifth failed",
                "event_sources tests/other.rs fourth ok",
                " python/tests/ python/tests/test_x.py::test_a ok",
                " python/tests/ python/tests/test_x.py::test_b failed",
                " python/tests/ python/tests/test_x.py::test_c skipped",
                " python/tests/  skipped",
            ]
        );
    }
}
