//! Builds the router out of its parts. Nothing is decided here: parts are made, handed to each other, and started.

mod before_routing;
mod content_routing;
mod model_routing;

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use admin::{Access, AdminParts, Doctor, Drain, DryRun, Takeover, Token};
use config::{BlockHashKind, Listen, Problem, Settings};
use doctor::{Options, Probe, Surroundings, USUAL_TIMEOUT};
use fleet::{Fleet, FleetParts, HubCache, OnVerdict, Roster};
use gateway::{
    Connector, CountLimits, DecisionLog, DecisionLogSettings, Disaggregation, Drained, Gateway, GatewayParts, InForce,
    Keys, Limits, RetryRules, Rewriting, Rules, Waiting,
};
use indexer::{Indexer, IndexerParts};
use kv_blocks::HashScheme;
use kv_index::{IndexSettings, KvIndex};
use net::{Clock, Destinations, ListenAddr, ListenError, Listener};
use parity::Book;
use parking_lot::{Mutex, RwLock};
use prometheus_client::registry::Registry;
use routing::{
    OverlapMeasure, Policy, PrefixTally, QueueSettings, RingSettings, Router, RoutingSettings, ScoringSettings,
    SessionMode,
    receipt::{Ring, RingLimits},
};
use tokio::{sync::watch, task::JoinHandle};

use crate::{
    drain::{Draining, NewConnections, Usual},
    live::{self, Live, Sources},
    serve,
    takeover::{self, Door, Given, Handing},
};

/// Most header fields of a request.
const MAX_HEADERS: usize = 100;
/// A client that takes nothing of its reply for this long is given up.
const CLIENT_STALL: Duration = Duration::from_secs(300);

/// Before a process that takes over accepts: long enough for workers that answer.
const LONGEST_FIRST_LOOK: Duration = Duration::from_secs(15);

/// What the settings do not hold.
pub(crate) struct Extras {
    /// Required of clients.
    pub(crate) keys: Keys,
    /// Required of operators.
    pub(crate) token: Option<Token>,
    /// Told what was found at each worker.
    pub(crate) on_verdict: OnVerdict,
    /// Whether a running process is asked for its listening sockets.
    pub(crate) takeover: bool,
}

