//! Settings of routing by prompt content, for the request path.

use gateway::{Cluster, ClusterSettings, SharedPrefixSettings};
use routing::{PrefixMemorySettings, SemanticCluster, SemanticClusters, SharedPrefixRouting};

pub(super) fn clusters(settings: &SemanticClusters) -> ClusterSettings {
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
        embedding_model: settings.embedding_model.as_str().into(),
        threshold: settings.threshold,
        timeout: settings.timeout,
        clusters: settings.clusters.iter().map(cluster).collect(),
    }
}

pub(super) fn shared_prefixes(settings: SharedPrefixRouting) -> SharedPrefixSettings {
    SharedPrefixSettings {
        prefix_chars: settings.prefix_chars,
        memory: PrefixMemorySettings::from(&settings),
    }
}
