//! Settings of the services that read requests before they are routed: hooks, and the embedding
//! model of semantic clusters.

use config::{HookEntry, HookErrorAction};
use routing::{SemanticCluster, SemanticClusters};

use crate::request::{
    clusters::{Cluster, ClusterSettings},
    hooks::HookSettings,
};

/// Returns the hooks; their URLs were checked with the configuration.
pub(super) fn hooks(entries: &[HookEntry]) -> Vec<HookSettings> {
    let hook = |entry: &HookEntry| {
        Some(HookSettings {
            name: entry.name.as_str().into(),
            url: entry.url.parse().ok()?,
            timeout: entry.timeout,
            allow_on_error: entry.on_error == HookErrorAction::Allow,
            reject_status: entry.on_reject.status,
            reject_message: entry.on_reject.message.clone(),
            models: entry.models.clone(),
        })
    };
    entries.iter().filter_map(hook).collect()
}

pub(super) fn clusters(section: &SemanticClusters) -> ClusterSettings {
    let cluster = |cluster: &SemanticCluster| Cluster {
        name: cluster.name.as_str().into(),
        examples: cluster.examples.clone(),
        workers: cluster
            .workers
            .iter()
            .map(|name| name.as_str().into())
            .collect(),
    };
    ClusterSettings {
        embedding_model: section.embedding_model.as_str().into(),
        threshold: section.threshold,
        timeout: section.timeout,
        clusters: section.clusters.iter().map(cluster).collect(),
    }
}
