//! `--set KEY=VALUE`, and `set` of the Python package: configures the simulated router by keys of the
//! configuration file, with their checks.

use std::time::Duration;

use config::{Override, Settings, is_simulated, map_path, nearest, simulated_keys};
use routing::{CacheSource, RoutingSettings};
use simulate::Trace;

use crate::{from_settings, settings};

/// The part of a router's configuration that affects a simulation.
#[derive(Clone, Debug)]
pub struct ConfiguredRouter {
    /// Routing settings; each experiment has its own policy.
    pub routing: RoutingSettings,
    /// Whether events are followed.
    pub cache: CacheSource,
    /// Longest wait of a request in the queue.
    pub wait: Duration,
    /// Whether engines are sent a priority.
    pub engine_priority: bool,
}

/// Returns the default configuration with changes of the option `option`, each a key and its value.
///
/// # Errors
/// All problems, a line each.
pub fn configured_router(
    changes: &[(&str, &str)],
    option: &str,
) -> Result<ConfiguredRouter, String> {
    let unknown: Vec<String> = changes
        .iter()
        .filter_map(|(key, _)| refusal(key, option))
        .collect();
    if !unknown.is_empty() {
        return Err(unknown.join("\n"));
    }
    let set = |key: &str, value: &str| Override {
        path: key.to_owned(),
        value: value.to_owned(),
        flag: option.to_owned(),
    };
    // With the ring off, its default, `continuum` would become another policy than the one under
    // test; with the ring on, it would be the default policy.
    let base = [
        set("prefix_routing.enabled", "true"),
        set("routing.policy", "warm"),
    ];
    let overrides: Vec<_> = base
        .into_iter()
        .chain(changes.iter().map(|(key, value)| set(key, value)))
        .collect();
    let problems = |problems: Vec<config::Problem>| {
        problems
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("\n")
    };
    // Without the environment: the same options give the same report everywhere.
    settings::load(None, Vec::new(), &overrides)
        .map(|settings| of(&settings))
        .map_err(problems)
}

/// Checks that each entry of `routing.models` is of a model of the trace: any other one would have no
/// effect. `option` sets them, and `model_option` names the model of requests without one.
///
/// # Errors
/// A message with the entries that are of none.
pub fn check_models(
    routing: &RoutingSettings,
    trace: &Trace,
    option: &str,
    model_option: &str,
) -> Result<(), String> {
    let named = trace.models();
    let is_named = |pattern: &str| {
        let has_name = |name: &str| match pattern.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => name == pattern,
        };
        named
            .iter()
            .any(|model| has_name(&model.id) || has_name(&model.base))
    };
    let entries = routing.section.models.iter();
    let unused: Vec<String> = entries
        .filter(|(pattern, _)| !is_named(pattern))
        .map(|(pattern, _)| map_path("routing.models", pattern))
        .collect();
    if unused.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{option}: {}: no request of the trace is of such a model: expected the name as `model` in the trace's lines, \
         or {model_option} for all requests without one",
        unused.join(", ")
    ))
}

fn of(settings: &Settings) -> ConfiguredRouter {
    ConfiguredRouter {
        routing: from_settings::routing(settings),
        cache: if settings.kv_events.enabled {
            CacheSource::Events
        } else {
            CacheSource::Predicted
        },
        wait: settings.queue.wait,
        engine_priority: settings.queue.engine_priority,
    }
}

/// Returns the message for a key that does not affect a simulation. The policies of the experiments
/// replace `routing.policy`.
fn refusal(key: &str, option: &str) -> Option<String> {
    if is_simulated(key) {
        return None;
    }
    let keys = simulated_keys();
    let ending = || {
        keys.iter()
            .find(|known| known.rsplit('.').next() == Some(key))
            .cloned()
    };
    let hint = match nearest(key, keys.iter().map(String::as_str)).or_else(ending) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("expected one of {}", keys.join(", ")),
    };
    Some(format!(
        "{option}: {key}: no key that the simulator goes by; {hint}"
    ))
}

#[cfg(test)]
mod tests {
    use kv_blocks::BlockSize;
    use routing::Policy;

    use super::*;

    fn with(changes: &[(&str, &str)]) -> Result<ConfiguredRouter, String> {
        configured_router(changes, "--set")
    }

    #[test]
    fn without_changes_it_is_the_router_as_it_is_by_default() {
        let configured = with(&[]).unwrap();
        let mut usual = RoutingSettings::default();
        usual.section.policy = Some(usual.policy);
        // A section that is switched off is not there.
        usual.section.shared_prefix_routing = None;
        assert_eq!(configured.routing, usual);
        assert_eq!(
            (configured.cache, configured.wait),
            (CacheSource::Events, Duration::from_secs(30))
        );
    }

