//! Generation requests and the content of their replies.

use serde_json::{Value, json};

use super::RawReply;

/// A chat of one message. `model` is `sim` on simulated engines and `m` on scripted ones.
pub fn chat(model: &str, text: &str, max_tokens: u32) -> Value {
    json!({
        "model": model, "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "ignore_eos": true,
    })
}

/// The same as a stream.
pub fn streamed(mut chat: Value) -> Value {
    chat["stream"] = json!(true);
    chat
}

/// A chat with a prompt of about `words` words.
pub fn long_chat(model: &str, words: usize, max_tokens: u32) -> Value {
    chat(model, &"word ".repeat(words), max_tokens)
}

/// The data of each event of a stream with line feeds as line ends.
pub fn events_of(reply: &RawReply) -> Vec<String> {
    let text = reply.text();
    text.split("\n\n")
        .filter_map(|event| event.strip_prefix("data: "))
        .map(str::to_owned)
        .collect()
}

/// The generated text of a reply, streamed or not.
pub fn text_of(reply: &RawReply) -> String {
    if reply
        .header("content-type")
        .is_some_and(|kind| kind.starts_with("text/event-stream"))
    {
        let deltas = events_of(reply)
            .into_iter()
            .filter_map(|event| serde_json::from_str::<Value>(&event).ok());
        return deltas
            .filter_map(|it| Some(it["choices"][0]["delta"]["content"].as_str()?.to_owned()))
            .collect();
    }
    reply.json()["choices"][0]["message"]["content"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}
