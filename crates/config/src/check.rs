//! Walks the tree and checks it against the schema.
//!
//! Checks one value at a time; relations between two keys belong to `build`.
//!
//! **Invariant**: the walk visits everything, records one [`ProblemDraft`] per wrong value, and
//! gives a complete [`CheckedValue`] tree for any input.

mod leaf;

use settings::{
    Availability, CheckUrl, CheckedValue, KeySchema, LocatedValue, MapEntry, Value, ValueError,
    ValueKind, ValueNode, default_of, names, nearest,
};

use crate::{
    key_path::{join, map_path},
    problem::{MAX_PROBLEMS, ProblemDraft},
    secret_keys::shown_unknown,
    text_forms::{split, worker_of_text},
};

/// Inputs of the walk, and the problems found so far.
#[derive(Debug)]
pub(crate) struct Checker<'a> {
    pub(crate) env: &'a [(String, String)],
    pub(crate) check_url: CheckUrl,
    pub(crate) problems: Vec<ProblemDraft>,
}

/// Longest list: each entry of `workers` becomes some thirty values, however short its text is.
const MAX_ITEMS: usize = 10_000;

impl Checker<'_> {
    /// Checks a section. `given` is the sources' value for it, if any.
    pub(crate) fn section(
        &mut self,
        keys: &'static [KeySchema],
        given: Option<&LocatedValue>,
        path: &str,
    ) -> CheckedValue {
        self.section_with_defaults(keys, given, path, default_of)
    }

    /// Checks a section of which `default` returns the default of each key, for a caller that checks
    /// the same section many times.
    pub(crate) fn section_with_defaults(
        &mut self,
        keys: &'static [KeySchema],
        given: Option<&LocatedValue>,
        path: &str,
        default: impl Fn(&KeySchema) -> Value,
    ) -> CheckedValue {
        let entries = match given {
            None
            | Some(LocatedValue {
                node: ValueNode::Null,
                ..
            }) => &[],
            Some(LocatedValue {
                node: ValueNode::Map(entries),
                ..
            }) => entries.as_slice(),
            Some(other) => {
                self.file(
                    path,
                    other,
                    ValueError::unusable(other, &ValueKind::Section(keys)),
                );
                &[]
            }
        };
        for entry in entries {
            if !keys.iter().any(|key| key.name == entry.key) {
                self.unknown(keys, entry, path);
            }
        }
        let values = keys
            .iter()
            .map(|key| {
                let given = entries
                    .iter()
                    .find(|entry| entry.key == key.name)
                    .map(|entry| &entry.value);
                (key.name.to_owned(), self.key(key, given, path, &default))
            })
            .collect();
        CheckedValue {
            value: Value::Map(values),
            origin: given.map(|given| given.origin.clone()),
            failed: false,
        }
    }

    fn unknown(&mut self, keys: &[KeySchema], entry: &MapEntry, path: &str) {
        let value = shown_unknown(entry);
        let near = if self.problems.len() < MAX_PROBLEMS {
            nearest(&entry.key, keys.iter().map(|key| key.name))
        } else {
            None // the problem will not be shown, and the search is what costs
        };
        let known = if keys.is_empty() {
            "no key here".into()
        } else {
            format!("one of {}", names(keys))
        };
        self.problems.push(
            ProblemDraft::new(join(path, &entry.key), "unknown key")
                .at(entry.origin.clone())
                .value(value)
                .expected(known)
                .nearest(near),
        );
    }

    /// Checks a key of the section at `section`.
    fn key(
        &mut self,
        key: &'static KeySchema,
        given: Option<&LocatedValue>,
        section: &str,
        default: impl Fn(&KeySchema) -> Value,
    ) -> CheckedValue {
        if let ValueKind::Section(keys) = key.kind {
            return self.section(keys, given, &join(section, key.name));
        }
        let Some(given) = given.filter(|given| !matches!(given.node, ValueNode::Null)) else {
            return CheckedValue::default_of(default(key));
        };
        let path = join(section, key.name);
        let mut checked = self.value(&key.kind, given, &path);
        if !checked.failed && key.built == Availability::Later && checked.value != default(key) {
            self.file(
                &path,
                given,
                ValueError::later(&format!("`{}`", key.name)).expected("this key left out"),
            );
            checked.failed = true;
        }
        if checked.failed && !matches!(checked.value, Value::List(_) | Value::Map(_)) {
            checked.value = default(key);
        }
        checked
    }

    /// Checks a value that is present.
    fn value(
        &mut self,
        kind: &'static ValueKind,
        given: &LocatedValue,
        path: &str,
    ) -> CheckedValue {
        match (kind, &given.node) {
            (ValueKind::Section(keys), _) => self.section(keys, Some(given), path),
            (ValueKind::Worker(keys), ValueNode::Text(text) | ValueNode::Loose(text)) => {
                self.worker(keys, &worker_of_text(text, given), path)
            }
            (ValueKind::Worker(keys), _) => self.worker(keys, given, path),
            (ValueKind::List(item), ValueNode::List(items)) => self.list(item, given, items, path),
            (ValueKind::List(item), ValueNode::Loose(text)) => {
                self.list(item, given, &split(text, given), path)
            }
            (ValueKind::Map(item), ValueNode::Map(entries)) => {
                let entries: Vec<_> = entries
                    .iter()
                    .map(|entry| {
                        (
                            entry.key.clone(),
                            self.value(item, &entry.value, &map_path(path, &entry.key)),
                        )
                    })
                    .collect();
                let failed = entries.iter().any(|(_, value)| value.failed);
                CheckedValue {
                    value: Value::Map(entries),
                    origin: Some(given.origin.clone()),
                    failed,
                }
            }
            _ => self.leaf(kind, given, path),
        }
    }

    fn list(
        &mut self,
        item: &'static ValueKind,
        given: &LocatedValue,
        items: &[LocatedValue],
        path: &str,
    ) -> CheckedValue {
        if items.len() > MAX_ITEMS {
            let message = format!("a list of {} entries", items.len());
            self.file(
                path,
                given,
                ValueError::new(message).expected(format!("at most {MAX_ITEMS}")),
            );
            return CheckedValue {
                value: Value::List(Vec::new()),
                origin: Some(given.origin.clone()),
                failed: true,
            };
        }
        let items: Vec<_> = items
            .iter()
            .enumerate()
            .map(|(at, given)| self.value(item, given, &format!("{path}[{at}]")))
            .collect();
        let failed = items.iter().any(|item| item.failed);
        CheckedValue {
            value: Value::List(items),
            origin: Some(given.origin.clone()),
            failed,
        }
    }

    fn worker(
        &mut self,
        keys: &'static [KeySchema],
        given: &LocatedValue,
        path: &str,
    ) -> CheckedValue {
        let worker = self.section(keys, Some(given), path);
        let url = worker.key("url");
        if url.value == Value::Unset
            && !url.failed
            && matches!(given.node, ValueNode::Map(_) | ValueNode::Null)
        {
            let draft =
                ProblemDraft::new(format!("{path}.url"), "missing").at(given.origin.clone());
            self.problems
                .push(draft.expected(ValueKind::WorkerUrl.expected()));
        }
        worker
    }

    fn file(&mut self, path: &str, given: &LocatedValue, fault: ValueError) {
        let draft = ProblemDraft::new(path, fault.message)
            .at(given.origin.clone())
            .nearest(fault.nearest);
        let draft = draft.value(if fault.secret {
            "***".into()
        } else {
            given.shown()
        });
        self.problems.push(match fault.expected {
            Some(expected) => draft.expected(expected),
            None => draft,
        });
    }
}
