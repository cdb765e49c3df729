//! Sections of `routing` about the content of prompts.

use std::time::Duration;

use settings::kinds::int;

settings::section! {
    /// Section `routing.semantic_clusters`: workers by the meaning of prompts.
    #[derive(Clone, Debug, PartialEq)]
    pub optional struct SemanticClusters {
        /// Keep prompts that mean alike on the workers of their cluster.
        enabled: bool = "false", restart;
        /// The model whose vectors are compared, served at `/v1/embeddings` by one of `workers`.
        /// Required where enabled.
        embedding_model: String = "~", restart;
        /// Least cosine between a prompt and a cluster's examples for it to belong there.
        threshold: f64 = "0.7", restart;
        /// Longest that a request waits for its vector; then it goes without a cluster.
        timeout: Duration = "500ms", restart;
        /// The clusters. Required where enabled.
        clusters: Vec<SemanticCluster> = "[]", restart;
    }
}

settings::section! {
    /// One entry of `routing.semantic_clusters.clusters`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub optional struct SemanticCluster {
        /// Its name, in receipts and as `x-semantic-cluster-id`. Required, unique.
        name: String = "~", restart;
        /// Prompts that belong there, a line each; 8 to 16 do well. Required.
        examples: Vec<String> = "[]", restart;
        /// Names of its workers; the others serve it where none of these can. Required.
        workers: Vec<String> = "[]", restart;
    }
}

settings::section! {
    /// Section `routing.shared_prefix_routing`: memory of the last worker by the beginning of
    /// prompts.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct SharedPrefixRouting {
        /// Under `kv_aware` and `cache_aware`, remember who served prompts that begin alike, for
        /// where nobody is known to have such a prompt cached.
        enabled: bool = "false", restart;
        /// Characters of a prompt's beginning that count.
        prefix_chars: usize = "256" in int(1, 65_536), restart;
        /// How long an entry counts after it was written.
        ttl: Duration = "300s", restart;
        /// How often an entry that is there already is written anew.
        write_probability: f64 = "0.1", restart;
        /// Most entries.
        max_entries: usize = "100000" in int(1, 100_000_000), restart;
    }
}
