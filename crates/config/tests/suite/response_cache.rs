//! The section `response_cache`: backends, bounds and lifetimes.

use std::time::Duration;

use config::{
    AbsentTemperature, CacheBackend, ConfigChanges, L1Kind, ResponseCacheSection, Secret,
};
use contract_id::contract;

use crate::sources::{lines, load_all, problem, problems, settings};

const STORE: &str = "endpoint: \"http://s3:9000\", bucket: replies";

fn cache(section: &str) -> ResponseCacheSection {
    settings(&format!("response_cache: {{{section}}}\n")).response_cache
}

#[test]
#[contract("CK22", "CK23", "CK30", "CH14")]
fn the_cache_is_off_by_default_with_the_documented_bounds() {
    let usual = settings("").response_cache;
    assert!(!usual.enabled);
    assert_eq!(usual.backend, CacheBackend::Memory);
    assert_eq!(
        (usual.capacity.get(), usual.ttl),
        (1_000, Duration::from_secs(300))
    );
    assert_eq!(
        (usual.max_response_size, usual.max_stream_buffer_size),
        (1_048_576, 10_485_760)
    );
    assert_eq!(usual.memory_budget, 256 << 20);
    assert_eq!(usual.absent_temperature, AbsentTemperature::Cacheable);
    assert_eq!(usual.lookup_budget, Duration::from_millis(50));
    assert_eq!((usual.mac_key, usual.redis.server), (None, None));
    let own = cache(
        "enabled: true, capacity: 5, ttl: 30s, max_response_size: 10, memory_budget: 1MiB, absent_temperature: bypass",
    );
    assert!(own.enabled);
    assert_eq!(
        (own.capacity.get(), own.ttl, own.max_response_size),
        (5, Duration::from_secs(30), 10)
    );
    assert_eq!(
        (own.memory_budget, own.absent_temperature),
        (1 << 20, AbsentTemperature::Bypass)
    );
}

#[test]
#[contract("CK33", "CK35", "CH20")]
fn a_cache_in_redis_has_a_server_a_key_prefix_and_a_fallback() {
    let usual = cache("enabled: true, backend: redis, redis: {url: \"redis://r:1\"}");
    assert!(usual.is_in_redis());
    let server = usual.redis.server.as_ref().expect("one is named");
    assert_eq!(
        (server.url.host(), server.url.port(), server.pool_size.get()),
        ("r", 1, 8)
    );
    assert_eq!(usual.redis.key_prefix, "cr:resp:");
    let fallback = usual.redis.fallback().expect("by default");
    assert_eq!(
        (fallback.capacity.get(), fallback.ttl),
        (1_000, Duration::from_secs(300))
    );
    let own = cache(
        "enabled: true, backend: redis, redis: {url: \"redis://r\", key_prefix: \"a:\", fallback_capacity: 7, fallback_ttl_seconds: 9}",
    );
    assert_eq!(own.redis.key_prefix, "a:");
    assert_eq!(
        own.redis.fallback().map(|it| (it.capacity.get(), it.ttl)),
        Some((7, Duration::from_secs(9)))
    );
    assert_eq!(
        cache(
            "enabled: true, backend: redis, redis: {url: \"redis://r\", fallback_to_memory: false}"
        )
        .redis
        .fallback(),
        None
    );
    assert_eq!(
        cache("redis: {url: \"redis://r\"}").redis.server,
        None,
        "memory needs no server"
    );
    let off = cache("backend: redis, redis: {url: \"redis://r\"}");
    assert!(off.redis.server.is_some(), "it may be switched on later");
}

/// Settings of a cache in each store that routers share.
const SHARED: [&str; 3] = [
    "backend: redis, redis: {url: \"redis://r\"}",
    "backend: tiered, l2: {endpoint: \"http://s3:9000\", bucket: replies}",
    "backend: tiered, l1: {type: redis}, redis: {url: \"redis://r\"}, l2: {endpoint: \"http://s3:9000\", bucket: replies}",
];

