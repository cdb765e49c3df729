//! Builds the router from its parts: creates, connects and starts them. It makes no decisions.

#[cfg(feature = "nats")]
mod bus;
mod error;
mod features;
mod fleet_start;
mod listeners;
mod peer_snapshot;
mod redis;
mod replicas;

use std::{sync::Arc, time::Duration};

use admin::{
    AdminParts, Control, DecisionParts, Doctor, Drain, DryRun, KvIndexParts, MetricsPage,
    ShutdownParts, Takeover, Tokens,
};
use config::Settings;
use doctor::{ClientKeys, DoctorOptions, Environment, ProbeMode, USUAL_TIMEOUT};
use fleet::{Fleet, HubCache, OnVerdict};
use gateway::{
    CurrentGateway, DecisionCounters, DecisionLog, DrainResult, Gateway, GatewayParts,
    ProbeListener,
};
use indexer::{Indexer, IndexerParts};
use kv_blocks::HashScheme;
use kv_index::KvIndex;
use lmcache::Controller;
use net::{Clock, Destinations, server::KeyThrottle};
use otlp::SpanExporter;
use parity::ParityTracker;
use parking_lot::{Mutex, RwLock};
use prometheus_client::registry::Registry;
use response_cache::ResponseCache;
use routing::{KvDecisionCounters, PrefixDecisionCounters, Router, receipt::ReceiptRing};
use tenants::Tenants;
use tokio::{sync::watch, task::JoinHandle};

pub(crate) use self::error::StartError;
pub(crate) use self::listeners::{ListenAddresses, audit_sinks};
use self::{fleet_start::FleetNeighbours, listeners::BoundListeners, replicas::ReplicaNeighbours};
#[cfg(feature = "nats")]
use crate::live::SharedMembers;
use crate::{
    drain::{DrainProgress, NewConnections},
    from_settings::{self, routing},
    index_snapshot::{self, IndexSnapshots, LastingState},
    live::{self, LiveConfig, SourceTexts},
    log_queue, stall_watch,
    takeover::{self, InheritedSockets, SocketHandover},
};

/// Longest wait for worker checks before a process that takes over accepts, or a router inside
/// another program is ready: long enough for workers that answer.
const LONGEST_FIRST_PROBES: Duration = Duration::from_secs(15);

/// Longest wait for the workers that are registered with the replicas, before a router accepts
/// requests for them.
#[cfg(feature = "nats")]
const LONGEST_FIRST_READ: Duration = Duration::from_secs(2);

/// Start options that are not in the settings.
pub(crate) struct StartOptions {
    /// Tenants, and the keys that clients must send.
    pub(crate) tenants: Arc<Tenants>,
    /// Tokens of operators; none: they need none.
    pub(crate) admin_tokens: Tokens,
    /// Callback for the result of each worker's probe.
    pub(crate) on_verdict: OnVerdict,
    /// Whether to take over the listening sockets of a running process.
    pub(crate) takeover: bool,
    /// Whether the key of clients is an argument of this process.
    pub(crate) key_in_arguments: bool,
    /// Whose process it is.
    pub(crate) owner: ProcessOwner,
}

/// The owner of the process that a router runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessOwner {
    /// The router: it listens at its default addresses, and reloads on SIGHUP.
    Router,
    /// Another program, which handles signals itself: the router listens where its settings say
    /// so, and is started with known workers.
    Program,
}

/// A running router.
pub(crate) struct RunningRouter {
    /// Where it listens.
    pub(crate) addresses: ListenAddresses,
    /// Separate listener for probes, if configured.
    pub(crate) probes: Mutex<Option<ProbeListener>>,
    /// Ring of receipts.
    pub(crate) ring: Arc<ReceiptRing>,
    /// Its workers.
    pub(crate) fleet: Arc<Fleet>,
    stop: StopSignals,
    draining: Arc<DrainProgress>,
    handing: Arc<SocketHandover>,
    /// Its request path.
    pub(crate) gateway: Arc<CurrentGateway>,
    /// What operators read.
    pub(crate) operator_view: AdminParts,
    tasks: RouterTasks,
    lmcache: Option<Arc<Controller>>,
    #[cfg(feature = "nats")]
    bus: Option<bus::Bus>,
    snapshots: Option<Arc<IndexSnapshots>>,
}

