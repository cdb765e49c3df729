//! Section `response_cache`.

use std::{num::NonZeroUsize, time::Duration};

use super::{problem_at, redis};
use crate::{
    AbsentTemperature, CacheBackend, CacheFallback, CacheL1, CacheL2, CacheRedis, CacheTiering,
    L1Kind, ResponseCacheSection, S3Credentials, SemanticCache, checked_value::CheckedValue,
    problem::ProblemDraft,
};

/// Builds the section. An enabled cache that lacks a setting of its backend is a problem; a
/// disabled one may lack any.
pub(super) fn response_cache(
    root: &CheckedValue,
    problems: &mut Vec<ProblemDraft>,
) -> ResponseCacheSection {
    let section = root.key("response_cache");
    let enabled = section.key("enabled").bool();
    let backend = backend(section);
    let l1 = l1(section.key("l1"));
    if enabled && backend == CacheBackend::Tiered {
        check_object_store(section, problems);
    }
    key_has_its_other_half(section.key("l2"), problems);
    if enabled {
        a_model_says_what_means_the_same(section.key("semantic"), problems);
    }
    ResponseCacheSection {
        enabled,
        backend,
        capacity: count(section.key("capacity")),
        memory_budget: section.key("memory_budget").size_in_memory(),
        ttl: section.key("ttl").duration(),
        max_response_size: bytes(section.key("max_response_size")),
        max_stream_buffer_size: bytes(section.key("max_stream_buffer_size")),
        absent_temperature: match section.key("absent_temperature").word() {
            Some("bypass") => AbsentTemperature::Bypass,
            _ => AbsentTemperature::Cacheable,
        },
        lookup_budget: section.key("lookup_budget").duration(),
        mac_key: section.key("mac_key").secret().cloned(),
        redis: cache_redis(root, enabled, backend, l1, problems),
        l1,
        l2: l2(section.key("l2")),
        tiered: CacheTiering {
            promote_on_hit: section.key("tiered").key("promote_on_hit").bool(),
            l1_promotion_ttl: section.key("tiered").key("l1_promotion_ttl").duration(),
        },
        semantic: semantic(section.key("semantic")),
    }
}

fn backend(section: &CheckedValue) -> CacheBackend {
    match section.key("backend").word() {
        Some("redis") => CacheBackend::Redis,
        Some("tiered") => CacheBackend::Tiered,
        _ => CacheBackend::Memory,
    }
}

fn cache_redis(
    root: &CheckedValue,
    enabled: bool,
    backend: CacheBackend,
    l1: CacheL1,
    problems: &mut Vec<ProblemDraft>,
) -> CacheRedis {
    let cache = root.key("response_cache");
    let chosen = match (backend, l1.kind) {
        (CacheBackend::Redis, _) => Some(("response_cache.backend", cache.key("backend"))),
        (CacheBackend::Tiered, L1Kind::Redis) => {
            Some(("response_cache.l1.type", cache.key("l1").key("type")))
        }
        _ => None,
    };
    let server = match chosen {
        Some((path, key)) if enabled => redis::redis(root, path, key, problems),
        // It may be enabled while the program runs.
        Some(_) => redis::server(root),
        None => None,
    };
    let section = cache.key("redis");
    CacheRedis {
        server,
        key_prefix: section
            .key("key_prefix")
            .text()
            .unwrap_or_default()
            .to_owned(),
        fallback: section
            .key("fallback_to_memory")
            .bool()
            .then(|| CacheFallback {
                capacity: count(section.key("fallback_capacity")),
                ttl: Duration::from_secs(section.key("fallback_ttl_seconds").int()),
            }),
    }
}

fn l1(section: &CheckedValue) -> CacheL1 {
    CacheL1 {
        kind: match section.key("type").word() {
            Some("redis") => L1Kind::Redis,
            _ => L1Kind::Memory,
        },
        max_value_size: bytes(section.key("max_value_size")),
    }
}

fn l2(section: &CheckedValue) -> CacheL2 {
    let text = |key: &str| section.key(key).text().map(str::to_owned);
    let credentials = section
        .key("access_key")
        .secret()
        .zip(section.key("secret_key").secret());
    CacheL2 {
        endpoint: text("endpoint"),
        bucket: text("bucket"),
        key_prefix: text("key_prefix").unwrap_or_default(),
        region: text("region").unwrap_or_default(),
        credentials: credentials.map(|(access, secret)| S3Credentials {
            access_key: access.clone(),
            secret_key: secret.clone(),
        }),
        ttl_override: section.key("ttl_override").duration_if_set(),
    }
}

fn semantic(section: &CheckedValue) -> SemanticCache {
    SemanticCache {
        enabled: section.key("enabled").bool(),
        threshold: section.key("threshold").float(),
        embedding_model: section.key("embedding_model").text().map(str::to_owned),
        max_entries: count(section.key("max_entries")),
        ttl: section.key("ttl").duration(),
        timeout: section.key("timeout").duration(),
    }
}

fn check_object_store(cache: &CheckedValue, problems: &mut Vec<ProblemDraft>) {
    let section = cache.key("l2");
    for (key, expected) in [
        (
            "endpoint",
            "the URL of an object store such as https://s3.us-east-1.amazonaws.com",
        ),
        ("bucket", "the name of a bucket"),
    ] {
        let found = section.key(key);
        if found.text().is_none_or(str::is_empty) && !found.failed {
            let message = "missing, and `response_cache.backend` is tiered";
            let draft =
                ProblemDraft::new(format!("response_cache.l2.{key}"), message).expected(expected);
            problems.push(problem_at(draft, section, cache.key("backend")));
        }
    }
}

fn a_model_says_what_means_the_same(section: &CheckedValue, problems: &mut Vec<ProblemDraft>) {
    let (on, model) = (section.key("enabled"), section.key("embedding_model"));
    if on.bool() && model.text().is_none_or(str::is_empty) && !model.failed {
        let message = "missing, and `response_cache.semantic.enabled` is true";
        let draft = ProblemDraft::new("response_cache.semantic.embedding_model", message);
        problems.push(problem_at(
            draft.expected("a model that a worker serves at /v1/embeddings"),
            section,
            on,
        ));
    }
}

/// Checks that both keys of the pair are set: with one, requests would be refused, or go out
/// unsigned.
fn key_has_its_other_half(section: &CheckedValue, problems: &mut Vec<ProblemDraft>) {
    for (there, missing) in [("access_key", "secret_key"), ("secret_key", "access_key")] {
        let (found, lacking) = (section.key(there), section.key(missing));
        if found.secret().is_some() && lacking.secret().is_none() && !lacking.failed {
            let message = format!("missing, and `response_cache.l2.{there}` is set");
            let draft = ProblemDraft::new(format!("response_cache.l2.{missing}"), message)
                .expected("both or neither");
            problems.push(problem_at(draft, found, section));
        }
    }
}

fn count(key: &CheckedValue) -> NonZeroUsize {
    usize::try_from(key.int())
        .ok()
        .and_then(NonZeroUsize::new)
        .unwrap_or(NonZeroUsize::MAX)
}

fn bytes(key: &CheckedValue) -> usize {
    usize::try_from(key.int()).unwrap_or(usize::MAX)
}
