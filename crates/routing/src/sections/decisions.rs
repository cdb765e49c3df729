//! Section `decisions`: receipts of decisions.

use std::{path::PathBuf, time::Duration};

use settings::kinds::{PAUSE, int, size};

settings::section! {
    /// Section `decisions`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct DecisionsSection {
        /// Maximum number of receipts in memory.
        ring_entries: usize = "1000" in int(1, 10_000_000), restart;
        /// Maximum memory of these receipts.
        ring_bytes: usize = "16MiB" in size(64 << 10, 64 << 30), restart;
        /// Maximum number of candidates in a receipt.
        candidates: usize = "16" in int(2, 1_024), restart;
        /// Decision log (alias: top-level `decision_log`).
        log: Option<DecisionLogSection>, restart;
    }
}

settings::section! {
    /// Section `decisions.log`: the decision log, if there is one.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub optional struct DecisionLogSection {
        /// File that gets one line, the receipt, for each finished request. Unset: no log.
        path: PathBuf = "~", restart;
        /// Interval between writes; shorter if many lines wait.
        interval: Duration = "10s" in PAUSE, restart;
        /// Include the block hashes of prompts, which `replay` needs.
        chains: bool = "false", restart;
        /// Include the text of prompts, as `request_text`.
        include_request_text: bool = "false", restart;
    }
}
