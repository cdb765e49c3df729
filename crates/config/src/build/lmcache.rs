//! Checks of `routing.lmcache`, and of the policy that needs it.

use ::routing::{LmcacheSection, PromptCacheBackend};
use settings::{CheckedValue, Value, nearest};

use super::{problem_at, redis::redis};
use crate::{
    key_path::map_path,
    problem::ProblemDraft,
    sections::{RedisSection, WorkerEntry},
};

const PATH: &str = "routing.lmcache";
const POLICY: &str = "lmcache_aware";
const CACHE_BACKEND: &str = "routing.lmcache.prompt_cache.backend";

/// Checks the section, also if no controller is configured; then nothing may need one.
pub(super) fn check(
    root: &CheckedValue,
    workers: &[WorkerEntry],
    problems: &mut Vec<ProblemDraft>,
) {
    let routing = root.key("routing");
    let section = routing.key("lmcache");
    workers_are_known(root, section.key("worker_map"), workers, problems);
    let url = section.key("controller_url");
    if url.value != Value::Unset || url.failed {
        return;
    }
    if let Some((path, key)) = chosen_by(routing) {
        let draft = ProblemDraft::new(
            format!("{PATH}.controller_url"),
            format!("missing, and `{path}` is {POLICY}"),
        );
        let draft = draft
            .expected("the URL of an LMCache controller such as http://127.0.0.1:9000")
            .in_context();
        problems.push(problem_at(draft, section, key));
    }
}

/// Returns the Redis server of the prompt cache, if a controller is configured and the cache is in
/// Redis; a missing server is a problem.
pub(super) fn prompt_cache_redis(
    lmcache: Option<&LmcacheSection>,
    root: &CheckedValue,
    problems: &mut Vec<ProblemDraft>,
) -> Option<RedisSection> {
    let cache = &lmcache?.prompt_cache;
    let backend = root
        .key("routing")
        .key("lmcache")
        .key("prompt_cache")
        .key("backend");
    match cache.backend {
        PromptCacheBackend::Memory => None,
        PromptCacheBackend::Redis => redis(root, CACHE_BACKEND, backend, problems),
    }
}

/// Replaces each mapped worker by its name, or by `host:port` if it is not known yet.
pub(super) fn resolve_workers(lmcache: &mut LmcacheSection, workers: &[WorkerEntry]) {
    for named in lmcache.worker_map.values_mut() {
        let known = workers.iter().find(|worker| is(worker, named));
        *named = known.map_or_else(|| place(named).to_owned(), |worker| worker.name.clone());
    }
}

/// Returns the first key that chooses the policy.
fn chosen_by(routing: &CheckedValue) -> Option<(String, &CheckedValue)> {
    const KEYS: [&str; 3] = ["policy", "prefill_policy", "decode_policy"];
    let own = KEYS.map(|key| (format!("routing.{key}"), routing.key(key)));
    let models = routing
        .key("models")
        .entries()
        .iter()
        .flat_map(|(name, entry)| {
            KEYS.map(|key| {
                (
                    format!("{}.{key}", map_path("routing.models", name)),
                    entry.key(key),
                )
            })
        });
    own.into_iter()
        .chain(models)
        .find(|(_, key)| key.word() == Some(POLICY))
}

/// Checks that mapped workers exist: an unknown one would never have a hit. With discovery nothing
/// is checked, as discovered workers are not known yet.
fn workers_are_known(
    root: &CheckedValue,
    map: &CheckedValue,
    workers: &[WorkerEntry],
    problems: &mut Vec<ProblemDraft>,
) {
    let discovery = root.key("discovery");
    if discovery.key("file").is_set()
        || !discovery.key("dns").items().is_empty()
        || workers.is_empty()
    {
        return;
    }
    for (instance, entry) in map.entries() {
        let Some(named) = entry
            .text()
            .filter(|named| !workers.iter().any(|worker| is(worker, named)))
        else {
            continue;
        };
        let names = || workers.iter().map(|worker| worker.name.as_str());
        let draft = ProblemDraft::new(
            map_path(&format!("{PATH}.worker_map"), instance),
            format!("`{named}` is no worker"),
        );
        let expected = format!(
            "the name, host:port or URL of a worker: {}",
            names().collect::<Vec<_>>().join(", ")
        );
        let draft = draft
            .expected(expected)
            .nearest(nearest(named, names()))
            .value(named.into());
        problems.push(problem_at(draft, entry, map));
    }
}

fn is(worker: &WorkerEntry, named: &str) -> bool {
    worker.name == named || place(&worker.url) == place(named)
}

/// Returns a URL without its scheme; a name stays unchanged.
fn place(named: &str) -> &str {
    named
        .split_once("://")
        .map_or(named, |(_, rest)| rest)
        .trim_end_matches('/')
}
