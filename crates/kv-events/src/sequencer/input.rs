//! What goes into the state machine and what comes out.

use kv_blocks::IndexUpdate;

/// What the payloads of a stream are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Codec {
    /// [`crate::vllm`], and whoever speaks like it.
    #[default]
    Vllm,
    /// [`crate::standard`], with blocks that engines have named before: the Mooncake store's master.
    Mooncake,
}

/// How a stream is followed.
#[derive(Clone, Debug)]
pub struct SequencerSettings {
    /// What its payloads are.
    pub codec: Codec,
    /// Whether the publisher has a replay endpoint.
    pub replay: bool,
    /// Live batches kept while a replay runs; when full the oldest is dropped, counted, and asked for again.
    pub max_pending_batches: usize,
    /// Bytes of live batches kept while a replay runs; when full the oldest is dropped, counted, and asked for again.
    pub max_pending_bytes: usize,
}

impl Default for SequencerSettings {
    fn default() -> Self {
        Self {
            codec: Codec::Vllm,
            replay: false,
            max_pending_batches: 16_384,
            max_pending_bytes: 64 << 20,
        }
    }
}

/// Where a stream stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamState {
    /// No connection.
    Connecting,
    /// Connected; history is being fetched.
    Replaying,
    /// Up to date.
    Live,
    /// Batches are missing and being fetched.
    Gapped,
    /// Following, but a replay could not be had: what is known may be incomplete or outdated.
    Stale,
    /// Not trusted. The sequencer does not come to this on its own.
    Quarantined,
}

impl StreamState {
    /// All states.
    pub const ALL: [Self; 6] = [
        Self::Connecting,
        Self::Replaying,
        Self::Live,
        Self::Gapped,
        Self::Stale,
        Self::Quarantined,
    ];

    /// Of two streams' states the one that needs the operator's eye more.
    #[must_use]
    pub fn worse(self, other: Self) -> Self {
        let rank = |state| match state {
            Self::Live => 0,
            Self::Stale => 1,
            Self::Gapped => 2,
            Self::Replaying => 3,
            Self::Connecting => 4,
            Self::Quarantined => 5,
        };
        if rank(other) > rank(self) {
            other
        } else {
            self
        }
    }

    /// The name used in replies and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Replaying => "replaying",
            Self::Live => "live",
            Self::Gapped => "gapped",
            Self::Stale => "stale",
            Self::Quarantined => "quarantined",
        }
    }
}

/// Something that happened to the stream.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// The live socket is connected. Reported before anything that came over the connection.
    Connected,
    /// The live socket lost its connection. A replay that runs is given up.
    Disconnected,
    /// A live batch.
    Live {
        /// Its number, if the publisher numbers them.
        seq: Option<u64>,
        /// The encoded batch.
        payload: &'a [u8],
    },
    /// A batch of the running replay.
    ReplayBatch {
        /// Its number.
        seq: u64,
        /// The encoded batch.
        payload: &'a [u8],
    },
    /// The end marker of the running replay.
    ReplayEnd,
    /// The running replay could not be had, or not to its end: refused, silent, broken answer.
    ReplayFailed,
    /// Everything known of this target is to be fetched anew, as far as the publisher still has it.
    Resync,
    /// Time passed. Once a second is often enough.
    Tick,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Apply to the index, and tell [`Sequencer::record`](super::Sequencer::record) what that did.
    Apply(IndexUpdate),
    /// Drop everything known of this target.
    Clear,
    /// Removals may have been lost here, in batches that are gone for good or cannot be read; or what was applied is being
    /// repeated. What a target holds more than once is no longer to be counted on.
    Loss,
    /// Ask the replay endpoint, over a connection of its own, and feed its answers. What is left of an earlier answer is
    /// dropped with its connection: nothing of it may be fed any more.
    RequestReplay {
        /// The first number wanted.
        from: u64,
    },
}
