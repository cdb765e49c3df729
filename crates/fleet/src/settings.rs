//! The parts of a fleet.

use std::{fmt, path::PathBuf, sync::Arc};

use kv_blocks::HashScheme;
use kv_index::KvIndex;
use net::Clock;

use crate::{FleetConfig, RedisPool, WorkerVerdict};

/// Callback for every verdict: the first of each worker, and one per change of state. Called from
/// supervisor tasks: it must not block.
pub type OnVerdict = Arc<dyn Fn(&WorkerVerdict) + Send + Sync>;

/// Arguments of [`crate::Fleet::start`].
pub struct FleetParts {
    /// The workers and their rules.
    pub config: FleetConfig,
    /// Where each model's tokenizer comes from.
    pub models: config::ModelsSection,
    /// The prefix view and its streams.
    pub kv_cache_index: config::KvCacheIndexSection,
    /// The Redis connections of the prefix view, if it is in Redis.
    pub redis: Option<Arc<RedisPool>>,
    /// Bytes of a prompt that the key of its prefix covers.
    pub max_prefix_length: usize,
    /// The local model-hub cache.
    pub hub_cache: HubCache,
    /// The index that event streams fill.
    pub index: Arc<KvIndex>,
    /// The hash scheme of the index.
    pub scheme: HashScheme,
    /// The process's clock.
    pub clock: Clock,
    /// Callback for every verdict.
    pub on_verdict: OnVerdict,
}

/// The local model-hub cache: a directory of `models--ORG--NAME/snapshots/REVISION/`. Nothing is
/// ever downloaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HubCache(pub Option<PathBuf>);

impl HubCache {
    /// Finds the directory the way the hub's own tools do: `HF_HUB_CACHE`, else `HF_HOME`/hub, else
    /// `HOME`/.cache/huggingface/hub. `env` is looked up by name.
    pub fn from_env(env: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| {
            env(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        Self(
            set("HF_HUB_CACHE")
                .or_else(|| set("HF_HOME").map(|home| home.join("hub")))
                .or_else(|| set("HOME").map(|home| home.join(".cache/huggingface/hub"))),
        )
    }
}

impl fmt::Debug for FleetParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FleetParts")
            .field("workers", &self.config.workers.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hub_cache_is_found_in_the_order_its_own_tools_use() {
        let all = [("HF_HUB_CACHE", "/c"), ("HF_HOME", "/h"), ("HOME", "/u")];
        let find = |from: &'static [(&str, &str)]| {
            HubCache::from_env(move |name| {
                from.iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| (*value).to_owned())
            })
            .0
        };
        let all: &'static [(&str, &str)] = Box::leak(Box::new(all));
        assert_eq!(find(all), Some("/c".into()));
        assert_eq!(find(&all[1..]), Some("/h/hub".into()));
        assert_eq!(find(&all[2..]), Some("/u/.cache/huggingface/hub".into()));
        assert_eq!(find(&[("HF_HUB_CACHE", "")]), None);
    }
}
