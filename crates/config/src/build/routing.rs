//! Section `routing`.

use super::{
    DEFAULT_POLICY,
    content_routing::{semantic_clusters, shared_prefix_routing},
    lmcache::lmcache,
};
use crate::{
    DynamoSection, MediumWeights, ModelRoutingEntry, RoutingSection, SessionMode, SessionSection,
    WorkerEntry, check::map_path, checked_value::CheckedValue, problem::ProblemDraft,
};

pub(super) fn routing(
    root: &CheckedValue,
    workers: &[WorkerEntry],
    problems: &mut Vec<ProblemDraft>,
) -> RoutingSection {
    let section = root.key("routing");
    let models = section.key("models").entries();
    for (name, entry) in models {
        if let Err(message) = is_pattern(name) {
            let draft = ProblemDraft::new(map_path("routing.models", name), message);
            let draft = draft.expected("a model's name, or how names begin with one `*` behind it");
            problems.push(super::problem_at(draft, entry, section));
        }
    }
    let (weights, dynamo) = (section.key("medium_weights"), section.key("dynamo"));
    let medium_weights = MediumWeights {
        gpu: weights.key("gpu").float(),
        cpu: weights.key("cpu").float(),
        disk: weights.key("disk").float(),
    };
    RoutingSection {
        policy: section.key("policy").word().unwrap_or(DEFAULT_POLICY),
        prefill_policy: section.key("prefill_policy").word(),
        decode_policy: section.key("decode_policy").word(),
        hash_seed_of_rings: section.key("hash_seed_of_rings").int(),
        overlap_weight: section.key("overlap_weight").float(),
        temperature: section.key("temperature").float(),
        busy_threshold: section.key("busy_threshold").float_if_set(),
        track_active_blocks: section.key("track_active_blocks").bool(),
        tokenize_budget: section.key("tokenize_budget").duration(),
        reservation_ttl: section.key("reservation_ttl").duration(),
        session: session(section.key("session")),
        speculative: section.key("speculative").bool(),
        speculative_ttl: section.key("speculative_ttl").duration(),
        medium_weights,
        dynamo: DynamoSection {
            active_request_weight: dynamo.key("active_request_weight").float(),
            host_cache_hit_weight: dynamo.key("host_cache_hit_weight").float(),
            disk_cache_hit_weight: dynamo.key("disk_cache_hit_weight").float(),
        },
        lmcache: lmcache(root, workers, problems),
        semantic_clusters: semantic_clusters(section.key("semantic_clusters"), workers, problems),
        shared_prefix_routing: shared_prefix_routing(section.key("shared_prefix_routing")),
        models: models
            .iter()
            .map(|(name, entry)| (name.clone(), model(entry, medium_weights)))
            .collect(),
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

fn model(section: &CheckedValue, usual: MediumWeights) -> ModelRoutingEntry {
    let own = section.key("medium_weights");
    let [gpu, cpu, disk] = ["gpu", "cpu", "disk"].map(|tier| own.key(tier).float_if_set());
    ModelRoutingEntry {
        policy: section.key("policy").word(),
        prefill_policy: section.key("prefill_policy").word(),
        decode_policy: section.key("decode_policy").word(),
        overlap_weight: section.key("overlap_weight").float_if_set(),
        temperature: section.key("temperature").float_if_set(),
        busy_threshold: section.key("busy_threshold").float_if_set(),
        medium_weights: gpu.or(cpu).or(disk).map(|_| MediumWeights {
            gpu: gpu.unwrap_or(usual.gpu),
            cpu: cpu.unwrap_or(usual.cpu),
            disk: disk.unwrap_or(usual.disk),
        }),
    }
}

fn session(section: &CheckedValue) -> SessionSection {
    let headers = section
        .key("headers")
        .items()
        .iter()
        .filter_map(CheckedValue::text);
    SessionSection {
        mode: match section.key("mode").word() {
            Some("hard") => SessionMode::Hard,
            Some("off") => SessionMode::Off,
            _ => SessionMode::Soft,
        },
        headers: headers.map(str::to_ascii_lowercase).collect(),
    }
}
