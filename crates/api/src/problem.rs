//! One problem of a configuration, as shown to the user.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One problem of the configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// Path of the key, as in `workers[1].wieght`; empty for the whole text.
    pub path: String,
    /// Line in the file, from 1; `null` outside a file.
    pub line: Option<u64>,
    /// Column in the file, from 1.
    pub column: Option<u64>,
    /// Value as written; secrets as `***`, variables not expanded.
    pub value: serde_json::Value,
    /// Description of the problem.
    pub message: String,
    /// Description of a correct value.
    pub expected: Option<String>,
    /// Closest known name.
    pub nearest: Option<String>,
    /// Name of the file, variable or flag.
    pub source: String,
    /// Whether the value is valid alone: the problem is a neighbouring value, or the thing it
    /// names. Not part of the JSON.
    #[serde(skip)]
    pub in_context: bool,
}

impl Problem {
    /// Returns whether a flag has a value that is invalid whatever else is set: an error of the
    /// command line, not of the configuration.
    pub fn is_bad_flag_value(&self) -> bool {
        self.source.starts_with("--") && !self.in_context
    }

    /// Returns the problem of a file that cannot be read. `reason` is the system's error.
    pub fn unreadable(name: &str, reason: impl fmt::Display) -> Self {
        Self {
            expected: Some("the path of a readable file, as `-c FILE`".to_owned()),
            ..Self::of(name, format!("the file cannot be read: {reason}"))
        }
    }

    /// Returns the problem of a file that is not UTF-8 from this byte on.
    pub fn not_utf8(name: &str, valid_bytes: &[u8]) -> Self {
        let line = 1 + valid_bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        let last_line = valid_bytes
            .rsplit(|byte| *byte == b'\n')
            .next()
            .unwrap_or_default();
        let column = 1 + String::from_utf8_lossy(last_line).chars().count() as u64;
        Self {
            line: Some(line),
            column: Some(column),
            expected: Some("UTF-8 text".to_owned()),
            ..Self::of(name, "the file is not UTF-8 from here on".to_owned())
        }
    }

    /// Returns the problem of a value that is wrong only in its environment, such as a directory
    /// without a tokenizer. Its place is not known.
    pub fn bad_value(path: &str, value: &str, message: &str) -> Self {
        Self {
            path: path.to_owned(),
            value: value.into(),
            in_context: true,
            ..Self::of("configuration", message.to_owned())
        }
    }

    /// Returns the problem of a whole text.
    fn of(source: &str, message: String) -> Self {
        Self {
            path: String::new(),
            line: None,
            column: None,
            value: serde_json::Value::Null,
            message,
            expected: None,
            nearest: None,
            source: source.to_owned(),
            in_context: false,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_that_is_not_utf8_is_found_by_line_and_column() {
        let problem = Problem::not_utf8("f", "a: 1\nbü".as_bytes());
        assert_eq!((problem.line, problem.column), (Some(2), Some(3)));
    }
}
