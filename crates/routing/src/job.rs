//! The input of a decision: one request.
//!
//! Affinity keys are hashes: this module reads no headers or bodies.

use std::{
    fmt,
    sync::{Arc, LazyLock},
    time::Duration,
};

use kv_blocks::{PromptBlocks, WorkerId};

use crate::{
    Candidate, ExcludedTarget, MediumWeights, Pin, Policy, PrefixHolder, SessionKeys, WaitBudget,
};

/// A request that needs a target.
///
/// A field that does not matter keeps its default:
///
/// ```
/// use routing::{Job, JobPrompt, TargetPool};
///
/// let job = Job {
///     targets: TargetPool { candidates: &[], ..TargetPool::default() },
///     prompt: JobPrompt { tokens: 100, ..JobPrompt::default() },
///     random: 7,
///     ..Job::default()
/// };
/// assert!(job.pin.is_none());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The targets that may serve it; where another pool computes the prompt, those that generate.
    pub targets: TargetPool<'a>,
    /// The pool that may compute the prompt; `None`: the decode worker computes it too.
    pub prefill: Option<PrefillPool<'a>>,
    /// The worker that the request names: every other candidate is excluded as `not_pinned`.
    pub pin: Option<Pin>,
    /// Its prompt.
    pub prompt: JobPrompt<'a>,
    /// What it shares with other requests.
    pub affinity: JobAffinity<'a>,
    /// Its reply, as far as the caller knows it.
    pub reply: ExpectedReply,
    /// The request's changes of the configuration.
    pub overrides: Overrides,
    /// The share of its cache in use, 0 to 1, above which a target takes no new request; `None`: no
    /// limit.
    pub busy_threshold: Option<f64>,
    /// Whether and how long it may wait in the queue; `None`: it gets an answer at once.
    pub wait_budget: Option<WaitBudget>,
    /// Time until its caller gives it up; `None`: not known. A request that would be let in too late for it
    /// by `routing.admission` is refused at once.
    pub time_left: Option<Duration>,
    /// Whose request it is; `None`: of the one tenant without a name.
    pub tenant: Option<JobTenant<'a>>,
    /// A random number for this request; breaks ties between equal costs.
    pub random: u64,
    /// Measures the parts of the decision.
    pub stopwatch: &'a dyn Stopwatch,
}

impl Default for Job<'_> {
    /// Returns a job without candidates, with an unknown prompt, that does not wait.
    fn default() -> Self {
        Self {
            targets: TargetPool::default(),
            prefill: None,
            pin: None,
            prompt: JobPrompt::default(),
            affinity: JobAffinity::default(),
            reply: ExpectedReply::default(),
            overrides: Overrides::default(),
            busy_threshold: None,
            wait_budget: None,
            time_left: None,
            tenant: None,
            random: 0,
            stopwatch: &NoStopwatch,
        }
    }
}

/// The tenant of a request, which shares the fleet with the others by weight while they wait.
#[derive(Clone, Copy, Debug)]
pub struct JobTenant<'a> {
    /// Its identity.
    pub name: &'a Arc<str>,
    /// Its share, compared with the weights of the others; above 0.
    pub weight: f64,
    /// The tenant's program that sends it: requests of one program wait for each other's work.
    /// `None`: it is alone.
    pub program: Option<u64>,
    /// Most requests of the tenant in the queue; `None`: no limit of its own.
    pub most_queued: Option<usize>,
    /// Whether no other tenant uses the queue. If one may, the tenant's requests have at most half of
    /// the queue's bytes.
    pub is_alone: bool,
}

/// The name of the tenant of jobs without one.
static NO_NAME: LazyLock<Arc<str>> = LazyLock::new(|| Arc::from(""));

impl JobTenant<'_> {
    /// Returns the most bytes of the tenant in a queue of `max_bytes`; `None`: no limit of its own.
    pub(crate) fn most_bytes(&self, max_bytes: u64) -> Option<u64> {
        (!self.is_alone).then_some(max_bytes / 2)
    }

    /// Returns the weight within its range; 1 if it is not a number.
    pub(crate) fn sane_weight(&self) -> f64 {
        if self.weight.is_finite() {
            self.weight.clamp(1e-3, 1e3)
        } else {
            1.0
        }
    }
}

impl<'a> Job<'a> {
    /// Returns the job's tenant, which is one without a name if the job has none.
    pub(crate) fn tenant(&self) -> JobTenant<'a> {
        self.tenant.unwrap_or(JobTenant {
            name: &NO_NAME,
            weight: 1.0,
            program: None,
            most_queued: None,
            is_alone: true,
        })
    }
}

/// Targets that serve the model of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct TargetPool<'a> {
    /// Targets that may take the request now, in any order.
    pub candidates: &'a [Candidate],
    /// Targets that the caller has already ruled out, for the receipt.
    pub excluded: &'a [ExcludedTarget],
    /// The policy among them, named by the request or by its model; `None` selects the configured
    /// one.
    pub policy: Option<Policy>,
}

