//! Splits a chat's message into deltas.
//!
//! **Invariant**: the deltas joined are the message.

use super::{partial::is_empty_value, pieces::texts, rules::TEXTS};
use crate::json::{ObjectWriter, RawJson, write_string};

/// The deltas of one message.
#[derive(Debug)]
pub(super) struct Deltas {
    /// Each delta as a JSON object.
    pub(super) objects: Vec<String>,
    /// Index of the first content delta, or where it would be: token metadata begins there.
    pub(super) first_content: usize,
}

/// Writes the deltas; the content is split into about `pieces`. `None` if deltas cannot express the
/// message.
pub(super) fn deltas(message: RawJson<'_>, pieces: usize) -> Option<Deltas> {
    let mut deltas = Deltas {
        objects: vec![first(message)?],
        first_content: 1,
    };
    let [reasoning, older_reasoning, refusal] = TEXTS;
    for name in [reasoning, older_reasoning, "content", refusal] {
        let Some(inner) = message
            .member(name)
            .and_then(inside)
            .filter(|inner| !inner.is_empty())
        else {
            continue;
        };
        let mut count = 1;
        if name == "content" {
            (deltas.first_content, count) = (deltas.objects.len(), pieces);
        }
        deltas
            .objects
            .extend(texts(inner, count).map(|piece| format!("{{\"{name}\":\"{piece}\"}}")));
    }
    if let Some(call) = message.member("function_call") {
        let (opening, pieces) = opening(call);
        deltas
            .objects
            .push(format!("{{\"function_call\":{opening}}}"));
        deltas.objects.extend(
            pieces
                .iter()
                .map(|piece| format!("{{\"function_call\":{piece}}}")),
        );
    }
    for (at, call) in message
        .member("tool_calls")
        .and_then(RawJson::elements)
        .into_iter()
        .flatten()
        .enumerate()
    {
        tool_call(at, call, &mut deltas.objects);
    }
    Some(deltas)
}

/// Returns the first delta: the role, and all members that are not split.
fn first(message: RawJson<'_>) -> Option<String> {
    let mut text = String::new();
    let mut delta = ObjectWriter::open(&mut text);
    match message.member("role") {
        Some(role) => delta.raw("role", role.as_str()),
        None => delta.text("role", "assistant"),
    }
    match message.member("content") {
        None => delta.raw("content", "null"),
        Some(content) if inside(content).is_some() => delta.text("content", ""),
        // Parts of a content have no deltas.
        Some(_) => return None,
    }
    for (name, value) in message.members()? {
        match &*name {
            "role" | "content" | "tool_calls" => {}
            "function_call" if !value.is_null() => {}
            "audio" if !is_empty_value(value.as_str()) => return None,
            name if TEXTS.contains(&name)
                && inside(value).is_some_and(|inner| !inner.is_empty()) => {}
            name => delta.raw(name, value.as_str()),
        }
    }
    delta.close();
    Some(text)
}

fn tool_call(at: usize, call: RawJson<'_>, deltas: &mut Vec<String>) {
    let mut text = format!("{{\"tool_calls\":[{{\"index\":{at}");
    let mut later = Vec::new();
    for (name, value) in call
        .members()
        .into_iter()
        .flatten()
        .filter(|(name, _)| name != "index")
    {
        text.push(',');
        write_string(&mut text, &name);
        text.push(':');
        if matches!(&*name, "function" | "custom") {
            let (opening, pieces) = opening(value);
            text.push_str(&opening);
            later.extend(pieces.iter().map(|piece| {
                format!("{{\"tool_calls\":[{{\"index\":{at},\"{name}\":{piece}}}]}}")
            }));
        } else {
            text.push_str(value.as_str());
        }
    }
    text.push_str("}]}");
    deltas.push(text);
    deltas.append(&mut later);
}

/// Returns the opening of a call, and the objects with its arguments that follow.
fn opening(function: RawJson<'_>) -> (String, Vec<String>) {
    let Some(members) = function.members() else {
        return (function.as_str().to_owned(), Vec::new());
    };
    let (mut text, mut later) = (String::new(), Vec::new());
    let mut object = ObjectWriter::open(&mut text);
    for (name, value) in members {
        match (&*name, inside(value)) {
            (name @ ("arguments" | "input"), Some(inner)) => {
                object.text(name, "");
                later.extend(texts(inner, 1).map(|piece| format!("{{\"{name}\":\"{piece}\"}}")));
            }
            (name, _) => object.raw(name, value.as_str()),
        }
    }
    object.close();
    (text, later)
}

/// Returns the text between the quotes of a string.
pub(super) fn inside(value: RawJson<'_>) -> Option<&str> {
    value.as_str().strip_prefix('"')?.strip_suffix('"')
}
