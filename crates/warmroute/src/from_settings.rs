//! Converts the configuration to the settings of the router's parts.

use config::{ListenSetting, Settings};
use gateway::ProcessLimits;
use kv_index::IndexSettings;
use net::ListenAddr;
use routing::RoutingSettings;

/// Returns the settings of the block index.
pub(crate) fn index(settings: &Settings) -> IndexSettings {
    IndexSettings {
        scheme: settings.kv_events.hash_scheme(),
        memory_budget: settings.kv_events.memory_budget,
        prediction_max_blocks: settings.kv_events.prediction.max_blocks,
        unconfirmed_ttl: settings.kv_events.prediction.ttl,
        prune_target_ratio: settings.kv_events.prediction.prune_target_ratio,
        secret: runtime::random(),
    }
}

/// Returns the settings of the decision.
pub(crate) fn routing(settings: &Settings) -> RoutingSettings {
    RoutingSettings {
        scoring: settings.kv_cache_index.scoring,
        prediction_ttl: settings.kv_events.prediction.ttl,
        queue: settings.queue,
        kept_candidates: settings.decisions.candidates,
        ..RoutingSettings::of(settings.routing.clone(), settings.prefix_routing)
    }
}

/// Returns the limits of the process; the system sets those that the configuration leaves to it.
pub(crate) fn process_limits(settings: &Settings) -> ProcessLimits {
    let server = &settings.server;
    ProcessLimits {
        memory_budget: crate::memory_budget::bytes(server.memory_budget),
        max_connections: server
            .max_connections
            .map_or_else(crate::limits::max_connections, |most| {
                usize::try_from(most.get()).unwrap_or(usize::MAX)
            }),
    }
}

/// Returns the address of a listener.
pub(crate) fn address(listen: &ListenSetting) -> ListenAddr {
    match listen {
        ListenSetting::Tcp(address) => ListenAddr::tcp(address.ip().to_string(), address.port()),
        ListenSetting::Unix(path) => ListenAddr::unix(path),
    }
}
