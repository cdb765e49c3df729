//! Sections of `routing` about the content of prompts.

use std::time::Duration;

use settings::kinds::int;

settings::section! {
    /// Section `routing.semantic_clusters`: workers by the meaning of prompts.
    #[derive(Clone, Debug, PartialEq)]
    pub optional struct SemanticClusters {
        /// Restrict prompts with similar meaning to the workers of their cluster.
        enabled: bool = "false", restart;
        /// Embedding model, served at `/v1/embeddings` by one of `workers`. Required if enabled.
        embedding_model: String = "~", restart;
        /// Least cosine between a prompt and a cluster's examples for the prompt to belong to the
        /// cluster.
        threshold: f64 = "0.7", restart;
        /// Longest wait of a request for its embedding; after it the request has no cluster.
        timeout: Duration = "500ms", restart;
        /// The clusters. Required if enabled.
        clusters: Vec<SemanticCluster> = "[]", restart;
    }
}

settings::section! {
    /// One entry of `routing.semantic_clusters.clusters`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub optional struct SemanticCluster {
        /// Name of the cluster in receipts and in `x-semantic-cluster-id`. Required, unique.
        name: String = "~", restart;
        /// Example prompts of the cluster; 8 to 16 work well. Required.
        examples: Vec<String> = "[]", restart;
        /// Names of the cluster's workers; other workers are used only if none of these is
        /// eligible. Required.
        workers: Vec<String> = "[]", restart;
    }
}

settings::section! {
    /// Section `routing.shared_prefix_routing`: memory of the last worker by the beginning of
    /// prompts.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct SharedPrefixRouting {
        /// Under `kv_aware` and `cache_aware`, remember the last worker for each prompt beginning,
        /// for prompts that no worker is known to have cached.
        enabled: bool = "false", restart;
        /// Length of the prompt beginning, in characters.
        prefix_chars: usize = "256" in int(1, 65_536), restart;
        /// Lifetime of an entry.
        ttl: Duration = "300s", restart;
        /// Probability of rewriting an existing entry.
        write_probability: f64 = "0.1", restart;
        /// Maximum number of entries.
        max_entries: usize = "100000" in int(1, 100_000_000), restart;
    }
}
