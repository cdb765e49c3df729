//! Workers that come and go while the program runs, as entries of the same list as those of the
//! file: they pass the same walk and are checked against each other.
//!
//! **Invariant**: a later worker never replaces an existing one, or keeps others from being added.

use std::collections::HashSet;

use settings::{CheckUrl, LocatedValue, ValueNode, ValueOrigin};

use crate::{
    MoreWorker, Problem,
    overlay::name_of,
    problem::{ProblemDraft, report},
    text_forms::{split_list, worker_of_text},
    yaml,
};

/// Adds `more` behind the existing workers. Returns the skipped ones, whose name was taken.
pub(crate) fn add(
    root: &mut LocatedValue,
    more: &[MoreWorker],
    check_url: CheckUrl,
    problems: &mut Vec<ProblemDraft>,
) -> Vec<ProblemDraft> {
    let mut passed_over = Vec::new();
    if more.is_empty() {
        return passed_over;
    }
    let origin = ValueOrigin::Named("workers".to_owned());
    let Some(list) = root.get_or_insert("workers", &origin) else {
        return passed_over;
    };
    split_list(list);
    if let ValueNode::Null = list.node {
        list.node = ValueNode::List(Vec::new());
    }
    // Not a list: the walk reports it.
    let ValueNode::List(items) = &mut list.node else {
        return passed_over;
    };
    let mut names: HashSet<String> = items
        .iter()
        .filter_map(|item| name_of_entry(item, check_url))
        .collect();
    for MoreWorker { origin, text } in more {
        let (entry, faults) = yaml::parse(text);
        let origin = ValueOrigin::Named(origin.clone());
        problems.extend(faults.into_iter().map(|fault| fault.at(origin.clone())));
        let Some(mut entry) = entry else { continue };
        claim(&mut entry, &origin);
        match name_of_entry(&entry, check_url) {
            Some(name) if !names.insert(name.clone()) => {
                let message =
                    format!("`{name}` is the name of another worker: this one is passed over");
                let draft = ProblemDraft::new("workers", message).expected("a name of its own");
                passed_over.push(draft.value(name.into()).in_context().at(origin));
            }
            _ => items.push(entry),
        }
    }
    passed_over
}

/// Reads the entries of a file that lists workers: a list in YAML or JSON, or a mapping with such a
/// list as `workers`. `name` is the name of the file in problems.
///
/// # Errors
///
/// The text is no such list.
pub fn worker_entries(text: &str, name: &str) -> Result<Vec<MoreWorker>, Vec<Problem>> {
    let (tree, faults) = yaml::parse(text);
    if !faults.is_empty() {
        return Err(report(faults, name));
    }
    let mut tree = tree.unwrap_or(LocatedValue {
        node: ValueNode::Null,
        origin: ValueOrigin::Named(name.to_owned()),
    });
    let list = match &tree.node {
        ValueNode::Map(_) => tree
            .get_mut("workers")
            .map(|list| list.node.clone())
            .unwrap_or(ValueNode::Null),
        node => node.clone(),
    };
    match list {
        ValueNode::Null => Ok(Vec::new()),
        ValueNode::List(entries) => {
            let entry = |entry: &LocatedValue| MoreWorker {
                origin: name.to_owned(),
                text: entry.to_json().to_string(),
            };
            Ok(entries.iter().map(entry).collect())
        }
        _ => {
            let draft = ProblemDraft::new("workers", "is no list");
            Err(vec![
                draft
                    .expected("a list of entries of workers, such as - url: http://10.0.0.5:8000")
                    .finish(name),
            ])
        }
    }
}

/// Removes the workers of these names from the list.
pub(crate) fn leave_out(root: &mut LocatedValue, names: &[String], check_url: CheckUrl) {
    if names.is_empty() {
        return;
    }
    let Some(list) = root.get_mut("workers") else {
        return;
    };
    split_list(list);
    let ValueNode::List(items) = &mut list.node else {
        return;
    };
    items.retain(|item| name_of_entry(item, check_url).is_none_or(|name| !names.contains(&name)));
}

/// Returns the name of an entry in any of its forms.
fn name_of_entry(entry: &LocatedValue, check_url: CheckUrl) -> Option<String> {
    let mut entry = match &entry.node {
        ValueNode::Text(text) | ValueNode::Loose(text) => worker_of_text(text, entry),
        _ => entry.clone(),
    };
    name_of(&mut entry, check_url)
}

/// Sets the origin of every value, and prevents expansion of environment variables.
fn claim(value: &mut LocatedValue, origin: &ValueOrigin) {
    value.origin.clone_from(origin);
    match &mut value.node {
        ValueNode::Text(text) => *text = text.replace("${", "$${").into(),
        ValueNode::List(items) => items.iter_mut().for_each(|item| claim(item, origin)),
        ValueNode::Map(entries) => {
            for entry in entries {
                entry.origin.clone_from(origin);
                claim(&mut entry.value, origin);
            }
        }
        ValueNode::Null
        | ValueNode::Bool(_)
        | ValueNode::Int(_)
        | ValueNode::Float(_)
        | ValueNode::Loose(_) => {}
    }
}
