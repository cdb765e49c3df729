//! Events that name a whole prefix, as in Continuum's streams: one JSON object per server-sent
//! event, or per text message of a WebSocket.
//!
//! [`parse`] reads an event; [`encode`] and [`sse`] are the publisher's half. The content that a
//! prefix hash covers is agreed between sender and reader; the reader splits the stream into
//! events.
//!
//! ```
//! use kv_events::continuum::{ContinuumKind, parse};
//!
//! let data = br#"{"event": "cache_created", "prefix_hash": "00FF", "token_count": 64}"#;
//! let event = parse(Some("cache_evicted"), data)?;
//! assert_eq!((event.kind, event.token_count), (ContinuumKind::Evicted, Some(64)));
//! assert_eq!(event.prefix_hash, "00ff");
//! # Ok::<(), kv_events::continuum::ContinuumError>(())
//! ```

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{errors::cut, json};

/// A change of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContinuumKind {
    /// The prefix is in the device's memory now.
    Created,
    /// The prefix left the device's memory; its destination is not named.
    Evicted,
    /// The prefix moved to external storage.
    Offloaded,
    /// The prefix came back from external storage.
    Reloaded,
    /// The prefix was removed everywhere.
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

    /// Returns the name on the wire.
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
    /// The change.
    pub kind: ContinuumKind,
    /// The prefix: 2 to 128 hex digits, in lower case.
    pub prefix_hash: String,
    /// Tokens cached for the prefix, if the event names them.
    pub token_count: Option<u64>,
}

/// Why data is not an event. Other events are not affected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContinuumError {
    /// The data is not a JSON object.
    #[error("event data is no JSON object ({0}): expected one with prefix_hash")]
    NotAnObject(String),
    /// Neither the stream nor the data names the kind.
    #[error(
        "event has no name: expected cache_created, cache_evicted, cache_offloaded, cache_reloaded or cache_purged in the \
         stream's event field or under \"event\" in the data"
    )]
    NoKind,
    /// The name is not one of the five kinds.
    #[error(
        "event is named {0:?}: expected cache_created, cache_evicted, cache_offloaded, cache_reloaded or cache_purged"
    )]
    UnknownKind(String),
    /// `prefix_hash` is missing or not hex digits.
    #[error("prefix_hash is {0}: expected 2 to 128 hex digits as text")]
    BadPrefix(String),
    /// `token_count` is not a number of tokens.
    #[error("token_count is {0}: expected a whole number, or none")]
    BadCount(String),
}

/// Parses one event. `event_name` is the stream's own field, which takes precedence over the name
/// in the data; `None` or empty where the stream has none. Source: contract CK46.
///
/// The caller bounds the length of `data`; the parsed event takes no more memory than that.
pub fn parse(event_name: Option<&str>, data: &[u8]) -> Result<ContinuumEvent, ContinuumError> {
    // A note about the stream itself may have no JSON, so its name is checked first.
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

/// Encodes an event about one rank of one backend, as JSON on one line.
pub fn encode(event: &ContinuumEvent, backend: &str, dp_rank: u32) -> String {
    let sent = SentContinuumEvent {
        event: event.kind.as_str(),
        backend,
        dp_rank,
        prefix_hash: &event.prefix_hash,
        token_count: event.token_count,
    };
    // Texts and numbers are always JSON.
    serde_json::to_string(&sent).unwrap_or_default()
}

#[derive(Serialize)]
struct SentContinuumEvent<'a> {
    event: &'static str,
    backend: &'a str,
    dp_rank: u32,
    prefix_hash: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_count: Option<u64>,
}

/// Encodes a server-sent event. Line breaks are removed from the id and the name, which cannot
/// contain them; `data` may have any.
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
