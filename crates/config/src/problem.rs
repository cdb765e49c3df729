//! Problems of the configuration, as shown to the user.

use api::Problem;
use serde_json::Value as Json;
use settings::ValueOrigin;

/// Most problems reported; a file with more has one cause.
pub(crate) const MAX_PROBLEMS: usize = 200;

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

    /// Returns the key and its line and column in the file, which are equal for problems of one
    /// value.
    pub(crate) fn place(&self) -> (String, Option<(u64, u64)>) {
        let place = match self.origin {
            Some(ValueOrigin::File { line, column }) => Some((line, column)),
            _ => None,
        };
        (self.path.clone(), place)
    }

    /// Returns whether the value as written contains a variable, or is not shown.
    pub(crate) fn names_variable(&self) -> bool {
        let text = self.value.to_string();
        text.contains("${") || text == "\"***\""
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
}
