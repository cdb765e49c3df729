//! What every request shares.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use fleet::Fleet;
use http::HeaderName;
use kv_blocks::{HashScheme, WorkerId};
use lmcache::Controller;
use net::Clock;
use parity::ParityTracker;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use response_cache::ResponseCache;
use routing::{
    KvDecisionCounters, PrefixDecisionCounters, Router,
    receipt::{DecisionIds, ReceiptRing},
};
use supervision::contain;
use tokio::sync::watch;

use crate::{
    abort_switch::AbortSwitch,
    cache_filler::CacheFiller,
    coalesce::Coalescer,
    cooldowns::Cooldowns,
    decision_log::DecisionLog,
    embedder::Embedder,
    ids::IdGenerator,
    inbound_key::InboundKey,
    load_telemetry::LoadCollector,
    memory::MemoryPressure,
    metrics::{Metrics, ResultCounters},
    model_lists::{ModelListRefresher, ModelListSettings},
    model_names::ModelNames,
    model_routing::ModelRouting,
    parity_monitor::ParityMonitor,
    prefix_telemetry::PrefixCollector,
    queue_waiters::QueueWaiters,
    request::{
        BodyBudget, ClusterSettings, Clusters, Disaggregation, EngineTokenSettings,
        EngineTokenizer, HookSettings, Hooks, PrefillContext, RedisTokenStore, ReplyHeaders,
        RewriteSettings, StreamLimits, TokenCacheSettings, TokenizationStage, WaitLimits,
        hedge_results,
    },
    reservations::{CallTime, Reservations},
    response_affinity::ResponseAffinity,
    retry::{RetryBudget, RetryPermit, RetryRules},
    shared_prefixes::{SharedPrefixSettings, SharedPrefixes},
    upstream::ConnectionPools,
};

/// Sizes and times of the listener.
#[derive(Clone, Copy, Debug)]
pub struct ListenerLimits {
    /// Longest request head, bytes.
    pub max_head_bytes: usize,
    /// Longest request body, bytes.
    pub max_body_bytes: usize,
    /// Bytes of all bodies that are held at once.
    pub max_held_bytes: u64,
    /// Bytes of memory in use, near which things are given up; `None` = however many.
    pub memory_budget: Option<u64>,
    /// Of what a request may ask for how many.
    pub counts: CountLimits,
    /// Most header fields.
    pub max_headers: usize,
    /// Client connections open at once.
    pub max_connections: usize,
    /// An idle connection is closed after this.
    pub keep_alive: Duration,
    /// A request head must be complete this long after its first byte, and the first one of a connection this long after the
    /// connection was accepted.
    pub head_timeout: Duration,
    /// A request body must be complete this long after its head.
    pub body_timeout: Duration,
    /// A client that takes nothing of its reply for this long is given up.
    pub client_stall: Duration,
    /// Whether a client that ended its side of the connection still waits for its reply; if not, it is gone.
    pub half_close: bool,
    /// Whether one line is logged for each request.
    pub log_requests: bool,
}

/// How many things one request may ask for; 0 = as many as it likes.
#[derive(Clone, Copy, Debug)]
pub struct CountLimits {
    /// Completions of one prompt.
    pub choices: u64,
    /// Prompts.
    pub prompts: u64,
    /// Texts to stop at.
    pub stops: u64,
}

/// Times and retries of one request.
#[derive(Clone, Debug)]
pub struct RequestSettings {
    /// To a stream's first byte, or the end of any other reply, over all attempts.
    pub timeout: Duration,
    /// To an open connection.
    pub connect_timeout: Duration,
    /// Between two bytes of a running stream.
    pub stream_idle: Duration,
    /// Of a running stream as a whole.
    pub stream_total: Duration,
    /// Whether a stream that ends without having said that it is whole is cut.
    pub strict_streams: bool,
    /// Retries.
    pub retry: RetryRules,
    /// How prompts are hashed.
    pub scheme: HashScheme,
    /// Longest a prompt may take to tokenise, as predicted; beyond it its text stands for it.
    pub tokenize_budget: Duration,
    /// How token ids are kept that engines told.
    pub token_cache: TokenCacheSettings,
    /// A worker whose KV cache is fuller than this share gets nothing; `None` = off.
    pub busy_threshold: Option<f64>,
    /// Whether vLLM workers are told the queue's order.
    pub engine_priority: bool,
    /// What single models have otherwise.
    pub by_model: ModelRouting,
    /// A reservation ends this long after the last call about it.
    pub reservation_ttl: Duration,
    /// Bytes of a prompt's beginning that policies go by which keep equal beginnings together.
    pub max_prefix_bytes: usize,
    /// Headers that name a session, the first that is there counts.
    pub session_headers: Vec<HeaderName>,
    /// How prompts are computed apart from their replies.
    pub disaggregation: Disaggregation,
    /// How long requests wait.
    pub waiting: WaitLimits,
    /// Workers for prompts that mean alike, if any.
    pub clusters: Option<ClusterSettings>,
    /// How who served which beginning is remembered, if at all.
    pub shared_prefixes: Option<SharedPrefixSettings>,
    /// Which models a request may get for the name that it asks for.
    pub names: ModelNames,
    /// Who is asked before a generation is routed.
    pub hooks: Vec<HookSettings>,
    /// Which headers tell of the routing.
    pub headers: ReplyHeaders,
    /// What is changed in requests.
    pub rewriting: RewriteSettings,
    /// How long a finished reply answers requests like its own; `None` = every request is sent.
    pub deduplication: Option<Duration>,
    /// How old the list of models may be.
    pub model_lists: ModelListSettings,
    /// Where no byte came within this, another worker is asked too.
    pub hedge_after: Option<Duration>,
}

