//! What every request shares.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fleet::Fleet;
use http::HeaderName;
use kv_blocks::HashScheme;
use net::Clock;
use parity::Book;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use routing::{
    PrefixTally, Router,
    receipt::{DecisionIds, Ring},
};

use crate::{
    alike::Alike,
    cut_switch::CutSwitch,
    decision_log::DecisionLog,
    desk::Desk,
    ids::Ids,
    judge::Judge,
    keys::Keys,
    load_telemetry::LoadCollector,
    lobby::{Lobby, Waiting},
    metrics::{ClusterResults, Metrics},
    model_lists::{ModelListSettings, ModelLists},
    model_names::ModelNames,
    model_routing::ModelRouting,
    prefix_telemetry::PrefixCollector,
    request::{
        ClusterSettings, Clusters, Disaggregation, Hedging, HookSettings, Hooks, Identify, Prefills, ReplyHeaders,
        StreamLimits,
    },
    reservations::Reservations,
    retry::{RetryBudget, RetryPermit, RetryRules},
    shared_prefixes::{SharedPrefixSettings, SharedPrefixes},
    upstream::Pools,
};

/// Sizes and times of the listener.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest request head, bytes.
    pub max_head_bytes: usize,
    /// Longest request body, bytes.
    pub max_body_bytes: usize,
    /// Most header fields.
    pub max_headers: usize,
    /// Client connections open at once.
    pub max_connections: usize,
    /// An idle connection is closed after this.
    pub keep_alive: Duration,
    /// A request head must be complete this long after its first byte.
    pub head_timeout: Duration,
    /// A client that takes nothing of its reply for this long is given up.
    pub client_stall: Duration,
    /// Whether one line is logged for each request.
    pub log_requests: bool,
}

/// Times and retries of one request.
#[derive(Clone, Debug)]
pub struct Rules {
    /// To a stream's first byte, or the end of any other reply, over all attempts.
    pub timeout: Duration,
    /// To an open connection.
    pub connect_timeout: Duration,
    /// Between two bytes of a running stream.
    pub stream_idle: Duration,
    /// Of a running stream as a whole.
    pub stream_total: Duration,
    /// Retries.
    pub retry: RetryRules,
    /// How prompts are hashed.
    pub scheme: HashScheme,
    /// Longest a prompt may take to tokenise, as predicted; beyond it its text stands for it.
    pub tokenize_budget: Duration,
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
    /// How requests wait.
    pub waiting: Waiting,
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
    pub ring: Arc<Ring>,
    /// Where predictions are judged.
    pub parity: Arc<Mutex<Book>>,
    /// Where placements by the beginning of the prompt are counted.
    pub prefix_tally: Arc<PrefixTally>,
    /// Where receipts are written to, if anywhere.
    pub log: Option<Arc<DecisionLog>>,
    /// The clock.
    pub clock: Clock,
    /// The inbound key.
    pub keys: Keys,
    /// Limits of the listener.
    pub limits: Limits,
    /// Rules of a request.
    pub rules: Rules,
}

/// What every request shares.
#[derive(Debug)]
pub struct Gateway {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) router: Arc<Router>,
    /// The same router, for whatever may release requests that it holds.
    pub(crate) desk: Arc<Desk>,
    pub(crate) lobby: Arc<Lobby>,
    pub(crate) ring: Arc<Ring>,
    pub(crate) prefix_tally: Arc<PrefixTally>,
    pub(crate) log: Option<Arc<DecisionLog>>,
    pub(crate) judge: Judge,
    pub(crate) clock: Clock,
    pub(crate) keys: Keys,
    pub(crate) limits: Limits,
    pub(crate) rules: RequestRules,
    pub(crate) identify: Identify,
    pub(crate) metrics: Metrics,
    pub(crate) pools: Pools,
    pub(crate) ids: Ids,
    pub(crate) decision_ids: DecisionIds,
    pub(crate) cut: CutSwitch,
    pub(crate) reservations: Reservations,
    pub(crate) prefill: Prefills,
    pub(crate) clusters: Option<Clusters>,
    pub(crate) shared_prefixes: Option<SharedPrefixes>,
    pub(crate) names: ModelNames,
    pub(crate) hooks: Option<Hooks>,
    pub(crate) alike: Option<Arc<Alike>>,
    pub(crate) model_lists: ModelLists,
    pub(crate) hedging: Option<Hedging>,
    /// Requests whose account is open.
    pub(crate) running: AtomicU64,
    budget: RetryBudget,
}

