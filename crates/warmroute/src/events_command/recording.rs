//! Writes frames as JSON lines: published messages (`pub`) and answers of the replay socket
//! (`replay`).
//!
//! Every frame is there as base64, so that it can be played back byte for byte, beside its decoded
//! form for people and for other readers.

use std::io::{self, Write};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use kv_blocks::Moment;
use kv_events::{
    frames,
    vllm::{self, BlockRemoved, BlockStored, ExtraKey, VllmEvent, WireTokens},
};
use net::Clock;
use serde_json::{Map, Value, json};

use super::feed::{EventHandler, HistoryReply};

/// Writes a recording.
pub(super) struct Recorder<'a, W> {
    out: W,
    engine: &'a str,
    clock: Clock,
    started: Moment,
}

impl<'a, W: Write> Recorder<'a, W> {
    pub(super) fn new(out: W, engine: &'a str) -> Self {
        let clock = Clock::system();
        Self {
            out,
            engine,
            clock,
            started: clock.now(),
        }
    }

    fn write(&mut self, line: &Value) -> io::Result<()> {
        writeln!(self.out, "{line}")?;
        self.out.flush()
    }

    /// Returns seconds since the recording began, to a tenth of a millisecond.
    fn t(&self) -> f64 {
        (self.clock.now().since(self.started).as_secs_f64() * 1e4).round() / 1e4
    }
}

impl<W: Write> EventHandler for Recorder<'_, W> {
    fn live(&mut self, message: &[Bytes]) -> io::Result<()> {
        let live = frames::live(message).ok();
        let line = json!({
            "t": self.t(),
            "kind": "pub",
            "engine": self.engine,
            "frames": encoded(message),
            "topic": live.map(|live| String::from_utf8_lossy(live.topic)),
            "seq": live.and_then(|live| live.seq),
            "batch": live.map(|live| batch(live.payload)),
        });
        self.write(&line)
    }

    /// Writes all of it, whatever number is wanted: request and answer belong together.
    fn history(&mut self, history: &HistoryReply, _: u64) -> io::Result<()> {
        let mut lengths: Vec<usize> = history.received.iter().map(Vec::len).collect();
        lengths.sort_unstable();
        lengths.dedup();
        let line = json!({
            "t": self.t(),
            "kind": "replay",
            "engine": self.engine,
            "socket": "DEALER",
            "sent": encoded(&history.sent),
            "received": history.received.iter().map(|message| encoded(message)).collect::<Vec<_>>(),
            "frames_per_message": lengths,
            "messages": history.received.len(),
            "outcome": history.outcome,
        });
        self.write(&line)
    }
}

fn encoded<F: AsRef<[u8]>>(frames: &[F]) -> Vec<String> {
    frames
        .iter()
        .map(|frame| BASE64_STANDARD.encode(frame))
        .collect()
}

/// Returns the decoded form, in the order of the wire; null if it cannot be decoded.
fn batch(payload: &[u8]) -> Value {
    let Ok(batch) = vllm::decode(payload) else {
        return Value::Null;
    };
    let event = |event: &Result<VllmEvent, _>| match event {
        Ok(VllmEvent::Stored(event)) => stored(event),
        Ok(VllmEvent::Removed(event)) => removed(event),
        Ok(VllmEvent::Cleared) => json!({"type": "AllBlocksCleared"}),
        Ok(VllmEvent::Unknown { tag }) => json!({"type": tag}),
        Err(_) => Value::Null,
    };
    json!([
        batch.ts,
        batch.events.iter().map(event).collect::<Vec<_>>(),
        batch.dp_rank
    ])
}

fn stored(event: &BlockStored) -> Value {
    let tokens = match &event.token_ids {
        WireTokens::Flat(tokens) => json!(tokens),
        WireTokens::Pairs(pairs) => json!(pairs),
    };
    let mut fields = object(json!({
        "type": "BlockStored",
        "block_hashes": event.block_hashes.iter().map(|hash| hash.0).collect::<Vec<_>>(),
        "parent_block_hash": event.parent_block_hash.map(|hash| hash.0),
        "token_ids": tokens,
        "block_size": event.block_size,
        "lora_id": event.lora.id,
        "medium": event.location.medium,
        "lora_name": event.lora.name,
        "extra_keys": event.extra_keys.as_ref().map(|blocks| blocks.iter().map(|keys| extra(keys)).collect::<Vec<_>>()),
    }));
    for (name, value) in [
        ("group_idx", event.group.idx.map(Value::from)),
        ("kv_cache_spec_kind", text(event.group.spec_kind.as_deref())),
        (
            "kv_cache_spec_sliding_window",
            event.group.sliding_window.map(Value::from),
        ),
        ("locality", text(event.location.locality.as_deref())),
        ("ownership", text(event.location.ownership.as_deref())),
        ("session_id", text(event.session_id.as_deref())),
        (
            "lookahead_token_ids",
            event
                .lookahead_token_ids
                .as_ref()
                .map(|tokens| json!(tokens)),
        ),
        ("cache_salt", text(event.cache_salt.as_deref())),
    ] {
        fields.extend(value.map(|value| (name.to_owned(), value)));
    }
    Value::Object(fields)
}

fn removed(event: &BlockRemoved) -> Value {
    let mut fields = object(json!({
        "type": "BlockRemoved",
        "block_hashes": event.block_hashes.iter().map(|hash| hash.0).collect::<Vec<_>>(),
        "medium": event.location.medium,
    }));
    for (name, value) in [
        ("group_idx", event.group_idx.map(Value::from)),
        ("locality", text(event.location.locality.as_deref())),
        ("ownership", text(event.location.ownership.as_deref())),
    ] {
        fields.extend(value.map(|value| (name.to_owned(), value)));
    }
    Value::Object(fields)
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn text(text: Option<&str>) -> Option<Value> {
    text.map(Value::from)
}

/// Returns the keys of one block; none is null, as on the wire.
fn extra(keys: &[ExtraKey]) -> Value {
    let key = |key: &ExtraKey| match key {
        ExtraKey::Text(text) => json!(text),
        ExtraKey::Item(identifier, offset) => json!([identifier, offset]),
        ExtraKey::Digest(bytes) => json!({"bytes": BASE64_STANDARD.encode(bytes)}),
        ExtraKey::Other => json!({}),
    };
    if keys.is_empty() {
        Value::Null
    } else {
        keys.iter().map(key).collect()
    }
}
