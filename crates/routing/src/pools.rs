//! Two pools for one request: workers that compute its prompt, and workers that generate.
//!
//! The decode leg is chosen first, by the job's own policy among the job's own candidates; the
//! overlap of its winner decides whether a separate prefill is worthwhile. The prefill leg is
//! chosen by the pool's policy. Each leg is a reservation of its own, made under the lock of its
//! choice.
//!
//! **Invariant**: a prompt is counted where it is computed and nowhere else. The prefill leg counts
//! its tokens until it ends and never a block of an active sequence; the decode leg of such a
//! request counts blocks and no prompt.

use std::sync::Arc;

use kv_blocks::{Moment, Target};

use crate::{
    CacheSource, Candidate, ExcludedTarget, Job, Policy, PotentialLoad, ReleasedRequest, ReplyMode,
    ReservationId, Router,
    choice::Choice,
    ledger::DispatchLoad,
    policy::PolicyCandidate,
    router::{BlockCounting, ScoredChoice},
};

/// Workers that compute prompts for others.
#[derive(Clone, Copy, Debug)]
pub struct PrefillPool<'a> {
    /// Targets that may compute the prompt now, in any order; if empty, the decode worker serves
    /// the whole request.
    pub candidates: &'a [Candidate],
    /// Excluded targets of the pool, for the receipt.
    pub excluded: &'a [ExcludedTarget],
    /// The policy of the pool; `None` selects the configured one.
    pub policy: Option<Policy>,
    /// Tokens: a decode worker that lacks at most this much of the prompt computes it itself. 0 =
    /// off.
    pub uncached_token_threshold: u32,
}

/// The target that computes a prompt for another one, with its load already counted.
#[derive(Clone, Debug)]
pub struct PrefillLeg {
    /// The load of the prefill. End it when the prompt is computed or will not be: with `failed`
    /// when the worker did not take it, else with `done`, after `first_token` if it was computed.
    pub reservation: ReservationId,
    /// The target.
    pub target: Target,
    /// The worker's name.
    pub name: Arc<str>,
    /// The source of knowledge about its cache.
    pub cache: CacheSource,
    /// Cached tokens that the engine is expected to report.
    pub predicted_cached_tokens: u32,
    /// The same from its announcements only.
    pub announced_cached_tokens: u32,
}

/// The prefill of a request with two pools, for the receipt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PrefillNote {
    /// The target that computes the prompt, or was meant to.
    pub target: Option<(Target, Arc<str>)>,
    /// Why the decode worker computes the prompt; `None`: it does not.
    pub skipped: Option<PrefillSkip>,
    /// Duration of the prefill; `None` while it runs and where there was none.
    pub ms: Option<f64>,
}

/// Why a decode worker computes the prompt itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PrefillSkip {
    /// It lacks too little of the prompt for a separate prefill.
    UnderThreshold,
    /// No worker of the prefill pool can be used.
    NoPrefillWorker,
    /// The prefill worker failed.
    PrefillFailed,
    /// The request has no single prompt that could be handed over.
    Unsplittable,
}

impl PrefillSkip {
    /// Every reason.
    pub const ALL: [Self; 4] = [
        Self::UnderThreshold,
        Self::NoPrefillWorker,
        Self::PrefillFailed,
        Self::Unsplittable,
    ];

    /// Returns the name used in receipts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnderThreshold => "under_threshold",
            Self::NoPrefillWorker => "no_prefill_worker",
            Self::PrefillFailed => "prefill_failed",
            Self::Unsplittable => "unsplittable",
        }
    }
}

/// The place where the prompt of a reservation is computed.
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
                answer: if load.answer == ReplyMode::Streamed {
                    ReplyMode::Elsewhere
                } else {
                    load.answer
                },
                ..load
            },
        }
    }
}

