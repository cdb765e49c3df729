//! Subsections of `routing` about the content of prompts.

use std::time::Duration;

/// `routing.semantic_clusters`, where enabled.
#[derive(Clone, Debug, PartialEq)]
pub struct SemanticClusters {
    /// The model whose vectors are compared.
    pub embedding_model: String,
    /// Least cosine between a prompt and a cluster's examples.
    pub threshold: f64,
    /// Longest that a request waits for its vector.
    pub timeout: Duration,
    /// The clusters; never empty.
    pub clusters: Vec<SemanticCluster>,
}

/// One entry of `routing.semantic_clusters.clusters`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SemanticCluster {
    /// Its name, unique.
    pub name: String,
    /// Prompts that belong there; never empty.
    pub examples: Vec<String>,
    /// Names of its workers, each one of [`crate::Settings::workers`]; never empty.
    pub workers: Vec<String>,
}

/// `routing.shared_prefix_routing`, where enabled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedPrefixRouting {
    /// Characters of a prompt's beginning that count.
    pub prefix_chars: usize,
    /// How long an entry counts.
    pub ttl: Duration,
    /// How often an entry that is there already is written anew.
    pub write_probability: f64,
    /// Most entries.
    pub max_entries: usize,
}