/// The signals that end tasks in an orderly way.
struct StopSignals {
    /// The decision log, the exporter of spans and the saves of the index.
    sinks: watch::Sender<bool>,
    admin: watch::Sender<bool>,
}

/// The tasks of a running router.
struct RouterTasks {
    stall: JoinHandle<()>,
    data: JoinHandle<()>,
    watch: JoinHandle<()>,
    admin: JoinHandle<()>,
    log: Option<JoinHandle<()>>,
    spans: Option<JoinHandle<()>>,
    snapshots: Option<JoinHandle<()>>,
}

/// Binds every listener, or takes them over from the running process, then starts everything behind
/// them. A worker that is down does not stop the start.
pub(crate) async fn start(
    settings: Settings,
    sources: SourceTexts,
    extras: StartOptions,
) -> Result<RunningRouter, StartError> {
    let mut inherited = match extras.takeover {
        true => takeover::inherit_sockets(&settings).await?,
        false => None,
    };
    let tokens = &extras.admin_tokens;
    let bound = listeners::bind(&settings, extras.owner, tokens, inherited.as_mut()).await?;
    let (probe, is_takeover) = (bound.probe.clone(), bound.is_takeover);
    // On the heap: a whole configuration is part of it.
    let started = Box::pin(start_on(settings, sources, extras, bound));
    let (mut running, gateway) = started.await?;
    if let Some(Err(error)) = inherited.map(InheritedSockets::taken_over) {
        tracing::warn!(%error, "the process that gave its listening sockets has gone without waiting for this one");
    }
    if let Some(probe) = probe {
        match listeners::probes(&gateway, &probe, running.draining.phases(), is_takeover).await {
            Ok(probes) => *running.probes.get_mut() = Some(probes),
            // The other process is ending: clients are served, and the prober has to notice.
            Err(error) if is_takeover => tracing::error!(%error, "probes are not answered"),
            Err(error) => {
                running.stop().await;
                return Err(error.into());
            }
        }
    }
    Ok(running)
}

/// The parts that decide, without I/O.
struct DecisionCore {
    scheme: HashScheme,
    index: Arc<KvIndex>,
    router: Arc<Router>,
    ring: Arc<ReceiptRing>,
    parity: Arc<Mutex<ParityTracker>>,
    prefix_counters: Arc<PrefixDecisionCounters>,
    kv_counters: Arc<KvDecisionCounters>,
}

impl DecisionCore {
    fn new(settings: &Settings) -> Self {
        let index = Arc::new(KvIndex::new(from_settings::index(settings)));
        Self {
            scheme: settings.kv_events.hash_scheme(),
            router: Arc::new(Router::new(routing(settings), Arc::clone(&index))),
            index,
            ring: Arc::new(ReceiptRing::new(settings.decisions.clone())),
            parity: Arc::new(Mutex::new(ParityTracker::new(settings.parity))),
            prefix_counters: Arc::default(),
            kv_counters: Arc::default(),
        }
    }
}

