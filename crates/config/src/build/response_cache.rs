//! Checks of section `response_cache`.

use settings::{CheckedValue, Setting};

use super::{problem_at, redis};
use crate::{
    problem::ProblemDraft,
    sections::{CacheBackend, CacheRedis, L1Kind, RedisSection, ResponseCacheSection, Settings},
};

/// Checks the section. An enabled cache that lacks a setting of its backend is a problem; a
/// disabled one may lack any.
pub(super) fn check(
    cache: &ResponseCacheSection,
    section: &CheckedValue,
    problems: &mut Vec<ProblemDraft>,
) {
    if cache.enabled && cache.backend == CacheBackend::Tiered {
        check_object_store(section, problems);
    }
    key_has_its_other_half(section.key("l2"), problems);
    authorities_have_an_encrypted_connection(section, problems);
    if cache.enabled {
        a_model_says_what_means_the_same(section.key("semantic"), problems);
    }
}

/// Returns the problem of replies to several tenants in a store where others may forge one.
pub(super) fn forgery(settings: &Settings) -> Option<ProblemDraft> {
    let cache = &settings.response_cache;
    let is_accepted = cache.insecure || !settings.tenants.has_several();
    (cache.is_open_to_forgery() && !is_accepted).then(|| {
        let message = format!(
            "missing, `response_cache.backend` is {}, and there are several tenants: whoever can write to the store could \
             make up a reply to any of them",
            cache.backend.as_str()
        );
        ProblemDraft::new("response_cache.mac_key", message)
            .expected(
                "one long random text, the same on all routers (`openssl rand -base64 32` prints one), or \
                 `response_cache.insecure: true`",
            )
            .in_context()
    })
}

/// Returns the server of a cache in Redis; a missing one is a problem if the cache is enabled.
pub(super) fn server(
    cache: &ResponseCacheSection,
    root: &CheckedValue,
    problems: &mut Vec<ProblemDraft>,
) -> Option<RedisSection> {
    let section = root.key("response_cache");
    let (path, key) = match (cache.backend, cache.l1.kind) {
        (CacheBackend::Redis, _) => ("response_cache.backend", section.key("backend")),
        (CacheBackend::Tiered, L1Kind::Redis) => {
            ("response_cache.l1.type", section.key("l1").key("type"))
        }
        _ => return None,
    };
    if cache.enabled {
        redis::redis(root, path, key, problems)
    } else {
        // It may be enabled while the program runs.
        redis::server(root)
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

/// Checks that no connection is left plain where its authorities are named.
fn authorities_have_an_encrypted_connection(
    cache: &CheckedValue,
    problems: &mut Vec<ProblemDraft>,
) {
    let (redis, l2) = (cache.key("redis"), cache.key("l2"));
    let redis_is_plain = CacheRedis::read(redis)
        .and_then(|redis| redis.address())
        .is_some_and(|server| !server.tls);
    let l2_is_plain = l2.key("endpoint").text().is_some_and(|url| {
        url.get(..7)
            .is_some_and(|scheme| scheme.eq_ignore_ascii_case("http://"))
    });
    for (section, path, is_plain, expected) in [
        (
            redis,
            "response_cache.redis.tls_ca",
            redis_is_plain,
            "`tls: true`, a rediss:// URL, or no `tls_ca`",
        ),
        (
            l2,
            "response_cache.l2.tls_ca",
            l2_is_plain,
            "an https:// endpoint, or no `tls_ca`",
        ),
    ] {
        let key = section.key("tls_ca");
        if is_plain && key.text().is_some() {
            let draft = ProblemDraft::new(
                path,
                "the connection is not encrypted: `tls_ca` does not apply",
            );
            problems.push(problem_at(
                draft.expected(expected).in_context(),
                key,
                section,
            ));
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
