//! The decision state machine.

use std::sync::Arc;

use arc_swap::ArcSwap;
use kv_blocks::{Moment, Namespace, Target, WorkerId};
use kv_index::KvIndex;

use crate::{
    AttemptEnd, FetchCounts, Policy, Rates, ReleasedRequest, ReportedWork, ReservationId,
    RoutingSettings, SessionMode, TargetLoad, Ticket, TtftRatios,
    policy::rule::PolicyRules,
    queue::{QueueEnd, TargetAvailability},
    replication::change::LoadChange,
    state::RouterState,
    state_lock::StateLock,
};

/// The decision state machine, shared by all requests. It has one lock; every call holds it
/// briefly.
///
/// ```
/// use std::sync::Arc;
///
/// use kv_blocks::{BlockSize, DpRank, Moment, Namespace, PromptIdentity, Target, WorkerId};
/// use kv_index::{IndexSettings, KvIndex};
/// use routing::{
///     CacheSource, Candidate, Dispatch, Job, JobPrompt, LmcacheFacts, Router, RoutingSettings,
///     TargetPool, Tiers,
/// };
///
/// let index = Arc::new(KvIndex::new(IndexSettings::default()));
/// let router = Router::new(RoutingSettings::default(), index);
/// let candidate = Candidate {
///     target: Target { worker: WorkerId(1), rank: DpRank(0) },
///     name: "w1".into(),
///     namespace: Namespace {
///         model: "qwen".into(),
///         lora: None,
///         salt: None,
///         block_size: BlockSize::new(16).unwrap(),
///         identity: PromptIdentity::Tokens,
///     },
///     weight: 1.0,
///     cache: CacheSource::Events,
///     total_blocks: None,
///     tiers: Tiers::default(),
///     stream_state: Some("live"),
///     health: "ready",
///     lmcache: LmcacheFacts::default(),
///     usage: None,
///     fetches: false,
/// };
/// let job = Job {
///     targets: TargetPool { candidates: &[candidate], ..TargetPool::default() },
///     prompt: JobPrompt { tokens: 100, ..JobPrompt::default() },
///     random: 7,
///     ..Job::default()
/// };
/// let Dispatch::Plan(plan) = router.decide(Moment::START, &job) else {
///     panic!("one worker is free")
/// };
/// assert_eq!(router.load(plan.decode.target).in_flight, 1);
/// router.done(Moment::START, plan.reservation);
/// assert_eq!(router.open_reservations(), 0);
/// ```
#[derive(Debug)]
pub struct Router {
    pub(crate) settings: ArcSwap<RoutingSettings>,
    pub(crate) index: Arc<KvIndex>,
    pub(crate) state: StateLock,
}

impl Router {
    /// Creates a router without load that looks blocks up in `index`.
    pub fn new(settings: RoutingSettings, index: Arc<KvIndex>) -> Self {
        Self {
            state: StateLock::new(RouterState::new(&settings)),
            settings: ArcSwap::from_pointee(settings),
            index,
        }
    }

    /// Replaces the settings. Load, learned rates and sessions stay; the turns of the policies
    /// start over.
    pub fn reconfigure(&self, settings: RoutingSettings) {
        let forgotten = {
            let state = &mut *self.state.lock();
            if **self.settings.load() == settings {
                return;
            }
            state.rules = PolicyRules::new(&settings);
            let forgotten = state
                .ledger
                .live
                .set_enabled(settings.section.follows_live_blocks());
            self.settings.store(Arc::new(settings));
            forgotten
        };
        // To free many blocks takes longer than the lock may be held.
        drop(forgotten);
    }

    /// Returns how many leading blocks of these tokens each target holds, in the order of targets;
    /// targets without the first block are left out. Source: contract DY17.
    pub fn find_matches(
        &self,
        namespace: &Namespace,
        tokens: &[u32],
        now: Moment,
    ) -> Vec<(Target, u32)> {
        self.index.find_matches(namespace, tokens, now)
    }

