//! The whole router behind its data listener.

use std::{error::Error, sync::Arc, time::Duration};

use config::{ConfigSource, Settings};
use fleet::{Fleet, FleetConfig, FleetParts, HubCache};
use gateway::{
    CurrentGateway, DecisionCounters, Gateway, GatewayParts, ListenerPhase, ProcessLimits,
};
use kv_blocks::HashScheme;
use kv_index::{IndexSettings, KvIndex};
use net::{Clock, ListenAddr};
use parity::ParityTracker;
use prometheus_client::registry::Registry;
use response_cache::ResponseCache;
use routing::{Router, RoutingSettings, receipt::ReceiptRing};
use tokio::{runtime::Runtime, sync::watch};

use crate::counted_server::CountedServer;

const SCHEME: HashScheme = HashScheme::Xxh3 { seed: 1337 };

/// Starts the router in front of one engine, whose prompts are identified by their text. `keys`: more
/// of its configuration.
pub(crate) fn start(keys: &str, engine: u16) -> Result<CountedServer, Box<dyn Error>> {
    // A short ring: what receipts hold beyond their request is not counted for a stream.
    let settings = settings(&format!(
        "{keys}\n\
         workers: [{{name: w1, url: 'http://127.0.0.1:{engine}', type: generic}}]\n\
         models: {{defaults: {{tokenizer: none}}}}\n\
         decisions: {{ring_entries: 16}}\n"
    ))?;
    // Probes allocate on another thread.
    let probes = Runtime::new()?;
    CountedServer::start(move || async move {
        let mut registry = Registry::default();
        let index = Arc::new(KvIndex::new(IndexSettings::default()));
        let fleet = {
            let _probing = probes.enter();
            fleet(settings.clone(), Arc::clone(&index), &mut registry)
        };
        let fleet = Arc::new(fleet);
        let routing = RoutingSettings::of(settings.routing.clone(), settings.prefix_routing);
        let gateway = gateway(
            &settings,
            &fleet,
            Router::new(routing, index),
            &mut registry,
        );
        let listener = net::listen(&ListenAddr::tcp("127.0.0.1", 0)).await;
        let listener = listener.expect("a port");
        let port = listener.address().port().expect("it is TCP");
        let (phase, phases) = watch::channel(ListenerPhase::Run);
        tokio::spawn(async move {
            gateway::serve(gateway, Some(listener.into()), phases).await;
            drop((phase, probes));
        });
        while !is_ready(&fleet) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        port
    })
}

fn is_ready(fleet: &Fleet) -> bool {
    let snapshot = fleet.snapshot();
    let model = snapshot.model("m");
    model.is_some_and(|model| !model.candidates.is_empty())
}

fn gateway(
    settings: &Settings,
    fleet: &Arc<Fleet>,
    router: Router,
    registry: &mut Registry,
) -> Arc<CurrentGateway> {
    let clock = Clock::system();
    let cache = ResponseCache::start(&settings.response_cache, None, clock, registry);
    let parts = GatewayParts {
        fleet: Arc::clone(fleet),
        router: Arc::new(router),
        ring: Arc::new(ReceiptRing::new(settings.decisions.clone())),
        parity: Arc::new(parking_lot::Mutex::new(ParityTracker::new(settings.parity))),
        counters: DecisionCounters {
            prefix: Arc::default(),
            kv: Arc::default(),
        },
        log: None,
        spans: None,
        cache: cache.expect("memory suffices"),
        lmcache: None,
        tokens: None,
        peers: replicas::NoteQueue::default(),
        clock,
        tenants: Arc::default(),
        wrong_keys: Arc::default(),
        process: ProcessLimits {
            memory_budget: None,
            max_connections: 10_000,
        },
    };
    CurrentGateway::new(Gateway::new(parts, settings, registry))
}

fn fleet(settings: Settings, index: Arc<KvIndex>, registry: &mut Registry) -> Fleet {
    let parts = FleetParts {
        config: FleetConfig::of(&settings),
        models: settings.models,
        kv_cache_index: settings.kv_cache_index,
        redis: None,
        max_prefix_length: settings.prefix_routing.max_prefix_length,
        hub_cache: HubCache::from_env(|_| None),
        index,
        scheme: SCHEME,
        earlier: Vec::new(),
        clock: Clock::system(),
        on_verdict: Arc::new(|_| {}),
    };
    Fleet::start(parts, registry).expect("its worker is valid")
}

fn settings(text: &str) -> Result<Settings, String> {
    let source = ConfigSource::of_text("figures", text);
    config::load(source).map_err(|problems| format!("{problems:?}"))
}
