//! Builds the gateway: each stage gets the parts that it uses.

use std::sync::Arc;

use fleet::Fleet;
use lmcache::Controller;
use net::Clock;
use parity::ParityTracker;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use proxy::{ConnectionPools, Upstream};
use resilience::OutcomeCounters;
use response_cache::ResponseCache;
use routing::{
    KvDecisionCounters, PrefixDecisionCounters, Router,
    receipt::{DecisionIds, ReceiptRing},
};
use tokenization::{
    EngineTokenSettings, EngineTokenizer, RedisTokenStore, TokenizationStage, WorkerClient,
};

use crate::{
    Gateway,
    cache_filler::CacheFiller,
    coalesce::Coalescer,
    cooldowns::Cooldowns,
    decision_log::DecisionLog,
    embedder::Embedder,
    gateway::Edge,
    ids::IdGenerator,
    inbound_key::InboundKey,
    lifecycle::Lifecycle,
    listener_limits::{CountLimits, ListenerLimits},
    load_telemetry::LoadCollector,
    memory::MemoryPressure,
    metrics::Metrics,
    model_lists::ModelListRefresher,
    models::ModelCatalog,
    parity_monitor::ParityMonitor,
    prefix_telemetry::PrefixCollector,
    queue_waiters::QueueWaiters,
    request::{
        accept::Admission,
        affinity::{AffinitySettings, AffinityStage},
        attempt_limits::{AttemptLimits, StreamLimits},
        body_budget::BodyBudget,
        clusters::{ClusterSettings, Clusters},
        decide::{Decider, DecisionCounters, PlacementRules},
        delivery::DeliveryStage,
        dispatch::Dispatcher,
        generation::GenerationStages,
        hedge::{self, Hedging},
        hooks::{HookLimits, Hooks},
        prefill::PrefillContext,
        preprocess::Preprocessor,
        queue_wait::QueueStage,
        record::{ReceiptSinks, RecordSettings, Recorder, WorkerReports},
        reply_cache::{ReplyCache, ReplyCacheSettings},
        send::SendStage,
        translate::TranslationStage,
    },
    request_settings::RequestSettings,
    reservations::Reservations,
    response_affinity::ResponseAffinity,
    retry::{Retries, RetryBudget},
    shared_prefixes::SharedPrefixes,
};

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

/// Parts that several stages share.
struct SharedParts {
    fleet: Arc<Fleet>,
    router: Arc<Router>,
    clock: Clock,
    pools: ConnectionPools,
    ids: Arc<IdGenerator>,
    metrics: Arc<Metrics>,
    memory: Arc<MemoryPressure>,
    lifecycle: Arc<Lifecycle>,
    reservations: Arc<Reservations>,
    responses: Arc<ResponseAffinity>,
    cooldowns: Arc<Cooldowns>,
}

impl Gateway {
    /// Builds the parts and registers the metric families.
    pub fn new(parts: GatewayParts, registry: &mut Registry) -> Self {
        let shared = SharedParts::new(&parts, registry);
        let GatewayParts {
            ring,
            parity,
            prefix_tally,
            kv_tally,
            log,
            cache,
            lmcache,
            tokens,
            keys,
            limits,
            rules,
            ..
        } = parts;
        registry.register_collector(Box::new(LoadCollector {
            fleet: Arc::clone(&shared.fleet),
            router: Arc::clone(&shared.router),
        }));
        registry.register_collector(Box::new(PrefixCollector {
            fleet: Arc::clone(&shared.fleet),
            router: Arc::clone(&shared.router),
            tally: Arc::clone(&prefix_tally),
        }));
        let counters = DecisionCounters {
            prefix: prefix_tally,
            kv: kv_tally,
        };
        let workers = shared.worker_client(&rules);
        let receipts = ReceiptSinks {
            ids: Arc::new(DecisionIds::new(shared.ids.next_number())),
            ring,
            log,
        };
        let tokenization = Arc::new(tokenization(&rules, tokens, workers.clone(), registry));
        let affinity = shared.affinity(&rules, lmcache, &counters, &workers, registry);
        let mut gateway = Self {
            edge: shared.edge(keys, limits, &rules, registry),
            reply_cache: shared.reply_cache(cache, &rules, &workers, registry),
            generation: shared.generation(&rules, tokenization, affinity, counters, registry),
            recorder: shared.recorder(receipts, parity, &rules),
            reservations: Arc::clone(&shared.reservations),
            lifecycle: Arc::clone(&shared.lifecycle),
        };
        gateway.apply(limits, rules);
        gateway
    }