async fn start_on(
    settings: Settings,
    sources: SourceTexts,
    extras: StartOptions,
    bound: BoundListeners,
) -> Result<(RunningRouter, Arc<CurrentGateway>), StartError> {
    let (addresses, sockets) = (bound.addresses(), bound.sockets());
    let BoundListeners {
        data,
        operators,
        is_takeover,
        ..
    } = bound;
    let clock = Clock::system();
    let (mut registry, stall_task) = watched_process(clock);
    let DecisionCore {
        scheme,
        index,
        router,
        ring,
        parity,
        prefix_counters,
        kv_counters,
    } = DecisionCore::new(&settings);
    let in_force = Arc::new(settings.clone());
    let wrong_keys = Arc::new(KeyThrottle::default());
    operators.register_access(Arc::clone(&wrong_keys), &mut registry);
    let (serve_metrics, tenants) = (settings.metrics.enabled, extras.tenants);
    let (key_in_arguments, owner) = (extras.key_in_arguments, extras.owner);
    let draining = DrainProgress::new(settings.server.clone(), clock);
    let redis = redis::pool(&settings, clock, &mut registry)?;
    let replica = runtime::random();
    let state = lasting_state(&index, &router, clock);
    let neighbours = FleetNeighbours {
        state: state.clone(),
        scheme,
        redis: redis.clone(),
        on_verdict: extras.on_verdict,
        replica,
    };
    let started = fleet_start::start(&settings, neighbours, &mut registry).await?;
    let (fleet, snapshots) = (Arc::clone(&started.fleet), started.snapshots.clone());
    let loaded = Arc::clone(&index);
    let tokens = redis::tokens(&in_force, redis.as_ref(), clock)?;
    let exporter = SpanExporter::new(&settings.tracing, clock, &mut registry)?;
    let cache = ResponseCache::start(&settings.response_cache, redis, clock, &mut registry)?;
    let lmcache = lmcache(&settings, &mut registry);
    let log = (settings.decisions.log).map(|log| DecisionLog::new(log, &mut registry));
    let notes = replicas::notes(&in_force);
    let gateway = CurrentGateway::new(Gateway::new(
        GatewayParts {
            fleet: Arc::clone(&fleet),
            router: Arc::clone(&router),
            ring: Arc::clone(&ring),
            parity: Arc::clone(&parity),
            counters: decision_counters(&prefix_counters, &kv_counters),
            log: log.clone(),
            spans: exporter.as_ref().map(SpanExporter::queue),
            cache: Arc::clone(&cache),
            lmcache: lmcache.clone(),
            tokens,
            peers: notes.clone(),
            clock,
            tenants: Arc::clone(&tenants),
            wrong_keys,
            process: from_settings::process_limits(&in_force),
        },
        &in_force,
        &mut registry,
    ));
    let neighbours = ReplicaNeighbours {
        fleet: Arc::clone(&fleet),
        state,
        gateway: Arc::clone(&gateway),
        tenants: Arc::clone(&tenants),
        notes,
        #[cfg(feature = "nats")]
        bus: started.bus.as_ref().map(bus::Bus::share),
        replica,
    };
    let replicas = replicas::start(&in_force, &addresses, neighbours, &mut registry)?;
    let indexer = Indexer::start(IndexerParts {
        index: Arc::clone(&index),
        scheme,
        clock,
        destinations: Destinations::engines(&in_force.discovery.allowed_networks),
        residents: admin::residents(Arc::clone(&fleet)),
    });
    let parts = live::LiveParts {
        fleet: Arc::clone(&fleet),
        router: Arc::clone(&router),
        gateway: Arc::clone(&gateway),
        cache: Arc::clone(&cache),
        clock,
        #[cfg(feature = "nats")]
        shared: SharedMembers::new(started.bus.as_ref().map(bus::Bus::registrations)),
    };
    let handing = SocketHandover::new(sockets, Arc::clone(&draining));
    let live = LiveConfig::new(parts, Arc::clone(&in_force), sources, &mut registry);
    let parts = AdminParts {
        fleet: Arc::clone(&fleet),
        router,
        kv_index: KvIndexParts {
            index,
            indexer,
            counters: kv_counters,
        },
        decisions: DecisionParts {
            ring: Arc::clone(&ring),
            dry_run: dry_run(&gateway, in_force.server.max_body_bytes),
            parity,
        },
        tenants: Arc::clone(&tenants),
        prefix_counters,
        replicas,
        cache,
        control: Arc::clone(&live) as Arc<dyn Control>,
        metrics: metrics_page(registry, serve_metrics),
        shutdown: shutdown_parts(&draining, &gateway, &handing),
        doctor: doctor(&live, tenants, key_in_arguments),
        clock,
    };
    let (stop_sinks, sinks_stopped) = watch::channel(false);
    let (stop_admin, admin_stopped) = watch::channel(false);
    let watch_task = runtime::spawn(live::follow_sources(Arc::clone(&live), owner));
    wait_for_workers(&live, &fleet, is_takeover || owner == ProcessOwner::Program).await;
    index_snapshot::wait_for_proofs(&loaded).await;
    let listening = gateway::serve(Arc::clone(&gateway), data, draining.phases());
    let saving = index_snapshot::spawn(snapshots.as_ref(), &fleet, &sinks_stopped);
    let running = RunningRouter {
        addresses,
        probes: Mutex::new(None),
        ring,
        fleet,
        stop: StopSignals {
            sinks: stop_sinks,
            admin: stop_admin,
        },
        gateway: Arc::clone(&gateway),
        operator_view: parts.clone(),
        tasks: RouterTasks {
            stall: stall_task,
            watch: watch_task,
            data: runtime::spawn(Arc::clone(&draining).carry(listening)),
            log: log.map(|log| runtime::spawn(log.write(sinks_stopped.clone()))),
            spans: exporter.map(|exporter| runtime::spawn(exporter.run(sinks_stopped))),
            snapshots: saving,
            admin: runtime::spawn(admin::serve(parts, operators, admin_stopped)),
        },
        draining,
        handing,
        lmcache,
        #[cfg(feature = "nats")]
        bus: started.bus,
        snapshots,
    };
    Ok((running, gateway))
}

