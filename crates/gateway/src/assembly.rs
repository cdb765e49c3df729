//! Builds the gateway: each stage gets the parts that it uses, and sections of the configuration as
//! they are.

use std::sync::Arc;

use config::Settings;
use fleet::Fleet;
use lmcache::Controller;
use net::{Clock, server::KeyThrottle};
use otlp::SpanQueue;
use parity::ParityTracker;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use proxy::{ConnectionPools, Upstream};
use replicas::NoteQueue;
use resilience::OutcomeCounters;
use response_cache::{CacheFiller, Coalescer, ResponseCache};
use routing::{
    Router, SemanticClusters,
    receipt::{DecisionIds, ReceiptRing},
};
use tenants::Tenants;
use tokenization::{EngineTokenizer, RedisTokenStore, TokenizationStage, WorkerClient};

use crate::{
    Gateway,
    cooldowns::Cooldowns,
    decision_log::DecisionLog,
    embedder::Embedder,
    gateway::Edge,
    ids::IdGenerator,
    key_validation::KeyValidator,
    lifecycle::Lifecycle,
    load_telemetry::LoadCollector,
    memory::MemoryPressure,
    metrics::Metrics,
    model_lists::{ModelListRefresher, ModelListSettings},
    model_names::ModelNames,
    models::ModelCatalog,
    parity_monitor::ParityMonitor,
    prefix_telemetry::PrefixCollector,
    process_limits::ProcessLimits,
    queue_waiters::QueueWaiters,
    request::{
        accept::Admission,
        affinity::{AffinitySettings, AffinityStage},
        body_budget::BodyBudget,
        clusters::Clusters,
        decide::{Decider, DecisionCounters, PlacementRules},
        delivery::DeliveryStage,
        dispatch::Dispatcher,
        generation::GenerationStages,
        hedge,
        hooks::{HookLimits, Hooks},
        prefill::PrefillContext,
        preprocess::Preprocessor,
        queue_wait::QueueStage,
        record::{ReceiptSinks, Recorder, WorkerReports},
        reply_cache::ReplyCache,
        send::SendStage,
        translate::TranslationStage,
    },
    reservations::Reservations,
    response_affinity::ResponseAffinity,
    retry::{Retries, RetryBudget},
    shared_prefixes::SharedPrefixes,
    tenant_telemetry::TenantCollector,
    tracer::Tracer,
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
    /// The parity tracker, which evaluates predictions.
    pub parity: Arc<Mutex<ParityTracker>>,
    /// Counters of placements.
    pub counters: DecisionCounters,
    /// The decision log, if configured.
    pub log: Option<Arc<DecisionLog>>,
    /// The queue of spans, if traces are exported.
    pub spans: Option<Arc<SpanQueue>>,
    /// The response cache.
    pub cache: Arc<ResponseCache>,
    /// The client of LMCache's controller, if configured. The part that starts it also stops it.
    pub lmcache: Option<Arc<Controller>>,
    /// The shared store of token ids from engines, if configured.
    pub tokens: Option<RedisTokenStore>,
    /// The notes for peers; default: there are none.
    pub peers: NoteQueue,
    /// The clock.
    pub clock: Clock,
    /// The tenants, and their keys.
    pub tenants: Arc<Tenants>,
    /// The wrong keys of clients.
    pub wrong_keys: Arc<KeyThrottle>,
    /// The limits of the process.
    pub process: ProcessLimits,
}

