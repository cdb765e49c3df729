//! Origins of the keys that were set, for problems found after loading.

use std::collections::BTreeMap;

use settings::{CheckedValue, Value, ValueOrigin};

use crate::{Problem, key_path::steps};

/// Origins by path; keys at their defaults are not in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ValueOrigins {
    file: String,
    origins: BTreeMap<Vec<String>, ValueOrigin>,
}

impl ValueOrigins {
    pub(crate) fn of(root: &CheckedValue, file: &str) -> Self {
        let mut places = Self {
            file: file.to_owned(),
            origins: BTreeMap::new(),
        };
        places.collect(root, &mut Vec::new());
        places
    }

    fn collect(&mut self, checked: &CheckedValue, path: &mut Vec<String>) {
        if let Some(origin) = &checked.origin {
            self.origins.insert(path.clone(), origin.clone());
        }
        let mut inner = |name: String, value: &CheckedValue| {
            path.push(name);
            self.collect(value, path);
            path.pop();
        };
        match &checked.value {
            Value::Map(entries) => entries
                .iter()
                .for_each(|(name, value)| inner(name.clone(), value)),
            Value::List(items) => items
                .iter()
                .enumerate()
                .for_each(|(at, value)| inner(at.to_string(), value)),
            _ => {}
        }
    }

    pub(crate) fn has(&self, path: &str) -> bool {
        steps(path).is_some_and(|path| self.origins.contains_key(&path))
    }

    /// Returns the origin of a value that is not from the file.
    pub(crate) fn named(&self, path: &[&str]) -> Option<&str> {
        let path: Vec<String> = path.iter().map(|step| (*step).to_owned()).collect();
        match self.origins.get(&path) {
            Some(ValueOrigin::Named(name)) => Some(name),
            _ => None,
        }
    }

    /// Adds the place of its key to a problem, if known.
    pub(crate) fn locate(&self, mut problem: Problem) -> Problem {
        match steps(&problem.path).and_then(|path| self.origins.get(&path)) {
            Some(ValueOrigin::File { line, column }) => {
                (problem.line, problem.column) = (Some(*line), Some(*column));
                problem.source.clone_from(&self.file);
            }
            Some(ValueOrigin::Named(name)) => problem.source.clone_from(name),
            None => {}
        }
        problem
    }
}
