//! Decision: chooses a target for a request and counts its load.

use std::{sync::Arc, time::Duration};

use dialect::{ApiError, ErrorCode};
use fleet::{ModelView, Snapshot, WorkerView};
use kv_blocks::{DpRank, Moment};
use net::Clock;
use routing::{
    Decision, Dispatch, ExcludeReason, ExpectedReply, Job, JobAffinity, JobPrompt, JobSlo,
    JobTenant, KvDecisionCounters, Method, ModelRouting, ModelRoutingEntry, Overrides, Pin, Plan,
    Policy, PotentialLoad, PrefillPool, PrefixDecisionCounters, PrefixRoutedRequest,
    PromptKnowledge, QueueLimit, Refusal, ReplyMode, Router, RoutingSection, SessionKeys,
    SloTargets, Stopwatch, TargetPool, WaitBudget, receipt::PromptSource,
};
use tenants::Tenant;
use tokenization::TokenizedPrompt;

use super::{
    affinity::AffinityKeys,
    candidates::CandidatePools,
    overrides::{HeaderOverrides, printable},
    prefill::{Handover, PrefillContext, RequestPolicies},
    translate::ApiSupport,
};
use crate::{
    cooldowns::Cooldowns,
    errors,
    ids::IdGenerator,
    lease::{Lease, PlacedAttempt},
    queue_waiters::{QueueWaiters, Waiter},
};

/// The facts of a request that the decision needs, gathered once and used by every attempt.
#[derive(Debug)]
pub(crate) struct RoutingFacts {
    pub(crate) prompt: TokenizedPrompt,
    pub(crate) affinity: AffinityKeys,
    pub(crate) salt: Option<Arc<str>>,
    pub(crate) expected_output_tokens: Option<u32>,
    pub(crate) answer: ReplyMode,
    pub(crate) pin: Option<Pin>,
    /// Whether another worker may compute the prompt.
    pub(crate) handover: Handover,
    /// The workers that support the request's API.
    pub(crate) api_support: ApiSupport,
    /// Whether its engine may be told to read blocks from another one.
    pub(crate) may_fetch: bool,
}

/// One decision about a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacementRequest<'a> {
    pub(crate) overrides: &'a HeaderOverrides,
    pub(crate) facts: &'a RoutingFacts,
    /// Targets that failed the request before.
    pub(crate) failed: &'a [Pin],
    /// If set, considers only workers that accept the body already built for this one (hedging).
    pub(crate) same_body_as: Option<&'a WorkerView>,
    /// Whether the request may wait for a worker.
    pub(crate) may_wait: bool,
    pub(crate) tenant: Option<&'a Tenant>,
    /// The latency targets of the request and its tenant.
    pub(crate) slo: SloTargets,
    /// When the request arrived.
    pub(crate) received: Moment,
}

/// How long a request may wait for its decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacementWait {
    /// While workers are busy.
    pub(crate) budget: WaitBudget,
    /// In any case: until its own time limit.
    pub(crate) time_left: Duration,
}

/// Returns the router's view of a tenant, and of the program that sends the request: the session
/// that its client names.
pub(crate) fn job_tenant<'a>(tenant: &'a Tenant, session: Option<&SessionKeys>) -> JobTenant<'a> {
    let share = tenant.queue_share();
    JobTenant {
        name: tenant.name(),
        weight: share.weight,
        program: session.and_then(|keys| keys.name),
        most_queued: share.most_queued.map(|most| most.get() as usize),
        is_alone: tenant.is_alone(),
    }
}

/// The router's answer.
#[derive(Debug)]
pub(crate) enum PlacementOutcome {
    Placed(PlacedAttempt),
    Queued(Waiter),
    Refused(Refusal),
}