/// [`Rules`] as the stages read them.
#[derive(Debug)]
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
}

impl Gateway {
    /// Puts the parts together and registers the metric families.
    pub fn new(parts: GatewayParts, registry: &mut Registry) -> Self {
        let GatewayParts { fleet, router, ring, parity, prefix_tally, log, clock, keys, limits, rules } = parts;
        let lobby = Arc::new(Lobby::new(rules.waiting));
        let load = LoadCollector { fleet: Arc::clone(&fleet), router: Arc::clone(&router), lobby: Arc::clone(&lobby) };
        registry.register_collector(Box::new(load));
        registry.register_collector(Box::new(PrefixCollector {
            fleet: Arc::clone(&fleet),
            router: Arc::clone(&router),
            tally: Arc::clone(&prefix_tally),
        }));
        let ids = Ids::new();
        let pools = Pools::default();
        let identify = Identify::new(
            rules.scheme,
            rules.tokenize_budget,
            clock,
            Arc::clone(&fleet),
            pools.clone(),
            rules.connect_timeout,
        );
        let clusters = rules.clusters.map(|settings| {
            let results = ClusterResults::registered(registry);
            Clusters::new(settings, Arc::clone(&fleet), pools.clone(), clock, rules.connect_timeout, results)
        });
        Self {
            clusters,
            names: rules.names,
            hooks: Hooks::new(rules.hooks, registry),
            hedging: rules.hedge_after.map(|after| Hedging::new(after, registry)),
            model_lists: ModelLists::new(rules.model_lists, registry),
            alike: rules.deduplication.map(|ttl| Arc::new(Alike::new(ttl, clock, registry))),
            shared_prefixes: rules.shared_prefixes.map(SharedPrefixes::new),
            judge: Judge::new(parity, Arc::clone(&fleet), clock),
            fleet,
            desk: Arc::new(Desk::new(Arc::clone(&router), clock)),
            lobby,
            router,
            ring,
            prefix_tally,
            log,
            clock,
            keys,
            limits,
            identify,
            budget: RetryBudget::new(rules.retry.budget_ratio),
            rules: RequestRules {
                timeout: rules.timeout,
                connect_timeout: rules.connect_timeout,
                stream: StreamLimits { idle: rules.stream_idle, total: rules.stream_total },
                retry: rules.retry,
                busy_threshold: rules.busy_threshold,
                engine_priority: rules.engine_priority,
                by_model: rules.by_model,
                max_prefix_bytes: rules.max_prefix_bytes,
                session_headers: rules.session_headers,
                headers: rules.headers,
            },
            reservations: Reservations::new(rules.reservation_ttl),
            prefill: Prefills::new(rules.disaggregation),
            metrics: Metrics::new(registry),
            pools,
            decision_ids: DecisionIds::new(ids.draw()),
            cut: CutSwitch::default(),
            running: AtomicU64::new(0),
            ids,
        }
    }

    /// Requests that have not come to their end, whatever they ask for.
    pub fn running_requests(&self) -> u64 {
        self.running.load(Ordering::Relaxed)
    }

    /// Tells router, parity and reservations that time has passed.
    pub(crate) fn tick(&self) {
        let now = self.clock.now();
        self.desk.tick();
        self.judge.tick(now);
        self.reservations.tick(now, &self.fleet.snapshot(), &self.ring);
    }

    /// Room for one retry, as a share of the requests in flight here: those of reservations are others' to try again.
    pub(crate) fn retry_permit(&self) -> Option<RetryPermit> {
        self.budget.take(self.router.leases().saturating_sub(self.reservations.count()))
    }
}
