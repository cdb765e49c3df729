//! Inputs and actions of the state machine.

use std::sync::Arc;

use kv_blocks::{IndexUpdate, StreamPosition};

use crate::standard::StreamOutput;

/// Format of a stream's payloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Codec {
    /// [`crate::vllm`], also for compatible publishers.
    #[default]
    Vllm,
    /// [`crate::vllm`] or envelopes of [`crate::standard`], distinguished for each payload.
    VllmOrStandard,
    /// [`crate::standard`], with blocks that engines have named before: the Mooncake store's
    /// master. Events with dimensions of their own are envelopes.
    Mooncake,
}

/// Settings of one stream.
#[derive(Clone, Debug)]
pub struct SequencerSettings {
    /// Format of the payloads.
    pub codec: Codec,
    /// Whether the publisher has a replay endpoint.
    pub replay: bool,
    /// Most live batches queued during a replay; when full, the oldest is dropped, counted, and
    /// requested again.
    pub max_pending_batches: usize,
    /// Most bytes of live batches queued during a replay; when full, the oldest is dropped,
    /// counted, and requested again.
    pub max_pending_bytes: usize,
    /// The position of blocks that the index has from an earlier process, if any: they are kept
    /// only if a replay proves that the stream continues there. See [`Action::Confirm`].
    pub resume: Option<StreamPosition>,
}

impl Default for SequencerSettings {
    fn default() -> Self {
        Self {
            codec: Codec::Vllm,
            replay: false,
            max_pending_batches: 16_384,
            max_pending_bytes: 64 << 20,
            resume: None,
        }
    }
}

/// State of a stream.
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
    /// Following, but a replay failed: the known blocks may be incomplete or outdated.
    Stale,
    /// Not trusted. The sequencer never enters this state by itself.
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

    /// Returns the state that needs the operator's attention more.
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

    /// Returns the name used in replies and metrics.
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

/// An event of the stream.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// The live socket is connected. Reported before any message of the connection.
    Connected,
    /// The live socket lost its connection. Ends a running replay.
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
    /// The running replay failed or broke off: refused, silent, broken answer.
    ReplayFailed,
    /// A resync: everything known of this target is fetched anew, as far as the publisher still has
    /// it.
    Resync,
    /// Time passed. Once a second is enough.
    Tick,
}

/// An action for the caller.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Apply to the index, and pass the result to [`Sequencer::record`](super::Sequencer::record).
    Apply(IndexUpdate),
    /// Like `Apply`, for blocks on a medium with an unknown name.
    ApplyLabelled {
        /// The update, in the disk tier.
        update: IndexUpdate,
        /// The medium, as sent.
        label: Arc<str>,
    },
    /// Convert and apply what a stream of envelopes delivered. The outcome of an event goes to
    /// [`Sequencer::record`](super::Sequencer::record) or
    /// [`Sequencer::reject`](super::Sequencer::reject).
    Envelope(StreamOutput),
    /// Drop all known blocks of this target.
    Clear,
    /// Removals may have been lost here, in batches that are lost for good or cannot be decoded; or
    /// batches applied before are being repeated. Blocks that the target holds more than once are
    /// no longer trusted.
    Loss,
    /// The target's blocks from an earlier process are proven: the publisher still has the batch at
    /// [`SequencerSettings::resume`], and the batches behind it are applied. They may be credited
    /// from now on. Without a proof, [`Action::Clear`] comes instead.
    Confirm,
    /// Request a replay, over a connection of its own, and feed its answers. The rest of an earlier
    /// answer is dropped with its connection: none of it may be fed any more.
    RequestReplay {
        /// The first number requested.
        from: u64,
    },
}