    /// Returns the policy of a request that names this one, or none.
    pub fn policy(&self, requested: Option<Policy>) -> Policy {
        requested.unwrap_or(self.settings.load().policy)
    }

    /// Returns the effect of [`JobAffinity::session`](crate::JobAffinity::session) under this
    /// policy; [`SessionMode::Off`]: it is ignored.
    pub fn session_mode(&self, policy: Policy) -> SessionMode {
        let mode = self.settings.load().section.session.mode;
        mode.effective_under(policy)
    }

    /// Returns whether a decision under this policy may depend on the blocks or the tokens of the
    /// prompt. Under the others nobody needs to compute them.
    pub fn reads_prompt(&self, policy: Policy) -> bool {
        let settings = self.settings.load();
        let fallback = settings.fallback_of(policy);
        policy.reads_prompt() || fallback.is_some_and(Policy::reads_prompt)
    }

    /// Returns whether requests under this policy count as routed by the beginning of their prompt.
    pub fn routes_by_prefix(&self, policy: Policy) -> bool {
        self.settings.load().routes_by_prefix(policy)
    }

    /// Records the first token of a reservation: its prompt is computed. Returns queued requests
    /// that may start now.
    pub fn first_token(&self, now: Moment, id: ReservationId) -> Vec<ReleasedRequest> {
        {
            let state = &mut *self.state.lock();
            let Some(target) = state.ledger.target(id) else {
                return Vec::new();
            };
            state.first_token(now, id);
            state.target_changed(now, target, &self.settings.load().queue);
        }
        self.release(now)
    }

    /// Ends an attempt: frees its load and counts its result for the worker's success rate. If the
    /// worker did not receive the prompt, the blocks expected of it are withdrawn; otherwise equal
    /// prompts would be routed to exactly the worker that refuses them. Blocks that the engine
    /// confirmed meanwhile, or that another request renewed, stay. Unknown and repeated ids are
    /// ignored. Returns queued requests that may start now.
    pub fn end_attempt(
        &self,
        now: Moment,
        id: ReservationId,
        end: AttemptEnd,
    ) -> Vec<ReleasedRequest> {
        let prompt_received = end.prompt_received();
        let speculation = {
            let state = &mut *self.state.lock();
            let Some(target) = state.ledger.target(id) else {
                return Vec::new();
            };
            let Some(speculation) = state.close(now, id, end) else {
                return Vec::new();
            };
            state.share(|| LoadChange::Closed {
                id,
                prompt_received,
                succeeded: end.succeeded(),
            });
            state.target_changed(now, target, &self.settings.load().queue);
            speculation
        };
        // Outside the lock.
        if !prompt_received {
            self.index.retract(speculation);
        }
        self.release(now)
    }

    /// Ends an attempt that failed before its reply began.
    pub fn failed(&self, now: Moment, id: ReservationId) -> Vec<ReleasedRequest> {
        self.end_attempt(now, id, AttemptEnd::Failed)
    }

    /// Ends an attempt with a whole reply.
    pub fn done(&self, now: Moment, id: ReservationId) -> Vec<ReleasedRequest> {
        self.end_attempt(now, id, AttemptEnd::Complete)
    }

    /// Records the tokens of a request that its engine reported, before the attempt ends: its tenant
    /// is charged with them in place of the estimate.
    pub fn record_work(&self, now: Moment, id: ReservationId, reported: ReportedWork) {
        self.state.lock().record_work(now, id, reported);
    }

    /// Returns how reads of blocks from other workers ended.
    pub fn fetch_counts(&self) -> FetchCounts {
        self.state.lock().fetches.counts()
    }

    /// Records the length of a complete reply, for the expected length of later ones.
    pub fn record_reply_length(&self, output_tokens: u32) {
        let state = &mut *self.state.lock();
        state.output.observe(output_tokens);
        state.share(|| LoadChange::ReplyLength(output_tokens));
    }

