//! The section `routing.lmcache`, and the policy that requires it.

use std::time::Duration;

use config::{ConfigChanges, Settings};
use contract_id::contract;
use routing::{LmcacheMode, Policy};

use crate::sources::{problem, settings};

const WORKERS: &str = "workers: [{name: a, url: \"http://h:1\"}, {name: b, url: \"http://h:2/base\"}, {url: \"http://h:3\"}]\n";

fn with(keys: &str) -> Settings {
    settings(&format!("{WORKERS}routing: {{lmcache: {{{keys}}}}}\n"))
}

#[test]
#[contract("V29", "V30")]
fn defaults_equal_those_of_the_seed_router() {
    let lmcache = with("controller_url: \"http://c:9000\"")
        .routing
        .lmcache
        .expect("a controller is named");
    assert_eq!(
        (lmcache.mode, lmcache.cache_weight, lmcache.fallback),
        (LmcacheMode::Occupancy, 0.7, Policy::PowerOfTwo)
    );
    assert_eq!(
        (lmcache.poll_interval, lmcache.controller_timeout),
        (Duration::from_secs(10), Duration::from_secs(2))
    );
    assert_eq!(lmcache.lookup_budget, Duration::from_millis(250));
    assert!(lmcache.worker_map.is_empty() && lmcache.controller_api_key.is_none());
    assert_eq!(
        (
            lmcache.prompt_cache.ttl,
            lmcache.prompt_cache.capacity.get()
        ),
        (Duration::from_secs(3600), 10_000)
    );
    assert_eq!(
        with("mode: prefix_lookup").routing.lmcache,
        None,
        "no lookup without an address"
    );
}

#[test]
#[contract("V29")]
fn an_instance_is_a_worker_by_name_by_host_and_port_or_by_url() {
    let keys = "controller_url: \"http://c:9000\", worker_map: {i: a, \"j.0\": \"h:2/base\", k: \"http://h:1\", l: \"http://h:2/base/\", m: \"h:3\"}";
    let map = with(keys)
        .routing
        .lmcache
        .expect("a controller is named")
        .worker_map;
    assert_eq!(
        map.values().collect::<Vec<_>>(),
        ["a", "b", "a", "b", "h:3"]
    );
    let told = problem(&format!(
        "{WORKERS}routing: {{lmcache: {{worker_map: {{\"j.0\": c}}}}}}\n"
    ));
    assert_eq!(told.path, "routing.lmcache.worker_map[\"j.0\"]");
    assert!(
        told.to_string().contains("`c` is no worker") && told.to_string().contains("a, b, h:3"),
        "{told}"
    );
    // Discovered workers are not known yet.
    let text = format!(
        "{WORKERS}discovery: {{file: /w.json}}\nrouting: {{lmcache: {{controller_url: \"http://c:9\", worker_map: {{i: \"http://w:1\"}}}}}}\n"
    );
    let map = settings(&text)
        .routing
        .lmcache
        .expect("a controller is named")
        .worker_map;
    assert_eq!(map["i"], "w:1");
}

#[test]
#[contract("V29")]
fn the_policy_requires_a_controller_wherever_it_is_selected() {
    for (keys, by) in [
        ("policy: lmcache-aware", "routing.policy"),
        ("prefill_policy: LmcacheAware", "routing.prefill_policy"),
        ("decode_policy: lmcache_aware", "routing.decode_policy"),
        (
            "models: {\"qwen.2\": {policy: lmcache_aware}}",
            "routing.models[\"qwen.2\"].policy",
        ),
    ] {
        let told = problem(&format!("{WORKERS}routing: {{{keys}}}\n"));
        assert_eq!(told.path, "routing.lmcache.controller_url", "{keys}");
        assert!(
            told.message
                .contains(&format!("missing, and `{by}` is lmcache_aware")),
            "{told}"
        );
        settings(&format!(
            "{WORKERS}routing: {{{keys}, lmcache: {{controller_url: \"http://c:9000\"}}}}\n"
        ));
    }
    // An invalid URL is one problem, not two.
    let told =
        problem("routing: {policy: lmcache_aware, lmcache: {controller_url: \"ftp://c\"}}\n");
    assert_eq!(told.path, "routing.lmcache.controller_url");
}