/// Everything [`Gateway::new`] needs.
#[derive(Debug)]
pub struct GatewayParts {
    /// The workers.
    pub fleet: Arc<Fleet>,
    /// The decision.
    pub router: Arc<Router>,
    /// Where receipts go.
    pub ring: Arc<ReceiptRing>,
    /// Where predictions are judged.
    pub parity: Arc<Mutex<ParityTracker>>,
    /// Where placements by the beginning of the prompt are counted.
    pub prefix_tally: Arc<PrefixDecisionCounters>,
    /// Where what knowledge of caches did is counted.
    pub kv_tally: Arc<KvDecisionCounters>,
    /// Where receipts are written to, if anywhere.
    pub log: Option<Arc<DecisionLog>>,
    /// Replies that answer later requests, where that is switched on.
    pub cache: Arc<ResponseCache>,
    /// The controller of LMCache, if there is one. Whoever started it stops it.
    pub lmcache: Option<Arc<Controller>>,
    /// Where token ids that engines told are shared, if anywhere.
    pub tokens: Option<RedisTokenStore>,
    /// The clock.
    pub clock: Clock,
    /// The inbound key.
    pub keys: InboundKey,
    /// Limits of the listener.
    pub limits: ListenerLimits,
    /// Rules of a request.
    pub rules: RequestSettings,
}

/// What every request shares: what goes on over a change of the configuration, and the rules in force.
///
/// A request keeps the one it began with ([`crate::InForce`]): it ends by the rules that it began by.
#[derive(Clone, Debug)]
pub struct Gateway {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) router: Arc<Router>,
    /// The same router, for whatever may release requests that it holds.
    pub(crate) waiters: Arc<QueueWaiters>,
    pub(crate) ring: Arc<ReceiptRing>,
    pub(crate) prefix_tally: Arc<PrefixDecisionCounters>,
    pub(crate) kv_tally: Arc<KvDecisionCounters>,
    pub(crate) log: Option<Arc<DecisionLog>>,
    pub(crate) parity_monitor: Arc<ParityMonitor>,
    pub(crate) clock: Clock,
    pub(crate) keys: InboundKey,
    pub(crate) limits: ListenerLimits,
    pub(crate) rules: RequestRules,
    pub(crate) tokenization: Arc<TokenizationStage>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) bodies: Arc<BodyBudget>,
    pub(crate) pools: ConnectionPools,
    pub(crate) ids: Arc<IdGenerator>,
    pub(crate) decision_ids: Arc<DecisionIds>,
    pub(crate) cut: Arc<AbortSwitch>,
    pub(crate) reservations: Arc<Reservations>,
    pub(crate) prefill: Arc<PrefillContext>,
    pub(crate) clusters: Option<Arc<Clusters>>,
    pub(crate) lmcache: Option<Arc<Controller>>,
    pub(crate) shared_prefixes: Option<Arc<SharedPrefixes>>,
    pub(crate) names: ModelNames,
    pub(crate) hooks: Hooks,
    pub(crate) response_affinity: Arc<ResponseAffinity>,
    pub(crate) coalescer: Arc<Coalescer>,
    pub(crate) cache: Arc<ResponseCache>,
    pub(crate) cache_filler: Arc<CacheFiller>,
    /// Says what questions mean, where replies are found by that.
    pub(crate) meaning: Option<Arc<Embedder>>,
    pub(crate) model_lists: Arc<ModelListRefresher>,
    pub(crate) hedging: ResultCounters,
    pub(crate) cooldowns: Arc<Cooldowns>,
    pub(crate) memory: Arc<MemoryPressure>,
    /// Requests whose account is open.
    pub(crate) running: Arc<AtomicU64>,
    /// Whether a drain has begun.
    pub(crate) leaving: Arc<AtomicBool>,
    /// Whether clients cannot connect any more, though no drain asked for that.
    pub(crate) failed: Arc<watch::Sender<bool>>,
    /// Whether the configuration on disk is not the one in force, because it was refused.
    pub(crate) config_refused: Arc<AtomicBool>,
    budget: RetryBudget,
}

