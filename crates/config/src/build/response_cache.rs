//! Checks of section `response_cache`.

use settings::CheckedValue;

use super::{problem_at, redis};
use crate::{
    problem::ProblemDraft,
    sections::{CacheBackend, L1Kind, RedisSection, ResponseCacheSection},
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
    if cache.enabled {
        a_model_says_what_means_the_same(section.key("semantic"), problems);
    }
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
