//! What an engine, or somebody beside it, says about one prefix.

use kv_events::continuum::{self, ContinuumError, ContinuumEvent, ContinuumKind};

use crate::{PrefixHash, PrefixHashError, PrefixHashKind};

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
    pub const ALL: [Self; 5] = [
        Self::Created,
        Self::Evicted,
        Self::Offloaded,
        Self::Reloaded,
        Self::Purged,
    ];

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
pub enum PrefixEventError {
    /// It is no event at all.
    #[error(transparent)]
    NoEvent(#[from] ContinuumError),
    /// `prefix_hash` is not of the kind its source sends.
    #[error(transparent)]
    BadPrefix(#[from] PrefixHashError),
    /// More tokens than a prompt can have.
    #[error("token_count is {0}: expected a whole number from 0 to 4294967295, or none")]
    BadCount(u64),
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
    /// let data = br#"{"event": "cache_created", "prefix_hash": "00000000000000ff", "token_count": 64}"#;
    /// let event = PrefixEvent::decode(Some("cache_evicted"), data, PrefixHashKind::SequenceHash)?;
    /// assert_eq!((event.kind, event.token_count), (EventKind::Evicted, Some(64)));
    /// # Ok::<(), prefix_view::EventError>(())
    /// ```
    pub fn decode(
        name: Option<&str>,
        data: &[u8],
        source: PrefixHashKind,
    ) -> Result<Self, PrefixEventError> {
        let ContinuumEvent {
            kind,
            prefix_hash,
            token_count,
        } = continuum::parse(name, data)?;
        let count = |count| u32::try_from(count).map_err(|_| PrefixEventError::BadCount(count));
        let prefix = source.parse(&prefix_hash)?;
        Ok(Self {
            kind: kind.into(),
            prefix,
            token_count: token_count.map(count).transpose()?,
        })
    }
}

impl From<ContinuumKind> for EventKind {
    fn from(kind: ContinuumKind) -> Self {
        match kind {
            ContinuumKind::Created => Self::Created,
            ContinuumKind::Evicted => Self::Evicted,
            ContinuumKind::Offloaded => Self::Offloaded,
            ContinuumKind::Reloaded => Self::Reloaded,
            ContinuumKind::Purged => Self::Purged,
        }
    }
}
