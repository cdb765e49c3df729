//! Parses YAML text into a tree, within hard limits.
//!
//! Meaning is not checked here, except for duplicate keys.
//!
//! **Invariant**: work and memory are bounded by the limits below, whatever the text is.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{
    Error, Options, Spanned,
    options::{DuplicateKeyPolicy, NonFiniteFloatPolicy},
};
use settings::{LocatedValue, MapEntry, ValueNode, ValueOrigin};

use crate::problem::ProblemDraft;

/// Longest accepted text, bytes: a file of several thousand workers is well below it.
pub const MAX_TEXT_BYTES: usize = 4 << 20;

/// Parses the text as far as possible, with its YAML problems. `None` if nothing can be read.
pub fn parse(text: &str) -> (Option<LocatedValue>, Vec<ProblemDraft>) {
    if text.len() > MAX_TEXT_BYTES {
        let message = format!("the text is {} bytes long", text.len());
        return (
            None,
            vec![
                ProblemDraft::new("", message).expected(format!("at most {MAX_TEXT_BYTES} bytes")),
            ],
        );
    }
    // The parser accepts some tabs that YAML forbids, and reads others with an invisible meaning.
    if let Some((line, column)) = tab_in_indentation(text) {
        let draft = ProblemDraft::new("", "a tab in the indentation").expected("spaces only");
        return (None, vec![draft.at(ValueOrigin::File { line, column })]);
    }
    match read(text, DuplicateKeyPolicy::Error) {
        Ok(tree) => (Some(tree), Vec::new()),
        Err(error) => {
            let duplicate = matches!(error.without_snippet(), Error::DuplicateMappingKey { .. });
            // The rest of the file is still checked, so that one run shows as many problems as
            // possible.
            let tree = if duplicate {
                read(text, DuplicateKeyPolicy::FirstWins).ok()
            } else {
                None
            };
            (tree, vec![explain(&error)])
        }
    }
}

fn read(text: &str, duplicate_keys: DuplicateKeyPolicy) -> Result<LocatedValue, Error> {
    let mut options = Options::default();
    options.duplicate_keys = duplicate_keys;
    options.with_snippet = false;
    options.strict_booleans = true;
    options.emit_comments = false;
    // As text, so that the key's own check refuses it together with all other problems.
    options.non_finite_float_policy = NonFiniteFloatPolicy::AsString;
    options.alias_limits.max_total_replayed_events = 20_000;
    options.alias_limits.max_replay_stack_depth = 8;
    let mut budget = serde_saphyr::Budget::default();
    budget.max_depth = 64;
    budget.max_nodes = 150_000;
    budget.max_events = 300_000;
    budget.max_aliases = 1_000;
    budget.max_anchors = 1_000;
    budget.max_merge_keys = 1_000;
    budget.max_documents = 1;
    options.budget = Some(budget);
    serde_saphyr::from_str_with_options::<Spanned<RawNode>>(text, options).map(located)
}

fn explain(error: &Error) -> ProblemDraft {
    let error = error.without_snippet();
    let at = error.location().filter(|at| at.line() > 0);
    let draft = match error {
        Error::DuplicateMappingKey { key, .. } => {
            let key = key.as_deref().unwrap_or("?");
            ProblemDraft::new(key, "the key stands twice in one mapping").expected("each key once")
        }
        Error::MultipleDocuments { .. } => {
            ProblemDraft::new("", "a second YAML document").expected("one document")
        }
        Error::Budget { .. } => {
            ProblemDraft::new("", "too deep, too many aliases or too many values")
                .expected("a plain configuration file")
        }
        other => {
            let text = other.to_string();
            let text = text
                .rfind(" at line ")
                .map_or(text.as_str(), |end| &text[..end]);
            ProblemDraft::new("", format!("not valid YAML: {text}"))
        }
    };
    match at {
        Some(at) => draft.at(ValueOrigin::File {
            line: at.line(),
            column: at.column(),
        }),
        None => draft,
    }
}

/// Returns line and column of the first tab used as indentation.
fn tab_in_indentation(text: &str) -> Option<(u64, u64)> {
    text.lines().zip(1..).find_map(|(line, number)| {
        let content = line.trim_start_matches([' ', '\t']);
        let indentation = &line[..line.len() - content.len()];
        let matters = !content.is_empty() && !content.starts_with('#');
        matters
            .then(|| indentation.find('\t'))
            .flatten()
            .map(|column| (number, column as u64 + 1))
    })
}

/// A value as the parser returns it.
enum RawNode {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Spanned<RawNode>>),
    Map(Vec<(Spanned<String>, Spanned<RawNode>)>),
}

