//! Lays values of variables and flags over the tree of the file.
//!
//! Only finds the place of each value; the walk checks the value, as for the file's own values.

use settings::{CheckUrl, KeySchema, LocatedValue, ValueKind, ValueNode, ValueOrigin, nearest};

use crate::{
    Override,
    key_path::steps,
    problem::ProblemDraft,
    schema::{ROOT, TOP_ALIASES},
    text_forms::{split_list, worker_of_text},
};

/// Prefix of our variables.
const PREFIX: &str = "WARMROUTE_";

/// Prefix of variables for test runs; a program that inherits them ignores them.
const TEST_PREFIX: &str = "WARMROUTE_TEST_";

/// Lays `WARMROUTE_SECTION__KEY` variables over the tree. An empty variable counts as not set.
pub(crate) fn environment(
    root: &mut LocatedValue,
    env: &[(String, String)],
    own: &[&str],
    problems: &mut Vec<ProblemDraft>,
) {
    for (name, value) in env {
        if is_key(name, value, own) {
            problems.extend(variable(root, name, &name[PREFIX.len()..], value));
        }
    }
}

/// Returns whether a variable sets a key.
pub(crate) fn has_keys(env: &[(String, String)], own: &[&str]) -> bool {
    env.iter().any(|(name, value)| is_key(name, value, own))
}

fn is_key(name: &str, value: &str, own: &[&str]) -> bool {
    name.starts_with(PREFIX)
        && !(value.is_empty() || name.starts_with(TEST_PREFIX) || own.contains(&name))
}

/// Lays one variable over the tree; `path` is its name behind the prefix. Returns its problem.
fn variable(root: &mut LocatedValue, name: &str, path: &str, value: &str) -> Option<ProblemDraft> {
    let origin = ValueOrigin::Named(name.to_owned());
    let path = path.to_ascii_lowercase();
    let mut names: Vec<&str> = path.split("__").collect();
    if let Some((_, target)) = TOP_ALIASES.iter().find(|(alias, _)| *alias == names[0]) {
        names.splice(..1, target.iter().copied());
    }
    match leaf(&names) {
        Some(ValueKind::Section(_) | ValueKind::Map(_) | ValueKind::Free) => {
            let draft = ProblemDraft::new(names.join("."), "a mapping cannot be set by a variable");
            Some(
                draft
                    .expected("it in the file, or a variable for one of its keys")
                    .at(origin),
            )
        }
        Some(_) => {
            // If the file has something other than a mapping, the walk reports it, and nothing can
            // be set.
            let place = names
                .iter()
                .try_fold(root, |at, name| at.get_or_insert(name, &origin));
            if let Some(place) = place {
                *place = LocatedValue {
                    node: ValueNode::Loose(value.to_owned().into()),
                    origin,
                };
            }
            None
        }
        None => Some(unknown_variable(name).at(origin)),
    }
}

fn unknown_variable(name: &str) -> ProblemDraft {
    let known = variables();
    // Compared without the common prefix, which would make any two names similar.
    let near = nearest(
        &name[PREFIX.len()..],
        known.iter().map(|known| &known[PREFIX.len()..]),
    );
    let form = "WARMROUTE_ and a key's path in capitals with `__` between levels, such as \
                WARMROUTE_ROUTING__POLICY";
    ProblemDraft::new("", "unknown variable")
        .nearest(near.map(|near| format!("{PREFIX}{near}")))
        .expected(form)
}

/// Returns the kind of the key at this path of names.
fn leaf(names: &[&str]) -> Option<ValueKind> {
    let mut keys = ROOT;
    let (last, sections) = names.split_last()?;
    for name in sections {
        match find(keys, name)?.kind {
            ValueKind::Section(inner) => keys = inner,
            _ => return None,
        }
    }
    find(keys, last).map(|key| key.kind)
}