/// Why nothing was started.
#[derive(Debug)]
pub(crate) enum StartError {
    /// A port could not be bound.
    Listen(ListenError),
    /// The fleet could not be made.
    Fleet(fleet::StartError),
    /// A running process keeps its listening sockets.
    Takeover(String),
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Listen(error) => error.fmt(f),
            Self::Fleet(error) => error.fmt(f),
            Self::Takeover(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StartError {}

impl From<ListenError> for StartError {
    fn from(error: ListenError) -> Self {
        Self::Listen(error)
    }
}

impl From<fleet::StartError> for StartError {
    fn from(error: fleet::StartError) -> Self {
        Self::Fleet(error)
    }
}

/// A running router.
pub(crate) struct Running {
    /// Where clients connect.
    pub(crate) data: ListenAddr,
    /// Where operators connect.
    pub(crate) admin: ListenAddr,
    /// Its receipts.
    pub(crate) ring: Arc<Ring>,
    /// Its workers.
    pub(crate) fleet: Arc<Fleet>,
    stop: watch::Sender<bool>,
    draining: Arc<Draining>,
    handing: Arc<Handing>,
    data_task: JoinHandle<()>,
    watch_task: JoinHandle<()>,
    admin_task: JoinHandle<()>,
    log_task: Option<JoinHandle<()>>,
}

/// Binds both listeners, then starts everything behind them. A worker that is down does not stop the start.
pub(crate) async fn start(settings: Settings, sources: Sources, extras: Extras) -> Result<Running, StartError> {
    let mut given = match extras.takeover {
        true => takeover::ask(&settings).await.map_err(StartError::Takeover)?,
        false => None,
    };
    let data = open(Door::Data, &address(&settings.server.listen).chosen_by("--port"), given.as_mut()).await?;
    let admin = open(Door::Admin, &address(&settings.admin.listen).chosen_by("--admin-listen"), given.as_mut()).await?;
    start_on(settings, sources, extras, (data, admin), given).await
}

/// Binds a listener, or takes it from the process that has it.
async fn open(door: Door, wanted: &ListenAddr, given: Option<&mut Given>) -> Result<Arc<Listener>, StartError> {
    match given.and_then(|given| given.listener(door, wanted)) {
        Some(Ok(listener)) => Ok(Arc::new(listener)),
        Some(Err(error)) => Err(StartError::Takeover(format!("{wanted} was given and cannot be used: {error}"))),
        None => Ok(Arc::new(net::listen(wanted).await?)),
    }
}

async fn start_on(
    settings: Settings,
    sources: Sources,
    extras: Extras,
    (data, admin): (Arc<Listener>, Arc<Listener>),
    given: Option<Given>,
) -> Result<Running, StartError> {
    let clock = Clock::system();
    let mut registry = Registry::default();
    let scheme = scheme(&settings);
    let index = Arc::new(KvIndex::new(IndexSettings {
        scheme,
        memory_budget: settings.kv_events.memory_budget,
        prediction_max_blocks: settings.kv_events.prediction.max_blocks,
        unconfirmed_ttl: settings.kv_events.prediction.ttl,
        prune_target_ratio: settings.kv_events.prediction.prune_target_ratio,
        secret: RandomState::new().hash_one("index"),
    }));
    let router = Arc::new(Router::new(routing(&settings), Arc::clone(&index)));
    let ring = Arc::new(Ring::new(RingLimits {
        entries: settings.decisions.ring_entries,
        bytes: settings.decisions.ring_bytes,
    }));
    let parity = Arc::new(Mutex::new(Book::new(thresholds(&settings.parity))));
    let prefix_tally = Arc::new(PrefixTally::default());
    let in_force = Arc::new(settings.clone());
    let look = doctor(&in_force, extras.keys.required());
    let (limits, rules) = (limits(&settings), rules(&settings, scheme));
    let (admin_token, admin_local) = (extras.token, settings.admin.listen.is_local());
    let serve_metrics = settings.metrics.enabled;
    let usual = Usual { grace: settings.server.drain_grace, timeout: settings.server.drain_timeout };
    let draining = Draining::new(usual, clock);
    let fleet = Arc::new(Fleet::start(
        FleetParts {
            roster: Roster::of(&settings),
            models: settings.models,
            kv_cache_index: settings.kv_cache_index,
            max_prefix_length: settings.prefix_routing.max_prefix_length,
            hub_cache: HubCache::from_env(|name| std::env::var(name).ok()),
            index: Arc::clone(&index),
            scheme,
            clock,
            on_verdict: extras.on_verdict,
        },
        &mut registry,
    )?);
    let log = settings.decisions.log.map(|log| {
        let settings = DecisionLogSettings {
            path: log.path,
            interval: log.interval,
            chains: log.chains,
            include_request_text: log.include_request_text,
        };
        DecisionLog::new(settings, &mut registry)
    });
    let gateway = InForce::new(Gateway::new(
        GatewayParts {
            fleet: Arc::clone(&fleet),
            router: Arc::clone(&router),
            ring: Arc::clone(&ring),
            parity: Arc::clone(&parity),
            prefix_tally: Arc::clone(&prefix_tally),
            log: log.clone(),
            clock,
            keys: extras.keys,
            limits,
            rules,
        },
        &mut registry,
    ));
    let indexer = Indexer::start(IndexerParts {
        index: Arc::clone(&index),
        scheme,
        clock,
        destinations: Destinations::Engines,
        residents: admin::residents(Arc::clone(&fleet)),
    });
    let parts = live::Parts {
        fleet: Arc::clone(&fleet),
        router: Arc::clone(&router),
        gateway: Arc::clone(&gateway),
        scheme,
        clock,
    };
    let doors = vec![(Door::Data, Arc::downgrade(&data)), (Door::Admin, Arc::downgrade(&admin))];
    let handing = Handing::new(doors, Arc::clone(&draining));
    let live = Live::new(parts, Arc::clone(&in_force), sources, &mut registry);
    let parts = AdminParts {
        fleet: Arc::clone(&fleet),
        router,
        index,
        indexer,
        ring: Arc::clone(&ring),
        parity,
        prefix_tally,
        control: Arc::clone(&live) as Arc<dyn admin::Control>,
        registry: Arc::new(RwLock::new(registry)),
        serve_metrics,
        drain: drain(&draining, &gateway),
        takeover: Takeover::new({
            let handing = Arc::clone(&handing);
            move |socket| handing.to(socket)
        }),
        doctor: look,
        dry_run: dry_run(&gateway, limits.max_body_bytes),
        clock,
    };
    let access = Access { token: admin_token, loopback: admin_local };
    let (stop, stopped) = watch::channel(false);
    let (data_address, admin_address) = (data.address(), admin.address());
    if given.is_some() {
        // Whoever is accepted from now on is to find workers that are known: the other process serves meanwhile.
        let _ = tokio::time::timeout(LONGEST_FIRST_LOOK, fleet.first_verdicts()).await;
    }
    let listening = gateway::serve(gateway, vec![data], draining.phases());
    let running = Running {
        data: data_address,
        admin: admin_address,
        ring,
        fleet,
        stop,
        watch_task: tokio::spawn(live::watch(live)),
        data_task: tokio::spawn(Arc::clone(&draining).carry(listening)),
        draining,
        handing,
        log_task: log.map(|log| tokio::spawn(log.write(stopped.clone()))),
        admin_task: tokio::spawn(admin::serve(parts, access, admin, stopped)),
    };
    if let Some(given) = given {
        given.taken_over().map_err(|error| {
            StartError::Takeover(format!("the process that gave its listening sockets is gone: {error}"))
        })?;
    }
    Ok(running)
}

impl Running {
    /// Lets running requests end; resolves when they have, or when their time is up.
    pub(crate) async fn drain(&self, new_connections: NewConnections) -> Drained {
        self.draining.begin(new_connections, None);
        self.draining.ended().await
    }

    /// Resolves when another process has taken over, and what ran here has ended.
    pub(crate) async fn handed_over(&self) -> Drained {
        let mut done = self.handing.done();
        if done.wait_for(|done| *done).await.is_err() {
            return std::future::pending().await;
        }
        // Operators are the other process's from now on.
        self.stop.send_replace(true);
        self.draining.ended().await
    }

    /// Cuts what still runs of a drain.
    pub(crate) async fn cut_now(&self) -> Drained {
        self.draining.cut();
        self.draining.ended().await
    }

    /// Ends everything that is left, and waits until it is gone.
    pub(crate) async fn stop(self) {
        self.watch_task.abort();
        self.data_task.abort();
        self.stop.send_replace(true);
        self.fleet.stop().await;
        let _ = tokio::time::timeout(Duration::from_secs(5), self.admin_task).await;
        if let Some(log) = self.log_task {
            let _ = tokio::time::timeout(Duration::from_secs(5), log).await;
        }
    }
}

/// Settings that a running router can go on with: what the check of a file alone does not see.
pub(crate) fn usable(settings: Settings) -> Result<Settings, Vec<Problem>> {
    match serve::no_workers(&settings) {
        Some(problem) => Err(vec![problem]),
        None => Ok(settings),
    }
}

/// Looks at the workers of these settings, beside the fleet that uses them.
fn doctor(settings: &Arc<Settings>, api_key: bool) -> Doctor {
    let settings = Arc::clone(settings);
    let surroundings = Arc::new(surroundings(&settings, api_key));
    Doctor::new(move |probe| {
        let (settings, surroundings) = (Arc::clone(&settings), Arc::clone(&surroundings));
        let probe = if probe { Probe::Send } else { Probe::Nothing };
        async move {
            let report = doctor::diagnose(&settings, &surroundings, Options { probe, timeout: USUAL_TIMEOUT }).await;
            serde_json::to_value(report).unwrap_or_default()
        }
    })
}

/// What a look goes by beside the settings. `api_key`: clients must send one.
pub(crate) fn surroundings(settings: &Settings, api_key: bool) -> Surroundings {
    Surroundings {
        api_key,
        files: crate::limits::files(settings.server.max_connections),
        hub_cache: HubCache::from_env(|name| std::env::var(name).ok()),
    }
}

/// The end of the data listener, for operators.
fn drain(draining: &Arc<Draining>, gateway: &Arc<InForce>) -> Drain {
    let (begins, tells, gateway) = (Arc::clone(draining), Arc::clone(draining), Arc::clone(gateway));
    let begin = move |timeout| begins.begin(NewConnections::Served, timeout);
    Drain::new(begin, move || tells.status(gateway.now().running_requests()))
}

/// The request path's own answer to who would get a request.
fn dry_run(gateway: &Arc<InForce>, max_body_bytes: usize) -> DryRun {
    let gateway = Arc::clone(gateway);
    DryRun::new(max_body_bytes, move |body| {
        let gateway = gateway.now();
        async move { gateway.dry_run(body).await }
    })
}

pub(crate) fn address(listen: &Listen) -> ListenAddr {
    match listen {
        Listen::Tcp(address) => ListenAddr::tcp(address.ip().to_string(), address.port()),
        Listen::Unix(path) => ListenAddr::unix(path),
    }
}

/// How tokens become hashes.
pub(crate) fn scheme(settings: &Settings) -> HashScheme {
    match settings.kv_events.block_hash {
        BlockHashKind::Xxh3 => HashScheme::Xxh3 { seed: settings.kv_events.block_hash_seed },
        BlockHashKind::Fnv1a => HashScheme::Fnv1a,
    }
}

/// The settings of the decision.
pub(crate) fn routing(settings: &Settings) -> RoutingSettings {
    let routing = &settings.routing;
    RoutingSettings {
        // A test reads every word that the configuration takes.
        policy: routing.policy.parse().unwrap_or(Policy::Warm),
        ring: RingSettings {
            virtual_nodes: settings.prefix_routing.virtual_nodes,
            load_factor_epsilon: settings.prefix_routing.load_factor_epsilon,
            seed: routing.hash_seed_of_rings,
        },
        continuum_ring: settings.prefix_routing.enabled,
        scoring: scoring(&settings.kv_cache_index.scoring),
        overlap_weight: routing.overlap_weight,
        temperature: routing.temperature,
        speculative: routing.speculative,
        speculative_ttl: routing.speculative_ttl,
        prediction_ttl: settings.kv_events.prediction.ttl,
        medium_weights: model_routing::medium_weights(routing.medium_weights),
        dynamo: model_routing::dynamo(routing.dynamo),
        session: match routing.session.mode {
            config::SessionMode::Soft => SessionMode::Soft,
            config::SessionMode::Hard => SessionMode::Hard,
            config::SessionMode::Off => SessionMode::Off,
        },
        queue: QueueSettings {
            enabled: settings.queue.enabled,
            hold_above: settings.queue.hold_above,
            ageing: settings.queue.ageing,
            max_entries: settings.queue.max_entries,
            max_bytes: settings.queue.max_bytes,
        },
        track_active_blocks: routing.track_active_blocks,
        kept_candidates: settings.decisions.candidates,
        ..RoutingSettings::default()
    }
}

fn thresholds(settings: &config::Parity) -> parity::Settings {
    parity::Settings {
        window: settings.window,
        min_joined: settings.min_joined,
        drift_ratio: settings.drift_ratio,
        downgrade_ratio: settings.downgrade_ratio,
        recover_ratio: settings.recover_ratio,
    }
}

fn scoring(scoring: &config::Scoring) -> ScoringSettings {
    ScoringSettings {
        overlap_measure: if scoring.relative { OverlapMeasure::Relative } else { OverlapMeasure::PromptFraction },
        overlap_weight: scoring.overlap_weight,
        load_weight: scoring.load_weight,
        health_weight: scoring.health_weight,
        min_overlap_threshold: scoring.min_overlap_threshold,
        gpu_tier_weight: scoring.gpu_tier_weight,
        storage_tier_weight: scoring.storage_tier_weight,
    }
}

pub(crate) fn limits(settings: &Settings) -> Limits {
    let server = &settings.server;
    Limits {
        max_head_bytes: server.max_head_bytes,
        max_body_bytes: server.max_body_bytes,
        max_held_bytes: server.max_held_bytes,
        memory_budget: server.memory_budget,
        counts: CountLimits { choices: server.max_choices, prompts: server.max_prompts, stops: server.max_stop },
        max_headers: MAX_HEADERS,
        max_connections: server
            .max_connections
            .map_or_else(crate::limits::max_connections, |most| usize::try_from(most.get()).unwrap_or(usize::MAX)),
        keep_alive: server.keep_alive,
        head_timeout: server.head_timeout,
        client_stall: CLIENT_STALL,
        log_requests: settings.logging.requests,
    }
}

pub(crate) fn rules(settings: &Settings, scheme: HashScheme) -> Rules {
    let (request, retry) = (&settings.request, &settings.retry);
    Rules {
        timeout: request.timeout,
        connect_timeout: request.connect_timeout,
        stream_idle: request.stream_idle_timeout,
        stream_total: request.stream_max_duration,
        strict_streams: request.strict_stream_completion,
        retry: RetryRules {
            sends: retry.max_attempts.get(),
            base_delay: retry.base_delay,
            max_delay: retry.max_delay,
            exponential: retry.exponential_backoff,
            jitter: retry.jitter,
            budget_ratio: retry.budget_ratio,
        },
        scheme,
        tokenize_budget: settings.routing.tokenize_budget,
        busy_threshold: settings.routing.busy_threshold,
        engine_priority: settings.queue.engine_priority,
        by_model: model_routing::by_model(&settings.routing),
        reservation_ttl: settings.routing.reservation_ttl,
        max_prefix_bytes: settings.prefix_routing.max_prefix_length,
        // Names that are none were refused with the configuration.
        session_headers: settings.routing.session.headers.iter().filter_map(|name| name.parse().ok()).collect(),
        disaggregation: disaggregation(settings),
        clusters: settings.routing.semantic_clusters.as_ref().map(content_routing::clusters),
        names: before_routing::names(&settings.models),
        hooks: before_routing::hooks(&settings.hooks),
        headers: before_routing::headers(settings.compat),
        shared_prefixes: settings.routing.shared_prefix_routing.map(content_routing::shared_prefixes),
        rewriting: Rewriting {
            cache_control: settings.prefix_routing.anthropic_cache_control_injection,
            volatile_prefix: settings.prefix_routing.strip_volatile_prefix,
        },
        waiting: Waiting {
            busy: settings.queue.enabled.then_some(settings.queue.wait),
            nobody: settings.queue.engine_wait_timeout,
            max_entries: settings.queue.max_entries,
            max_bytes: settings.queue.max_bytes,
        },
    }
}

fn disaggregation(settings: &Settings) -> Disaggregation {
    Disaggregation {
        connector: settings.disaggregation.enabled.then_some(match settings.disaggregation.connector {
            config::Connector::Nixl => Connector::Nixl,
            config::Connector::Mooncake => Connector::Mooncake,
            config::Connector::Sglang => Connector::Sglang,
        }),
        uncached_token_threshold: settings.disaggregation.uncached_token_threshold,
        prefill_policy: model_routing::policy(settings.routing.prefill_policy),
        decode_policy: model_routing::policy(settings.routing.decode_policy),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_that_the_configuration_takes_is_there_and_the_other_way_round() {
        let schema = config::schema();
        let words =
            schema["properties"]["routing"]["properties"]["policy"]["enum"].as_array().expect("a list of words");
        let known: Vec<Policy> = words
            .iter()
            .map(|word| word.as_str().expect("a word").parse().unwrap_or_else(|error| panic!("{error}")))
            .collect();
        for policy in Policy::ALL {
            assert_eq!(known.iter().filter(|known| **known == policy).count(), 1, "{policy}");
        }
        assert_eq!(known.len(), Policy::ALL.len());
    }
}
