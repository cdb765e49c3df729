//! What an engine, or somebody beside it, says about one prefix.

use serde_json::Value;

use crate::{BadPrefixHash, PrefixHash, PrefixHashKind};

/// What happened to a prefix on a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// It is in the accelerator's memory now.
    Created,
    /// It left the accelerator's memory; where to is not said.
    Evicted,
    /// It was moved to external storage.
    Offloaded,
    /// It came back from external storage.
    Reloaded,
    /// It is gone from every tier.
    Purged,
}

impl EventKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Created, Self::Evicted, Self::Offloaded, Self::Reloaded, Self::Purged];

    /// The value of the label `type` in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Evicted => "evicted",
            Self::Offloaded => "offloaded",
            Self::Reloaded => "reloaded",
            Self::Purged => "purged",
        }
    }

    /// Position in [`EventKind::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    fn named(name: &str) -> Option<Self> {
        let short = name.strip_prefix("cache_")?;
        Self::ALL.into_iter().find(|kind| kind.as_str() == short)
    }
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixEvent {
    /// What happened.
    pub kind: EventKind,
    /// To which prefix.
    pub prefix: PrefixHash,
    /// Tokens cached for it on that backend, if the event says so.
    pub token_count: Option<u32>,
}

/// Why something is not an event. Each costs itself only: the stream goes on.
#[derive(Debug, thiserror::Error)]
pub enum EventError {
    /// The data is no JSON object.
    #[error("event data is no JSON object{0}: expected one with prefix_hash")]
    NotAnObject(String),
    /// Neither the stream nor the data names the kind.
    #[error("event has no name: expected an `event:` field or \"event\" in its data, such as cache_created")]
    NoKind,
    /// A name that is none of the five, such as a note of the stream itself.
    #[error(
        "event is named {0:?}: expected cache_created, cache_evicted, cache_offloaded, cache_reloaded or cache_purged"
    )]
    UnknownKind(String),
    /// `prefix_hash` is missing or no text.
    #[error("event has no prefix_hash: expected hex digits as text")]
    NoPrefix,
    /// `prefix_hash` is not of the kind its source sends.
    #[error(transparent)]
    BadPrefix(#[from] BadPrefixHash),
    /// `token_count` is no number of tokens.
    #[error("token_count is {0}: expected a whole number from 0 to 4294967295, or none")]
    BadCount(String),
}

impl PrefixEvent {
    /// Reads one event of a stream. `name` is the `event:` field of the stream, which wins over `"event"` in the data;
    /// `None` or empty where the stream has none. Further fields are ignored.
    ///
    /// The caller bounds the length of `data`; what is read does not outgrow it.
    ///
    /// ```
    /// use prefix_view::{EventKind, PrefixEvent, PrefixHashKind};
    ///
    /// let data = r#"{"event": "cache_created", "prefix_hash": "00000000000000ff", "token_count": 64}"#;
    /// let event = PrefixEvent::decode(Some("cache_evicted"), data, PrefixHashKind::SequenceHash)?;
    /// assert_eq!((event.kind, event.token_count), (EventKind::Evicted, Some(64)));
    /// # Ok::<(), prefix_view::EventError>(())
    /// ```
    pub fn decode(name: Option<&str>, data: &str, source: PrefixHashKind) -> Result<Self, EventError> {
        let name = name.filter(|name| !name.is_empty());
        // A note of the stream itself need not carry JSON, so its name is judged first.
        let named = name.map(kind_named).transpose()?;
        let data: Value = serde_json::from_str(data).map_err(|error| EventError::NotAnObject(format!(" ({error})")))?;
        let data = data.as_object().ok_or_else(|| EventError::NotAnObject(String::new()))?;
        let kind = match named {
            Some(kind) => kind,
            None => kind_named(data.get("event").and_then(Value::as_str).ok_or(EventError::NoKind)?)?,
        };
        let prefix = data.get("prefix_hash").and_then(Value::as_str).ok_or(EventError::NoPrefix)?;
        Ok(Self { kind, prefix: source.parse(prefix)?, token_count: token_count(data.get("token_count"))? })
    }
}

fn kind_named(name: &str) -> Result<EventKind, EventError> {
    EventKind::named(name).ok_or_else(|| EventError::UnknownKind(name.chars().take(80).collect()))
}

fn token_count(value: Option<&Value>) -> Result<Option<u32>, EventError> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64().and_then(|count| u32::try_from(count).ok()) {
            Some(count) => Ok(Some(count)),
            None => Err(EventError::BadCount(value.to_string().chars().take(80).collect())),
        },
    }
}
