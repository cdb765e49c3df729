//! Checks the relations between keys, and completes the settings by what follows from several keys.

mod admin_tokens;
mod cache;
mod content_routing;
mod disaggregation;
mod discovery;
mod hooks;
mod ignored;
mod kv_cache_index;
mod listeners;
mod lmcache;
mod models;
mod redis;
mod replicas;
mod response_cache;
mod routing;
mod server;
pub(crate) mod tenants;
mod tls;
mod worker_events;
mod workers;

use settings::{CheckedValue, ListenSetting, Setting, Value};

use crate::{
    Problem,
    origins::ValueOrigins,
    problem::{ProblemDraft, report},
    reload::default_policy,
    sections::Settings,
};

/// Builds the settings; problems between keys are recorded. `file` is the file's name in problems.
pub(crate) fn build(
    root: &mut CheckedValue,
    file: &str,
    problems: &mut Vec<ProblemDraft>,
) -> Settings {
    let workers = workers::workers(root, problems);
    resolve(root);
    check_sections(root, problems);
    let mut settings = Settings {
        workers,
        ..read(root)
    };
    let (workers, index) = (&settings.workers, root.key("kv_cache_index"));
    settings.kv_cache_index.redis =
        kv_cache_index::server(&settings.kv_cache_index, root, problems);
    kv_cache_index::check_event_sources(index, workers, problems);
    let cache = &settings.response_cache;
    response_cache::check(cache, root.key("response_cache"), problems);
    settings.response_cache.redis.server = response_cache::server(cache, root, problems);
    let place = root.key("response_cache");
    let forgery = response_cache::forgery(&settings).filter(|_| !place.key("mac_key").failed);
    problems.extend(forgery.map(|it| problem_at(it, place.key("backend"), place)));
    settings.routing = routing::routing(settings.routing, root, workers, problems);
    settings.prompt_cache_redis =
        lmcache::prompt_cache_redis(settings.routing.lmcache.as_ref(), root, problems);
    models::inherit(&mut settings.models, root.key("models"));
    // A first pause above the longest one means that pauses never grow.
    let checks = &mut settings.health_checks;
    checks.recovery_max_interval = checks.recovery_max_interval.max(checks.recovery_interval);
    settings.tenants.hash_keys();
    discovery::hide_keys(root.key_mut("discovery"));
    let ignored = ignored::ignored(root, &settings);
    settings.ignored = report(ignored, file);
    settings.effective = root.shown();
    settings.origins = ValueOrigins::of(root, file);
    settings
}

/// Checks the settings together with the entries of the file of keys, which is read after them;
/// `file`: the name of the settings' file in problems.
///
/// # Errors
///
/// The problem that only these entries make.
pub fn check_listed_tenants(settings: &Settings, file: &str) -> Result<(), Vec<Problem>> {
    match response_cache::forgery(settings) {
        None => Ok(()),
        Some(problem) => Err(report(vec![problem], file)),
    }
}

/// Checks the relations between keys that need nothing but the keys.
fn check_sections(root: &CheckedValue, problems: &mut Vec<ProblemDraft>) {
    listeners::are_safe(root, problems);
    listeners::are_distinct(root, problems);
    tls::listeners_are_whole(root, problems);
    tls::client_rules_have_an_authority(root, problems);
    parity_ratios_are_in_order(root, problems);
    server::check_body_fits(root.key("server"), problems);
    kv_cache_index::check_weights_sum(root.key("kv_cache_index").key("scoring"), problems);
    discovery::check(root.key("discovery"), problems);
    models::check(root.key("models"), problems);
    cache::check_empty_lists(root.key("model_aggregation"), problems);
    hooks::check(root.key("pre_routing_hooks"), problems);
    admin_tokens::check(root.key("admin").key("tokens"), problems);
    tenants::check(root.key("tenants").key("api_keys"), problems);
    tenants::check_services(root.key("tenants").key("key_validation"), problems);
    replicas::check(root.key("replicas"), problems);
}

/// Reads a checked section.
fn read<T: Setting>(section: &CheckedValue) -> T {
    T::read(section).expect("the walk gives every key a value of its kind")
}

/// Fills in values that follow from other keys, so that the effective configuration shows the
/// values in use.
fn resolve(root: &mut CheckedValue) {
    let server = root.key_mut("server");
    let port = server
        .key("port")
        .int_or_word()
        .and_then(|port| u16::try_from(port).ok());
    if let (Some(port), Value::Listen(ListenSetting::Tcp(address))) =
        (port, &mut server.key_mut("listen").value)
    {
        address.set_port(port);
    }
    replicas::resolve(root.key_mut("replicas"));
    let is_enabled = |section: &str| root.key(section).key("enabled").bool();
    let usual = default_policy(is_enabled("prefix_routing"), is_enabled("kv_cache_index"));
    let policy = &mut root.key_mut("routing").key_mut("policy").value;
    if *policy == Value::Unset {
        *policy = Value::Word(usual.as_str());
    }
    // If caches do not count, their content is not needed.
    if !routing::caches_count(root.key("routing")) {
        root.key_mut("kv_events").key_mut("enabled").value = Value::Bool(false);
    }
    let request = root.key("request");
    let retries = request.key("max_retries").int();
    let own_delay = request.key("retry_delay").clone();
    let retry = root.key_mut("retry");
    // Attempts = min(retry.max_attempts, 1 + request.max_retries).
    let attempts = retry.key("max_attempts").int().min(1 + retries);
    retry.key_mut("max_attempts").value = Value::Int(attempts);
    if own_delay.is_set() && !retry.key("base_delay").is_set() {
        retry.key_mut("base_delay").value = own_delay.value;
    }
}

/// Locates a problem at a key, or at the enclosing section if the key is left out.
fn problem_at(draft: ProblemDraft, key: &CheckedValue, around: &CheckedValue) -> ProblemDraft {
    match key.origin.as_ref().or(around.origin.as_ref()) {
        Some(origin) => draft.at(origin.clone()),
        None => draft,
    }
}

/// Checks the order of the ratios: `downgrade_ratio` is at least `drift_ratio`, which is at least
/// `recover_ratio`.
fn parity_ratios_are_in_order(root: &CheckedValue, problems: &mut Vec<ProblemDraft>) {
    let section = root.key("parity");
    for (upper, lower) in [
        ("downgrade_ratio", "drift_ratio"),
        ("drift_ratio", "recover_ratio"),
    ] {
        let (high, low) = (section.key(upper), section.key(lower));
        if high.failed || low.failed || high.float() >= low.float() {
            continue;
        }
        // The problem is at the key that was set; if both were, at the upper one.
        let (name, set) = if high.is_set() {
            (upper, high)
        } else {
            (lower, low)
        };
        let message = format!(
            "parity.{upper} {} is below parity.{lower} {}",
            high.float(),
            low.float()
        );
        let draft = ProblemDraft::new(format!("parity.{name}"), message)
            .value(set.shown())
            .in_context();
        let draft = draft.expected("downgrade_ratio >= drift_ratio >= recover_ratio");
        problems.push(match &set.origin {
            Some(origin) => draft.at(origin.clone()),
            None => draft,
        });
    }
}
