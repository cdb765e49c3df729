//! Tidies the top level of the file: resolves aliases, removes unknown keys.

use settings::{LocatedValue, MapEntry, ValueNode, ValueOrigin, names, nearest};

use crate::{
    problem::{MAX_PROBLEMS, ProblemDraft},
    schema::{ROOT, TOP_ALIASES},
    secret_keys::shown_unknown,
};

/// Returns the tree with known sections only, and records a problem for each other key.
pub(crate) fn tidy(given: Option<LocatedValue>, problems: &mut Vec<ProblemDraft>) -> LocatedValue {
    let mut root = LocatedValue {
        node: ValueNode::Map(Vec::new()),
        origin: ValueOrigin::File { line: 1, column: 1 },
    };
    let entries = match given {
        None
        | Some(LocatedValue {
            node: ValueNode::Null,
            ..
        }) => return root,
        Some(LocatedValue {
            node: ValueNode::Map(entries),
            ..
        }) => entries,
        Some(other) => {
            let draft = ProblemDraft::new("", "the text is not a mapping")
                .expected(format!("sections such as {}", names(ROOT)));
            problems.push(draft.at(other.origin));
            return root;
        }
    };
    for entry in entries {
        let path = TOP_ALIASES
            .iter()
            .find(|(alias, _)| *alias == entry.key)
            .map(|(_, path)| *path);
        match path {
            Some(path) => put(&mut root, path, entry, problems),
            None if ROOT.iter().any(|key| key.name == entry.key) => {
                put(&mut root, &[&entry.key.clone()], entry, problems)
            }
            None => problems.push(unknown(entry, problems.len() < MAX_PROBLEMS)),
        }
    }
    root
}

/// Returns the names allowed at the top level.
fn known() -> impl Iterator<Item = &'static str> {
    ROOT.iter()
        .map(|key| key.name)
        .chain(TOP_ALIASES.iter().map(|(alias, _)| *alias))
}

/// Returns the problem of an unknown key. `search`: whether to search the nearest name, which is
/// costly and useless for a problem that is not shown.
fn unknown(entry: MapEntry, search: bool) -> ProblemDraft {
    let nearest = if search {
        nearest(&entry.key, known())
    } else {
        None
    };
    ProblemDraft::new(settings::shown_text(&entry.key), "unknown key")
        .value(shown_unknown(&entry))
        .at(entry.origin)
        .expected(format!("one of {}", names(ROOT)))
        .nearest(nearest)
}

fn put(root: &mut LocatedValue, path: &[&str], entry: MapEntry, problems: &mut Vec<ProblemDraft>) {
    let (last, sections) = path.split_last().expect("an alias leads somewhere");
    let mut at = &mut *root;
    for section in sections {
        let Some(inner) = at.get_or_insert(section, &entry.origin) else {
            return;
        };
        at = inner;
    }
    let Some(place) = at.get_or_insert(last, &entry.origin) else {
        return;
    };
    if matches!(place.node, ValueNode::Null) {
        *place = entry.value;
    } else {
        let message = format!(
            "set a second time: `{}` is another name of `{}`",
            alias_of(path),
            path.join(".")
        );
        problems.push(
            ProblemDraft::new(entry.key, message)
                .expected("one of the two")
                .at(entry.origin),
        );
    }
}

fn alias_of(path: &[&str]) -> &'static str {
    TOP_ALIASES
        .iter()
        .find(|(_, target)| *target == path)
        .map_or("", |(alias, _)| alias)
}
