//! Section `routing`: how a worker is chosen.

use std::time::Duration;

/// Section `routing`.
#[derive(Clone, Debug)]
pub struct Routing {
    /// How a worker is chosen when the request does not say: one of the policies' names as the reference page has them.
    pub policy: &'static str,
    /// The same among workers that compute prompts for others; `None` = `policy`.
    pub prefill_policy: Option<&'static str>,
    /// The same among workers that generate what others computed the prompt of; `None` = `policy`.
    pub decode_policy: Option<&'static str>,
    /// Seed of the hash rings.
    pub hash_seed_of_rings: u64,
    /// Weight of cached prefixes; 0 balances load alone.
    pub overlap_weight: f64,
    /// 0 = always the best; above, how evenly choices are spread.
    pub temperature: f64,
    /// A worker whose KV cache is fuller than this share gets nothing; `None` = off.
    pub busy_threshold: Option<f64>,
    /// Whether blocks in use by running requests count as load.
    pub track_active_blocks: bool,
    /// Longest time spent on tokens for one decision; beyond it the text prefix is used.
    pub tokenize_budget: Duration,
    /// A reservation without a call is given back after this.
    pub reservation_ttl: Duration,
    /// Section `routing.session`.
    pub session: Session,
    /// Whether a decision's own blocks count as warm at once.
    pub speculative: bool,
    /// How long they do, unconfirmed.
    pub speculative_ttl: Duration,
}

/// Section `routing.session`: which requests belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// How much that counts.
    pub mode: SessionMode,
    /// Headers that name a session, in lower case; the first that a request has counts.
    pub headers: Vec<String>,
}

/// How much it counts that requests belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionMode {
    /// A little, under `warm`.
    Soft,
    /// More than the policy.
    Hard,
    /// Not at all.
    Off,
}

/// Section `prefix_routing`: the ring.
#[derive(Clone, Debug, PartialEq)]
pub struct PrefixRouting {
    /// Whether requests go by it where no policy is set.
    pub enabled: bool,
    /// Bytes of a prompt's beginning that count.
    pub max_prefix_length: usize,
    /// How far above its share of requests in flight a worker may be.
    pub load_factor_epsilon: f64,
    /// Points of each worker.
    pub virtual_nodes: u32,
}
