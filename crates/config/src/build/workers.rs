//! The entries of `workers`: their names, and defaults from other sections.

use std::collections::BTreeMap;

use settings::{CheckedValue, Value};

use super::{disaggregation, problem_at, read, tls, worker_events};
use crate::{
    problem::ProblemDraft,
    sections::{CheckMethod, EngineKind, WorkerEntry},
};

/// Builds the workers; entries with a refused URL or name are left out, as their problem is
/// recorded already.
pub(super) fn workers(
    root: &mut CheckedValue,
    problems: &mut Vec<ProblemDraft>,
) -> Vec<WorkerEntry> {
    let default_block_size = root.key("models").key("defaults").key("block_size").clone();
    let default_topic = root.key("kv_events").key("topic_filter").clone();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut workers = Vec::new();
    let mut places = Vec::new();
    for (at, entry) in root.key_mut("workers").items_mut().iter_mut().enumerate() {
        let Value::WorkerUrl { url, host_port } = entry.key("url").value.clone() else {
            continue;
        };
        if entry.key("name").failed {
            continue;
        }
        let name = entry.key("name").text().map_or(host_port, Into::into);
        if !is_name(&name) {
            let draft = ProblemDraft::new(
                format!("workers[{at}].name"),
                format!("cannot use `{name}` as a name"),
            );
            let draft = draft
                .expected("1 to 128 visible ASCII characters without `/`, `,` and `\"`")
                .value(name.into());
            problems.push(problem_at(draft, entry.key("name"), entry));
            continue;
        }
        if let Some(first) = seen.get(&name) {
            let message = format!("`{name}` is also the name of workers[{first}]");
            let draft = ProblemDraft::new(format!("workers[{at}].name"), message)
                .expected("a name of its own");
            problems.push(problem_at(
                draft.value(name.into()),
                entry.key("name"),
                entry,
            ));
            continue;
        }
        seen.insert(name.clone(), at);
        entry.key_mut("name").value = Value::Text(name.clone());
        inherit(entry.key_mut("block_size"), &default_block_size);
        inherit(entry.key_mut("kv_events").key_mut("topic"), &default_topic);
        let mut worker: WorkerEntry = read(entry);
        worker_events::check(&worker.kv_events, entry, at, problems);
        worker.kv_events.source = worker_events::kind(&worker.kv_events);
        check_body(&worker, entry, at, problems);
        disaggregation::check_role(&worker, entry, at, problems);
        tls::check_worker(entry, &url, at, problems);
        workers.push(worker);
        places.push(at);
    }
    let entries = root.key("workers").items();
    disaggregation::check_sockets(&workers, &places, entries, problems);
    workers
}

/// Refuses the body of a health check without POST: it would not be sent. The engine type's method
/// counts where the worker has none.
fn check_body(
    worker: &WorkerEntry,
    entry: &CheckedValue,
    at: usize,
    problems: &mut Vec<ProblemDraft>,
) {
    let section = entry.key("health_check");
    let body = section.key("body");
    let usual = match worker.engine {
        Some(EngineKind::Anthropic) => CheckMethod::Post,
        _ => CheckMethod::Get,
    };
    let method = worker.health_check.method.unwrap_or(usual);
    if worker.health_check.body.is_none() || body.failed || method == CheckMethod::Post {
        return;
    }
    let path = format!("workers[{at}].health_check.body");
    let draft = ProblemDraft::new(path, format!("not sent: the method is {}", method.as_str()))
        .value(body.shown())
        .in_context()
        .expected("`method: POST` beside it, or no body");
    problems.push(problem_at(draft, body, section));
}

/// Checks a name for use in headers, labels and paths.
fn is_name(name: &str) -> bool {
    (1..=128).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'/' | b',' | b'"'))
}

fn inherit(own: &mut CheckedValue, default: &CheckedValue) {
    if !own.is_set() {
        own.value = default.value.clone();
    }
}