fn find(keys: &'static [KeySchema], name: &str) -> Option<&'static KeySchema> {
    keys.iter().find(|key| key.name == name)
}

/// Returns the names of all variables that set a key.
fn variables() -> Vec<String> {
    fn walk(keys: &[KeySchema], before: &str, out: &mut Vec<String>) {
        for key in keys {
            let name = format!("{before}{}", key.name.to_ascii_uppercase());
            match key.kind {
                ValueKind::Section(inner) => walk(inner, &format!("{name}__"), out),
                ValueKind::Map(_) | ValueKind::Free => {}
                _ => out.push(name),
            }
        }
    }
    let mut out = Vec::new();
    walk(ROOT, PREFIX, &mut out);
    out
}

/// Lays values of flags over the tree. Several overrides of one list make up the whole list.
pub(crate) fn flags(
    root: &mut LocatedValue,
    overrides: &[Override],
    check_url: CheckUrl,
    problems: &mut Vec<ProblemDraft>,
) {
    let mut lists: Vec<&str> = Vec::new();
    for Override { path, value, flag } in overrides {
        let origin = ValueOrigin::Named(flag.clone());
        let draft = |message: &str| ProblemDraft::new(path.as_str(), message).at(origin.clone());
        let Some(steps) = steps(path) else {
            problems.push(
                draft("not a path").expected("keys with dots between, such as routing.policy"),
            );
            continue;
        };
        let (place, is_list) = match place(root, &steps, &origin, check_url) {
            Ok(found) => found,
            Err(message) => {
                problems.push(draft(&message));
                continue;
            }
        };
        let given = LocatedValue {
            node: ValueNode::Loose(value.clone().into()),
            origin: origin.clone(),
        };
        if !is_list {
            *place = given;
        } else if lists.contains(&path.as_str()) {
            if let ValueNode::List(items) = &mut place.node {
                items.push(given);
            }
        } else {
            lists.push(path);
            *place = LocatedValue {
                node: ValueNode::List(vec![given]),
                origin,
            };
        }
    }
}

/// Returns the place of a path, and whether a list belongs there.
fn place<'t>(
    root: &'t mut LocatedValue,
    steps: &[String],
    origin: &ValueOrigin,
    check_url: CheckUrl,
) -> Result<(&'t mut LocatedValue, bool), String> {
    let mut kind = ValueKind::Section(ROOT);
    let mut at = root;
    for step in steps {
        kind = match kind {
            ValueKind::Section(keys) | ValueKind::Worker(keys) => keys
                .iter()
                .find(|key| key.name == step)
                .map(|key| key.kind)
                .ok_or_else(|| format!("no key `{step}`"))?,
            ValueKind::Map(inner) => *inner,
            ValueKind::List(inner) => *inner,
            _ => return Err(format!("no key `{step}`")),
        };
        at = match kind {
            ValueKind::Worker(_) => worker_named(at, step, check_url)?,
            _ => at
                .get_or_insert(step, origin)
                .ok_or_else(|| format!("`{step}` cannot be set in what is no mapping"))?,
        };
    }
    Ok((at, matches!(kind, ValueKind::List(_))))
}

/// Returns the worker with this name, or whose URL is at this `host:port`, as a mapping.
fn worker_named<'t>(
    list: &'t mut LocatedValue,
    name: &str,
    check_url: CheckUrl,
) -> Result<&'t mut LocatedValue, String> {
    split_list(list);
    let ValueNode::List(items) = &mut list.node else {
        return Err(format!("no worker `{name}`"));
    };
    let mut known = Vec::new();
    for (at, item) in items.iter_mut().enumerate() {
        if let ValueNode::Text(text) | ValueNode::Loose(text) = &item.node {
            *item = worker_of_text(&text.clone(), item);
        }
        let own = name_of(item, check_url);
        if own.as_deref() == Some(name) {
            return Ok(&mut items[at]);
        }
        known.extend(own);
    }
    Err(format!(
        "no worker `{name}`, only {}",
        if known.is_empty() {
            "none".into()
        } else {
            known.join(", ")
        }
    ))
}

/// Returns the name of an entry of `workers` that is a mapping.
pub(crate) fn name_of(worker: &mut LocatedValue, check_url: CheckUrl) -> Option<String> {
    let text = |value: Option<&mut LocatedValue>| match value.map(|value| &value.node) {
        Some(ValueNode::Text(text) | ValueNode::Loose(text)) => Some(text.as_str().to_owned()),
        _ => None,
    };
    text(worker.get_mut("name")).or_else(|| check_url(&text(worker.get_mut("url"))?).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_leaf_of_the_table_has_a_variable() {
        let all = variables();
        assert!(all.contains(&"WARMROUTE_ROUTING__POLICY".to_owned()));
        assert!(all.contains(&"WARMROUTE_KV_EVENTS__PREDICTION__TTL".to_owned()));
    }
}
