//! Decoding of payloads into events.

use std::{borrow::Cow, fmt};

use serde::{
    Deserializer as _,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::{event::StandardEvent, field::StandardFields, read, value::PackedValue};
use crate::{
    BatchError, EventError,
    errors::cut,
    json,
    wire::{MsgpackError, MsgpackHead, MsgpackReader},
};

/// Most events in one payload: publishers send some dozens. A decoded event takes more memory than
/// its shortest bytes, so the sender must not choose the number.
pub const MAX_EVENTS: usize = 1 << 16;

type DecodedEvents = Vec<Result<StandardEvent, EventError>>;

/// Decodes events from JSON or msgpack, distinguished by the first byte: no batch in msgpack begins
/// with a brace or a bracket.
pub fn decode(payload: &[u8]) -> Result<DecodedEvents, BatchError> {
    if is_json(payload) {
        decode_json(payload)
    } else {
        decode_msgpack(payload)
    }
}

/// Returns whether a payload's first event has this module's form, and not vLLM's; `None` if it has
/// no readable event.
pub fn is_standard(payload: &[u8]) -> Option<bool> {
    if is_json(payload) {
        return Some(true);
    }
    let event = first_event(payload).ok().flatten()?;
    let mut reader = MsgpackReader::new(event);
    let MsgpackHead::Map(pairs) = reader.head().ok()? else {
        return Some(false);
    };
    for _ in 0..pairs {
        let (key, _) = (reader.value().ok()?, reader.value().ok()?);
        if let Ok(MsgpackHead::Text(b"event_id" | b"event_type" | b"seq_hashes")) =
            MsgpackReader::new(key).head()
        {
            return Some(true);
        }
    }
    Some(false)
}

fn is_json(payload: &[u8]) -> bool {
    matches!(payload.trim_ascii_start().first(), Some(b'{' | b'['))
}

/// Returns the first event of a payload in any of the forms that [`decode_msgpack`] takes.
fn first_event(payload: &[u8]) -> Result<Option<&[u8]>, MsgpackError> {
    let mut reader = MsgpackReader::new(payload);
    let events = match reader.head()? {
        MsgpackHead::Map(_) => match fields(payload)?.1 {
            Some(events) => events,
            None => return Ok(Some(payload)),
        },
        MsgpackHead::Array(len @ 1..) => {
            let first = reader.value()?;
            if matches!(MsgpackReader::new(first).head()?, MsgpackHead::Map(_)) {
                return Ok(Some(first));
            }
            if len < 2 {
                return Ok(None);
            }
            reader.value()?
        }
        _ => return Ok(None),
    };
    let mut reader = MsgpackReader::new(events);
    match reader.head()? {
        MsgpackHead::Array(1..) => reader.value().map(Some),
        _ => Ok(None),
    }
}

/// Decodes one event from a JSON object, or several from an array; a malformed event does not
/// affect the others.
///
/// Hashes may be decimal text, for senders whose numbers end at 2^53. Unknown fields are skipped.
pub fn decode_json(payload: &[u8]) -> Result<DecodedEvents, BatchError> {
    let unusable = |reason: String| BatchError {
        bytes: payload.len(),
        reason: cut(reason),
    };
    let no_json = |error: serde_json::Error| unusable(error.to_string());
    if !payload.trim_ascii_start().starts_with(b"[") {
        let event: &RawValue = serde_json::from_slice(payload).map_err(no_json)?;
        return if event.get().starts_with('{') {
            Ok(vec![object(event)])
        } else {
            Err(unusable(
                "it is neither an event object nor an array of them".into(),
            ))
        };
    }
    let mut events = Vec::new();
    json::each(payload, |event| {
        if events.len() == MAX_EVENTS {
            return Err(too_many());
        }
        events.push(object(event));
        Ok(())
    })
    .map_err(no_json)?
    .map_err(unusable)?;
    Ok(events)
}

fn too_many() -> String {
    format!("it has more than {MAX_EVENTS} events: send them in several")
}

fn object(event: &RawValue) -> Result<StandardEvent, EventError> {
    struct PairVisitor;
    impl<'de> Visitor<'de> for PairVisitor {
        type Value = StandardFields<&'de RawValue>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an event object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut fields = StandardFields::new();
            while let Some((name, value)) = map.next_entry::<Cow<'de, str>, &RawValue>()? {
                fields.put(name.as_bytes(), value);
            }
            Ok(fields)
        }
    }
    let fields = serde_json::Deserializer::from_str(event.get()).deserialize_map(PairVisitor);
    read::event(&fields.map_err(|error| EventError::new(error.to_string()))?)
}

/// Decodes a batch in msgpack: `[timestamp, events]`, optionally with a rank behind (ignored, since
/// every event has its own), a map with `events`, an array of events, or a single event.
pub fn decode_msgpack(payload: &[u8]) -> Result<DecodedEvents, BatchError> {
    batch(payload).map_err(|reason| BatchError {
        bytes: payload.len(),
        reason: cut(reason),
    })
}

impl From<MsgpackError> for String {
    fn from(MsgpackError(reason): MsgpackError) -> Self {
        reason.into()
    }
}

fn batch(payload: &[u8]) -> Result<DecodedEvents, String> {
    let mut reader = MsgpackReader::new(payload);
    let whole = reader.value()?;
    if !reader.is_at_end() {
        return Err("bytes follow the batch".into());
    }
    let mut reader = MsgpackReader::new(whole);
    match reader.head()? {
        MsgpackHead::Map(_) => match fields(whole)? {
            (_, Some(events)) => list(events),
            (fields, None) => Ok(vec![read::event(&fields)]),
        },
        MsgpackHead::Array(0) => Ok(Vec::new()),
        MsgpackHead::Array(len) => {
            let first = reader.value()?;
            if matches!(MsgpackReader::new(first).head()?, MsgpackHead::Map(_)) {
                return list(whole);
            }
            if len < 2 {
                return Err("it has no events: expected a timestamp and an array of events".into());
            }
            list(reader.value()?)
        }
        _ => Err("it is no batch: expected a timestamp and an array of events".into()),
    }
}

fn list(events: &[u8]) -> Result<DecodedEvents, String> {
    let mut reader = MsgpackReader::new(events);
    let MsgpackHead::Array(len) = reader.head()? else {
        return Err("its events are no array".into());
    };
    if len > MAX_EVENTS {
        return Err(too_many());
    }
    // Grows with the events actually read: the length is only the sender's claim.
    let mut events = Vec::with_capacity(len.min(64));
    for _ in 0..len {
        let event = reader.value()?;
        events.push(match MsgpackReader::new(event).head()? {
            MsgpackHead::Map(_) => read::event(&fields(event)?.0),
            _ => Err(EventError::new(
                "it is no map: expected the fields of an event by their names",
            )),
        });
    }
    Ok(events)
}

/// Splits a map into the fields of an event and its `events` value.
fn fields(map: &[u8]) -> Result<(StandardFields<PackedValue<'_>>, Option<&[u8]>), MsgpackError> {
    let mut reader = MsgpackReader::new(map);
    let MsgpackHead::Map(pairs) = reader.head()? else {
        return Err(MsgpackError("it is no map"));
    };
    let (mut fields, mut events) = (StandardFields::new(), None);
    for _ in 0..pairs {
        let (key, value) = (reader.value()?, reader.value()?);
        let MsgpackHead::Text(name) = MsgpackReader::new(key).head()? else {
            continue;
        };
        if name == b"events" {
            events = Some(value);
        }
        fields.put(name, PackedValue(value));
    }
    Ok((fields, events))
}
