//! Requirements of the pools of section `disaggregation` on workers.

use kv_blocks::Role;
use settings::CheckedValue;

use super::problem_at;
use crate::{problem::ProblemDraft, sections::WorkerEntry};

/// Checks the worker at index `at`: one that transfers caches must be reachable by others.
pub(super) fn check_role(
    worker: &WorkerEntry,
    entry: &CheckedValue,
    at: usize,
    problems: &mut Vec<ProblemDraft>,
) {
    let (role, url) = (worker.role, worker.url.as_str());
    if role != Role::Unified && url.starts_with("unix:") {
        let message = format!(
            "a {} worker behind a Unix socket: KV caches are handed over between hosts and ports",
            role.as_str()
        );
        let draft = ProblemDraft::new(format!("workers[{at}].url"), message).value(url.into());
        problems.push(problem_at(
            draft.expected("http://HOST:PORT, or role: unified"),
            entry.key("url"),
            entry,
        ));
    }
}

/// Checks the workers together: none may be behind a Unix socket where others of its model hand
/// over caches. `places` are their positions among the `entries`. Source: contract V37.
pub(super) fn check_sockets(
    workers: &[WorkerEntry],
    places: &[usize],
    entries: &[CheckedValue],
    problems: &mut Vec<ProblemDraft>,
) {
    let in_pools = |worker: &&WorkerEntry| worker.role != Role::Unified;
    for (worker, at) in workers.iter().zip(places) {
        let url = worker.url.as_str();
        if worker.role != Role::Unified || !url.starts_with("unix:") {
            continue;
        }
        let Some(other) = workers
            .iter()
            .filter(in_pools)
            .find(|other| may_share_a_model(worker, other))
        else {
            continue;
        };
        let message = format!(
            "a worker behind a Unix socket beside the {} worker `{}`: KV caches are handed over between hosts and ports",
            other.role.as_str(),
            other.name
        );
        let draft = ProblemDraft::new(format!("workers[{at}].url"), message)
            .value(url.into())
            .expected("http://HOST:PORT, or workers[].models that the two do not share");
        let entry = &entries[*at];
        problems.push(problem_at(draft, entry.key("url"), entry));
    }
}

/// Returns whether two workers may serve the same model: one without a list may serve any.
fn may_share_a_model(one: &WorkerEntry, other: &WorkerEntry) -> bool {
    one.models.is_empty()
        || other.models.is_empty()
        || one.models.iter().any(|model| other.models.contains(model))
}
