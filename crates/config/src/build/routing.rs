//! Section `routing`: checks between its keys, and with the workers.

use ::routing::RoutingSection;
use settings::CheckedValue;

use super::{content_routing::check_clusters, lmcache, problem_at};
use crate::{key_path::map_path, problem::ProblemDraft, sections::WorkerEntry};

/// Checks the section and completes it; a part that is not enabled is left out.
pub(super) fn routing(
    mut routing: RoutingSection,
    root: &CheckedValue,
    workers: &[WorkerEntry],
    problems: &mut Vec<ProblemDraft>,
) -> RoutingSection {
    let section = root.key("routing");
    for (name, entry) in section.key("models").entries() {
        if let Err(message) = is_pattern(name) {
            let draft = ProblemDraft::new(map_path("routing.models", name), message);
            let draft = draft.expected("a model's name, or how names begin with one `*` behind it");
            problems.push(problem_at(draft, entry, section));
        }
    }
    check_clusters(section.key("semantic_clusters"), workers, problems);
    lmcache::check(root, workers, problems);
    if let Some(lmcache) = &mut routing.lmcache {
        lmcache::resolve_workers(lmcache, workers);
    }
    for header in &mut routing.session.headers {
        header.make_ascii_lowercase();
    }
    RoutingSection {
        semantic_clusters: routing
            .semantic_clusters
            .filter(|clusters| clusters.enabled),
        shared_prefix_routing: routing
            .shared_prefix_routing
            .filter(|memory| memory.enabled),
        ..routing
    }
}

/// Returns whether caches count for any model.
pub(super) fn caches_count(section: &CheckedValue) -> bool {
    let models = section
        .key("models")
        .entries()
        .iter()
        .map(|(_, entry)| entry);
    std::iter::once(section)
        .chain(models)
        .filter_map(|section| section.key("overlap_weight").float_if_set())
        .any(|weight| weight > 0.0)
}

fn is_pattern(name: &str) -> Result<(), &'static str> {
    let plain = name.strip_suffix('*').unwrap_or(name);
    if name.is_empty() {
        Err("an empty name")
    } else if plain.contains('*') {
        Err("a `*` that is not at the name's end, or not alone there")
    } else {
        Ok(())
    }
}
