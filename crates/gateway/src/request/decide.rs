//! Decision: chooses a target for a request and counts its load.

use std::{sync::Arc, time::Duration};

use dialect::{ApiError, ErrorCode};
use fleet::{ModelView, Snapshot, UnusableTarget, WorkerState, WorkerView};
use kv_blocks::{DpRank, Moment, PromptIdentity, WorkerId};
use routing::{
    Candidate, Decision, ExcludeReason, ExcludedTarget, Job, Method, Overrides, Pin, Plan, Policy,
    PotentialLoad, PrefillLeg, PrefillPool, Refusal, ReplyMode, Stopwatch, WaitBudget,
};
use tokenization::TokenizedPrompt;

use super::{
    accept,
    affinity::AffinityKeys,
    clusters::ClusterMembership,
    dispatch,
    prefill::{Handover, RequestPolicies},
    translate::ApiSupport,
};
use crate::{
    Gateway,
    lease::Lease,
    queue_waiters::{QueueDecision, Waiter},
};

/// `Retry-After` if all targets are busy, in seconds: about as long as the usage figure stays
/// valid.
pub(super) const BUSY_RETRY_S: u32 = 5;

/// The facts of a request that the decision needs, gathered once and used by every attempt.
#[derive(Debug)]
pub(crate) struct PlacementRequest<'a> {
    pub(crate) overrides: &'a accept::HeaderOverrides,
    pub(crate) prompt: &'a TokenizedPrompt,
    pub(crate) affinity: &'a AffinityKeys,
    pub(crate) salt: Option<Arc<str>>,
    pub(crate) expected_output_tokens: Option<u32>,
    pub(crate) answer: ReplyMode,
    pub(crate) pin: Option<Pin>,
    /// Whether another worker may compute the prompt.
    pub(crate) handover: &'a Handover,
    /// Targets that failed the request before.
    pub(crate) failed: &'a [Pin],
    /// The workers that support the request's API.
    pub(crate) spoken: ApiSupport,
    /// If set, considers only workers that accept the body already built for this attempt
    /// (hedging).
    pub(crate) worded_for: Option<&'a WorkerView>,
}

/// A decision with its load already counted, and the guard that frees it.
#[derive(Debug)]
pub(crate) struct PlacedAttempt {
    pub(crate) decision: Decision,
    pub(crate) lease: Lease,
    /// The prefill leg, if another worker computes the prompt; its load is in the lease.
    pub(crate) prefill: Option<PrefillLeg>,
    /// The request's place in the engine's own queue.
    pub(crate) engine_priority: i64,
}

/// The router's answer.
#[derive(Debug)]
pub(crate) enum PlacementOutcome {
    Placed(Box<PlacedAttempt>),
    Queued(Waiter),
    Refused(Refusal),
}

/// Resolves the worker that a request is pinned to: `name` or `name/rank`. `param` is the header or
/// field that named it.
pub(crate) fn pin(
    snapshot: &Snapshot,
    asked: Option<&str>,
    param: &str,
) -> Result<Option<Pin>, ApiError> {
    let Some(asked) = asked else { return Ok(None) };
    let unknown = || {
        ApiError::new(
            ErrorCode::UnknownWorker,
            format!(
                "there is no worker {:?}: expected the name of a worker, or name/rank",
                accept::printable(asked)
            ),
        )
        .param(param)
    };
    resolve_worker(snapshot, asked)
        .map(Some)
        .ok_or_else(unknown)
}

/// Resolves `name` or `name/rank` to a pin.
pub(crate) fn resolve_worker(snapshot: &Snapshot, asked: &str) -> Option<Pin> {
    if let Some(worker) = snapshot.worker_named(asked) {
        return Some(Pin {
            worker: worker.id,
            rank: None,
        });
    }
    let (name, rank) = asked.rsplit_once('/')?;
    let worker = snapshot.worker_named(name)?;
    let rank = rank
        .parse::<u32>()
        .ok()
        .filter(|rank| *rank < worker.dp_ranks())?;
    Some(Pin {
        worker: worker.id,
        rank: Some(DpRank(rank)),
    })
}

