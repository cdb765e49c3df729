//! The Redis connection, and the sections that use it.

use std::time::Duration;

use config::{KvCacheIndexSection, RedisSection};
use contract_id::contract;

use crate::sources::{lines, load_all, problem, settings};

const SHARED: &str = "kv_cache_index: {enabled: true, backend: redis}\n";

fn redis(section: &str) -> RedisSection {
    let view = settings(&format!(
        "{SHARED}response_cache: {{redis: {{{section}}}}}\n"
    ))
    .kv_cache_index;
    view.redis.expect("it is selected")
}

#[test]
#[contract("CK33", "CK37", "CK40")]
fn the_shared_prefix_view_uses_the_redis_of_the_response_cache() {
    let usual = redis("url: \"redis://redis:6379\"");
    assert_eq!(
        (usual.url.host(), usual.url.port(), usual.tls),
        ("redis", 6379, false)
    );
    assert_eq!(usual.pool_size.get(), 8);
    assert_eq!(
        (usual.connect_timeout, usual.command_timeout),
        (Duration::from_secs(3), Duration::from_secs(1))
    );
    assert_eq!(usual.ping_interval, Duration::from_secs(30));
    let own =
        redis("url: \"redis://r\", pool_size: 16, connect_timeout_ms: 100, command_timeout_ms: 50");
    assert_eq!(own.pool_size.get(), 16);
    assert_eq!(
        (own.connect_timeout, own.command_timeout),
        (Duration::from_millis(100), Duration::from_millis(50))
    );

    let nobody = |text: &str| settings(text).kv_cache_index.redis;
    assert_eq!(
        nobody("response_cache: {redis: {url: \"redis://r\"}}\nkv_cache_index: {enabled: true}"),
        None
    );
    assert_eq!(
        nobody("kv_cache_index: {backend: redis}"),
        None,
        "a view that is off needs no server"
    );
}

#[test]
#[contract("CK32")]
fn a_connection_is_encrypted_if_the_scheme_or_the_key_says_so() {
    assert!(redis("url: \"rediss://r\"").tls);
    assert!(redis("url: \"redis://r\", tls: true").tls);
    assert!(redis("url: \"rediss://r\", tls: false").tls);
}

#[test]
#[contract("CK32")]
fn an_authority_is_named_only_for_an_encrypted_connection() {
    for url in ["url: \"rediss://r\"", "url: \"redis://r\", tls: true"] {
        let server = redis(&format!("{url}, tls_ca: /ca.pem"));
        assert_eq!(server.tls_ca, Some("/ca.pem".into()), "{url}");
    }
    assert_eq!(redis("url: \"rediss://r\"").tls_ca, None);
    settings("response_cache: {l2: {endpoint: \"https://minio:9000\", tls_ca: /ca.pem}}");
    for (section, expected) in [
        (
            "redis: {url: \"redis://r\", tls_ca: /ca.pem}",
            "response_cache.redis.tls_ca: the connection is not encrypted: `tls_ca` does not apply: expected `tls: true`, \
             a rediss:// URL, or no `tls_ca`",
        ),
        (
            "l2: {endpoint: \"http://minio:9000\", tls_ca: /ca.pem}",
            "response_cache.l2.tls_ca: the connection is not encrypted: `tls_ca` does not apply: expected an https:// \
             endpoint, or no `tls_ca`",
        ),
    ] {
        let found = problem(&format!("response_cache: {{{section}}}\n")).to_string();
        assert!(found.ends_with(expected), "{found}");
    }
}

#[test]
#[contract("CK33")]
fn a_url_is_required_once_redis_is_selected() {
    assert_eq!(
        problem(SHARED).to_string(),
        "warmroute.yaml: line 1, column 42: response_cache.redis.url: missing, and `kv_cache_index.backend` is redis: expected \
         a URL such as redis://127.0.0.1:6379"
    );
    let wrong = problem(&format!(
        "{SHARED}response_cache: {{redis: {{url: \"redis//:hush@r\"}}}}"
    ));
    assert_eq!(wrong.path, "response_cache.redis.url");
    assert!(!wrong.to_string().contains("hush"), "{wrong}");
}

#[test]
#[contract("CK33")]
fn a_key_prefix_with_glob_characters_is_rejected() {
    for prefix in ["a*", "a?", "[a", "a]", "a\\\\b", "", "a b"] {
        let found = problem(&format!(
            "response_cache: {{redis: {{key_prefix: \"{prefix}\"}}}}"
        ));
        assert!(found.message.starts_with("cannot use"), "{found}");
    }
    settings("response_cache: {redis: {key_prefix: \"cr:resp:\"}}");
}

#[test]
fn the_password_of_the_server_is_never_shown() {
    let text =
        format!("{SHARED}response_cache: {{redis: {{url: \"redis://me:${{SECRET}}@r:1\"}}}}\n");
    let all = load_all(&text, &[("SECRET", "hush")], &[])
        .unwrap_or_else(|found| panic!("{}", lines(&found)));
    let KvCacheIndexSection {
        redis: Some(redis), ..
    } = &all.kv_cache_index
    else {
        panic!("{all:?}")
    };
    assert_eq!(
        redis.url.password().map(config::Secret::expose),
        Some("hush")
    );
    assert_eq!(
        all.to_json()["response_cache"]["redis"]["url"],
        "redis://***@r:1"
    );
    for shown in [all.to_yaml(), format!("{all:?}")] {
        assert!(!shown.contains("hush"), "{shown}");
    }
}

#[test]
fn the_example_of_a_prefix_view_in_redis_loads() {
    let text = "backends: [\"vllm-1=http://vllm-1:8000\"]\nresponse_cache:\n  redis:\n    url: \"redis://redis-service:6379\"\n    \
                pool_size: 16\nkv_cache_index:\n  enabled: true\n  backend: redis\n  max_entries: 500000\n  \
                entry_ttl_seconds: 900\n  storage_offloading: {enabled: true, treat_eviction_as_offload: true}\n";
    let view = settings(text).kv_cache_index;
    assert_eq!(view.redis.map(|redis| redis.pool_size.get()), Some(16));
}
