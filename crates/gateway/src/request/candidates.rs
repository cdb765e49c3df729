//! Candidates: which workers of a model may get a request, and why the others may not.

use std::sync::Arc;

use fleet::{ModelCandidate, ModelView, OtherTarget, UnusableTarget, WorkerState, WorkerView};
use kv_blocks::{PromptIdentity, WorkerId};
use routing::{Candidate, ExcludeReason, ExcludedTarget, Pin};
use tenants::Tenant;

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
        pools.decode.excluded.extend(model.others.iter().map(other));
        let is_too_long = too_long(model, placement);
        for candidate in &model.candidates {
            let only_prefills = candidate.worker.only_prefills();
            let pool = if only_prefills {
                &mut pools.prefill
            } else {
                &mut pools.decode
            };
            let reason = exclusion(candidate, placement, busy_threshold)
                .or(is_too_long(candidate).then_some(ExcludeReason::ContextTooLong));
            if let Some(reason) = reason {
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
    if !placement.facts.api_support.by(worker) || !takes_body {
        return Some(ExcludeReason::Dialect);
    }
    let is_strict = placement.tenant.is_some_and(Tenant::is_strictly_isolated);
    if is_strict && !worker.honours_salts() {
        return Some(ExcludeReason::Acl);
    }
    // The prompt does not wait for a prefill worker. Waiting for a decode worker is the router's
    // part.
    let busy = worker.only_prefills() && is_above(worker.load.kv_usage_ratio, busy_threshold);
    let pinned_elsewhere = placement.facts.pin.is_some_and(|pin| !pin.allows(target));
    (busy && !pinned_elsewhere).then_some(ExcludeReason::Busy)
}

/// Returns whether the prompt, if its tokens are known, is too long for a candidate and fits on
/// another one. Where it fits on none, or the request names its worker, the engine's own error tells
/// the client.
fn too_long(
    model: &ModelView,
    placement: &PlacementRequest<'_>,
) -> impl Fn(&ModelCandidate) -> bool {
    let prompt = &placement.facts.prompt;
    let blocks = prompt.blocks.as_ref();
    let exact = blocks.filter(|blocks| blocks.identity() == PromptIdentity::Tokens);
    // Not those of the whole request, which may have further prompts.
    let tokens = exact.map_or(0, |blocks| blocks.token_count());
    // A reply has at least one token.
    let fits = move |candidate: &ModelCandidate| {
        candidate.max_model_len.is_none_or(|limit| tokens < limit)
    };
    let generates = |candidate: &&ModelCandidate| !candidate.worker.only_prefills();
    let applies = exact.is_some()
        && placement.facts.pin.is_none()
        && model.candidates.iter().filter(generates).any(fits);
    move |candidate| applies && !fits(candidate)
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
        total_blocks: worker.cache.num_blocks,
        tiers: worker.cache.allow_tiers.iter().copied().collect(),
        stream_state: candidate.stream_state(),
        health: worker.health.state.as_str(),
        lmcache: placement
            .facts
            .affinity
            .lmcache
            .as_ref()
            .map(|answer| answer.of(worker))
            .unwrap_or_default(),
        usage: worker.load.kv_usage_ratio,
        // A hedge gets the body as its client sent it, and a retry computes: a source by which one
        // engine failed is named to no other for the same request.
        fetches: placement.facts.may_fetch
            && placement.same_body_as.is_none()
            && placement.failed.is_empty()
            && worker.may_fetch(),
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

fn other(other: &OtherTarget) -> ExcludedTarget {
    ExcludedTarget {
        target: other.target,
        name: Arc::clone(&other.name),
        reason: if other.lacks_adapter {
            ExcludeReason::Lora
        } else {
            ExcludeReason::Model
        },
    }
}

/// Returns whether a body that was built for one worker may be sent to the other.
fn takes_same_body(worker: &WorkerView, other: &WorkerView) -> bool {
    worker.engine.messages == other.engine.messages && worker.engine.kind == other.engine.kind
}

/// Returns whether a cache is fuller than allowed, by its engine's own figure; `false` without one.
fn is_above(usage: Option<f64>, threshold: Option<f64>) -> bool {
    usage
        .zip(threshold)
        .is_some_and(|(usage, threshold)| usage > threshold)
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use fleet::{EngineKind, MessagesMode, SaltSupport};
    use kv_blocks::{Moment, Role};
    use routing::SloTargets;
    use tenants::Isolation;

    use super::{super::test_support, *};
    use crate::request::{decide::RoutingFacts, overrides::HeaderOverrides, translate::ApiSupport};

    /// The names of the candidates, and the exclusions with their reasons.
    type PoolNames = (Vec<String>, Vec<(String, ExcludeReason)>);

    /// Sorts the workers into both pools.
    fn sorted(model: &ModelView, facts: &RoutingFacts, failed: &[Pin]) -> [PoolNames; 2] {
        let overrides = HeaderOverrides::default();
        let placement = PlacementRequest {
            overrides: &overrides,
            facts,
            failed,
            same_body_as: None,
            may_wait: false,
            tenant: None,
            slo: SloTargets::default(),
            received: Moment::START,
        };
        let pools = CandidatePools::of(model, &placement, Some(0.9));
        [pools.decode, pools.prefill].map(names)
    }

    fn names(pool: CandidatePool) -> PoolNames {
        let candidates = pool.candidates.iter().map(|it| it.name.to_string());
        let excluded = pool
            .excluded
            .iter()
            .map(|it| (it.name.to_string(), it.reason));
        (candidates.collect(), excluded.collect())
    }

    fn full(number: u32) -> WorkerView {
        let mut worker = test_support::worker(number);
        worker.load.kv_usage_ratio = Some(0.95);
        worker
    }

    fn prefill(worker: WorkerView) -> WorkerView {
        WorkerView {
            role: Role::Prefill,
            ..worker
        }
    }

    #[test]
    fn a_worker_that_failed_the_request_or_has_another_api_is_excluded_with_the_reason() {
        let mut anthropic = test_support::worker(3);
        anthropic.engine.kind = EngineKind::Anthropic;
        anthropic.engine.messages = MessagesMode::Native;
        let model = test_support::model(vec![
            test_support::worker(1),
            test_support::worker(2),
            anthropic,
        ]);
        let failed = [Pin {
            worker: WorkerId(2),
            rank: None,
        }];
        let facts = RoutingFacts {
            api_support: ApiSupport::Openai,
            ..test_support::facts()
        };
        let [decode, _] = sorted(&model, &facts, &failed);
        assert_eq!(decode.0, ["w1"]);
        assert_eq!(
            decode.1,
            [
                ("w2".to_owned(), ExcludeReason::FailedBefore),
                ("w3".to_owned(), ExcludeReason::Dialect)
            ]
        );
    }

    #[test]
    fn blocks_are_read_by_the_first_attempt_alone_and_by_workers_of_vllm_with_an_address() {
        let mut other = test_support::worker(2);
        other.engine.kind = EngineKind::Generic;
        let mut local = test_support::worker(3);
        local.connection.url = "unix:///run/engine.sock".parse().expect("a URL");
        let model = test_support::model(vec![test_support::worker(1), other, local]);
        let first = test_support::worker(1);
        let failed = [Pin {
            worker: WorkerId(9),
            rank: None,
        }];
        let fetches = |may_fetch, failed, same_body_as| {
            let overrides = HeaderOverrides::default();
            let facts = RoutingFacts {
                may_fetch,
                ..test_support::facts()
            };
            let placement = PlacementRequest {
                overrides: &overrides,
                facts: &facts,
                failed,
                same_body_as,
                may_wait: false,
                tenant: None,
                slo: SloTargets::default(),
                received: Moment::START,
            };
            let pools = CandidatePools::of(&model, &placement, None);
            let offered = pools.decode.candidates.into_iter();
            let reading = offered.filter(|candidate| candidate.fetches);
            reading
                .map(|candidate| candidate.name.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(fetches(true, &[], None), ["w1"]);
        for (may_fetch, failed, same_body_as) in [
            (false, &[][..], None),
            (true, &failed[..], None),
            (true, &[][..], Some(&first)),
        ] {
            let found = fetches(may_fetch, failed, same_body_as);
            assert!(found.is_empty(), "{may_fetch} {failed:?}");
        }
    }

    #[test]
    #[contract("S59", "S53")]
    fn only_workers_shown_to_honour_salts_are_candidates_of_a_strictly_isolated_tenant() {
        let of = |number, kind, salt_support| {
            let mut worker = test_support::worker(number);
            worker.engine.kind = kind;
            worker.salt_support = salt_support;
            worker
        };
        let model = test_support::model(vec![
            of(1, EngineKind::Vllm, SaltSupport::Honoured),
            of(2, EngineKind::Vllm, SaltSupport::Ignored),
            of(3, EngineKind::Vllm, SaltSupport::Unknown),
            // Its kind has no salts, whatever was observed before.
            of(4, EngineKind::Ollama, SaltSupport::Honoured),
            prefill(of(5, EngineKind::Vllm, SaltSupport::Unknown)),
            of(6, EngineKind::Generic, SaltSupport::Honoured),
        ]);
        let pools = |isolation| {
            let tenant = test_support::tenant_beside_another(isolation);
            let (overrides, facts) = (HeaderOverrides::default(), test_support::facts());
            let placement = PlacementRequest {
                overrides: &overrides,
                facts: &facts,
                failed: &[],
                same_body_as: None,
                may_wait: false,
                tenant: Some(&tenant),
                slo: SloTargets::default(),
                received: Moment::START,
            };
            let pools = CandidatePools::of(&model, &placement, None);
            [pools.decode, pools.prefill].map(names)
        };
        let acl = |name: &str| (name.to_owned(), ExcludeReason::Acl);
        let [decode, prefill] = pools(Isolation::Strict);
        assert_eq!(decode.0, ["w1", "w6"]);
        assert_eq!(decode.1, [acl("w2"), acl("w3"), acl("w4")]);
        assert_eq!((prefill.0, prefill.1), (Vec::new(), vec![acl("w5")]));
        let [decode, prefill] = pools(Isolation::Salted);
        assert_eq!((decode.0.len(), prefill.0.len()), (5, 1));
    }

    #[test]
    fn a_worker_whose_context_is_too_short_is_excluded_while_another_one_fits() {
        let limited = |limits: &[u32]| {
            let workers = (1..).take(limits.len()).map(test_support::worker).collect();
            let mut model = test_support::model(workers);
            for (candidate, limit) in model.candidates.iter_mut().zip(limits) {
                candidate.max_model_len = Some(*limit);
            }
            model
        };
        let facts = test_support::facts_of_tokens(100);
        let too_long = |name: &str| (name.to_owned(), ExcludeReason::ContextTooLong);
        let [decode, _] = sorted(&limited(&[100, 101]), &facts, &[]);
        assert_eq!(
            (decode.0, decode.1),
            (vec!["w2".to_owned()], vec![too_long("w1")])
        );
        let [decode, _] = sorted(&limited(&[50, 100]), &facts, &[]);
        assert_eq!(
            decode.0,
            ["w1", "w2"],
            "the engine's own error tells the client"
        );
        let pinned = RoutingFacts {
            pin: Some(Pin {
                worker: WorkerId(1),
                rank: None,
            }),
            ..facts
        };
        let [decode, _] = sorted(&limited(&[100, 101]), &pinned, &[]);
        assert!(decode.0.contains(&"w1".to_owned()));
        // A length that is only estimated excludes none.
        let [decode, _] = sorted(&limited(&[0, 1]), &test_support::facts(), &[]);
        assert_eq!(decode.0, ["w1", "w2"]);
    }

    #[test]
    fn a_prefill_worker_is_in_its_own_pool_and_only_there_excluded_as_busy() {
        // A full decode worker stays a candidate: the router queues the request for it.
        let model = test_support::model(vec![
            full(1),
            prefill(test_support::worker(2)),
            prefill(full(3)),
        ]);
        let [decode, prefill] = sorted(&model, &test_support::facts(), &[]);
        assert_eq!(decode.0, ["w1"]);
        assert_eq!(decode.1, [("w2".to_owned(), ExcludeReason::Role)]);
        assert_eq!(prefill.0, ["w2"]);
        assert_eq!(prefill.1, [("w3".to_owned(), ExcludeReason::Busy)]);
    }

    #[test]
    fn a_cooldown_counts_only_while_another_worker_is_eligible() {
        let pool = |workers| {
            let facts = test_support::facts();
            let overrides = HeaderOverrides::default();
            let placement = PlacementRequest {
                overrides: &overrides,
                facts: &facts,
                failed: &[],
                same_body_as: None,
                may_wait: false,
                tenant: None,
                slo: SloTargets::default(),
                received: Moment::START,
            };
            CandidatePools::of(&test_support::model(workers), &placement, None).decode
        };
        let cools = |worker| worker == WorkerId(1);
        let mut two = pool(vec![test_support::worker(1), test_support::worker(2)]);
        two.exclude_in_cooldown(cools, None, None);
        assert_eq!(
            names(two),
            (
                vec!["w2".to_owned()],
                vec![("w1".to_owned(), ExcludeReason::Busy)]
            )
        );
        let mut one = pool(vec![test_support::worker(1)]);
        one.exclude_in_cooldown(cools, None, None);
        assert_eq!(names(one).0, ["w1"]);
        // Busy workers are no alternative, nor are those that a pin rules out.
        let mut beside_full = pool(vec![test_support::worker(1), full(2)]);
        beside_full.exclude_in_cooldown(cools, None, Some(0.9));
        assert_eq!(names(beside_full).0, ["w1", "w2"]);
        let pin = Pin {
            worker: WorkerId(1),
            rank: None,
        };
        let mut pinned = pool(vec![test_support::worker(1), test_support::worker(2)]);
        pinned.exclude_in_cooldown(cools, Some(pin), None);
        assert_eq!(names(pinned).0, ["w1", "w2"]);
    }
}
