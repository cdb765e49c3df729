//! Candidates: which workers of a model may get a request, and why the others may not.

use std::sync::Arc;

use fleet::{ModelCandidate, ModelView, UnusableTarget, WorkerState, WorkerView};
use kv_blocks::{PromptIdentity, WorkerId};
use routing::{Candidate, ExcludeReason, ExcludedTarget, Pin};

use super::{clusters::ClusterMembership, decide::PlacementRequest};

/// The workers of one role.
#[derive(Debug, Default)]
pub(super) struct CandidatePool {
    pub(super) candidates: Vec<Candidate>,
    pub(super) excluded: Vec<ExcludedTarget>,
}

/// The workers of a model, by role.
#[derive(Debug, Default)]
pub(super) struct CandidatePools {
    /// Workers that generate.
    pub(super) decode: CandidatePool,
    /// Workers that only compute prompts.
    pub(super) prefill: CandidatePool,
}

impl CandidatePools {
    /// Sorts the workers of `model`.
    pub(super) fn of(
        model: &ModelView,
        placement: &PlacementRequest<'_>,
        busy_threshold: Option<f64>,
    ) -> Self {
        let mut pools = Self::default();
        pools.decode.candidates.reserve(model.candidates.len());
        pools
            .decode
            .excluded
            .extend(model.unusable.iter().map(unusable));
        for candidate in &model.candidates {
            let only_prefills = candidate.worker.only_prefills();
            let pool = if only_prefills {
                &mut pools.prefill
            } else {
                &mut pools.decode
            };
            if let Some(reason) = exclusion(candidate, placement, busy_threshold) {
                pool.excluded.push(excluded(candidate, reason));
                continue;
            }
            pool.candidates.push(offer(candidate, placement));
            if only_prefills {
                let by_role = excluded(candidate, ExcludeReason::Role);
                pools.decode.excluded.push(by_role);
            }
        }
        pools
    }
}

impl CandidatePool {
    /// Returns whether the pin allows one of the candidates.
    pub(super) fn has(&self, pin: Pin) -> bool {
        self.candidates
            .iter()
            .any(|candidate| pin.allows(candidate.target))
    }

    /// Excludes workers in cooldown, unless no other worker is eligible.
    pub(super) fn exclude_in_cooldown(
        &mut self,
        cools: impl Fn(WorkerId) -> bool,
        pin: Option<Pin>,
        busy_threshold: Option<f64>,
    ) {
        let eligible = |candidate: &Candidate| {
            pin.is_none_or(|pin| pin.allows(candidate.target))
                && !is_above(candidate.usage, busy_threshold)
        };
        let cooling = |candidate: &Candidate| eligible(candidate) && cools(candidate.target.worker);
        let others = |candidate: &Candidate| eligible(candidate) && !cooling(candidate);
        if self.candidates.iter().any(others) {
            self.exclude(ExcludeReason::Busy, cooling);
        }
    }

    /// Excludes workers outside the cluster, unless no worker of the cluster is eligible.
    pub(super) fn keep_cluster(
        &mut self,
        cluster: &ClusterMembership,
        busy_threshold: Option<f64>,
    ) {
        let eligible = |candidate: &Candidate| {
            cluster.has(&candidate.name) && !is_above(candidate.usage, busy_threshold)
        };
        if self.candidates.iter().any(eligible) {
            self.exclude(ExcludeReason::OtherCluster, |candidate| {
                !cluster.has(&candidate.name)
            });
        }
    }

    fn exclude(&mut self, reason: ExcludeReason, is_out: impl Fn(&Candidate) -> bool) {
        for candidate in self
            .candidates
            .extract_if(.., |candidate| is_out(candidate))
        {
            self.excluded.push(ExcludedTarget {
                target: candidate.target,
                name: candidate.name,
                reason,
            });
        }
    }
}

/// Returns why a usable worker may not get the request.
fn exclusion(
    candidate: &ModelCandidate,
    placement: &PlacementRequest<'_>,
    busy_threshold: Option<f64>,
) -> Option<ExcludeReason> {
    let (worker, target) = (&*candidate.worker, candidate.target);
    if placement.failed.iter().any(|failed| failed.allows(target)) {
        return Some(ExcludeReason::FailedBefore);
    }
    let takes_body = placement
        .same_body_as
        .is_none_or(|other| takes_same_body(worker, other));
    if !placement.facts.spoken.by(worker) || !takes_body {
        return Some(ExcludeReason::Dialect);
    }
    // The prompt does not wait for a prefill worker. Waiting for a decode worker is the router's
    // part.
    let busy = worker.only_prefills() && is_above(worker.load.kv_usage_ratio, busy_threshold);
    let pinned_elsewhere = placement.facts.pin.is_some_and(|pin| !pin.allows(target));
    (busy && !pinned_elsewhere).then_some(ExcludeReason::Busy)
}

/// Describes a worker to the router.
fn offer(candidate: &ModelCandidate, placement: &PlacementRequest<'_>) -> Candidate {
    let worker = &candidate.worker;
    let identity = placement
        .facts
        .prompt
        .blocks
        .as_ref()
        .map_or(PromptIdentity::TextPrefix, |blocks| blocks.identity());
    Candidate {
        target: candidate.target,
        name: Arc::clone(&worker.name),
        namespace: candidate.namespace(placement.facts.salt.clone(), identity),
        weight: worker.weight,
        cache: match (candidate.cache(), identity) {
            // Events are about tokens: a prompt known only as text is predicted, even if the worker
            // publishes events.
            (fleet::CacheSource::Events, PromptIdentity::Tokens) => routing::CacheSource::Events,
            _ => routing::CacheSource::Predicted,
        },
        total_blocks: worker.num_blocks,
        tiers: worker.allow_tiers.iter().copied().collect(),
        stream_state: candidate.stream_state(),
        health: worker.state.as_str(),
        lmcache: placement
            .facts
            .affinity
            .lmcache
            .as_ref()
            .map(|answer| answer.of(worker))
            .unwrap_or_default(),
        usage: worker.load.kv_usage_ratio,
    }
}

fn excluded(candidate: &ModelCandidate, reason: ExcludeReason) -> ExcludedTarget {
    ExcludedTarget {
        target: candidate.target,
        name: Arc::clone(&candidate.worker.name),
        reason,
    }
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
fn takes_same_body(worker: &WorkerView, other: &WorkerView) -> bool {
    worker.messages == other.messages && worker.engine == other.engine
}

/// Returns whether a cache is fuller than allowed, by its engine's own figure; `false` without one.
fn is_above(usage: Option<f64>, threshold: Option<f64>) -> bool {
    usage
        .zip(threshold)
        .is_some_and(|(usage, threshold)| usage > threshold)
}
