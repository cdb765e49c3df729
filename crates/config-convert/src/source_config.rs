//! Reads another router's file: values with their paths, problems, and unread keys.

use config::{Problem, ProblemDraft, parse_yaml, report};
use settings::{
    CheckUrl, LocatedValue, MapEntry, Value, ValueError, ValueKind, ValueNode, ValueOrigin, scalar,
    shown_text,
};

use crate::reasons::{Reasons, UnusedKey, reason};

/// State of reading the other file.
#[derive(Debug, Default)]
pub(super) struct SourceConfig {
    problems: Vec<ProblemDraft>,
    unused: Vec<UnusedValue>,
}

/// A value without a counterpart.
#[derive(Debug)]
struct UnusedValue {
    origin: ValueOrigin,
    path: String,
    /// The reason, if the value and not the key has one.
    reason: Option<&'static str>,
}

/// Value of a key.
#[derive(Debug)]
pub(super) struct SourceField<'a> {
    pub(super) path: String,
    pub(super) value: &'a LocatedValue,
}

/// Keys of a mapping that were not taken yet.
#[derive(Debug)]
pub(super) struct UnreadFields<'a> {
    path: String,
    origin: &'a ValueOrigin,
    entries: Vec<&'a MapEntry>,
}

impl<'a> SourceField<'a> {
    /// Returns the path and the place in the file.
    pub(super) fn place(&self) -> (String, ValueOrigin) {
        (self.path.clone(), self.value.origin.clone())
    }

    /// Returns the field of a list item.
    pub(super) fn item(&self, at: usize, value: &'a LocatedValue) -> Self {
        Self {
            path: format!("{}[{at}]", self.path),
            value,
        }
    }
}

impl<'a> UnreadFields<'a> {
    /// Returns the fields of a missing mapping: none.
    pub(super) fn absent(&self, key: &str) -> Self {
        Self {
            path: path_of(&self.path, key),
            origin: self.origin,
            entries: Vec::new(),
        }
    }

    /// Returns the names of the keys.
    pub(super) fn names(&self) -> Vec<String> {
        self.entries.iter().map(|entry| entry.key.clone()).collect()
    }

    /// Takes the value of this key; `None` if it is left out or empty.
    pub(super) fn take(&mut self, key: &str) -> Option<SourceField<'a>> {
        let at = self.entries.iter().position(|entry| entry.key == key)?;
        let entry = self.entries.remove(at);
        let filled = !matches!(entry.value.node, ValueNode::Null);
        filled.then(|| SourceField {
            path: path_of(&self.path, key),
            value: &entry.value,
        })
    }

    /// Returns path and place of a key, those of the mapping if the key is left out.
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
    /// Parses the YAML text into a tree, as far as possible.
    pub(super) fn parse(text: &str) -> (Option<LocatedValue>, Self) {
        let (tree, problems) = parse_yaml(text);
        (
            tree,
            Self {
                problems,
                unused: Vec::new(),
            },
        )
    }

    /// Returns the top-level keys.
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

    /// Returns the keys of a mapping.
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

    /// Returns the values of a list.
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

    /// Reads a value of a simple kind that holds no URL.
    pub(super) fn value(&mut self, field: &SourceField<'_>, kind: &ValueKind) -> Option<Value> {
        self.scalar(field, kind, |url| {
            Err(format!("`{url}` is not expected to be a URL"))
        })
    }

    /// Reads a URL that `check` accepts.
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

    /// Reads the value of a required key.
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

    /// Records a problem of a value.
    pub(super) fn refuse(&mut self, field: &SourceField<'_>, fault: ValueError) {
        let draft =
            ProblemDraft::new(field.path.as_str(), fault.message).at(field.value.origin.clone());
        let draft = draft.value(field.value.shown()).nearest(fault.nearest);
        self.problems.push(match fault.expected {
            Some(expected) => draft.expected(expected),
            None => draft,
        });
    }

    /// Records the problem of two values that are valid, but not together.
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

    /// Records the problem of a word that is none of `expected`.
    pub(super) fn refuse_word(&mut self, field: &SourceField<'_>, expected: &str) {
        let fault = ValueError::unusable(field.value, &ValueKind::Free);
        self.refuse(field, fault.expected(format!("one of {expected}")));
    }

    /// Records a value whose key has no counterpart.
    pub(super) fn unused(&mut self, field: SourceField<'_>) {
        self.unused_at(field.place());
    }

    /// The same, by path and place.
    pub(super) fn unused_at(&mut self, (path, origin): (String, ValueOrigin)) {
        self.unused.push(UnusedValue {
            origin,
            path,
            reason: None,
        });
    }

    /// Records a value that is not carried over, though its key has a counterpart.
    pub(super) fn unused_because(&mut self, field: SourceField<'_>, reason: &'static str) {
        let (path, origin) = field.place();
        self.unused.push(UnusedValue {
            origin,
            path,
            reason: Some(reason),
        });
    }

    /// Records every remaining key as one without a counterpart.
    pub(super) fn leave(&mut self, fields: UnreadFields<'_>) {
        self.leave_because(fields, None);
    }

    /// The same, with a reason that all of them share.
    pub(super) fn leave_because(&mut self, fields: UnreadFields<'_>, reason: Option<&'static str>) {
        let UnreadFields { path, entries, .. } = fields;
        self.unused.extend(entries.iter().map(|entry| UnusedValue {
            origin: entry.origin.clone(),
            path: path_of(&path, &entry.key),
            reason,
        }));
    }

    /// Returns what has no counterpart in the order of the file, or every problem.
    pub(super) fn finish(
        mut self,
        name: &str,
        known: Reasons,
    ) -> Result<Vec<UnusedKey>, Vec<Problem>> {
        if !self.problems.is_empty() {
            return Err(report(self.problems, name));
        }
        self.unused.sort_by_key(|value| match value.origin {
            ValueOrigin::File { line, column } => (line, column),
            ValueOrigin::Named(_) => (0, 0),
        });
        let unused = self.unused.into_iter();
        Ok(unused
            .map(|value| UnusedKey {
                reason: value.reason.unwrap_or_else(|| reason(known, &value.path)),
                // A flag is reported by its own name, not by the key that it was mapped to.
                name: match value.origin {
                    ValueOrigin::Named(flag) => shown_text(&flag),
                    ValueOrigin::File { .. } => value.path,
                },
            })
            .collect())
    }
}

/// Joins path and key. The path appears in comments too, so a key with unusual characters is
/// quoted.
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