/// A job as seen by each of its pools.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolSplit<'a> {
    /// The job of the pool that generates.
    pub(crate) decode: Job<'a>,
    pool: Option<PrefillPool<'a>>,
    /// The job of the prefill pool, if the pool is not empty.
    prefill: Option<Job<'a>>,
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
            pool.candidates
                .iter()
                .any(|candidate| pin.allows(candidate.target))
        });
        let prefill = Job {
            policy: pool.policy,
            pin: named,
            candidates: pool.candidates,
            excluded: pool.excluded,
            // The prefill's only token ends the prompt.
            answer: if job.answer == ReplyMode::Elsewhere {
                ReplyMode::Elsewhere
            } else {
                ReplyMode::Streamed
            },
            // The session belongs to the decode worker: its history is there when the next request
            // comes.
            session: None,
            prefill: None,
            ..*job
        };
        Self {
            decode: Job {
                pin: job.pin.filter(|_| named.is_none()),
                ..*job
            },
            pool: Some(pool),
            prefill: (!pool.candidates.is_empty()).then_some(prefill),
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

    /// Returns the job of the prefill pool, or why there is no prefill; `None` for a job with one
    /// pool.
    fn prefill(&self, choice: &Choice<'_>) -> Option<Result<Job<'a>, PrefillSkip>> {
        self.pool?;
        let Some(job) = self.prefill else {
            return Some(Err(PrefillSkip::NoPrefillWorker));
        };
        Some(match self.prompt(choice.winner()) {
            PromptLocation::Elsewhere => Ok(job),
            PromptLocation::Here => Err(PrefillSkip::UnderThreshold),
        })
    }
}

/// The decision about a prefill.
#[derive(Debug, Default)]
pub(crate) struct PrefillDecision {
    pub(crate) leg: Option<PrefillLeg>,
    pub(crate) note: Option<PrefillNote>,
    /// Estimated time until the prompt is computed on that target.
    pub(crate) wait_ms: f64,
}

impl Router {
    /// Chooses the target that computes the prompt for the winner of `choice`, and counts its load.
    pub(crate) fn prefill(
        &self,
        now: Moment,
        split: &PoolSplit<'_>,
        choice: &Choice<'_>,
    ) -> PrefillDecision {
        let job = match split.prefill(choice) {
            None => return PrefillDecision::default(),
            Some(Err(reason)) => {
                return PrefillDecision {
                    note: Some(skipped(reason)),
                    ..PrefillDecision::default()
                };
            }
            Some(Ok(job)) => job,
        };
        let reserved = self.score(now, &job, BlockCounting::Ignored, |state, choice| {
            state.reserve(
                now,
                &job,
                choice,
                PromptLocation::Here,
                &self.settings.load().queue,
            )
        });
        // A pool with candidates never refuses: a pinned target is one of them.
        let Ok((weighed, reservation)) = reserved else {
            return PrefillDecision {
                note: Some(skipped(PrefillSkip::NoPrefillWorker)),
                ..PrefillDecision::default()
            };
        };
        self.speculate(now, &weighed.choice, 0.0, reservation);
        let (note, winner) = (chosen(&weighed), weighed.choice.winner());
        let surveyed = &winner.overlap;
        let leg = PrefillLeg {
            reservation,
            target: winner.target(),
            name: Arc::clone(&surveyed.candidate.name),
            cache: surveyed.candidate.cache,
            predicted_cached_tokens: surveyed.predicted_cached_tokens,
            announced_cached_tokens: surveyed.announced_cached_tokens,
        };
        let cached = f64::from(surveyed.predicted_cached_tokens);
        let own_ms = winner
            .state
            .rates
            .prefill_ms(cached, f64::from(surveyed.uncached_tokens));
        PrefillDecision {
            leg: Some(leg),
            note: Some(note),
            wait_ms: winner.state.backlog_ms + own_ms,
        }
    }

    /// Returns the target that would compute the prompt for the winner of `choice`.
    pub(crate) fn prefill_preview(
        &self,
        now: Moment,
        split: &PoolSplit<'_>,
        choice: &Choice<'_>,
    ) -> Option<PrefillNote> {
        match split.prefill(choice)? {
            Err(reason) => Some(skipped(reason)),
            Ok(job) => self
                .score(now, &job, BlockCounting::Ignored, |_, _| ())
                .ok()
                .map(|(weighed, ())| chosen(&weighed)),
        }
    }

    /// Returns what every target of the prefill pool would have to compute.
    pub(crate) fn prefill_loads(&self, now: Moment, split: &PoolSplit<'_>) -> Vec<PotentialLoad> {
        let weighed = split.prefill.and_then(|job| {
            self.score(now, &job, BlockCounting::Ignored, |_, _| ())
                .ok()
        });
        weighed.map_or_else(Vec::new, |(weighed, ())| {
            weighed.choice.potential_loads(|_| PromptLocation::Here)
        })
    }

    /// Ends a reservation whose request was not sent, through no fault of the worker: frees its
    /// load and withdraws its speculation from the index. Unknown and repeated ids are ignored.
    /// Returns queued requests that may start now.
    pub fn withdraw(&self, now: Moment, id: ReservationId) -> Vec<ReleasedRequest> {
        self.end(
            now,
            id,
            |state| state.ledger.close(now, id),
            |promised| self.index.retract(promised),
        )
    }
}

fn skipped(reason: PrefillSkip) -> PrefillNote {
    PrefillNote {
        skipped: Some(reason),
        ..PrefillNote::default()
    }
}

fn chosen(weighed: &ScoredChoice<'_>) -> PrefillNote {
    let winner = weighed.choice.winner();
    PrefillNote {
        target: Some((winner.target(), Arc::clone(&winner.overlap.candidate.name))),
        ..PrefillNote::default()
    }
}
