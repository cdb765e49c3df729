//! `routing.lmcache`, and the policy that needs it.

use std::num::NonZeroUsize;

use super::{problem_at, redis::redis};
use crate::{
    LmcacheMode, LmcacheSection, PromptCacheSection, WorkerEntry,
    check::map_path,
    checked_value::{CheckedValue, Value},
    nearest::nearest,
    problem::ProblemDraft,
};

const PATH: &str = "routing.lmcache";
const POLICY: &str = "lmcache_aware";
const CACHE_BACKEND: &str = "routing.lmcache.prompt_cache.backend";

/// Returns `None` if no controller is configured; the other keys are checked all the same.
pub(super) fn lmcache(
    root: &CheckedValue,
    workers: &[WorkerEntry],
    problems: &mut Vec<ProblemDraft>,
) -> Option<LmcacheSection> {
    let routing = root.key("routing");
    let section = routing.key("lmcache");
    workers_are_known(root, section.key("worker_map"), workers, problems);
    let url = section.key("controller_url");
    let Value::WorkerUrl {
        url: controller_url,
        ..
    } = &url.value
    else {
        if let Some((path, key)) = chosen_by(routing).filter(|_| !url.failed) {
            let draft = ProblemDraft::new(
                format!("{PATH}.controller_url"),
                format!("missing, and `{path}` is {POLICY}"),
            );
            let draft = draft
                .expected("the URL of an LMCache controller such as http://127.0.0.1:9000")
                .in_context();
            problems.push(problem_at(draft, section, key));
        }
        return None;
    };
    let (key, cache) = (
        section.key("controller_api_key"),
        section.key("prompt_cache"),
    );
    let shared = cache.key("backend").word() == Some("redis");
    let entry = |(instance, named): &(String, CheckedValue)| {
        let named = named.text()?;
        let known = workers.iter().find(|worker| is(worker, named));
        Some((
            instance.clone(),
            known.map_or(place(named), |worker| &worker.name).to_owned(),
        ))
    };
    Some(LmcacheSection {
        mode: match section.key("mode").word() {
            Some("prefix_lookup") => LmcacheMode::PrefixLookup,
            _ => LmcacheMode::Occupancy,
        },
        controller_url: controller_url.clone(),
        controller_api_key: match &key.value {
            Value::Secret(key) => Some(key.clone()),
            _ => None,
        },
        poll_interval: section.key("poll_interval").duration(),
        controller_timeout: section.key("controller_timeout").duration(),
        lookup_budget: section.key("lookup_budget").duration(),
        cache_weight: section.key("cache_weight").float(),
        worker_map: section
            .key("worker_map")
            .entries()
            .iter()
            .filter_map(entry)
            .collect(),
        fallback: section.key("fallback").word().unwrap_or("power_of_two"),
        prompt_cache: PromptCacheSection {
            ttl: cache.key("ttl").duration(),
            capacity: NonZeroUsize::try_from(cache.key("capacity").count())
                .unwrap_or(NonZeroUsize::MAX),
            redis: shared
                .then(|| redis(root, CACHE_BACKEND, cache.key("backend"), problems))
                .flatten(),
        },
    })
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
