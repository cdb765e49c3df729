//! Which replies are kept, as what object, and what stream a kept object becomes.

mod captured;
mod generated;
mod joined;
mod refused;
mod replayed;
mod whole;

use dialect::{CacheableReply, Dialect, NotCacheable, StreamObject};
use serde_json::Value;

/// A stream of these events, as an engine sends it.
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

/// The object that these chunks of a chat become.
fn chat(chunks: &[Value]) -> Result<Value, NotCacheable> {
    read(Dialect::Chat, &sse(chunks)).map(|kept| serde_json::from_slice(&kept.body).unwrap())
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
