//! Subsections of `routing` about the content of prompts.

use std::time::Duration;

/// `routing.semantic_clusters`, where enabled.
#[derive(Clone, Debug, PartialEq)]
pub struct SemanticClusters {
    /// Embedding model whose vectors are compared.
    pub embedding_model: String,
    /// Least cosine between a prompt and a cluster's examples.
    pub threshold: f64,
    /// Longest wait of a request for its vector.
    pub timeout: Duration,
    /// The clusters; never empty.
    pub clusters: Vec<SemanticCluster>,
}

/// One entry of `routing.semantic_clusters.clusters`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SemanticCluster {
    /// Its name, unique.
    pub name: String,
    /// Example prompts of the cluster; never empty.
    pub examples: Vec<String>,
    /// Names of its workers, each one of [`crate::Settings::workers`]; never empty.
    pub workers: Vec<String>,
}

/// `routing.shared_prefix_routing`, where enabled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedPrefixRouting {
    /// Length of the compared beginning of a prompt, in characters.
    pub prefix_chars: usize,
    /// Lifetime of an entry.
    pub ttl: Duration,
    /// Probability that an existing entry is written again.
    pub write_probability: f64,
    /// Most entries.
    pub max_entries: usize,
}
