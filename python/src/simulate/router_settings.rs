//! Configures the simulated router by keys of the configuration file, with their checks.

use std::time::Duration;

use config::{ConfigSource, Override, Settings, nearest, simulated_keys};
use routing::{CacheSource, RoutingSettings};

/// The part of a router's configuration that affects a simulation.
#[derive(Clone, Debug)]
pub(super) struct RouterSettings {
    /// Routing settings; each experiment has its own policy.
    pub(super) routing: RoutingSettings,
    /// Whether events are followed.
    pub(super) cache: CacheSource,
    /// Longest wait of a request in the queue.
    pub(super) wait: Duration,
    pub(super) engine_priority: bool,
}

impl RouterSettings {
    /// Returns the default configuration with changes, keys and values as text; or all problems, a
    /// line each.
    pub(super) fn with(changes: &[(String, String)]) -> Result<Self, String> {
        let unknown: Vec<String> = changes.iter().filter_map(|(key, _)| refusal(key)).collect();
        if !unknown.is_empty() {
            return Err(unknown.join("\n"));
        }
        let set = |key: &str, value: &str| Override {
            path: key.to_owned(),
            value: value.to_owned(),
            flag: "set".to_owned(),
        };
        // With the ring off, its default, `continuum` would become another policy than the one
        // under test; with the ring on, it would be the default policy.
        let base = [
            set("prefix_routing.enabled", "true"),
            set("routing.policy", "warm"),
        ];
        let changes = changes.iter().map(|(key, value)| set(key, value));
        let overrides: Vec<_> = base.into_iter().chain(changes).collect();
        // Without the environment: the same call gives the same report everywhere.
        let source = ConfigSource {
            text: None,
            overrides: &overrides,
            ..ConfigSource::of_text("configuration", "")
        };
        config::load(source)
            .map(|settings| Self::of(&settings))
            .map_err(|problems| {
                let problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
                problems.join("\n")
            })
    }

    fn of(settings: &Settings) -> Self {
        Self {
            routing: RoutingSettings {
                scoring: settings.kv_cache_index.scoring,
                prediction_ttl: settings.kv_events.prediction.ttl,
                queue: settings.queue,
                kept_candidates: settings.decisions.candidates,
                ..RoutingSettings::of(settings.routing.clone(), settings.prefix_routing)
            },
            cache: if settings.kv_events.enabled {
                CacheSource::Events
            } else {
                CacheSource::Predicted
            },
            wait: settings.queue.wait,
            engine_priority: settings.queue.engine_priority,
        }
    }
}

/// Returns the message for a key that does not affect a simulation.
fn refusal(key: &str) -> Option<String> {
    let keys = simulated_keys();
    if keys.iter().any(|known| known == key) {
        return None;
    }
    let hint = match nearest(key, keys.iter().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("expected one of {}", keys.join(", ")),
    };
    Some(format!(
        "set: {key}: no key that the simulator goes by; {hint}"
    ))
}