fn located(raw: Spanned<RawNode>) -> LocatedValue {
    let node = match raw.value {
        RawNode::Null => ValueNode::Null,
        RawNode::Bool(value) => ValueNode::Bool(value),
        RawNode::Int(value) => ValueNode::Int(value),
        RawNode::Float(value) => ValueNode::Float(value),
        RawNode::Text(text) => ValueNode::Text(text.into()),
        RawNode::List(items) => ValueNode::List(items.into_iter().map(located).collect()),
        RawNode::Map(entries) => ValueNode::Map(
            entries
                .into_iter()
                .map(|(key, value)| MapEntry {
                    origin: place(&key.referenced),
                    key: key.value,
                    value: located(value),
                })
                .collect(),
        ),
    };
    LocatedValue {
        node,
        origin: place(&raw.referenced),
    }
}

fn place(at: &serde_saphyr::Location) -> ValueOrigin {
    ValueOrigin::File {
        line: at.line(),
        column: at.column(),
    }
}

impl<'de> Deserialize<'de> for RawNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = RawNode;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<RawNode, E> {
        Ok(RawNode::Null)
    }

    fn visit_none<E>(self) -> Result<RawNode, E> {
        Ok(RawNode::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<RawNode, E> {
        Ok(RawNode::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<RawNode, E> {
        Ok(RawNode::Int(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<RawNode, E> {
        Ok(RawNode::Int(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<RawNode, E> {
        Ok(RawNode::Int(value))
    }

    fn visit_u128<E>(self, value: u128) -> Result<RawNode, E> {
        // Beyond every allowed range, and the closest value that the type can hold.
        Ok(RawNode::Int(i128::try_from(value).unwrap_or(i128::MAX)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<RawNode, E> {
        Ok(RawNode::Float(value))
    }

    fn visit_str<E>(self, text: &str) -> Result<RawNode, E> {
        Ok(RawNode::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<RawNode, E> {
        Ok(RawNode::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<RawNode, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(RawNode::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<RawNode, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(RawNode::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn only_problem(text: &str) -> ProblemDraft {
        let (_, problems) = parse(text);
        assert_eq!(problems.len(), 1, "{text:?}: {problems:?}");
        problems.into_iter().next().expect("just counted")
    }

    #[test]
    fn values_and_keys_carry_their_line_and_column() {
        let (tree, problems) = parse("server:\n  listen: 0.0.0.0:80\n");
        assert!(problems.is_empty());
        let Some(LocatedValue {
            node: ValueNode::Map(top),
            ..
        }) = tree
        else {
            panic!("a map")
        };
        let ValueNode::Map(server) = &top[0].value.node else {
            panic!("a map")
        };
        assert_eq!(server[0].origin, ValueOrigin::File { line: 2, column: 3 });
        assert_eq!(
            server[0].value.origin,
            ValueOrigin::File {
                line: 2,
                column: 11
            }
        );
        assert!(
            matches!(&server[0].value.node, ValueNode::Text(text) if text.as_str() == "0.0.0.0:80")
        );
    }

    #[test]
    fn a_duplicate_key_is_reported_with_its_line_and_the_rest_is_still_read() {
        let (tree, problems) = parse("a: 1\nb: 2\na: 3\n");
        assert_eq!(problems[0].path, "a");
        assert_eq!(
            problems[0].origin,
            Some(ValueOrigin::File { line: 3, column: 1 })
        );
        assert!(tree.is_some());
    }

    #[test]
    #[contract("S67")]
    fn tabs_second_documents_unknown_anchors_and_open_quotes_are_rejected_with_a_line() {
        for (text, line) in [
            ("a: 1\n\tb: 2\n", 2),
            ("a:\n \tb: 2\n", 2),
            ("a: 1\n---\nb: 2\n", 2),
            ("a: *nope\n", 1),
            ("b: 1\na: 'x", 2),
            ("a: [1\nb: 2", 2),
            ("{a: 1}: 2", 1),
            ("~: 1", 1),
        ] {
            let problem = only_problem(text);
            let Some(ValueOrigin::File { line: found, .. }) = problem.origin else {
                panic!("{text:?}: no line: {problem:?}")
            };
            assert_eq!(found, line, "{text:?}: {problem:?}");
        }
    }

    #[test]
    fn a_tab_in_a_blank_line_or_before_a_comment_is_accepted() {
        assert!(parse("a: 1\n\t\n\t# note\nb: 2\n").1.is_empty());
    }

    #[test]
    #[contract("S67")]
    fn alias_bombs_deep_nesting_and_long_texts_are_rejected() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..30 {
            let last = level - 1;
            bomb += &format!(
                "a{level}: &a{level} [{}]\n",
                vec![format!("*a{last}"); 9].join(", ")
            );
        }
        only_problem(&bomb);
        only_problem(&"[".repeat(100_000));
        only_problem(&"{a: ".repeat(10_000));
        only_problem(&"- ".repeat(10_000));
        only_problem(&"x".repeat(MAX_TEXT_BYTES + 1));
        only_problem(&format!("a: {}", "[],".repeat(1_000_000)));
        only_problem(&"- 1\n".repeat(300_000));
    }
}
