//! A fleet over given engines, and waits for its findings.

use std::{sync::Arc, time::Duration};

use config::{
    ChatTemplateSetting, CircuitBreakerSection, HealthCheck, HealthChecksSection,
    KvCacheIndexSection, KvEventsSection, ModelEntry, ModelsSection, TokenizerSetting, WorkerEntry,
    WorkerKvEvents,
};
use fleet::{Fleet, FleetConfig, FleetParts, HubCache, Snapshot, WorkerView};
use kv_blocks::{HashScheme, Role, Tier};
use kv_index::{IndexSettings, KvIndex};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;

/// Long enough for a loaded machine; a test that has to wait this long fails.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn worker(name: &str, url: &str) -> WorkerEntry {
    WorkerEntry {
        name: name.to_owned(),
        url: url.to_owned(),
        found: false,
        engine: None,
        models: Vec::new(),
        role: Role::Unified,
        bootstrap_port: None,
        p2p_port: None,
        tls: config::WorkerTls::default(),
        weight: 1.0,
        messages: None,
        api_key: None,
        block_size: None,
        dp_ranks: None,
        health_check: HealthCheck::default(),
        kv_events: WorkerKvEvents::default(),
        allow_tiers: vec![Tier::Device, Tier::Host, Tier::Disk],
    }
}

pub(crate) fn models(tokenizer: TokenizerSetting) -> ModelsSection {
    ModelsSection {
        defaults: ModelEntry {
            tokenizer,
            chat_template: ChatTemplateSetting::Auto,
        },
        entries: Default::default(),
        rules: Vec::new(),
        aliases: Default::default(),
    }
}

pub(crate) fn parts(workers: Vec<WorkerEntry>) -> FleetParts {
    FleetParts {
        config: FleetConfig {
            workers,
            kv_events: KvEventsSection {
                // Nothing listens on port 1: no test follows a foreign stream.
                default_port: 1,
                ..KvEventsSection::default()
            },
            health_checks: HealthChecksSection {
                warmup_check_interval: Duration::from_millis(100),
                recovery_interval: Duration::from_millis(50),
                recovery_max_interval: Duration::from_millis(200),
                ..HealthChecksSection::default()
            },
            circuit_breaker: CircuitBreakerSection::default(),
            allowed_networks: Vec::new(),
            connect_timeout: Duration::from_secs(1),
            probes_salts: false,
        },
        models: models(TokenizerSetting::Auto),
        max_prefix_length: 1024,
        kv_cache_index: KvCacheIndexSection {
            entry_ttl: PATIENCE,
            ..KvCacheIndexSection::default()
        },
        hub_cache: HubCache::default(),
        redis: None,
        index: Arc::new(KvIndex::new(IndexSettings::default())),
        scheme: HashScheme::default(),
        earlier: Vec::new(),
        clock: net::Clock::system(),
        on_verdict: Arc::new(|_| ()),
    }
}

/// A running fleet, its reported verdicts and its metrics.
pub(crate) struct RunningFleet {
    pub(crate) fleet: Fleet,
    pub(crate) verdicts: Arc<Mutex<Vec<String>>>,
    pub(crate) registry: Registry,
}

pub(crate) fn start(mut parts: FleetParts) -> RunningFleet {
    let verdicts: Arc<Mutex<Vec<String>>> = Arc::default();
    let lines = Arc::clone(&verdicts);
    parts.on_verdict = Arc::new(move |verdict| lines.lock().push(verdict.to_string()));
    let mut registry = Registry::default();
    let fleet = Fleet::start(parts, &mut registry).unwrap();
    RunningFleet {
        fleet,
        verdicts,
        registry,
    }
}

impl RunningFleet {
    /// Polls until the snapshot meets the condition.
    pub(crate) async fn until(
        &self,
        what: &str,
        condition: impl Fn(&Snapshot) -> bool,
    ) -> Arc<Snapshot> {
        let waited = tokio::time::timeout(PATIENCE, async {
            loop {
                let snapshot = self.fleet.snapshot();
                if condition(&snapshot) {
                    return snapshot;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        waited.await.unwrap_or_else(|_| {
            panic!(
                "never came: {what}; last: {:#?}",
                self.fleet.snapshot().workers
            )
        })
    }

    pub(crate) async fn ready(&self, name: &str) -> Arc<WorkerView> {
        let snapshot = self
            .until("ready", |snapshot| {
                snapshot
                    .worker_named(name)
                    .is_some_and(|worker| worker.is_ready())
            })
            .await;
        Arc::clone(snapshot.worker_named(name).unwrap())
    }

    pub(crate) async fn verdict(&self, expected: &str) -> String {
        let waited = tokio::time::timeout(PATIENCE, async {
            loop {
                if let Some(line) = self
                    .verdicts
                    .lock()
                    .iter()
                    .find(|line| line.contains(expected))
                {
                    return line.clone();
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        waited
            .await
            .unwrap_or_else(|_| panic!("no verdict {expected}; got: {:#?}", self.verdicts.lock()))
    }

    pub(crate) fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }
}
