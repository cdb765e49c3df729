//! The jobs of the two pools of one request, and which of them computes its prompt.

use crate::{
    ExpectedReply, Job, JobAffinity, PrefillPool, PrefillSkip, ReplyMode, ledger::DispatchLoad,
    policy::rule::PolicyCandidate,
};

/// A job as seen by each of its pools.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolSplit<'a> {
    /// The job of the pool that generates.
    pub(crate) decode: Job<'a>,
    pool: Option<PrefillPool<'a>>,
    /// The job of the prefill pool, if the pool is not empty.
    pub(crate) prefill: Option<Job<'a>>,
}

impl<'a> PoolSplit<'a> {
    pub(crate) fn of(job: &Job<'a>) -> Self {
        let Some(pool) = job.prefill else {
            return Self {
                decode: *job,
                pool: None,
                prefill: None,
            };
        };
        // A pin on a prefill worker applies to the prefill.
        let named = job.pin.filter(|pin| {
            pool.targets
                .candidates
                .iter()
                .any(|candidate| pin.allows(candidate.target))
        });
        let prefill = Job {
            targets: pool.targets,
            pin: named,
            reply: ExpectedReply {
                // The prefill's only token ends the prompt.
                mode: if job.reply.mode == ReplyMode::Elsewhere {
                    ReplyMode::Elsewhere
                } else {
                    ReplyMode::Streamed
                },
                ..job.reply
            },
            affinity: JobAffinity {
                // The session belongs to the decode worker: its history is there when the next
                // request comes.
                session: None,
                ..job.affinity
            },
            prefill: None,
            ..*job
        };
        Self {
            decode: Job {
                pin: job.pin.filter(|_| named.is_none()),
                ..*job
            },
            pool: Some(pool),
            prefill: (!pool.targets.candidates.is_empty()).then_some(prefill),
        }
    }

    /// Returns where the prompt is computed if this candidate generates.
    pub(crate) fn prompt(&self, contender: &PolicyCandidate<'_>) -> PromptLocation {
        let (Some(pool), Some(job)) = (self.pool, self.prefill) else {
            return PromptLocation::Here;
        };
        let worth_it = contender.overlap.uncached_tokens > pool.uncached_token_threshold;
        if worth_it || job.pin.is_some() {
            PromptLocation::Elsewhere
        } else {
            PromptLocation::Here
        }
    }

    /// Returns the job of the prefill pool if this candidate generates, or why there is no prefill;
    /// `None` for a job with one pool.
    pub(crate) fn prefill_job(
        &self,
        winner: &PolicyCandidate<'_>,
    ) -> Option<Result<Job<'a>, PrefillSkip>> {
        self.pool?;
        let Some(job) = self.prefill else {
            return Some(Err(PrefillSkip::NoPrefillWorker));
        };
        Some(match self.prompt(winner) {
            PromptLocation::Elsewhere => Ok(job),
            PromptLocation::Here => Err(PrefillSkip::UnderThreshold),
        })
    }
}

/// The location where the prompt of a reservation is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PromptLocation {
    Here,
    Elsewhere,
}

impl PromptLocation {
    /// Returns the load that a request adds to the target that generates.
    pub(crate) fn counted(self, load: DispatchLoad) -> DispatchLoad {
        match self {
            Self::Here => load,
            Self::Elsewhere => DispatchLoad {
                uncached_tokens: 0,
                prefill_ms: 0.0,
                interleave_ms: 0.0,
                // Its first token measures another worker's speed.
                reply: if load.reply == ReplyMode::Streamed {
                    ReplyMode::Elsewhere
                } else {
                    load.reply
                },
                ..load
            },
        }
    }
}
