//! Section `prefix_routing`: the hash ring.

use settings::kinds::{float, int};

settings::section! {
    /// Section `prefix_routing`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct PrefixRoutingSection {
        /// Requests with the same beginning go to the same worker (policy `continuum`), unless
        /// `routing.policy` says otherwise.
        enabled: bool = "false", live, simulated;
        /// Bytes of the system prompt, or else of the first message, that two requests must have in
        /// common.
        max_prefix_length: usize = "1024" in int(1, 1 << 20), restart;
        /// A worker gets no more than its share of requests in flight times 1 + this; beyond it the
        /// next on the ring does.
        load_factor_epsilon: f64 = "0.25" in float(0.01, 10.0), live, simulated;
        /// Points of each worker on the ring.
        virtual_nodes: u32 = "150" in int(1, 10_000), live, simulated;
        /// Mark the system prompts of messages as cacheable, for workers that take messages
        /// themselves.
        anthropic_cache_control_injection: bool = "false", live;
        /// Take out the line that Claude Code puts before its system prompt and changes with every
        /// request: prompts of one kind begin alike then, in engines too.
        strip_volatile_prefix: bool = "false", live;
    }
}