/// Starts the client of LMCache's controller, if there is one.
fn lmcache(settings: &Settings, registry: &mut Registry) -> Option<Arc<Controller>> {
    let section = settings.routing.lmcache.as_ref()?;
    Controller::start(section, registry).map(Arc::new)
}

/// Returns a registry with the metrics of the process itself, and the task that watches for its
/// stalls.
fn watched_process(clock: Clock) -> (Registry, JoinHandle<()>) {
    let mut registry = Registry::default();
    supervision::register(&mut registry);
    log_queue::register(&mut registry);
    let stall_task = stall_watch::start(clock, &mut registry);
    (registry, stall_task)
}

/// Returns the state that outlives the process.
fn lasting_state(index: &Arc<KvIndex>, router: &Arc<Router>, clock: Clock) -> LastingState {
    LastingState {
        index: Arc::clone(index),
        router: Arc::clone(router),
        clock,
    }
}

/// Returns the counters of decisions for the request path; the metrics read them too.
fn decision_counters(
    prefix: &Arc<PrefixDecisionCounters>,
    kv: &Arc<KvDecisionCounters>,
) -> DecisionCounters {
    DecisionCounters {
        prefix: Arc::clone(prefix),
        kv: Arc::clone(kv),
    }
}

/// Returns the operators' control of the end of this process.
fn shutdown_parts(
    draining: &Arc<DrainProgress>,
    gateway: &Arc<CurrentGateway>,
    handing: &Arc<SocketHandover>,
) -> ShutdownParts {
    ShutdownParts {
        drain: drain(draining, gateway),
        takeover: takeover(handing),
    }
}

/// Returns the page of all metrics that were registered.
fn metrics_page(registry: Registry, served: bool) -> MetricsPage {
    MetricsPage {
        registry: Arc::new(RwLock::new(registry)),
        features: &features::BUILT,
        served,
    }
}

/// Returns the callback that hands the listening sockets to another process.
fn takeover(handing: &Arc<SocketHandover>) -> Takeover {
    let handing = Arc::clone(handing);
    Takeover::new(move |socket| handing.to(socket))
}

/// Waits until the workers that are registered with the replicas are known; also, if
/// `probes_first`, until workers are probed.
async fn wait_for_workers(live: &LiveConfig, fleet: &Fleet, probes_first: bool) {
    #[cfg(feature = "nats")]
    let _ = tokio::time::timeout(LONGEST_FIRST_READ, live.first_shared()).await;
    if probes_first {
        wait_for_first_probes(live, fleet).await;
    }
}

/// Waits until workers are probed, so that the first requests find known workers: meanwhile another
/// process serves, or nobody can send one.
async fn wait_for_first_probes(live: &LiveConfig, fleet: &Fleet) {
    let known = async {
        live.first_found().await;
        fleet.first_verdicts().await;
    };
    let _ = tokio::time::timeout(LONGEST_FIRST_PROBES, known).await;
}

impl RunningRouter {
    /// Drains running requests; resolves when they have ended, or when their time is up.
    pub(crate) async fn drain(&self, new_connections: NewConnections) -> DrainResult {
        self.draining.begin(new_connections, None);
        self.draining.ended().await
    }

    /// Resolves when clients cannot connect any more though no drain was requested.
    pub(crate) async fn failed(&self) {
        self.gateway.failed().await;
    }