/// The settings, and parts that several stages share.
struct SharedParts<'a> {
    settings: &'a Settings,
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
    pub fn new(parts: GatewayParts, settings: &Settings, registry: &mut Registry) -> Self {
        let shared = SharedParts::new(&parts, settings, registry);
        let GatewayParts {
            ring,
            parity,
            counters,
            log,
            spans,
            cache,
            lmcache,
            tokens,
            tenants,
            wrong_keys,
            process,
            ..
        } = parts;
        registry.register_collector(Box::new(LoadCollector {
            fleet: Arc::clone(&shared.fleet),
            router: Arc::clone(&shared.router),
        }));
        registry.register_collector(Box::new(PrefixCollector {
            fleet: Arc::clone(&shared.fleet),
            counters: Arc::clone(&counters.prefix),
        }));
        registry.register_collector(Box::new(TenantCollector {
            tenants: Arc::clone(&tenants),
            labels: Arc::clone(&shared.metrics.tenants),
        }));
        let receipts = ReceiptSinks {
            ids: Arc::new(DecisionIds::new(shared.ids.next_number())),
            ring,
            log,
        };
        let tokenization = Arc::new(shared.tokenization(tokens, registry));
        let affinity = shared.affinity(lmcache, &counters, registry);
        let admission = shared.admission(tenants, wrong_keys, process, registry);
        let server = Arc::clone(&admission.server);
        Self {
            edge: shared.edge(admission, registry),
            reply_cache: shared.reply_cache(cache, registry),
            generation: GenerationStages {
                server,
                responses: Arc::clone(&shared.responses),
                delivery: shared.delivery(&tokenization, affinity, counters, registry),
                tokenization,
                metrics: Arc::clone(&shared.metrics),
            },
            recorder: shared.recorder(receipts, parity, spans),
            reservations: Arc::clone(&shared.reservations),
            lifecycle: Arc::clone(&shared.lifecycle),
        }
    }

    /// Sets the sections that a reload may replace.
    pub(crate) fn apply(&mut self, settings: &Settings, process: ProcessLimits) {
        let server = Arc::new(settings.server.clone());
        let compat = Arc::new(settings.compat.clone());
        let names = Arc::new(ModelNames::of(&settings.models));
        let preprocessor = &mut self.edge.preprocessor;
        preprocessor.hooks = preprocessor
            .hooks
            .with_hooks(&settings.hooks, server.max_body_bytes);
        preprocessor.names = Arc::clone(&names);
        preprocessor.queue = settings.queue;
        self.edge.catalog.names = names;
        self.edge.admission.server = Arc::clone(&server);
        self.edge.admission.process = process;
        self.reply_cache.settings = settings.cache;
        self.reply_cache.compat = Arc::clone(&compat);
        self.recorder = Arc::new(Recorder {
            compat,
            logging: settings.logging.clone(),
            tracer: self.recorder.tracer.clone().map(|tracer| Tracer {
                sample_ratio: settings.tracing.sample_ratio,
                ..tracer
            }),
            ..(*self.recorder).clone()
        });
        self.generation.server = server;
        let delivery = &mut self.generation.delivery;
        delivery.affinity.settings =
            AffinitySettings::of(&settings.routing.session, settings.prefix_routing);
        delivery.retries = delivery.retries.with_rules(settings.retry);
        let prefill = Arc::new(PrefillContext::new(settings.disaggregation));
        delivery.queue.limits = settings.queue;
        delivery.queue.decider.prefill = Arc::clone(&prefill);
        delivery.queue.decider.rules = PlacementRules::of(&settings.routing);
        let send = &mut delivery.send;
        send.prefill = prefill;
        send.queue = settings.queue;
        send.translation.settings = settings.prefix_routing;
        send.dispatcher.limits = settings.request;
    }
}

impl<'a> SharedParts<'a> {
    fn new(parts: &GatewayParts, settings: &'a Settings, registry: &mut Registry) -> Self {
        Self {
            settings,
            fleet: Arc::clone(&parts.fleet),
            router: Arc::clone(&parts.router),
            clock: parts.clock,
            pools: ConnectionPools::new(parts.clock, registry),
            ids: Arc::new(IdGenerator::new()),
            metrics: Arc::new(Metrics::new(registry)),
            memory: Arc::new(MemoryPressure::registered(registry)),
            lifecycle: Arc::default(),
            reservations: Arc::new(Reservations::new(
                settings.routing.reservation_ttl,
                Arc::clone(&parts.ring),
            )),
            responses: Arc::new(ResponseAffinity::shared(parts.peers.clone())),
            cooldowns: Arc::new(Cooldowns::shared(parts.peers.clone())),
        }
    }

    fn upstream(&self) -> Arc<dyn Upstream> {
        Arc::new(self.pools.clone())
    }

    fn worker_client(&self) -> WorkerClient {
        WorkerClient {
            fleet: Arc::clone(&self.fleet),
            upstream: self.upstream(),
            clock: self.clock,
            connect_timeout: self.settings.request.connect_timeout,
        }
    }

    fn tokenization(
        &self,
        tokens: Option<RedisTokenStore>,
        registry: &mut Registry,
    ) -> TokenizationStage {
        let (routing, scheme) = (
            &self.settings.routing,
            self.settings.kv_events.hash_scheme(),
        );
        let engine = EngineTokenizer::new(self.worker_client(), routing, tokens);
        let budget = routing.tokenize_budget;
        TokenizationStage::new(scheme, budget, self.clock, engine, registry)
    }

    fn admission(
        &self,
        tenants: Arc<Tenants>,
        wrong_keys: Arc<KeyThrottle>,
        process: ProcessLimits,
        registry: &mut Registry,
    ) -> Admission {
        let services = &self.settings.tenants.key_validation;
        Admission {
            server: Arc::new(self.settings.server.clone()),
            process,
            tenants,
            key_validator: KeyValidator::new(services, self.clock, registry),
            wrong_keys,
            bodies: BodyBudget::new(self.metrics.requests.buffered_body_bytes.clone()),
            memory: Arc::clone(&self.memory),
            clock: self.clock,
        }
    }

