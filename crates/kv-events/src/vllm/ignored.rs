//! Events without meaning for the index.

/// An event without meaning for the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event ignored: {}", .reason.as_str())]
pub struct IgnoredEvent {
    /// The reason.
    pub reason: IgnoredReason,
}

/// Why an event was ignored; a closed set, used as a metric's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IgnoredReason {
    /// A tag that this release does not know.
    UnknownTag,
    /// No tokens, on the device: the content of the blocks is unknown.
    NoTokens,
    /// No blocks.
    NoBlocks,
    /// A KV-cache group that does not hold every token: sliding windows, recurrent state.
    NotFullAttention,
    /// More tokens than the blocks hold: some blocks were skipped, and the event does not name
    /// them.
    SkippedBlocks,
    /// The first block depends on embeddings, or on multimodal items whose places are not given.
    Multimodal,
    /// A block that is its own parent or occurs twice.
    SelfReference,
}

impl IgnoredReason {
    /// All reasons.
    pub const ALL: [Self; 7] = [
        Self::UnknownTag,
        Self::NoTokens,
        Self::NoBlocks,
        Self::NotFullAttention,
        Self::SkippedBlocks,
        Self::Multimodal,
        Self::SelfReference,
    ];

    /// Returns the metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnknownTag => "unknown_tag",
            Self::NoTokens => "no_tokens",
            Self::NoBlocks => "no_blocks",
            Self::NotFullAttention => "not_full_attention",
            Self::SkippedBlocks => "skipped_blocks",
            Self::Multimodal => "multimodal",
            Self::SelfReference => "self_reference",
        }
    }

    /// Returns the position in [`IgnoredReason::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}

impl From<IgnoredReason> for IgnoredEvent {
    fn from(reason: IgnoredReason) -> Self {
        Self { reason }
    }
}
