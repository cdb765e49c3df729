//! The configured workers, and the configuration of each supervisor derived from it.
//!
//! The configuration of one supervisor may depend on other workers: two engines of one host cannot
//! both be assumed to publish at the default port. So supervisor configurations are always derived
//! for all workers together.

use std::{collections::HashMap, num::NonZeroU32, time::Duration};

use config::Settings;
use kv_blocks::{HashScheme, WorkerId};
use net::{Destinations, WorkerUrl};

use crate::{
    EngineKind, FleetStartError, MessagesMode, TrustCache,
    probe::{HealthCheckPlan, ProbeClient},
    streams::StreamSettings,
    supervisor_config::SupervisorConfig,
    worker_machine::PeriodicChecks,
};

/// The workers and their rules: the part of a running fleet that [`crate::Fleet::apply`] can
/// replace.
#[derive(Clone, Debug)]
pub struct FleetConfig {
    /// The workers; names are unique.
    pub workers: Vec<config::WorkerEntry>,
    /// Whether and how event streams are followed.
    pub kv_events: config::KvEventsSection,
    /// Intervals and thresholds of the checks.
    pub health_checks: config::HealthChecksSection,
    /// Limits after which a failing worker is ejected.
    pub circuit_breaker: config::CircuitBreakerSection,
    /// Networks in which workers that were found may be; empty: anywhere an engine may be.
    pub allowed_networks: Vec<config::AddressRange>,
    /// Time limit of one TCP connect, including connect probes.
    pub connect_timeout: Duration,
    /// Whether workers are probed for whether they honour salts.
    pub probes_salts: bool,
}

/// Returns the addresses at which a worker may be: an operator wrote the configuration; the address
/// of a discovered or registered worker is not trusted, and is restricted to `networks` if there are
/// any.
pub fn permitted_addresses(
    worker: &config::WorkerEntry,
    networks: &[config::AddressRange],
) -> Destinations {
    if worker.found {
        Destinations::engines(networks)
    } else {
        Destinations::Any
    }
}

impl FleetConfig {
    /// Extracts the fleet's part of the settings.
    pub fn of(settings: &Settings) -> Self {
        Self {
            workers: settings.workers.clone(),
            kv_events: settings.kv_events.clone(),
            health_checks: settings.health_checks.clone(),
            circuit_breaker: settings.circuit_breaker.clone(),
            allowed_networks: settings.discovery.allowed_networks.clone(),
            connect_timeout: settings.request.connect_timeout,
            probes_salts: settings.tenants.is_strict(),
        }
    }

    /// Returns the supervisor configuration of every worker, in the order of the list; `number`
    /// assigns each its number.
    pub(crate) fn supervisor_configs(
        &self,
        scheme: HashScheme,
        mut number: impl FnMut(&config::WorkerEntry, &WorkerUrl) -> WorkerId,
    ) -> Result<Vec<SupervisorConfig>, FleetStartError> {
        let urls = self.worker_urls()?;
        let mut hosts: HashMap<Option<&str>, usize> = HashMap::new();
        for url in &urls {
            *hosts.entry(url.host()).or_default() += 1;
        }
        let configs = self.workers.iter().zip(&urls).map(|(worker, url)| {
            let streams = StreamSettings {
                own: worker.kv_events.clone(),
                all: self.kv_events.clone(),
                host_is_its_own: hosts.get(&url.host()) == Some(&1),
                bound_alone: self.is_bound_alone(worker),
                url: url.clone(),
                api_key: worker.api_key.clone(),
                block_size: worker.block_size,
                scheme,
            };
            self.supervisor_config(number(worker, url), worker, streams)
        });
        Ok(configs.collect())
    }

    /// Returns the URL of every worker with its trust roots, in the order of the list.
    fn worker_urls(&self) -> Result<Vec<WorkerUrl>, FleetStartError> {
        let mut trusts = TrustCache::default();
        let url_of = |worker: &config::WorkerEntry| {
            let url: WorkerUrl = worker.url.parse().map_err(|error| FleetStartError::Url {
                worker: worker.name.clone(),
                error,
            })?;
            let url = url.only_at(permitted_addresses(worker, &self.allowed_networks));
            trusts
                .attach(url, &worker.tls)
                .map_err(|error| FleetStartError::Trust {
                    worker: worker.name.clone(),
                    error,
                })
        };
        self.workers.iter().map(url_of).collect()
    }

    fn supervisor_config(
        &self,
        id: WorkerId,
        worker: &config::WorkerEntry,
        streams: StreamSettings,
    ) -> SupervisorConfig {
        let checks = &self.health_checks;
        SupervisorConfig {
            id,
            name: worker.name.as_str().into(),
            client: ProbeClient::new(
                streams.url.clone(),
                worker.engine.unwrap_or(EngineKind::Generic),
                worker.api_key.as_ref(),
                checks.timeout,
            ),
            health_check: HealthCheckPlan {
                own: worker.health_check.clone(),
                global_endpoint: checks.endpoint.clone(),
            },
            periodic_checks: if checks.enabled {
                PeriodicChecks::Enabled
            } else {
                PeriodicChecks::Disabled
            },
            engine: worker.engine,
            messages: match worker.engine {
                Some(EngineKind::Anthropic) => Some(MessagesMode::Native),
                _ => worker.messages,
            },
            only_models: worker.models.iter().map(|id| id.as_str().into()).collect(),
            block_size: worker.block_size,
            dp_ranks: worker.dp_ranks.map(NonZeroU32::get),
            streams,
            connect_timeout: self.connect_timeout,
        }
    }

    /// Returns whether no other worker connects to the same socket of ours with topics that do not
    /// distinguish the two.
    fn is_bound_alone(&self, worker: &config::WorkerEntry) -> bool {
        let same = |other: &&config::WorkerEntry| bound_alike(worker, other);
        self.workers.iter().filter(same).count() <= 1
    }
}

/// Returns whether two workers connect to one socket of ours with topics that do not distinguish
/// them; also true for a worker and itself.
fn bound_alike(one: &config::WorkerEntry, other: &config::WorkerEntry) -> bool {
    let (one, other) = (&one.kv_events, &other.kv_events);
    one.bind && other.bind && one.endpoint == other.endpoint && one.topic == other.topic
}