    fn edge(&self, admission: Admission, registry: &mut Registry) -> Edge {
        let hook_limits = HookLimits {
            max_body_bytes: self.settings.server.max_body_bytes,
            abort: Arc::clone(&self.lifecycle.abort),
        };
        let names = Arc::new(ModelNames::of(&self.settings.models));
        let lists = ModelListSettings::of(self.settings);
        Edge {
            admission,
            preprocessor: Preprocessor {
                hooks: Hooks::new(&self.settings.hooks, hook_limits, registry),
                names: Arc::clone(&names),
                fleet: Arc::clone(&self.fleet),
                queue: self.settings.queue,
            },
            catalog: ModelCatalog {
                fleet: Arc::clone(&self.fleet),
                names,
                lists: Arc::new(ModelListRefresher::new(lists, registry)),
                clock: self.clock,
            },
            ids: Arc::clone(&self.ids),
        }
    }

    fn reply_cache(&self, store: Arc<ResponseCache>, registry: &mut Registry) -> ReplyCache {
        let settings = self.settings.cache;
        let finished_for = settings.deduplication().unwrap_or_default();
        let model = store
            .settings()
            .semantic
            .embedding_model
            .as_deref()
            .map(Arc::from);
        ReplyCache {
            embedder: model.map(|model| Arc::new(Embedder::new(self.worker_client(), model))),
            filler: CacheFiller::start(Arc::clone(&store), self.clock),
            coalescer: Arc::new(Coalescer::new(finished_for, self.clock, registry)),
            store,
            memory: Arc::clone(&self.memory),
            metrics: Arc::clone(&self.metrics),
            router: Arc::clone(&self.router),
            settings,
            compat: Arc::new(self.settings.compat.clone()),
            clock: self.clock,
        }
    }

    fn affinity(
        &self,
        lmcache: Option<Arc<Controller>>,
        counters: &DecisionCounters,
        registry: &mut Registry,
    ) -> AffinityStage {
        let (routing, prefix_routing) = (&self.settings.routing, self.settings.prefix_routing);
        AffinityStage {
            fleet: Arc::clone(&self.fleet),
            router: Arc::clone(&self.router),
            shared_prefixes: routing
                .shared_prefix_routing
                .map(|section| Arc::new(SharedPrefixes::new(section))),
            clusters: routing
                .semantic_clusters
                .as_ref()
                .map(|section| self.clusters(section, registry)),
            lmcache,
            counters: Arc::clone(&counters.kv),
            settings: AffinitySettings::of(&routing.session, prefix_routing),
            ids: Arc::clone(&self.ids),
            clock: self.clock,
        }
    }

    fn clusters(&self, section: &SemanticClusters, registry: &mut Registry) -> Arc<Clusters> {
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
        Arc::new(Clusters::new(
            section.clone(),
            self.worker_client(),
            results,
        ))
    }

    fn delivery(
        &self,
        tokenization: &Arc<TokenizationStage>,
        affinity: AffinityStage,
        counters: DecisionCounters,
        registry: &mut Registry,
    ) -> DeliveryStage {
        let settings = self.settings;
        let prefill = Arc::new(PrefillContext::new(settings.disaggregation));
        DeliveryStage {
            queue: self.queue(counters, &prefill),
            retries: Retries {
                rules: settings.retry,
                budget: RetryBudget::new(settings.retry.budget_ratio),
                router: Arc::clone(&self.router),
                reservations: Arc::clone(&self.reservations),
                ids: Arc::clone(&self.ids),
            },
            send: SendStage {
                dispatcher: Dispatcher {
                    upstream: self.upstream(),
                    abort: Arc::clone(&self.lifecycle.abort),
                    clock: self.clock,
                    limits: settings.request,
                },
                hedges: hedge::results(registry),
                prefill,
                translation: TranslationStage {
                    tokenization: Arc::clone(tokenization),
                    settings: settings.prefix_routing,
                    clock: self.clock,
                },
                queue: settings.queue,
                ids: Arc::clone(&self.ids),
            },
            affinity,
        }
    }

    fn queue(&self, counters: DecisionCounters, prefill: &Arc<PrefillContext>) -> QueueStage {
        QueueStage {
            decider: Decider {
                router: Arc::clone(&self.router),
                waiters: Arc::new(QueueWaiters::new(Arc::clone(&self.router), self.clock)),
                cooldowns: Arc::clone(&self.cooldowns),
                prefill: Arc::clone(prefill),
                counters,
                rules: PlacementRules::of(&self.settings.routing),
                ids: Arc::clone(&self.ids),
                clock: self.clock,
            },
            fleet: Arc::clone(&self.fleet),
            limits: self.settings.queue,
            abort: Arc::clone(&self.lifecycle.abort),
            clock: self.clock,
            metrics: Arc::clone(&self.metrics),
        }
    }

    fn recorder(
        &self,
        receipts: ReceiptSinks,
        parity: Arc<Mutex<ParityTracker>>,
        spans: Option<Arc<SpanQueue>>,
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
            compat: Arc::new(self.settings.compat.clone()),
            logging: self.settings.logging.clone(),
            tracer: spans.map(|queue| Tracer {
                queue,
                sample_ratio: self.settings.tracing.sample_ratio,
                ids: Arc::clone(&self.ids),
            }),
            clock: self.clock,
        })
    }
}
