//! Settings that are valid and have no effect beside the others: a start and `config check` warn of
//! them.

use ::routing::Policy;
use settings::CheckedValue;

use crate::{
    problem::ProblemDraft,
    sections::{ReplicaMode, Settings},
};

/// Keys and sections that only these policies use. One that is `enabled` counts if it is true, any
/// other if it is set.
const USED_BY: &[(&[&str], &[Policy])] = &[
    (
        &["prefix_routing", "enabled"],
        &[Policy::Continuum, Policy::PrefixHash],
    ),
    (
        &["kv_cache_index", "enabled"],
        &[Policy::Continuum, Policy::Composite],
    ),
    (
        &["routing", "fallback"],
        &[Policy::Continuum, Policy::Composite, Policy::PrefixHash],
    ),
    (&["routing", "dynamo"], &[Policy::DynamoCost]),
    (&["routing", "medium_weights"], &[Policy::KvAware]),
];

/// Keys of predictions, which are made only for workers without live events.
const PREDICTION: [&str; 3] = ["ttl", "max_blocks", "prune_target_ratio"];

/// Returns a warning for each of these settings.
pub(super) fn ignored(root: &CheckedValue, settings: &Settings) -> Vec<ProblemDraft> {
    let mut found: Vec<_> = USED_BY
        .iter()
        .filter_map(|(path, policies)| by_policy(root, settings, path, policies))
        .collect();
    let replicas = root.key("replicas").key("reset_states");
    if settings.replicas.reset_states && settings.replicas.mode == ReplicaMode::Alone {
        let message =
            "there is nothing to reset: every start is a fresh one while replicas.mode is none";
        let draft = warning("replicas.reset_states", replicas, message);
        found.push(draft.expected("this key left out"));
    }
    let listen = root.key("metrics").key("listen");
    if settings.metrics.listen.is_some() && !settings.metrics.enabled {
        let draft = warning(
            "metrics.listen",
            listen,
            "has no effect: metrics.enabled is false",
        );
        found.push(draft.expected("metrics.enabled true, or this key left out"));
    }
    if let Some(message) = without_admission(settings) {
        let key = root.key("routing").key("admission");
        let expected = "routing.policy warm, queue.enabled, kv_events.enabled and \
                        routing.track_active_blocks true, or this key left out";
        found.push(warning("routing.admission", key, message).expected(expected));
    }
    found.extend(late_admission(root, settings));
    if let Some(message) = without_fetch(settings) {
        let key = root.key("routing").key("fetch");
        let expected = "routing.policy warm and kv_events.enabled true, or this key left out";
        found.push(warning("routing.fetch", key, message).expected(expected));
    }
    let prediction = root.key("kv_events").key("prediction");
    for name in PREDICTION.iter().filter(|_| settings.kv_events.enabled) {
        let key = prediction.key(name);
        if key.is_set() {
            let message =
                "set while KV events are followed: it governs only workers without live events";
            let draft = warning(&format!("kv_events.prediction.{name}"), key, message);
            found.push(
                draft.expected("kv_events.enabled false (--no-kv-events), which predicts all"),
            );
        }
    }
    found
}

/// Returns a warning if requests time out before admission means to let them in.
fn late_admission(root: &CheckedValue, settings: &Settings) -> Option<ProblemDraft> {
    if !settings.routing.admission.is_on()
        || without_admission(settings).is_some()
        || settings.request.timeout > settings.routing.admission_wait
    {
        return None;
    }
    let key = root.key("routing").key("admission_wait");
    let message = "not shorter than request.timeout: requests are let in because they would time out, \
                   whatever they displace, or are refused";
    let draft = warning("routing.admission_wait", key, message);
    Some(draft.expected("less than request.timeout, for example half of it"))
}

/// Returns why no request waits for room although admission is on.
fn without_admission(settings: &Settings) -> Option<&'static str> {
    match settings {
        settings if !settings.routing.admission.is_on() => None,
        settings if !settings.queue.enabled => Some("has no effect: queue.enabled is false"),
        settings if !settings.kv_events.enabled => {
            Some("has no effect: kv_events.enabled is false")
        }
        settings if !settings.routing.names_policy(Policy::Warm) => {
            Some("has no effect: it applies to the policy warm only")
        }
        settings if !settings.routing.track_active_blocks => {
            Some("has no effect: routing.track_active_blocks is false")
        }
        _ => None,
    }
}

/// Returns why no request names a source of blocks although that is on.
fn without_fetch(settings: &Settings) -> Option<&'static str> {
    if !settings.routing.fetch.is_on() {
        None
    } else if !settings.kv_events.enabled {
        Some("has no effect: kv_events.enabled is false")
    } else if !may_decide(settings, Policy::Warm) {
        Some("has no effect: it applies to the policy warm only")
    } else {
        None
    }
}

/// Returns the warning of a key that no policy of the configuration uses.
fn by_policy(
    root: &CheckedValue,
    settings: &Settings,
    path: &[&str],
    policies: &[Policy],
) -> Option<ProblemDraft> {
    let key = path.iter().fold(root, |at, name| at.key(name));
    let matters = if path.last() == Some(&"enabled") {
        key.bool()
    } else {
        key.is_set()
    };
    if !matters || policies.iter().any(|policy| may_decide(settings, *policy)) {
        return None;
    }
    let path = path.join(".");
    let message = format!(
        "has no effect: routing.policy is {}, which does not use it",
        settings.routing.policy()
    );
    let names: Vec<_> = policies.iter().map(|policy| policy.as_str()).collect();
    Some(warning(&path, key, &message).expected(format!(
        "routing.policy {}, or this key left out",
        names.join(" or ")
    )))
}

/// Returns whether the policy decides for any request that names none.
fn may_decide(settings: &Settings, policy: Policy) -> bool {
    let routing = &settings.routing;
    let falls_back = [Policy::Continuum, Policy::Composite, Policy::PrefixHash];
    let by_fallback =
        || routing.fallback == policy && falls_back.iter().any(|it| routing.names_policy(*it));
    let of_lmcache = || {
        routing.names_policy(Policy::LmcacheAware)
            && routing
                .lmcache
                .as_ref()
                .is_some_and(|lmcache| lmcache.fallback == policy)
    };
    routing.names_policy(policy) || by_fallback() || of_lmcache()
}

fn warning(path: &str, key: &CheckedValue, message: &str) -> ProblemDraft {
    let draft = ProblemDraft::new(path, message)
        .value(key.shown())
        .in_context();
    match &key.origin {
        Some(origin) => draft.at(origin.clone()),
        None => draft,
    }
}
