//! The state that all requests share.

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
use proxy::{AbortSwitch, ConnectionPools, Upstream};
use resilience::OutcomeCounters;
use response_cache::ResponseCache;
use routing::{
    KvDecisionCounters, PrefixDecisionCounters, Router,
    receipt::{DecisionIds, ReceiptRing},
};
use supervision::contain;
use tokenization::{
    EngineTokenSettings, EngineTokenizer, RedisTokenStore, TokenCacheSettings, TokenizationStage,
    WorkerClient,
};
use tokio::sync::watch;

use crate::{
    cache_filler::CacheFiller,
    coalesce::Coalescer,
    cooldowns::Cooldowns,
    decision_log::DecisionLog,
    embedder::Embedder,
    ids::IdGenerator,
    inbound_key::InboundKey,
    load_telemetry::LoadCollector,
    memory::MemoryPressure,
    metrics::Metrics,
    model_lists::{ModelListRefresher, ModelListSettings},
    model_names::ModelNames,
    model_routing::ModelRouting,
    parity_monitor::ParityMonitor,
    prefix_telemetry::PrefixCollector,
    queue_waiters::QueueWaiters,
    request::{
        BodyBudget, ClusterSettings, Clusters, Disaggregation, HookSettings, Hooks, PrefillContext,
        ReplyHeaders, RewriteSettings, StreamLimits, WaitLimits, hedge_results,
    },
    reservations::{CallTime, Reservations},
    response_affinity::ResponseAffinity,
    retry::{RetryBudget, RetryPermit, RetryRules},
    shared_prefixes::{SharedPrefixSettings, SharedPrefixes},
};

/// Sizes and times of the listener.
#[derive(Clone, Copy, Debug)]
pub struct ListenerLimits {
    /// Longest request head, bytes.
    pub max_head_bytes: usize,
    /// Longest request body, bytes.
    pub max_body_bytes: usize,
    /// Most bytes of all buffered bodies together.
    pub max_held_bytes: u64,
    /// Memory budget of the process, bytes; `None`: unlimited.
    pub memory_budget: Option<u64>,
    /// Per-request count limits (`n`, prompts, stop sequences).
    pub counts: CountLimits,
    /// Most header fields of a request.
    pub max_headers: usize,
    /// Most open client connections.
    pub max_connections: usize,
    /// An idle connection is closed after this.
    pub keep_alive: Duration,
    /// Time limit for a request head, from its first byte; for the first head of a connection, from
    /// the moment when the connection was accepted.
    pub head_timeout: Duration,
    /// Time limit for a request body, from the end of its head.
    pub body_timeout: Duration,
    /// A reply whose client reads nothing for this long is aborted.
    pub client_stall: Duration,
    /// Whether a client that has closed its sending side still waits for its reply; if not, it
    /// counts as disconnected.
    pub half_close: bool,
    /// Whether each request logs one line.
    pub log_requests: bool,
}

/// Per-request count limits; 0 = unlimited.
#[derive(Clone, Copy, Debug)]
pub struct CountLimits {
    /// Completions of one prompt.
    pub choices: u64,
    /// Prompts.
    pub prompts: u64,
    /// Stop sequences.
    pub stops: u64,
}

