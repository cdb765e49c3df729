//! Encoding of events: every field of the envelope is written, absent ones as null.

use rmp::encode;
use serde::{Serialize, Serializer, ser::SerializeMap};

use super::event::{StandardChange, StandardEvent, StreamKey};

/// Encodes one event as a JSON object, on one line. Hashes are numbers.
pub fn encode_json(event: &StandardEvent) -> String {
    serde_json::to_string(&JsonEvent(event)).expect("texts and numbers are always JSON")
}

/// Encodes a batch as `[timestamp in ms, events, nil]`; the events' maps have the same names as in
/// JSON.
///
/// The timestamp is the latest of the events', 0 if none has one.
pub fn encode_msgpack(events: &[StandardEvent]) -> Vec<u8> {
    let mut out = Packer(Vec::new());
    let timestamp = events
        .iter()
        .filter_map(|event| event.timestamp_ms)
        .max()
        .unwrap_or(0);
    out.array(3);
    out.signed(timestamp);
    out.array(events.len());
    for event in events {
        out.event(event);
    }
    out.nil();
    out.0
}

/// Fields of the envelope, in the order of the contract.
const ENVELOPE: usize = 11;

struct JsonEvent<'a>(&'a StandardEvent);

impl Serialize for JsonEvent<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let StandardEvent {
            event_id,
            timestamp_ms,
            stream,
            change,
            object_key,
        } = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("event_id", event_id)?;
        map.serialize_entry("timestamp", timestamp_ms)?;
        map.serialize_entry("event_type", change.as_str())?;
        map.serialize_entry("model_name", &stream.model)?;
        map.serialize_entry("block_size", &stream.block_size)?;
        map.serialize_entry("additional_salt", &stream.salt)?;
        map.serialize_entry("lora_name", &stream.lora)?;
        map.serialize_entry("tenant_id", &stream.tenant)?;
        map.serialize_entry("backend_id", &stream.backend_id)?;
        map.serialize_entry("medium", &stream.medium)?;
        map.serialize_entry("dp_rank", &stream.dp_rank)?;
        match change {
            StandardChange::Stored {
                seq_hashes,
                base_block_idx,
                parent_hash,
                token_ids,
            } => {
                map.serialize_entry("seq_hashes", seq_hashes)?;
                map.serialize_entry("base_block_idx", base_block_idx)?;
                map.serialize_entry("parent_hash", parent_hash)?;
                map.serialize_entry("token_ids", token_ids)?;
            }
            StandardChange::Removed {
                seq_hashes,
                base_block_idx,
            } => {
                map.serialize_entry("seq_hashes", seq_hashes)?;
                map.serialize_entry("base_block_idx", base_block_idx)?;
            }
            StandardChange::Cleared => {}
        }
        if let Some(key) = object_key {
            map.serialize_entry("object_key", key)?;
        }
        map.end()
    }
}

/// A writer to memory, which never fails.
struct Packer(Vec<u8>);

impl Packer {
    fn event(&mut self, event: &StandardEvent) {
        let StandardEvent {
            event_id,
            timestamp_ms,
            stream,
            change,
            object_key,
        } = event;
        let own = match change {
            StandardChange::Stored { .. } => 4,
            StandardChange::Removed { .. } => 2,
            StandardChange::Cleared => 0,
        };
        self.map(ENVELOPE + own + usize::from(object_key.is_some()));
        self.entry("event_id", |out| out.number(*event_id));
        self.entry("timestamp", |out| out.optional(*timestamp_ms, Self::signed));
        self.entry("event_type", |out| out.text(change.as_str()));
        self.stream(stream);
        self.change(change);
        if let Some(key) = object_key {
            self.entry("object_key", |out| out.text(key));
        }
    }

    fn stream(&mut self, stream: &StreamKey) {
        self.entry("model_name", |out| {
            out.optional(stream.model.as_deref(), Self::text)
        });
        self.entry("block_size", |out| {
            out.optional(stream.block_size.map(u64::from), Self::number)
        });
        self.entry("additional_salt", |out| {
            out.optional(stream.salt.as_deref(), Self::text)
        });
        self.entry("lora_name", |out| {
            out.optional(stream.lora.as_deref(), Self::text)
        });
        self.entry("tenant_id", |out| {
            out.optional(stream.tenant.as_deref(), Self::text)
        });
        self.entry("backend_id", |out| {
            out.optional(stream.backend_id.as_deref(), Self::text)
        });
        self.entry("medium", |out| {
            out.optional(stream.medium.as_deref(), Self::text)
        });
        self.entry("dp_rank", |out| {
            out.optional(stream.dp_rank.map(u64::from), Self::number)
        });
    }

    fn change(&mut self, change: &StandardChange) {
        match change {
            StandardChange::Stored {
                seq_hashes,
                base_block_idx,
                parent_hash,
                token_ids,
            } => {
                self.entry("seq_hashes", |out| out.numbers(seq_hashes.iter().copied()));
                self.entry("base_block_idx", |out| {
                    out.optional(*base_block_idx, Self::number)
                });
                self.entry("parent_hash", |out| {
                    out.optional(*parent_hash, Self::number)
                });
                self.entry("token_ids", |out| {
                    out.optional(token_ids.as_deref(), |out, tokens| {
                        out.numbers(tokens.iter().map(|id| (*id).into()))
                    });
                });
            }
            StandardChange::Removed {
                seq_hashes,
                base_block_idx,
            } => {
                self.entry("seq_hashes", |out| out.numbers(seq_hashes.iter().copied()));
                self.entry("base_block_idx", |out| {
                    out.optional(*base_block_idx, Self::number)
                });
            }
            StandardChange::Cleared => {}
        }
    }

    fn entry(&mut self, key: &str, value: impl FnOnce(&mut Self)) {
        self.text(key);
        value(self);
    }

    fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match value {
            Some(value) => write(self, value),
            None => self.nil(),
        }
    }

    fn numbers(&mut self, numbers: impl ExactSizeIterator<Item = u64>) {
        self.array(numbers.len());
        for number in numbers {
            self.number(number);
        }
    }

    fn array(&mut self, len: usize) {
        infallible(encode::write_array_len(&mut self.0, length(len)));
    }

    fn map(&mut self, pairs: usize) {
        infallible(encode::write_map_len(&mut self.0, length(pairs)));
    }

    fn number(&mut self, number: u64) {
        infallible(encode::write_uint(&mut self.0, number));
    }

    fn signed(&mut self, number: i64) {
        infallible(encode::write_sint(&mut self.0, number));
    }

    fn text(&mut self, text: &str) {
        infallible(encode::write_str(&mut self.0, text));
    }

    fn nil(&mut self) {
        infallible(encode::write_nil(&mut self.0));
    }
}

fn length(len: usize) -> u32 {
    u32::try_from(len).expect("nobody publishes 2^32 blocks or events at once")
}

fn infallible<T, E: std::fmt::Debug>(written: Result<T, E>) {
    written.expect("writing to memory does not fail");
}
