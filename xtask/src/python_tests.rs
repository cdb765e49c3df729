//! The tests of the Python package that carry contract ids, read from `python/tests`.
//!
//! A test has its ids in `@pytest.mark.contract("DY41")`. `python/tests/conftest.py` prints the results of tests as
//! `cargo test` does, with names such as `python/tests/test_command.py::test_a_thing`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::tests_in_sources::ContractTest;

/// The folder of the tests.
pub(crate) const FOLDER: &str = "python/tests/";
/// Start of a line of the log that says why the tests did not run.
pub(crate) const NOT_RUN: &str = "python/tests skipped: ";

const MARK: &str = "@pytest.mark.contract(";

/// Returns all tests with ids, in the order of their files.
pub(crate) fn find(root: &Path) -> Result<Vec<ContractTest>, String> {
    let mut files = Vec::new();
    python_files(&root.join(FOLDER), &mut files);
    files.sort();
    let mut found = Vec::new();
    for path in files {
        let name = path.strip_prefix(root).unwrap_or(&path);
        let name = name.to_string_lossy().replace('\\', "/");
        let text =
            fs::read_to_string(&path).map_err(|error| format!("{name} cannot be read: {error}"))?;
        found.extend(in_file(&name, &text)?);
    }
    Ok(found)
}

fn python_files(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            python_files(&path, out);
        } else if path.extension().is_some_and(|extension| extension == "py") {
            out.push(path);
        }
    }
}

/// A mark whose function has not come yet.
struct OpenMark {
    line: usize,
    /// The text behind the opening bracket.
    text: String,
    is_complete: bool,
}

impl OpenMark {
    fn new(line: usize) -> Self {
        Self {
            line,
            text: String::new(),
            is_complete: false,
        }
    }

    /// Takes a further part of the text, up to the closing bracket.
    fn extend(&mut self, part: &str) {
        let end = part.find(')');
        self.text += &part[..end.unwrap_or(part.len())];
        self.is_complete = end.is_some();
    }

    fn ids(&self) -> Vec<String> {
        let between_quotes = self.text.split('"').skip(1).step_by(2);
        between_quotes.map(str::to_owned).collect()
    }
}

fn in_file(file: &str, source: &str) -> Result<Vec<ContractTest>, String> {
    let mut found = Vec::new();
    let mut open: Option<OpenMark> = None;
    for (number, line) in (1..).zip(source.lines()) {
        match &mut open {
            Some(mark) if !mark.is_complete => mark.extend(line),
            Some(mark) => {
                if let Some(name) = function(line) {
                    found.push(ContractTest {
                        file: file.to_owned(),
                        line: mark.line,
                        inner: name.to_owned(),
                        ids: mark.ids(),
                    });
                    open = None;
                } else if line.trim_start().starts_with("class ") {
                    return Err(without_function(file, mark.line));
                }
            }
            None => {
                if let Some(part) = line.trim_start().strip_prefix(MARK) {
                    let mut mark = OpenMark::new(number);
                    mark.extend(part);
                    open = Some(mark);
                }
            }
        }
    }
    match open {
        Some(mark) => Err(without_function(file, mark.line)),
        None => Ok(found),
    }
}

/// Returns the name of the function of a module that this line defines.
fn function(line: &str) -> Option<&str> {
    let definition = line.strip_prefix("async ").unwrap_or(line);
    let (name, _) = definition.strip_prefix("def ")?.split_once('(')?;
    Some(name.trim())
}

fn without_function(file: &str, line: usize) -> String {
    format!("{file}:{line}: no function of the module follows this contract mark")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str) -> Result<Vec<(usize, String, Vec<String>)>, String> {
        let tests = in_file("python/tests/test_a.py", source)?;
        let parts = tests
            .into_iter()
            .map(|test| (test.line, test.inner, test.ids));
        Ok(parts.collect())
    }

    #[test]
    fn a_mark_may_span_lines_and_precede_its_function_at_any_distance() {
        let source = "import pytest


@pytest.mark.contract(\"DY41\")
def test_first(programs: Programs) -> None:
    pass


@pytest.mark.contract(
    \"DY27\",  # why
    \"DY34\",
)
@pytest.mark.parametrize(
    \"count\", [2, 3]
)
async def test_second(
    count: int,
) -> None:
    pass


def test_without_ids() -> None:
    pass
";
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            found(source),
            Ok(vec![
                (4, "test_first".to_owned(), ids(&["DY41"])),
                (9, "test_second".to_owned(), ids(&["DY27", "DY34"])),
            ])
        );
    }

    #[test]
    fn a_mark_without_a_function_of_the_module_is_refused_with_its_line() {
        let refused =
            "python/tests/test_a.py:2: no function of the module follows this contract mark";
        for rest in [
            "value = 1\n",
            "class TestA:\n    def test_b(self): ...\n",
            "    def test_b(self): ...\n",
            "",
        ] {
            let source = format!("\n@pytest.mark.contract(\"V1\")\n{rest}");
            assert_eq!(found(&source), Err(refused.to_owned()), "{rest}");
        }
        assert_eq!(
            found("\n@pytest.mark.contract(\"V1\""),
            Err(refused.to_owned())
        );
    }

    #[test]
    fn the_repository_has_such_tests() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let tests = find(&root).expect("readable");
        let command = tests
            .iter()
            .find(|test| test.file == "python/tests/test_command.py");
        assert_eq!(command.expect("a test").ids, ["DY41"]);
    }
}