/// Workers that compute prompts for others.
#[derive(Clone, Copy, Debug)]
pub struct PrefillPool<'a> {
    /// The targets of the pool; without candidates the decode worker serves the whole request.
    pub targets: TargetPool<'a>,
    /// Tokens: a decode worker that lacks at most this much of the prompt computes it itself. 0 =
    /// off.
    pub uncached_token_threshold: u32,
}

/// The prompt of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct JobPrompt<'a> {
    /// The prompt, cut into blocks on demand; `None` when it is unknown.
    pub blocks: Option<&'a Arc<PromptBlocks>>,
    /// Its length in tokens; an estimate when the blocks are over text.
    pub tokens: u32,
    /// What is known of it.
    pub knowledge: PromptKnowledge,
}

/// What is known of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromptKnowledge {
    /// Its blocks, and so the part that a target holds.
    #[default]
    Blocks,
    /// About its length: the speed of a worker is not learned from it.
    Length,
}

/// What a request shares with others that should go to the same target.
#[derive(Clone, Copy, Debug, Default)]
pub struct JobAffinity<'a> {
    /// Keys of the policies that hash, and the hint of the prefix memory.
    pub keys: Affinity,
    /// The keys of its session; `None`: it has none. See [`crate::Router::session_mode`].
    pub session: Option<&'a Arc<SessionKeys>>,
    /// The holders of the prompt's beginning, from streams of whole prefixes; `None`: there are no
    /// such streams.
    pub prefix_holders: Option<&'a [PrefixHolder]>,
}

/// Keys by which the hashing policies route a request. Equal keys go to one target.
///
/// ```
/// use routing::Affinity;
///
/// let nothing_known = Affinity::default();
/// let chat = Affinity { session_key: Some(0x5eed), ..nothing_known };
/// assert_eq!((chat.prefix_key, chat.session_key), (None, Some(0x5eed)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Affinity {
    /// SHA-256 over the model and the beginning of the prompt: its system text, else its first
    /// message. `None` when the request has neither.
    pub prefix_key: Option<[u8; 32]>,
    /// Hash of the session's identity: a header, a field of the body, as a last resort the body
    /// itself.
    pub session_key: Option<u64>,
    /// The worker that served a prompt with this beginning, from the prefix memory. A hint for
    /// cache-based policies where no target is known to hold any of the prompt.
    pub served_by: Option<WorkerId>,
}

impl Affinity {
    /// Returns the prefix key as a number: its first eight bytes, most significant first.
    pub(crate) fn prefix(&self) -> Option<u64> {
        self.prefix_key
            .map(|[a, b, c, d, e, f, g, h, ..]| u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }

    /// Returns the most specific key: the session's, else the prefix's.
    pub(crate) fn session(&self) -> Option<u64> {
        self.session_key.or_else(|| self.prefix())
    }
}

/// A reply before it is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpectedReply {
    /// How it comes back.
    pub mode: ReplyMode,
    /// Upper limit of its length in tokens, if the caller knows it; typical lengths are learned.
    pub max_tokens: Option<u32>,
    /// When it should come.
    pub slo: JobSlo,
}

/// Latency targets of a reply, its service level objectives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SloTargets {
    /// Time from the request's arrival to the first token; `None`: no target.
    pub ttft: Option<Duration>,
    /// Mean time between the later tokens; `None`: no target.
    pub tpot: Option<Duration>,
}

impl SloTargets {
    /// Returns these targets, and for those that are missing the usual ones.
    #[must_use]
    pub fn or(self, usual: Self) -> Self {
        Self {
            ttft: self.ttft.or(usual.ttft),
            tpot: self.tpot.or(usual.tpot),
        }
    }
}

/// The latency targets of a job, and its past.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobSlo {
    /// Its own targets; those of `routing.slo` take the place of missing ones.
    pub targets: SloTargets,
    /// Time since the request arrived.
    pub spent: Duration,
    /// Whether it is not refused for its targets: it was let in before, or has no first token.
    pub is_admitted: bool,
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

/// The id of a load counted on a target: from 1, ascending, never reused in a router's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReservationId(pub u64);

/// The id of a queued request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_takes_precedence_over_a_prefix_of_which_eight_bytes_count() {
        let mut digest = [0xff; 32];
        digest[..8].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let prefix = Affinity {
            prefix_key: Some(digest),
            ..Affinity::default()
        };
        assert_eq!(prefix.session(), Some(0x0102_0304_0506_0708));
        assert_eq!(
            Affinity {
                session_key: Some(9),
                ..prefix
            }
            .session(),
            Some(9)
        );
        assert_eq!(Affinity::default().session(), None);
    }
}
