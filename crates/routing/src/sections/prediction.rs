//! Section `kv_events.prediction`: expected cache content of targets without events.

use std::time::Duration;

use settings::kinds::int;

settings::section! {
    /// Section `kv_events.prediction`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct PredictionSection {
        /// Lifetime of a predicted block.
        ttl: Duration = "120s", restart, simulated;
        /// Maximum number of predicted blocks.
        max_blocks: u64 = "1048576" in int(1, 1 << 40), restart;
        /// Share of `max_blocks` that remains when the oldest predicted blocks are removed.
        prune_target_ratio: f64 = "0.8", restart;
    }
}