/// [`Rules`] as the stages read them.
#[derive(Clone, Debug)]
pub(crate) struct RequestRules {
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) stream: StreamLimits,
    pub(crate) retry: RetryRules,
    pub(crate) busy_threshold: Option<f64>,
    pub(crate) engine_priority: bool,
    pub(crate) by_model: ModelRouting,
    pub(crate) session_headers: Vec<HeaderName>,
    pub(crate) max_prefix_bytes: usize,
    pub(crate) headers: ReplyHeaders,
    pub(crate) rewriting: RewriteSettings,
    pub(crate) deduplication: Option<Duration>,
    pub(crate) hedge_after: Option<Duration>,
    pub(crate) waiting: WaitLimits,
}

impl RequestRules {
    fn of(rules: RequestSettings) -> Self {
        Self {
            timeout: rules.timeout,
            connect_timeout: rules.connect_timeout,
            stream: StreamLimits {
                idle: rules.stream_idle,
                total: rules.stream_total,
                strict: rules.strict_streams,
            },
            retry: rules.retry,
            busy_threshold: rules.busy_threshold,
            engine_priority: rules.engine_priority,
            by_model: rules.by_model,
            max_prefix_bytes: rules.max_prefix_bytes,
            session_headers: rules.session_headers,
            headers: rules.headers,
            rewriting: rules.rewriting,
            deduplication: rules.deduplication,
            hedge_after: rules.hedge_after,
            waiting: rules.waiting,
        }
    }
}

impl Gateway {
    /// Puts the parts together and registers the metric families.
    pub fn new(parts: GatewayParts, registry: &mut Registry) -> Self {
        let GatewayParts {
            fleet,
            router,
            ring,
            parity,
            prefix_tally,
            kv_tally,
            log,
            cache,
            lmcache,
            tokens,
            clock,
            keys,
            limits,
            mut rules,
        } = parts;
        let names = std::mem::take(&mut rules.names);
        let hooks = Hooks::new(std::mem::take(&mut rules.hooks), registry);
        let load = LoadCollector {
            fleet: Arc::clone(&fleet),
            router: Arc::clone(&router),
        };
        registry.register_collector(Box::new(load));
        registry.register_collector(Box::new(PrefixCollector {
            fleet: Arc::clone(&fleet),
            router: Arc::clone(&router),
            tally: Arc::clone(&prefix_tally),
        }));
        let ids = IdGenerator::new();
        let pools = ConnectionPools::default();
        pools.local_faults.register(registry);
        let budget = rules.tokenize_budget;
        let told = EngineTokenSettings {
            here: rules.token_cache,
            shared: tokens,
        };
        let engine = EngineTokenizer::new(
            Arc::clone(&fleet),
            pools.clone(),
            clock,
            budget,
            rules.connect_timeout,
            told,
        );
        let identify = Arc::new(TokenizationStage::new(
            rules.scheme,
            budget,
            clock,
            engine,
            registry,
        ));
        let clusters = rules.clusters.clone().map(|settings| {
            let help = "Requests by what came of looking for their semantic cluster";
            let all = [
                "matched",
                "named",
                "below_threshold",
                "not_learnt",
                "no_text",
                "failed",
            ];
            let results =
                ResultCounters::registered(registry, "warmroute_semantic_clusters", help, &all);
            Arc::new(Clusters::new(
                settings,
                Arc::clone(&fleet),
                pools.clone(),
                clock,
                rules.connect_timeout,
                results,
            ))
        });
        let meaning = cache
            .settings()
            .semantic
            .embedding_model
            .as_deref()
            .map(|model| {
                let (fleet, pools) = (Arc::clone(&fleet), pools.clone());
                Arc::new(Embedder::new(
                    fleet,
                    pools,
                    clock,
                    rules.connect_timeout,
                    Arc::from(model),
                ))
            });
        let metrics = Arc::new(Metrics::new(registry));
        Self {
            meaning,
            lmcache,
            clusters,
            hooks,
            names,
            hedging: hedge_results(registry),
            model_lists: Arc::new(ModelListRefresher::new(rules.model_lists, registry)),
            coalescer: Arc::new(Coalescer::new(
                rules.deduplication.unwrap_or_default(),
                clock,
                registry,
            )),
            cache_filler: CacheFiller::start(Arc::clone(&cache), clock),
            cache,
            shared_prefixes: rules
                .shared_prefixes
                .map(|settings| Arc::new(SharedPrefixes::new(settings))),
            parity_monitor: Arc::new(ParityMonitor::new(parity, Arc::clone(&fleet), clock)),
            fleet,
            waiters: Arc::new(QueueWaiters::new(Arc::clone(&router), clock)),
            router,
            ring,
            prefix_tally,
            kv_tally,
            log,
            clock,
            keys,
            limits,
            tokenization: identify,
            budget: RetryBudget::new(rules.retry.budget_ratio),
            reservations: Arc::new(Reservations::new(rules.reservation_ttl)),
            response_affinity: Arc::default(),
            cooldowns: Arc::default(),
            memory: Arc::new(MemoryPressure::registered(registry)),
            prefill: Arc::new(PrefillContext::new(rules.disaggregation)),
            rules: RequestRules::of(rules),
            bodies: BodyBudget::new(metrics.held_body_bytes.clone()),
            metrics,
            pools,
            decision_ids: Arc::new(DecisionIds::new(ids.next_number())),
            cut: Arc::default(),
            running: Arc::default(),
            leaving: Arc::default(),
            failed: Arc::default(),
            config_refused: Arc::default(),
            ids: Arc::new(ids),
        }
    }

