//! Replies that are stored, the stored object, and its replay as a stream.

mod captured;
mod generated;
mod joined;
mod refused;
mod replayed;
mod whole;

use dialect::{CacheableReply, Dialect, NotCacheable, StreamObject};
use serde_json::Value;

/// An engine's stream of these events.
fn sse(chunks: &[Value]) -> String {
    let mut text: String = chunks
        .iter()
        .map(|chunk| format!("data: {chunk}\n\n"))
        .collect();
    text.push_str("data: [DONE]\n\n");
    text
}

fn read(dialect: Dialect, stream: &str) -> Result<CacheableReply, NotCacheable> {
    StreamObject::read(dialect, &[stream.as_bytes()])
}

/// The object joined from these chunks of a chat.
fn chat(chunks: &[Value]) -> Result<Value, NotCacheable> {
    read(Dialect::Chat, &sse(chunks)).map(|stored| serde_json::from_slice(&stored.body).unwrap())
}

/// The chunks of a stream, its `[DONE]` left out.
fn chunks(stream: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(stream)
        .unwrap()
        .strip_suffix("data: [DONE]\n\n")
        .unwrap();
    let event = |event: &str| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
    text.split_terminator("\n\n").map(event).collect()
}
