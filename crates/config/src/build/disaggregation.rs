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
