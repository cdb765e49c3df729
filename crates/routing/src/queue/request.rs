//! A queued request: a job that outlives its caller, and its rank.

use std::{mem::size_of, sync::Arc};

use kv_blocks::{Moment, PromptBlocks};

use super::{CandidateSet, ExpectedTarget, OrderTerms, QueuedShare, RequestRank, RoomTerms};
use crate::{
    Affinity, ExpectedReply, Job, JobAffinity, JobPrompt, JobTenant, NoStopwatch, Overrides, Pin,
    Policy, PrefillPool, PrefixHolder, PromptKnowledge, ReservationId, SessionKeys, TargetPool,
    Ticket,
};

/// Bytes of each request besides its own allocations: its entries in the queue's maps.
const ROWS: usize = 4 * (size_of::<OrderTerms>() + size_of::<Ticket>());
/// Bytes of a session's keys; their texts are bounded at creation.
const SESSION_BYTES: usize = 1024;
/// Bytes of a prompt token: the token, and its share of the hashes of its block.
const TOKEN_BYTES: u64 = 5;

/// A queue's number, never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct QueueId(pub(super) u64);

/// A queued request.
#[derive(Debug)]
pub(crate) struct QueuedRequest {
    pub(crate) terms: OrderTerms,
    /// Its rank among the requests of its tenant while it has slack.
    pub(crate) rank: RequestRank,
    pub(crate) share: QueuedShare,
    pub(crate) bytes: u64,
    pub(crate) queue: QueueId,
    pub(crate) job: Arc<QueuedJob>,
    /// Whether a target's backlog delays it.
    pub(crate) minds_backlog: bool,
    /// Whether it waits for room.
    pub(crate) waits_for_room: bool,
    /// What it lacked when it was last tried without room; `None`: it never was.
    pub(crate) room: Option<Box<RoomTerms>>,
    /// Latest time at which it is bound once it waits for room.
    pub(crate) room_until: Moment,
    /// The target that it would get by its latest estimate; `None`: it has none, or waits for room.
    pub(crate) expected: Option<ExpectedTarget>,
}

/// A job without a caller.
#[derive(Debug)]
pub(crate) struct QueuedJob {
    pub(crate) pool: QueuedPool,
    prefill: Option<QueuedPrefill>,
    pin: Option<Pin>,
    prompt: QueuedPrompt,
    affinity: QueuedAffinity,
    reply: ExpectedReply,
    overrides: Overrides,
    pub(crate) busy_threshold: Option<f64>,
    tenant: Option<QueuedTenant>,
    random: u64,
}

/// The tenant of a job without a caller.
#[derive(Debug)]
struct QueuedTenant {
    name: Arc<str>,
    weight: f64,
    program: Option<u64>,
    most_queued: Option<usize>,
    is_alone: bool,
}

/// The targets of a job without a caller.
#[derive(Debug)]
pub(crate) struct QueuedPool {
    pub(crate) set: Arc<CandidateSet>,
    policy: Option<Policy>,
}

/// The prefill pool of a job without a caller.
#[derive(Debug)]
struct QueuedPrefill {
    pool: QueuedPool,
    uncached_token_threshold: u32,
}

/// The prompt of a job without a caller.
#[derive(Debug)]
struct QueuedPrompt {
    blocks: Option<Arc<PromptBlocks>>,
    tokens: u32,
    knowledge: PromptKnowledge,
}

/// The affinity of a job without a caller.
#[derive(Debug)]
struct QueuedAffinity {
    keys: Affinity,
    session: Option<Arc<SessionKeys>>,
    prefix_holders: Option<Vec<PrefixHolder>>,
}

impl QueuedPool {
    fn targets(&self) -> TargetPool<'_> {
        TargetPool {
            candidates: &self.set.candidates,
            excluded: &self.set.excluded,
            policy: self.policy,
        }
    }
}

impl QueuedJob {
    /// Creates a job; `set` and `prefill_set` are the candidate lists of the job and of its prefill
    /// pool.
    pub(crate) fn new(
        job: &Job<'_>,
        set: Arc<CandidateSet>,
        prefill_set: Option<Arc<CandidateSet>>,
    ) -> Self {
        let prefill = job.prefill.zip(prefill_set);
        Self {
            pool: QueuedPool {
                set,
                policy: job.targets.policy,
            },
            prefill: prefill.map(|(prefill, set)| QueuedPrefill {
                pool: QueuedPool {
                    set,
                    policy: prefill.targets.policy,
                },
                uncached_token_threshold: prefill.uncached_token_threshold,
            }),
            pin: job.pin,
            prompt: QueuedPrompt {
                blocks: job.prompt.blocks.cloned(),
                tokens: job.prompt.tokens,
                knowledge: job.prompt.knowledge,
            },
            affinity: QueuedAffinity {
                keys: job.affinity.keys,
                session: job.affinity.session.cloned(),
                prefix_holders: job.affinity.prefix_holders.map(<[_]>::to_vec),
            },
            reply: job.reply,
            overrides: job.overrides,
            busy_threshold: job.busy_threshold,
            tenant: job.tenant.map(|tenant| QueuedTenant {
                name: Arc::clone(tenant.name),
                weight: tenant.weight,
                program: tenant.program,
                most_queued: tenant.most_queued,
                is_alone: tenant.is_alone,
            }),
            random: job.random,
        }
    }

    /// Returns the original job, without a wait budget.
    pub(crate) fn job(&self) -> Job<'_> {
        Job {
            targets: self.pool.targets(),
            prefill: self.prefill.as_ref().map(|prefill| PrefillPool {
                targets: prefill.pool.targets(),
                uncached_token_threshold: prefill.uncached_token_threshold,
            }),
            pin: self.pin,
            prompt: JobPrompt {
                blocks: self.prompt.blocks.as_ref(),
                tokens: self.prompt.tokens,
                knowledge: self.prompt.knowledge,
            },
            affinity: JobAffinity {
                keys: self.affinity.keys,
                session: self.affinity.session.as_ref(),
                prefix_holders: self.affinity.prefix_holders.as_deref(),
            },
            reply: self.reply,
            overrides: self.overrides,
            busy_threshold: self.busy_threshold,
            wait_budget: None,
            time_left: None,
            tenant: self.tenant.as_ref().map(|tenant| JobTenant {
                name: &tenant.name,
                weight: tenant.weight,
                program: tenant.program,
                most_queued: tenant.most_queued,
                is_alone: tenant.is_alone,
            }),
            random: self.random,
            stopwatch: &NoStopwatch,
        }
    }

    /// Returns its candidate lists.
    pub(crate) fn sets(&self) -> impl Iterator<Item = &Arc<CandidateSet>> {
        let pools = [
            Some(&self.pool),
            self.prefill.as_ref().map(|prefill| &prefill.pool),
        ];
        pools.into_iter().flatten().map(|pool| &pool.set)
    }

    /// Returns the bytes of everything but the lists, which may be shared.
    pub(crate) fn own_bytes(&self) -> u64 {
        let holders = self
            .affinity
            .prefix_holders
            .as_ref()
            .map_or(0, |holders| holders.capacity() * size_of::<PrefixHolder>());
        let session = if self.affinity.session.is_some() {
            SESSION_BYTES
        } else {
            0
        };
        let fixed =
            size_of::<QueuedRequest>() + size_of::<Self>() + size_of::<ReservationId>() + ROWS;
        let tokens = self
            .prompt
            .blocks
            .as_ref()
            .map_or(0, |blocks| u64::from(blocks.token_count()));
        (fixed + holders + session) as u64 + TOKEN_BYTES * tokens
    }
}