    /// Sets the limits and rules that a reload may replace.
    pub(crate) fn apply(&mut self, limits: ListenerLimits, rules: RequestSettings) {
        let names = Arc::new(rules.names);
        let preprocessor = &mut self.edge.preprocessor;
        preprocessor.hooks = preprocessor
            .hooks
            .with_hooks(rules.hooks, limits.max_body_bytes);
        preprocessor.names = Arc::clone(&names);
        preprocessor.waits_for_worker = !rules.waiting.no_worker.is_zero();
        self.edge.catalog.names = names;
        self.edge.admission.limits = limits;
        self.reply_cache.settings = ReplyCacheSettings {
            coalesces: rules.deduplication.is_some(),
            headers: rules.headers,
        };
        self.recorder = Arc::new(Recorder {
            settings: RecordSettings {
                headers: rules.headers,
                log_requests: limits.log_requests,
            },
            ..(*self.recorder).clone()
        });
        let generation = &mut self.generation;
        generation.counts = limits.counts;
        let delivery = &mut generation.delivery;
        delivery.affinity.settings = AffinitySettings {
            session_headers: rules.session_headers,
            max_prefix_bytes: rules.max_prefix_bytes,
        };
        delivery.retries = delivery.retries.with_rules(rules.retry);
        delivery.queue.limits = rules.waiting;
        let prefill = Arc::new(PrefillContext::new(rules.disaggregation));
        delivery.queue.decider.prefill = Arc::clone(&prefill);
        delivery.queue.decider.rules = PlacementRules {
            busy_threshold: rules.busy_threshold,
            by_model: rules.by_model,
        };
        let send = &mut delivery.send;
        send.prefill = prefill;
        send.hedging.after = rules.hedge_after;
        send.engine_priority = rules.engine_priority;
        send.translation.settings = rules.rewriting;
        send.dispatcher.limits = AttemptLimits {
            request: rules.timeout,
            connect: rules.connect_timeout,
            stream: StreamLimits {
                idle: rules.stream_idle,
                total: rules.stream_total,
                strict: rules.strict_streams,
            },
        };
    }
}

impl SharedParts {
    fn new(parts: &GatewayParts, registry: &mut Registry) -> Self {
        Self {
            fleet: Arc::clone(&parts.fleet),
            router: Arc::clone(&parts.router),
            clock: parts.clock,
            pools: ConnectionPools::new(parts.clock, registry),
            ids: Arc::new(IdGenerator::new()),
            metrics: Arc::new(Metrics::new(registry)),
            memory: Arc::new(MemoryPressure::registered(registry)),
            lifecycle: Arc::default(),
            reservations: Arc::new(Reservations::new(parts.rules.reservation_ttl)),
            responses: Arc::default(),
            cooldowns: Arc::default(),
        }
    }

    fn upstream(&self) -> Arc<dyn Upstream> {
        Arc::new(self.pools.clone())
    }

    fn worker_client(&self, rules: &RequestSettings) -> WorkerClient {
        WorkerClient {
            fleet: Arc::clone(&self.fleet),
            upstream: self.upstream(),
            clock: self.clock,
            connect_timeout: rules.connect_timeout,
        }
    }

    fn edge(
        &self,
        keys: InboundKey,
        limits: ListenerLimits,
        rules: &RequestSettings,
        registry: &mut Registry,
    ) -> Edge {
        let hook_limits = HookLimits {
            max_body_bytes: limits.max_body_bytes,
            abort: Arc::clone(&self.lifecycle.abort),
        };
        Edge {
            admission: Admission {
                limits,
                keys,
                bodies: BodyBudget::new(self.metrics.held_body_bytes.clone()),
                memory: Arc::clone(&self.memory),
            },
            preprocessor: Preprocessor {
                hooks: Hooks::new(Vec::new(), hook_limits, registry),
                names: Arc::default(),
                fleet: Arc::clone(&self.fleet),
                waits_for_worker: false,
            },
            catalog: ModelCatalog {
                fleet: Arc::clone(&self.fleet),
                names: Arc::default(),
                lists: Arc::new(ModelListRefresher::new(rules.model_lists, registry)),
                clock: self.clock,
            },
            ids: Arc::clone(&self.ids),
        }
    }

    fn reply_cache(
        &self,
        store: Arc<ResponseCache>,
        rules: &RequestSettings,
        workers: &WorkerClient,
        registry: &mut Registry,
    ) -> ReplyCache {
        let finished_for = rules.deduplication.unwrap_or_default();
        let model = store
            .settings()
            .semantic
            .embedding_model
            .as_deref()
            .map(Arc::from);
        ReplyCache {
            embedder: model.map(|model| Arc::new(Embedder::new(workers.clone(), model))),
            filler: CacheFiller::start(Arc::clone(&store), self.clock),
            coalescer: Arc::new(Coalescer::new(finished_for, self.clock, registry)),
            store,
            memory: Arc::clone(&self.memory),
            metrics: Arc::clone(&self.metrics),
            router: Arc::clone(&self.router),
            settings: ReplyCacheSettings {
                coalesces: rules.deduplication.is_some(),
                headers: rules.headers,
            },
            clock: self.clock,
        }
    }

    fn affinity(
        &self,
        rules: &RequestSettings,
        lmcache: Option<Arc<Controller>>,
        counters: &DecisionCounters,
        workers: &WorkerClient,
        registry: &mut Registry,
    ) -> AffinityStage {
        let clusters = rules
            .clusters
            .clone()
            .map(|settings| clusters(settings, workers, registry));
        AffinityStage {
            fleet: Arc::clone(&self.fleet),
            router: Arc::clone(&self.router),
            shared_prefixes: rules
                .shared_prefixes
                .map(|settings| Arc::new(SharedPrefixes::new(settings))),
            clusters,
            lmcache,
            counters: Arc::clone(&counters.kv),
            settings: AffinitySettings {
                session_headers: rules.session_headers.clone(),
                max_prefix_bytes: rules.max_prefix_bytes,
            },
            ids: Arc::clone(&self.ids),
            clock: self.clock,
        }
    }