    /// The same with other limits and rules. Load, caches, connections and counters are shared with this one; of `rules`,
    /// what [`Gateway::new`] makes parts of (hashing, clusters, remembered prefixes, the life of reservations, the budget of
    /// tokenising) stays as it is here.
    #[must_use]
    pub fn with_settings(&self, limits: ListenerLimits, mut rules: RequestSettings) -> Self {
        self.coalescer
            .reconfigure(rules.deduplication.unwrap_or_default());
        self.model_lists.reconfigure(rules.model_lists);
        Self {
            hooks: self.hooks.with_hooks(std::mem::take(&mut rules.hooks)),
            names: std::mem::take(&mut rules.names),
            limits,
            budget: self.budget.with_ratio(rules.retry.budget_ratio),
            prefill: Arc::new(PrefillContext::new(rules.disaggregation)),
            rules: RequestRules::of(rules),
            ..self.clone()
        }
    }

    /// Requests that have not come to their end, whatever they ask for.
    pub fn running_requests(&self) -> u64 {
        self.running.load(Ordering::Relaxed)
    }

    /// Whether the configuration on disk was refused, for `/health`.
    pub fn set_config_refused(&self, refused: bool) {
        self.config_refused.store(refused, Ordering::Relaxed);
    }

    /// Clients cannot connect any more: probes say so from now on.
    pub(crate) fn fail(&self) {
        self.failed.send_replace(true);
    }

    /// Ends what others left to run out: pauses of workers that throttle, idle connections to workers, and reservations.
    pub(crate) fn end_overdue(&self) {
        let at = CallTime::now(self.clock);
        self.cooldowns.tick(at.now);
        self.pools.close_idle(at.now);
        self.reservations
            .tick(at, &self.fleet.snapshot(), &self.ring);
    }

    /// Takes leave of workers that are not configured any more and have nothing left to do.
    pub(crate) fn remove_drained(&self) {
        for worker in self
            .fleet
            .leaving()
            .into_iter()
            .filter(|worker| self.in_flight_on_worker(*worker) == 0)
        {
            // Aside, as a stream takes its time to end; of two tasks for one worker the second finds nothing to do.
            let (fleet, router, pools) = (
                Arc::clone(&self.fleet),
                Arc::clone(&self.router),
                self.pools.clone(),
            );
            tokio::spawn(contain("worker_removal", async move {
                fleet.remove(worker).await;
                router.forget(worker);
                pools.close_worker(worker);
            }));
        }
    }

    /// Requests that run on a worker, on all its ranks.
    pub fn in_flight_on_worker(&self, worker: WorkerId) -> u64 {
        let snapshot = self.fleet.snapshot();
        let targets = snapshot
            .worker(worker)
            .into_iter()
            .flat_map(|worker| worker.targets());
        targets
            .map(|target| u64::from(self.router.load(target).in_flight))
            .sum()
    }

    /// Room for one retry, as a share of the requests in flight here: those of reservations are others' to try again.
    pub(crate) fn retry_permit(&self) -> Option<RetryPermit> {
        self.budget.take(
            self.router
                .open_reservations()
                .saturating_sub(self.reservations.count()),
        )
    }
}
