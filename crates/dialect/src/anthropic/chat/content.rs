//! Translates the messages of a chat into the turns of a conversation, with the system prompt
//! apart.

use std::borrow::Cow;

use crate::{
    RawJson,
    json::{self, ObjectWriter},
    prefix_key::content_text,
};

/// The turn of one role: content blocks, already written. Consecutive messages of one role are one
/// turn, since the results of all calls must come in the turn that follows them.
struct RoleTurn {
    role: &'static str,
    blocks: Vec<String>,
}

/// Writes `system` and `messages`.
pub(super) fn conversation(
    message: &mut ObjectWriter<'_>,
    messages: Option<RawJson<'_>>,
    untranslatable: &mut Option<String>,
) {
    let mut system: Vec<Cow<'_, str>> = Vec::new();
    let mut turns: Vec<RoleTurn> = Vec::new();
    for (at, chat_message) in messages
        .and_then(RawJson::elements)
        .into_iter()
        .flatten()
        .enumerate()
    {
        let role = chat_message.member("role").and_then(RawJson::string);
        let (role, blocks) = match role.as_deref() {
            Some("system" | "developer") => {
                system.extend(
                    chat_message
                        .member("content")
                        .and_then(content_text)
                        .filter(|text| !text.is_empty()),
                );
                continue;
            }
            Some("assistant") => ("assistant", of_assistant(chat_message, at, untranslatable)),
            Some("tool") => ("user", vec![result(chat_message)]),
            _ => ("user", parts(chat_message, at, untranslatable)),
        };
        match turns.last_mut() {
            Some(last) if last.role == role => last.blocks.extend(blocks),
            _ => turns.push(RoleTurn { role, blocks }),
        }
    }
    match &system[..] {
        [] => {}
        [text] => message.text("system", text),
        texts => {
            let mut blocks = message.array("system");
            for text in texts {
                blocks
                    .next()
                    .push_str(&block("text", |block| block.text("text", text)));
            }
            blocks.close();
        }
    }
    let mut list = message.array("messages");
    for turn in turns.into_iter().filter(|turn| !turn.blocks.is_empty()) {
        let mut one = list.object();
        one.text("role", turn.role);
        let mut content = one.array("content");
        for block in &turn.blocks {
            content.next().push_str(block);
        }
        content.close();
        one.close();
    }
    list.close();
}

fn block(kind: &str, describe: impl FnOnce(&mut ObjectWriter<'_>)) -> String {
    let mut out = String::new();
    let mut object = ObjectWriter::open(&mut out);
    object.text("type", kind);
    describe(&mut object);
    object.close();
    out
}

fn text_block(text: &str) -> Option<String> {
    // The API rejects an empty one.
    (!text.is_empty()).then(|| block("text", |block| block.text("text", text)))
}

/// Writes the text and images of a message.
fn parts(message: RawJson<'_>, at: usize, untranslatable: &mut Option<String>) -> Vec<String> {
    let Some(content) = message.member("content") else {
        return Vec::new();
    };
    if let Some(text) = content.string() {
        return text_block(&text).into_iter().collect();
    }
    let mut blocks = Vec::new();
    for part in content.elements().into_iter().flatten() {
        let text = part
            .member("text")
            .or(part.member("refusal"))
            .and_then(RawJson::string);
        let url = part
            .member("image_url")
            .map(|image| image.member("url").unwrap_or(image))
            .and_then(RawJson::string);
        match (
            part.member("type").and_then(RawJson::string).as_deref(),
            text,
            url,
        ) {
            (Some("image_url"), _, Some(url)) => {
                blocks.push(block("image", |block| source(block, &url)))
            }
            (Some("text" | "input_text" | "refusal"), Some(text), _) => {
                blocks.extend(text_block(&text))
            }
            (kind, ..) => {
                let kind: String = kind.unwrap_or("").chars().take(60).collect();
                untranslatable.get_or_insert_with(|| {
                    format!("messages[{at}] has a part of type {kind:?}, for which a message has no word: leave it out")
                });
            }
        }
    }
    blocks
}

/// Writes the source of an image.
fn source(block: &mut ObjectWriter<'_>, url: &str) {
    let mut source = block.object("source");
    let inline = url
        .strip_prefix("data:")
        .and_then(|rest| rest.split_once(";base64,"));
    match inline {
        Some((media_type, data)) => {
            source.text("type", "base64");
            source.text("media_type", media_type);
            source.text("data", data);
        }
        None => {
            source.text("type", "url");
            source.text("url", url);
        }
    }
    source.close();
}

/// Writes the model's message: text, then its calls. The reasoning is dropped: its signature is not
/// available here, and the API rejects it without one.
fn of_assistant(
    message: RawJson<'_>,
    at: usize,
    untranslatable: &mut Option<String>,
) -> Vec<String> {
    let mut blocks = parts(message, at, untranslatable);
    for call in message
        .member("tool_calls")
        .and_then(RawJson::elements)
        .into_iter()
        .flatten()
    {
        let function = call.member("function");
        let arguments = function
            .and_then(|function| function.member("arguments"))
            .and_then(RawJson::string);
        let arguments = arguments.unwrap_or_default();
        let input = json::whole(&arguments)
            .ok()
            .filter(|input| input.members().is_some());
        blocks.push(block("tool_use", |block| {
            block.some("id", call.member("id"));
            block.some(
                "name",
                function.and_then(|function| function.member("name")),
            );
            block.raw("input", input.map_or("{}", RawJson::as_str));
        }));
    }
    blocks
}

/// Returns the result of a tool.
fn result(message: RawJson<'_>) -> String {
    block("tool_result", |block| {
        block.some("tool_use_id", message.member("tool_call_id"));
        block.text(
            "content",
            &message
                .member("content")
                .and_then(content_text)
                .unwrap_or_default(),
        );
    })
}