    fn generation(
        &self,
        rules: &RequestSettings,
        tokenization: Arc<TokenizationStage>,
        affinity: AffinityStage,
        counters: DecisionCounters,
        registry: &mut Registry,
    ) -> GenerationStages {
        let translation = TranslationStage {
            tokenization: Arc::clone(&tokenization),
            settings: rules.rewriting,
            clock: self.clock,
        };
        let prefill = Arc::new(PrefillContext::new(rules.disaggregation));
        GenerationStages {
            // Set with the other settings of a reload.
            counts: CountLimits::default(),
            tokenization,
            responses: Arc::clone(&self.responses),
            delivery: DeliveryStage {
                queue: self.queue(rules, counters, &prefill),
                retries: Retries {
                    rules: rules.retry.clone(),
                    budget: RetryBudget::new(rules.retry.budget_ratio),
                    router: Arc::clone(&self.router),
                    reservations: Arc::clone(&self.reservations),
                    ids: Arc::clone(&self.ids),
                },
                send: SendStage {
                    dispatcher: self.dispatcher(rules),
                    hedging: Hedging {
                        after: rules.hedge_after,
                        results: hedge::results(registry),
                    },
                    prefill,
                    translation,
                    engine_priority: rules.engine_priority,
                    ids: Arc::clone(&self.ids),
                },
                affinity,
            },
            metrics: Arc::clone(&self.metrics),
        }
    }

    fn queue(
        &self,
        rules: &RequestSettings,
        counters: DecisionCounters,
        prefill: &Arc<PrefillContext>,
    ) -> QueueStage {
        QueueStage {
            decider: Decider {
                router: Arc::clone(&self.router),
                waiters: Arc::new(QueueWaiters::new(Arc::clone(&self.router), self.clock)),
                cooldowns: Arc::clone(&self.cooldowns),
                prefill: Arc::clone(prefill),
                counters,
                rules: PlacementRules {
                    busy_threshold: rules.busy_threshold,
                    by_model: rules.by_model.clone(),
                },
                ids: Arc::clone(&self.ids),
                clock: self.clock,
            },
            fleet: Arc::clone(&self.fleet),
            limits: rules.waiting,
            abort: Arc::clone(&self.lifecycle.abort),
            clock: self.clock,
            metrics: Arc::clone(&self.metrics),
        }
    }

    fn dispatcher(&self, rules: &RequestSettings) -> Dispatcher {
        Dispatcher {
            upstream: self.upstream(),
            abort: Arc::clone(&self.lifecycle.abort),
            clock: self.clock,
            limits: AttemptLimits {
                request: rules.timeout,
                connect: rules.connect_timeout,
                stream: StreamLimits {
                    idle: rules.stream_idle,
                    total: rules.stream_total,
                    strict: rules.strict_streams,
                },
            },
        }
    }

    fn recorder(
        &self,
        receipts: ReceiptSinks,
        parity: Arc<Mutex<ParityTracker>>,
        rules: &RequestSettings,
    ) -> Arc<Recorder> {
        let fleet = Arc::clone(&self.fleet);
        Arc::new(Recorder {
            receipts,
            parity_monitor: Arc::new(ParityMonitor::new(parity, Arc::clone(&fleet), self.clock)),
            workers: WorkerReports {
                fleet,
                pools: self.pools.clone(),
                cooldowns: Arc::clone(&self.cooldowns),
                router: Arc::clone(&self.router),
            },
            metrics: Arc::clone(&self.metrics),
            response_affinity: Arc::clone(&self.responses),
            running: Arc::default(),
            settings: RecordSettings {
                headers: rules.headers,
                log_requests: false,
            },
            clock: self.clock,
        })
    }
}

fn tokenization(
    rules: &RequestSettings,
    tokens: Option<RedisTokenStore>,
    workers: WorkerClient,
    registry: &mut Registry,
) -> TokenizationStage {
    let settings = EngineTokenSettings {
        here: rules.token_cache,
        shared: tokens,
    };
    let clock = workers.clock;
    let engine = EngineTokenizer::new(workers, rules.tokenize_budget, settings);
    TokenizationStage::new(rules.scheme, rules.tokenize_budget, clock, engine, registry)
}

fn clusters(
    settings: ClusterSettings,
    workers: &WorkerClient,
    registry: &mut Registry,
) -> Arc<Clusters> {
    let help = "Requests by what came of looking for their semantic cluster";
    let all = [
        "matched",
        "named",
        "below_threshold",
        "not_learnt",
        "no_text",
        "failed",
    ];
    let results = OutcomeCounters::registered(registry, "warmroute_semantic_clusters", help, &all);
    Arc::new(Clusters::new(settings, workers.clone(), results))
}
