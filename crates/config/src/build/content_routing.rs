//! `routing.semantic_clusters` and `routing.shared_prefix_routing`.

use super::problem_at;
use crate::{
    SemanticCluster, SemanticClusters, SharedPrefixRouting, WorkerEntry,
    checked_value::CheckedValue, nearest::nearest, problem::ProblemDraft,
};

const PATH: &str = "routing.semantic_clusters";

/// Returns `None` if disabled; its entries are checked all the same.
pub(super) fn semantic_clusters(
    section: &CheckedValue,
    workers: &[WorkerEntry],
    problems: &mut Vec<ProblemDraft>,
) -> Option<SemanticClusters> {
    let mut clusters: Vec<SemanticCluster> = Vec::new();
    for (at, entry) in section.key("clusters").items().iter().enumerate() {
        let Some(cluster) = cluster(at, entry, workers, problems) else {
            continue;
        };
        if clusters.iter().any(|other| other.name == cluster.name) {
            let draft = ProblemDraft::new(
                format!("{PATH}.clusters[{at}].name"),
                format!("a second cluster `{}`", cluster.name),
            );
            let draft = draft
                .expected("another name")
                .value(cluster.name.as_str().into());
            problems.push(problem_at(draft, entry.key("name"), entry));
        }
        clusters.push(cluster);
    }
    if !section.key("enabled").bool() {
        return None;
    }
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
    Some(SemanticClusters {
        embedding_model: model.text()?.to_owned(),
        threshold: section.key("threshold").float(),
        timeout: section.key("timeout").duration(),
        clusters,
    })
}

fn cluster(
    at: usize,
    entry: &CheckedValue,
    workers: &[WorkerEntry],
    problems: &mut Vec<ProblemDraft>,
) -> Option<SemanticCluster> {
    let path = |key: &str| format!("{PATH}.clusters[{at}].{key}");
    let texts = |key: &str| -> Vec<String> {
        entry
            .key(key)
            .items()
            .iter()
            .filter_map(|item| item.text().map(str::to_owned))
            .collect()
    };
    let cluster = SemanticCluster {
        name: entry.key("name").text().unwrap_or_default().to_owned(),
        examples: texts("examples"),
        workers: texts("workers"),
    };
    for (key, lacks, expected) in [
        ("name", cluster.name.is_empty(), "the cluster's name"),
        (
            "examples",
            cluster.examples.is_empty(),
            "a list of prompts that belong there",
        ),
        (
            "workers",
            cluster.workers.is_empty(),
            "a list of names of workers",
        ),
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
    (!cluster.name.is_empty()).then_some(cluster)
}

pub(super) fn shared_prefix_routing(section: &CheckedValue) -> Option<SharedPrefixRouting> {
    let count = |key: &str| usize::try_from(section.key(key).int()).unwrap_or(usize::MAX);
    section.key("enabled").bool().then(|| SharedPrefixRouting {
        prefix_chars: count("prefix_chars"),
        ttl: section.key("ttl").duration(),
        write_probability: section.key("write_probability").float(),
        max_entries: count("max_entries"),
    })
}
