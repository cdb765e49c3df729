//! A queued request: a job that outlives its caller, and its place.

use std::{mem::size_of, sync::Arc};

use kv_blocks::PromptBlocks;

use super::{CandidateSet, OrderKey, OrderTerms};
use crate::{
    Affinity, Job, NoStopwatch, Overrides, Pin, Policy, PrefillPool, PrefixHolder, ReplyMode,
    ReservationId, SessionKeys, Ticket,
};

/// Bytes of each request besides its own allocations: its entries in the queue's maps.
const ROWS: usize = 4 * (size_of::<OrderTerms>() + size_of::<Ticket>());
/// Bytes of a session's keys; their texts are bounded at creation.
const SESSION_BYTES: usize = 1024;
/// Bytes of a prompt token: the token, and its share of the hashes of its block.
const TOKEN_BYTES: u64 = 5;

/// A queue's number, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct QueueId(pub(super) u64);

/// A queued request.
#[derive(Debug)]
pub(crate) struct QueuedRequest {
    pub(crate) terms: OrderTerms,
    /// Its place while it has slack.
    pub(crate) key: OrderKey,
    pub(crate) bytes: u64,
    pub(crate) queue: QueueId,
    pub(crate) job: Arc<QueuedJob>,
    /// Whether a target's backlog delays it.
    pub(crate) minds_backlog: bool,
}

/// A job without a caller.
#[derive(Debug)]
pub(crate) struct QueuedJob {
    pub(crate) policy: Option<Policy>,
    pub(crate) pin: Option<Pin>,
    blocks: Option<Arc<PromptBlocks>>,
    affinity: Affinity,
    session: Option<Arc<SessionKeys>>,
    prefix_holders: Option<Vec<PrefixHolder>>,
    prompt_tokens: u32,
    expected_output_tokens: Option<u32>,
    answer: ReplyMode,
    pub(crate) busy_threshold: Option<f64>,
    pub(crate) set: Arc<CandidateSet>,
    prefill: Option<QueuedPool>,
    random: u64,
    overrides: Overrides,
}

/// The prefill pool of a job without a caller.
#[derive(Debug)]
struct QueuedPool {
    set: Arc<CandidateSet>,
    policy: Option<Policy>,
    uncached_token_threshold: u32,
}

impl QueuedJob {
    /// Creates a job; `set` and `pool` are the candidate lists of the job and of its prefill pool.
    pub(crate) fn new(
        job: &Job<'_>,
        set: Arc<CandidateSet>,
        pool: Option<Arc<CandidateSet>>,
    ) -> Self {
        Self {
            policy: job.policy,
            pin: job.pin,
            blocks: job.blocks.cloned(),
            affinity: job.affinity,
            session: job.session.cloned(),
            prefix_holders: job.prefix_holders.map(<[_]>::to_vec),
            prompt_tokens: job.prompt_tokens,
            expected_output_tokens: job.expected_output_tokens,
            answer: job.answer,
            busy_threshold: job.busy_threshold,
            set,
            prefill: job.prefill.zip(pool).map(|(prefill, set)| QueuedPool {
                set,
                policy: prefill.policy,
                uncached_token_threshold: prefill.uncached_token_threshold,
            }),
            random: job.random,
            overrides: job.overrides,
        }
    }

    /// Returns the original job, without a wait budget.
    pub(crate) fn job(&self) -> Job<'_> {
        Job {
            policy: self.policy,
            pin: self.pin,
            blocks: self.blocks.as_ref(),
            affinity: self.affinity,
            session: self.session.as_ref(),
            prefix_holders: self.prefix_holders.as_deref(),
            prompt_tokens: self.prompt_tokens,
            expected_output_tokens: self.expected_output_tokens,
            answer: self.answer,
            wait_budget: None,
            busy_threshold: self.busy_threshold,
            candidates: &self.set.candidates,
            excluded: &self.set.excluded,
            prefill: self.prefill.as_ref().map(|pool| PrefillPool {
                candidates: &pool.set.candidates,
                excluded: &pool.set.excluded,
                policy: pool.policy,
                uncached_token_threshold: pool.uncached_token_threshold,
            }),
            random: self.random,
            overrides: self.overrides,
            stopwatch: &NoStopwatch,
        }
    }

    /// Returns its candidate lists.
    pub(crate) fn sets(&self) -> impl Iterator<Item = &Arc<CandidateSet>> {
        [Some(&self.set), self.prefill.as_ref().map(|pool| &pool.set)]
            .into_iter()
            .flatten()
    }

    /// Returns the bytes of everything but the lists, which may be shared.
    pub(crate) fn own_bytes(&self) -> u64 {
        let holders = self
            .prefix_holders
            .as_ref()
            .map_or(0, |holders| holders.capacity() * size_of::<PrefixHolder>());
        let session = if self.session.is_some() {
            SESSION_BYTES
        } else {
            0
        };
        let fixed =
            size_of::<QueuedRequest>() + size_of::<Self>() + size_of::<ReservationId>() + ROWS;
        let tokens = self
            .blocks
            .as_ref()
            .map_or(0, |blocks| u64::from(blocks.token_count()));
        (fixed + holders + session) as u64 + TOKEN_BYTES * tokens
    }
}
