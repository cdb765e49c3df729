//! One event about a prefix, sent by an engine or by a publisher beside it.

use kv_events::continuum::{self, ContinuumError, ContinuumEvent, ContinuumKind};

use crate::{PrefixHash, PrefixHashError, PrefixHashKind};

/// Kind of a change to a prefix on a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// The prefix is in the accelerator's memory now.
    Created,
    /// The prefix left the accelerator's memory; the event does not name the destination.
    Evicted,
    /// The prefix was moved to external storage.
    Offloaded,
    /// The prefix came back from external storage.
    Reloaded,
    /// The prefix is in no tier any more.
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

    /// Returns the value of the label `type` in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Evicted => "evicted",
            Self::Offloaded => "offloaded",
            Self::Reloaded => "reloaded",
            Self::Purged => "purged",
        }
    }

    /// Returns the position in [`EventKind::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixEvent {
    /// Kind of the change.
    pub kind: EventKind,
    /// The prefix.
    pub prefix: PrefixHash,
    /// Tokens cached for the prefix on that backend, if the event has the number.
    pub token_count: Option<u32>,
}

/// Why a message is not a valid event. It costs only itself: the stream goes on.
#[derive(Debug, thiserror::Error)]
pub enum PrefixEventError {
    /// The message is not an event.
    #[error(transparent)]
    NoEvent(#[from] ContinuumError),
    /// `prefix_hash` is not of the kind that the source sends.
    #[error(transparent)]
    BadPrefix(#[from] PrefixHashError),
    /// `token_count` is more than a prompt can have.
    #[error("token_count is {0}: expected a whole number from 0 to 4294967295, or none")]
    BadCount(u64),
}

impl PrefixEvent {
    /// Decodes one event of a stream. `name` is the `event:` field of the stream and takes
    /// precedence over `"event"` in the data; it is `None` or empty if the stream has none. Further
    /// fields are ignored.
    ///
    /// The caller bounds the length of `data`; the decoded event does not exceed it.
    ///
    /// ```
    /// use prefix_view::{EventKind, PrefixEvent, PrefixHashKind};
    ///
    /// let data = br#"{"event": "cache_created", "prefix_hash": "00000000000000ff",
    ///     "token_count": 64}"#;
    /// let event = PrefixEvent::decode(Some("cache_evicted"), data, PrefixHashKind::SequenceHash)?;
    /// assert_eq!((event.kind, event.token_count), (EventKind::Evicted, Some(64)));
    /// # Ok::<(), prefix_view::PrefixEventError>(())
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