#[test]
#[contract("S46")]
fn a_shared_store_without_a_mac_key_is_a_problem_where_there_are_several_tenants() {
    let two = "api_keys: [{name: a, key: k1}, {name: b, key: k2}]\n";
    let services = "tenants: {key_validation: [{url: \"https://auth/validate\"}]}\n";
    for store in SHARED {
        let with =
            |more: &str, tenants: &str| format!("response_cache: {{{store}{more}}}\n{tenants}");
        for tenants in [two, services] {
            let found = problem(&with(", enabled: true", tenants));
            assert_eq!(found.path, "response_cache.mac_key");
            assert_eq!(found.line, Some(1));
            let expected = found.expected.unwrap_or_default();
            assert!(expected.contains("openssl rand"), "{expected}");
            for more in [
                ", enabled: true, mac_key: secret",
                ", enabled: true, insecure: true",
                // The tenants' replies are nowhere.
                ", enabled: false",
            ] {
                settings(&with(more, tenants));
            }
        }
        // Two keys of one tenant; and the configurations of other routers, which have no such key.
        for tenants in ["api_keys: [{name: a, key: k1}, {name: a, key: k2}]\n", ""] {
            settings(&with(", enabled: true", tenants));
        }
    }
    settings(&format!("response_cache: {{enabled: true}}\n{two}"));
}

#[test]
#[contract("S46")]
fn tenants_of_the_file_of_keys_count_for_a_shared_store_too() {
    let text = |more: &str| {
        format!(
            "response_cache: {{enabled: true, {}{more}}}\ntenants: {{keys_file: keys.jsonl, api_keys: [{{name: a, key: k}}]}}\n",
            SHARED[0]
        )
    };
    let listing = |more: &str, names: &[&str]| {
        let mut settings = settings(&text(more));
        let line = |name: &&str| format!("{{\"name\": \"{name}\", \"key\": \"key-of-{name}\"}}\n");
        let lines: String = names.iter().map(line).collect();
        let beside = &settings.tenants.api_keys;
        settings.tenants.listed = config::keys_file(&lines, "keys", beside).expect("good lines");
        config::check_listed_tenants(&settings, "file.yaml")
    };
    for (more, names, is_good) in [
        ("", &["a"][..], true),
        ("", &[], true),
        ("", &["b"], false),
        (", mac_key: secret", &["b"], true),
        (", insecure: true", &["b"], true),
    ] {
        let checked = listing(more, names);
        assert_eq!(checked.is_ok(), is_good, "{more} {names:?}");
        let problems = checked.err().unwrap_or_default();
        assert!(
            problems
                .iter()
                .all(|it| it.path == "response_cache.mac_key")
        );
    }
}

#[test]
#[contract("CH23")]
fn tiers_have_their_documented_defaults_and_accept_other_values() {
    let usual = cache(&format!("enabled: true, backend: tiered, l2: {{{STORE}}}"));
    assert_eq!(
        (usual.l1.kind, usual.l1.max_value_size),
        (L1Kind::Memory, 1_048_576)
    );
    assert_eq!(
        (usual.l2.endpoint.as_deref(), usual.l2.bucket.as_deref()),
        (Some("http://s3:9000"), Some("replies"))
    );
    assert_eq!(
        (usual.l2.key_prefix.as_str(), usual.l2.region.as_str()),
        ("response-cache/", "us-east-1")
    );
    assert_eq!(
        (usual.l2.credentials().is_none(), usual.l2.ttl_override),
        (true, None)
    );
    assert!(usual.tiered.promote_on_hit);
    assert_eq!(usual.tiered.l1_promotion_ttl, Duration::from_secs(300));
    let text = format!(
        "response_cache: {{enabled: true, backend: tiered, l1: {{type: redis, max_value_size: 5}}, redis: {{url: \"redis://r\"}}, \
         l2: {{{STORE}, access_key: \"${{A}}\", secret_key: \"${{S}}\", ttl_override: 24h}}, \
         tiered: {{promote_on_hit: false, l1_promotion_ttl: 1m}}}}\n"
    );
    let all = load_all(&text, &[("A", "who"), ("S", "hush")], &[])
        .unwrap_or_else(|found| panic!("{}", lines(&found)));
    let own = &all.response_cache;
    assert!(own.is_in_redis() && own.redis.server.is_some());
    assert_eq!((own.l1.kind, own.l1.max_value_size), (L1Kind::Redis, 5));
    let credentials = own.l2.credentials().expect("both are set");
    assert_eq!(
        (
            credentials.access_key.expose(),
            credentials.secret_key.expose()
        ),
        ("who", "hush")
    );
    assert_eq!(own.l2.ttl_override, Some(Duration::from_secs(86_400)));
    assert_eq!(
        (own.tiered.promote_on_hit, own.tiered.l1_promotion_ttl),
        (false, Duration::from_secs(60))
    );
    for shown in [all.to_yaml(), format!("{all:?}")] {
        assert!(!shown.contains("hush"), "{shown}");
    }
}

