//! Section `decisions`: receipts of decisions.

use std::{path::PathBuf, time::Duration};

use settings::kinds::{PAUSE, int, size};

settings::section! {
    /// Section `decisions`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct DecisionsSection {
        /// Most receipts kept.
        ring_entries: usize = "1000" in int(1, 10_000_000), restart;
        /// Most memory for receipts.
        ring_bytes: usize = "16MiB" in size(64 << 10, 64 << 30), restart;
        /// Most candidates kept per receipt.
        candidates: usize = "16" in int(2, 1_024), restart;
        /// The decision log (alias: top-level `decision_log`).
        log: Option<DecisionLogSection>, restart;
    }
}

settings::section! {
    /// Section `decisions.log`: the decision log, if there is one.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub optional struct DecisionLogSection {
        /// File that gets one receipt per line when its request is over; unset: no log.
        path: PathBuf = "~", restart;
        /// Time between writes, less where much is waiting.
        interval: Duration = "10s" in PAUSE, restart;
        /// Write the hashes of the prompt's blocks too, which `replay` needs.
        chains: bool = "false", restart;
        /// Write the prompt's text too, as `request_text`.
        include_request_text: bool = "false", restart;
    }
}