/// Times and retries of one request.
#[derive(Clone, Debug)]
pub struct RequestSettings {
    /// Time limit to a stream's first byte, or to the end of any other reply, over all attempts.
    pub timeout: Duration,
    /// Time limit to open a connection.
    pub connect_timeout: Duration,
    /// Longest pause between two bytes of a running stream.
    pub stream_idle: Duration,
    /// Time limit of a running stream as a whole.
    pub stream_total: Duration,
    /// Whether a stream that ends without its end marker is reported to the client as cut.
    pub strict_streams: bool,
    /// Retry rules.
    pub retry: RetryRules,
    /// How prompts are hashed.
    pub scheme: HashScheme,
    /// Longest predicted time to tokenize a prompt; beyond it the text prefix stands for the
    /// prompt.
    pub tokenize_budget: Duration,
    /// Cache of token ids from engines.
    pub token_cache: TokenCacheSettings,
    /// A worker whose KV cache usage is above this share gets no new request; `None`: off.
    pub busy_threshold: Option<f64>,
    /// Whether vLLM workers get the queue's order as their engine priority.
    pub engine_priority: bool,
    /// Settings of single models that differ from these.
    pub by_model: ModelRouting,
    /// A reservation ends this long after the last call about it.
    pub reservation_ttl: Duration,
    /// Longest prompt beginning, in bytes, for policies that route equal beginnings together.
    pub max_prefix_bytes: usize,
    /// Headers that name a session; the first one present wins.
    pub session_headers: Vec<HeaderName>,
    /// Prefill/decode disaggregation.
    pub disaggregation: Disaggregation,
    /// Queue wait limits.
    pub waiting: WaitLimits,
    /// Semantic clusters, if configured.
    pub clusters: Option<ClusterSettings>,
    /// The memory of shared prompt beginnings, if configured.
    pub shared_prefixes: Option<SharedPrefixSettings>,
    /// Rules that map a requested model name to the models that may serve it.
    pub names: ModelNames,
    /// Hooks that run before a generation is routed.
    pub hooks: Vec<HookSettings>,
    /// Headers that describe the routing in replies.
    pub headers: ReplyHeaders,
    /// Changes that are made to request bodies.
    pub rewriting: RewriteSettings,
    /// How long a finished reply answers equal requests; `None`: no coalescing.
    pub deduplication: Option<Duration>,
    /// Refresh settings of the model list.
    pub model_lists: ModelListSettings,
    /// Time without a first byte after which a hedge starts.
    pub hedge_after: Option<Duration>,
}

/// The arguments of [`Gateway::new`].
#[derive(Debug)]
pub struct GatewayParts {
    /// The workers.
    pub fleet: Arc<Fleet>,
    /// The router, which decides.
    pub router: Arc<Router>,
    /// The ring of recent receipts.
    pub ring: Arc<ReceiptRing>,
    /// The parity tracker, which judges predictions.
    pub parity: Arc<Mutex<ParityTracker>>,
    /// Counters of placements by prompt beginning.
    pub prefix_tally: Arc<PrefixDecisionCounters>,
    /// Counters of KV-aware decisions.
    pub kv_tally: Arc<KvDecisionCounters>,
    /// The decision log, if configured.
    pub log: Option<Arc<DecisionLog>>,
    /// The response cache.
    pub cache: Arc<ResponseCache>,
    /// The client of LMCache's controller, if configured. The part that starts it also stops it.
    pub lmcache: Option<Arc<Controller>>,
    /// The shared store of token ids from engines, if configured.
    pub tokens: Option<RedisTokenStore>,
    /// The clock.
    pub clock: Clock,
    /// The inbound key.
    pub keys: InboundKey,
    /// Limits of the listener.
    pub limits: ListenerLimits,
    /// Settings of a request.
    pub rules: RequestSettings,
}

/// The state that all requests share: the parts that outlive a reload, and the settings in force.
///
/// A request keeps the gateway that it began with ([`crate::CurrentGateway`]): it ends by the rules
/// that it began by.
#[derive(Clone, Debug)]
pub struct Gateway {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) router: Arc<Router>,
    /// The waiting side of the same router, for every caller that may release queued requests.
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
    /// The connections themselves, to be closed; requests use `upstream`.
    pub(crate) pools: ConnectionPools,
    pub(crate) upstream: Arc<dyn Upstream>,
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
    /// Computes embeddings of prompts for the similarity lookup, if configured.
    pub(crate) meaning: Option<Arc<Embedder>>,
    pub(crate) model_lists: Arc<ModelListRefresher>,
    pub(crate) hedging: OutcomeCounters,
    pub(crate) cooldowns: Arc<Cooldowns>,
    pub(crate) memory: Arc<MemoryPressure>,
    /// Requests whose guard is open.
    pub(crate) running: Arc<AtomicU64>,
    /// Whether a drain has begun.
    pub(crate) leaving: Arc<AtomicBool>,
    /// Whether clients can no longer connect although no drain was requested.
    pub(crate) failed: Arc<watch::Sender<bool>>,
    /// Whether the configuration on disk was refused, so that it differs from the one in force.
    pub(crate) config_refused: Arc<AtomicBool>,
    budget: RetryBudget,
}

