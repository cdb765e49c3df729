//! The mapping from LMCache instances to workers.

use std::collections::HashMap;

/// Workers by the ids of LMCache instances (`lmcache_instance_id`).
///
/// ```
/// let instances = lmcache::Instances::new([("vllm-001".to_owned(), "vllm-1:8000".to_owned())]);
/// assert_eq!(instances.worker_of("vllm-001"), "vllm-1:8000");
/// assert_eq!(instances.worker_of("w2"), "w2");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Instances(HashMap<String, String>);

impl Instances {
    /// Creates the map from pairs of an instance and a worker: its name, or its `host:port`.
    pub fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(pairs.into_iter().collect())
    }

    /// Returns the name or `host:port` of the worker that the instance belongs to; without a
    /// mapping, the instance's own id.
    pub fn worker_of<'a>(&'a self, instance: &'a str) -> &'a str {
        self.0.get(instance).map_or(instance, String::as_str)
    }
}
