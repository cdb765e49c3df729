//! Reads another router's file: values that know their path, what is wrong with them, and keys that nobody asked for.

use crate::{
    CheckUrl, Problem,
    checked_value::Value,
    load::report,
    problem::ProblemDraft,
    schema::ValueKind,
    tree::{LocatedValue, MapEntry, ValueNode, ValueOrigin, shown_text},
    value::scalar,
    value_error::ValueError,
    yaml,
};

/// The other file as far as it was read.
#[derive(Debug, Default)]
pub(super) struct SourceConfig {
    problems: Vec<ProblemDraft>,
    unused: Vec<(ValueOrigin, String)>,
}

/// A value that a key has.
#[derive(Debug)]
pub(super) struct SourceField<'a> {
    pub(super) path: String,
    pub(super) value: &'a LocatedValue,
}

/// The keys of a mapping that were not taken yet.
#[derive(Debug)]
pub(super) struct UnreadFields<'a> {
    path: String,
    origin: &'a ValueOrigin,
    entries: Vec<&'a MapEntry>,
}

impl<'a> SourceField<'a> {
    /// One of its values, where it is a list.
    pub(super) fn item(&self, at: usize, value: &'a LocatedValue) -> Self {
        Self {
            path: format!("{}[{at}]", self.path),
            value,
        }
    }
}

impl<'a> UnreadFields<'a> {
    /// Those of a mapping that is left out: none.
    pub(super) fn absent(&self, key: &str) -> Self {
        Self {
            path: path_of(&self.path, key),
            origin: self.origin,
            entries: Vec::new(),
        }
    }

    /// The names of the keys.
    pub(super) fn names(&self) -> Vec<String> {
        self.entries.iter().map(|entry| entry.key.clone()).collect()
    }

    /// The value of this key; `None` if it is left out or empty.
    pub(super) fn take(&mut self, key: &str) -> Option<SourceField<'a>> {
        let at = self.entries.iter().position(|entry| entry.key == key)?;
        let entry = self.entries.remove(at);
        let filled = !matches!(entry.value.node, ValueNode::Null);
        filled.then(|| SourceField {
            path: path_of(&self.path, key),
            value: &entry.value,
        })
    }

    /// Path and place of a key, those of the mapping if the key is left out.
    pub(super) fn place(
        &self,
        key: &str,
        field: Option<&SourceField<'a>>,
    ) -> (String, ValueOrigin) {
        let origin = field.map_or(self.origin, |field| &field.value.origin);
        (path_of(&self.path, key), origin.clone())
    }
}

impl SourceConfig {
    /// The YAML text as a tree, where it can be read.
    pub(super) fn parse(text: &str) -> (Option<LocatedValue>, Self) {
        let (tree, problems) = yaml::parse(text);
        (
            tree,
            Self {
                problems,
                unused: Vec::new(),
            },
        )
    }

