//! Checks of `routing.semantic_clusters`.

use settings::{CheckedValue, nearest};

use super::problem_at;
use crate::{problem::ProblemDraft, sections::WorkerEntry};

const PATH: &str = "routing.semantic_clusters";

/// Checks the clusters, whether they are enabled or not, and that an enabled section is complete.
pub(super) fn check_clusters(
    section: &CheckedValue,
    workers: &[WorkerEntry],
    problems: &mut Vec<ProblemDraft>,
) {
    let mut names: Vec<&str> = Vec::new();
    for (at, entry) in section.key("clusters").items().iter().enumerate() {
        check_cluster(at, entry, workers, problems);
        let name = entry.key("name").text().unwrap_or_default();
        if name.is_empty() {
            continue;
        }
        if names.contains(&name) {
            let draft = ProblemDraft::new(
                format!("{PATH}.clusters[{at}].name"),
                format!("a second cluster `{name}`"),
            );
            let draft = draft.expected("another name").value(name.into());
            problems.push(problem_at(draft, entry.key("name"), entry));
        }
        names.push(name);
    }
    if section.key("enabled").bool() {
        check_complete(section, problems);
    }
}

fn check_complete(section: &CheckedValue, problems: &mut Vec<ProblemDraft>) {
    let (model, list) = (section.key("embedding_model"), section.key("clusters"));
    let mut missing = |key: &CheckedValue, name: &str, expected: &str| {
        let draft = ProblemDraft::new(format!("{PATH}.{name}"), "missing")
            .expected(expected)
            .in_context();
        problems.push(problem_at(draft, key, section));
    };
    if model.text().is_none_or(str::is_empty) && !model.failed {
        missing(
            model,
            "embedding_model",
            "the id of a model that one of the workers serves at /v1/embeddings",
        );
    }
    if list.items().is_empty() && !list.failed {
        missing(
            list,
            "clusters",
            "a list of clusters with name, examples and workers",
        );
    }
}

fn check_cluster(
    at: usize,
    entry: &CheckedValue,
    workers: &[WorkerEntry],
    problems: &mut Vec<ProblemDraft>,
) {
    let path = |key: &str| format!("{PATH}.clusters[{at}].{key}");
    let has_no = |key: &str| {
        entry
            .key(key)
            .items()
            .iter()
            .all(|item| item.text().is_none())
    };
    let name = entry.key("name").text().unwrap_or_default();
    for (key, lacks, expected) in [
        ("name", name.is_empty(), "the cluster's name"),
        (
            "examples",
            has_no("examples"),
            "a list of prompts that belong there",
        ),
        ("workers", has_no("workers"), "a list of names of workers"),
    ] {
        if lacks && !entry.key(key).failed {
            problems.push(problem_at(
                ProblemDraft::new(path(key), "missing").expected(expected),
                entry.key(key),
                entry,
            ));
        }
    }
    for (number, item) in entry.key("workers").items().iter().enumerate() {
        let Some(name) = item
            .text()
            .filter(|name| workers.iter().all(|worker| worker.name != **name))
        else {
            continue;
        };
        let names = || workers.iter().map(|worker| worker.name.as_str());
        let draft = ProblemDraft::new(
            path(&format!("workers[{number}]")),
            format!("no worker is called `{name}`"),
        );
        let draft = draft.expected(format!(
            "the name of a worker: {}",
            names().collect::<Vec<_>>().join(", ")
        ));
        problems.push(problem_at(
            draft.nearest(nearest(name, names())).value(name.into()),
            item,
            entry,
        ));
    }
}
