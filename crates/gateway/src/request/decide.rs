//! Stage 4: who gets it.

use std::sync::Arc;

use dialect::{ApiError, ErrorCode};
use fleet::{ModelView, Snapshot, WorkerState};
use kv_blocks::{DpRank, Identity, PromptBlocks, WorkerId};
use routing::{
    Answer, Candidate, Decision, Dispatch, ExcludeReason, Excluded, Job, Method, Overrides, Pin, Policy, Refusal,
    Stopwatch,
};

use super::{accept::Call, identify::Identified};
use crate::{Gateway, lease::Lease};

/// What the decision needs to know of a request, gathered once and used by every attempt.
#[derive(Debug)]
pub(crate) struct Placement<'a> {
    pub(crate) call: &'a Call,
    pub(crate) model: &'a ModelView,
    pub(crate) prompt: &'a Identified,
    pub(crate) salt: Option<Arc<str>>,
    pub(crate) expected_output_tokens: Option<u32>,
    pub(crate) answer: Answer,
    pub(crate) pin: Option<Pin>,
}

/// A decision with its load already counted, and the guard that frees it.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) decision: Decision,
    pub(crate) lease: Lease,
}

/// Resolves the worker that a request is pinned to: `name` or `name/rank`.
pub(crate) fn pin(snapshot: &Snapshot, asked: Option<&str>) -> Result<Option<Pin>, ApiError> {
    let Some(asked) = asked else { return Ok(None) };
    let unknown = || {
        ApiError::new(
            ErrorCode::UnknownWorker,
            format!("there is no worker {asked:?}: expected the name of a worker, or name/rank"),
        )
        .param("x-warmroute-worker")
    };
    if let Some(worker) = snapshot.worker_named(asked) {
        return Ok(Some(Pin { worker: worker.id, rank: None }));
    }
    let (name, rank) = asked.rsplit_once('/').ok_or_else(unknown)?;
    let worker = snapshot.worker_named(name).ok_or_else(unknown)?;
    let rank = rank.parse::<u32>().ok().filter(|rank| *rank < worker.dp_ranks()).ok_or_else(unknown)?;
    Ok(Some(Pin { worker: worker.id, rank: Some(DpRank(rank)) }))
}

/// Chooses a target and counts the load there. Workers in `failed` were tried for this request already.
pub(crate) fn place(gateway: &Gateway, placement: &Placement<'_>, failed: &[WorkerId]) -> Result<Placed, Refusal> {
    let Placement { call, model, prompt, salt, expected_output_tokens, answer, pin } = placement;
    let identity = prompt.blocks.as_ref().map_or(Identity::TextPrefix, PromptBlocks::identity);
    let mut candidates = Vec::with_capacity(model.candidates.len());
    let mut excluded: Vec<Excluded> = model
        .unusable
        .iter()
        .map(|unusable| Excluded {
            target: unusable.target,
            name: Arc::clone(&unusable.name),
            reason: match unusable.state {
                WorkerState::WarmingUp => ExcludeReason::WarmingUp,
                WorkerState::Draining => ExcludeReason::Draining,
                WorkerState::Ejected => ExcludeReason::CircuitOpen,
                WorkerState::Unknown | WorkerState::Down | WorkerState::Ready => ExcludeReason::Unhealthy,
            },
        })
        .collect();
    for candidate in &model.candidates {
        let worker = &candidate.worker;
        if failed.contains(&candidate.target.worker) {
            let name = Arc::clone(&worker.name);
            excluded.push(Excluded { target: candidate.target, name, reason: ExcludeReason::FailedBefore });
            continue;
        }
        candidates.push(Candidate {
            target: candidate.target,
            name: Arc::clone(&worker.name),
            namespace: candidate.namespace(salt.clone(), identity),
            weight: worker.weight,
            cache: match (candidate.cache(), identity) {
                // Events speak of tokens: a prompt known by its text only is predicted, whatever the worker publishes.
                (fleet::CacheSource::Events, Identity::Tokens) => routing::CacheSource::Events,
                _ => routing::CacheSource::Predicted,
            },
            total_blocks: worker.num_blocks,
            tiers: worker.allow_tiers.iter().copied().collect(),
            stream_state: candidate.stream_state(),
            health: worker.state.as_str(),
        });
    }
    let stopwatch = Since(gateway.clock);
    let job = Job {
        policy: call.overrides.policy,
        pin: *pin,
        blocks: prompt.blocks.as_ref(),
        prompt_tokens: prompt.tokens,
        expected_output_tokens: *expected_output_tokens,
        answer: *answer,
        candidates: &candidates,
        excluded: &excluded,
        random: gateway.ids.draw(),
        overrides: Overrides {
            overlap_weight: call.overrides.overlap_weight,
            temperature: call.overrides.temperature,
            priority: call.overrides.priority,
        },
        stopwatch: &stopwatch,
    };
    match gateway.router.decide(gateway.clock.now(), &job) {
        Dispatch::Plan(plan) => {
            let lease = Lease::new(Arc::clone(&gateway.router), gateway.clock, plan.reservation, plan.decode.target);
            let mut decision = plan.decision;
            if model.panic {
                // No worker is healthy: the last good ones are asked all the same, since a probe may be wrong.
                decision.method = Method::Panic;
            }
            Ok(Placed { decision, lease })
        }
        // The router never holds yet: its queue is not built, and nobody could release the ticket.
        Dispatch::Held(_) => Err(Refusal { policy: call.overrides.policy.unwrap_or(Policy::Warm), excluded }),
        Dispatch::Refused(refusal) => Err(refusal),
    }
}

/// The router's stopwatch, on the process's clock.
struct Since(net::Clock);

impl Stopwatch for Since {
    fn elapsed_us(&self) -> f64 {
        self.0.now().since_start().as_secs_f64() * 1e6
    }
}
