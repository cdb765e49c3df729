//! One problem of the configuration, as shown to the user.

use std::fmt;

use serde::Serialize;
use serde_json::Value as Json;
use settings::ValueOrigin;

/// Most problems reported; a file with more has one cause.
pub(crate) const MAX_PROBLEMS: usize = 200;

/// One problem.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Problem {
    /// Path of the key, as in `workers[1].wieght`; empty for the whole text.
    pub path: String,
    /// Line in the file, from 1; `None` outside a file.
    pub line: Option<u64>,
    /// Column in the file, from 1.
    pub column: Option<u64>,
    /// Value as written; secrets as `***`, variables not expanded.
    pub value: Json,
    /// Description of the problem.
    pub message: String,
    /// Description of a correct value.
    pub expected: Option<String>,
    /// Closest known name.
    pub nearest: Option<String>,
    /// Name of the file, variable or flag.
    pub source: String,
    /// Whether the value is valid alone: the problem is a neighbouring value, or the thing it
    /// names.
    #[serde(skip)]
    in_context: bool,
}

impl Problem {
    /// Returns whether a flag has a value that is invalid whatever else is set: an error of the
    /// command line, not of the configuration.
    pub fn is_bad_flag_value(&self) -> bool {
        self.source.starts_with("--") && !self.in_context
    }

    /// Returns the problem of a file that cannot be read. `reason` is the system's error.
    pub fn unreadable(name: &str, reason: impl fmt::Display) -> Self {
        let draft = ProblemDraft::new("", format!("the file cannot be read: {reason}"));
        draft
            .expected("the path of a readable file, as `-c FILE`")
            .finish(name)
    }

    /// Returns the problem of a file that is not UTF-8 from this byte on.
    pub fn not_utf8(name: &str, valid_bytes: &[u8]) -> Self {
        let line = 1 + valid_bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        let last_line = valid_bytes
            .rsplit(|byte| *byte == b'\n')
            .next()
            .unwrap_or_default();
        let column = 1 + String::from_utf8_lossy(last_line).chars().count() as u64;
        let draft =
            ProblemDraft::new("", "the file is not UTF-8 from here on").expected("UTF-8 text");
        draft.at(ValueOrigin::File { line, column }).finish(name)
    }

    /// Returns the problem of a value that is wrong only in its environment, such as a directory
    /// without a tokenizer. [`crate::Settings::locate`] adds the place of its key.
    pub fn bad_value(path: &str, value: &str, message: &str) -> Self {
        ProblemDraft::new(path, message)
            .value(value.into())
            .in_context()
            .finish("configuration")
    }
}

/// Formats one line for a terminal.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.source)?;
        if let Some(line) = self.line {
            write!(f, "line {line}, column {}: ", self.column.unwrap_or(1))?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        if let Some(expected) = &self.expected {
            write!(f, ": expected {expected}")?;
        }
        if let Some(nearest) = &self.nearest {
            write!(f, "; did you mean `{nearest}`?")?;
        }
        Ok(())
    }
}

/// A problem whose source is not yet named.
#[derive(Clone, Debug)]
pub struct ProblemDraft {
    pub(crate) path: String,
    pub(crate) origin: Option<ValueOrigin>,
    value: Json,
    message: String,
    expected: Option<String>,
    nearest: Option<String>,
    in_context: bool,
}

impl ProblemDraft {
    /// Returns a problem of the key at `path`.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        let (path, message) = (path.into(), message.into());
        Self {
            path,
            message,
            origin: None,
            value: Json::Null,
            expected: None,
            nearest: None,
            in_context: false,
        }
    }

    /// Marks a value that is valid alone: the problem is a neighbouring value, or the thing it
    /// names.
    #[must_use]
    pub fn in_context(mut self) -> Self {
        self.in_context = true;
        self
    }

    /// Sets the description of a correct value.
    #[must_use]
    pub fn expected(mut self, expected: impl Into<String>) -> Self {
        self.expected = Some(expected.into());
        self
    }

    /// Sets the place.
    #[must_use]
    pub fn at(mut self, origin: ValueOrigin) -> Self {
        self.origin = Some(origin);
        self
    }

    /// Sets the value as written.
    #[must_use]
    pub fn value(mut self, value: Json) -> Self {
        self.value = value;
        self
    }

    /// Sets the closest known name.
    #[must_use]
    pub fn nearest(mut self, nearest: Option<String>) -> Self {
        self.nearest = nearest;
        self
    }

    /// Returns the finished problem; `file` is the file's name.
    pub fn finish(self, file: &str) -> Problem {
        let (line, column, source) = match self.origin {
            Some(ValueOrigin::File { line, column }) => (Some(line), Some(column), file.to_owned()),
            Some(ValueOrigin::Named(name)) => (None, None, name),
            None => (None, None, file.to_owned()),
        };
        let Self {
            path,
            value,
            message,
            expected,
            nearest,
            in_context,
            ..
        } = self;
        Problem {
            path,
            line,
            column,
            value,
            message,
            expected,
            nearest,
            source,
            in_context,
        }
    }
}

/// Returns the problems as shown to users: in the order of the file, up to the limit.
pub fn report(problems: Vec<ProblemDraft>, name: &str) -> Vec<Problem> {
    let mut problems: Vec<_> = problems
        .into_iter()
        .map(|draft| draft.finish(name))
        .collect();
    problems.sort_by_key(|problem| (problem.line.is_none(), problem.line, problem.column));
    if problems.len() > MAX_PROBLEMS {
        let more = problems.len() - MAX_PROBLEMS;
        problems.truncate(MAX_PROBLEMS);
        problems.push(ProblemDraft::new("", format!("and {more} more problems")).finish(name));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_displays_place_key_fault_and_remedy() {
        let problem = ProblemDraft::new("workers[1].wieght", "unknown key")
            .expected("one of name, url, weight")
            .nearest(Some("weight".into()))
            .at(ValueOrigin::File { line: 7, column: 5 })
            .finish("warmroute.yaml");
        assert_eq!(
            problem.to_string(),
            "warmroute.yaml: line 7, column 5: workers[1].wieght: unknown key: expected one of name, url, weight; \
             did you mean `weight`?"
        );
    }

    #[test]
    fn a_byte_that_is_not_utf8_is_found_by_line_and_column() {
        let problem = Problem::not_utf8("f", "a: 1\nbü".as_bytes());
        assert_eq!((problem.line, problem.column), (Some(2), Some(3)));
    }
}
