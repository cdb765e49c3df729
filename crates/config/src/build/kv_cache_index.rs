//! Checks of section `kv_cache_index`.

use settings::CheckedValue;

use super::{problem_at, redis::redis};
use crate::{
    problem::ProblemDraft,
    sections::{IndexBackend, KvCacheIndexSection, RedisSection, WorkerEntry},
};

/// Tolerance for the sum of the weights, which must be 1.
const SUM_TOLERANCE: f64 = 1e-6;

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

/// Checks the entries of `event_sources`.
pub(super) fn check_event_sources(
    section: &CheckedValue,
    workers: &[WorkerEntry],
    problems: &mut Vec<ProblemDraft>,
) {
    for (at, entry) in section.key("event_sources").items().iter().enumerate() {
        check_event_source(at, entry, workers, problems);
    }
}

/// Returns the server of an enabled view in Redis; a missing one is a problem.
pub(super) fn server(
    index: &KvCacheIndexSection,
    root: &CheckedValue,
    problems: &mut Vec<ProblemDraft>,
) -> Option<RedisSection> {
    let backend = root.key("kv_cache_index").key("backend");
    (index.enabled && index.backend == IndexBackend::Redis)
        .then(|| redis(root, "kv_cache_index.backend", backend, problems))
        .flatten()
}

fn check_event_source(
    at: usize,
    entry: &CheckedValue,
    workers: &[WorkerEntry],
    problems: &mut Vec<ProblemDraft>,
) {
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
    let (Some(backend_name), Some(_)) = (backend.text(), endpoint.text()) else {
        return;
    };
    if workers.iter().all(|worker| worker.name != backend_name) {
        let draft = ProblemDraft::new(
            path("backend_name"),
            format!("no worker is called `{backend_name}`"),
        );
        let nearest = settings::nearest(
            backend_name,
            workers.iter().map(|worker| worker.name.as_str()),
        );
        let draft = draft
            .expected(format!("the name of a worker: {}", names()))
            .nearest(nearest);
        problems.push(problem_at(draft.value(backend_name.into()), backend, entry));
    }
}
