//! Translates one message of a conversation: its content blocks become the parts, calls and results
//! of chat messages.

use std::borrow::Cow;

use crate::{
    RawJson,
    json::{ArrayWriter, ObjectWriter, write_string},
};

/// Writes the chat messages of one message: tool results are messages of their own, before the
/// user's other content.
pub(super) fn message(
    messages: &mut ArrayWriter<'_>,
    message: RawJson<'_>,
    at: usize,
    untranslatable: &mut Option<String>,
) {
    let role = message.member("role").and_then(RawJson::string);
    let content = message.member("content");
    let (Some(role), Some(content)) = (role, content) else {
        // The engine rejects it.
        messages.next().push_str(message.as_str());
        return;
    };
    let Some(blocks) = content.elements() else {
        let mut plain = messages.object();
        plain.text("role", &role);
        plain.raw("content", content.as_str());
        return plain.close();
    };
    let mut turn = MessageBlocks::default();
    for block in blocks {
        match block.member("type").and_then(RawJson::string).as_deref() {
            Some("text") => turn.text(block),
            Some("image") => turn.image(block),
            Some("thinking") => turn
                .reasoning
                .extend(block.member("thinking").and_then(RawJson::string)),
            // Encrypted by Anthropic's own servers: no engine can read it.
            Some("redacted_thinking") => {}
            Some("tool_use") => turn.calls.push(block),
            Some("tool_result") => turn.result(messages, block),
            Some("document") if plain_document(block).is_some() => {
                turn.parts
                    .extend(plain_document(block).map(ContentBlock::Text));
            }
            kind => {
                let kind: String = kind.unwrap_or("").chars().take(60).collect();
                untranslatable.get_or_insert_with(|| {
                    format!(
                        "messages[{at}] has a content block of type {kind:?}, for which the chosen worker has no word: leave it \
                         out, or send the request to a worker that speaks messages itself"
                    )
                });
            }
        }
    }
    turn.write(messages, &role);
}

/// The content of one message, sorted.
#[derive(Default)]
struct MessageBlocks<'a> {
    parts: Vec<ContentBlock<'a>>,
    calls: Vec<RawJson<'a>>,
    reasoning: Vec<Cow<'a, str>>,
    answered: bool,
}

enum ContentBlock<'a> {
    Text(Cow<'a, str>),
    /// Its URL.
    Image(String),
}

impl<'a> MessageBlocks<'a> {
    fn text(&mut self, block: RawJson<'a>) {
        let text = block
            .member("text")
            .and_then(RawJson::string)
            .filter(|text| !text.is_empty());
        self.parts.extend(text.map(ContentBlock::Text));
    }

    fn image(&mut self, block: RawJson<'a>) {
        self.parts.extend(
            block
                .member("source")
                .and_then(url)
                .map(ContentBlock::Image),
        );
    }

    /// Adds the result of a tool. A chat's tool result cannot contain images: they follow with the
    /// user's content.
    fn result(&mut self, messages: &mut ArrayWriter<'_>, block: RawJson<'a>) {
        self.answered = true;
        let mut result = messages.object();
        result.text("role", "tool");
        result.some("tool_call_id", block.member("tool_use_id"));
        let content = block.member("content");
        let text = match content {
            Some(content) if content.elements().is_some() => {
                let mut texts = Vec::new();
                for inner in content.elements().into_iter().flatten() {
                    match inner.member("type").and_then(RawJson::string).as_deref() {
                        Some("image") => self.image(inner),
                        _ => texts.extend(inner.member("text").and_then(RawJson::string)),
                    }
                }
                texts.join("\n")
            }
            Some(content) => content
                .string()
                .map_or_else(|| content.as_str().to_owned(), Cow::into_owned),
            None => String::new(),
        };
        result.text("content", &text);
        result.close();
    }

    fn write(self, messages: &mut ArrayWriter<'_>, role: &str) {
        if self.parts.is_empty()
            && self.calls.is_empty()
            && (self.reasoning.is_empty() || self.answered)
        {
            // A message with only results is written already; an empty message has no content, and
            // templates reject it.
            return;
        }
        let mut message = messages.object();
        message.text("role", role);
        match &self.parts[..] {
            [] => message.raw("content", "null"),
            [ContentBlock::Text(text)] => message.text("content", text),
            parts => {
                let mut list = message.array("content");
                for part in parts {
                    part.write(&mut list);
                }
                list.close();
            }
        }
        if !self.reasoning.is_empty() {
            message.text("reasoning_content", &self.reasoning.concat());
        }
        if !self.calls.is_empty() {
            let mut list = message.array("tool_calls");
            for call in self.calls {
                write_call(&mut list, call);
            }
            list.close();
        }
        message.close();
    }
}

impl ContentBlock<'_> {
    fn write(&self, list: &mut ArrayWriter<'_>) {
        let mut part = list.object();
        match self {
            Self::Text(text) => {
                part.text("type", "text");
                part.text("text", text);
            }
            Self::Image(url) => {
                part.text("type", "image_url");
                let mut image: ObjectWriter<'_> = part.object("image_url");
                image.text("url", url);
                image.close();
            }
        }
        part.close();
    }
}

fn write_call(list: &mut ArrayWriter<'_>, call: RawJson<'_>) {
    let mut one = list.object();
    one.some("id", call.member("id"));
    one.text("type", "function");
    let mut function = one.object("function");
    function.some("name", call.member("name"));
    let input = call.member("input").map_or("{}", RawJson::as_str);
    write_string(function.key("arguments"), input);
    function.close();
    one.close();
}

/// Returns the URL of an image: an address, or a data URL with its bytes.
fn url(source: RawJson<'_>) -> Option<String> {
    let text = |key: &str| source.member(key).and_then(RawJson::string);
    match &*text("type")? {
        "url" => text("url").map(Cow::into_owned),
        "base64" => Some(format!(
            "data:{};base64,{}",
            text("media_type")?,
            text("data")?
        )),
        _ => None,
    }
}

/// Returns the text of a plain-text document.
fn plain_document(block: RawJson<'_>) -> Option<Cow<'_, str>> {
    let source = block.member("source")?;
    let is_text = source.member("type").and_then(RawJson::string).as_deref() == Some("text");
    source
        .member("data")
        .filter(|_| is_text)
        .and_then(RawJson::string)
}