    /// The keys at the top.
    pub(super) fn top<'a>(&mut self, tree: &'a LocatedValue) -> Option<UnreadFields<'a>> {
        if matches!(tree.node, ValueNode::Null) {
            return Some(UnreadFields {
                path: String::new(),
                origin: &tree.origin,
                entries: Vec::new(),
            });
        }
        self.fields(&SourceField {
            path: String::new(),
            value: tree,
        })
    }

    /// The keys of a mapping.
    pub(super) fn fields<'a>(&mut self, field: &SourceField<'a>) -> Option<UnreadFields<'a>> {
        match &field.value.node {
            ValueNode::Map(entries) => Some(UnreadFields {
                path: field.path.clone(),
                origin: &field.value.origin,
                entries: entries.iter().collect(),
            }),
            _ => {
                self.refuse(
                    field,
                    ValueError::unusable(field.value, &ValueKind::Map(&ValueKind::Free)),
                );
                None
            }
        }
    }

    /// The values of a list.
    pub(super) fn items<'a>(&mut self, field: &SourceField<'a>) -> Vec<SourceField<'a>> {
        match &field.value.node {
            ValueNode::List(items) => items
                .iter()
                .enumerate()
                .map(|(at, value)| field.item(at, value))
                .collect(),
            _ => {
                self.refuse(
                    field,
                    ValueError::unusable(field.value, &ValueKind::List(&ValueKind::Free)),
                );
                Vec::new()
            }
        }
    }

    /// The value of a simple kind that holds no URL.
    pub(super) fn value(&mut self, field: &SourceField<'_>, kind: &ValueKind) -> Option<Value> {
        self.scalar(field, kind, |url| {
            Err(format!("`{url}` is not expected to be a URL"))
        })
    }

    /// A URL that `check` takes.
    pub(super) fn url(&mut self, field: &SourceField<'_>, check: CheckUrl) -> Option<String> {
        match self.scalar(field, &ValueKind::WorkerUrl, check)? {
            Value::WorkerUrl { url, .. } => Some(url),
            _ => None,
        }
    }

    fn scalar(
        &mut self,
        field: &SourceField<'_>,
        kind: &ValueKind,
        check: CheckUrl,
    ) -> Option<Value> {
        scalar(kind, field.value, field.value, check)
            .map_err(|fault| self.refuse(field, fault))
            .ok()
    }

    /// The value of a key that has to be there.
    pub(super) fn required<'a>(
        &mut self,
        fields: &mut UnreadFields<'a>,
        key: &str,
        expected: &str,
    ) -> Option<SourceField<'a>> {
        let field = fields.take(key);
        if field.is_none() {
            let draft = ProblemDraft::new(path_of(&fields.path, key), "missing").expected(expected);
            self.problems.push(draft.at(fields.origin.clone()));
        }
        field
    }

    /// What is wrong with a value.
    pub(super) fn refuse(&mut self, field: &SourceField<'_>, fault: ValueError) {
        let draft =
            ProblemDraft::new(field.path.as_str(), fault.message).at(field.value.origin.clone());
        let draft = draft.value(field.value.shown()).nearest(fault.nearest);
        self.problems.push(match fault.expected {
            Some(expected) => draft.expected(expected),
            None => draft,
        });
    }

    /// Two values that are fine, but not together.
    pub(super) fn contradiction(
        &mut self,
        (path, origin): (String, ValueOrigin),
        message: String,
        expected: String,
    ) {
        self.problems.push(
            ProblemDraft::new(path, message)
                .expected(expected)
                .at(origin),
        );
    }

    /// A value that means nothing to us.
    pub(super) fn unused(&mut self, field: SourceField<'_>) {
        self.unused.push((field.value.origin.clone(), field.path));
    }

    /// Every key that is left has no counterpart.
    pub(super) fn leave(&mut self, fields: UnreadFields<'_>) {
        let UnreadFields { path, entries, .. } = fields;
        self.unused.extend(
            entries
                .iter()
                .map(|entry| (entry.origin.clone(), path_of(&path, &entry.key))),
        );
    }

    /// The paths without a counterpart by their place, or every problem.
    pub(super) fn finish(mut self, name: &str) -> Result<Vec<String>, Vec<Problem>> {
        if !self.problems.is_empty() {
            return Err(report(self.problems, name));
        }
        self.unused.sort_by_key(|(origin, _)| match origin {
            ValueOrigin::File { line, column } => (*line, *column),
            ValueOrigin::Named(_) => (0, 0),
        });
        Ok(self
            .unused
            .into_iter()
            .map(|(origin, path)| match origin {
                // A flag is known by its own name, not by the key that it was taken for.
                ValueOrigin::Named(flag) => shown_text(&flag),
                ValueOrigin::File { .. } => path,
            })
            .collect())
    }
}

/// A path stands in comments too, so a key with odd characters is quoted.
fn path_of(path: &str, key: &str) -> String {
    let plain = !key.is_empty()
        && key
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    let key = shown_text(key);
    match (plain, path.is_empty()) {
        (true, true) => key,
        (true, false) => format!("{path}.{key}"),
        (false, _) => format!("{path}[{key:?}]"),
    }
}