    /// Resolves when another process has taken over, and this process has drained.
    pub(crate) async fn handed_over(&self) -> DrainResult {
        let mut done = self.handing.done();
        if done.wait_for(|done| *done).await.is_err() {
            return std::future::pending().await;
        }
        // Operators, probes and their changes belong to the other process from now on.
        self.tasks.watch.abort();
        self.stop.admin.send_replace(true);
        let probes = self.probes.lock().take();
        if let Some(probes) = probes {
            probes.stop().await;
        }
        self.draining.ended().await
    }

    /// Aborts the requests that are still draining.
    pub(crate) async fn cut_now(&self) -> DrainResult {
        self.draining.cut();
        self.draining.ended().await
    }

    /// Ends everything that is left, and waits until it has ended.
    pub(crate) async fn stop(self) {
        self.tasks.watch.abort();
        self.tasks.stall.abort();
        self.tasks.data.abort();
        // The peers read the last message from the admin listener.
        self.operator_view.replicas.stop().await;
        self.stop.admin.send_replace(true);
        self.stop.sinks.send_replace(true);
        if let Some(probes) = self.probes.into_inner() {
            probes.stop().await;
        }
        let workers = self.fleet.numbered_workers();
        self.fleet.stop().await;
        #[cfg(feature = "nats")]
        if let Some(bus) = self.bus {
            bus.stop().await;
        }
        let handed_over = *self.handing.done().borrow();
        // After a take-over the file belongs to the other process.
        if let Some(snapshots) = self.snapshots.filter(|_| !handed_over) {
            snapshots.save(workers).await;
        }
        self.operator_view.cache.stop().await;
        if let Some(controller) = self.lmcache {
            controller.stop().await;
        }
        let _ = tokio::time::timeout(Duration::from_secs(5), self.tasks.admin).await;
        let tasks = [self.tasks.log, self.tasks.spans, self.tasks.snapshots];
        for sink in tasks.into_iter().flatten() {
            let _ = tokio::time::timeout(Duration::from_secs(5), sink).await;
        }
    }
}

/// Returns the doctor for the workers of the current settings, separate from the fleet that uses
/// them.
fn doctor(live: &Arc<LiveConfig>, tenants: Arc<Tenants>, key_in_arguments: bool) -> Doctor {
    let live = Arc::clone(live);
    Doctor::new(move |probe| {
        let settings = live.settings();
        let probe = if probe {
            ProbeMode::Send
        } else {
            ProbeMode::Nothing
        };
        let keys = ClientKeys {
            required: tenants.table().requires_key(),
            in_arguments: key_in_arguments,
        };
        async move {
            let surroundings = surroundings(&settings, keys);
            let options = DoctorOptions {
                probe,
                timeout: USUAL_TIMEOUT,
            };
            let report = doctor::diagnose(&settings, &surroundings, options).await;
            doctor::without_answers(report, &settings)
        }
    })
}

/// Returns the doctor's inputs besides the settings.
pub(crate) fn surroundings(settings: &Settings, keys: ClientKeys) -> Environment {
    Environment {
        keys,
        files: Some(crate::limits::files(settings.server.max_connections)),
        admin_token: crate::settings::admin_token(settings),
        #[cfg(feature = "nats")]
        bus: bus::dialer_for_checks(settings),
        hub_cache: HubCache::from_env(|name| std::env::var(name).ok()),
    }
}

/// Returns the operators' control of the data listener's drain.
fn drain(draining: &Arc<DrainProgress>, gateway: &Arc<CurrentGateway>) -> Drain {
    let (start, progress, gateway) = (
        Arc::clone(draining),
        Arc::clone(draining),
        Arc::clone(gateway),
    );
    let begin = move |timeout| start.begin(NewConnections::Served, timeout);
    Drain::new(begin, move || {
        progress.status(gateway.current().running_requests())
    })
}

/// Returns the request path's own dry run of a decision.
fn dry_run(gateway: &Arc<CurrentGateway>, max_body_bytes: usize) -> DryRun {
    let gateway = Arc::clone(gateway);
    DryRun::new(max_body_bytes, move |body| {
        let gateway = gateway.current();
        async move { gateway.dry_run(body).await }
    })
}