/// Chooses a target and counts the load there. Only a request with `patience` is queued.
pub(crate) fn place(
    gateway: &Gateway,
    model: &ModelView,
    placement: &PlacementRequest<'_>,
    patience: Option<WaitBudget>,
) -> PlacementOutcome {
    let lot = gateway.ids.next_random();
    let decided = with_job(gateway, model, placement, lot, |now, job| {
        gateway.waiters.decide(
            now,
            &Job {
                wait_budget: patience,
                ..*job
            },
        )
    });
    match decided {
        QueueDecision::Now(plan) => {
            PlacementOutcome::Placed(Box::new(into_attempt(gateway, model, placement, *plan)))
        }
        QueueDecision::Later(waiter) => PlacementOutcome::Queued(waiter),
        QueueDecision::Never(refusal) => PlacementOutcome::Refused(refusal),
    }
}

/// Puts a request that no target can take into the queue; `None`: the queue is full.
pub(crate) fn enqueue(
    gateway: &Gateway,
    model: &ModelView,
    placement: &PlacementRequest<'_>,
    patience: WaitBudget,
) -> Option<Waiter> {
    let lot = gateway.ids.next_random();
    let patience = Some(patience);
    with_job(gateway, model, placement, lot, |now, job| {
        gateway.waiters.enqueue(
            now,
            &Job {
                wait_budget: patience,
                ..*job
            },
        )
    })
}

/// Gives the router new candidates for a queued request. Without patience it is bound as soon as
/// any target can take it.
pub(crate) fn replace_candidates(
    gateway: &Gateway,
    model: &ModelView,
    placement: &PlacementRequest<'_>,
    waiter: &Waiter,
    patience: Option<WaitBudget>,
) {
    let lot = gateway.ids.next_random();
    with_job(gateway, model, placement, lot, |now, job| {
        waiter.replace_candidates(
            now,
            &Job {
                wait_budget: patience,
                ..*job
            },
        );
    });
}

/// Combines the plan with the guard that frees its load.
pub(crate) fn into_attempt(
    gateway: &Gateway,
    model: &ModelView,
    placement: &PlacementRequest<'_>,
    plan: Plan,
) -> PlacedAttempt {
    let lease = |id, target| Lease::new(Arc::clone(&gateway.waiters), id, target);
    let prefill = plan
        .prefill
        .as_ref()
        .map(|leg| lease(leg.reservation, leg.target));
    let lease = lease(plan.reservation, plan.decode.target).with_prefill(prefill);
    gateway
        .prefix_tally
        .count(&plan.decision, &placement.affinity.keys);
    gateway.kv_tally.count(&plan.decision);
    let (uses_caches, by_view) = (
        plan.decision.cache_use.is_some(),
        placement.affinity.holders.is_some(),
    );
    if uses_caches && !by_view && plan.decision.policy != Policy::Continuum {
        // A lookup in the block index; the prefix view times its own lookups.
        gateway.kv_tally.record_query(Duration::from_secs_f64(
            plan.decision.lookup_us.max(0.0) / 1e6,
        ));
    }
    PlacedAttempt {
        decision: as_told(plan.decision, model, placement),
        lease,
        prefill: plan.prefill,
        engine_priority: plan.engine_priority,
    }
}

/// Returns the decision that [`place`] would make; changes nothing.
pub(crate) fn preview(
    gateway: &Gateway,
    model: &ModelView,
    placement: &PlacementRequest<'_>,
) -> Result<Decision, Refusal> {
    let lot = gateway.ids.peek_random();
    let decision = with_job(gateway, model, placement, lot, |now, job| {
        gateway.router.preview(now, job)
    })?;
    Ok(as_told(decision, model, placement))
}

/// Returns the load that every eligible target would have with the request; changes nothing.
pub(crate) fn potential_loads(
    gateway: &Gateway,
    model: &ModelView,
    placement: &PlacementRequest<'_>,
) -> Result<Vec<PotentialLoad>, Refusal> {
    let lot = gateway.ids.peek_random();
    with_job(gateway, model, placement, lot, |now, job| {
        gateway.router.potential_loads(now, job)
    })
}

/// Converts a refusal into the client's error. A busy worker is available again later.
pub(crate) fn refusal_error(refusal: &Refusal) -> ApiError {
    if refusal
        .excluded
        .iter()
        .any(|excluded| excluded.reason == ExcludeReason::Busy)
    {
        let message =
            "every worker that could take the request is above the busy threshold: try again";
        return ApiError::new(ErrorCode::Overloaded, message).with_retry_after(BUSY_RETRY_S);
    }
    dispatch::no_worker()
}

