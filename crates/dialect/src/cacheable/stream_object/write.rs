//! Writes the joined object in the order of an engine's own reply.

use super::StreamObject;
use crate::{
    Dialect,
    cacheable::{
        partial::{PartialObject, PartialValue},
        rules::TEXTS,
    },
    json::ObjectWriter,
};

/// The first members of the object, in this order.
const HEAD: [&str; 3] = ["id", "created", "model"];

impl StreamObject {
    pub(super) fn write(&self, out: &mut String) {
        let mut object = ObjectWriter::open(out);
        self.members.write("id", &mut object);
        object.text(
            "object",
            if self.dialect == Dialect::Chat {
                "chat.completion"
            } else {
                "text_completion"
            },
        );
        self.members.write("created", &mut object);
        self.members.write("model", &mut object);
        let mut choices = object.array("choices");
        if let PartialValue::Indexed(all) = &self.choices {
            for (index, choice) in all {
                let mut one = choices.object();
                one.number("index", index);
                self.write_choice(choice, &mut one);
                one.close();
            }
        }
        choices.close();
        if let Some(usage) = &self.usage {
            object.raw("usage", usage);
        }
        write_others(&self.members, &HEAD, &mut object);
        object.close();
    }

    fn write_choice(&self, choice: &PartialObject, object: &mut ObjectWriter<'_>) {
        match (self.dialect, choice.get("delta"), choice.get("text")) {
            (Dialect::Chat, Some(PartialValue::Object(source)), _) => {
                write_message(Some(source), object)
            }
            (Dialect::Chat, ..) => write_message(None, object),
            (_, _, Some(text @ PartialValue::Text { .. })) => text.write(object.key("text")),
            _ => object.text("text", ""),
        }
        for name in ["logprobs", "finish_reason"] {
            choice
                .get(name)
                .unwrap_or(&PartialValue::Null)
                .write(object.key(name));
        }
        choice.write("token_ids", object);
        write_others(
            choice,
            &["delta", "text", "logprobs", "finish_reason", "token_ids"],
            object,
        );
    }
}

/// Writes a message in reading order: role, content, other members, calls.
fn write_message(source: Option<&PartialObject>, object: &mut ObjectWriter<'_>) {
    const CALLS: [&str; 2] = ["function_call", "tool_calls"];
    let mut message = object.object("message");
    let get = |name: &str| {
        source
            .and_then(|source| source.get(name))
            .filter(|value| !matches!(value, PartialValue::Null))
    };
    let is_present = |name: &&str| get(name).is_some_and(PartialValue::has_content);
    match get("role").filter(|role| role.has_content()) {
        Some(role) => role.write(message.key("role")),
        None => message.text("role", "assistant"),
    }
    match get("content") {
        // Engines begin with an empty content whatever follows. A whole reply has none beside a
        // call or reasoning.
        Some(content) if content.has_content() => content.write(message.key("content")),
        Some(_) if !TEXTS.iter().chain(&CALLS).any(is_present) => message.text("content", ""),
        _ => message.raw("content", "null"),
    }
    if let Some(source) = source {
        for name in TEXTS {
            source.write(name, &mut message);
        }
        let written: Vec<&str> = ["role", "content"]
            .into_iter()
            .chain(TEXTS)
            .chain(CALLS)
            .collect();
        write_others(source, &written, &mut message);
        source.write("function_call", &mut message);
        if let Some(calls) = get("tool_calls").filter(|calls| calls.has_content()) {
            calls.write(message.key("tool_calls"));
        }
    }
    message.close();
}

fn write_others(members: &PartialObject, written: &[&str], object: &mut ObjectWriter<'_>) {
    for (name, value) in members.iter().filter(|(name, _)| !written.contains(name)) {
        value.write(object.key(name));
    }
}
