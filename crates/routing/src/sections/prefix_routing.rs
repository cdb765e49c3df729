//! Section `prefix_routing`: the hash ring.

use settings::kinds::{float, int};

settings::section! {
    /// Section `prefix_routing`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct PrefixRoutingSection {
        /// Send requests with the same beginning to the same worker (policy `continuum`), unless
        /// `routing.policy` is set.
        enabled: bool = "false", live, simulated;
        /// Length of the beginning, in bytes of the system prompt, or of the first message if there
        /// is none.
        max_prefix_length: usize = "1024" in int(1, 1 << 20), restart;
        /// Largest excess of a worker's requests in flight over its share, as a fraction; beyond it
        /// the next worker on the ring is used.
        load_factor_epsilon: f64 = "0.25" in float(0.01, 10.0), live, simulated;
        /// Points of each worker on the ring.
        virtual_nodes: u32 = "150" in int(1, 10_000), live, simulated;
        /// Mark the system prompts of messages as cacheable, for workers with a native messages
        /// API.
        anthropic_cache_control_injection: bool = "false", live;
        /// Remove the line before the system prompt that Claude Code changes with every request, so
        /// that such prompts have a common prefix, also in the engines.
        strip_volatile_prefix: bool = "false", live;
    }
}