/// Completes the refusal with facts that the router does not get: no worker is healthy and the last
/// usable ones are tried all the same, since a probe may be wrong; and why there is no candidate
/// for the prefill.
fn as_told(
    mut decision: Decision,
    model: &ModelView,
    placement: &PlacementRequest<'_>,
) -> Decision {
    if model.panic {
        decision.method = Method::Panic;
    }
    if let (Some(shown), Handover::Not(note)) = (&mut decision.prefill, placement.handover) {
        *shown = note.clone();
    }
    decision
}

/// Builds candidates and exclusions and passes them to `act` as a job.
fn with_job<T>(
    gateway: &Gateway,
    model: &ModelView,
    placement: &PlacementRequest<'_>,
    lot: u64,
    act: impl FnOnce(Moment, &Job<'_>) -> T,
) -> T {
    let PlacementRequest {
        overrides,
        prompt,
        affinity: ties,
        salt,
        expected_output_tokens,
        answer,
        pin,
        failed,
        spoken,
        worded_for,
        ..
    } = placement;
    let split = gateway
        .prefill
        .split(model)
        .filter(|_| !matches!(placement.handover, Handover::NoPrompt));
    let (own, policies) = (
        gateway.rules.by_model.of(model),
        RequestPolicies::of(gateway, overrides, model),
    );
    let busy_threshold = own.busy_threshold.or(gateway.rules.busy_threshold);
    let identity = prompt
        .blocks
        .as_ref()
        .map_or(PromptIdentity::TextPrefix, |blocks| blocks.identity());
    let mut candidates = Vec::with_capacity(model.candidates.len());
    let mut excluded: Vec<ExcludedTarget> = model.unusable.iter().map(unusable).collect();
    let (mut prefill, mut not_prefill) = (Vec::new(), Vec::new());
    for candidate in &model.candidates {
        let worker = &candidate.worker;
        let asked_for = pin.is_none_or(|pin| pin.allows(candidate.target));
        let reason = if failed.iter().any(|failed| failed.allows(candidate.target)) {
            Some(ExcludeReason::FailedBefore)
        } else if !spoken.by(worker)
            || worded_for.is_some_and(|other| !takes_the_same_words(worker, other))
        {
            Some(ExcludeReason::Dialect)
        } else {
            // The prompt does not wait for a prefill worker. Waiting for a decode worker is the
            // router's part.
            let busy =
                worker.only_prefills() && is_above(worker.load.kv_usage_ratio, busy_threshold);
            (asked_for && busy).then_some(ExcludeReason::Busy)
        };
        let out = |reason| ExcludedTarget {
            target: candidate.target,
            name: Arc::clone(&worker.name),
            reason,
        };
        if let Some(reason) = reason {
            let list = if worker.only_prefills() {
                &mut not_prefill
            } else {
                &mut excluded
            };
            list.push(out(reason));
            continue;
        }
        let pool = if worker.only_prefills() {
            excluded.push(out(ExcludeReason::Role));
            &mut prefill
        } else {
            &mut candidates
        };
        pool.push(Candidate {
            target: candidate.target,
            name: Arc::clone(&worker.name),
            namespace: candidate.namespace(salt.clone(), identity),
            weight: worker.weight,
            cache: match (candidate.cache(), identity) {
                // Events are about tokens: a prompt known only as text is predicted, even if the
                // worker publishes events.
                (fleet::CacheSource::Events, PromptIdentity::Tokens) => {
                    routing::CacheSource::Events
                }
                _ => routing::CacheSource::Predicted,
            },
            total_blocks: worker.num_blocks,
            tiers: worker.allow_tiers.iter().copied().collect(),
            stream_state: candidate.stream_state(),
            health: worker.state.as_str(),
            lmcache: ties
                .lmcache
                .as_ref()
                .map(|told| told.of(worker))
                .unwrap_or_default(),
            usage: worker.load.kv_usage_ratio,
        });
    }
    let mut pin = *pin;
    if !matches!(placement.handover, Handover::Possible) {
        // No prefill worker is used: a pin that names one is dropped, and the decode worker stays
        // open.
        pin = pin.filter(|pin| !prefill.iter().any(|candidate| pin.allows(candidate.target)));
        prefill.clear();
    }
    if !gateway.cooldowns.is_empty() {
        let now = gateway.clock.now();
        let on_hold = |worker| gateway.cooldowns.is_cooling_down(worker, now);
        spare(on_hold, pin, busy_threshold, &mut candidates, &mut excluded);
        spare(on_hold, pin, busy_threshold, &mut prefill, &mut not_prefill);
    }
    if let Some(cluster) = ties.cluster.as_ref().filter(|_| pin.is_none()) {
        keep_together(cluster, busy_threshold, &mut candidates, &mut excluded);
        keep_together(cluster, busy_threshold, &mut prefill, &mut not_prefill);
    }
    let pool = split.map(|rules| PrefillPool {
        candidates: &prefill,
        excluded: &not_prefill,
        policy: policies.prefill,
        uncached_token_threshold: rules.uncached_token_threshold,
    });
    let stopwatch = ClockStopwatch(gateway.clock);
    let job = Job {
        policy: Some(policies.decode),
        pin,
        blocks: prompt.blocks.as_ref(),
        affinity: ties.keys,
        session: ties.session.as_ref(),
        prefix_holders: ties.holders.as_deref(),
        prompt_tokens: prompt.tokens,
        expected_output_tokens: *expected_output_tokens,
        answer: *answer,
        wait_budget: None,
        busy_threshold,
        candidates: &candidates,
        excluded: &excluded,
        prefill: pool,
        random: lot,
        overrides: Overrides {
            overlap_weight: overrides.overlap_weight.or(own.overlap_weight),
            temperature: overrides.temperature.or(own.temperature),
            priority: overrides.priority,
            medium_weights: own.medium_weights,
        },
        stopwatch: &stopwatch,
    };
    act(gateway.clock.now(), &job)
}

/// Excludes workers in cooldown, unless no other worker is eligible.
fn spare(
    on_hold: impl Fn(WorkerId) -> bool,
    pin: Option<Pin>,
    busy_threshold: Option<f64>,
    candidates: &mut Vec<Candidate>,
    excluded: &mut Vec<ExcludedTarget>,
) {
    let may_be_asked = |candidate: &Candidate| {
        pin.is_none_or(|pin| pin.allows(candidate.target))
            && !is_above(candidate.usage, busy_threshold)
    };
    let spared =
        |candidate: &Candidate| may_be_asked(candidate) && on_hold(candidate.target.worker);
    if !candidates
        .iter()
        .any(|candidate| may_be_asked(candidate) && !spared(candidate))
    {
        return;
    }
    for candidate in candidates.extract_if(.., |candidate| spared(candidate)) {
        excluded.push(ExcludedTarget {
            target: candidate.target,
            name: candidate.name,
            reason: ExcludeReason::Busy,
        });
    }
}

/// Excludes workers outside the cluster, unless no worker of the cluster is eligible.
fn keep_together(
    cluster: &ClusterMembership,
    busy_threshold: Option<f64>,
    candidates: &mut Vec<Candidate>,
    excluded: &mut Vec<ExcludedTarget>,
) {
    let is_there = |candidate: &Candidate| {
        cluster.has(&candidate.name) && !is_above(candidate.usage, busy_threshold)
    };
    if !candidates.iter().any(is_there) {
        return;
    }
    candidates.retain(|candidate| {
        let stays = cluster.has(&candidate.name);
        if !stays {
            let name = Arc::clone(&candidate.name);
            excluded.push(ExcludedTarget {
                target: candidate.target,
                name,
                reason: ExcludeReason::OtherCluster,
            });
        }
        stays
    });
}

fn unusable(unusable: &UnusableTarget) -> ExcludedTarget {
    ExcludedTarget {
        target: unusable.target,
        name: Arc::clone(&unusable.name),
        reason: match unusable.state {
            WorkerState::WarmingUp => ExcludeReason::WarmingUp,
            WorkerState::Draining => ExcludeReason::Draining,
            WorkerState::Ejected => ExcludeReason::CircuitOpen,
            WorkerState::Unknown | WorkerState::Down | WorkerState::Ready => {
                ExcludeReason::Unhealthy
            }
        },
    }
}

/// Returns whether a body that was built for one worker may be sent to the other.
fn takes_the_same_words(worker: &WorkerView, other: &WorkerView) -> bool {
    worker.messages == other.messages && worker.engine == other.engine
}

/// Returns whether a cache is fuller than allowed, by its engine's own figure; `false` without one.
fn is_above(usage: Option<f64>, threshold: Option<f64>) -> bool {
    usage
        .zip(threshold)
        .is_some_and(|(usage, threshold)| usage > threshold)
}

/// The router's stopwatch, on the process's clock.
struct ClockStopwatch(net::Clock);

impl Stopwatch for ClockStopwatch {
    fn elapsed_us(&self) -> f64 {
        self.0.now().since_start().as_secs_f64() * 1e6
    }
}
