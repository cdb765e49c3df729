//! Events that name a whole prefix, in the manner of Continuum's streams: one JSON object per server-sent event, or per
//! text message of a WebSocket.
//!
//! [`parse`] reads one, [`encode`] and [`sse`] are the publisher's half. What a prefix hash covers is between sender and
//! reader; splitting a stream into events is the reader's.
//!
//! ```
//! use kv_events::continuum::{ContinuumKind, parse};
//!
//! let event = parse(Some("cache_evicted"), br#"{"event": "cache_created", "prefix_hash": "00FF", "token_count": 64}"#)?;
//! assert_eq!((event.kind, &*event.prefix_hash, event.token_count), (ContinuumKind::Evicted, "00ff", Some(64)));
//! # Ok::<(), kv_events::continuum::ContinuumError>(())
//! ```

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{json, value::RawValue};

use crate::{errors::cut, json};

/// What happened to a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContinuumKind {
    /// It is in the device's memory now.
    Created,
    /// It left the device's memory; where to is not said.
    Evicted,
    /// It was moved to external storage.
    Offloaded,
    /// It came back from there.
    Reloaded,
    /// It is gone everywhere.
    Purged,
}

impl ContinuumKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::Created,
        Self::Evicted,
        Self::Offloaded,
        Self::Reloaded,
        Self::Purged,
    ];

    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "cache_created",
            Self::Evicted => "cache_evicted",
            Self::Offloaded => "cache_offloaded",
            Self::Reloaded => "cache_reloaded",
            Self::Purged => "cache_purged",
        }
    }

    fn named(name: &str) -> Result<Self, ContinuumError> {
        let known = Self::ALL.into_iter().find(|kind| kind.as_str() == name);
        known.ok_or_else(|| ContinuumError::UnknownKind(name.chars().take(80).collect()))
    }
}

/// One event. Source: contract CK44 and CK45.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContinuumEvent {
    /// What happened.
    pub kind: ContinuumKind,
    /// To which prefix: 2 to 128 hex digits, in lower case.
    pub prefix_hash: String,
    /// Tokens cached for it, if the event says so.
    pub token_count: Option<u64>,
}

/// Why something is not an event. It costs itself only.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContinuumError {
    /// The data is no JSON object.
    #[error("event data is no JSON object ({0}): expected one with prefix_hash")]
    NotAnObject(String),
    /// Neither the stream nor the data names the kind.
    #[error(
        "event has no name: expected cache_created, cache_evicted, cache_offloaded, cache_reloaded or cache_purged in the \
         stream's event field or under \"event\" in the data"
    )]
    NoKind,
    /// A name that is none of the five.
    #[error(
        "event is named {0:?}: expected cache_created, cache_evicted, cache_offloaded, cache_reloaded or cache_purged"
    )]
    UnknownKind(String),
    /// `prefix_hash` is missing, or no hex digits.
    #[error("prefix_hash is {0}: expected 2 to 128 hex digits as text")]
    BadPrefix(String),
    /// `token_count` is no number of tokens.
    #[error("token_count is {0}: expected a whole number, or none")]
    BadCount(String),
}

/// Reads one event. `event_name` is the stream's own field, which wins over the name in the data; `None` or empty where
/// the stream has none. Source: contract CK46.
///
/// The caller bounds the length of `data`; what is read takes no more than that.
pub fn parse(event_name: Option<&str>, data: &[u8]) -> Result<ContinuumEvent, ContinuumError> {
    // A note of the stream itself need not carry JSON, so its name is judged first.
    let named = event_name
        .filter(|name| !name.is_empty())
        .map(ContinuumKind::named)
        .transpose()?;
    if !data.trim_ascii_start().starts_with(b"{") {
        return Err(ContinuumError::NotAnObject("it begins otherwise".into()));
    }
    let sent: RawContinuumEvent<'_> = serde_json::from_slice(data)
        .map_err(|error| ContinuumError::NotAnObject(cut(error.to_string())))?;
    let kind = match (named, sent.event.map(|event| event.get())) {
        (Some(kind), _) => kind,
        (None, None | Some("null")) => return Err(ContinuumError::NoKind),
        (None, Some(_)) => {
            let name = sent
                .event
                .and_then(json::text)
                .ok_or(ContinuumError::NoKind)?;
            ContinuumKind::named(&name)?
        }
    };
    Ok(ContinuumEvent {
        kind,
        prefix_hash: prefix(sent.prefix_hash)?,
        token_count: count(sent.token_count)?,
    })
}

#[derive(Deserialize)]
struct RawContinuumEvent<'a> {
    #[serde(borrow)]
    event: Option<&'a RawValue>,
    #[serde(borrow)]
    prefix_hash: Option<&'a RawValue>,
    #[serde(borrow)]
    token_count: Option<&'a RawValue>,
}

fn prefix(sent: Option<&RawValue>) -> Result<String, ContinuumError> {
    let Some(sent) = sent else {
        return Err(ContinuumError::BadPrefix("missing".into()));
    };
    let is_hex = |text: &Cow<'_, str>| {
        (2..=128).contains(&text.len()) && text.bytes().all(|digit| digit.is_ascii_hexdigit())
    };
    match json::text(sent).filter(is_hex) {
        Some(text) => Ok(text.to_ascii_lowercase()),
        None => Err(ContinuumError::BadPrefix(
            sent.get().chars().take(80).collect(),
        )),
    }
}

fn count(sent: Option<&RawValue>) -> Result<Option<u64>, ContinuumError> {
    match sent.map(RawValue::get) {
        None | Some("null") => Ok(None),
        Some(text) => match text.parse() {
            Ok(count) => Ok(Some(count)),
            Err(_) => Err(ContinuumError::BadCount(text.chars().take(80).collect())),
        },
    }
}

/// The data of an event about one rank of one backend, as JSON on one line.
pub fn encode(event: &ContinuumEvent, backend: &str, dp_rank: u32) -> String {
    let ContinuumEvent {
        kind,
        prefix_hash,
        token_count,
    } = event;
    let mut data = json!({"event": kind.as_str(), "backend": backend, "dp_rank": dp_rank, "prefix_hash": prefix_hash});
    if let Some(count) = token_count {
        data["token_count"] = json!(count);
    }
    data.to_string()
}

/// A server-sent event. Line breaks cannot be part of an id or a name and are left out of them; `data` may have any.
pub fn sse(id: &str, event_name: &str, data: &str) -> String {
    let one_line = |text: &str| text.replace(['\r', '\n', '\0'], "");
    let mut event = format!("id: {}\nevent: {}\n", one_line(id), one_line(event_name));
    for line in data.lines() {
        event.push_str("data: ");
        event.push_str(line);
        event.push('\n');
    }
    event.push('\n');
    event
}
