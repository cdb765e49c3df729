//! Values that a variable, a flag or a short form writes as one text.

use settings::{LocatedValue, MapEntry, ValueNode};

/// Parses `[NAME=]URL` into the equivalent mapping. A `=` behind `://` belongs to the URL.
pub(crate) fn worker_of_text(text: &str, given: &LocatedValue) -> LocatedValue {
    let entry = |key: &str, text: &str| {
        let node = match given.node {
            ValueNode::Loose(_) => ValueNode::Loose(text.to_owned().into()),
            _ => ValueNode::Text(text.to_owned().into()),
        };
        let value = LocatedValue {
            node,
            origin: given.origin.clone(),
        };
        MapEntry {
            key: key.to_owned(),
            origin: given.origin.clone(),
            value,
        }
    };
    let scheme = text.find("://").unwrap_or(text.len());
    let entries = match text[..scheme].split_once('=') {
        Some((name, _)) => vec![entry("name", name), entry("url", &text[name.len() + 1..])],
        None => vec![entry("url", text)],
    };
    LocatedValue {
        node: ValueNode::Map(entries),
        origin: given.origin.clone(),
    }
}

/// Splits a list in a variable or flag at commas.
pub(crate) fn split(text: &str, given: &LocatedValue) -> Vec<LocatedValue> {
    let parts = text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    parts
        .map(|part| LocatedValue {
            node: ValueNode::Loose(part.to_owned().into()),
            origin: given.origin.clone(),
        })
        .collect()
}

/// Turns a list that a variable wrote as a text into a list.
pub(crate) fn split_list(list: &mut LocatedValue) {
    if let ValueNode::Loose(text) = &list.node {
        let items = text.split(',').map(|part| LocatedValue {
            node: ValueNode::Loose(part.trim().to_owned().into()),
            origin: list.origin.clone(),
        });
        list.node = ValueNode::List(items.collect());
    }
}
