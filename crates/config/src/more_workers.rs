//! Workers that come and go while the program runs, as entries of the same list as those of the file: they are checked by
//! the same walk and know of each other.

use crate::{
    CheckUrl, MoreWorker, Problem,
    check::worker_of_text,
    load::report,
    overlay::{name_of, take_apart},
    problem::Draft,
    tree::{Located, Node, Origin},
    yaml,
};

/// Puts `more` behind the workers that are there.
pub(crate) fn add(root: &mut Located, more: &[MoreWorker], problems: &mut Vec<Draft>) {
    if more.is_empty() {
        return;
    }
    let mut entries = Vec::with_capacity(more.len());
    for MoreWorker { origin, text } in more {
        let (entry, faults) = yaml::parse(text);
        let origin = Origin::Named(origin.clone());
        problems.extend(faults.into_iter().map(|fault| fault.at(origin.clone())));
        if let Some(mut entry) = entry {
            claim(&mut entry, &origin);
            entries.push(entry);
        }
    }
    let origin = Origin::Named("workers".to_owned());
    let Some(list) = root.get_or_insert("workers", &origin) else { return };
    take_apart(list);
    match &mut list.node {
        Node::List(items) => items.append(&mut entries),
        Node::Null => list.node = Node::List(entries),
        // Not a list: the walk says so.
        _ => {}
    }
}

/// The entries of a file that lists workers: a list of them in YAML or JSON, or a mapping with such a list as `workers`.
/// `name` is what the file is called.
///
/// # Errors
///
/// The text is no such list.
pub fn worker_entries(text: &str, name: &str) -> Result<Vec<MoreWorker>, Vec<Problem>> {
    let (tree, faults) = yaml::parse(text);
    if !faults.is_empty() {
        return Err(report(faults, name));
    }
    let mut tree = tree.unwrap_or(Located { node: Node::Null, origin: Origin::Named(name.to_owned()) });
    let list = match &tree.node {
        Node::Map(_) => tree.get_mut("workers").map(|list| list.node.clone()).unwrap_or(Node::Null),
        node => node.clone(),
    };
    match list {
        Node::Null => Ok(Vec::new()),
        Node::List(entries) => {
            let entry = |entry: &Located| MoreWorker { origin: name.to_owned(), text: entry.to_json().to_string() };
            Ok(entries.iter().map(entry).collect())
        }
        _ => {
            let draft = Draft::new("workers", "is no list");
            Err(vec![draft.expected("a list of entries of workers, such as - url: http://10.0.0.5:8000").named(name)])
        }
    }
}

/// Takes the workers of these names out of the list.
pub(crate) fn leave_out(root: &mut Located, names: &[String], check_url: CheckUrl) {
    if names.is_empty() {
        return;
    }
    let Some(list) = root.get_mut("workers") else { return };
    take_apart(list);
    let Node::List(items) = &mut list.node else { return };
    items.retain_mut(|item| {
        let mut entry = match &item.node {
            Node::Text(text) | Node::Loose(text) => worker_of_text(text, item),
            _ => item.clone(),
        };
        name_of(&mut entry, check_url).is_none_or(|name| !names.contains(&name))
    });
}

/// Says of every value where it came from, and lets no text stand for a variable of the environment.
fn claim(value: &mut Located, origin: &Origin) {
    value.origin.clone_from(origin);
    match &mut value.node {
        Node::Text(text) => *text = text.replace("${", "$${"),
        Node::List(items) => items.iter_mut().for_each(|item| claim(item, origin)),
        Node::Map(entries) => {
            for entry in entries {
                entry.origin.clone_from(origin);
                claim(&mut entry.value, origin);
            }
        }
        Node::Null | Node::Bool(_) | Node::Int(_) | Node::Float(_) | Node::Loose(_) => {}
    }
}