    #[test]
    fn every_key_is_one_of_the_configuration() {
        for key in simulated_keys() {
            let problem = with(&[(&key, "?")]).unwrap_err();
            assert!(
                problem.starts_with(&format!("--set: {key}: ")) && problem.contains("expected"),
                "{problem}"
            );
        }
    }

    #[test]
    fn the_manual_has_every_key() {
        let manual = include_str!("../../../../docs/simulate.md");
        for key in simulated_keys() {
            assert!(manual.contains(&format!("`{key}`")), "{key}");
        }
    }

    #[test]
    fn the_queue_can_be_changed_and_switched_off() {
        let changes = [
            ("queue.enabled", "false"),
            ("queue.hold_above", "200ms"),
            ("queue.ageing", "0.5"),
            ("queue.wait", "5s"),
        ];
        let configured = with(&changes).unwrap();
        let queue = configured.routing.queue;
        assert!(!queue.enabled);
        assert_eq!(
            (queue.hold_above, queue.ageing),
            (Duration::from_millis(200), 0.5)
        );
        assert_eq!(configured.wait, Duration::from_secs(5));
    }

    #[test]
    fn without_events_caches_are_predicted() {
        for change in [
            ("kv_events.enabled", "false"),
            ("routing.overlap_weight", "0"),
        ] {
            assert_eq!(
                with(&[change]).unwrap().cache,
                CacheSource::Predicted,
                "{change:?}"
            );
        }
    }

    fn trace(model: &str) -> Trace {
        let line = format!(
            r#"{{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [], {model}}}"#
        );
        Trace::read(&line, BlockSize::new(512).unwrap()).unwrap()
    }

    #[test]
    fn settings_of_a_model_are_set_by_its_name_or_by_how_names_begin() {
        let changes = [
            ("routing.models.qwen.policy", "kv_aware"),
            ("routing.models[\"org/q2.5*\"].medium_weights.cpu", "0.5"),
        ];
        let configured = with(&changes).unwrap();
        let models = &configured.routing.section.models;
        let named: Vec<&str> = models.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(named, ["qwen", "org/q2.5*"]);
        assert_eq!(models[0].1.policy, Some(Policy::KvAware));
        assert_eq!(models[1].1.medium_weights.cpu, Some(0.5));
        let error = with(&[("routing.models.qwen.busy_threshold", "0.5")]).unwrap_err();
        let start = "--set: routing.models.qwen.busy_threshold: no key that the simulator ";
        assert!(error.starts_with(start), "{error}");
    }

    #[test]
    fn settings_of_a_model_that_no_request_has_are_refused() {
        let check = |pattern: &str, trace: &Trace| {
            let key = format!("{}.temperature", map_path("routing.models", pattern));
            let configured = with(&[(&key, "0.5")]).unwrap();
            check_models(&configured.routing, trace, "--set", "--model")
        };
        let (plain, adapter) = (
            trace(r#""model": "qwen""#),
            trace(r#""model": "sql", "served_model": "qwen""#),
        );
        for pattern in ["qwen", "qw*", "*"] {
            assert_eq!(check(pattern, &plain), Ok(()), "{pattern}");
            assert_eq!(check(pattern, &adapter), Ok(()), "{pattern}");
        }
        assert_eq!(check("sql", &adapter), Ok(()));
        let mut unnamed = trace(r#""model": null"#);
        for (pattern, trace) in [("sql", &plain), ("qwen2", &plain), ("*", &unnamed)] {
            let error = check(pattern, trace).unwrap_err();
            let start = format!("--set: routing.models.{pattern}: no request of the trace is of ");
            assert!(
                error.starts_with(&start) && error.contains("--model"),
                "{error}"
            );
        }
        unnamed.name_models("qwen");
        assert_eq!(check("qwen", &unnamed), Ok(()));
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_nearest_one() {
        for (key, near) in [
            ("queue.hold_abov", "queue.hold_above"),
            ("hold_above", "queue.hold_above"),
            ("routing.temprature", "routing.temperature"),
        ] {
            let error = with(&[(key, "1")]).unwrap_err();
            assert_eq!(
                error,
                format!("--set: {key}: no key that the simulator goes by; did you mean `{near}`?")
            );
        }
        let error =
            with(&[("server.listen", "127.0.0.1:1"), ("logging.level", "info")]).unwrap_err();
        assert_eq!(error.lines().count(), 2, "{error}");
        assert!(
            error.contains("expected one of routing.fallback, "),
            "{error}"
        );
    }
}