/// Resolves the worker that a request is pinned to: `name` or `name/rank`. `param` is the header or
/// field that named it.
pub(crate) fn pin(
    snapshot: &Snapshot,
    requested: Option<&str>,
    param: &str,
) -> Result<Option<Pin>, ApiError> {
    let Some(requested) = requested else {
        return Ok(None);
    };
    let unknown = || {
        ApiError::new(
            ErrorCode::UnknownWorker,
            format!(
                "there is no worker {:?}: expected the name of a worker, or name/rank",
                printable(requested)
            ),
        )
        .param(param)
    };
    resolve_worker(snapshot, requested)
        .map(Some)
        .ok_or_else(unknown)
}

/// Resolves `name` or `name/rank` to a pin.
pub(crate) fn resolve_worker(snapshot: &Snapshot, requested: &str) -> Option<Pin> {
    if let Some(worker) = snapshot.worker_named(requested) {
        return Some(Pin {
            worker: worker.id,
            rank: None,
        });
    }
    let (name, rank) = requested.rsplit_once('/')?;
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

/// Chooses targets for requests, and counts the load there.
#[derive(Clone, Debug)]
pub(crate) struct Decider {
    pub(crate) router: Arc<Router>,
    /// The waiting side of the same router, for every caller that may release queued requests.
    pub(crate) waiters: Arc<QueueWaiters>,
    pub(crate) cooldowns: Arc<Cooldowns>,
    pub(crate) prefill: Arc<PrefillContext>,
    pub(crate) counters: DecisionCounters,
    pub(crate) rules: PlacementRules,
    pub(crate) ids: Arc<IdGenerator>,
    pub(crate) clock: Clock,
}

/// Counters of placements, beside the receipts.
#[derive(Clone, Debug)]
pub struct DecisionCounters {
    /// By prompt beginning.
    pub prefix: Arc<PrefixDecisionCounters>,
    /// By the contents of the workers' caches.
    pub kv: Arc<KvDecisionCounters>,
}

/// Settings of the decision that a reload replaces.
#[derive(Clone, Debug)]
pub(crate) struct PlacementRules {
    pub(crate) general: Arc<RoutingSection>,
    /// Settings of single models that differ from the general ones.
    pub(crate) by_model: ModelRouting,
}

impl PlacementRules {
    pub(crate) fn of(section: &RoutingSection) -> Self {
        Self {
            general: Arc::new(section.clone()),
            by_model: ModelRouting::new(&section.models),
        }
    }

    /// Returns the settings of a model, by its own name, else by the base model's.
    fn of_model(&self, model: &ModelView) -> &ModelRoutingEntry {
        let base = model
            .candidates
            .first()
            .map_or(&model.id, |first| &first.namespace_model);
        self.by_model.of(&model.id, base)
    }
}

impl Decider {
    /// Chooses a target and counts the load there. Only a request that may wait is queued.
    pub(crate) fn place(
        &self,
        model: &ModelView,
        placement: &PlacementRequest<'_>,
        wait: Option<PlacementWait>,
    ) -> PlacementOutcome {
        self.with_job(model, placement, self.ids.next_random(), |now, job| {
            let job = Job {
                wait_budget: wait.map(|wait| wait.budget),
                time_left: wait.map(|wait| wait.time_left),
                ..*job
            };
            match self.router.decide(now, &job) {
                Dispatch::Plan(plan) => {
                    PlacementOutcome::Placed(self.placed_attempt(model, placement, *plan))
                }
                Dispatch::Queued(ticket) => {
                    PlacementOutcome::Queued(self.waiters.entered(now, ticket))
                }
                Dispatch::Refused(refusal) => PlacementOutcome::Refused(refusal),
            }
        })
    }

    /// Puts a request that no target can take into the queue, if a limit does not keep it out.
    pub(crate) fn enqueue(
        &self,
        model: &ModelView,
        placement: &PlacementRequest<'_>,
        budget: WaitBudget,
    ) -> Result<Waiter, QueueLimit> {
        let wait_budget = Some(budget);
        self.with_job(model, placement, self.ids.next_random(), |now, job| {
            self.waiters.enqueue(
                now,
                &Job {
                    wait_budget,
                    ..*job
                },
            )
        })
    }

    /// Gives the router new candidates for a queued request. Without a budget it is bound as soon
    /// as any target can take it.
    pub(crate) fn replace_candidates(
        &self,
        model: &ModelView,
        placement: &PlacementRequest<'_>,
        waiter: &Waiter,
        wait_budget: Option<WaitBudget>,
    ) {
        self.with_job(model, placement, self.ids.next_random(), |now, job| {
            waiter.replace_candidates(
                now,
                &Job {
                    wait_budget,
                    ..*job
                },
            );
        });
    }

    /// Combines the plan with the guard that frees its load.
    pub(crate) fn placed_attempt(
        &self,
        model: &ModelView,
        placement: &PlacementRequest<'_>,
        plan: Plan,
    ) -> PlacedAttempt {
        let lease = |id, target| Lease::new(Arc::clone(&self.waiters), id, target);
        let prefill = plan
            .prefill
            .as_ref()
            .map(|leg| lease(leg.reservation, leg.target));
        let prefix_routed = self.count(&plan.decision, &placement.facts.affinity);
        let lease = lease(plan.reservation, plan.decode.target)
            .with_prefill(prefill)
            .with_prefix_routed(prefix_routed);
        PlacedAttempt {
            decision: Box::new(completed(plan.decision, model, placement)),
            lease,
            prefill: plan.prefill,
            engine_priority: plan.engine_priority.number(self.started()),
        }
    }

    /// Returns the time from 1970 to the start of the process, by the present wall-clock time.
    fn started(&self) -> Duration {
        let now = Duration::from_millis(self.clock.unix_ms());
        now.saturating_sub(self.clock.now().since_start())
    }

    /// Returns the decision that [`Self::place`] would make; changes nothing.
    pub(crate) fn preview(
        &self,
        model: &ModelView,
        placement: &PlacementRequest<'_>,
    ) -> Result<Decision, Refusal> {
        let decision = self.with_job(model, placement, self.ids.peek_random(), |now, job| {
            self.router.preview(now, job)
        })?;
        Ok(completed(decision, model, placement))
    }

    /// Returns the load that every eligible target would have with the request; changes nothing.
    pub(crate) fn potential_loads(
        &self,
        model: &ModelView,
        placement: &PlacementRequest<'_>,
    ) -> Result<Vec<PotentialLoad>, Refusal> {
        self.with_job(model, placement, self.ids.peek_random(), |now, job| {
            self.router.potential_loads(now, job)
        })
    }

    /// Returns whether the blocks of the prompt matter for a decision: for the request's own, or
    /// for those of later requests, which rely on what the index and the ledger know of this one.
    pub(crate) fn reads_prompt(&self, policies: RequestPolicies, model: &ModelView) -> bool {
        let (own, general) = (self.rules.of_model(model), &self.rules.general);
        // Load is measured in blocks there, and prompts share them.
        let counts_blocks = own.busy_threshold.or(general.busy_threshold).is_some();
        // Whether the prompt is worth a prefill worker depends on what the decode worker holds.
        let is_split = policies.prefill.is_some();
        let usual = self.resolved_policies(None, model);
        let reads_prompt = |policy| self.router.reads_prompt(policy);
        counts_blocks || is_split || policies.any(reads_prompt) || usual.any(reads_prompt)
    }

    /// Resolves the policies: the request's own override, then the model's setting, then the
    /// general one.
    pub(crate) fn policies(
        &self,
        overrides: &HeaderOverrides,
        model: &ModelView,
    ) -> RequestPolicies {
        self.resolved_policies(overrides.policy, model)
    }

    /// Resolves the policies of a request that names this one, or none.
    fn resolved_policies(&self, named: Option<Policy>, model: &ModelView) -> RequestPolicies {
        let policy = |named| self.router.policy(named);
        let (own, general) = (self.rules.of_model(model), &self.rules.general);
        match self.prefill.split(model) {
            None => RequestPolicies {
                decode: policy(named.or(own.policy)),
                prefill: None,
            },
            Some(_) => {
                let decode = own.decode_policy.or(own.policy);
                let decode = decode.or(general.decode_policy);
                let prefill = own.prefill_policy.or(own.policy);
                let prefill = prefill.or(general.prefill_policy);
                RequestPolicies {
                    decode: policy(named.or(decode)),
                    prefill: Some(policy(prefill)),
                }
            }
        }
    }

    /// Builds candidates and exclusions and passes them to `act` as a job.
    fn with_job<T>(
        &self,
        model: &ModelView,
        placement: &PlacementRequest<'_>,
        random: u64,
        act: impl FnOnce(Moment, &Job<'_>) -> T,
    ) -> T {
        let PlacementRequest {
            overrides, facts, ..
        } = placement;
        let (own, general) = (self.rules.of_model(model), &self.rules.general);
        let busy_threshold = own.busy_threshold.or(general.busy_threshold);
        let policies = self.policies(overrides, model);
        let (pools, pin) = self.pools(model, placement, busy_threshold);
        let split = self
            .prefill
            .split(model)
            .filter(|_| !matches!(placement.facts.handover, Handover::NoPrompt));
        let prefill = split.map(|rules| PrefillPool {
            targets: TargetPool {
                candidates: &pools.prefill.candidates,
                excluded: &pools.prefill.excluded,
                policy: policies.prefill,
            },
            uncached_token_threshold: rules.uncached_token_threshold,
        });
        let (stopwatch, now) = (ClockStopwatch(self.clock), self.clock.now());
        let job = Job {
            targets: TargetPool {
                candidates: &pools.decode.candidates,
                excluded: &pools.decode.excluded,
                policy: Some(policies.decode),
            },
            prefill,
            pin,
            prompt: JobPrompt {
                blocks: facts.prompt.blocks.as_ref(),
                tokens: facts.prompt.tokens,
                knowledge: if facts.prompt.source == PromptSource::None {
                    PromptKnowledge::Length
                } else {
                    PromptKnowledge::Blocks
                },
            },
            affinity: JobAffinity {
                keys: facts.affinity.keys,
                session: facts.affinity.session.as_ref(),
                prefix_holders: facts.affinity.holders.as_deref(),
            },
            reply: ExpectedReply {
                mode: facts.answer,
                max_tokens: facts.expected_output_tokens,
                slo: JobSlo {
                    targets: placement.slo,
                    spent: now.since(placement.received),
                    is_admitted: !placement.failed.is_empty()
                        || matches!(facts.handover, Handover::NoPrompt),
                },
            },
            overrides: Overrides {
                overlap_weight: overrides.overlap_weight.or(own.overlap_weight),
                temperature: overrides.temperature.or(own.temperature),
                priority: overrides.priority,
                medium_weights: own.medium_weights.over(general.medium_weights),
            },
            busy_threshold,
            wait_budget: None,
            time_left: None,
            tenant: (placement.tenant)
                .map(|tenant| job_tenant(tenant, facts.affinity.session.as_deref())),
            random,
            stopwatch: &stopwatch,
        };
        act(now, &job)
    }

    /// Sorts the model's workers into candidates and exclusions, and returns them with the pin that
    /// applies to the decode pool.
    fn pools(
        &self,
        model: &ModelView,
        placement: &PlacementRequest<'_>,
        busy_threshold: Option<f64>,
    ) -> (CandidatePools, Option<Pin>) {
        let mut pools = CandidatePools::of(model, placement, busy_threshold);
        let mut pin = placement.facts.pin;
        if !matches!(placement.facts.handover, Handover::Possible) {
            // No prefill worker is used: a pin that names one is dropped, and the decode worker
            // stays open.
            pin = pin.filter(|pin| !pools.prefill.has(*pin));
            pools.prefill.candidates.clear();
        }
        if !self.cooldowns.is_empty() {
            let now = self.clock.now();
            let cools = |worker| self.cooldowns.is_cooling_down(worker, now);
            for pool in [&mut pools.decode, &mut pools.prefill] {
                pool.exclude_in_cooldown(cools, pin, busy_threshold);
            }
        }
        if let Some(cluster) = placement
            .facts
            .affinity
            .cluster
            .as_ref()
            .filter(|_| pin.is_none())
        {
            for pool in [&mut pools.decode, &mut pools.prefill] {
                pool.keep_cluster(cluster, busy_threshold);
            }
        }
        (pools, pin)
    }
}

impl Decider {
    /// Counts a decision that is carried out. Returns its place among the requests in flight that
    /// are routed by prefix, if it is one of them.
    fn count(&self, decision: &Decision, affinity: &AffinityKeys) -> Option<PrefixRoutedRequest> {
        self.counters.count(decision, affinity);
        self.router
            .routes_by_prefix(decision.policy)
            .then(|| self.counters.prefix.count(decision, &affinity.keys))
            .flatten()
    }
}

impl DecisionCounters {
    fn count(&self, decision: &Decision, affinity: &AffinityKeys) {
        self.kv.count(decision);
        let (uses_caches, by_view) = (decision.cache_use.is_some(), affinity.holders.is_some());
        if uses_caches && !by_view && decision.policy != Policy::Continuum {
            // A lookup in the block index; the prefix view times its own lookups.
            self.kv.record_query(Duration::from_secs_f64(
                decision.timing.lookup_us.max(0.0) / 1e6,
            ));
        }
    }
}

/// Converts a refusal into the client's error. A busy worker is available again later.
pub(crate) fn refusal_error(refusal: &Refusal) -> ApiError {
    let has = |reason: ExcludeReason| {
        refusal
            .excluded
            .iter()
            .any(|excluded| excluded.reason == reason)
    };
    if let Some(wait) = &refusal.no_room {
        errors::no_room(wait.expected)
    } else if let Some(miss) = &refusal.slo_miss {
        errors::slo_missed(miss)
    } else if has(ExcludeReason::Busy) {
        errors::all_busy()
    } else if has(ExcludeReason::Acl) {
        errors::no_isolated_worker()
    } else {
        errors::no_worker()
    }
}

/// Completes a decision with facts that the router does not get: no worker is healthy and the last
/// usable ones are tried all the same, since a probe may be wrong; and why there is no candidate
/// for the prefill.
fn completed(
    mut decision: Decision,
    model: &ModelView,
    placement: &PlacementRequest<'_>,
) -> Decision {
    if model.panic {
        decision.method = Method::Panic;
    }
    if let (Some(shown), Handover::Not(note)) = (&mut decision.prefill, &placement.facts.handover) {
        *shown = note.clone();
    }
    decision
}

/// The router's stopwatch, on the process's clock.
struct ClockStopwatch(Clock);

impl Stopwatch for ClockStopwatch {
    fn elapsed_us(&self) -> f64 {
        self.0.now().since_start().as_secs_f64() * 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{test_gateway::TestGateway, test_support};

    fn snapshot() -> Snapshot {
        let two_ranks = WorkerView {
            ranks: vec![test_support::worker(2).ranks[0]; 2],
            ..test_support::worker(2)
        };
        let slashed = WorkerView {
            name: "a/1".into(),
            ..test_support::worker(3)
        };
        Snapshot {
            workers: [test_support::worker(1), two_ranks, slashed]
                .map(Arc::new)
                .into(),
            ..Snapshot::default()
        }
    }

    #[test]
    fn a_pin_names_a_worker_or_one_of_its_ranks() {
        for (requested, worker, rank) in [
            ("w1", 1, None),
            ("w1/0", 1, Some(0)),
            ("w2/1", 2, Some(1)),
            ("a/1", 3, None),
            ("a/1/0", 3, Some(0)),
        ] {
            let found = resolve_worker(&snapshot(), requested);
            let expected = Pin {
                worker: kv_blocks::WorkerId(worker),
                rank: rank.map(DpRank),
            };
            assert_eq!(found, Some(expected), "{requested}");
        }
    }

    #[test]
    fn a_pin_to_an_unknown_worker_or_rank_is_refused_by_the_name_of_its_header() {
        for requested in ["w9", "w1/1", "w2/2", "w1/", "w1/x", "w1/-1", "/0", "", "W1"] {
            let error = pin(&snapshot(), Some(requested), "x-header").expect_err(requested);
            assert_eq!(error.code, ErrorCode::UnknownWorker, "{requested}");
        }
        assert_eq!(
            pin(&snapshot(), None, "x-header").expect("none is named"),
            None
        );
    }

    #[tokio::test]
    async fn the_requests_policy_comes_before_its_models_and_that_before_the_general_one() {
        let mut test = TestGateway::new();
        let request = test.chat(&[1]);
        let usual = HeaderOverrides::default();
        let general = test
            .delivery()
            .queue
            .decider
            .policies(&usual, &request.model)
            .decode;
        assert_ne!(general, Policy::LeastLoaded);
        let entry = ModelRoutingEntry {
            policy: Some(Policy::LeastLoaded),
            ..ModelRoutingEntry::default()
        };
        test.delivery_mut().queue.decider.rules.by_model =
            ModelRouting::new(&[("m".to_owned(), entry)]);
        let decider = &test.delivery().queue.decider;
        let policy = |overrides| decider.policies(overrides, &request.model).decode;
        assert_eq!(policy(&usual), Policy::LeastLoaded);
        assert_eq!(policy(&request.call.overrides), Policy::RoundRobin);
    }

    #[tokio::test]
    async fn the_engine_priority_counts_from_1970_whenever_the_router_started() {
        let test = TestGateway::new();
        let request = test.chat(&[1]);
        let retry_state = super::super::retry_state::RetryState::default();
        let placement = request.placement(&retry_state);
        let decider = &test.delivery().queue.decider;
        let PlacementOutcome::Placed(placed) = decider.place(&request.model, &placement, None)
        else {
            panic!("there is a worker");
        };
        // 2023, in milliseconds, times the ageing.
        assert!(placed.engine_priority > 1_672_531_200_000 / 20);
    }

    #[tokio::test]
    async fn a_preview_changes_nothing_and_shows_the_decision_that_follows() {
        let test = TestGateway::new();
        let request = test.chat(&[1, 2, 3]);
        let retry_state = super::super::retry_state::RetryState::default();
        let placement = request.placement(&retry_state);
        let decider = &test.delivery().queue.decider;
        for _ in 0..5 {
            let shown = decider
                .preview(&request.model, &placement)
                .expect("there are workers");
            let loads = decider.potential_loads(&request.model, &placement);
            assert_eq!(loads.expect("there are workers").len(), 3);
            assert_eq!(test.router.open_reservations(), 0);
            let PlacementOutcome::Placed(placed) = decider.place(&request.model, &placement, None)
            else {
                panic!("there are workers");
            };
            assert_eq!(placed.decision.winner.name, shown.winner.name);
        }
    }

    #[tokio::test]
    async fn the_last_usable_workers_are_marked_as_a_guess() {
        let test = TestGateway::new();
        let mut request = test.chat(&[1]);
        Arc::make_mut(&mut request.model).panic = true;
        let retry_state = super::super::retry_state::RetryState::default();
        let placement = request.placement(&retry_state);
        let decider = &test.delivery().queue.decider;
        let shown = decider
            .preview(&request.model, &placement)
            .expect("there is a worker");
        assert_eq!(shown.method, Method::Panic);
    }
}