#[test]
#[contract("V29", "V30")]
fn each_value_out_of_range_is_rejected() {
    for (keys, path) in [
        ("mode: prefix", "mode"),
        ("poll_interval: 1ms", "poll_interval"),
        ("controller_timeout: 0s", "controller_timeout"),
        ("lookup_budget: 0s", "lookup_budget"),
        ("cache_weight: 1.1", "cache_weight"),
        ("cache_weight: -0.1", "cache_weight"),
        ("fallback: lmcache_aware", "fallback"),
        ("fallback: consistent_hash", "fallback"),
        ("worker_map: [a]", "worker_map"),
        ("controller_api_key: \"\"", "controller_api_key"),
        ("prompt_cache: {ttl: 0s}", "prompt_cache.ttl"),
        ("prompt_cache: {capacity: 1}", "prompt_cache.capacity"),
        ("prompt_cache: {backend: disk}", "prompt_cache.backend"),
    ] {
        let told = problem(&format!("routing: {{lmcache: {{{keys}}}}}\n"));
        assert_eq!(told.path, format!("routing.lmcache.{path}"), "{keys}");
    }
}

#[test]
#[contract("V30")]
fn the_shared_prompt_cache_uses_the_redis_of_the_response_cache() {
    let shared = "controller_url: \"http://c:9000\", prompt_cache: {backend: redis}";
    let server = "response_cache: {redis: {url: \"redis://r\", pool_size: 3}}\n";
    let found = settings(&format!("{server}routing: {{lmcache: {{{shared}}}}}\n"));
    let redis = found.prompt_cache_redis.expect("it is chosen");
    assert_eq!((redis.url.host(), redis.pool_size.get()), ("r", 3));
    let told = problem(&format!("routing: {{lmcache: {{{shared}}}}}\n"));
    assert_eq!(
        told.to_string(),
        "warmroute.yaml: line 1, column 78: response_cache.redis.url: missing, and `routing.lmcache.prompt_cache.backend` is \
         redis: expected a URL such as redis://127.0.0.1:6379"
    );
    // One problem, however many settings need it.
    let text = format!(
        "kv_cache_index: {{enabled: true, backend: redis}}\nrouting: {{lmcache: {{{shared}}}}}\n"
    );
    assert_eq!(problem(&text).path, "response_cache.redis.url");
    let alone = settings(&format!(
        "{server}routing: {{lmcache: {{controller_url: \"http://c:9000\"}}}}\n"
    ));
    assert_eq!(alone.prompt_cache_redis, None, "memory by default");
    settings("routing: {lmcache: {prompt_cache: {backend: redis}}}\n");
}

#[test]
#[contract("V29")]
fn the_controllers_key_is_never_shown() {
    let settings = with("controller_url: \"http://c:9000\", controller_api_key: sk-hush");
    let shown = format!(
        "{}{}{:?}",
        settings.to_json(),
        settings.to_yaml(),
        settings.routing
    );
    assert!(
        !shown.contains("sk-hush") && shown.contains("***"),
        "{shown}"
    );
}

#[test]
#[contract("V29")]
fn a_changed_controller_takes_effect_at_the_next_start() {
    let (old, new) = (
        with("controller_url: \"http://c:9000\""),
        with("controller_url: \"http://d:9000\""),
    );
    let changes = ConfigChanges::between(&old, &new);
    assert_eq!(changes.restart_needed, ["routing.lmcache.controller_url"]);
    let taken = new
        .taken_over(&old, &old)
        .routing
        .lmcache
        .expect("a controller is named");
    assert_eq!(taken.controller_url, "http://c:9000");
}