/// [`RequestSettings`] as the stages read them.
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
    /// Builds the parts and registers the metric families.
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
        let pools = ConnectionPools::new(clock, registry);
        let upstream: Arc<dyn Upstream> = Arc::new(pools.clone());
        let workers = WorkerClient {
            fleet: Arc::clone(&fleet),
            upstream: Arc::clone(&upstream),
            clock,
            connect_timeout: rules.connect_timeout,
        };
        let budget = rules.tokenize_budget;
        let settings = EngineTokenSettings {
            here: rules.token_cache,
            shared: tokens,
        };
        let engine = EngineTokenizer::new(workers.clone(), budget, settings);
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
                OutcomeCounters::registered(registry, "warmroute_semantic_clusters", help, &all);
            Arc::new(Clusters::new(settings, workers.clone(), results))
        });
        let meaning = cache
            .settings()
            .semantic
            .embedding_model
            .as_deref()
            .map(|model| Arc::new(Embedder::new(workers.clone(), Arc::from(model))));
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
            upstream,
            decision_ids: Arc::new(DecisionIds::new(ids.next_number())),
            cut: Arc::default(),
            running: Arc::default(),
            leaving: Arc::default(),
            failed: Arc::default(),
            config_refused: Arc::default(),
            ids: Arc::new(ids),
        }
    }

    /// Returns a gateway with other limits and rules that shares load, caches, connections and
    /// counters with this one. The parts of `rules` that [`Gateway::new`] consumes (hashing,
    /// clusters, shared prefixes, the reservation TTL, the tokenization budget) stay unchanged.
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

    /// Returns the number of requests of all routes that have not ended.
    pub fn running_requests(&self) -> u64 {
        self.running.load(Ordering::Relaxed)
    }

    /// Records whether the configuration on disk was refused, for `/health`.
    pub fn set_config_refused(&self, refused: bool) {
        self.config_refused.store(refused, Ordering::Relaxed);
    }

    /// Records that clients can no longer connect; probes fail from now on.
    pub(crate) fn fail(&self) {
        self.failed.send_replace(true);
    }

    /// Expires what has timed out: worker cooldowns, idle connections to workers, and reservations.
    pub(crate) fn end_overdue(&self) {
        let at = CallTime::now(self.clock);
        self.cooldowns.tick(at.now);
        self.pools.close_idle(at.now);
        self.reservations
            .tick(at, &self.fleet.snapshot(), &self.ring);
    }

    /// Removes workers that are no longer configured and have no work left.
    pub(crate) fn remove_drained(&self) {
        for worker in self
            .fleet
            .leaving()
            .into_iter()
            .filter(|worker| self.in_flight_on_worker(*worker) == 0)
        {
            // In its own task, since a stream takes its time to end; a second task for the same
            // worker finds nothing to do.
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

    /// Returns the requests in flight on a worker, over all its ranks.
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

    /// Takes a permit for one retry. The budget is a share of the requests in flight here;
    /// reservations do not count, since their holders retry on their own.
    pub(crate) fn retry_permit(&self) -> Option<RetryPermit> {
        self.budget.take(
            self.router
                .open_reservations()
                .saturating_sub(self.reservations.count()),
        )
    }
}