    /// Returns the expected length of a reply with this limit, in tokens.
    pub fn expected_reply_length(&self, max_tokens: Option<u32>) -> u32 {
        let expected = self.state.lock().output.expected(max_tokens);
        // From 1 to 1,024.
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is small"
        )]
        let whole = expected.ceil() as u32;
        whole
    }

    /// Returns queued requests that may start now; also frees what has expired in the index. Call
    /// it about once a second.
    pub fn tick(&self, now: Moment) -> Vec<ReleasedRequest> {
        self.index.expire(now);
        let (retired, followed) = {
            let RouterState { queue, ledger, .. } = &mut *self.state.lock();
            let settings = self.settings.load();
            let waiting = settings.queue;
            ledger.expire_prefills(now);
            let availability = TargetAvailability::new(ledger, &waiting);
            if settings.section.admission.is_on() && waiting.enabled {
                queue.room_may_be_free(now, availability);
            } else {
                queue.end_room_waits(now, waiting.wait, availability);
            }
            (ledger.take_retired(), ledger.live.followed())
        };
        drop(retired);
        self.observe_caches(now, &followed);
        self.release(now)
    }

    /// Records how full the caches of targets are, by the block index.
    fn observe_caches(&self, now: Moment, targets: &[Target]) {
        for target in targets {
            let [held, ..] = self.index.blocks_per_tier(*target);
            let live = &mut self.state.lock().ledger.live;
            live.observe_held(now, *target, held);
        }
    }

    /// Returns some of the queued requests that may start now, however many there are:
    /// [`Router::next_release`] returns when to continue. Call it after another request is queued: it
    /// may start at once.
    pub fn take_released(&self, now: Moment) -> Vec<ReleasedRequest> {
        self.release(now)
    }

    /// Returns when queued requests may start without any further call; [`Router::take_released`]
    /// should be called then, at once if that is not after `now`. `None`: not before a further
    /// call.
    pub fn next_release(&self, now: Moment) -> Option<Moment> {
        self.state
            .lock()
            .queue
            .next_work()
            .map(|then| then.max(now))
    }

    /// Takes a request out of the queue; `false`: it is not there, because it was released or
    /// cancelled before.
    pub fn cancel(&self, ticket: Ticket) -> bool {
        let queue = &mut self.state.lock().queue;
        queue.remove(ticket, QueueEnd::GivenUp).is_some()
    }

    /// Returns the number of queued requests.
    pub fn queued_requests(&self) -> usize {
        self.state.lock().queue.len()
    }

    /// Returns the number of queued requests of the tenant with this name.
    pub fn queued_requests_of(&self, tenant: &str) -> usize {
        self.state.lock().queue.len_of(tenant)
    }

    /// Returns a target's load.
    pub fn load(&self, target: Target) -> TargetLoad {
        self.state.lock().ledger.load(target)
    }

    /// Returns the estimated speed of a worker.
    pub fn rates(&self, worker: WorkerId) -> Rates {
        self.state.lock().rates.of(worker)
    }

    /// Returns how the predicted times to first token of a worker compare with the actual ones, for
    /// each class of their lengths.
    pub fn ttft_ratios(&self, worker: WorkerId) -> Vec<TtftRatios> {
        self.state.lock().ttft_parity.report(worker)
    }

    /// Drops the learned state of a removed worker. Its requests in flight stay counted until they
    /// are done.
    pub fn forget(&self, worker: WorkerId) {
        let state = &mut *self.state.lock();
        state.ledger.forget(worker);
        state.rates.forget(worker);
        state.latencies.forget(worker);
        state.ttft_parity.forget(worker);
        state.fetches.forget(worker);
        state.health.forget(worker);
        state.rules.forget(worker);
        state.sessions.forget(worker);
        state.lending.forget(worker);
    }

    /// Returns the number of keys by which sessions are remembered.
    pub fn session_keys(&self) -> usize {
        self.state.lock().sessions.len()
    }

    /// Returns the number of this router's own open reservations.
    pub fn open_reservations(&self) -> usize {
        self.state.lock().ledger.open_reservations()
    }
}