#[test]
#[contract("CH23")]
fn a_tiered_cache_needs_an_object_store_and_both_halves_of_a_key() {
    let found = problems("response_cache: {enabled: true, backend: tiered}\n");
    let paths: Vec<_> = found.iter().map(|problem| problem.path.as_str()).collect();
    assert_eq!(
        paths,
        ["response_cache.l2.endpoint", "response_cache.l2.bucket"]
    );
    assert_eq!(found[0].line, Some(1));
    settings("response_cache: {enabled: false, backend: tiered}\n");
    let half = problem(&format!(
        "response_cache: {{l2: {{{STORE}, access_key: a}}}}\n"
    ));
    assert_eq!(half.path, "response_cache.l2.secret_key");
    assert_eq!(
        half.message,
        "missing, and `response_cache.l2.access_key` is set"
    );
}

#[test]
#[contract("CK22")]
fn a_changed_backend_or_connection_takes_effect_at_the_next_start_and_all_else_at_once() {
    let old = settings("response_cache: {enabled: true, mac_key: one}\n");
    let new = settings(&format!(
        "response_cache: {{enabled: false, backend: tiered, ttl: 1m, capacity: 3, mac_key: two, l1: {{type: redis, max_value_size: 9}}, \
         l2: {{{STORE}, access_key: a, secret_key: b}}, redis: {{url: \"redis://r\"}}, semantic: {{threshold: 0.5, embedding_model: m}}}}\n"
    ));
    let changes = ConfigChanges::between(&old, &new);
    for live in [
        "enabled",
        "ttl",
        "capacity",
        "mac_key",
        "l1.max_value_size",
        "semantic.threshold",
    ] {
        assert!(
            changes.live.contains(&format!("response_cache.{live}")),
            "{live}: {changes:?}"
        );
    }
    for fixed in [
        "backend",
        "l1.type",
        "l2.bucket",
        "l2.secret_key",
        "redis.url",
        "semantic.embedding_model",
    ] {
        assert!(
            changes
                .restart_needed
                .contains(&format!("response_cache.{fixed}")),
            "{fixed}: {changes:?}"
        );
    }
    let taken = new.taken_over(&old, &old);
    assert_eq!(taken.response_cache.backend, CacheBackend::Memory);
    assert_eq!(
        (
            taken.response_cache.l1.kind,
            taken.response_cache.redis.server
        ),
        (L1Kind::Memory, None)
    );
    assert_eq!(taken.response_cache.l2.bucket, None);
    assert_eq!(
        (
            taken.response_cache.enabled,
            taken.response_cache.capacity.get()
        ),
        (false, 3)
    );
    assert_eq!(
        taken.response_cache.mac_key.as_ref().map(Secret::expose),
        Some("two")
    );
}

#[test]
#[contract("V44")]
fn similarity_hits_require_an_embedding_model() {
    let problem = problem("response_cache: {enabled: true, semantic: {enabled: true}}\n");
    assert_eq!(problem.path, "response_cache.semantic.embedding_model");
    let found = settings(
        "response_cache: {enabled: true, semantic: {enabled: true, embedding_model: m}}\n",
    )
    .response_cache;
    assert_eq!(
        (found.semantic.threshold, found.semantic.max_entries.get()),
        (0.95, 256)
    );
    assert_eq!(
        (
            found.semantic.ttl.as_secs(),
            found.semantic.timeout.as_millis()
        ),
        (300, 500)
    );
}
