//! The input of a decision: one request.

use std::{fmt, sync::Arc};

use kv_blocks::PromptBlocks;

use crate::{
    Affinity, Candidate, ExcludedTarget, MediumWeights, Pin, Policy, PrefillPool, PrefixHolder,
    SessionKeys, WaitBudget,
};

/// A request that needs a target.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The policy that the request names; `None` selects the configured one.
    pub policy: Option<Policy>,
    /// The worker that the request names: every other candidate is excluded as `not_pinned`.
    pub pin: Option<Pin>,
    /// The prompt, cut into blocks on demand; `None` when it is unknown.
    pub blocks: Option<&'a Arc<PromptBlocks>>,
    /// Keys that the request shares with others that should go to the same target.
    pub affinity: Affinity,
    /// The keys of its session; `None`: it has none. See [`crate::Router::session_mode`].
    pub session: Option<&'a Arc<SessionKeys>>,
    /// The holders of the prompt's beginning, from streams of whole prefixes; `None`: there are no
    /// such streams.
    pub prefix_holders: Option<&'a [PrefixHolder]>,
    /// Prompt length in tokens; an estimate when the blocks are over text.
    pub prompt_tokens: u32,
    /// Upper limit of the reply's length in tokens, if the caller knows it; typical lengths are
    /// learned.
    pub expected_output_tokens: Option<u32>,
    /// How the reply comes back.
    pub answer: ReplyMode,
    /// Whether and how long it may wait in the queue; `None`: it gets an answer at once.
    pub wait_budget: Option<WaitBudget>,
    /// The share of its cache in use, 0 to 1, above which a target takes no new request; `None`: no
    /// limit.
    pub busy_threshold: Option<f64>,
    /// Targets that serve the model and may take the request now, in any order.
    pub candidates: &'a [Candidate],
    /// Targets the caller has already ruled out, for the receipt.
    pub excluded: &'a [ExcludedTarget],
    /// The pool that may compute the prompt; `None`: the decode worker computes it too.
    pub prefill: Option<PrefillPool<'a>>,
    /// A random number for this request; breaks ties between equal costs.
    pub random: u64,
    /// The request's changes of the configuration.
    pub overrides: Overrides,
    /// Measures the parts of the decision.
    pub stopwatch: &'a dyn Stopwatch,
}

/// How the reply comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReplyMode {
    /// Token by token: `first_token` will be called when the prompt is computed.
    #[default]
    Streamed,
    /// Token by token to another process, which sends the request and calls `first_token`. The time
    /// between the decision and the sending is unknown, so the engine's speed is not learned from
    /// it.
    Elsewhere,
    /// In one piece at the end. The end of the prefill is not reported, so its estimated time is
    /// used.
    Whole,
}

/// Changes of the configured routing by one request, or by its model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Overrides {
    /// Weight of cached prefixes, 0 to 100; 0 balances load alone.
    pub overlap_weight: Option<f64>,
    /// 0 takes the lowest cost, above 0 draws by cost.
    pub temperature: Option<f64>,
    /// A higher priority is released first from the queue.
    pub priority: i32,
    /// Value of a cached block by its medium.
    pub medium_weights: Option<MediumWeights>,
}

/// Measures the parts of a decision for the receipt; the pure core has no clock of its own.
pub trait Stopwatch {
    /// Returns the microseconds since some fixed point.
    fn elapsed_us(&self) -> f64;
}

impl fmt::Debug for dyn Stopwatch + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stopwatch")
    }
}

/// A stopwatch that does not run, for callers that do not measure.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoStopwatch;

impl Stopwatch for NoStopwatch {
    fn elapsed_us(&self) -> f64 {
        0.0
    }
}
