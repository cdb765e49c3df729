//! Totals of a stream's life.

/// Totals of a stream's life. Every event ends as applied, without effect, of another window,
/// unusable or malformed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrtCounts {
    /// Events read, malformed ones included.
    pub events: u64,
    /// Events that became updates, at least in part.
    pub applied: u64,
    /// Events without meaning for an index: pools created, priorities changed, kinds that this
    /// release does not know, and stored events without one full, plain block.
    pub no_effect: u64,
    /// Events of another attention window than the largest.
    pub other_window: u64,
    /// Blocks that depend on more than their tokens: images, prompt tuning. Their descendants are
    /// left out too.
    pub not_plain_blocks: u64,
    /// Trailing blocks that are not full.
    pub partial_blocks: u64,
    /// Stored events with blocks of another size or with one block twice, and events of too many
    /// ranks.
    pub unusable: u64,
    /// Events that could not be decoded.
    pub malformed: u64,
    /// Losses of events because the engine's buffer was full, or another client took them.
    pub overflows: u64,
    /// Detected restarts of the engine.
    pub restarts: u64,
}
