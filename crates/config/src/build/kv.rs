//! The sections about KV events and predictions.

use std::{num::NonZeroUsize, time::Duration};

use super::{problem_at, redis::redis};
use crate::{
    BlockHashKind, KvCacheIndexSection, KvEventsSection, Offloading, PredictionSection,
    PrefixEventSource, PrefixHashKind, ScoringSection, WorkerEntry, checked_value::CheckedValue,
    problem::ProblemDraft,
};

/// Tolerance for the sum of the weights, which must be 1.
const SUM_TOLERANCE: f64 = 1e-6;

pub(super) fn kv_events(section: &CheckedValue) -> KvEventsSection {
    let prediction = section.key("prediction");
    KvEventsSection {
        enabled: section.key("enabled").bool(),
        memory_budget: section.key("memory_budget").size(),
        block_hash: match section.key("block_hash").word() {
            Some("fnv1a") => BlockHashKind::Fnv1a,
            _ => BlockHashKind::Xxh3,
        },
        block_hash_seed: section.key("block_hash_seed").int(),
        default_port: u16::try_from(section.key("default_port").int()).unwrap_or(u16::MAX),
        topic_filter: section
            .key("topic_filter")
            .text()
            .unwrap_or_default()
            .to_owned(),
        replay: section.key("replay").bool(),
        max_message: section.key("max_message").size_in_memory(),
        queue_batches: usize::try_from(section.key("queue_batches").int()).unwrap_or(usize::MAX),
        max_events_per_second: section.key("max_events_per_second").int(),
        stale_after: section.key("stale_after").duration(),
        prediction: PredictionSection {
            ttl: prediction.key("ttl").duration(),
            max_blocks: prediction.key("max_blocks").int(),
            prune_target_ratio: prediction.key("prune_target_ratio").float(),
        },
    }
}

/// Checks that the three weights of a score add up to 1.
pub(super) fn check_weights_sum(scoring: &CheckedValue, problems: &mut Vec<ProblemDraft>) {
    let weights =
        ["overlap_weight", "load_weight", "health_weight"].map(|key| (key, scoring.key(key)));
    if weights.iter().any(|(_, weight)| weight.failed) {
        return;
    }
    let sum: f64 = weights.iter().map(|(_, weight)| weight.float()).sum();
    if (sum - 1.0).abs() <= SUM_TOLERANCE {
        return;
    }
    // The problem is at the last weight that was set.
    let (key, weight) = weights
        .iter()
        .rfind(|(_, weight)| weight.is_set())
        .unwrap_or(&weights[0]);
    let message = format!("overlap_weight, load_weight and health_weight make {sum:.6}");
    let draft = ProblemDraft::new(format!("kv_cache_index.scoring.{key}"), message)
        .value(weight.shown())
        .in_context();
    problems.push(problem_at(
        draft.expected("weights that make 1"),
        weight,
        scoring,
    ));
}

fn scoring(section: &CheckedValue) -> ScoringSection {
    ScoringSection {
        relative: section.key("overlap_measure").word() == Some("relative"),
        overlap_weight: section.key("overlap_weight").float(),
        load_weight: section.key("load_weight").float(),
        health_weight: section.key("health_weight").float(),
        min_overlap_threshold: section.key("min_overlap_threshold").float(),
        gpu_tier_weight: section.key("gpu_tier_weight").float(),
        storage_tier_weight: section.key("storage_tier_weight").float(),
    }
}

/// Builds section `kv_cache_index`; entries with a recorded problem are left out.
pub(super) fn kv_cache_index(
    root: &CheckedValue,
    workers: &[WorkerEntry],
    problems: &mut Vec<ProblemDraft>,
) -> KvCacheIndexSection {
    let section = root.key("kv_cache_index");
    let enabled = section.key("enabled").bool();
    let chosen = enabled && section.key("backend").word() == Some("redis");
    let offloading = section.key("storage_offloading");
    let sources = section.key("event_sources").items().iter().enumerate();
    KvCacheIndexSection {
        enabled,
        redis: chosen
            .then(|| {
                redis(
                    root,
                    "kv_cache_index.backend",
                    section.key("backend"),
                    problems,
                )
            })
            .flatten(),
        max_entries: usize::try_from(section.key("max_entries").int())
            .ok()
            .and_then(NonZeroUsize::new)
            .unwrap_or(NonZeroUsize::MAX),
        entry_ttl: Duration::from_secs(section.key("entry_ttl_seconds").int()),
        scoring: scoring(section.key("scoring")),
        offloading: if offloading.key("enabled").bool() {
            Offloading::On {
                evicted_too: offloading.key("treat_eviction_as_offload").bool(),
            }
        } else {
            Offloading::Off
        },
        event_sources: sources
            .filter_map(|(at, entry)| event_source(at, entry, workers, problems))
            .collect(),
    }
}

fn event_source(
    at: usize,
    entry: &CheckedValue,
    workers: &[WorkerEntry],
    problems: &mut Vec<ProblemDraft>,
) -> Option<PrefixEventSource> {
    let path = |key: &str| format!("kv_cache_index.event_sources[{at}].{key}");
    let mut missing = |key: &str, expected: String| {
        let draft = ProblemDraft::new(path(key), "missing").expected(expected);
        problems.push(problem_at(draft, entry.key(key), entry));
    };
    let names = || {
        workers
            .iter()
            .map(|worker| worker.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let (backend, endpoint) = (entry.key("backend_name"), entry.key("endpoint"));
    if backend.text().is_none() && !backend.failed {
        missing("backend_name", format!("the name of a worker: {}", names()));
    }
    if endpoint.text().is_none() && !endpoint.failed {
        missing(
            "endpoint",
            "a URL such as http://10.0.0.1:8000/v1/kv_events".to_owned(),
        );
    }
    let (backend_name, endpoint) = (backend.text()?.to_owned(), endpoint.text()?.to_owned());
    if workers.iter().all(|worker| worker.name != backend_name) {
        let draft = ProblemDraft::new(
            path("backend_name"),
            format!("no worker is called `{backend_name}`"),
        );
        let nearest = crate::nearest::nearest(
            &backend_name,
            workers.iter().map(|worker| worker.name.as_str()),
        );
        let draft = draft
            .expected(format!("the name of a worker: {}", names()))
            .nearest(nearest);
        problems.push(problem_at(draft.value(backend_name.into()), backend, entry));
        return None;
    }
    Some(PrefixEventSource {
        backend_name,
        endpoint,
        reconnect_interval: Duration::from_millis(entry.key("reconnect_interval_ms").int()),
        prefix_hash_kind: match entry.key("prefix_hash_kind").word() {
            Some("sequence_hash") => PrefixHashKind::SequenceHash,
            _ => PrefixHashKind::PrefixKey,
        },
    })
}
